//! Six processes at one lock, and what befalls them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold::Semaphore;

use super::session::{LIMIT, NAME, TTL};
use crate::support::child::Child;
use crate::support::history::record::{Recorder, read};
use crate::support::history::{Call, Model, Op, Outcome, judge as judge_all};
use crate::support::locks::Scene;
use crate::support::proxy::{Action, Command, RuleHandle, Times};
use crate::support::temp::TempDir;

const BOUND: Duration = Duration::from_secs(30);
const PROCESSES: u32 = 6;
/// The test itself.
const PARENT: u32 = PROCESSES;
/// The victims; of the others, some see the server through the proxy.
const KILLED_HOLDING: usize = 0;
const STOPPED_HOLDING: usize = 1;
const KILLED: usize = 2;
const STOPPED: usize = 3;

pub(super) struct Crowd {
    children: Vec<Child>,
    faults: [RuleHandle; 5],
    semaphore: Semaphore,
    recorder: Recorder,
    limit: u32,
    kind: &'static str,
    folder: TempDir,
    bench: Scene,
}

impl Crowd {
    pub(super) fn new(kind: &'static str) -> Crowd {
        let bench = Scene::new();
        let folder = TempDir::new();
        let late = Duration::from_millis(300);
        let faults = [
            (every(40), Action::DropReply),
            (every(50), Action::DuplicateRequest),
            (every(60), Action::CutBeforeReply),
            (every(70), Action::DelayRequest(late)),
            (every(80), Action::CutBeforeRequest),
        ];
        let faults = faults.map(|(which, fault)| bench.proxy.rule(which, fault, Times::Always));
        let start = |n: u32| {
            let url = match n % 2 {
                0 => bench.server.url(),
                _ => bench.proxy.url(),
            };
            let child = Child::role("histories/play").arg(url).arg(kind);
            child.arg(record(&folder, n).display()).arg(n).spawn()
        };
        let children: Vec<Child> = (0..PROCESSES).map(start).collect();
        for child in &children {
            child.wait_for("ready", BOUND);
        }
        Crowd {
            children,
            faults,
            semaphore: bench.direct(TTL).semaphore(NAME, LIMIT),
            recorder: Recorder::new(&record(&folder, PARENT), PARENT),
            limit: LIMIT,
            kind,
            folder,
            bench,
        }
    }

    /// All that was done until the end, by whom and when.
    pub(super) fn run(mut self) -> Vec<Op> {
        self.go_on();
        self.holding(KILLED_HOLDING);
        self.children[KILLED_HOLDING].kill();
        self.go_on();

        self.holding(STOPPED_HOLDING);
        self.children[STOPPED_HOLDING].stop();
        self.children[STOPPED].stop();
        self.cut_inboxes();
        // Their leases are over, and others work, when they go on.
        sleep(TTL + TTL / 4);
        self.go_on();
        self.children[STOPPED].cont();
        self.children[STOPPED_HOLDING].cont();
        self.children[STOPPED_HOLDING].send_line("on");
        self.go_on();

        self.children[KILLED].kill();
        self.cut_inboxes();
        self.go_on();
        self.end()
    }

    /// Until the child is in the middle of a section, its lease renewed.
    fn holding(&mut self, child: usize) {
        self.children[child].send_line("hold");
        self.children[child].wait_for("holding", BOUND);
    }

    /// Until a good deal more has been done.
    fn go_on(&mut self) {
        const MORE: u64 = 15_000;
        let start = Instant::now();
        let enough = self.written() + MORE;
        while self.written() < enough {
            assert!(start.elapsed() < BOUND, "they go on");
            if self.kind == "permits" {
                self.change_limit();
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn written(&self) -> u64 {
        let size = |n| record(&self.folder, n).metadata().map_or(0, |m| m.len());
        (0..PROCESSES).map(size).sum()
    }

    fn change_limit(&mut self) {
        self.limit = if self.limit == LIMIT {
            LIMIT - 1
        } else {
            LIMIT
        };
        let id = self.recorder.call(0, NAME, &Call::Limit(self.limit));
        self.semaphore
            .set_permits(self.limit)
            .expect("the server answers");
        self.recorder.returned(id, &Outcome::Done);
    }

    fn cut_inboxes(&self) {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("pubsub");
        kill.exec(&mut self.bench.raw()).expect("CLIENT KILL");
    }

    fn end(mut self) -> Vec<Op> {
        let alive = [STOPPED_HOLDING, STOPPED, 4, 5];
        for i in alive {
            self.children[i].send_line("end");
        }
        for i in alive {
            let child = &mut self.children[i];
            let status = child.wait(BOUND);
            let well = status.is_some_and(|status| status.success());
            assert!(well, "process {i}: {status:?}\n{}", child.stderr());
        }
        let hits: usize = self.faults.iter().map(RuleHandle::hits).sum();
        assert!(hits > 3, "{hits} faults on the wire");
        let ops_of = |n: u32| match record(&self.folder, n) {
            path if path.exists() => read(&path, n),
            _ => Vec::new(),
        };
        let mut ops: Vec<Op> = (0..=PARENT).flat_map(ops_of).collect();
        ops.sort_by_key(|op| op.invoked);
        ops
    }
}

/// Each so many-th call that acquires, releases or converts.
fn every(n: usize) -> impl Fn(&Command) -> bool + Send + Sync + 'static {
    let calls = AtomicUsize::new(0);
    move |command| {
        let is_one = |script: &str| {
            ["acquire", "release", "downgrade"]
                .iter()
                .any(|s| script.starts_with(s))
        };
        command.script().is_some_and(is_one) && calls.fetch_add(1, Ordering::Relaxed) % n == n - 1
    }
}

fn record(folder: &TempDir, process: u32) -> PathBuf {
    folder.path().join(format!("process-{process}"))
}

/// Panics if no such lock may do this. Before that: the history is one in which much was done, and victims held.
#[track_caller]
pub(super) fn judge(ops: &[Op], model: Model) {
    let granted = ops.iter().filter(|op| op.is_granted()).count();
    assert!(granted > 50, "only {granted} acquisitions");
    let of = |process: usize, outcome: Outcome| {
        let is_it = |op: &&Op| op.owner.process as usize == process && op.outcome == outcome;
        ops.iter().filter(is_it).count()
    };
    assert!(
        of(STOPPED_HOLDING, Outcome::Over) > 0,
        "the one that was stopped lost its hold"
    );
    let given_back = |op: &&Op| {
        op.owner.process as usize == KILLED_HOLDING && matches!(op.call, Call::Give { .. })
    };
    let taken = |op: &&Op| op.owner.process as usize == KILLED_HOLDING && op.is_granted();
    let (taken, given_back) = (ops.iter().filter(taken), ops.iter().filter(given_back));
    assert!(
        taken.count() > given_back.count(),
        "the one that was killed held"
    );
    judge_all(ops, model);
}
