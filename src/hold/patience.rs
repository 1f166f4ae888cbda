//! How long one acquire may take, how often it looks, and how it says that its time is up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::hold::core::Core;
use crate::hold::deadlock::Circle;
use crate::hold::way::Way;
use crate::redis_io::connection::{Budget, Limits};
use crate::wait::{Cancellers, Until, Wait};

/// How often a waiter looks for itself, wakes or not.
const POLL: Duration = Duration::from_secs(1);

/// How long this call may take, and what ends it.
pub(crate) struct Patience {
    pub(crate) is_try: bool,
    began: Instant,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancellers: Cancellers,
    /// What to do for one who finds that it is his own hold that keeps him out.
    own_hold: &'static str,
}

impl Patience {
    pub(crate) fn new(core: &Core, way: &Way, wait: &Wait, began: Instant) -> Patience {
        Patience {
            own_hold: way.own_hold(),
            is_try: matches!(wait.until, Until::Now),
            began,
            deadline: wait.deadline(began, core.max_wait),
            cancellers: Cancellers([core.canceller.clone(), wait.canceller.clone()]),
        }
    }

    pub(crate) fn is_bounded(&self) -> bool {
        !self.is_try && self.deadline.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// How far a bounded wait may go over its bound to end in good order: half of the 10 % + 20 ms that it promises at most.
    pub(crate) fn slack(&self) -> Duration {
        let asked = self
            .deadline
            .map_or(Duration::ZERO, |d| d.saturating_duration_since(self.began));
        asked / 20 + Duration::from_millis(10)
    }

    /// Time for one exchange with the server, connecting included.
    pub(crate) fn budget(&self, limits: Limits) -> Budget {
        let usual = limits.connect + limits.io;
        if self.is_try {
            return Budget::new(usual);
        }
        match self.deadline {
            None => Budget::new(usual * 2),
            Some(d) => {
                let left = d.saturating_duration_since(Instant::now());
                Budget::new((usual * 2).min(left + self.slack()))
            }
        }
    }

    pub(crate) fn circle(&self, circle: Circle) -> Error {
        if self.is_try {
            let what = "this thread holds it already";
            return Error::new(ErrorKind::WouldBlock, what).advise(self.own_hold);
        }
        match circle {
            Circle::Itself => {
                let what = "this thread holds it already, and would wait for itself";
                Error::new(ErrorKind::Deadlock, what).advise(self.own_hold)
            }
            Circle::Others => {
                let what = "this thread holds another lock that the holder of this one waits for, perhaps through others: threads of this process would wait in a circle";
                Error::new(ErrorKind::Deadlock, what)
            }
        }
    }

    pub(crate) fn timed_out(&self, who: &str) -> Error {
        let waited = self.began.elapsed();
        let what = format!("not acquired within {waited:.1?}: {who}");
        Error::new(ErrorKind::TimedOut, what)
    }
}

#[cold]
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the wait was cancelled")
}

/// When to look again at a lock that somebody holds: at its end if that comes sooner than the usual poll.
///
/// One who has renewed since the last look lives: then a short ttl is no reason to look more than twice a second.
pub(crate) fn until_poll(left: Option<Duration>, renewed: bool) -> Duration {
    let poll = jittered(POLL);
    match left {
        Some(left) if renewed => poll.min(left.max(POLL / 2)),
        Some(left) => poll.min(left + jittered(Duration::from_millis(4))),
        None => poll,
    }
}

/// ±25 %, so that waiters of different processes don't all look at once.
pub(crate) fn jittered(d: Duration) -> Duration {
    // A multiplicative hash of a counter: spread enough for this, and no generator to keep.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT
        .fetch_add(1, Ordering::Relaxed)
        .wrapping_add(std::process::id());
    let spread = n.wrapping_mul(0x9E37_79B9) >> 22;
    d * (768 + spread / 2) / 1024
}
