//! [`FairMutex`]: a mutex that is handed to those who wait in order of arrival.

use std::marker::PhantomData;

use crate::client::Client;
use crate::error::Result;
use crate::handle::{Handle, acquire_forms, guard, handle, with_section};
use crate::hold::acquire::acquire;
use crate::hold::release::HoldGuard;
use crate::hold::way::{Want, Way};
use crate::name::Keys;
use crate::redis_io::scripts::FAIR;
use crate::wait::Wait;

/// A [`Mutex`](crate::Mutex) that goes to whoever has waited longest, over all processes.
///
/// Each thread that waits has a place of its own in a queue on the server, by the server's order of arrival; no client's clock
/// is read. A release hands the lock to the first in the queue. It then has up to three seconds (at least 1.5 s; in between, its
/// ttl) to come for it, so that is what a waiter which was stopped costs its successors; one that was killed costs them nothing,
/// because its connection is gone. Everybody in the queue is heard of once a second (twice for ttls below 3 s), and one that is
/// silent for five seconds has no place any more. If any of the keys is deleted by hand, the waiters form a new queue within a
/// second, in the order in which they look.
///
/// # Fairness
///
/// First come, first served among `FairMutex` handles, threads of one process included; a newcomer does not overtake, nor does
/// [`try_lock`](FairMutex::try_lock). It is the same lock as the [`Mutex`](crate::Mutex) of its name, and other libraries' locks
/// on that key: those don't queue. They exclude each other as ever, but one of them may take the lock whenever it finds it free,
/// which it is when a holder's lease ran out, or it was released without anybody in the queue; and a plain `Mutex` that waits
/// has its place in the queue, one for all threads of its process. A client whose user has no rights on channels
/// can't be called: it gets the lock when nobody else waits for it.
///
/// Order costs time: each hand-over goes over the server, where a [`Mutex`](crate::Mutex) goes from thread to thread of one
/// process.
///
/// # Differences from `Mutex`
///
/// Threads of one process are not lined up behind one of them, so each that waits asks the server about once a second.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
/// let turn = client.fair_mutex("printer");
/// let guard = turn.lock()?;
/// println!("{} wait behind me", turn.waiters()?);
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairMutex {
    handle: Handle,
}

handle!(FairMutex);
acquire_forms!(FairMutex -> FairMutexGuard, acquire, "the lock", "it is free now and nobody waits for it": lock, try_lock, try_lock_for, try_lock_until, lock_with);
with_section!(FairMutex);

impl FairMutex {
    /// A handle of the lock `name`: the same as [`Client::fair_mutex`]. No I/O.
    pub fn new(client: &Client, name: impl Into<String>) -> FairMutex {
        let handle = Handle::new(client, name.into().into(), Keys::new);
        FairMutex { handle }
    }

    /// How many wait for it now: one round trip, old news when it arrives.
    ///
    /// # Errors
    ///
    /// As for [`inspect`](FairMutex::inspect).
    pub fn waiters(&self) -> Result<u64> {
        self.inspect().map(|info| info.waiters)
    }

    fn acquire(&self, wait: Wait) -> Result<FairMutexGuard> {
        let wanted = self
            .handle
            .wanted("fair mutex", &FAIR, Way::Queue(Want::Word))?;
        let inner = acquire(self.handle.core(), &wanted, &wait)?;
        Ok(FairMutexGuard {
            inner,
            not_send: PhantomData,
        })
    }
}

/// A held [`FairMutex`]; dropped, it is handed to the next in the queue. Derefs to [`Lease`](crate::Lease).
///
/// `Sync`, but not `Send`: it belongs to the thread that acquired it. Of its drop, what [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct FairMutexGuard {
    inner: HoldGuard,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(FairMutexGuard);

impl FairMutexGuard {
    /// Releases the lock, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}
