//! The state of a lock as a plain value, and how it stands on the server: see `layout.lua`.

/// How long a waiter may be silent (ms).
const SILENT: i64 = 5000;
/// How long a state is kept after a clean release, and where a mark stands (ms).
pub(super) const CLEAN: i64 = 3_600_000;
pub(super) const MARKED: i64 = 604_800_000;

/// What a predecessor left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) letter: char,
    pub(super) token: u64,
    pub(super) label: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) ticket: String,
    pub(super) arrived: i64,
    pub(super) heard: i64,
    pub(super) want: String,
    pub(super) claim: Option<i64>,
    pub(super) token: String,
    /// For who is given a word: how many fencing tokens to reserve, the lowest, label and kind.
    pub(super) grant: Option<(u64, u64, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) mark: Mark,
    pub(super) earlier: Mark,
    pub(super) last: u64,
    pub(super) since: i64,
    /// The first 8 digits of the holder's token.
    pub(super) holder: Option<String>,
    pub(super) kind: String,
    /// Newest first; `x` for the first digit of one that was not released.
    pub(super) dead: Vec<String>,
    pub(super) dead_for_long: Vec<String>,
    pub(super) waiters: Vec<Waiter>,
}

/// Times that are as near as two looks at one clock are the same.
pub(super) fn near(a: i64, b: i64) -> bool {
    (a - b).abs() <= super::world::SLOP
}

/// Takes `seen` for `expected`, if it may be.
pub(super) fn adopt(expected: &mut i64, seen: i64) {
    if near(*expected, seen) {
        *expected = seen;
    }
}

pub(super) fn id(token: &str) -> String {
    token[..8].to_owned()
}

impl Mark {
    pub(super) fn none() -> Mark {
        Mark {
            letter: 'N',
            token: 0,
            label: String::new(),
        }
    }

    /// As an acquire tells it.
    pub(super) fn told(&self) -> String {
        format!("{}{:016}{}", self.letter, self.token, self.label)
    }
}

impl State {
    pub(super) fn empty() -> State {
        State {
            mark: Mark::none(),
            earlier: Mark::none(),
            last: 0,
            since: 0,
            holder: None,
            kind: String::new(),
            dead: Vec::new(),
            dead_for_long: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// Takes the string on the server apart.
    pub(super) fn read(s: &str) -> Option<State> {
        let fixed = s.get(..264).filter(|s| s.starts_with('1'))?;
        let mut texts = s[264..].splitn(4, '\n');
        let (label, kind, earlier) = (texts.next()?, texts.next()?, texts.next()?);
        let mark = |letter: usize, token: usize, label: &str| {
            Some(Mark {
                letter: fixed[letter..].chars().next()?,
                token: fixed[token..token + 16].parse().ok()?,
                label: label.into(),
            })
        };
        let ids = |ids: &str| -> Vec<String> {
            let ids = ids.as_bytes().chunks(8).map(String::from_utf8_lossy);
            ids.filter(|id| id != "--------")
                .map(|id| id.into_owned())
                .collect()
        };
        let waiters = texts.next()?.split_terminator(';').map(Waiter::read);
        Some(State {
            mark: mark(1, 19, label)?,
            earlier: mark(2, 35, earlier)?,
            last: fixed[3..19].parse().ok()?,
            since: fixed[51..64].parse().ok()?,
            holder: ids(&fixed[64..72]).pop(),
            kind: kind.into(),
            dead: ids(&fixed[72..200]),
            dead_for_long: ids(&fixed[200..264]),
            waiters: waiters.collect::<Option<_>>()?,
        })
    }

    /// Takes over what times were seen, where they may be.
    pub(super) fn adopt_times(&mut self, seen: &State) {
        adopt(&mut self.since, seen.since);
        for (waiter, seen) in self.waiters.iter_mut().zip(&seen.waiters) {
            adopt(&mut waiter.arrived, seen.arrived);
            adopt(&mut waiter.heard, seen.heard);
        }
    }

    /// Time has passed.
    pub(super) fn age(&mut self, ms: i64) {
        for waiter in &mut self.waiters {
            waiter.arrived -= ms;
            waiter.heard -= ms;
        }
    }

    pub(super) fn is_dead(&self, token: &str) -> bool {
        let mut dead = self.dead.iter().chain(&self.dead_for_long);
        dead.any(|dead| dead[1..] == token[1..8])
    }

    /// Whether a release of it, repeated, is to hear that it was released.
    pub(super) fn was_released(&self, token: &str) -> bool {
        let mut dead = self.dead.iter().chain(&self.dead_for_long);
        dead.any(|dead| *dead == token[..8])
    }

    /// No acquire may carry the token again: the last 16 are known. `for_long`: an acquire of it may be on its way; the last
    /// 8 of these are known besides.
    pub(super) fn bury(&mut self, token: &str, released: bool, for_long: bool) {
        let first = if released { &token[..1] } else { "x" };
        let entry = format!("{first}{}", &token[1..8]);
        if !self.is_dead(token) {
            self.dead.insert(0, entry.clone());
            self.dead.truncate(16);
        }
        if for_long {
            self.bury_for_long(&entry);
        }
    }

    pub(super) fn bury_for_long(&mut self, entry: &str) {
        if self.dead_for_long.iter().all(|d| d[1..] != entry[1..8]) {
            self.dead_for_long.insert(0, entry[..8].to_owned());
            self.dead_for_long.truncate(8);
        }
    }

    pub(super) fn is_held_by(&self, token: &str) -> bool {
        self.holder.as_deref() == Some(&token[..8])
    }

    /// A grant of the lock to one alone, with so many fencing tokens more.
    pub(super) fn grant(&mut self, token: &str, fencing: u64, more: u64, text: &str, now: i64) {
        let (label, kind) = text.split_once('\n').unwrap();
        self.earlier = self.mark.clone();
        self.mark = Mark {
            letter: 'A',
            token: fencing,
            label: label.into(),
        };
        self.last = fencing + more;
        self.since = now;
        self.holder = Some(id(token));
        self.kind = kind.into();
    }

    /// As if the grant to `token` had never been.
    pub(super) fn ungrant(&mut self, token: &str) {
        if self.is_held_by(token) {
            self.mark = std::mem::replace(&mut self.earlier, Mark::none());
            self.holder = None;
        }
    }

    /// Ends the hold.
    pub(super) fn release(&mut self, mark: char) {
        self.mark.letter = mark;
        self.holder = None;
    }

    /// How long it is kept when nobody holds the lock.
    pub(super) fn keep(&self) -> i64 {
        match self.mark.letter {
            'P' | 'A' => MARKED,
            _ => CLEAN,
        }
    }

    pub(super) fn forget_silent(&mut self, now: i64) {
        self.waiters.retain(|w| w.heard >= now - SILENT);
    }

    pub(super) fn leave(&mut self, ticket: &str) {
        self.waiters.retain(|w| w.ticket != ticket);
    }

    /// It has, or gives up, what it waited for under this token.
    pub(super) fn wait_no_more(&mut self, ticket: &str, token: &str) {
        self.leave(ticket);
        self.waiters
            .retain(|w| token.is_empty() || w.token != token);
    }

    /// One that looks again, as most do, is only noted as heard of: nobody else is looked at. Whether it was one.
    pub(super) fn refresh(&mut self, ticket: &str, entry: &str, now: i64) -> bool {
        let waiter = Waiter::read(&format!("{ticket},{now},{now},{entry}")).unwrap();
        let there = self.waiters.iter_mut().find(|w| {
            let same = (&w.ticket, &w.want, &w.claim, &w.token)
                == (&waiter.ticket, &waiter.want, &waiter.claim, &waiter.token);
            same && w.grant == waiter.grant && w.heard >= now - SILENT
        });
        let Some(there) = there else { return false };
        there.heard = now;
        true
    }

    /// At the end, or in its place.
    pub(super) fn register(&mut self, ticket: &str, entry: &str, now: i64) {
        let waiter = Waiter::read(&format!("{ticket},{now},{now},{entry}")).unwrap();
        match self.waiters.iter_mut().find(|w| w.ticket == ticket) {
            Some(there) => {
                *there = Waiter {
                    arrived: there.arrived,
                    ..waiter
                }
            }
            None => self.waiters.push(waiter),
        }
    }
}

impl Waiter {
    fn read(s: &str) -> Option<Waiter> {
        let mut parts = s.split(',');
        let grant = parts.clone().skip(6).collect::<Vec<_>>();
        let grant = match grant[..] {
            [block, floor, text] => Some((block.parse().ok()?, floor.parse().ok()?, plain(text))),
            _ => None,
        };
        let mut next = || parts.next().map(str::to_owned);
        Some(Waiter {
            grant,
            ticket: next()?,
            arrived: next()?.parse().ok()?,
            heard: next()?.parse().ok()?,
            want: next()?,
            claim: next()?.parse().ok(),
            token: next()?,
        })
    }

    pub(super) fn inbox(&self) -> &str {
        &self.ticket[..32]
    }

    /// The message that wakes it.
    pub(super) fn message(&self, word: &str) -> (String, String) {
        (
            self.inbox().to_owned(),
            format!("{}={word}", &self.ticket[32..]),
        )
    }

    pub(super) fn is_silent(&self, now: i64) -> bool {
        self.heard < now - SILENT
    }
}

/// As it stands in an entry.
pub(super) fn escaped(text: &str) -> String {
    text.replace('%', "%25")
        .replace(',', "%2c")
        .replace(';', "%3b")
        .replace('\n', "%0a")
}

fn plain(text: &str) -> String {
    text.replace("%0a", "\n")
        .replace("%3b", ";")
        .replace("%2c", ",")
        .replace("%25", "%")
}
