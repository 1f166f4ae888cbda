//! What the handles of all types share: a name, the keys that go with it, and how holds through it are held.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::Client;
use crate::error::{ErrorKind, LossReason, Result};
use crate::hold::acquire::Wanted;
use crate::hold::core::Core;
use crate::hold::way::Way;
use crate::lease::Lease;
use crate::name::Keys;
use crate::options::HoldOptions;
use crate::redis_io::scripts::Family;

/// The inside of a handle.
pub(crate) struct Handle {
    pub(crate) client: Client,
    pub(crate) name: Arc<str>,
    /// Built once for all acquires; what is wrong with the name is told by each of them.
    keys: Result<Keys>,
    pub(crate) options: HoldOptions,
    /// A semaphore's limit; shared, because it may be changed.
    pub(crate) permits: Option<Arc<AtomicU32>>,
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        Handle {
            client: self.client.clone(),
            name: self.name.clone(),
            keys: self.keys(),
            options: self.options.clone(),
            permits: self.permits.clone(),
        }
    }
}

impl Handle {
    pub(crate) fn new(
        client: &Client,
        name: Arc<str>,
        keys: impl FnOnce(&str, Arc<str>) -> Result<Keys>,
    ) -> Handle {
        let core = client.core();
        Handle {
            keys: keys(&core.namespace, name.clone()),
            options: HoldOptions::new(core.ttl),
            client: client.clone(),
            name,
            permits: None,
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.client.core()
    }

    pub(crate) fn keys(&self) -> Result<Keys> {
        match &self.keys {
            Ok(keys) => Ok(keys.clone()),
            Err(e) => Err(e.share()),
        }
    }

    /// The key that the lock is known by.
    pub(crate) fn word(&self) -> Result<&str> {
        match &self.keys {
            Ok(keys) => Ok(&keys.word),
            Err(e) => Err(e.share()),
        }
    }

    pub(crate) fn permits(&self) -> Option<u32> {
        self.permits.as_ref().map(|n| n.load(Ordering::Relaxed))
    }

    pub(crate) fn wanted(
        &self,
        kind: &'static str,
        family: &'static Family,
        way: Way,
    ) -> Result<Wanted> {
        Ok(Wanted {
            keys: self.keys()?,
            kind,
            family,
            way,
            options: self.options.clone(),
        })
    }

    pub(crate) fn debug(&self, f: &mut fmt::Formatter<'_>, kind: &str) -> fmt::Result {
        f.debug_struct(kind)
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What `with` says of a section that ran: a release that was not answered is no error, a hold that did not last is.
pub(crate) fn section_result<R>(result: R, lease: &Lease, unlocked: Result<()>) -> Result<R> {
    match unlocked {
        Ok(()) => Ok(result),
        Err(e) if e.kind() == ErrorKind::NotHeld => {
            Err(lease.hold().lost(LossReason::TakenAway).into())
        }
        Err(e) if e.is_lost() => Err(e),
        Err(_) => Ok(result),
    }
}

/// The methods of a handle that are the same for every type.
macro_rules! handle {
    ($type:ident) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.handle.debug(f, stringify!($type))
            }
        }

        impl $type {
            /// The lock's name, as it was given.
            pub fn name(&self) -> &str {
                &self.handle.name
            }

            /// Renewed holds with this ttl: how long the lock outlives its holder's death. 50 ms to 365 days; default: the
            /// client's, 30 s. Not what limits a hold: it is renewed every third of it.
            #[must_use = "it gives a changed handle"]
            pub fn with_ttl(mut self, ttl: ::std::time::Duration) -> Self {
                let options = &mut self.handle.options;
                options.ttl = ttl;
                options.renewed = true;
                self
            }

            /// Holds that are never renewed: over after `lease`, come what may. 50 ms to 365 days.
            ///
            /// Held past it is a loss, a warning in the log and a count in the metrics. [`Lease::extend`](crate::Lease::extend)
            /// gives it a new end. Without fencing, two jobs will overlap as soon as one takes longer than its lease: prefer
            /// the default.
            #[must_use = "it gives a changed handle"]
            pub fn with_fixed_lease(mut self, lease: ::std::time::Duration) -> Self {
                let options = &mut self.handle.options;
                options.ttl = lease;
                options.renewed = false;
                self
            }

            /// Renewed holds, but not for ever: after `max` (50 ms to 365 days) a hung job loses the lock. Default: no limit.
            #[must_use = "it gives a changed handle"]
            pub fn with_max_hold(mut self, max: ::std::time::Duration) -> Self {
                self.handle.options.max_hold = Some(max);
                self
            }

            /// Whether anybody holds it now: one round trip (for each name, of several), old news when it arrives.
            ///
            /// # Errors
            ///
            #[doc = concat!("As for [`inspect`](", stringify!($type), "::inspect).")]
            pub fn is_locked(&self) -> $crate::Result<bool> {
                self.inspect().map(|info| info.held)
            }

            /// Who holds it, since when, for how long still, and how many wait.
            ///
            /// # Errors
            ///
            /// [`InvalidName`](crate::ErrorKind::InvalidName); [`Unavailable`](crate::ErrorKind::Unavailable) and the like
            /// when the server can't be asked.
            pub fn inspect(&self) -> $crate::Result<$crate::LockInfo> {
                $crate::observe::inspect::inspect(
                    self.handle.core(),
                    &self.handle.keys()?,
                    self.handle.permits(),
                )
            }

            /// Takes the lock away from whoever holds it, in whichever process; `true` if anybody did.
            ///
            /// A holder learns of it at its next renewal, up to a third of its ttl later: until then two may work at once. For
            /// an operator who knows that the holder is gone. The next holder's predecessor is `Abandoned`, if whoever had it
            /// had it alone.
            ///
            /// # Errors
            ///
            /// [`KeyConflict`](crate::ErrorKind::KeyConflict) if the key is no lock but somebody's data: it is left as it is;
            #[doc = concat!("others as for [`inspect`](", stringify!($type), "::inspect).")]
            pub fn force_unlock(&self) -> $crate::Result<bool> {
                $crate::observe::inspect::force_unlock(self.handle.core(), &self.handle.keys()?)
            }
        }
    };
}
pub(crate) use handle;

/// The five forms of an acquire, over a private method of the type that takes a `Wait`.
macro_rules! acquire_forms {
    (
        $type:ident -> $guard:ident, $inner:ident, $what:literal, $busy:literal:
        $plain:ident, $try:ident, $try_for:ident, $try_until:ident, $with:ident $(, $n:ident)?
    ) => {
        impl $type {
            #[doc = concat!("Acquires ", $what, ", waiting as long as it takes.")]
            ///
            /// While the server can't be reached the wait goes on for min(max(ttl, 5 s), 60 s), then it ends with an error.
            ///
            /// # Errors
            ///
            /// [`Deadlock`](crate::ErrorKind::Deadlock) when this thread would wait for itself, or threads of this process
            /// wait in a circle (never for permits, which belong to no thread); [`Unavailable`](crate::ErrorKind::Unavailable),
            /// [`AccessDenied`](crate::ErrorKind::AccessDenied), [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
            /// [`KeyConflict`](crate::ErrorKind::KeyConflict), [`InvalidName`](crate::ErrorKind::InvalidName),
            /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions), [`Unsupported`](crate::ErrorKind::Unsupported) and
            /// [`Script`](crate::ErrorKind::Script) as their docs say; [`Cancelled`](crate::ErrorKind::Cancelled) and
            /// [`TimedOut`](crate::ErrorKind::TimedOut) only where the client has a canceller or a `max_wait`. After an error
            /// nothing is held.
            pub fn $plain(&self $(, $n: u32)?) -> $crate::Result<$guard> {
                self.$inner($($n,)? $crate::Wait::forever())
            }

            #[doc = concat!("Acquires ", $what, " if ", $busy, ": one look.")]
            ///
            /// # Errors
            ///
            /// [`WouldBlock`](crate::ErrorKind::WouldBlock) when it would have to wait, be it for a hold of its own; others as
            #[doc = concat!("for [`", stringify!($plain), "`](", stringify!($type), "::", stringify!($plain), ").")]
            /// [`busy_as_none`](crate::BusyAsNone::busy_as_none) makes `Ok(None)` of a busy lock.
            pub fn $try(&self $(, $n: u32)?) -> $crate::Result<$guard> {
                self.$inner($($n,)? $crate::Wait::new($crate::wait::Until::Now))
            }

            #[doc = concat!("Acquires ", $what, ", waiting for at most `timeout`, which is kept whatever the server does (to 10 % + 20 ms).")]
            ///
            /// # Errors
            ///
            /// [`TimedOut`](crate::ErrorKind::TimedOut), or the kind of the error that stood last when the time was up; others
            #[doc = concat!("as for [`", stringify!($plain), "`](", stringify!($type), "::", stringify!($plain), ").")]
            /// Never an `Ok` without the lock.
            pub fn $try_for(&self $(, $n: u32)?, timeout: ::std::time::Duration) -> $crate::Result<$guard> {
                self.$inner($($n,)? $crate::Wait::for_duration(timeout))
            }

            #[doc = concat!("Acquires ", $what, ", waiting until `deadline` at the latest.")]
            ///
            /// # Errors
            ///
            #[doc = concat!("As for [`", stringify!($try_for), "`](", stringify!($type), "::", stringify!($try_for), ").")]
            pub fn $try_until(&self $(, $n: u32)?, deadline: ::std::time::Instant) -> $crate::Result<$guard> {
                self.$inner($($n,)? $crate::Wait::until(deadline))
            }

            #[doc = concat!("Acquires ", $what, ", waiting as `wait` says: a duration, an instant, or a [`Wait`](crate::Wait) that a")]
            /// [`Canceller`](crate::Canceller) may end.
            ///
            /// # Errors
            ///
            /// [`Cancelled`](crate::ErrorKind::Cancelled) when the canceller ended the wait; others as for
            #[doc = concat!("[`", stringify!($try_for), "`](", stringify!($type), "::", stringify!($try_for), ").")]
            pub fn $with(&self $(, $n: u32)?, wait: impl Into<$crate::Wait>) -> $crate::Result<$guard> {
                self.$inner($($n,)? wait.into())
            }
        }
    };
}
pub(crate) use acquire_forms;

/// Runs a section under the lock.
macro_rules! with_section {
    ($type:ident) => {
        impl $type {
            /// Runs `f` under the lock: waits for it, gives `f` its lease, releases it.
            ///
            /// If `f` panics the lock is released, and the next holder learns of it.
            ///
            /// # Errors
            ///
            #[doc = concat!("As for [`lock`](", stringify!($type), "::lock), then `f` did not run; and")]
            /// [`Lost`](crate::ErrorKind::Lost) when the lock did not last to the end of `f`: then its result is dropped,
            /// because somebody else may have worked at the same time. A release that the server did not answer is no error
            /// here: the lock lasted.
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
            pub fn with<R>(&self, f: impl FnOnce(&$crate::Lease) -> R) -> $crate::Result<R> {
                let guard = self.lock()?;
                let lease = guard.lease();
                let result = f(&lease);
                $crate::handle::section_result(result, &lease, guard.unlock())
            }
        }
    };
}
pub(crate) use with_section;

/// What all guards have: they deref to their lease.
macro_rules! guard {
    ($type:ident) => {
        impl $type {
            /// The lease, for threads that outlive the guard's scope. It does not keep the lock.
            pub fn lease(&self) -> $crate::Lease {
                $crate::Lease::clone(self)
            }
        }

        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_tuple(stringify!($type)).field(&**self).finish()
            }
        }

        impl ::std::ops::Deref for $type {
            type Target = $crate::Lease;

            fn deref(&self) -> &$crate::Lease {
                &self.inner
            }
        }
    };
}
pub(crate) use guard;
