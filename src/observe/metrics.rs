//! Counters and histograms of one client.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::LossReason;

/// What one client's locks did since it was made: a snapshot.
///
/// Worth an alert: `releases_refused`, `lost` or `stale_writes_rejected` above 0; `renewal_failures` rising;
/// `least_remaining_at_renewal` below half of the ttl; `hold.p99` near a fixed lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Locks acquired.
    pub acquired: u64,
    /// Acquisitions that had to wait for somebody.
    pub contended: u64,
    /// Renewals that the server confirmed.
    pub renewals: u64,
    /// Renewals without an answer, or with an error: tried again until the lease's end.
    pub renewal_failures: u64,
    /// Holds that ended while their guards lived.
    pub lost: u64,
    /// Releases that the server refused, because the lock was not ours any more: losses that nobody knew of, so not in `lost`.
    pub releases_refused: u64,
    /// Releases that could not be sent, or were not answered.
    pub release_errors: u64,
    /// Fixed leases that were held past their end.
    pub overrun_leases: u64,
    /// How often [`Lease::stale_write_rejected`](crate::Lease::stale_write_rejected) was called.
    pub stale_writes_rejected: u64,
    /// From the call to the guard.
    pub wait: Quantiles,
    /// From the grant to the release.
    pub hold: Quantiles,
    /// How late renewals were started.
    pub renewal_lateness: Quantiles,
    /// The least that was left of any lease when its renewal was started.
    pub least_remaining_at_renewal: Option<Duration>,
}

/// A distribution of durations. `p50` and `p99` are upper bounds, at most an eighth too high.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quantiles {
    /// How many there were.
    pub count: u64,
    /// Half of them were at most this.
    pub p50: Duration,
    /// 99 of 100 were at most this.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// The meters behind [`Metrics`]: written from every thread, without locks.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    acquired: AtomicU64,
    contended: AtomicU64,
    renewals: AtomicU64,
    renewal_failures: AtomicU64,
    lost: AtomicU64,
    releases_refused: AtomicU64,
    release_errors: AtomicU64,
    overrun_leases: AtomicU64,
    stale_writes_rejected: AtomicU64,
    wait: Histogram,
    hold: Histogram,
    lateness: Histogram,
    /// Nanoseconds plus one; 0: no renewal yet.
    least_left: AtomicU64,
}

impl Meters {
    pub(crate) fn acquired(&self, waited: Duration, contended: bool) {
        self.acquired.fetch_add(1, Relaxed);
        self.contended.fetch_add(u64::from(contended), Relaxed);
        self.wait.add(waited);
    }

    pub(crate) fn released(&self, held: Duration) {
        self.hold.add(held);
    }

    pub(crate) fn renewal_due(&self, late: Duration, left: Duration) {
        self.lateness.add(late);
        let left = nanos(left).saturating_add(1);
        let least = |now: u64| (now == 0 || left < now).then_some(left);
        let _ = self.least_left.fetch_update(Relaxed, Relaxed, least);
    }

    pub(crate) fn renewed(&self) {
        self.renewals.fetch_add(1, Relaxed);
    }

    pub(crate) fn renewal_failed(&self) {
        self.renewal_failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn lost(&self, why: LossReason) {
        self.lost.fetch_add(1, Relaxed);
        let overrun = why == LossReason::Overrun;
        self.overrun_leases.fetch_add(u64::from(overrun), Relaxed);
    }

    pub(crate) fn release_refused(&self) {
        self.releases_refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn release_failed(&self) {
        self.release_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn stale_write_rejected(&self) {
        self.stale_writes_rejected.fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Metrics {
        let least = self.least_left.load(Relaxed);
        Metrics {
            acquired: self.acquired.load(Relaxed),
            contended: self.contended.load(Relaxed),
            renewals: self.renewals.load(Relaxed),
            renewal_failures: self.renewal_failures.load(Relaxed),
            lost: self.lost.load(Relaxed),
            releases_refused: self.releases_refused.load(Relaxed),
            release_errors: self.release_errors.load(Relaxed),
            overrun_leases: self.overrun_leases.load(Relaxed),
            stale_writes_rejected: self.stale_writes_rejected.load(Relaxed),
            wait: self.wait.quantiles(),
            hold: self.hold.quantiles(),
            renewal_lateness: self.lateness.quantiles(),
            least_remaining_at_renewal: (least > 0).then(|| Duration::from_nanos(least - 1)),
        }
    }
}

/// Eight buckets to each power of two of nanoseconds.
const STEPS: u32 = 8;
const BUCKETS: usize = 64 * STEPS as usize;

struct Histogram {
    buckets: Box<[AtomicU64]>,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            max: AtomicU64::new(0),
        }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.quantiles().fmt(f)
    }
}

impl Histogram {
    fn add(&self, d: Duration) {
        let n = nanos(d);
        self.buckets[bucket(n)].fetch_add(1, Relaxed);
        self.max.fetch_max(n, Relaxed);
    }

    fn quantiles(&self) -> Quantiles {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max = self.max.load(Relaxed);
        let at = |percent: u64| {
            let wanted = (count * percent).div_ceil(100);
            let mut seen = 0;
            for (i, n) in counts.iter().enumerate() {
                seen += n;
                if seen >= wanted && seen > 0 {
                    return Duration::from_nanos(upper_bound(i).min(max));
                }
            }
            Duration::ZERO
        };
        Quantiles {
            count,
            p50: at(50),
            p99: at(99),
            max: Duration::from_nanos(max),
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(n: u64) -> usize {
    if n < u64::from(STEPS) {
        return n as usize;
    }
    let exponent = n.ilog2();
    let step = (n >> (exponent - 3)) & u64::from(STEPS - 1);
    (exponent - 2) as usize * STEPS as usize + step as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let steps = STEPS as usize;
    if bucket < steps {
        return bucket as u64;
    }
    let exponent = (bucket / steps + 2) as u32;
    let step = (bucket % steps) as u64;
    let low = (u64::from(STEPS) + step) << (exponent - 3);
    low + ((1u64 << (exponent - 3)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_counted_where_it_belongs() {
        for n in (0..64)
            .map(|e| 1u64 << e)
            .chain([0, 7, 8, 9, 1000, 123_456_789, u64::MAX])
        {
            let b = bucket(n);
            assert!(b < BUCKETS, "{n}");
            assert!(upper_bound(b) >= n, "{n}");
            assert!(
                upper_bound(b) / 8 <= n / 7 + 1,
                "{n} in a bucket up to {}",
                upper_bound(b)
            );
        }
    }

    #[test]
    fn quantiles_are_upper_bounds_at_most_an_eighth_too_high() {
        let h = Histogram::default();
        (1..=1000).for_each(|ms| h.add(Duration::from_millis(ms)));
        let q = h.quantiles();
        assert_eq!(q.count, 1000);
        assert_eq!(q.max, Duration::from_millis(1000));
        for (is, want) in [(q.p50, 500.0), (q.p99, 990.0)] {
            let ms = is.as_secs_f64() * 1000.0;
            assert!(ms >= want && ms <= want * 1.125, "{ms} for {want}");
        }
    }

    #[test]
    fn nothing_measured_is_zero() {
        let m = Meters::default().snapshot();
        assert_eq!(m.wait.count, 0);
        assert_eq!(m.wait.p99, Duration::ZERO);
        assert_eq!(m.least_remaining_at_renewal, None);
    }
}
