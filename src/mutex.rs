//! [`Mutex`]: one holder among all threads of all processes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::{ErrorKind, LossReason, Result};
use crate::hold::acquire::{Wanted, acquire};
use crate::hold::release::HoldGuard;
use crate::lease::Lease;
use crate::name::Keys;
use crate::observe::inspect::{self, LockInfo};
use crate::options::HoldOptions;
use crate::wait::{Until, Wait};

/// A lock that one thread of one process holds at a time, whichever host it runs on.
///
/// A handle: cheap to make and to clone, `Send` and `Sync`. Making one does no I/O and can't fail; a name or option that is not
/// valid shows as an error at the first acquire. Handles of one name, in one client or in many, are one lock. So is any lock
/// of another library that does `SET name <unique> NX PX ttl` on the same key (redis-py, redsync, Redlock and others).
///
/// # Holding
///
/// The lock is a lease: the server is told a time to live (ttl, 30 s by default), and a watchdog, a thread of its own, renews it
/// every third of that for as long as the guard lives. If the process dies, the lease ends by itself. If renewing fails for so
/// long that the lease may have ended, the hold is lost: [`Lease::check`] says so, [`Lease::lost`] wakes up, and nothing that
/// the server says later brings it back.
///
/// # Fairness
///
/// None is promised: a release wakes the longest waiter, but a newcomer may be faster. Within one process, threads get their
/// turn in order of arrival.
///
/// # Differences from `std::sync::Mutex`
///
/// It guards no data of its own, can be lost while it is held, and a panic does not poison it: the next holder learns of it from
/// [`Lease::predecessor`]. Locking it twice on one thread is an error ([`Deadlock`](ErrorKind::Deadlock)), not a hang.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
/// let mutex = client.mutex("order:12345");
/// {
///     let guard = mutex.lock()?;
///     println!("settling with token {}", guard.fencing_token());
/// } // released here
/// # Ok(()) }
/// ```
pub struct Mutex {
    client: Client,
    name: Arc<str>,
    /// Built once for all acquires; what is wrong with the name is told by each of them.
    keys: Result<Keys>,
    options: HoldOptions,
}

impl Clone for Mutex {
    fn clone(&self) -> Mutex {
        Mutex {
            client: self.client.clone(),
            name: self.name.clone(),
            keys: self.keys(),
            options: self.options.clone(),
        }
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Mutex {
    /// A handle of the lock `name`: the same as [`Client::mutex`]. No I/O.
    pub fn new(client: &Client, name: impl Into<String>) -> Mutex {
        let name: Arc<str> = name.into().into();
        let core = client.core();
        Mutex {
            keys: Keys::new(&core.namespace, name.clone()),
            options: HoldOptions::new(core.ttl),
            client: client.clone(),
            name,
        }
    }

    /// Acquires the lock, waiting as long as it takes.
    ///
    /// While the server can't be reached the wait goes on for min(max(ttl, 5 s), 60 s), then it ends with an error.
    ///
    /// # Errors
    ///
    /// [`Deadlock`](ErrorKind::Deadlock) when this thread holds it already, or threads of this process wait in a circle;
    /// [`Unavailable`](ErrorKind::Unavailable), [`AccessDenied`](ErrorKind::AccessDenied),
    /// [`OutOfMemory`](ErrorKind::OutOfMemory), [`KeyConflict`](ErrorKind::KeyConflict),
    /// [`InvalidName`](ErrorKind::InvalidName), [`InvalidOptions`](ErrorKind::InvalidOptions),
    /// [`Unsupported`](ErrorKind::Unsupported) and [`Script`](ErrorKind::Script) as their docs say;
    /// [`Cancelled`](ErrorKind::Cancelled) and [`TimedOut`](ErrorKind::TimedOut) only where the client has a canceller or a
    /// `max_wait`. After an error nothing is held.
    pub fn lock(&self) -> Result<MutexGuard> {
        self.lock_with(Wait::forever())
    }

    /// Acquires the lock if it is free now: one look.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock) when somebody holds it, this thread included; others as for
    /// [`lock`](Mutex::lock). [`busy_as_none`](crate::BusyAsNone::busy_as_none) makes `Ok(None)` of a busy lock.
    pub fn try_lock(&self) -> Result<MutexGuard> {
        self.lock_with(Wait::new(Until::Now))
    }

    /// Acquires the lock, waiting for at most `timeout`, which is kept whatever the server does (to 10 % + 20 ms).
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut), or the kind of the error that stood last when the time was up; others as for
    /// [`lock`](Mutex::lock). Never an `Ok` without the lock.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<MutexGuard> {
        self.lock_with(Wait::for_duration(timeout))
    }

    /// Acquires the lock, waiting until `deadline` at the latest.
    ///
    /// # Errors
    ///
    /// As for [`try_lock_for`](Mutex::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<MutexGuard> {
        self.lock_with(Wait::until(deadline))
    }

    /// Acquires the lock, waiting as `wait` says: a duration, an instant, or a [`Wait`] that a
    /// [`Canceller`](crate::Canceller) may end.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) when the canceller ended the wait; others as for
    /// [`try_lock_for`](Mutex::try_lock_for).
    pub fn lock_with(&self, wait: impl Into<Wait>) -> Result<MutexGuard> {
        let wanted = Wanted {
            keys: self.keys()?,
            kind: "mutex",
            options: self.options.clone(),
        };
        acquire(self.client.core(), &wanted, &wait.into()).map(|inner| MutexGuard {
            inner,
            not_send: PhantomData,
        })
    }

    /// Runs `f` under the lock: waits for it, gives `f` its lease, releases it.
    ///
    /// If `f` panics the lock is released, and the next holder learns of it.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Mutex::lock), then `f` did not run; and [`Lost`](ErrorKind::Lost) when the lock did not last to the
    /// end of `f`: then its result is dropped, because somebody else may have worked at the same time. A release that the
    /// server did not answer is no error here: the lock lasted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn settle(_: &leasehold::Lease) -> leasehold::Result<u32> { Ok(1) }
    /// # fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let settled = client.mutex("2026-11").with(|lease| settle(lease))??;
    /// # let _ = settled; Ok(()) }
    /// ```
    pub fn with<R>(&self, f: impl FnOnce(&Lease) -> R) -> Result<R> {
        let guard = self.lock()?;
        let lease = guard.lease();
        let result = f(&lease);
        match guard.unlock() {
            Ok(()) => Ok(result),
            Err(e) if e.kind() == ErrorKind::NotHeld => {
                Err(lease.hold().lost(LossReason::TakenAway).into())
            }
            Err(e) if e.is_lost() => Err(e),
            Err(_) => Ok(result),
        }
    }

    /// The lock's name, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renewed holds with this ttl: how long the lock outlives its holder's death. 50 ms to 365 days; default: the client's,
    /// 30 s. Not what limits a hold: it is renewed every third of it.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self.options.renewed = true;
        self
    }

    /// Holds that are never renewed: over after `lease`, come what may. 50 ms to 365 days.
    ///
    /// Held past it is a loss, a warning in the log and a count in the metrics. [`Lease::extend`] gives it a new end. Without
    /// fencing, two jobs will overlap as soon as one takes longer than its lease: prefer the default.
    pub fn with_fixed_lease(mut self, lease: Duration) -> Self {
        self.options.ttl = lease;
        self.options.renewed = false;
        self
    }

    /// Renewed holds, but not for ever: after `max` (50 ms to 365 days) a hung job loses the lock. Default: no limit.
    pub fn with_max_hold(mut self, max: Duration) -> Self {
        self.options.max_hold = Some(max);
        self
    }

    /// Keeps the lock for at least `at_least` (up to 365 days), counted from its acquisition, even if it is given back
    /// earlier: one run per interval, whichever host wins. Default: none. A lost hold keeps nothing.
    pub fn with_hold_at_least(mut self, at_least: Duration) -> Self {
        self.options.at_least = Some(at_least);
        self
    }

    /// Whether anybody holds it now: one round trip, old news when it arrives. To acquire it if free use
    /// [`try_lock`](Mutex::try_lock).
    ///
    /// # Errors
    ///
    /// As for [`inspect`](Mutex::inspect).
    pub fn is_locked(&self) -> Result<bool> {
        self.inspect().map(|info| info.held)
    }

    /// Who holds it, since when, for how long still, and how many wait.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName); [`Unavailable`](ErrorKind::Unavailable) and the like when the server can't be
    /// asked.
    pub fn inspect(&self) -> Result<LockInfo> {
        inspect::inspect(self.client.core(), &self.keys()?)
    }

    /// Takes the lock away from whoever holds it, in whichever process; `true` if anybody did.
    ///
    /// The holder learns of it at its next renewal, up to a third of its ttl later: until then two may work at once. For an
    /// operator who knows that the holder is gone. The next holder's predecessor is `Abandoned`.
    ///
    /// # Errors
    ///
    /// [`KeyConflict`](ErrorKind::KeyConflict) if the key is no lock but somebody's data: it is left as it is; others as for
    /// [`inspect`](Mutex::inspect).
    pub fn force_unlock(&self) -> Result<bool> {
        inspect::force_unlock(self.client.core(), &self.keys()?)
    }

    fn keys(&self) -> Result<Keys> {
        match &self.keys {
            Ok(keys) => Ok(keys.clone()),
            Err(e) => Err(e.share()),
        }
    }
}

/// A held [`Mutex`]; dropped, it is released. Derefs to [`Lease`].
///
/// `Sync`, so that scoped threads can share it, but not `Send`: it belongs to the thread that acquired it, which is how locking
/// twice is found out. [`into_owned`](MutexGuard::into_owned) gives one that can be sent.
///
/// Dropping it joins the renewer, then sends the release. It never panics, works while unwinding, and takes at most about
/// the client's `io_timeout`; if the server does not answer in time, the release is tried again in the background, and the
/// lease ends by itself.
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct MutexGuard {
    inner: HoldGuard,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

impl MutexGuard {
    /// The lease, for threads that outlive the guard's scope. It does not keep the lock.
    pub fn lease(&self) -> Lease {
        Lease::clone(self)
    }

    /// Releases the lock, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold had ended before. [`NotHeld`](ErrorKind::NotHeld): the server says that the lock was
    /// not ours any more. [`Unavailable`](ErrorKind::Unavailable) and the like: not known; the lease ends by itself.
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }

    /// A guard that can go to another thread. From then on this process can't tell any more that a thread locks it twice: that
    /// waits for ever.
    pub fn into_owned(self) -> OwnedMutexGuard {
        self.inner.untrack();
        OwnedMutexGuard { inner: self.inner }
    }
}

impl Deref for MutexGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.inner
    }
}

/// A held [`Mutex`] that can be sent to another thread: see [`MutexGuard::into_owned`].
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct OwnedMutexGuard {
    inner: HoldGuard,
}

impl OwnedMutexGuard {
    /// The lease, for threads that outlive the guard's scope. It does not keep the lock.
    pub fn lease(&self) -> Lease {
        Lease::clone(self)
    }

    /// Releases the lock, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}

impl Deref for OwnedMutexGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.inner
    }
}
