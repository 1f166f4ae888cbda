//! [`Mutex`]: one holder among all threads of all processes.

use std::marker::PhantomData;
use std::time::Duration;

use crate::client::Client;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::handle::{Handle, acquire_forms, guard, handle, with_section};
use crate::hold::acquire::acquire;
use crate::hold::release::HoldGuard;
use crate::hold::way::Way;
#[cfg(doc)]
use crate::lease::Lease;
use crate::name::Keys;
use crate::redis_io::scripts::WORD;
use crate::wait::Wait;

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
/// A release gives the lock to the process that has waited longest. Within one process, threads get their turn in order of
/// arrival, but for half a millisecond at a time, in which one that comes back at once has it again, and a process hands it on among
/// its threads until another one has waited for [10 ms](crate::ClientBuilder::local_hand_over). A newcomer may find it free when
/// a lease has run out. For strict order over all threads of all processes there is [`FairMutex`](crate::FairMutex).
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
#[derive(Clone)]
pub struct Mutex {
    handle: Handle,
}

handle!(Mutex);
acquire_forms!(Mutex -> MutexGuard, acquire, "the lock", "it is free now": lock, try_lock, try_lock_for, try_lock_until, lock_with);
with_section!(Mutex);

impl Mutex {
    /// A handle of the lock `name`: the same as [`Client::mutex`]. No I/O.
    pub fn new(client: &Client, name: impl Into<String>) -> Mutex {
        let handle = Handle::new(client, name.into().into(), Keys::new);
        Mutex { handle }
    }

    /// Keeps the lock for at least `at_least` (up to 365 days), counted from its acquisition, even if it is given back
    /// earlier: one run per interval, whichever host wins. Default: none. A lost hold keeps nothing.
    #[must_use = "it gives a changed handle"]
    pub fn with_hold_at_least(mut self, at_least: Duration) -> Self {
        self.handle.options.at_least = Some(at_least);
        self
    }

    fn acquire(&self, wait: Wait) -> Result<MutexGuard> {
        let wanted = self.handle.wanted("mutex", &WORD, Way::Gate)?;
        let inner = acquire(self.handle.core(), &wanted, &wait)?;
        Ok(MutexGuard {
            inner,
            not_send: PhantomData,
        })
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
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct MutexGuard {
    inner: HoldGuard,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(MutexGuard);

impl MutexGuard {
    /// Releases the lock, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): the hold had ended before. [`NotHeld`](ErrorKind::NotHeld): the server says that the lock was
    /// not ours any more. [`Unavailable`](ErrorKind::Unavailable) and the like: not known; the lease ends by itself.
    #[doc(alias = "release")]
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

/// A held [`Mutex`] that can be sent to another thread: see [`MutexGuard::into_owned`].
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct OwnedMutexGuard {
    inner: HoldGuard,
}

guard!(OwnedMutexGuard);

impl OwnedMutexGuard {
    /// Releases the lock, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`].
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}
