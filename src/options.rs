//! What a client and a hold can be told, with defaults and limits, checked before anything is sent.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Shortest ttl or lease.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(50);
/// Longest ttl or lease: 365 days.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
/// ttl where none is given.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// For so long a process hands a lock over among its threads while others wait, where nothing else is said.
pub(crate) const DEFAULT_HAND_OVER: Duration = Duration::from_millis(10);
/// How long a lock's state is kept after a clean release.
pub(crate) const KEEP_CLEAN: Duration = Duration::from_secs(3600);
/// How long it is kept where the next holder must learn of a predecessor that did not end well.
pub(crate) const KEEP_MARKED: Duration = Duration::from_secs(7 * 24 * 3600);

/// What belongs to one hold. Two handles of one name may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldOptions {
    /// The lease that the server is given, and is given anew by every renewal.
    pub(crate) ttl: Duration,
    /// Renewed (the watchdog), or left to run out.
    pub(crate) renewed: bool,
    /// Renewed, but not past this.
    pub(crate) max_hold: Option<Duration>,
    /// Given back early, the key stays for the rest of this.
    pub(crate) at_least: Option<Duration>,
}

impl HoldOptions {
    pub(crate) fn new(ttl: Duration) -> HoldOptions {
        HoldOptions {
            ttl,
            renewed: true,
            max_hold: None,
            at_least: None,
        }
    }

    /// # Errors
    ///
    /// `InvalidOptions` where a duration is out of its limits, or two of them contradict each other.
    pub(crate) fn check(&self) -> Result<()> {
        let what = if self.renewed { "ttl" } else { "lease" };
        in_limits(what, self.ttl)?;
        if let Some(max) = self.max_hold {
            in_limits("max_hold", max)?;
            if !self.renewed {
                return Err(invalid(
                    "with_max_hold does not go with with_fixed_lease: a fixed lease ends by itself",
                ));
            }
        }
        if let Some(at_least) = self.at_least
            && (at_least.is_zero() || at_least > MAX_TTL)
        {
            return Err(invalid(format!(
                "hold_at_least is {at_least:?}; it must be more than 0 and at most 365 days"
            )));
        }
        Ok(())
    }

    /// Renewed for as long as it is held, and gone when it is given back: nothing is counted from its grant.
    pub(crate) fn is_open_ended(&self) -> bool {
        self.renewed && self.max_hold.is_none() && self.at_least.is_none()
    }

    /// How far the server's idea of the lease may run ahead of ours: what the local deadline gives away.
    pub(crate) fn drift(lease: Duration) -> Duration {
        lease / 100 + Duration::from_millis(2)
    }

    /// Time for one command, so that a slow one leaves room for others within the lease.
    pub(crate) fn command_timeout(&self, io_timeout: Duration) -> Duration {
        io_timeout.min(self.ttl / 6)
    }

    /// How long a wait goes on while the server can't be used.
    pub(crate) fn outage_bound(&self) -> Duration {
        self.ttl
            .max(Duration::from_secs(5))
            .min(Duration::from_secs(60))
    }
}

/// # Errors
///
/// `InvalidOptions` for less than 50 ms or more than 365 days.
pub(crate) fn in_limits(what: &str, d: Duration) -> Result<()> {
    if d < MIN_TTL || d > MAX_TTL {
        return Err(invalid(format!(
            "{what} is {d:?}; it must be between 50 ms and 365 days"
        )));
    }
    Ok(())
}

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOptions, what)
}

/// Whole milliseconds for the server. Rounded up: the server may keep a key for longer than we count on, never shorter.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_out_of_its_limits_is_refused() {
        for bad in [
            Duration::ZERO,
            Duration::from_millis(49),
            MAX_TTL + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            let e = HoldOptions::new(bad).check().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidOptions);
        }
        HoldOptions::new(MIN_TTL).check().unwrap();
        HoldOptions::new(MAX_TTL).check().unwrap();
    }

    #[test]
    fn the_server_is_never_given_less_than_the_lease() {
        assert_eq!(millis(Duration::from_micros(50_001)), 51);
        assert_eq!(millis(Duration::from_millis(50)), 50);
    }
}
