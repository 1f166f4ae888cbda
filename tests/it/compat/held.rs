//! A guard of any type, and what its lease says of the hold before it.

use std::fmt::Debug;
use std::ops::Deref;

use leasehold::{Lease, Predecessor, Result};

pub(super) trait Guard: Debug {
    fn lease(&self) -> &Lease;
    fn unlock(self: Box<Self>) -> Result<()>;
}

macro_rules! guards {
    ($($guard:ident)*) => {
        $(
            impl Guard for leasehold::$guard {
                fn lease(&self) -> &Lease {
                    self
                }

                fn unlock(self: Box<Self>) -> Result<()> {
                    leasehold::$guard::unlock(*self)
                }
            }
        )*
    };
}

guards! {
    MutexGuard ReentrantMutexGuard FairMutexGuard RwLockWriteGuard RwLockReadGuard RwLockUpgradableReadGuard SemaphorePermit
    MultiMutexGuard
}

/// A guard of any type.
#[must_use]
#[derive(Debug)]
pub(crate) struct Held(Box<dyn Guard>);

impl Held {
    pub(super) fn new(guard: impl Guard + 'static) -> Held {
        Held(Box::new(guard))
    }

    pub(crate) fn lease(&self) -> Lease {
        self.0.lease().clone()
    }

    pub(crate) fn unlock(self) -> Result<()> {
        self.0.unlock()
    }
}

impl Deref for Held {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.0.lease()
    }
}

/// The token of a predecessor that was cut off, died or lost the lock.
pub(crate) fn abandoned(lease: &Lease) -> Option<u64> {
    match lease.predecessor() {
        Predecessor::Abandoned { token, .. } => Some(token.get()),
        _ => None,
    }
}

/// The token of a predecessor that panicked.
pub(crate) fn panicked(lease: &Lease) -> Option<u64> {
    match lease.predecessor() {
        Predecessor::Panicked { token, .. } => Some(token.get()),
        _ => None,
    }
}
