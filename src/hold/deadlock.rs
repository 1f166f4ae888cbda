//! Which thread of this process holds what, and waits for what: so that a thread that would wait for ever is told so.
//!
//! One table for the whole process, over all clients and over kinds that share a word. It knows nothing of other processes;
//! between those, only the leases end a circle.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::ThreadId;

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
    holders: HashMap<Resource, Holder>,
    waits: HashMap<ThreadId, Resource>,
    /// A word as a waiter calls it, and as its holder in this process does: clients may name one server in several ways.
    /// Threads that wait behind that waiter know only the first.
    aliases: HashMap<Resource, Resource>,
}

struct Holder {
    thread: ThreadId,
    hold: Weak<Hold>,
    token: Arc<str>,
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

/// An entry of a hold; dropped, the entry goes.
#[derive(Debug)]
pub(crate) struct Tracked {
    resource: Resource,
    token: Arc<str>,
}

/// An entry of a wait; dropped, the entry goes.
#[derive(Debug)]
pub(crate) struct Waiting {
    thread: ThreadId,
    resource: Resource,
}

/// Notes that this thread holds `resource`.
pub(crate) fn track(resource: Resource, hold: &Arc<Hold>) -> Tracked {
    let token = hold.token.clone();
    let holder = Holder {
        thread: std::thread::current().id(),
        hold: Arc::downgrade(hold),
        token: token.clone(),
    };
    TABLE.lock().holders.insert(resource.clone(), holder);
    Tracked { resource, token }
}

/// Whether this thread holds `resource`.
pub(crate) fn is_mine(resource: &Resource) -> bool {
    let table = TABLE.lock();
    !table.holders.is_empty() && table.holder(resource) == Some(std::thread::current().id())
}

/// Notes that this thread waits for `resource`.
///
/// # Errors
///
/// If it would, through what other threads of this process hold and wait for, wait for itself.
pub(crate) fn wait_for(resource: &Resource) -> Result<Waiting, Circle> {
    let thread = std::thread::current().id();
    let mut table = TABLE.lock();
    table.check(thread, resource)?;
    table.waits.insert(thread, resource.clone());
    let resource = resource.clone();
    Ok(Waiting { thread, resource })
}

impl Waiting {
    /// The server named the holder's token: if that is a hold of this process under another name of the same server, it is
    /// what this thread really waits for.
    pub(crate) fn is_for_token(&self, token: &str) -> Result<(), Circle> {
        let mut table = TABLE.lock();
        let Some(resource) = table.by_token(token).cloned() else {
            return Ok(());
        };
        table.check(self.thread, &resource)?;
        if resource != self.resource {
            let alias = self.resource.clone();
            table.aliases.insert(alias, resource.clone());
        }
        table.waits.insert(self.thread, resource);
        Ok(())
    }
}

/// Whether the hold with this token is this thread's.
pub(crate) fn is_my_token(token: &str) -> bool {
    let table = TABLE.lock();
    let resource = table.by_token(token);
    resource.is_some_and(|r| table.holder(r) == Some(std::thread::current().id()))
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
        // A lost hold may have a successor under the same name.
        if table
            .holders
            .get(&self.resource)
            .is_some_and(|h| h.token == self.token)
        {
            table.holders.remove(&self.resource);
        }
    }
}

impl Table {
    /// A client that calls the server by another name sees our holds by their tokens. Looked for one by one: only a waiter
    /// asks.
    fn by_token(&self, token: &str) -> Option<&Resource> {
        let found = self.holders.iter().find(|(_, h)| &*h.token == token);
        found.map(|(resource, _)| resource)
    }

    /// The thread that holds it now. A hold past its deadline counts no more, whether or not anybody has noticed.
    fn holder(&self, resource: &Resource) -> Option<ThreadId> {
        let direct = self.holders.get(resource);
        let holder = direct.or_else(|| self.holders.get(self.aliases.get(resource)?))?;
        let held = holder.hold.upgrade()?.held_until_now();
        held.then_some(holder.thread)
    }

    fn check(&self, me: ThreadId, resource: &Resource) -> Result<(), Circle> {
        let mut wanted = resource;
        // Each step goes to another waiting thread, so there can't be more steps than waits.
        for step in 0..=self.waits.len() {
            match self.holder(wanted) {
                None => return Ok(()),
                Some(holder) if holder == me && step == 0 => return Err(Circle::Itself),
                Some(holder) if holder == me => return Err(Circle::Others),
                Some(holder) => match self.waits.get(&holder) {
                    None => return Ok(()),
                    Some(next) => wanted = next,
                },
            }
        }
        Ok(())
    }
}

/// How many entries there are of this server: tests see that nothing stays behind.
#[cfg(feature = "testing")]
pub(crate) fn entries(server: &str) -> usize {
    let table = TABLE.lock();
    let of_server = |r: &&Resource| &*r.server == server;
    table.holders.keys().filter(of_server).count()
        + table.waits.values().filter(of_server).count()
        + table.aliases.keys().filter(of_server).count()
}
