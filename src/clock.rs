//! The clock that decides whether a hold is still ours.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A moment on the boot clock, in nanoseconds: goes on while the machine sleeps, and no one can set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(u64);

impl BootTime {
    pub(crate) fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn from_nanos(nanos: u64) -> BootTime {
        BootTime(nanos)
    }

    /// The last multiple of `step` before it.
    pub(crate) fn rounded_down(self, step: Duration) -> BootTime {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX).max(1);
        BootTime(self.0 - self.0 % step)
    }

    pub(crate) fn since(self, earlier: BootTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootTime {
    type Output = BootTime;

    fn add(self, d: Duration) -> BootTime {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        BootTime(self.0.saturating_add(nanos))
    }
}

/// The boot clock of one client, with a seam for tests: time that went by while nobody ran.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    slept: AtomicU64,
}

impl Clock {
    pub(crate) fn now(&self) -> BootTime {
        BootTime(read() + self.slept.load(Ordering::Relaxed))
    }

    /// As if the machine had been suspended for `d`.
    #[cfg_attr(not(feature = "testing"), allow(dead_code))]
    pub(crate) fn sleep_through(&self, d: Duration) {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        self.slept.fetch_add(nanos, Ordering::Relaxed);
    }
}

#[cfg(unix)]
fn read() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // macOS' monotonic clock counts sleep, too; on other systems it stands in for the boot clock.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let t = rustix::time::clock_gettime(CLOCK);
    // Both parts are positive since boot.
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// Counted from the first look, which is as good: only differences matter.
#[cfg(not(unix))]
fn read() -> u64 {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_machine_has_lost_that_time() {
        let clock = Clock::default();
        let before = clock.now();
        clock.sleep_through(Duration::from_secs(35));
        assert!(clock.now().since(before) >= Duration::from_secs(35));
    }
}
