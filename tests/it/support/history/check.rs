//! Whether the operations of a history can be put in an order that a model allows, each at one moment between its call and its
//! return (Wing and Gong). All calls and returns are gone through in the order of time, with the set of all situations that the
//! lock may be in by then: its state, and which of the open operations have taken effect. When one returns, only those
//! situations are left in which it has; if none is, the history is no lock's.
//!
//! Two things keep the set small. Operations take effect only when one of those that return needs it, because nobody sees a
//! difference sooner; and the tokens, once it is promised that they rise, say in which order the acquisitions were.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::model::State;
use super::shrink::shrink;
use super::{Call, HoldId, Mode, Model, Op, Outcome, Owner, Time, Violation};

/// More than this many situations at one moment are not looked through.
const MOST: usize = 300_000;

/// What is known to have happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// `rank`: the place of its token among all.
    Take {
        hold: HoldId,
        mode: Mode,
        rank: usize,
    },
    Swap {
        from: HoldId,
        hold: HoldId,
        mode: Mode,
        rank: usize,
    },
    Give {
        hold: HoldId,
    },
    Confirm {
        hold: HoldId,
    },
    /// Lost by now at the latest.
    Over {
        hold: HoldId,
    },
    Limit(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) owner: Owner,
    pub(crate) what: What,
    invoked: Time,
    returned: Time,
    /// Its place in the history.
    op: usize,
}

/// A hold that nobody gave back so that it is known to have worked: it ends by itself, or did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loose {
    /// The first moment at which it may have ended.
    pub(crate) from: Time,
    /// Whether that is the end of its lease as last heard of, and not a release that may have worked.
    pub(crate) by_lease: bool,
    /// Nothing is heard of it after this.
    silent: Time,
}

/// The holds that may end without a release. Guards of one thread with one token are nested, and end together.
pub(crate) fn loose(history: &[Op]) -> BTreeMap<HoldId, Loose> {
    let mut keys = BTreeMap::new();
    for op in history {
        if let (Some(hold), Some(token)) = (op.hold(), token(op)) {
            keys.insert(hold, (op.owner, token));
        }
    }
    let mut given_back = BTreeSet::new();
    let mut ends = BTreeMap::new();
    for op in history {
        let hold = match op.call {
            Call::Swap { from, .. } => Some(from),
            _ => op.hold(),
        };
        if matches!(op.call, Call::Swap { .. }) && op.is_granted() || op.outcome == Outcome::Done {
            given_back.extend(hold);
        }
        for hold in [hold, op.hold()].into_iter().flatten() {
            if let Some(key) = keys.get(&hold) {
                let end = ends.entry(*key).or_insert(Loose {
                    from: 0,
                    by_lease: true,
                    silent: 0,
                });
                end.hear_of(op);
            }
        }
    }
    keys.retain(|hold, _| !given_back.contains(hold));
    keys.into_iter()
        .map(|(hold, key)| (hold, ends[&key]))
        .collect()
}

impl Loose {
    fn hear_of(&mut self, op: &Op) {
        self.silent = self.silent.max(op.returned.unwrap_or(op.invoked));
        match (op.call, op.outcome) {
            (Call::Check { .. }, Outcome::Held { left }) if self.by_lease => {
                self.from = self.from.max(op.invoked + left);
            }
            // What the server was asked to do, it may have done, though we were not told.
            (Call::Give { .. } | Call::Swap { .. }, Outcome::Unsure | Outcome::Over)
                if op.invoked < self.from =>
            {
                self.from = op.invoked;
                self.by_lease = false;
            }
            _ => {}
        }
    }
}

/// What is certain of the history. An acquire that failed, or never returned, only takes the lock from others for a while, so
/// that it explains nothing.
fn steps(history: &[Op], model: Model) -> Vec<Step> {
    let tokens: BTreeSet<u64> = history.iter().filter_map(token).collect();
    let tokens: Vec<u64> = tokens.into_iter().collect();
    let rank = |op: &Op| match token(op) {
        Some(token) if model.has_tokens() => tokens.binary_search(&token).unwrap_or(0),
        _ => 0,
    };
    let mut steps = Vec::new();
    for (place, op) in history.iter().enumerate() {
        let rank = rank(op);
        let what = match (op.call, op.outcome) {
            (Call::Take { hold, mode }, Outcome::Granted { .. }) => What::Take { hold, mode, rank },
            (Call::Swap { from, hold, mode }, Outcome::Granted { .. }) => What::Swap {
                from,
                hold,
                mode,
                rank,
            },
            (Call::Give { hold }, Outcome::Done) => What::Give { hold },
            (Call::Check { hold }, Outcome::Held { .. }) => What::Confirm { hold },
            (Call::Give { hold } | Call::Check { hold }, Outcome::Over) => What::Over { hold },
            (Call::Swap { from, .. }, Outcome::Over) => What::Over { hold: from },
            (Call::Limit(n), Outcome::Done) => What::Limit(n),
            _ => continue,
        };
        steps.push(Step {
            owner: op.owner,
            what,
            invoked: op.invoked,
            returned: op.returned.unwrap_or(Time::MAX),
            op: place,
        });
    }
    steps
}

fn token(op: &Op) -> Option<u64> {
    match op.outcome {
        Outcome::Granted { token } => Some(token),
        _ => None,
    }
}

/// A situation: the state, and which of the open steps have taken effect.
type Situation = (State, BTreeSet<usize>);

struct Search {
    model: Model,
    steps: Vec<Step>,
    loose: BTreeMap<HoldId, Loose>,
    open: Vec<usize>,
    situations: HashSet<Situation>,
}

/// One lock's history against what such a lock may do.
///
/// # Errors
///
/// The smallest part of it that shows that it may not.
pub(crate) fn check(history: &[Op], model: Model) -> Result<(), Violation> {
    let Some(at) = stuck_at(history, model) else {
        return Ok(());
    };
    let excerpt = shrink(history, at, |part| stuck_at(part, model).is_some());
    let last = stuck_at(&excerpt, model).map_or(String::new(), |at| excerpt[at].to_string());
    Err(Violation {
        what: format!(
            "no order of these is a {model:?}'s: there is none in which this comes true: {last}"
        ),
        excerpt,
    })
}

/// The first operation that can't have had its result.
fn stuck_at(history: &[Op], model: Model) -> Option<usize> {
    let steps = steps(history, model);
    let mut events: Vec<(Time, bool, usize)> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        events.push((step.invoked, false, i));
        events.push((step.returned, true, i));
    }
    events.sort_unstable();
    let mut search = Search {
        model,
        steps,
        loose: loose(history),
        open: Vec::new(),
        situations: HashSet::from([(State::new(model), BTreeSet::new())]),
    };
    for (time, is_return, i) in events {
        search.settle(time);
        if !is_return {
            search.open.push(i);
            continue;
        }
        search.require(i);
        if search.situations.is_empty() {
            return Some(search.steps[i].op);
        }
    }
    None
}

impl Search {
    /// Takes those holds out that must have ended, as far as anybody can tell: nothing more is heard of them, and it only makes
    /// room.
    fn settle(&mut self, now: Time) {
        let over = |l: &Loose| l.from.max(l.silent) < now;
        if !self.loose.values().any(over) {
            return;
        }
        let gone = self.loose.iter().filter(|(_, l)| over(l));
        let gone: BTreeSet<HoldId> = gone.map(|(hold, _)| *hold).collect();
        let before = std::mem::take(&mut self.situations);
        for (mut state, done) in before {
            for &hold in &gone {
                state.lose(hold);
            }
            self.situations.insert((state, done));
        }
        self.loose.retain(|hold, _| !gone.contains(hold));
    }

    /// Leaves the situations in which step `i`, which returns now, has taken effect.
    fn require(&mut self, i: usize) {
        let now = self.steps[i].returned;
        let mut seen = HashSet::new();
        let mut stack: Vec<Situation> = self.situations.drain().collect();
        while let Some((state, mut done)) = stack.pop() {
            if done.remove(&i) {
                self.situations.insert((state, done));
                continue;
            }
            assert!(seen.len() < MOST, "too many situations to look through");
            if !seen.insert((state.clone(), done.clone())) {
                continue;
            }
            for &next in self.open.iter().filter(|&next| !done.contains(next)) {
                if let Some(after) = state.after(&self.steps[next], self.model) {
                    let mut done = done.clone();
                    done.insert(next);
                    stack.push((after, done));
                }
            }
            for hold in state.holds() {
                if self.loose.get(&hold).is_some_and(|l| l.from <= now) {
                    let mut after = state.clone();
                    after.lose(hold);
                    stack.push((after, done.clone()));
                }
            }
        }
        self.open.retain(|&open| open != i);
    }
}
