//! [`RwLock`]: many readers or one writer, over all processes.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, acquire_forms, guard, handle};
use crate::hold::acquire::acquire;
use crate::hold::convert;
use crate::hold::nested::Nested;
use crate::hold::release::HoldGuard;
use crate::hold::way::{Want, Way};
use crate::name::{Keys, Table};
use crate::redis_io::scripts::RW;
use crate::wait::{Until, Wait};

const KIND: &str = "rw lock";

/// A lock that many may hold to read, or one to write.
///
/// Each reader has a lease of its own, by the server's clock: one that dies is gone when its ttl has run out, whoever else
/// renews, and no reader shortens another's lease or a writer's. All of it is one key, `{name}:lh:rw`; a
/// [`Mutex`](crate::Mutex) of the same name is another lock.
///
/// A [`read`](RwLock::read) on a thread that reads already, through any handle of that name from the same client, is granted
/// without asking anybody: it is one more guard of the same hold, which is released with the last of them. A thread that reads
/// can't write, or the other way round, but by [`upgrade`](RwLockUpgradableReadGuard::upgrade) and
/// [`downgrade`](RwLockWriteGuard::downgrade): it is told that it would wait for itself.
///
/// # Fairness
///
/// Phase-fair: a writer that waits lets no new reader in; when it is done, all readers that wait enter together, before the next
/// writer. So a reader waits for one writer at most, and a writer for the readers that were there, and for those writers
/// that came before it, with one round of readers after each. A client whose user has no rights on channels gets in when nobody
/// else waits.
///
/// # Fencing
///
/// A writer's token fences: it is above every earlier writer's. A reader's only tells it from others.
///
/// # Upgrades
///
/// Any number of threads may hold an [upgradable read](RwLock::upgradable_read), together with other readers. One at a time may
/// upgrade: it waits until all other readers have gone, with no new ones coming, and no writer in between. A second one that
/// tried would wait for the first, and the first for it, so it is refused at once and gets its guard back, to drop it. (For some
/// seconds that is so, too, after one who waited to upgrade was killed.) What limits a hold, as
/// [`with_max_hold`](RwLock::with_max_hold) does, counts anew after an upgrade or a downgrade.
///
/// # Differences from `std::sync::RwLock`
///
/// It guards no data of its own, and can be lost while it is held. A writer's panic does not poison it, but those who come after
/// learn of it, readers too: see [`Lease::predecessor`](crate::Lease::predecessor).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
/// let prices = client.rw_lock("prices");
/// {
///     let reading = prices.read()?; // many at a time
/// }
/// let writing = prices.write()?; // one, and no reader
/// let reading = writing.downgrade()?; // nobody wrote in between
/// # drop(reading); Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    handle: Handle,
}

handle!(RwLock);
acquire_forms!(RwLock -> RwLockReadGuard, acquire_read, "the lock to read", "nobody writes, or waits to write": read, try_read, try_read_for, try_read_until, read_with);
acquire_forms!(RwLock -> RwLockWriteGuard, acquire_write, "the lock to write", "nobody has it, or waits for it": write, try_write, try_write_for, try_write_until, write_with);

impl RwLock {
    /// A handle of the lock `name`: the same as [`Client::rw_lock`]. No I/O.
    pub fn new(client: &Client, name: impl Into<String>) -> RwLock {
        let keys = |namespace: &str, name| Keys::table(namespace, name, Table::RwLock);
        let handle = Handle::new(client, name.into().into(), keys);
        RwLock { handle }
    }

    /// Acquires the lock to read, with the right to [upgrade](RwLockUpgradableReadGuard::upgrade), waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As for [`read`](RwLock::read).
    pub fn upgradable_read(&self) -> Result<RwLockUpgradableReadGuard> {
        self.acquire_upgradable(Wait::forever())
    }

    /// The same if nobody writes, or waits to write: one look.
    ///
    /// # Errors
    ///
    /// As for [`try_read`](RwLock::try_read).
    pub fn try_upgradable_read(&self) -> Result<RwLockUpgradableReadGuard> {
        self.acquire_upgradable(Wait::new(Until::Now))
    }

    /// The same, waiting for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`try_read_for`](RwLock::try_read_for).
    pub fn try_upgradable_read_for(&self, timeout: Duration) -> Result<RwLockUpgradableReadGuard> {
        self.acquire_upgradable(Wait::for_duration(timeout))
    }

    fn acquire_read(&self, wait: Wait) -> Result<RwLockReadGuard> {
        let core = self.handle.core();
        core.check_process()?;
        let inner = match Nested::find(core, self.handle.word()?) {
            Some(outer) => {
                // Whether this is the process that made it has just been seen.
                outer.hold().check()?;
                outer
            }
            None => Nested::enter(self.hold(Want::Read, &wait)?),
        };
        Ok(RwLockReadGuard {
            inner,
            not_send: PhantomData,
        })
    }

    fn acquire_write(&self, wait: Wait) -> Result<RwLockWriteGuard> {
        Ok(RwLockWriteGuard {
            inner: self.hold(Want::Write, &wait)?,
            not_send: PhantomData,
        })
    }

    fn acquire_upgradable(&self, wait: Wait) -> Result<RwLockUpgradableReadGuard> {
        Ok(RwLockUpgradableReadGuard {
            inner: Nested::enter(self.hold(Want::Read, &wait)?),
            not_send: PhantomData,
        })
    }

    fn hold(&self, want: Want, wait: &Wait) -> Result<HoldGuard> {
        let wanted = self.handle.wanted(KIND, &RW, Way::Queue(want))?;
        acquire(self.handle.core(), &wanted, wait)
    }
}

/// A [`RwLock`] held to read; when the last one of a hold is dropped, it is released. Derefs to [`Lease`](crate::Lease).
///
/// `Sync`, but not `Send`: it belongs to the thread that acquired it. Of its drop, what [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct RwLockReadGuard {
    inner: Nested,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(RwLockReadGuard);

impl RwLockReadGuard {
    /// Gives this guard back, as a drop does, and says how that went. The last one of a hold releases it.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}

/// A [`RwLock`] held to write; dropped, it is released. Derefs to [`Lease`](crate::Lease).
///
/// `Sync`, but not `Send`: it belongs to the thread that acquired it. Of its drop, what [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct RwLockWriteGuard {
    inner: HoldGuard,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(RwLockWriteGuard);

impl RwLockWriteGuard {
    /// Releases the lock, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }

    /// Goes on as a reader, with no moment in between in which another could write; readers that wait enter, too. One round
    /// trip. It is a hold of its own from then on, with a lease, a watchdog and a token of its own, held as the write was; leases
    /// that were taken of the write are over.
    ///
    /// # Errors
    ///
    /// The guard comes back with the error. [`Lost`](ErrorKind::Lost): the hold had ended before.
    /// [`Unavailable`](ErrorKind::Unavailable) and the like: the server could not be asked. If it is not known whether the server
    /// did it, the hold is over, and both leases are given back.
    pub fn downgrade(self) -> Result<RwLockReadGuard, Rejected<RwLockWriteGuard>> {
        match convert::downgrade(self.inner, KIND) {
            Ok(read) => Ok(RwLockReadGuard {
                inner: Nested::enter(read),
                not_send: PhantomData,
            }),
            Err((write, error)) => {
                let guard = RwLockWriteGuard {
                    inner: write,
                    not_send: PhantomData,
                };
                Err(Rejected(guard, error))
            }
        }
    }
}

/// A [`RwLock`] held to read, with the right to upgrade; dropped, it is released. Derefs to [`Lease`](crate::Lease).
///
/// `Sync`, but not `Send`: it belongs to the thread that acquired it. Of its drop, what [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct RwLockUpgradableReadGuard {
    inner: Nested,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(RwLockUpgradableReadGuard);

impl RwLockUpgradableReadGuard {
    /// Gives this guard back, as a drop does, and says how that went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }

    /// Goes on as a writer, as soon as all other readers have gone; nobody writes in between, and no new reader enters
    /// meanwhile. The read is kept, and renewed, until then. It is a hold of its own, with a new token, held as the read was;
    /// leases that were taken of the read are over.
    ///
    /// # Errors
    ///
    /// The guard comes back with the error. [`Deadlock`](ErrorKind::Deadlock): another reader waits to upgrade already, or this
    /// thread reads the lock once more: drop that guard. [`Lost`](ErrorKind::Lost): the hold had ended. Others as for
    /// [`write`](RwLock::write). If it is not known whether the server did it, the hold is over, and both leases are given
    /// back.
    pub fn upgrade(self) -> Result<RwLockWriteGuard, Rejected<RwLockUpgradableReadGuard>> {
        self.convert(Wait::forever())
    }

    /// The same if no other reads now: one look.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock) if others read; else as for [`upgrade`](RwLockUpgradableReadGuard::upgrade).
    pub fn try_upgrade(self) -> Result<RwLockWriteGuard, Rejected<RwLockUpgradableReadGuard>> {
        self.convert(Wait::new(Until::Now))
    }

    /// The same, waiting for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut) if others read until then; else as for
    /// [`upgrade`](RwLockUpgradableReadGuard::upgrade).
    pub fn try_upgrade_for(
        self,
        timeout: Duration,
    ) -> Result<RwLockWriteGuard, Rejected<RwLockUpgradableReadGuard>> {
        self.convert(Wait::for_duration(timeout))
    }

    fn convert(self, wait: Wait) -> Result<RwLockWriteGuard, Rejected<RwLockUpgradableReadGuard>> {
        let reading = match self.inner.into_last() {
            Ok(reading) => reading,
            Err(inner) => {
                let what = "this thread reads it once more, and would wait for itself";
                let error = Error::new(ErrorKind::Deadlock, what)
                    .advise("drop the other read guard of this thread")
                    .for_lock(&inner.hold().keys.name);
                return Err(Rejected(RwLockUpgradableReadGuard::new(inner), error));
            }
        };
        match convert::upgrade(reading, KIND, &wait) {
            Ok(inner) => Ok(RwLockWriteGuard {
                inner,
                not_send: PhantomData,
            }),
            Err((reading, error)) => {
                let inner = Nested::enter(reading);
                Err(Rejected(RwLockUpgradableReadGuard::new(inner), error))
            }
        }
    }

    fn new(inner: Nested) -> RwLockUpgradableReadGuard {
        RwLockUpgradableReadGuard {
            inner,
            not_send: PhantomData,
        }
    }
}

/// A conversion that failed: it gives the guard back.
///
/// As long as it lives the lock is held as before. Converts into its [`Error`], which drops the guard: so `?` works where the
/// lock is of no use without the conversion.
pub struct Rejected<G>(G, Error);

impl<G> Rejected<G> {
    /// The guard, held or lost as [`Lease::check`](crate::Lease::check) says, and why it was not converted.
    pub fn into_parts(self) -> (G, Error) {
        (self.0, self.1)
    }
}

impl<G> Rejected<G> {
    /// Why it was not converted.
    pub fn error(&self) -> &Error {
        &self.1
    }
}

impl<G> fmt::Display for Rejected<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.1, f)
    }
}

impl<G> std::error::Error for Rejected<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.1)
    }
}

impl<G> fmt::Debug for Rejected<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rejected").field(&self.1).finish()
    }
}

impl<G> From<Rejected<G>> for Error {
    fn from(rejected: Rejected<G>) -> Error {
        rejected.1
    }
}
