//! One renewal goes wrong, or the server is busy: the hold goes on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, Predecessor};

use crate::support::child::{Child, args, say};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(20);

/// All that can befall one renewal and says nothing about whose the lock is.
fn troubles() -> Vec<(&'static str, Action)> {
    let reply = |text: &str| Action::ReplaceReply(format!("{text}\r\n").into_bytes());
    vec![
        ("request-lost", Action::DropRequest),
        ("reply-lost", Action::DropReply),
        ("cut-before", Action::CutBeforeRequest),
        ("cut-after", Action::CutBeforeReply),
        ("late", Action::DelayReply(Duration::from_secs(1))),
        ("twice", Action::DuplicateRequest),
        ("busy", reply("-BUSY Redis is busy running a script")),
        (
            "loading",
            reply("-LOADING Redis is loading the dataset in memory"),
        ),
        (
            "tryagain",
            reply("-TRYAGAIN Multiple keys request during rehashing of slot"),
        ),
        ("clusterdown", reply("-CLUSTERDOWN The cluster is down")),
        ("masterdown", reply("-MASTERDOWN Link with MASTER is down")),
        (
            "readonly",
            reply("-READONLY You can't write against a read only replica."),
        ),
        (
            "oom",
            reply("-OOM command not allowed when used memory > 'maxmemory'."),
        ),
        (
            "misconf",
            reply("-MISCONF Redis is configured to save RDB snapshots"),
        ),
        (
            "noreplicas",
            reply("-NOREPLICAS Not enough good replicas to write."),
        ),
        ("noscript", reply("-NOSCRIPT No matching script.")),
        ("error", reply("-ERR something new")),
        ("nonsense", reply(":7")),
    ]
}

/// redisson#775, #2515, #3194: one failed renewal ends renewing, or poisons the name. Invariant 2.
#[test]
fn a_renewal_that_fails_once_does_not_end_renewing() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(3);
    thread::scope(|scope| {
        for (name, action) in troubles() {
            let scene = &scene;
            scope.spawn(move || {
                let harmless = name == "twice" || name == "noscript";
                let met = scene
                    .proxy
                    .rule(move |c| c.runs_on("renew", name), action, Times::Once);
                // A client each: no two renewals share a pipeline, whose other replies a lost one would make false.
                let client = scene.builder().ttl(ttl).build().unwrap();
                let guard = client.mutex(name).lock().unwrap();
                // The lease that the acquire gave is over by then.
                let over = Instant::now() + ttl + ttl / 6;
                let lost = guard.lost().recv_deadline(over);
                assert!(
                    lost.is_err_and(|e| e.is_timeout()),
                    "{name}: {:?}",
                    guard.check()
                );
                guard.verify().unwrap();
                let metrics = client.metrics();
                assert_eq!(met.hits(), 1, "{name}");
                assert!(metrics.renewals >= 2, "{name}: {metrics:?}");
                assert_eq!(
                    metrics.renewal_failures > 0,
                    !harmless,
                    "{name}: {metrics:?}"
                );
                guard.unlock().unwrap();
                // And the name is as good as before.
                let again = client.mutex(name).try_lock().unwrap();
                let renewed = client.metrics().renewals;
                eventually(BOUND, "the next hold is renewed, too", || {
                    client.metrics().renewals > renewed
                });
                again.unlock().unwrap();
            });
        }
    });
}

/// redisson PR#3334: a slow script (BUSY) stops the watchdog.
#[test]
fn three_seconds_of_a_busy_server_cost_no_hold_of_ten() {
    const TTL: Duration = Duration::from_secs(10);
    const BUSY: Duration = Duration::from_secs(3);
    // One server that says BUSY while it runs the script, one that says nothing.
    let busy = Scene::with_args(["--lua-time-limit", "50"]);
    let silent = Scene::new();
    let client = busy.builder().ttl(TTL).build().unwrap();
    let other = silent.builder().ttl(TTL).build().unwrap();
    let (guard, unheard) = (
        client.mutex("busy").lock().unwrap(),
        other.mutex("silent").lock().unwrap(),
    );
    // Its first renewal is due after a third of the ttl, in the midst of the trouble.
    eventually(BOUND, "nearly three seconds of the lease are gone", || {
        guard.remaining() < TTL - Duration::from_millis(2900)
    });
    let script = thread::spawn({
        let mut connection = busy.raw();
        connection.set_read_timeout(Some(BOUND)).unwrap();
        move || {
            let mut eval = redis::cmd("EVAL");
            eval.arg("while true do end").arg(0);
            eval.query::<()>(&mut connection).unwrap_err().to_string()
        }
    });
    silent.server.pause().unwrap();
    thread::sleep(BUSY);
    silent.server.resume().unwrap();
    ask::<()>(&mut busy.raw(), "SCRIPT KILL");
    let said = script.join().unwrap();
    assert!(said.contains("killed"), "the server was not busy: {said}");
    for (client, guard) in [(&client, &guard), (&other, &unheard)] {
        eventually(BOUND, "the hold is renewed", || {
            assert!(guard.is_held(), "{:?}", guard.check());
            client.metrics().renewals > 0
        });
        let metrics = client.metrics();
        assert!(
            metrics.renewal_failures > 0,
            "it met no trouble: {metrics:?}"
        );
        assert!(guard.check_for(TTL / 2).is_ok(), "{:?}", guard.remaining());
        guard.verify().unwrap();
    }
}

/// DistributedLock#191: the release meets a timeout. Invariant 11.
#[test]
fn a_drop_that_the_server_does_not_answer_is_bounded_and_the_key_goes_all_the_same() {
    const IO: Duration = Duration::from_millis(400);
    let scene = Scene::new();
    // How many of its releases get lost on their way, and its ttl: what is sent again in the background frees it long before
    // that; only where the server never hears of it, the ttl must do.
    let long = Duration::from_secs(60);
    let cases = [
        ("dropped", Times::N(1), long),
        ("unlocked", Times::N(2), long),
        ("unwound", Times::N(2), long),
        ("never", Times::Always, Duration::from_secs(2)),
    ];
    let client = scene.builder().io_timeout(IO).build().unwrap();
    let bounded = |what: &str, start: Instant| {
        let took = start.elapsed();
        assert!(took < IO * 2, "{what} took {took:?}");
    };
    for (name, times, ttl) in cases {
        let releases = move |c: &Command| c.runs_on("release", name);
        let lost = scene.proxy.rule(releases, Action::DropRequest, times);
        let guard = client.mutex(name).with_ttl(ttl).lock().unwrap();
        let start = Instant::now();
        match name {
            "unlocked" => {
                let error = guard.unlock().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            "unwound" => {
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let _guard = guard;
                    // Without the hook, whose backtrace takes longer on a busy machine than what is measured.
                    resume_unwind(Box::new("as planned"));
                }));
                assert!(unwound.is_err());
            }
            _ => drop(guard),
        }
        bounded(name, start);
        assert!(lost.hits() > 0, "{name}");
    }
    let stopped = client.mutex("stopped").with_ttl(long).lock().unwrap();
    scene.server.pause().unwrap();
    let start = Instant::now();
    drop(stopped);
    bounded("before a stopped server", start);
    scene.server.resume().unwrap();
    for name in ["dropped", "unlocked", "unwound", "stopped", "never"] {
        eventually(Duration::from_secs(10), name, || {
            !scene.ask::<bool>(&format!("EXISTS {name}"))
        });
    }
    assert_eq!(client.metrics().release_errors, 5);
    // What the guard's end told the server came with the later tries, too.
    let next = client.mutex("unwound").try_lock().unwrap();
    assert!(matches!(next.predecessor(), Predecessor::Panicked { .. }));
    let next = client.mutex("unlocked").try_lock().unwrap();
    assert_eq!(next.predecessor(), &Predecessor::Clean);
}

/// A logger that panics in the midst of the renewing, and only there.
struct Unwell;

impl log::Log for Unwell {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        if record.args().to_string().contains("renewal of lock") {
            panic!("as planned");
        }
    }

    fn flush(&self) {}
}

/// In a process of its own: it has a logger that nobody else would want.
pub(crate) fn hold_under_a_panicking_logger() {
    log::set_logger(&Unwell).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let ttl = Duration::from_secs(2);
    let client = Client::builder().url(&args()[0]).ttl(ttl).build().unwrap();
    let guard = client.mutex("unwell").lock().unwrap();
    let lost = guard.lost().recv_timeout(ttl + ttl / 4);
    assert!(lost.is_err_and(|e| e.is_timeout()), "{:?}", guard.check());
    let metrics = client.metrics();
    assert!(
        metrics.renewal_failures == 2 && metrics.renewals > 0,
        "{metrics:?}"
    );
    guard.unlock().unwrap();
    say("held and given back");
}

/// redisson#775, #2515, #3194, where it is the user's own code that fails: a logger that panics ends no renewing, and the
/// release does not wait for a thread that is no more. Invariant 2.
#[test]
fn a_logger_that_panics_ends_no_renewing() {
    let scene = Scene::new();
    let refused = Action::ReplaceReply(b"-LOADING in a moment\r\n".to_vec());
    let met = scene.proxy.rule(|c| c.runs("renew"), refused, Times::N(2));
    let child = Child::role("renewal/panicking_logger")
        .arg(scene.proxy.url())
        .spawn();
    child.wait_for("held and given back", BOUND);
    assert_eq!(met.hits(), 2);
}
