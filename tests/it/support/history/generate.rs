//! Histories of a lock that works, made up: a run of a plain model, each operation stretched around the moment at which it took
//! effect. And ways to spoil them, each of which makes one that no such lock may have.

use super::{Call, History, HoldId, Mode, Model, Op, Outcome, Owner, Time};

/// Small, and the same numbers for the same seed. (SplitMix64)
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let len = u64::try_from(all.len()).unwrap_or(1).max(1);
        all.get(usize::try_from(self.below(len)).unwrap_or(0))
    }
}

const OWNERS: u32 = 5;
/// Between the moments at which two operations take effect.
const PACE: Time = 100;
const LEASE: Time = 2_000;

struct Guard {
    hold: HoldId,
    owner: Owner,
    mode: Mode,
    token: u64,
}

struct Run {
    model: Model,
    random: Random,
    now: Time,
    token: u64,
    last_hold: HoldId,
    held: Vec<Guard>,
    /// Until when each owner is busy with its last operation; one that was killed, for ever.
    busy: Vec<Time>,
    ops: History,
}

/// A good history of about so many operations.
pub(crate) fn good(model: Model, seed: u64, length: usize) -> History {
    let mut run = Run {
        model,
        random: Random(seed),
        now: 10 * PACE,
        token: 1_000,
        last_hold: 0,
        held: Vec::new(),
        busy: vec![0; OWNERS as usize],
        ops: History::new(),
    };
    while run.ops.len() < length {
        run.now += PACE;
        run.step();
    }
    run.ops.sort_by_key(|op| op.invoked);
    run.ops
}

impl Run {
    fn step(&mut self) {
        let thread = u32::try_from(self.random.below(u64::from(OWNERS))).unwrap_or(0);
        let owner = Owner {
            process: thread,
            thread,
        };
        if self.busy[thread as usize] >= self.now {
            return;
        }
        let mine: Vec<usize> = (0..self.held.len())
            .filter(|&i| self.held[i].owner == owner)
            .collect();
        let Some(&i) = self.random.pick(&mine) else {
            return self.take(owner);
        };
        match self.random.below(12) {
            0 if self.model == Model::Reentrant || self.held[i].mode == Mode::Shared => {
                let Guard { mode, token, .. } = self.held[i];
                self.enter(owner, mode, token);
            }
            1 | 2 if mine.len() == 1 && self.model == Model::RwLock => self.swap(i),
            3 if self.random.one_in(8) => self.die(owner),
            4..8 => {
                let hold = self.held[i].hold;
                let left = self.random.below(LEASE);
                self.record(owner, Call::Check { hold }, Outcome::Held { left });
            }
            8.. => {
                let hold = self.held.remove(i).hold;
                self.record(owner, Call::Give { hold }, Outcome::Done);
            }
            _ => {}
        }
    }

    fn take(&mut self, owner: Owner) {
        let shared = self.held.iter().all(|g| g.mode == Mode::Shared);
        let used = self.held.iter().map(|g| match g.mode {
            Mode::Permits(n) => n,
            _ => 1,
        });
        let used: u32 = used.sum();
        let mode = match self.model {
            Model::Permits(limit) => {
                let n = 1 + u32::try_from(self.random.below(u64::from(limit))).unwrap_or(0);
                Some(Mode::Permits(n)).filter(|_| used + n <= limit)
            }
            Model::RwLock if self.random.one_in(2) => Some(Mode::Shared).filter(|_| shared),
            _ => Some(Mode::Exclusive).filter(|_| used == 0),
        };
        match mode {
            Some(mode) => {
                let token = self.fresh_token();
                self.enter(owner, mode, token);
            }
            None => {
                let hold = self.fresh_hold();
                let mode = Mode::Exclusive;
                self.record(owner, Call::Take { hold, mode }, Outcome::Refused);
            }
        }
    }

    fn enter(&mut self, owner: Owner, mode: Mode, token: u64) {
        let hold = self.fresh_hold();
        self.record(owner, Call::Take { hold, mode }, Outcome::Granted { token });
        self.held.push(Guard {
            hold,
            owner,
            mode,
            token,
        });
    }

    /// An upgrade where that may be, or a downgrade.
    fn swap(&mut self, i: usize) {
        let mode = match self.held[i].mode {
            Mode::Shared if self.held.len() > 1 => return,
            Mode::Shared => Mode::Exclusive,
            _ => Mode::Shared,
        };
        let (hold, token) = (self.fresh_hold(), self.fresh_token());
        let guard = &mut self.held[i];
        let (from, owner) = (guard.hold, guard.owner);
        *guard = Guard {
            hold,
            owner,
            mode,
            token,
        };
        self.record(
            owner,
            Call::Swap { from, hold, mode },
            Outcome::Granted { token },
        );
    }

    /// Killed, at rest or in the middle of a release; what it held is free when its lease is over.
    fn die(&mut self, owner: Owner) {
        let hold = self.held.iter().find(|g| g.owner == owner).map(|g| g.hold);
        if let Some(hold) = hold.filter(|_| self.random.one_in(2)) {
            self.record(owner, Call::Give { hold }, Outcome::Unsure);
            if let Some(op) = self.ops.last_mut() {
                op.returned = None;
            }
        }
        self.held.retain(|g| g.owner != owner);
        self.now += LEASE + 10 * PACE;
        // Somebody else takes its place.
        self.busy[owner.thread as usize] = self.now;
    }

    fn record(&mut self, owner: Owner, call: Call, outcome: Outcome) {
        let last = self.busy[owner.thread as usize];
        let spread = 4 * PACE;
        let invoked = (self.now - self.random.below(spread)).max(last + 1);
        let returned = self.now + self.random.below(spread);
        self.busy[owner.thread as usize] = returned;
        self.ops.push(Op {
            owner,
            lock: "made-up".to_owned(),
            call,
            invoked,
            returned: Some(returned),
            outcome,
        });
    }

    fn fresh_hold(&mut self) -> HoldId {
        self.last_hold += 1;
        self.last_hold
    }

    fn fresh_token(&mut self) -> u64 {
        self.token += 1 + self.random.below(3);
        self.token
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoil {
    /// Somebody else is let in, alone, while another is in for certain.
    Intruder,
    /// A release of somebody else's hold is said to have worked.
    ForeignRelease,
    /// A check of a hold that has been given back succeeds.
    CheckAfterRelease,
    /// Two acquisitions, one after the other, whose tokens are the wrong way round.
    FallingTokens,
    /// Two acquisitions that are not nested have the same token.
    TokenTwice,
}

/// The history with such a fault at a random place; `None` where it has no place for it.
pub(crate) fn spoiled(history: &History, spoil: Spoil, model: Model, seed: u64) -> Option<History> {
    let mut random = Random(seed);
    let mut bad = history.clone();
    match spoil {
        Spoil::Intruder => {
            let (hold, from, to) = *random.pick(&certain(history))?;
            let holder = history.iter().find(|op| op.hold() == Some(hold))?;
            let owner = Owner {
                process: 99,
                thread: holder.owner.thread,
            };
            let mode = match model {
                Model::Permits(limit) => Mode::Permits(limit),
                _ => Mode::Exclusive,
            };
            let middle = from + (to - from) / 2;
            let intruder = HoldId::MAX;
            // A token that would fit: between the holder's and the next.
            let token = match holder.outcome {
                Outcome::Granted { token } => token,
                _ => return None,
            };
            for op in &mut bad {
                if let Outcome::Granted { token: t } = &mut op.outcome {
                    *t *= 2;
                }
            }
            let op = |call, outcome, at| Op {
                owner,
                lock: holder.lock.clone(),
                call,
                invoked: at,
                returned: Some(at),
                outcome,
            };
            let take = Call::Take {
                hold: intruder,
                mode,
            };
            bad.push(op(
                take,
                Outcome::Granted {
                    token: token * 2 + 1,
                },
                middle,
            ));
            let check = Call::Check { hold: intruder };
            bad.push(op(check, Outcome::Held { left: 0 }, to));
            bad.push(op(Call::Give { hold: intruder }, Outcome::Done, to + 1));
        }
        Spoil::ForeignRelease => {
            let is_release =
                |op: &&mut Op| matches!(op.call, Call::Give { .. }) && op.outcome == Outcome::Done;
            let mut releases: Vec<_> = bad.iter_mut().filter(is_release).collect();
            let len = u64::try_from(releases.len()).ok().filter(|&n| n > 0)?;
            let at = usize::try_from(random.below(len)).ok()?;
            releases[at].owner.process += 50;
        }
        Spoil::CheckAfterRelease => {
            let ended = |op: &&Op| match op.call {
                Call::Give { .. } => op.outcome == Outcome::Done,
                _ => false,
            };
            let releases: Vec<&Op> = history.iter().filter(ended).collect();
            let release = *random.pick(&releases)?;
            let at = release.returned? + 1;
            bad.push(Op {
                call: Call::Check {
                    hold: release.hold()?,
                },
                invoked: at,
                returned: Some(at),
                outcome: Outcome::Held { left: 0 },
                ..release.clone()
            });
        }
        Spoil::FallingTokens | Spoil::TokenTwice => {
            let grants: Vec<usize> = (0..bad.len()).filter(|&i| bad[i].is_granted()).collect();
            let pairs = grants.windows(2).map(|w| (w[0], w[1]));
            let apart = |&(a, b): &(usize, usize)| {
                bad[a].returned.is_some_and(|t| t < bad[b].invoked)
                    && bad[a].outcome != bad[b].outcome
                    && bad[a].owner != bad[b].owner
            };
            let pairs: Vec<_> = pairs.filter(apart).collect();
            let &(a, b) = random.pick(&pairs)?;
            let (first, second) = (bad[a].outcome, bad[b].outcome);
            bad[b].outcome = first;
            if spoil == Spoil::FallingTokens {
                bad[a].outcome = second;
            }
        }
    }
    bad.sort_by_key(|op| op.invoked);
    Some(bad)
}

/// For each hold that is long enough: from when to when it was held for certain, inner ends of calls.
fn certain(history: &History) -> Vec<(HoldId, Time, Time)> {
    let mut all = Vec::new();
    for op in history.iter().filter(|op| op.is_granted()) {
        let (Some(hold), Some(from)) = (op.hold(), op.returned) else {
            continue;
        };
        let checks = history.iter().filter(|other| {
            other.call == Call::Check { hold } && matches!(other.outcome, Outcome::Held { .. })
        });
        if let Some(to) = checks
            .map(|op| op.invoked)
            .max()
            .filter(|&to| to > from + 2)
        {
            all.push((hold, from + 1, to - 1));
        }
    }
    all
}
