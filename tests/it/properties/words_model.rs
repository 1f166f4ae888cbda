//! What words, their states and the scripts on them are meant to be, in plain steps.

use std::collections::BTreeSet;

use redis::Value;

use super::state::{CLEAN, MARKED, Mark, State, Waiter, id};
use super::world::Seen;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Free,
    /// By whom, and until when.
    Held(String, i64),
    /// A string without a ttl: somebody's data.
    Data,
    /// Another type.
    List,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Empty,
    /// Until when it is kept.
    Ours(Box<State>, i64),
    /// Somebody's data.
    Data,
    /// Of a later layout.
    Later,
    List,
}

pub(super) const DATA: &str = "somebody's data";
pub(super) const LATER: &str = "2NN0000000000000000 and more";

#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) lock: Lock,
    pub(super) slot: Slot,
}

#[derive(Debug)]
pub(super) struct Model {
    /// Word and state of each, by name.
    pub(super) keys: Vec<String>,
    pub(super) words: Vec<Word>,
    pub(super) listening: BTreeSet<String>,
    pub(super) messages: Vec<(String, String)>,
    /// When the call was (µs), and the fencing token that it gave, if any.
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) given: Option<u64>,
    /// What was sent.
    sent: Vec<(String, String)>,
}

/// One acquire.
#[derive(Clone, Debug)]
pub(super) struct Acquire {
    pub(super) token: String,
    pub(super) ttl: i64,
    pub(super) text: String,
    pub(super) floor: u64,
    pub(super) keep: i64,
    pub(super) ticket: Option<String>,
    pub(super) entry: String,
    /// How many fencing tokens are to be reserved, if more than one.
    pub(super) block: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Granted(String),
    /// For how long still, by whom, how many wait; which word, of several; the last fencing token, of one.
    Held(i64, String, i64, Option<String>, Option<u64>),
    Renewed(i64),
    Code(i64),
    CodeOf(i64, String),
    Int(i64),
    WrongType,
}

fn key(name: &str) -> Said {
    Said::CodeOf(-2, name.into())
}

impl Model {
    pub(super) fn new(keys: &[String]) -> Model {
        let free = Word {
            lock: Lock::Free,
            slot: Slot::Empty,
        };
        Model {
            keys: keys.to_vec(),
            words: vec![free; keys.len() / 2],
            listening: BTreeSet::new(),
            messages: Vec::new(),
            from: 0,
            to: 0,
            given: None,
            sent: Vec::new(),
        }
    }

    fn now(&self) -> i64 {
        self.from / 1000
    }

    /// When the next call comes: what has ended by then is gone.
    pub(super) fn at(&mut self, seen: &Seen) {
        (self.from, self.to) = (seen.from, seen.to);
        self.given = match &seen.reply {
            Value::BulkString(grant) => String::from_utf8_lossy(grant)
                .get(..16)
                .and_then(|token| token.parse().ok()),
            _ => None,
        };
        self.sent.clone_from(&seen.messages);
        self.messages.clear();
    }

    pub(super) fn pass(&mut self, ms: i64) {
        let now = self.now();
        for word in &mut self.words {
            if let Lock::Held(_, ends) = &mut word.lock {
                *ends -= ms;
                if *ends <= now {
                    word.lock = Lock::Free;
                }
            }
            if let Slot::Ours(state, ends) = &mut word.slot {
                state.age(ms);
                *ends -= ms;
                if *ends <= now {
                    word.slot = Slot::Empty;
                }
            }
        }
    }

    /// A fencing token above all others: the server's time, or `least` if that is above it. As it was seen, if it may be.
    fn fencing(&self, least: u64, seen: Option<u64>) -> u64 {
        let at_least = least.max(u64::try_from(self.from).unwrap());
        let at_most = least.max(u64::try_from(self.to).unwrap());
        seen.unwrap_or(at_least).clamp(at_least, at_most)
    }

    /// Grants the word to one who waits, in a state that nobody has, and tells him, if he listens. Whether he does.
    fn give(&mut self, i: usize, mut state: Box<State>, w: &Waiter) -> bool {
        let now = self.now();
        if !self.listening.contains(w.inbox()) {
            return false;
        }
        let (block, floor, text) = w.grant.clone().unwrap();
        let head = format!("{}+", &w.ticket[32..]);
        let word = self.keys[2 * i].clone();
        let is_it = |(to, message): &&(String, String)| {
            to == w.inbox() && message.starts_with(&head) && message.ends_with(&word)
        };
        let seen = self.sent.iter().find(is_it);
        let seen = seen.and_then(|(_, message)| message.get(13..29)?.parse().ok());
        let fencing = self.fencing(floor.max(state.last + 1), seen);
        state.leave(&w.ticket);
        let mut reply = format!("{fencing:016}{}", state.mark.told());
        if block > 0 {
            reply.push_str(if state.waiters.is_empty() {
                "\n"
            } else {
                "\n1"
            });
        }
        self.messages.push((
            w.inbox().to_owned(),
            format!("{head}{:04}{reply}{word}", reply.len()),
        ));
        state.grant(&w.token, fencing, block.saturating_sub(1), &text, now);
        let claim = w.claim.unwrap();
        self.words[i].lock = Lock::Held(w.token.clone(), now + claim);
        self.words[i].slot = Slot::Ours(state, now + claim + MARKED);
        true
    }

    /// Lets the first that listens have the word, or know that it is free; up to `me`, if there is one, and then only those
    /// who queue. The state is as it is while nobody has the word.
    fn pass_on(&mut self, i: usize, mut state: Box<State>, keep: i64, me: Option<&str>) {
        let now = self.now();
        state.forget_silent(now);
        let mut given = false;
        for w in state.waiters.clone() {
            if Some(&*w.ticket) == me {
                break;
            }
            if w.want == "f" || w.want == "m" && me.is_none() {
                if self.give(i, state.clone(), &w) {
                    return;
                }
                given = true;
            } else if w.want.is_empty() && me.is_none() && self.listening.contains(w.inbox()) {
                self.messages.push(w.message(&self.keys[2 * i]));
                state.leave(&w.ticket);
                break;
            }
        }
        if me.is_none() || given {
            self.words[i].lock = Lock::Free;
            self.words[i].slot = Slot::Ours(state, now + keep);
        }
    }

    /// Who holds it and wants to hear of others hears of one more.
    fn warn(&mut self, i: usize) {
        let (state, _) = self.state(i);
        if let Some((_, inbox)) = state.kind.split_once('\t')
            && self.listening.contains(inbox)
        {
            let message = format!("ffffffff!{}", self.keys[2 * i]);
            self.messages.push((inbox.to_owned(), message));
        }
    }

    fn refusal(slot: &Slot, name: &str) -> Option<Said> {
        match slot {
            Slot::Data => Some(key(name)),
            Slot::Later => Some(Said::CodeOf(-3, "2".into())),
            Slot::List => Some(Said::WrongType),
            Slot::Empty | Slot::Ours(..) => None,
        }
    }

    /// The state, or an empty one; and until when it is kept, if it is there.
    fn state(&self, i: usize) -> (Box<State>, Option<i64>) {
        match &self.words[i].slot {
            Slot::Ours(state, ends) => (state.clone(), Some(*ends)),
            _ => (Box::new(State::empty()), None),
        }
    }

    fn is_readable(&self, i: usize) -> bool {
        matches!(self.words[i].slot, Slot::Ours(..) | Slot::Empty)
    }

    /// Notes a waiter; returns how many there are, or 0 where they are not counted.
    fn register(&mut self, i: usize, call: &Acquire, of_several: bool) -> i64 {
        let Some(ticket) = &call.ticket else {
            return 0;
        };
        let now = self.now();
        let (mut state, ends) = self.state(i);
        if !of_several && state.refresh(ticket, &call.entry, now) {
            self.words[i].slot = Slot::Ours(state, ends.unwrap_or(now + CLEAN));
            return 0;
        }
        let is_new = state.waiters.iter().all(|w| w.ticket != *ticket);
        state.forget_silent(now);
        state.register(ticket, &call.entry, now);
        let waiters = state.waiters.len();
        self.words[i].slot = Slot::Ours(state, ends.unwrap_or(now + CLEAN));
        if !of_several || is_new {
            self.warn(i);
        }
        i64::try_from(waiters).unwrap()
    }

    pub(super) fn acquire(&mut self, i: usize, call: &Acquire, fair: bool) -> Said {
        let now = self.now();
        if fair
            && self.words[i].lock == Lock::Free
            && let Slot::Ours(state, _) = self.words[i].slot.clone()
            && !state.waiters.is_empty()
        {
            let me = call.ticket.clone().unwrap_or_default();
            let keep = state.keep();
            self.pass_on(i, state, keep, Some(&me));
        }
        if let Some(refusal) = Model::refusal(&self.words[i].slot, "state") {
            return refusal;
        }
        let (mut state, kept) = self.state(i);
        if state.is_dead(&call.token) {
            return Said::Code(-1);
        }
        let wanted_by = |state: &State| match (call.block, state.waiters.is_empty()) {
            (0, _) => "",
            (_, true) => "\n",
            (_, false) => "\n1",
        };
        match self.words[i].lock.clone() {
            Lock::List => return Said::WrongType,
            Lock::Data => return key("word"),
            Lock::Held(by, ends) if by != call.token => {
                let waiters = self.register(i, call, false);
                return Said::Held(ends - now, by, waiters, None, Some(state.last));
            }
            Lock::Held(by, ends) => {
                // The same call again, or the word was given to it.
                self.words[i].lock = Lock::Held(by, ends.max(now + call.ttl));
                if state.is_held_by(&call.token) {
                    let (first, earlier) = (state.mark.token, state.earlier.told());
                    let others = if state.last > first {
                        wanted_by(&state)
                    } else {
                        ""
                    };
                    let kept = kept.unwrap_or(0).max(now + call.keep);
                    self.words[i].slot = Slot::Ours(state, kept);
                    return Said::Granted(format!("{first:016}{earlier}{others}"));
                }
            }
            Lock::Free => self.words[i].lock = Lock::Held(call.token.clone(), now + call.ttl),
        }
        let fencing = self.fencing(call.floor.max(state.last + 1), self.given);
        let learned = state.mark.told();
        state.grant(
            &call.token,
            fencing,
            call.block.saturating_sub(1),
            &call.text,
            now,
        );
        state.wait_no_more(call.ticket.as_deref().unwrap_or(""), &call.token);
        let reply = format!("{fencing:016}{learned}{}", wanted_by(&state));
        self.words[i].slot = Slot::Ours(state, now + call.keep);
        Said::Granted(reply)
    }

    pub(super) fn acquire_all(&mut self, words: &[usize], call: &Acquire) -> Said {
        let now = self.now();
        let (mut least, mut ours, mut held) = (call.floor, 0, None);
        for &i in words {
            if self.words[i].lock == Lock::List {
                return key(&self.keys[2 * i]);
            }
            let name = &self.keys[2 * i + 1];
            match Model::refusal(&self.words[i].slot, name) {
                Some(Said::WrongType) => return key(name),
                Some(refusal) => return refusal,
                None => {}
            }
            let (state, _) = self.state(i);
            if state.is_dead(&call.token) {
                return Said::Code(-1);
            }
            least = least.max(state.last + 1);
            match &self.words[i].lock {
                Lock::Held(by, _) if *by == call.token => {
                    ours += usize::from(state.is_held_by(&call.token));
                }
                Lock::Free => {}
                _ => held = held.or(Some(i)),
            }
        }
        if let Some(taken) = held {
            let name = self.keys[2 * taken].clone();
            let Lock::Held(by, ends) = self.words[taken].lock.clone() else {
                return key(&name);
            };
            let waiters = self.register(taken, call, true);
            for &i in words.iter().filter(|&&i| i != taken) {
                let Some(ticket) = &call.ticket else { break };
                // It waits at one word only, and passes on what it may have been told of another.
                if let Slot::Ours(mut state, ends) = self.words[i].slot.clone() {
                    let stood_here = state.waiters.iter().any(|w| w.ticket == *ticket);
                    state.leave(ticket);
                    if self.words[i].lock == Lock::Free && !state.waiters.is_empty() {
                        let keep = state.keep();
                        self.pass_on(i, state, keep, None);
                    } else if stood_here {
                        self.words[i].slot = Slot::Ours(state, ends);
                    }
                }
            }
            return Said::Held(ends - now, by, waiters, Some(name), None);
        }
        let again = ours == words.len();
        let fencing = if again {
            self.state(words[0]).0.last
        } else {
            self.fencing(least, self.given)
        };
        let mut worst = Mark::none();
        let badness = |letter: char| "NCPA".find(letter);
        for &i in words {
            let (mut state, _) = self.state(i);
            if state.is_held_by(&call.token) && !again {
                // From an earlier call, of which not everything is there any more.
                state.mark = state.earlier.clone();
            }
            let learned = if again { &state.earlier } else { &state.mark };
            if badness(learned.letter) > badness(worst.letter) {
                worst = learned.clone();
            }
            let until = match &self.words[i].lock {
                Lock::Held(_, ends) => (*ends).max(now + call.ttl),
                _ => now + call.ttl,
            };
            self.words[i].lock = Lock::Held(call.token.clone(), until);
            if !again {
                state.grant(&call.token, fencing, 0, &call.text, now);
                state.leave(call.ticket.as_deref().unwrap_or(""));
                self.words[i].slot = Slot::Ours(state, now + call.keep);
            }
        }
        Said::Granted(format!("{fencing:016}{}", worst.told()))
    }

    pub(super) fn is_ours(&self, words: &[usize], token: &str) -> bool {
        let ours = |&i: &usize| matches!(&self.words[i].lock, Lock::Held(by, _) if by == token);
        words.iter().all(ours)
    }

    pub(super) fn renew(&mut self, words: &[usize], token: &str, ttl: i64) -> Said {
        if !self.is_ours(words, token) {
            return Said::Code(0);
        }
        let now = self.now();
        let mut left = None;
        for &i in words {
            if let Lock::Held(_, ends) = &mut self.words[i].lock {
                left.get_or_insert(*ends - now);
                *ends = now + ttl;
            }
        }
        Said::Renewed(left.unwrap())
    }

    pub(super) fn verify(&self, words: &[usize], token: &str) -> Said {
        Said::Code(i64::from(self.is_ours(words, token)))
    }

    /// `last`: the last token that was used, of several; and by whom, if it did not end well. `rest`: for how long the key stays
    /// (ms). `twice`: the acquire was sent more than once.
    pub(super) fn release(
        &mut self,
        i: usize,
        token: &str,
        (mark, last): (char, Option<&(u64, String)>),
        keep: i64,
        rest: i64,
        twice: bool,
    ) -> bool {
        let now = self.now();
        if !self.is_ours(&[i], token) {
            if !self.is_readable(i) {
                return false;
            }
            let (mut state, ends) = self.state(i);
            if state.was_released(token) {
                return true;
            }
            state.bury(token, false, twice);
            self.words[i].slot = Slot::Ours(state, ends.unwrap_or(now + CLEAN));
            return false;
        }
        self.words[i].lock = Lock::Free;
        if !self.is_readable(i) {
            return true;
        }
        let (mut state, _) = self.state(i);
        state.bury(token, true, twice);
        if let Some((last, label)) = last {
            (state.last, state.mark.token) = (*last, *last);
            if !label.is_empty() {
                state.mark.label.clone_from(label);
            }
        }
        state.release(mark);
        let has_label = last.is_some_and(|(_, label)| !label.is_empty());
        if rest > 0 {
            let tombstone = format!("lh:rest:{:016}", state.last);
            self.words[i].lock = Lock::Held(tombstone, now + rest);
            self.words[i].slot = Slot::Ours(state, now + keep + rest);
            return true;
        }
        // Nearly always the first has it: then nobody looks who else is there.
        let first = state.waiters.first().filter(|w| !w.is_silent(now)).cloned();
        if let Some(first) = first.filter(|w| !twice && !has_label && !w.want.is_empty())
            && self.give(i, state.clone(), &first)
        {
            return true;
        }
        self.pass_on(i, state, keep, None);
        true
    }

    pub(super) fn leave(&mut self, words: &[usize], token: &str, ticket: &str, sure: bool) -> Said {
        let mut said = Said::Code(1);
        for &i in words {
            if let Some(refused) = self.leave_one(i, token, ticket, sure) {
                said = refused;
            }
        }
        said
    }

    fn leave_one(&mut self, i: usize, token: &str, ticket: &str, sure: bool) -> Option<Said> {
        if self.is_ours(&[i], token) {
            self.words[i].lock = Lock::Free;
        }
        match Model::refusal(&self.words[i].slot, "state") {
            Some(Said::WrongType) => return Some(key("state")),
            Some(refusal) => return Some(refusal),
            None => {}
        }
        let (before, ends) = self.state(i);
        let mut state = before.clone();
        if !token.is_empty() {
            if !sure {
                state.bury_for_long(token);
            }
            state.ungrant(token);
        }
        state.leave(ticket);
        let keep = state.keep();
        let is_free = self.words[i].lock == Lock::Free;
        if is_free && !state.waiters.is_empty() {
            self.pass_on(i, state, keep, None);
        } else if state != before {
            let now = self.now();
            let until = ends.filter(|_| !is_free).unwrap_or(now + keep);
            self.words[i].slot = Slot::Ours(state, until);
        }
        None
    }

    pub(super) fn force_unlock(&mut self, i: usize) -> Said {
        let by = match &self.words[i].lock {
            Lock::Free => return Said::Code(0),
            Lock::List => return Said::WrongType,
            Lock::Data => return key("word"),
            Lock::Held(by, _) => by.clone(),
        };
        if let Some(refusal) = Model::refusal(&self.words[i].slot, "state") {
            return refusal;
        }
        let (mut state, _) = self.state(i);
        if state.is_held_by(&by) {
            state.bury(&id(&by), false, false);
        } else if !by.starts_with("lh:rest:") {
            state.mark = Mark {
                letter: 'A',
                token: state.last,
                label: "another library".into(),
            };
        }
        state.holder = None;
        self.words[i].lock = Lock::Free;
        let keep = state.keep();
        self.pass_on(i, state, keep, None);
        Said::Code(1)
    }
}
