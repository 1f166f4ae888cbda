//! What many processes did to a lock, written down as they did it, and whether a lock may behave so.
//!
//! Each process writes an event when it calls an operation and one when that returns, with the time of a clock that all
//! processes of this machine share: see [`record`]. [`judge`] then asks of each lock whether there is an order of the operations,
//! each at one moment between its call and its return, that its [`Model`] allows: see [`check`]. A second judge looks only at
//! when each holder knew itself to be in possession: see [`possession`].
//!
//! Operations that never returned, because the process was killed, may or may not have happened. A hold of which nothing is
//! heard any more ends at some moment after its lease has run out; one that is reported lost, at the latest with that report.

pub(crate) mod check;
pub(crate) mod generate;
pub(crate) mod model;
pub(crate) mod possession;
pub(crate) mod record;
pub(crate) mod shrink;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use model::Model;

/// Nanoseconds of a clock that all processes of this machine share.
pub(crate) type Time = u64;

/// One guard, in any process: the process in the upper half.
pub(crate) type HoldId = u64;

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) process: u32,
    pub(crate) thread: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permits(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Take {
        hold: HoldId,
        mode: Mode,
    },
    /// An upgrade or a downgrade: one hold becomes another.
    Swap {
        from: HoldId,
        hold: HoldId,
        mode: Mode,
    },
    Give {
        hold: HoldId,
    },
    /// `Lease::check`.
    Check {
        hold: HoldId,
    },
    /// A semaphore's new limit.
    Limit(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With this fencing token.
    Granted {
        token: u64,
    },
    /// The hold stands, with so much of its lease left after the call began.
    Held {
        left: Time,
    },
    Done,
    /// Nothing has changed: busy, timed out, cancelled, refused.
    Refused,
    /// The hold that this is about is lost.
    Over,
    /// An error that does not say what the server did, or no return at all.
    Unsure,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) owner: Owner,
    pub(crate) lock: String,
    pub(crate) call: Call,
    pub(crate) invoked: Time,
    /// Never, where the process was killed meanwhile.
    pub(crate) returned: Option<Time>,
    pub(crate) outcome: Outcome,
}

impl Op {
    /// The hold that the call is about, or would make.
    pub(crate) fn hold(&self) -> Option<HoldId> {
        match self.call {
            Call::Take { hold, .. }
            | Call::Swap { hold, .. }
            | Call::Give { hold }
            | Call::Check { hold } => Some(hold),
            Call::Limit(_) => None,
        }
    }

    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.outcome, Outcome::Granted { .. })
    }
}

/// All operations on one lock, in the order of their calls.
pub(crate) type History = Vec<Op>;

/// Each lock's own history. An operation on several locks at once, whose names are joined by `+`, is one of each.
pub(crate) fn by_lock(ops: &[Op]) -> BTreeMap<String, History> {
    let mut all = BTreeMap::<String, History>::new();
    for op in ops {
        for lock in op.lock.split('+') {
            let lock = lock.to_owned();
            let op = Op {
                lock: lock.clone(),
                ..op.clone()
            };
            all.entry(lock).or_default().push(op);
        }
    }
    for history in all.values_mut() {
        history.sort_by_key(|op| op.invoked);
    }
    all
}

/// Panics with the smallest part of the history that no lock of this kind may have.
#[track_caller]
pub(crate) fn judge(ops: &[Op], model: Model) {
    for history in by_lock(ops).values() {
        if let Err(violation) = verdict(history, model) {
            panic!("{violation}");
        }
    }
}

/// The same of one lock's history.
pub(crate) fn verdict(history: &[Op], model: Model) -> Result<(), Violation> {
    possession::check(history, model)?;
    check::check(history, model)
}

/// What can't have been, and the operations that show it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) what: String,
    pub(crate) excerpt: History,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.excerpt.first().map_or(0, |op| op.invoked);
        let lock = self.excerpt.first().map_or("", |op| &op.lock);
        writeln!(f, "lock {lock:?}: {}", self.what)?;
        writeln!(
            f,
            "{:>12} {:>12}  (ms since the first of these)",
            "called", "returned"
        )?;
        let ms = |t: Time| format!("{:.3}", t.saturating_sub(start) as f64 / 1e6);
        for op in &self.excerpt {
            let returned = op.returned.map_or("never".to_owned(), ms);
            writeln!(f, "{:>12} {returned:>12}  {op}", ms(op.invoked))?;
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { process, thread } = self.owner;
        write!(
            f,
            "p{process}/t{thread} {} -> {}",
            Words(&self.call),
            Words(&self.outcome)
        )
    }
}

/// As it is written down and read again.
pub(crate) struct Words<'a, T>(pub(crate) &'a T);

impl fmt::Display for Words<'_, Mode> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Permits(n) => write!(f, "{n}"),
        }
    }
}

impl fmt::Display for Words<'_, Call> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Call::Take { hold, mode } => write!(f, "take {hold:x} {}", Words(mode)),
            Call::Swap { from, hold, mode } => write!(f, "swap {from:x} {hold:x} {}", Words(mode)),
            Call::Give { hold } => write!(f, "give {hold:x}"),
            Call::Check { hold } => write!(f, "check {hold:x}"),
            Call::Limit(n) => write!(f, "limit {n}"),
        }
    }
}

impl fmt::Display for Words<'_, Outcome> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Outcome::Granted { token } => write!(f, "granted {token}"),
            Outcome::Held { left } => write!(f, "held {left}"),
            Outcome::Done => f.write_str("done"),
            Outcome::Refused => f.write_str("refused"),
            Outcome::Over => f.write_str("over"),
            Outcome::Unsure => f.write_str("unsure"),
        }
    }
}
