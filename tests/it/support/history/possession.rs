//! A second look at a history, which knows nothing of orders: each holder was in possession at least from the return of its
//! acquire to its last successful check. Where nothing is heard of a hold after that, or it is lost, its lease counts to the end:
//! so long at least nobody else may be let in. No two who exclude each other may be in possession at once.

use super::check::loose;
use super::{Call, HoldId, Mode, Model, Op, Outcome, Owner, Time, Violation};

struct Stay {
    hold: HoldId,
    owner: Owner,
    mode: Mode,
    token: u64,
    from: Time,
    to: Time,
}

/// # Errors
///
/// The operations of those who were in possession together.
pub(crate) fn check(history: &[Op], model: Model) -> Result<(), Violation> {
    let mut inside: Vec<Stay> = Vec::new();
    for stay in stays(history) {
        inside.retain(|other| other.to > stay.from);
        inside.push(stay);
        if let Some(what) = conflict(&inside, limit(history, model)) {
            let is_inside = |op: &&Op| inside.iter().any(|s| op.hold() == Some(s.hold));
            return Err(Violation {
                what,
                excerpt: history.iter().filter(is_inside).cloned().collect(),
            });
        }
    }
    Ok(())
}

/// The highest there was at any time.
fn limit(history: &[Op], model: Model) -> Option<u32> {
    let Model::Permits(first) = model else {
        return None;
    };
    let limits = history.iter().filter_map(|op| match op.call {
        Call::Limit(n) => Some(n),
        _ => None,
    });
    Some(limits.fold(first, u32::max))
}

/// Whether the one who came last, and stands last, is beside somebody whom it should have waited for.
fn conflict(inside: &[Stay], limit: Option<u32>) -> Option<String> {
    let (last, others) = inside.split_last()?;
    let nested = |other: &Stay| (other.owner, other.token) == (last.owner, last.token);
    let excluded = |other: &&Stay| {
        (last.mode == Mode::Exclusive || other.mode == Mode::Exclusive) && !nested(other)
    };
    if let Some(other) = others.iter().find(excluded) {
        let who = |s: &Stay| format!("p{}/t{} with {:x}", s.owner.process, s.owner.thread, s.hold);
        return Some(format!(
            "in possession at once: {} and {}, for {} ns at least",
            who(other),
            who(last),
            other.to.min(last.to) - last.from
        ));
    }
    let weight = |s: &Stay| match s.mode {
        Mode::Permits(n) => n,
        _ => 0,
    };
    let used: u32 = inside.iter().map(weight).sum();
    let limit = limit?;
    (used > limit).then(|| format!("{used} permits in possession at once, of {limit}"))
}

/// In the order of their beginnings; those of no length are left out.
fn stays(history: &[Op]) -> Vec<Stay> {
    let loose = loose(history);
    let mut stays: Vec<Stay> = history.iter().filter_map(beginning).collect();
    stays.sort_by_key(|stay| stay.hold);
    for op in history {
        if let (Call::Check { hold }, Outcome::Held { .. }) = (op.call, op.outcome)
            && let Ok(i) = stays.binary_search_by_key(&hold, |stay| stay.hold)
        {
            stays[i].to = stays[i].to.max(op.invoked);
        }
    }
    for stay in &mut stays {
        if let Some(end) = loose.get(&stay.hold).filter(|end| end.by_lease) {
            stay.to = stay.to.max(end.from);
        }
    }
    stays.retain(|stay| stay.to > stay.from);
    stays.sort_by_key(|stay| stay.from);
    stays
}

fn beginning(op: &Op) -> Option<Stay> {
    let (hold, mode) = match op.call {
        Call::Take { hold, mode } | Call::Swap { hold, mode, .. } => (hold, mode),
        _ => return None,
    };
    let Outcome::Granted { token } = op.outcome else {
        return None;
    };
    let from = op.returned?;
    Some(Stay {
        hold,
        owner: op.owner,
        mode,
        token,
        from,
        to: from,
    })
}
