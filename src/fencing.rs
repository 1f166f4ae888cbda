//! The number that lets a resource refuse a holder whose time is over.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

/// A number that rises with every acquisition of a lock.
///
/// Store the highest token that a resource has seen beside its data and refuse writes that carry a lower one
/// (`UPDATE … SET data = ?, token = ? WHERE id = ? AND token <= ?`): then a holder that was paused past its lease can't
/// overwrite its successor's work. No lock with a lease can promise that by itself.
///
/// Microseconds of the server's clock, or one more than the last token, whichever is higher: so tokens go on rising after
/// the server lost all its data. Not dense; compare tokens of one lock only. They fit in a signed 64-bit database column.
///
/// # Examples
///
/// ```
/// use leasehold::FencingToken;
/// let old: FencingToken = "1700000000000000".parse()?;
/// let new = FencingToken::from(1_700_000_000_000_001);
/// assert!(old < new);
/// let column: i64 = new.into();
/// assert_eq!(FencingToken::try_from(column)?, new);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().map(Self)
    }
}

impl From<u64> for FencingToken {
    fn from(n: u64) -> Self {
        Self(n)
    }
}

impl From<FencingToken> for u64 {
    fn from(t: FencingToken) -> u64 {
        t.0
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = TryFromIntError;

    fn try_from(n: i64) -> Result<Self, Self::Error> {
        u64::try_from(n).map(Self)
    }
}

impl From<FencingToken> for i64 {
    /// Tokens that a server gave stay below 2^53; a larger one made by hand is held at `i64::MAX`, never negative.
    fn from(t: FencingToken) -> i64 {
        i64::try_from(t.0).unwrap_or(i64::MAX)
    }
}
