//! [`MultiMutex`]: several mutexes at once, or none of them.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::client::Client;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::handle::{Handle, acquire_forms, guard, handle, with_section};
use crate::hold::acquire::acquire;
use crate::hold::release::HoldGuard;
use crate::hold::way::Way;
use crate::name::Keys;
use crate::redis_io::scripts::SEVERAL;
use crate::wait::Wait;

/// How many names are shown where a lock of several is named.
const SHOWN: usize = 5;

/// Several [`Mutex`](crate::Mutex)es that are acquired together: all of them or none.
///
/// One script takes all names, sorted and each once, so programs that name the same locks in other orders, or one of them twice,
/// can't wait for each other in a circle; and while it waits it holds nothing. Each of the names is the same lock as the
/// [`Mutex`](crate::Mutex) of that name. 1 to 1,000 names; with none, or more, each acquire is
/// [`InvalidOptions`](ErrorKind::InvalidOptions).
///
/// There is one fencing token for all of them, above every earlier token of each. If one of the keys is lost, the hold is lost
/// as a whole, and what is left of it is given back when the guard is dropped. The
/// [predecessor](crate::Lease::predecessor) is the worst of all names'.
///
/// # Fairness
///
/// None. A program that takes many busy locks at once may wait for long, because it must find all of them free at one moment.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
/// // A transfer the other way round names them the other way round, and that does no harm.
/// let both = client.multi_mutex(["account:7", "account:3"]).lock()?;
/// # drop(both); Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiMutex {
    handle: Handle,
}

handle!(MultiMutex);
acquire_forms!(MultiMutex -> MultiMutexGuard, acquire, "all the locks", "all are free now": lock, try_lock, try_lock_for, try_lock_until, lock_with);
with_section!(MultiMutex);

impl MultiMutex {
    /// A handle of all the locks `names`: the same as [`Client::multi_mutex`]. No I/O.
    pub fn new<N: Into<String>>(client: &Client, names: impl IntoIterator<Item = N>) -> MultiMutex {
        let names: Vec<Arc<str>> = names.into_iter().map(|n| n.into().into()).collect();
        let handle = Handle::new(client, title(&names), |namespace, title| {
            Keys::several(namespace, &title, &names)
        });
        MultiMutex { handle }
    }

    fn acquire(&self, wait: Wait) -> Result<MultiMutexGuard> {
        let wanted = self.handle.wanted("multi mutex", &SEVERAL, Way::Try)?;
        let inner = acquire(self.handle.core(), &wanted, &wait)?;
        Ok(MultiMutexGuard {
            inner,
            not_send: PhantomData,
        })
    }
}

/// What messages call it.
fn title(names: &[Arc<str>]) -> Arc<str> {
    let shown = names.iter().take(SHOWN).map(|n| &**n).collect::<Vec<_>>();
    let mut title = shown.join(", ");
    if names.len() > SHOWN {
        title.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    title.into()
}

/// A held [`MultiMutex`]; dropped, all its locks are released. Derefs to [`Lease`](crate::Lease), whose name is that of all of
/// them, or of the first five.
///
/// `Sync`, but not `Send`: it belongs to the thread that acquired it. Of its drop, what [`MutexGuard`](crate::MutexGuard) says.
#[must_use = "it is given back at once unless it is bound to a name: `let _guard = …` (`let _ = …` gives it back, too)"]
pub struct MultiMutexGuard {
    inner: HoldGuard,
    not_send: PhantomData<std::sync::MutexGuard<'static, ()>>,
}

guard!(MultiMutexGuard);

impl MultiMutexGuard {
    /// Releases all the locks, as a drop does, and says how it went.
    ///
    /// # Errors
    ///
    /// As for [`MutexGuard::unlock`](crate::MutexGuard::unlock).
    #[doc(alias = "release")]
    pub fn unlock(self) -> Result<()> {
        self.inner.unlock()
    }
}
