//! Locks in the manner of `std::sync` that hold between processes, over Redis or Valkey. Blocking: no async runtime.
//!
//! ```no_run
//! # fn main() -> leasehold::Result<()> {
//! let client = leasehold::Client::open("redis://127.0.0.1:6379/")?; // parses; no I/O
//! let mutex = client.mutex("order:12345"); // a handle; no I/O either
//! {
//!     let guard = mutex.lock()?; // waits; renewed by a watchdog from here on
//!     println!("mine, with fencing token {}", guard.fencing_token());
//! } // joins the watchdog, then releases
//! # Ok(()) }
//! ```
//!
//! # What it can't do
//!
//! A lock over Redis is a lease: it can end while its holder works, by a pause, a failover, a restart without data, a clock
//! that is set forward. [`Lease::check`] says so as soon as it can be known here, but between a check and a write there is
//! always a gap. So **fence what you write**: give [`Lease::fencing_token`] to the resource and let it refuse lower ones.
//! [The guide's first page](guide::limits) has the whole list.
//!
//! # Where to look
//!
//! - [`Client`]: one per process. [`Mutex`]: the lock. [`MutexGuard`]: a hold, released on drop. [`Lease`]: what worker
//!   threads get of it.
//! - The rest of the family: [`ReentrantMutex`], [`FairMutex`], [`RwLock`], [`Semaphore`], [`MultiMutex`].
//! - [`Error`] and [`ErrorKind`]; [`BusyAsNone`] for "somebody else has it" as `None`. [`Lost`]: why a hold is over.
//! - [`Wait`] and [`Canceller`]: how long to wait, and how to stop waiting.
//! - [`FencingToken`], [`Predecessor`]: how this hold stands to those before it.
//! - [`guide`]: limits, errors, patterns and pitfalls, and why the protocol is as it is.
//!
//! # Features
//!
//! None is on by default. `testing`: a real server for tests, and ways to lose a lock on purpose.
//!
//! # Platforms
//!
//! Linux and macOS. Elsewhere deadlines follow the ordinary monotonic clock, which may stop while the machine sleeps.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod clock;
mod error;
mod fair_mutex;
mod fencing;
mod handle;
mod hold;
mod lease;
mod multi_mutex;
mod mutex;
mod name;
mod observe;
mod options;
mod redis_io;
mod reentrant_mutex;
mod rw_lock;
mod semaphore;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
mod wait;

pub mod guide;

pub use client::{Client, ClientBuilder};
pub use error::{BusyAsNone, Error, ErrorKind, Lost, NodeError, Result};
pub use fair_mutex::{FairMutex, FairMutexGuard};
pub use fencing::FencingToken;
pub use lease::{Lease, Predecessor};
pub use multi_mutex::{MultiMutex, MultiMutexGuard};
pub use mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use observe::inspect::LockInfo;
pub use observe::metrics::{Metrics, Quantiles};
pub use redis_io::connection::{ManagedConnection, Manager};
pub use reentrant_mutex::{ReentrantMutex, ReentrantMutexGuard};
pub use rw_lock::{Rejected, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};
pub use semaphore::{Semaphore, SemaphorePermit};
pub use wait::{Canceller, Wait};

pub use crossbeam_channel;

/// README's code blocks are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
