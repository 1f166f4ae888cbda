//! [`ReentrantMutex`]: a mutex that its thread may take again.

use std::marker::PhantomData;

use crate::client::Client;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::handle::{Handle, acquire_forms, guard, handle, with_section};
use crate::hold::acquire::acquire;
use crate::hold::nested::Nested;
use crate::hold::way::Way;
use crate::name::Keys;
use crate::redis_io::scripts::WORD;
use crate::wait::Wait;

/// A [`Mutex`](crate::Mutex) that the thread which holds it may lock again.
///
/// A nested lock, through any handle of that name from the same client, asks nobody: it gives one more guard of the same hold,
/// with the same fencing token. The lock is released when the last of them is dropped, in whichever order. How the hold is held
/// (its ttl, or a fixed lease) is what the outermost handle says.
///
/// If the hold is lost while guards of it live, a nested lock is an error, [`Lost`](ErrorKind::Lost), until all of them are
/// gone: the section they are in has lost its lock, and must not go on as if it had not.
///
/// It is the same lock as the [`Mutex`](crate::Mutex) and the [`FairMutex`](crate::FairMutex) of its name; those are not nested:
/// a thread that locks one of them while it holds this is told that it would wait for itself. Through another client of the same
/// process it does not nest either: [`Deadlock`](ErrorKind::Deadlock), too.
///
/// # Fairness
///
/// As for [`Mutex`](crate::Mutex).
///
/// # Differences from other reentrant mutexes
///
/// `parking_lot`'s guards data, and is a type of its own there, too. Redisson's `RLock` counts on the server; here the count
/// never leaves the thread, so no reply that is lost can make it wrong.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
///
/// fn book(client: &leasehold::Client, account: &str) -> leasehold::Result<()> {
///     let _guard = client.reentrant_mutex(account).lock()?; // nested: no round trip
///     Ok(())
/// }
///
/// let guard = client.reentrant_mutex("account:7").lock()?;
/// book(&client, "account:7")?;
/// assert_eq!(guard.depth(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ReentrantMutex {
    handle: Handle,
}

handle!(ReentrantMutex);
acquire_forms!(ReentrantMutex -> ReentrantMutexGuard, acquire, "the lock", "it is free now, or this thread's": lock, try_lock, try_lock_for, try_lock_until, lock_with);
with_section!(ReentrantMutex);

impl ReentrantMutex {
    /// A handle of the lock `name`: the same as [`Client::reentrant_mutex`]. No I/O.
    pub fn new(client: &Client, name: impl Into<String>) -> ReentrantMutex {
        let handle = Handle::new(client, name.into().into(), Keys::new);
        ReentrantMutex { handle }
    }

    fn acquire(&self, wait: Wait) -> Result<ReentrantMutexGuard> {
        let core = self.handle.core();
        core.check_process()?;
        let word = self.handle.word()?;
        let inner = match Nested::find(core, word) {
            Some(outer) => {
                // Whether this is the process that made it has just been seen.
                outer.hold().check()?;
                outer
            }
            None => {
                let wanted = self.handle.wanted("reentrant mutex", &WORD, Way::Gate)?;
                Nested::enter(acquire(core, &wanted, &wait)?)
            }
        };
        Ok(ReentrantMutexGuard {
            inner,
            not_send: PhantomData,
        })
    }
}

/// A held [`ReentrantMutex`]; when the last one of a hold is dropped, it is released. Derefs to [`Lease`](crate::Lease).
///
/// `Sync`, but not `Send`: it belongs to the thread that acquired it. Of the drop that releases, what
/// [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct ReentrantMutexGuard {
    inner: Nested,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(ReentrantMutexGuard);

impl ReentrantMutexGuard {
    /// How many guards of this hold there are: 1 where nothing is nested.
    pub fn depth(&self) -> usize {
        self.inner.depth()
    }

    /// Gives this guard back, as a drop does, and says how that went. The last one releases the lock.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold had ended before. Of the last guard also [`NotHeld`](ErrorKind::NotHeld): the server
    /// says that the lock was not ours any more; [`Unavailable`](ErrorKind::Unavailable) and the like: not known; the lease
    /// ends by itself.
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}
