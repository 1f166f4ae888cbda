//! [`Semaphore`]: a number of permits that all processes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::Client;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::handle::{Handle, acquire_forms, guard, handle};
use crate::hold::acquire::acquire;
use crate::hold::release::HoldGuard;
use crate::hold::way::{Want, Way};
use crate::name::{Keys, Table};
use crate::observe::inspect;
use crate::options::invalid;
use crate::redis_io::scripts::PERMITS;
use crate::wait::Wait;

/// At most so many holders at a time, whichever process they are in.
///
/// Each acquire takes one permit, or [several at once](Semaphore::acquire_many), under a lease of its own that is renewed as
/// that of any lock: the permits of a holder that died come back when its ttl has run out, by the server's clock, and giving
/// back twice adds nothing.
///
/// The limit is stored with the semaphore, by its first user: a handle that was made with another one gets
/// [`InvalidOptions`](ErrorKind::InvalidOptions), because two programs that disagree would each be right half of the time.
/// [`set_permits`](Semaphore::set_permits) changes it for all. It is forgotten an hour after the last use, or seven days after
/// it was changed that way.
///
/// # Fairness
///
/// First come, first served, over all processes: one that wants many permits is not overtaken by those who want few. A client
/// whose user has no rights on channels gets its permits when nobody else waits.
///
/// # Fencing
///
/// The token of a permit tells holders apart; it does not fence. Several hold at a time, and a resource that refuses lower tokens
/// would refuse holders that are in their right.
///
/// # Differences from a `Mutex`
///
/// A permit belongs to no thread: it may be sent to another, and a thread that waits for permits which it has itself is not
/// told so. There is no predecessor: [`Lease::predecessor`](crate::Lease::predecessor) is always `None`.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
/// let uploads = client.semaphore("uploads", 5);
/// let permit = uploads.acquire()?;
/// // … at most five of us, on all hosts together …
/// # drop(permit); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle,
}

handle!(Semaphore);
acquire_forms!(Semaphore -> SemaphorePermit, acquire_one, "one permit", "one is free now and nobody waits": acquire, try_acquire, try_acquire_for, try_acquire_until, acquire_with);
acquire_forms!(Semaphore -> SemaphorePermit, acquire_some, "`n` permits at once", "so many are free now and nobody waits": acquire_many, try_acquire_many, try_acquire_many_for, try_acquire_many_until, acquire_many_with, n);

impl Semaphore {
    /// A handle of the semaphore `name` with `permits` in all, at least 1: the same as [`Client::semaphore`]. No I/O.
    pub fn new(client: &Client, name: impl Into<String>, permits: u32) -> Semaphore {
        let keys = |namespace: &str, name| Keys::table(namespace, name, Table::Semaphore);
        let mut handle = Handle::new(client, name.into().into(), keys);
        handle.permits = Some(Arc::new(AtomicU32::new(permits)));
        Semaphore { handle }
    }

    /// How many permits are free now: one round trip, old news when it arrives. 0 also where the limit was lowered below what
    /// is held.
    ///
    /// # Errors
    ///
    /// As for [`inspect`](Semaphore::inspect).
    pub fn available_permits(&self) -> Result<u32> {
        let info = self.inspect()?;
        Ok(info.permits.map_or(0, |(free, _)| free))
    }

    /// Changes the limit, for all: one round trip. At least 1.
    ///
    /// Those who hold keep what they have; if that is more than `permits`, nobody gets any until it is less. One who waits for
    /// more than `permits` gets [`InvalidOptions`](ErrorKind::InvalidOptions). From then on handles must be made with this
    /// number; this handle and its clones go on with it.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for 0; others as for [`force_unlock`](Semaphore::force_unlock).
    pub fn set_permits(&self, permits: u32) -> Result<()> {
        if permits == 0 {
            let error = invalid("0 permits; it must be at least 1");
            return Err(error.for_lock(&self.handle.name));
        }
        inspect::set_permits(self.handle.core(), &self.handle.keys()?, permits)?;
        if let Some(known) = &self.handle.permits {
            known.store(permits, Ordering::Relaxed);
        }
        Ok(())
    }

    fn acquire_one(&self, wait: Wait) -> Result<SemaphorePermit> {
        self.acquire_some(1, wait)
    }

    fn acquire_some(&self, n: u32, wait: Wait) -> Result<SemaphorePermit> {
        let limit = self.handle.permits().unwrap_or(0);
        let way = Way::Queue(Want::Permits { n, limit });
        let wanted = self.handle.wanted("semaphore", &PERMITS, way)?;
        let inner = acquire(self.handle.core(), &wanted, &wait)?;
        Ok(SemaphorePermit { inner, permits: n })
    }
}

/// One or more permits of a [`Semaphore`]; dropped, they are given back. Derefs to [`Lease`](crate::Lease).
///
/// `Send` and `Sync`: any thread may give it back. Of its drop, what [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct SemaphorePermit {
    inner: HoldGuard,
    permits: u32,
}

guard!(SemaphorePermit);

impl SemaphorePermit {
    /// How many permits this is.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Gives the permits back, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}
