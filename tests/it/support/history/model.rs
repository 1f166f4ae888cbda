//! What a lock may do, one operation after the other.

use super::check::{Step, What};
use super::{HoldId, Mode, Owner};

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// One holder, who alone gives it back.
    Mutex,
    /// The same, and each acquisition has a fencing token above all earlier ones'.
    Fenced,
    /// The same, but its holder may take it again, with the same token.
    Reentrant,
    /// Readers or a writer, who may become one another with nobody else in between; a thread that reads may read again, with the
    /// same token. All other acquisitions have rising tokens.
    RwLock,
    /// At most so many permits are out, until the limit is changed; any thread may give them back. Tokens rise.
    Permits(u32),
}

impl Model {
    pub(crate) fn has_tokens(self) -> bool {
        self != Model::Mutex
    }

    fn is_nested(self, mode: Mode) -> bool {
        match self {
            Model::Reentrant => true,
            Model::RwLock => mode == Mode::Shared,
            _ => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    hold: HoldId,
    owner: Owner,
    rank: usize,
    mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Which token comes next, of all that there are in the history.
    next: usize,
    limit: u32,
    /// In the order of their identities, so that equal states look equal.
    held: Vec<Held>,
}

impl State {
    pub(crate) fn new(model: Model) -> State {
        let limit = match model {
            Model::Permits(limit) => limit,
            _ => 0,
        };
        State {
            next: 0,
            limit,
            held: Vec::new(),
        }
    }

    /// The state after this step, if it may be done now.
    pub(crate) fn after(&self, step: &Step, model: Model) -> Option<State> {
        let mut state = self.clone();
        let allowed = match step.what {
            What::Take { hold, mode, rank } => state.take(step.owner, hold, mode, rank, model),
            What::Swap {
                from,
                hold,
                mode,
                rank,
            } => {
                state.is_held_by(from, step.owner)
                    && state.end(from)
                    && state.has_room(mode)
                    && state.enter(step.owner, hold, mode, rank, model)
            }
            What::Give { hold } => {
                let anybody = matches!(model, Model::Permits(_));
                (anybody || state.is_held_by(hold, step.owner)) && state.end(hold)
            }
            What::Confirm { hold } => state.held.iter().any(|h| h.hold == hold),
            What::Over { hold } => {
                state.lose(hold);
                true
            }
            What::Limit(n) => {
                state.limit = n;
                true
            }
        };
        allowed.then_some(state)
    }

    fn take(&mut self, owner: Owner, hold: HoldId, mode: Mode, rank: usize, model: Model) -> bool {
        let outer = |h: &&Held| h.owner == owner && h.mode == mode;
        if model.is_nested(mode)
            && let Some(outer) = self.held.iter().find(outer)
        {
            let same_token = outer.rank == rank;
            if same_token {
                self.insert(owner, hold, mode, rank);
            }
            return same_token;
        }
        self.has_room(mode) && self.enter(owner, hold, mode, rank, model)
    }

    fn has_room(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.held.is_empty(),
            Mode::Shared => self.held.iter().all(|h| h.mode == Mode::Shared),
            Mode::Permits(n) => self.used().saturating_add(n) <= self.limit,
        }
    }

    fn enter(&mut self, owner: Owner, hold: HoldId, mode: Mode, rank: usize, model: Model) -> bool {
        if model.has_tokens() {
            // A token that is passed over here could never be used any more.
            if rank != self.next {
                return false;
            }
            self.next += 1;
        }
        self.insert(owner, hold, mode, rank);
        true
    }

    fn insert(&mut self, owner: Owner, hold: HoldId, mode: Mode, rank: usize) {
        let place = self.held.partition_point(|h| h.hold < hold);
        let held = Held {
            hold,
            owner,
            rank,
            mode,
        };
        self.held.insert(place, held);
    }

    fn used(&self) -> u32 {
        let weight = |h: &Held| match h.mode {
            Mode::Permits(n) => n,
            _ => 1,
        };
        self.held.iter().map(weight).sum()
    }

    fn is_held_by(&self, hold: HoldId, owner: Owner) -> bool {
        self.held.iter().any(|h| h.hold == hold && h.owner == owner)
    }

    fn end(&mut self, hold: HoldId) -> bool {
        let before = self.held.len();
        self.held.retain(|h| h.hold != hold);
        self.held.len() < before
    }

    /// The lease of this hold is over: with it go all that are nested in it.
    pub(crate) fn lose(&mut self, hold: HoldId) {
        let lost = self.held.iter().find(|h| h.hold == hold).cloned();
        if let Some(lost) = lost {
            self.held
                .retain(|h| h.hold != hold && (h.owner, h.rank) != (lost.owner, lost.rank));
        }
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = HoldId> {
        self.held.iter().map(|h| h.hold)
    }
}
