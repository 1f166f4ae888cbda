//! Whether a table is seen to be what its model says.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use super::state::{State, adopt, near};
use super::table::{Lease, Table};
use super::tables_model::{Model, Slot};
use super::words_model::Said;
use super::world::{Key, Seen, number, parts, text};

impl Model {
    /// A reply; where it is about when a lease runs out, it may be too early.
    pub(super) fn said_is(said: &Said, seen: &Value) -> bool {
        match (said, seen) {
            (Said::Held(left, _, waiters, ..), Value::Array(parts)) => {
                parts.len() == 4
                    && parts[0] == Value::Int(0)
                    && matches!(parts[1], Value::Int(l) if l >= 0 && (l <= *left || near(l, *left)))
                    && text(&parts[2]).is_empty()
                    && number(&parts[3]) == *waiters
            }
            _ => said.is(seen),
        }
    }

    /// Whether the table and the messages are as they should be.
    pub(super) fn compare(&mut self, seen: &Seen, forced: bool) -> Result<(), String> {
        let key = &seen.keys[0];
        let now = seen.from / 1000;
        let there = match (&mut self.slot, &*key.kind) {
            (_, "none") => Slot::Empty,
            (Slot::Alien(before, version), _) if before == key => {
                Slot::Alien(key.clone(), version.clone())
            }
            (Slot::Ours(table), "hash") if key.left > 0 => {
                let read = read(key, seen)?;
                table.state.adopt_times(&read.state);
                adopt(&mut table.expires, read.expires);
                table.earliest = read.earliest;
                if !near(read.expires, now + key.left) {
                    return Err(format!("{} ms left of {read:?}", key.left));
                }
                for (token, lease) in &mut table.leases {
                    if let Some(read) = read.leases.get(token) {
                        adopt(&mut lease.ends, read.ends);
                        adopt(&mut lease.since, read.since);
                    }
                }
                if forced {
                    // All at once, in any order.
                    let sorted = |ids: &[String]| ids.iter().cloned().collect::<BTreeSet<_>>();
                    if sorted(&table.state.dead) == sorted(&read.state.dead) {
                        table.state.dead.clone_from(&read.state.dead);
                    }
                }
                Slot::Ours(read)
            }
            _ => return Err(format!("instead of {:?} there is {key:?}", self.slot)),
        };
        if there != self.slot {
            return Err(format!("instead of {:#?} there is {there:#?}", self.slot));
        }
        if seen.size != i64::from(there != Slot::Empty) {
            return Err(format!("{} keys", seen.size));
        }
        if self.messages != seen.messages {
            let (ours, theirs) = (&self.messages, &seen.messages);
            return Err(format!("messages {theirs:?} instead of {ours:?}"));
        }
        if let Slot::Ours(table) = &there {
            if table.phase == 'w' && table.leases.len() > 1 {
                return Err(format!("a writer with others: {table:?}"));
            }
            if table
                .leases
                .values()
                .any(|lease| lease.ends > table.expires)
            {
                return Err(format!("a lease outlives its key: {table:?}"));
            }
            if table.leases.keys().any(|token| table.state.is_dead(token)) {
                return Err(format!("a dead token has a lease: {table:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn inspection_is(seen: &Seen) -> bool {
        let said = parts(seen.reply.clone());
        let key = &seen.keys[0];
        let fields: Vec<String> = parts(said[2].clone()).iter().map(text).collect();
        let at: i64 = text(&said[1]).parse().unwrap();
        text(&said[0]) == key.kind
            && (seen.from / 1000..=seen.to / 1000).contains(&at)
            && (key.kind != "hash" || fields.join("\u{1}") == key.value)
    }
}

/// Takes the hash on the server apart. What has run out counts no more.
fn read(key: &Key, seen: &Seen) -> Result<Table, String> {
    let mut words = key.value.split('\u{1}');
    let mut fields = BTreeMap::new();
    while let (Some(field), Some(value)) = (words.next(), words.next()) {
        fields.insert(field, value);
    }
    let broken = || format!("a broken table: {fields:?}");
    let state = fields.get("s").and_then(|s| State::read(s));
    let extra: Vec<&str> = fields.get("x").ok_or_else(broken)?.split(',').collect();
    let [used, earliest, expires, limit, phase] = *extra else {
        return Err(broken());
    };
    let number = |n: &str| n.parse::<i64>().map_err(|_| broken());
    let (mut all, mut leases) = (0, BTreeMap::new());
    for (field, value) in &fields {
        let Some(token) = field.strip_prefix('h') else {
            continue;
        };
        let parts: Vec<&str> = value.splitn(5, ',').collect();
        let [ends, weight, since, fencing, label] = *parts else {
            return Err(broken());
        };
        let lease = Lease {
            ends: number(ends)?,
            weight: weight.parse().map_err(|_| broken())?,
            since: number(since)?,
            fencing: fencing.parse().map_err(|_| broken())?,
            label: label.into(),
        };
        all += lease.weight;
        if lease.ends < number(earliest)? {
            return Err(format!("a lease ends before the earliest: {fields:?}"));
        }
        if lease.ends > seen.to / 1000 {
            leases.insert(token.to_owned(), lease);
        }
    }
    // Until something has run out, the sum is known without looking.
    if seen.to / 1000 < number(earliest)? && used != all.to_string() {
        return Err(format!("{used} used: {fields:?}"));
    }
    Ok(Table {
        state: state.ok_or_else(broken)?,
        leases,
        phase: phase.chars().next().ok_or_else(broken)?,
        limit: limit.parse().map_err(|_| broken())?,
        expires: number(expires)?,
        earliest: match number(earliest)? {
            9_999_999_999_999 => i64::MAX,
            earliest => earliest,
        },
    })
}
