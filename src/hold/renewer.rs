//! The watchdog of one lock: an OS thread that renews its hold, or watches a fixed lease run out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::clock::BootTime;
use crate::error::{Error, ErrorKind, LossReason};
use crate::hold::Hold;
use crate::hold::replies::read_renew;
use crate::observe::metrics::Meters;
use crate::redis_io::STACK;
use crate::redis_io::connection::{Budget, Limits};
use crate::redis_io::node::{Answer, Node};

/// Longest that a thread without a hold sleeps before it looks for one by itself.
const LONGEST_LINGER: Duration = Duration::from_secs(1);

/// One renewer thread. It serves one hold at a time, and parks in between.
#[derive(Debug)]
pub(crate) struct Renewer {
    slot: Arc<Mutex<Slot>>,
    wake: Sender<()>,
    thread: JoinHandle<()>,
}

/// What thread and guard share, under one lock: whoever has the hold in his hands at a time.
#[derive(Debug, Default)]
struct Slot {
    hold: Option<Arc<Hold>>,
    /// A renewal of `hold` is under way.
    busy: bool,
    /// Who waits for that to be over.
    joiner: Option<Sender<()>>,
    /// When the thread looks again by itself; `None`: it is parked, and must be woken.
    next_look: Option<BootTime>,
    /// A hold came since the last look: more are likely, so the thread goes on looking for a while before it parks.
    used: bool,
    /// How long until that look: soon enough for holds like the last one.
    linger: Duration,
    stop: bool,
}

impl Renewer {
    /// # Errors
    ///
    /// What the system says when it can't start a thread.
    pub(crate) fn spawn(node: Arc<Node>, metrics: Arc<Meters>) -> std::io::Result<Renewer> {
        let slot = Arc::new(Mutex::new(Slot::default()));
        let (wake, wakes) = bounded(1);
        let shared = slot.clone();
        let thread = std::thread::Builder::new()
            .name("leasehold-renew".into())
            .stack_size(STACK)
            .spawn(move || work(&shared, &wakes, &node, &metrics))?;
        Ok(Renewer { slot, wake, thread })
    }

    /// Puts a hold into the thread's hands.
    pub(crate) fn attach(&self, hold: &Arc<Hold>) {
        let due = hold.due();
        hold.nudged_by(self.wake.clone());
        let mut slot = self.slot.lock();
        slot.hold = Some(hold.clone());
        slot.used = true;
        slot.linger = (due.since(hold.granted_at) / 2).min(LONGEST_LINGER);
        // Otherwise it finds the hold by itself, in time: a wake costs more than all else here.
        if slot.next_look.is_none_or(|look| due < look) {
            let _ = self.wake.try_send(());
        }
    }

    /// Takes the hold out of the thread's hands. When this returns, no renewal of it will be started; one that is under way
    /// has been waited for, for at most `patience`, which is as long as it may take. (What takes longer can only be the user's
    /// logger. A renewal that comes after all compares tokens.) `false` if it is under way still: then the thread is no good
    /// for other holds, and must be [abandoned](Renewer::abandon).
    pub(crate) fn detach(&self, patience: Duration) -> bool {
        let answer = {
            let mut slot = self.slot.lock();
            slot.hold = None;
            if !slot.busy {
                return true;
            }
            let (tx, rx) = bounded(1);
            slot.joiner = Some(tx);
            rx
        };
        // Disconnected is the answer.
        answer
            .recv_timeout(patience)
            .is_err_and(|e| e.is_disconnected())
    }

    /// Whether the thread is gone: then it must not be lent.
    pub(crate) fn is_gone(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the thread as soon as it can, without a wait for that.
    pub(crate) fn abandon(self) {
        self.stop();
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn end(self) {
        self.stop();
        if self.thread.join().is_err() {
            log::error!(target: "leasehold", "a renewer thread had panicked");
        }
    }

    fn stop(&self) {
        self.slot.lock().stop = true;
        let _ = self.wake.try_send(());
    }
}

fn work(slot: &Mutex<Slot>, wakes: &Receiver<()>, node: &Node, metrics: &Meters) {
    let mut pace = Pace::default();
    loop {
        let (hold, wait) = {
            let mut slot = slot.lock();
            if slot.stop {
                return;
            }
            match slot.hold.clone() {
                None if slot.used => {
                    slot.used = false;
                    slot.next_look = Some(node.clock.now() + slot.linger);
                    (None, Some(slot.linger))
                }
                None => {
                    slot.next_look = None;
                    (None, None)
                }
                Some(hold) => {
                    let (due, now) = (hold.due(), node.clock.now());
                    if due <= now {
                        slot.busy = true;
                        (Some(hold), None)
                    } else {
                        slot.next_look = Some(due);
                        (None, Some(due.since(now)))
                    }
                }
            }
        };
        if let Some(hold) = hold {
            // The user's logger runs in there. Its panic must end neither the renewing nor whoever joins.
            let tick = AssertUnwindSafe(|| pace.tick(&hold, node, metrics));
            let over = catch_unwind(tick).unwrap_or(false);
            let mut slot = slot.lock();
            slot.busy = false;
            let is_same = slot.hold.as_ref().is_some_and(|h| Arc::ptr_eq(h, &hold));
            if over && is_same {
                slot.hold = None;
            }
            // The answer to whoever joins: from here on this thread knows nothing of the hold.
            slot.joiner = None;
            continue;
        }
        let woken = match wait {
            None => wakes.recv().map_err(drop),
            Some(d) => match wakes.recv_timeout(d) {
                Err(e) if e.is_disconnected() => Err(()),
                _ => Ok(()),
            },
        };
        if woken.is_err() {
            return;
        }
    }
}

/// How renewing one hold goes: which path it takes and how soon it tries again.
#[derive(Debug, Default)]
struct Pace {
    token: Option<Arc<str>>,
    failures: u32,
    line_was_busy: bool,
}

impl Pace {
    /// Does what is due for `hold`. `true` when there is nothing more to do for it.
    fn tick(&mut self, hold: &Hold, node: &Node, metrics: &Meters) -> bool {
        if self.token.as_ref() != Some(&hold.token) {
            self.token = Some(hold.token.clone());
            self.failures = 0;
        }
        if hold.end_reason().is_some() {
            return true;
        }
        if hold.only_ends() {
            // The end has been put off since.
            hold.set_due(hold.deadline());
            return false;
        }
        let now = node.clock.now();
        let left = hold.deadline().since(now);
        metrics.renewal_due(now.since(hold.due()), left);
        let (lease, last) = hold.next_lease(now);
        let renewed = self.renew(hold, node, lease, left).and_then(|answer| {
            let left = read_renew(answer.value, hold.family.renew, &node.target.address)?;
            Ok((answer.sent_at, left))
        });
        match renewed {
            Ok((sent_at, Some(server_left))) => {
                if hold.end_reason().is_some() {
                    // Too late: what was lost stays lost, whatever the server says.
                    return true;
                }
                report_jump(hold, sent_at, server_left);
                hold.renewed(sent_at, lease, last);
                self.failures = 0;
                metrics.renewed();
                false
            }
            Ok((_, None)) if hold.is_converting() => {
                // Whoever converts it knows what became of it. Till then the deadline counts.
                hold.set_due(node.clock.now() + hold.present_lease() / 60);
                false
            }
            Ok((_, None)) => {
                hold.end(LossReason::TakenAway);
                true
            }
            Err(error) => {
                self.failures += 1;
                metrics.renewal_failed();
                let pause = pause(hold.present_lease(), self.failures, hold.remaining_lease());
                hold.set_due(node.clock.now() + pause);
                let (name, left) = (&*hold.keys.name, hold.remaining());
                log::warn!(target: "leasehold", name = name; "renewal of lock {name:?} failed, {left:?} left: {error}");
                hold.end_reason().is_some()
            }
        }
    }

    /// One try: over the connection that renewals share. If that was busy with others all the time at the last try, over a
    /// pooled one, if one is free.
    fn renew(
        &mut self,
        hold: &Hold,
        node: &Node,
        lease: Duration,
        left: Duration,
    ) -> Result<Answer, Error> {
        let request = hold.renewal(lease);
        // Several tries must fit into what is left, so each has less time than the one before.
        let io = hold
            .options
            .command_timeout(node.limits.io)
            .min((left / 4).max(Duration::from_millis(5)));
        // All of it, connecting and waiting for a turn included: a release may have to wait for this, and is bounded itself.
        let limits = Limits::new(node.limits.connect.min(io), io);
        let patience = io.min(left);
        if std::mem::take(&mut self.line_was_busy) {
            let budget = Budget::new(patience);
            if let Some(result) = node.call_if_idle(&request, limits, budget) {
                return result.map_err(Error::from);
            }
        }
        match node.renewals.call(request, limits, patience, &node.clock) {
            Some(result) => result.map_err(Error::from),
            None => {
                self.line_was_busy = true;
                let what = format!("{} did not answer in time", node.target.address);
                Err(Error::new(ErrorKind::Unavailable, what))
            }
        }
    }
}

/// The server counts leases by its wall clock. Set forward, it ends them early; nothing here can prevent that, but it can be
/// said.
fn report_jump(hold: &Hold, sent_at: BootTime, server_left: Duration) {
    let expected = hold.deadline().since(sent_at);
    let jump = expected.saturating_sub(server_left);
    if jump > hold.options.ttl / 10 {
        let name = &*hold.keys.name;
        log::warn!(target: "leasehold", name = name;
            "the server's clock ran ahead by about {jump:?} since the last renewal of lock {name:?}: leases end early");
    }
}

/// Grows from a sixtieth of the lease to a sixth, and is shorter again towards the end: whenever the server comes back, there must
/// be time for one more try.
fn pause(lease: Duration, failures: u32, left: Duration) -> Duration {
    let first = (lease / 60).max(Duration::from_millis(1));
    first
        .saturating_mul(1 << failures.saturating_sub(1).min(4))
        .min(lease / 6)
        .min(left / 3)
        .max(first)
}
