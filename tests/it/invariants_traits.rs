//! What may go to other threads and what may not, asserted when this compiles; and nothing public is left out.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use leasehold::testing::Server;
use leasehold::{
    BusyAsNone, Canceller, Client, ClientBuilder, Error, ErrorKind, FairMutex, FairMutexGuard,
    FencingToken, Lease, LockInfo, Lost, ManagedConnection, Manager, Metrics, MultiMutex,
    MultiMutexGuard, Mutex, MutexGuard, NodeError, OwnedMutexGuard, Predecessor, Quantiles,
    ReentrantMutex, ReentrantMutexGuard, Rejected, Result, RwLock, RwLockReadGuard,
    RwLockUpgradableReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit, Wait,
};

const fn send<T: Send>() {}
const fn send_sync<T: Send + Sync + 'static>() {}
const fn handle<T: Clone + Send + Sync + Debug + Unpin + 'static>() {}
const fn value<T: Clone + Send + Sync + Debug + Unpin + 'static>() {}
const fn copy<T: Copy + Eq + Hash + Debug + Send + Sync + 'static>() {}
const fn error<T: std::error::Error + Send + Sync + Unpin + 'static>() {}
const fn guard<T: Sync + Debug + std::ops::Deref<Target = Lease> + Unpin + 'static>() {}

/// Does not compile if the type has the trait: then both of the two implementations fit.
macro_rules! is_not {
    ($type:ty: $trait:path) => {
        const _: fn() = || {
            trait OnlyOne<Which> {
                fn one() {}
            }
            impl<T: ?Sized> OnlyOne<()> for T {}
            #[allow(dead_code)]
            struct Other;
            impl<T: ?Sized + $trait> OnlyOne<Other> for T {}
            let _ = <$type as OnlyOne<_>>::one;
        };
    };
}

const _: () = {
    handle::<Client>();
    handle::<Mutex>();
    handle::<ReentrantMutex>();
    handle::<FairMutex>();
    handle::<RwLock>();
    handle::<Semaphore>();
    handle::<MultiMutex>();
    handle::<Lease>();
    handle::<Canceller>();
    handle::<Manager>();

    guard::<MutexGuard>();
    guard::<OwnedMutexGuard>();
    send_sync::<OwnedMutexGuard>();
    guard::<ReentrantMutexGuard>();
    guard::<FairMutexGuard>();
    guard::<RwLockReadGuard>();
    guard::<RwLockWriteGuard>();
    guard::<RwLockUpgradableReadGuard>();
    guard::<MultiMutexGuard>();
    guard::<SemaphorePermit>();
    send_sync::<SemaphorePermit>();

    error::<Error>();
    error::<Lost>();
    value::<Lost>();
    value::<NodeError>();
    copy::<ErrorKind>();

    value::<Wait>();
    value::<LockInfo>();
    value::<Metrics>();
    value::<Quantiles>();
    value::<Predecessor>();
    value::<ClientBuilder>();
    copy::<FencingToken>();

    send::<ManagedConnection>();
    send_sync::<Server>();
};

// It belongs to the thread that acquired it; and two of them would release twice.
is_not!(MutexGuard: Send);
is_not!(MutexGuard: Clone);
is_not!(OwnedMutexGuard: Clone);
is_not!(ReentrantMutexGuard: Send);
is_not!(ReentrantMutexGuard: Clone);
is_not!(FairMutexGuard: Send);
is_not!(FairMutexGuard: Clone);
is_not!(RwLockReadGuard: Send);
is_not!(RwLockReadGuard: Clone);
is_not!(RwLockWriteGuard: Send);
is_not!(RwLockWriteGuard: Clone);
is_not!(RwLockUpgradableReadGuard: Send);
is_not!(RwLockUpgradableReadGuard: Clone);
is_not!(MultiMutexGuard: Send);
is_not!(MultiMutexGuard: Clone);
is_not!(SemaphorePermit: Clone);

/// A guard may be borrowed by scoped threads and kept in a struct, for it borrows nothing itself.
const fn is_static<T: 'static>() {}
const _: () = is_static::<MutexGuard>();

// A conversion that failed gives back what it was given, and goes where that may go.
const fn debug<T: Debug + Unpin + 'static>() {}
const _: () = {
    debug::<Rejected<RwLockWriteGuard>>();
    debug::<Rejected<RwLockUpgradableReadGuard>>();
    send_sync::<Rejected<SemaphorePermit>>();
};
is_not!(Rejected<RwLockWriteGuard>: Send);
is_not!(Rejected<RwLockUpgradableReadGuard>: Send);

const fn has<T, Into: From<T>>() {}
const _: () = {
    has::<u64, FencingToken>();
    has::<FencingToken, u64>();
    has::<FencingToken, i64>();
    has::<Lost, Error>();
    has::<Rejected<RwLockWriteGuard>, Error>();
    has::<Rejected<RwLockUpgradableReadGuard>, Error>();
    has::<std::time::Duration, Wait>();
    has::<std::time::Instant, Wait>();
};

const fn shown<T: Display + std::str::FromStr + Ord>() {}
const _: () = shown::<FencingToken>();

/// By what all of them go through: `?` works in a function that returns any of the usual errors.
#[allow(dead_code)]
fn question_marks(
    client: &Client,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let guard = client.mutex("m").try_lock().busy_as_none()?;
    if let Some(guard) = guard {
        guard.check()?;
        guard.unlock()?;
    }
    Ok(())
}

/// The list above has every public name: a new type must say what it is.
#[test]
fn every_public_type_is_asserted() {
    let lib = include_str!("../../src/lib.rs");
    let here = include_str!("invariants_traits.rs");
    let exports = lib.lines().filter_map(|l| l.strip_prefix("pub use "));
    let names: Vec<&str> = exports
        .flat_map(|line| line.split(['{', '}', ',', ';', ' ']))
        .map(|path| path.rsplit("::").next().unwrap_or(path))
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect();
    assert!(names.len() >= 33, "{names:?}");
    // Neither of these is a type of its own.
    let others = [stringify!(BusyAsNone), stringify!(Result)];
    let is_asserted = |name: &&str| {
        here.contains(&format!("::<{name}>()")) || here.contains(&format!("::<{name}<"))
    };
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !others.contains(name) && !is_asserted(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let _: Option<Result<()>> = None;
}
