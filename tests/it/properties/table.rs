//! A table of leases as a plain value, and whose turn it is.

use std::collections::BTreeMap;

use super::state::{MARKED, State};
use super::tables_model::{Acquire, Want};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ends: i64,
    pub(super) weight: u64,
    pub(super) since: i64,
    /// 0 for one that was given, and not come for yet.
    pub(super) fencing: u64,
    pub(super) label: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) state: State,
    /// By token.
    pub(super) leases: BTreeMap<String, Lease>,
    /// Who entered last: `r` or `w`; `l` where a semaphore's limit was set by hand.
    pub(super) phase: char,
    pub(super) limit: u64,
    pub(super) expires: i64,
    /// Before this nothing runs out. May be early; then those who look find out.
    pub(super) earliest: i64,
}

/// Whose turn it is.
pub(super) enum Turn {
    Enters(usize),
    /// Learns that he can go on by himself.
    IsTold(usize),
    /// Wants more than there is.
    IsSentAway(usize),
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            state: State::empty(),
            leases: BTreeMap::new(),
            phase: 'r',
            limit: 0,
            expires: 0,
            earliest: i64::MAX,
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.leases.values().map(|lease| lease.weight).sum()
    }

    pub(super) fn keep(&self) -> i64 {
        if self.phase == 'l' {
            MARKED
        } else {
            self.state.keep()
        }
    }

    /// Whether one who waits for this can't have come to his turn, whoever else has.
    pub(super) fn has_no_place_for(&self, call: &Acquire) -> bool {
        let has_it = self.leases.contains_key(&call.token);
        !has_it
            && match call.want {
                Want::Read => self.writes(),
                Want::Write => !self.leases.is_empty(),
                Want::Upgrade(_) => false,
                Want::Permits(n, _, waits) => {
                    waits && n <= self.limit && self.used() + n > self.limit
                }
            }
    }

    pub(super) fn writes(&self) -> bool {
        self.phase == 'w' && !self.leases.is_empty()
    }

    pub(super) fn someone_wants(&self, want: &str) -> bool {
        self.state.waiters.iter().any(|w| w.want == want)
    }

    /// Among readers and writers. A writer waits for all, and lets no new reader in; after a writer all readers enter that
    /// wait, `together`; one who upgrades goes before all, once he is the last reader.
    pub(super) fn next_to_enter(&self, passed: &[String], together: &mut bool) -> Option<Turn> {
        if self.writes() {
            return None;
        }
        let waiters = &self.state.waiters;
        let first = |want: &str| {
            waiters
                .iter()
                .position(|w| w.want == want && !passed.contains(&w.ticket))
        };
        let (reader, writer) = (first("r"), first("w"));
        // It is his turn, or his lease is gone: that he is told, and he keeps nobody out then.
        let upgrader = first("x").filter(|_| self.leases.len() <= 1 || *together);
        if upgrader.is_some() {
            return upgrader.map(Turn::IsTold);
        }
        if self.leases.is_empty() {
            if reader.is_some() && (self.phase == 'w' || writer.is_none()) {
                *together = true;
                return reader.map(Turn::Enters);
            }
            return writer.map(Turn::Enters);
        }
        let waits = |want| self.someone_wants(want);
        let may_enter = *together || !waits("x") && !waits("w");
        reader.filter(|_| may_enter).map(Turn::Enters)
    }

    /// In order of arrival; but one who wants more than there are is told so wherever he stands.
    pub(super) fn next_to_permit(&self, passed: &[String]) -> Option<Turn> {
        let mut blocked = false;
        let waiters = self.state.waiters.iter().enumerate();
        for (i, waiter) in waiters.filter(|(_, w)| !passed.contains(&w.ticket)) {
            let n: u64 = waiter.want.parse().unwrap();
            if n > self.limit {
                return Some(Turn::IsSentAway(i));
            }
            if !blocked && self.used() + n <= self.limit {
                return Some(Turn::Enters(i));
            }
            blocked = true;
        }
        None
    }
}
