//! Which thread of this process holds what, and waits for what: so that a thread that would wait for ever is told so.
//!
//! One table for the whole process, over all clients and over kinds that share a word. It knows nothing of other processes;
//! between those, only the leases end a circle.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::ThreadId;
use std::time::Instant;

use parking_lot::Mutex;

use crate::hold::Hold;

/// A word on a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    pub(crate) server: Arc<str>,
    pub(crate) word: Arc<str>,
}

#[derive(Default)]
struct Table {
    /// Several where they share it: readers.
    holders: HashMap<Resource, Vec<Holder>>,
    waits: HashMap<ThreadId, Wanted>,
    /// A word as a waiter calls it, and as its holder in this process does: clients may name one server in several ways.
    /// Threads that wait behind that waiter know only the first.
    aliases: HashMap<Resource, Resource>,
}

struct Holder {
    thread: ThreadId,
    hold: Weak<Hold>,
    token: Arc<str>,
    is_shared: bool,
    since: Instant,
}

/// What a thread waits for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) resource: Resource,
    /// It would share it.
    pub(crate) shares: bool,
    /// When it asked the server last, and was refused.
    pub(crate) asked: Instant,
}

impl Wanted {
    /// For itself alone, from now on.
    pub(crate) fn alone(resource: &Resource) -> Wanted {
        Wanted {
            resource: resource.clone(),
            shares: false,
            asked: Instant::now(),
        }
    }

    /// Whether this holder is what it waits for. One that it would share it with is not, unless that one had it already when it
    /// was refused: then it stands behind somebody who waits for that one. Else its turn may have come at the same moment.
    fn is_kept_out_by(&self, holder: &Holder) -> bool {
        !(self.shares && holder.is_shared) || holder.since < self.asked
    }
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// This thread would wait for itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Circle {
    /// It holds the lock already.
    Itself,
    /// Through other threads of this process.
    Others,
}

/// The entries of a hold; dropped, they go.
#[derive(Debug)]
pub(crate) struct Tracked {
    resources: Vec<Resource>,
    token: Arc<str>,
}

/// An entry of a wait; dropped, the entry goes.
#[derive(Debug)]
pub(crate) struct Waiting {
    thread: ThreadId,
    resource: Resource,
}

/// Notes that this thread holds all of `resources`; others may hold them, too, if it `is_shared`.
pub(crate) fn track(resources: Vec<Resource>, is_shared: bool, hold: &Arc<Hold>) -> Tracked {
    let token = hold.token.clone();
    let thread = std::thread::current().id();
    let mut table = TABLE.lock();
    for resource in &resources {
        let holder = Holder {
            thread,
            hold: Arc::downgrade(hold),
            token: token.clone(),
            is_shared,
            since: Instant::now(),
        };
        let holders = table.holders.entry(resource.clone()).or_default();
        holders.push(holder);
    }
    Tracked { resources, token }
}

/// Whether this thread holds one of `resources` in a way that keeps it out: two that share do not.
pub(crate) fn is_mine(resources: &[Resource], shares: bool) -> bool {
    let table = TABLE.lock();
    if table.holders.is_empty() {
        return false;
    }
    let me = std::thread::current().id();
    let keeps_out = |h: &&Holder| h.thread == me && !(shares && h.is_shared);
    resources
        .iter()
        .any(|r| table.holders(r).any(|h| keeps_out(&h)))
}

/// Notes that this thread waits for `wanted`, or for all others to leave it where its own hold has the token `own`.
///
/// # Errors
///
/// If it would, through what other threads of this process hold and wait for, wait for itself.
pub(crate) fn wait_for(wanted: Wanted, own: Option<&str>) -> Result<Waiting, Circle> {
    let thread = std::thread::current().id();
    let mut table = TABLE.lock();
    table.check(thread, &wanted, own)?;
    let resource = wanted.resource.clone();
    table.waits.insert(thread, wanted);
    Ok(Waiting { thread, resource })
}

impl Waiting {
    /// Whether it is for this word, as the waiter calls it.
    pub(crate) fn is_for(&self, word: &str) -> bool {
        &*self.resource.word == word
    }

    /// The server named the holder's token: if that is a hold of this process under another name of the same server, it is
    /// what this thread really waits for.
    pub(crate) fn is_for_token(&self, token: &str) -> Result<(), Circle> {
        let mut table = TABLE.lock();
        let Some(resource) = table.by_token(token).cloned() else {
            return Ok(());
        };
        let wanted = Wanted::alone(&resource);
        table.check(self.thread, &wanted, None)?;
        if resource != self.resource {
            let alias = self.resource.clone();
            table.aliases.insert(alias, resource);
        }
        table.waits.insert(self.thread, wanted);
        Ok(())
    }
}

/// Whether the hold with this token is this thread's.
pub(crate) fn is_my_token(token: &str) -> bool {
    let table = TABLE.lock();
    let me = std::thread::current().id();
    let resource = table.by_token(token);
    resource.is_some_and(|r| table.holders(r).any(|h| h.thread == me))
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        table.waits.remove(&self.thread);
        table.aliases.remove(&self.resource);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        for resource in &self.resources {
            // A lost hold may have a successor under the same name.
            if let Some(holders) = table.holders.get_mut(resource) {
                holders.retain(|h| h.token != self.token);
                if holders.is_empty() {
                    table.holders.remove(resource);
                }
            }
        }
    }
}

impl Table {
    /// A client that calls the server by another name sees our holds by their tokens. Looked for one by one: only a waiter
    /// asks.
    fn by_token(&self, token: &str) -> Option<&Resource> {
        let has_it = |holders: &[Holder]| holders.iter().any(|h| &*h.token == token);
        let found = self.holders.iter().find(|(_, holders)| has_it(holders));
        found.map(|(resource, _)| resource)
    }

    /// Who holds it now. A hold past its deadline counts no more, whether or not anybody has noticed.
    fn holders(&self, resource: &Resource) -> impl Iterator<Item = &Holder> {
        let by_alias = || self.holders.get(self.aliases.get(resource)?);
        let holders = self.holders.get(resource).or_else(by_alias);
        let is_held = |h: &&Holder| h.hold.upgrade().is_some_and(|hold| hold.held_until_now());
        holders.into_iter().flatten().filter(is_held)
    }

    /// Follows who waits for whom, from `wanted` on.
    fn check(&self, me: ThreadId, wanted: &Wanted, own: Option<&str>) -> Result<(), Circle> {
        let is_own = |h: &&Holder| own == Some(&*h.token);
        if self
            .in_the_way(wanted)
            .any(|h| h.thread == me && !is_own(&h))
        {
            return Err(Circle::Itself);
        }
        let others = |wanted| self.in_the_way(wanted).map(|h| h.thread);
        let mut seen = vec![me];
        let mut todo: Vec<ThreadId> = others(wanted).filter(|t| *t != me).collect();
        while let Some(thread) = todo.pop() {
            if seen.contains(&thread) {
                continue;
            }
            seen.push(thread);
            let Some(wanted) = self.waits.get(&thread) else {
                continue;
            };
            for holder in others(wanted) {
                if holder == me {
                    return Err(Circle::Others);
                }
                todo.push(holder);
            }
        }
        Ok(())
    }

    /// Who keeps out one that waits. A reader waits for readers, too: for those whom a writer before it waits for.
    fn in_the_way<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = &'a Holder> {
        let holders = self.holders(&wanted.resource);
        holders.filter(|h| wanted.is_kept_out_by(h))
    }
}

/// How many entries there are of this server: tests see that nothing stays behind.
#[cfg(feature = "testing")]
pub(crate) fn entries(server: &str) -> usize {
    let table = TABLE.lock();
    let of_server = |r: &&Resource| &*r.server == server;
    let held = table.holders.iter().filter(|(r, _)| *r.server == *server);
    held.map(|(_, holders)| holders.len()).sum::<usize>()
        + table
            .waits
            .values()
            .filter(|w| of_server(&&w.resource))
            .count()
        + table.aliases.keys().filter(of_server).count()
}
