//! A kind of lock under test, and one way to use them all.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use leasehold::{
    Client, ErrorKind, FairMutex, Lease, LockInfo, MultiMutex, Mutex, ReentrantMutex, Result,
    RwLock, Semaphore, Wait,
};
use redis::Connection;

use super::held::Held;
use super::topology::Topology;
use crate::support::proxy::Command;
use crate::support::scene::ask;

/// What becomes of an acquire where only its kind matters.
pub(crate) fn kind_of<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Reentrant,
    Fair,
    Write,
    Read,
    Upgradable,
    /// The only permit of a semaphore.
    Permit,
    /// Two of a semaphore's three permits.
    Permits,
    /// Three names at once.
    Several,
}

/// The five ways to acquire.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Lock,
    Try,
    For(Duration),
    Until(Instant),
    With(Wait),
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Mutex,
        Kind::Reentrant,
        Kind::Fair,
        Kind::Write,
        Kind::Read,
        Kind::Upgradable,
        Kind::Permit,
        Kind::Permits,
        Kind::Several,
    ];

    /// For a child process, which is told its name.
    pub(crate) fn named(name: &str) -> Kind {
        let named = |kind: &Kind| format!("{kind:?}") == name;
        Kind::ALL.into_iter().find(named).expect("a kind")
    }

    pub(crate) fn of(self, client: &Client, name: &str) -> Lock {
        let handle = match self {
            Kind::Mutex => Handle::Mutex(client.mutex(name)),
            Kind::Reentrant => Handle::Reentrant(client.reentrant_mutex(name)),
            Kind::Fair => Handle::Fair(client.fair_mutex(name)),
            Kind::Write | Kind::Read | Kind::Upgradable => Handle::Rw(client.rw_lock(name)),
            Kind::Permit => Handle::Semaphore(client.semaphore(name, 1)),
            Kind::Permits => Handle::Semaphore(client.semaphore(name, 3)),
            Kind::Several => {
                let names = [format!("{name}:b"), name.to_owned(), format!("{name}:c")];
                Handle::Several(client.multi_mutex(names))
            }
        };
        Lock { kind: self, handle }
    }

    /// What keeps this kind out and is kept out by it.
    pub(crate) fn rival(self) -> Kind {
        match self {
            Kind::Read | Kind::Upgradable => Kind::Write,
            same => same,
        }
    }

    pub(crate) fn is_table(self) -> bool {
        self.is_rw() || self.is_semaphore()
    }

    pub(crate) fn is_rw(self) -> bool {
        matches!(self, Kind::Write | Kind::Read | Kind::Upgradable)
    }

    pub(crate) fn is_semaphore(self) -> bool {
        matches!(self, Kind::Permit | Kind::Permits)
    }

    /// Whether several hold it at a time, so that its holders leave no mark.
    pub(crate) fn leaves_no_mark(self) -> bool {
        self.is_semaphore() || matches!(self, Kind::Read | Kind::Upgradable)
    }

    /// Whether it has the forms that an upgradable read has not.
    pub(crate) fn has_all_forms(self) -> bool {
        self != Kind::Upgradable
    }

    /// What [`LockInfo::kind`] says of it while it is held.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Reentrant => "reentrant mutex",
            Kind::Fair => "fair mutex",
            Kind::Write | Kind::Read | Kind::Upgradable => "rw lock",
            Kind::Permit | Kind::Permits => "semaphore",
            Kind::Several => "multi mutex",
        }
    }

    /// The key whose loss is the lock's; of several, one in the middle.
    pub(crate) fn key(self, name: &str) -> String {
        match self {
            kind if kind.is_rw() => format!("{{{name}}}:lh:rw"),
            kind if kind.is_semaphore() => format!("{{{name}}}:lh:sem"),
            Kind::Several => format!("{name}:b"),
            _ => name.to_owned(),
        }
    }

    /// The keys that are the lock.
    pub(crate) fn keys(self, name: &str) -> Vec<String> {
        let mut keys = vec![self.key(name)];
        if self == Kind::Several {
            keys.extend([name.to_owned(), format!("{name}:c")]);
        }
        keys
    }

    /// Whether `command` is this part of the protocol, for this lock: `acquire`, `renew`, `release` or `leave`.
    pub(crate) fn is(self, part: &str, name: &str, command: &Command) -> bool {
        let of_part = |script: &str| script.split('_').next() == Some(part);
        // The first of the names in their order.
        let first = if self == Kind::Several {
            name.to_owned()
        } else {
            self.key(name)
        };
        command.script().is_some_and(of_part)
            && command
                .args
                .get(3)
                .is_some_and(|key| key == first.as_bytes())
    }

    /// Whether nobody has any part of it, as the server's keys say, and not our own scripts.
    pub(crate) fn is_free<T: Topology>(self, topology: &T, name: &str) -> bool {
        self.keys(name).iter().all(|key| {
            let mut raw = topology.raw(key);
            if self.is_table() {
                leases(&mut raw, key).is_empty()
            } else {
                !ask::<bool>(&mut raw, &format!("EXISTS {key}"))
            }
        })
    }

    /// How many renewals have been sent.
    pub(crate) fn renewals<T: Topology>(self, topology: &T, name: &str) -> usize {
        topology.proxy().count(|c| self.is("renew", name, c))
    }
}

/// The leases in a table, run out or not.
fn leases(raw: &mut Connection, key: &str) -> Vec<String> {
    let mut fields: Vec<String> = ask(raw, &format!("HKEYS {key}"));
    fields.retain(|field| field.starts_with('h'));
    fields
}

#[derive(Clone, Debug)]
enum Handle {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
    Fair(FairMutex),
    Rw(RwLock),
    Semaphore(Semaphore),
    Several(MultiMutex),
}

/// A handle of any type.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) kind: Kind,
    handle: Handle,
}

/// The same for a handle of each type.
macro_rules! each {
    ($lock:expr, $handle:ident => $do:expr) => {
        match $lock {
            Handle::Mutex($handle) => $do,
            Handle::Reentrant($handle) => $do,
            Handle::Fair($handle) => $do,
            Handle::Rw($handle) => $do,
            Handle::Semaphore($handle) => $do,
            Handle::Several($handle) => $do,
        }
    };
}

/// Like [`each!`], for what gives the handle back.
macro_rules! changed {
    ($lock:expr, $handle:ident => $do:expr) => {
        Lock {
            kind: $lock.kind,
            handle: match $lock.handle {
                Handle::Mutex($handle) => Handle::Mutex($do),
                Handle::Reentrant($handle) => Handle::Reentrant($do),
                Handle::Fair($handle) => Handle::Fair($do),
                Handle::Rw($handle) => Handle::Rw($do),
                Handle::Semaphore($handle) => Handle::Semaphore($do),
                Handle::Several($handle) => Handle::Several($do),
            },
        }
    };
}

macro_rules! acquire {
    ($handle:ident, $form:expr, $plain:ident, $try:ident, $try_for:ident, $until:ident, $with:ident $(, $n:expr)?) => {
        match $form {
            Form::Lock => $handle.$plain($($n)?).map(Held::new),
            Form::Try => $handle.$try($($n)?).map(Held::new),
            Form::For(d) => $handle.$try_for($($n,)? d).map(Held::new),
            Form::Until(i) => $handle.$until($($n,)? i).map(Held::new),
            Form::With(wait) => $handle.$with($($n,)? wait).map(Held::new),
        }
    };
}

impl Lock {
    pub(crate) fn acquire(&self, form: Form) -> Result<Held> {
        match &self.handle {
            Handle::Mutex(m) => {
                acquire!(
                    m,
                    form,
                    lock,
                    try_lock,
                    try_lock_for,
                    try_lock_until,
                    lock_with
                )
            }
            Handle::Reentrant(m) => {
                acquire!(
                    m,
                    form,
                    lock,
                    try_lock,
                    try_lock_for,
                    try_lock_until,
                    lock_with
                )
            }
            Handle::Fair(m) => {
                acquire!(
                    m,
                    form,
                    lock,
                    try_lock,
                    try_lock_for,
                    try_lock_until,
                    lock_with
                )
            }
            Handle::Several(m) => {
                acquire!(
                    m,
                    form,
                    lock,
                    try_lock,
                    try_lock_for,
                    try_lock_until,
                    lock_with
                )
            }
            Handle::Rw(rw) if self.kind == Kind::Write => {
                acquire!(
                    rw,
                    form,
                    write,
                    try_write,
                    try_write_for,
                    try_write_until,
                    write_with
                )
            }
            Handle::Rw(rw) if self.kind == Kind::Read => {
                acquire!(
                    rw,
                    form,
                    read,
                    try_read,
                    try_read_for,
                    try_read_until,
                    read_with
                )
            }
            Handle::Rw(rw) => match form {
                Form::Lock => rw.upgradable_read().map(Held::new),
                Form::Try => rw.try_upgradable_read().map(Held::new),
                Form::For(d) => rw.try_upgradable_read_for(d).map(Held::new),
                form => panic!("an upgradable read has no form {form:?}"),
            },
            Handle::Semaphore(s) if self.kind == Kind::Permit => acquire!(
                s,
                form,
                acquire,
                try_acquire,
                try_acquire_for,
                try_acquire_until,
                acquire_with
            ),
            Handle::Semaphore(s) => acquire!(
                s,
                form,
                acquire_many,
                try_acquire_many,
                try_acquire_many_for,
                try_acquire_many_until,
                acquire_many_with,
                2
            ),
        }
    }

    pub(crate) fn lock(&self) -> Result<Held> {
        self.acquire(Form::Lock)
    }

    pub(crate) fn try_lock(&self) -> Result<Held> {
        self.acquire(Form::Try)
    }

    pub(crate) fn try_lock_for(&self, timeout: Duration) -> Result<Held> {
        self.acquire(Form::For(timeout))
    }

    pub(crate) fn with_ttl(self, ttl: Duration) -> Lock {
        changed!(self, handle => handle.with_ttl(ttl))
    }

    pub(crate) fn with_fixed_lease(self, lease: Duration) -> Lock {
        changed!(self, handle => handle.with_fixed_lease(lease))
    }

    pub(crate) fn with_max_hold(self, max: Duration) -> Lock {
        changed!(self, handle => handle.with_max_hold(max))
    }

    pub(crate) fn name(&self) -> &str {
        each!(&self.handle, handle => handle.name())
    }

    pub(crate) fn is_locked(&self) -> Result<bool> {
        each!(&self.handle, handle => handle.is_locked())
    }

    pub(crate) fn inspect(&self) -> Result<LockInfo> {
        each!(&self.handle, handle => handle.inspect())
    }

    pub(crate) fn force_unlock(&self) -> Result<bool> {
        each!(&self.handle, handle => handle.force_unlock())
    }

    pub(crate) fn waiters(&self) -> u64 {
        self.inspect().unwrap().waiters
    }

    /// Acquires and holds it on a thread of its own: one thread is not let in twice, whichever client it uses.
    #[track_caller]
    pub(crate) fn held_elsewhere(&self) -> Elsewhere {
        let (lock, (tell, told), (end, ended)) = (self.clone(), bounded(1), bounded::<()>(1));
        let thread = thread::spawn(move || {
            let held = lock.lock().unwrap();
            tell.send(held.lease()).unwrap();
            // Also when the test has failed, and nobody tells.
            let _ = ended.recv();
            held.unlock()
        });
        let lease = told.recv().expect("it is acquired");
        Elsewhere { lease, end, thread }
    }
}

/// A hold on another thread, given back when it is asked to, or dropped.
pub(crate) struct Elsewhere {
    pub(crate) lease: Lease,
    end: Sender<()>,
    thread: thread::JoinHandle<Result<()>>,
}

impl Elsewhere {
    pub(crate) fn unlock(self) -> Result<()> {
        drop(self.end);
        self.thread.join().unwrap()
    }
}
