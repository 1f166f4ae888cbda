//! What a table of leases and the scripts on it are meant to be, in plain steps.

use std::collections::BTreeSet;

use redis::Value;

use super::state::CLEAN;
use super::table::{Lease, Table, Turn};
use super::words_model::Said;
use super::world::{Key, Seen};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Empty,
    Ours(Table),
    /// Somebody's data, or another layout; and its version.
    Alien(Key, Option<String>),
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) key: String,
    pub(super) slot: Slot,
    pub(super) listening: BTreeSet<String>,
    pub(super) messages: Vec<(String, String)>,
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) given: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Read,
    Write,
    /// Instead of the read lease with this token.
    Upgrade(String),
    /// So many of so many; whether it waits already.
    Permits(u64, u64, bool),
}

#[derive(Clone, Debug)]
pub(super) struct Acquire {
    pub(super) token: String,
    pub(super) ttl: i64,
    pub(super) text: String,
    pub(super) floor: u64,
    pub(super) keep: i64,
    pub(super) ticket: Option<String>,
    pub(super) entry: String,
    pub(super) want: Want,
}

impl Model {
    pub(super) fn new(key: &str) -> Model {
        Model {
            key: key.into(),
            slot: Slot::Empty,
            listening: BTreeSet::new(),
            messages: Vec::new(),
            from: 0,
            to: 0,
            given: None,
        }
    }

    fn now(&self) -> i64 {
        self.from / 1000
    }

    pub(super) fn at(&mut self, seen: &Seen) {
        (self.from, self.to) = (seen.from, seen.to);
        self.given = match &seen.reply {
            Value::BulkString(grant) => String::from_utf8_lossy(grant)
                .get(..16)
                .and_then(|token| token.parse().ok()),
            _ => None,
        };
        self.messages.clear();
    }

    pub(super) fn pass(&mut self, ms: i64) {
        let now = self.now();
        if let Slot::Ours(table) = &mut self.slot {
            table.state.age(ms);
            table.expires -= ms;
            table.earliest = table.earliest.saturating_sub(ms);
            table.leases.retain(|_, lease| {
                lease.ends -= ms;
                lease.ends > now
            });
            if table.expires <= now {
                self.slot = Slot::Empty;
            }
        }
    }

    fn fencing(&self, least: u64) -> u64 {
        let at_least = least.max(u64::try_from(self.from).unwrap());
        let at_most = least.max(u64::try_from(self.to).unwrap());
        self.given.unwrap_or(at_least).clamp(at_least, at_most)
    }

    /// The table, without those who have been silent for too long.
    fn open(&self) -> Result<Table, Said> {
        match &self.slot {
            Slot::Empty => Ok(Table::new()),
            Slot::Ours(table) => {
                let mut table = table.clone();
                table.state.forget_silent(self.now());
                Ok(table)
            }
            Slot::Alien(_, Some(version)) => Err(Said::CodeOf(-3, version.clone())),
            Slot::Alien(_, None) => Err(Said::CodeOf(-2, self.key.clone())),
        }
    }

    /// What is written is kept for so long at least; never shorter than before while anybody has a lease.
    fn save(&mut self, mut table: Table, keep: i64) {
        let expires = self.now() + keep;
        table.expires = if table.leases.is_empty() {
            expires
        } else {
            expires.max(table.expires)
        };
        self.slot = Slot::Ours(table);
    }

    /// Gives leases to those whose turn it is. One who does not listen keeps his place, and is passed over. Returns whether
    /// anybody's turn had come.
    fn serve(&mut self, table: &mut Table, mut together: bool) -> bool {
        let now = self.now();
        let mut passed = Vec::new();
        let mut any = false;
        loop {
            let turn = if table.limit > 0 {
                table.next_to_permit(&passed)
            } else {
                table.next_to_enter(&passed, &mut together)
            };
            let Some(Turn::Enters(i) | Turn::IsTold(i) | Turn::IsSentAway(i)) = turn else {
                return any;
            };
            any = true;
            let waiter = table.state.waiters[i].clone();
            let hears = self.listening.contains(waiter.inbox());
            if hears {
                self.messages.push(waiter.message(&self.key));
            }
            match turn {
                Some(Turn::IsSentAway(_)) => table.state.leave(&waiter.ticket),
                Some(Turn::Enters(_)) if hears => {
                    table.state.leave(&waiter.ticket);
                    let weight = waiter.want.parse().unwrap_or(1);
                    if table.limit == 0 {
                        table.phase = waiter.want.chars().next().unwrap();
                    }
                    let lease = Lease {
                        ends: now + waiter.claim.unwrap(),
                        weight,
                        since: now,
                        fencing: 0,
                        label: String::new(),
                    };
                    table.leases.insert(waiter.token, lease);
                }
                _ => passed.push(waiter.ticket),
            }
        }
    }

    /// A lease for the caller: a new one, or of one that was given to him, or the same again.
    fn grant(&self, table: &mut Table, call: &Acquire, weight: u64, alone: bool) -> Said {
        let (token, text) = (&*call.token, &*call.text);
        let now = self.now();
        let had = table.leases.get(token).cloned();
        let before = had.as_ref().map_or(0, |lease| lease.fencing);
        let fencing = if before > 0 {
            before
        } else {
            self.fencing(call.floor.max(table.state.last + 1))
        };
        let told = if alone && table.state.is_held_by(token) {
            table.state.earlier.told()
        } else {
            table.state.mark.told()
        };
        if alone && !table.state.is_held_by(token) {
            table.state.grant(token, fencing, 0, text, now);
        } else if before == 0 {
            table.state.last = fencing;
            if alone {
                // Its lease had run out, and nobody has come in between.
                table.state.mark.token = fencing;
            }
        }
        if table.limit == 0 {
            table.phase = if alone { 'w' } else { 'r' };
        }
        let lease = Lease {
            ends: had
                .as_ref()
                .map_or(0, |lease| lease.ends)
                .max(now + call.ttl),
            weight,
            since: had.map_or(now, |lease| lease.since),
            fencing,
            label: text.split('\n').next().unwrap().into(),
        };
        table.leases.insert(token.into(), lease);
        Said::Granted(format!("{fencing:016}{told}"))
    }

    pub(super) fn acquire(&mut self, call: &Acquire) -> Said {
        let now = self.now();
        let mut table = match self.open() {
            Ok(table) => table,
            Err(refused) => return refused,
        };
        if table.state.is_dead(&call.token) {
            return Said::Code(-1);
        }
        let purged = now >= table.earliest;
        if let Want::Permits(_, limit, _) = call.want
            && table.limit == 0
        {
            table.limit = limit;
        }
        let soonest = table.leases.values().map(|lease| lease.ends - now).min();
        if !purged
            && table.has_no_place_for(call)
            && let Some(ticket) = &call.ticket
            && let Slot::Ours(mut as_it_was) = self.slot.clone()
            && as_it_was.state.refresh(ticket, &call.entry, now)
        {
            let keep = call.ttl.max(as_it_was.keep());
            self.save(as_it_was, keep);
            let soonest = soonest.unwrap_or(86_400_000);
            return Said::Held(soonest, String::new(), 0, None, None);
        }
        let mine = table.leases.contains_key(&call.token);
        if let Want::Upgrade(old) = &call.want
            && !mine
        {
            let me = call.ticket.clone().unwrap_or_default();
            let waiters = &table.state.waiters;
            if !table.leases.contains_key(old) {
                return Said::Code(-6);
            }
            if waiters.iter().any(|w| w.want == "x" && w.ticket != me) {
                return Said::Code(-5);
            }
        }
        let changed = self.serve(&mut table, false) || purged;
        let mine = table.leases.contains_key(&call.token);
        let ticket = call.ticket.clone().unwrap_or_default();
        let waiters = &table.state.waiters;
        let is_first = waiters.first().is_none_or(|w| w.ticket == ticket);
        let enters = match &call.want {
            _ if mine => true,
            Want::Upgrade(old) => {
                let is_last = table.leases.len() == 1;
                if is_last {
                    table.leases.remove(old);
                    table.state.bury(old, true, false);
                }
                is_last
            }
            Want::Write => table.leases.is_empty() && is_first,
            // A writer that waits stops him, unless nobody is in and it would be his turn, but that he could not be told.
            Want::Read => {
                let writer_waits = table.someone_wants("w") || table.someone_wants("x");
                !table.writes() && (!writer_waits || table.leases.is_empty() && is_first)
            }
            Want::Permits(n, limit, waits) => {
                if *n > table.limit || !waits && table.limit != *limit {
                    let limit = table.limit.to_string();
                    if changed {
                        table.state.wait_no_more(&ticket, &call.token);
                        let keep = table.keep();
                        self.save(table, keep);
                    }
                    return Said::CodeOf(-4, limit);
                }
                table.used() + n <= table.limit && is_first
            }
        };
        if enters {
            table.state.wait_no_more(&ticket, &call.token);
            let alone = matches!(call.want, Want::Write | Want::Upgrade(_));
            let weight = if let Want::Permits(n, ..) = call.want {
                n
            } else {
                1
            };
            let said = self.grant(&mut table, call, weight, alone);
            let keep = if alone {
                call.keep
            } else {
                call.ttl + table.keep()
            };
            self.save(table, keep);
            return said;
        }
        if call.ticket.is_some() {
            table.state.register(&ticket, &call.entry, now);
        }
        let soonest = table.leases.values().map(|lease| lease.ends - now).min();
        let waiters = i64::try_from(table.state.waiters.len()).unwrap();
        if call.ticket.is_some() || changed {
            let keep = call.ttl.max(table.keep());
            self.save(table, keep);
        }
        Said::Held(
            soonest.unwrap_or(86_400_000),
            String::new(),
            waiters,
            None,
            None,
        )
    }

    pub(super) fn downgrade(&mut self, call: &Acquire, old: &str) -> Said {
        let mut table = match self.open() {
            Ok(table) => table,
            Err(refused) => return refused,
        };
        if table.state.is_dead(&call.token) {
            return Said::Code(-1);
        }
        let again = table.leases.contains_key(&call.token);
        if !again {
            if !table.leases.contains_key(old) || !table.state.is_held_by(old) {
                return Said::Code(-6);
            }
            table.leases.remove(old);
            table.state.release('C');
            table.state.bury(old, true, false);
        }
        let said = self.grant(&mut table, call, 1, false);
        self.serve(&mut table, !again);
        let keep = call.ttl + table.keep();
        self.save(table, keep);
        said
    }

    pub(super) fn renew(&mut self, token: &str, ttl: i64) -> Said {
        let now = self.now();
        let Slot::Ours(table) = &mut self.slot else {
            return Said::Code(0);
        };
        let Some(lease) = table.leases.get_mut(token) else {
            return Said::Code(0);
        };
        let left = lease.ends - now;
        lease.ends = now + ttl;
        table.expires = table.expires.max(now + ttl + CLEAN);
        Said::Renewed(left)
    }

    pub(super) fn is_ours(&self, token: &str) -> bool {
        matches!(&self.slot, Slot::Ours(table) if table.leases.contains_key(token))
    }

    pub(super) fn release(&mut self, token: &str, mark: char, twice: bool) -> Said {
        let Ok(mut table) = self.open() else {
            return Said::Int(0);
        };
        let ours = table.leases.remove(token).is_some();
        if ours {
            if table.state.is_held_by(token) {
                table.state.release(mark);
            }
        } else if table.state.was_released(token) {
            return Said::Int(1);
        }
        table.state.bury(token, ours, twice);
        self.serve(&mut table, false);
        let keep = table.keep();
        self.save(table, keep);
        Said::Int(ours.into())
    }

    pub(super) fn leave(&mut self, token: &str, ticket: &str, sure: bool) -> Said {
        let mut table = match self.open() {
            Ok(table) => table,
            Err(refused) => return refused,
        };
        if table.leases.remove(token).is_some() {
            table.state.ungrant(token);
        }
        if !token.is_empty() && !sure {
            table.state.bury_for_long(token);
        } else if self.slot == Slot::Empty {
            return Said::Code(1);
        }
        table.state.wait_no_more(ticket, token);
        self.serve(&mut table, false);
        let keep = table.keep();
        self.save(table, keep);
        Said::Code(1)
    }

    pub(super) fn force_unlock(&mut self) -> Said {
        let mut table = match self.open() {
            Ok(table) => table,
            Err(refused) => return refused,
        };
        if table.leases.is_empty() {
            return Said::Code(0);
        }
        for token in std::mem::take(&mut table.leases).into_keys() {
            table.state.bury(&token, false, false);
        }
        table.state.holder = None;
        self.serve(&mut table, false);
        let keep = table.keep();
        self.save(table, keep);
        Said::Code(1)
    }

    pub(super) fn set_permits(&mut self, limit: u64) -> Said {
        let mut table = match self.open() {
            Ok(table) => table,
            Err(refused) => return refused,
        };
        table.limit = limit;
        table.phase = 'l';
        self.serve(&mut table, false);
        let keep = table.keep();
        self.save(table, keep);
        Said::Code(1)
    }
}
