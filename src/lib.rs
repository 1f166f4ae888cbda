//! Locks in the manner of `std::sync` that hold between processes, over Redis or Valkey. Blocking: no async runtime.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod error;
mod fencing;
mod hold;
mod lease;
mod mutex;
mod name;
mod observe;
mod options;
mod redis_io;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
mod wait;

pub mod guide;

pub use client::{Client, ClientBuilder};
pub use error::{BusyAsNone, Error, ErrorKind, Lost, NodeError, Result};
pub use fencing::FencingToken;
pub use lease::{Lease, Predecessor};
pub use mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use observe::inspect::LockInfo;
pub use observe::metrics::{Metrics, Quantiles};
pub use redis_io::connection::{ManagedConnection, Manager};
pub use wait::{Canceller, Wait};

pub use crossbeam_channel;

/// README's code blocks are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
