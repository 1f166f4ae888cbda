//! The smallest part of a bad history that is still bad, for people to read.

use std::collections::BTreeMap;

use super::{Call, History, HoldId, Op, Time};

/// Leaves out whole holds, with all that is about them, as long as what is left `is_bad`. (A part of a good history is good: it
/// has fewer holds to be in each other's way.) The one at `at` is where it was found out, so that what began later is rarely of use.
pub(crate) fn shrink(history: &[Op], at: usize, is_bad: impl Fn(&[Op]) -> bool) -> History {
    let end = history[at].returned.unwrap_or(Time::MAX);
    let (mut groups, always) = groups(history);
    let part = |groups: &[Vec<usize>]| -> History {
        let mut places: Vec<usize> = groups.iter().flatten().chain(&always).copied().collect();
        places.sort_unstable();
        places.into_iter().map(|i| history[i].clone()).collect()
    };
    let mut begun = groups.clone();
    begun.retain(|group| history[group[0]].invoked <= end);
    if is_bad(&part(&begun)) {
        groups = begun;
    }
    // Large pieces first: most of a history has nothing to do with the fault.
    let mut size = groups.len();
    while size > 0 {
        let mut start = 0;
        while start < groups.len() {
            let mut less = groups.clone();
            less.drain(start..(start + size).min(groups.len()));
            if is_bad(&part(&less)) {
                groups = less;
            } else {
                start += size;
            }
        }
        size /= 2;
    }
    without_checks(part(&groups), is_bad)
}

/// The successful checks, too, are left out where nothing depends on them.
fn without_checks(mut history: History, is_bad: impl Fn(&[Op]) -> bool) -> History {
    for i in (0..history.len()).rev() {
        if matches!(history[i].call, Call::Check { .. }) {
            let check = history.remove(i);
            if !is_bad(&history) {
                history.insert(i, check);
            }
        }
    }
    history
}

/// The places of all operations, by the hold that they are about; what a hold was converted to belongs to it. And of those that
/// are about none.
fn groups(history: &[Op]) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut origin = BTreeMap::<HoldId, HoldId>::new();
    for op in history {
        if let Call::Swap { from, hold, .. } = op.call {
            let first = *origin.get(&from).unwrap_or(&from);
            origin.insert(hold, first);
        }
    }
    let mut of_holds = BTreeMap::<HoldId, Vec<usize>>::new();
    let mut others = Vec::new();
    for (i, op) in history.iter().enumerate() {
        match op.hold() {
            Some(hold) => {
                let first = *origin.get(&hold).unwrap_or(&hold);
                of_holds.entry(first).or_default().push(i);
            }
            None => others.push(i),
        }
    }
    let mut groups: Vec<_> = of_holds.into_values().collect();
    groups.sort_unstable();
    (groups, others)
}
