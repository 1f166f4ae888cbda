//! [`Client`] and its builder: where the server is, and what holds are like unless said otherwise.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::fair_mutex::FairMutex;
use crate::hold::core::{Core, CoreSettings};
use crate::multi_mutex::MultiMutex;
use crate::mutex::Mutex;
use crate::observe::metrics::Metrics;
use crate::options::{DEFAULT_HAND_OVER, DEFAULT_TTL, in_limits, invalid};
use crate::redis_io::connection::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_IO_TIMEOUT, Limits, Manager};
use crate::redis_io::node::Node;
use crate::reentrant_mutex::ReentrantMutex;
use crate::rw_lock::RwLock;
use crate::semaphore::Semaphore;
use crate::wait::Canceller;

/// Pooled connections where nothing else is said.
const DEFAULT_POOL_SIZE: u32 = 8;

/// The way to the locks of one server.
///
/// Cheap to clone; clones share everything. One per process is enough, and best: threads that want the same lock then meet in
/// the process, and one of them asks the server for all. It keeps at most `pool_size` + 3 connections, however many threads
/// wait, and ends its threads and connections when it, its handles and its guards are gone. (If a release could not be sent,
/// one thread goes on trying until the lease has run out, for at most ten minutes.)
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
/// let guard = client.mutex("nightly-report").lock()?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl Client {
    /// A client with all defaults. Only parses `url`; the first acquire connects.
    ///
    /// `redis://[user:password@]host[:port][/db]` or `redis+unix:///path/to/socket[?db=0&user=…&pass=…]`.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) when `url` is no Redis URL,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) when it asks for TLS.
    pub fn open(url: &str) -> Result<Client> {
        Client::builder().url(url).build()
    }

    /// Starts a client with other than default settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A handle of the [`Mutex`] `name`. No I/O, can't fail.
    pub fn mutex(&self, name: impl Into<String>) -> Mutex {
        Mutex::new(self, name)
    }

    /// A handle of the [`ReentrantMutex`] `name`. No I/O, can't fail.
    pub fn reentrant_mutex(&self, name: impl Into<String>) -> ReentrantMutex {
        ReentrantMutex::new(self, name)
    }

    /// A handle of the [`FairMutex`] `name`. No I/O, can't fail.
    pub fn fair_mutex(&self, name: impl Into<String>) -> FairMutex {
        FairMutex::new(self, name)
    }

    /// A handle of the [`RwLock`] `name`. No I/O, can't fail.
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(self, name)
    }

    /// A handle of the [`Semaphore`] `name` with `permits` in all. No I/O, can't fail.
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(self, name, permits)
    }

    /// A handle of all the locks `names` at once. No I/O, can't fail.
    pub fn multi_mutex<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> MultiMutex {
        MultiMutex::new(self, names)
    }

    /// Counters and histograms of what this client's locks did.
    pub fn metrics(&self) -> Metrics {
        self.core.metrics.snapshot()
    }

    /// Asks the server for a sign of life; how long the answer took, connecting not counted.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable), [`AccessDenied`](crate::ErrorKind::AccessDenied).
    pub fn ping(&self) -> Result<Duration> {
        self.core.check_process()?;
        self.core.node.ping()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.core.is_forked() {
            // Threads and connections are the parent's: never the last one here.
            std::mem::forget(self.core.clone());
        }
    }
}

/// Settings of a [`Client`]. Exactly one of [`url`](ClientBuilder::url) and [`pool`](ClientBuilder::pool) must be given.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// let client = leasehold::Client::builder()
///     .url("redis://127.0.0.1:6379/")
///     .namespace("billing")
///     .ttl(Duration::from_secs(10))
///     .holder_label("settle")
///     .build()?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct ClientBuilder {
    url: Option<String>,
    pool: Option<r2d2::Pool<Manager>>,
    namespace: String,
    holder_label: Option<String>,
    ttl: Option<Duration>,
    max_wait: Option<Duration>,
    local_hand_over: Option<Duration>,
    pool_size: Option<u32>,
    io_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    canceller: Option<Canceller>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("ClientBuilder")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Where the server is: see [`Client::open`].
    pub fn url(mut self, url: &str) -> Self {
        self.url = Some(url.to_owned());
        self
    }

    /// A pool of the user's own, of leasehold's [`Manager`]. `pool_size` does not apply then. The connections for renewals and
    /// for wakes are made beside it, to the same server.
    pub fn pool(mut self, pool: r2d2::Pool<Manager>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Put before every lock's name in the key, so that teams can share a server. Up to 256 bytes; default: none. `:`, `%` and
    /// braces in it are escaped.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// What holders of this client are called for others, before `@host/pid/thread`. Up to 128 bytes; default: none.
    pub fn holder_label(mut self, label: &str) -> Self {
        self.holder_label = Some(label.to_owned());
        self
    }

    /// How long a lock outlives its holder's death: see [`Mutex::with_ttl`]. 50 ms to 365 days; default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Bounds every wait of this client, also those of `lock()`, which then end with
    /// [`TimedOut`](crate::ErrorKind::TimedOut). Default: no bound.
    pub fn max_wait(mut self, max: Duration) -> Self {
        self.max_wait = Some(max);
        self
    }

    /// Lets the threads of this process that want the same [`Mutex`] (or [`ReentrantMutex`]) hand it on among themselves, without a
    /// word to the server, for as long as no other process has waited for it for longer than `bound`. Default: 10 ms; 0: never.
    ///
    /// Each of them has a fencing token of its own, and learns whether its predecessor panicked. A hold is handed on only to a
    /// thread that asked for one with the same options, and never one with a fixed lease, [`with_max_hold`](Mutex::with_max_hold)
    /// or [`with_hold_at_least`](Mutex::with_hold_at_least). When a drop returns and no thread of the process waits, the key is
    /// gone from the server. [`FairMutex`] keeps its order over all processes and is never handed on so.
    pub fn local_hand_over(mut self, bound: Duration) -> Self {
        self.local_hand_over = Some(bound);
        self
    }

    /// Connections for acquiring and releasing; a wait holds none. 1 to 1,000; default: 8.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = Some(connections);
        self
    }

    /// Longest that one answer is waited for; commands of a hold have at most a sixth of its ttl. 1 ms to 60 s; default: 2 s.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.io_timeout = Some(timeout);
        self
    }

    /// Longest that a connection is waited for, logging in included. 1 ms to 60 s; default: 1 s. The system's name lookup, and
    /// connecting to a unix socket, have no limit.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Lets `canceller` end every wait of this client: for a shutdown. Default: none.
    pub fn cancelled_by(mut self, canceller: &Canceller) -> Self {
        self.canceller = Some(canceller.clone());
        self
    }

    /// Checks the settings and makes the client. No I/O, unless a given pool does some to hand out a connection.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for a setting out of its limits, or for none or both of `url` and
    /// `pool`; [`Unsupported`](crate::ErrorKind::Unsupported) for a URL that asks for TLS;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when all connections of a given pool are in use, or none passes the
    /// pool's own test (`test_on_check_out`).
    pub fn build(self) -> Result<Client> {
        let ttl = self.ttl.unwrap_or(DEFAULT_TTL);
        in_limits("ttl", ttl)?;
        let io = self.io_timeout.unwrap_or(DEFAULT_IO_TIMEOUT);
        timeout_in_limits("io_timeout", io)?;
        let connect = self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        timeout_in_limits("connect_timeout", connect)?;
        no_longer_than("namespace", &self.namespace, 256)?;
        no_longer_than(
            "holder_label",
            self.holder_label.as_deref().unwrap_or(""),
            128,
        )?;
        let size = self.pool_size.unwrap_or(DEFAULT_POOL_SIZE);
        if !(1..=1000).contains(&size) {
            return Err(invalid(format!(
                "pool_size is {size}; it must be between 1 and 1,000"
            )));
        }
        let limits = Limits::new(connect, io);
        let node = match (self.url, self.pool) {
            (Some(url), None) => Node::new(Manager::open(&url)?, size, limits)?,
            (None, Some(pool)) => Node::with_pool(pool, limits)?,
            (None, None) => return Err(invalid("neither url nor pool was given")),
            (Some(_), Some(_)) => return Err(invalid("both url and pool were given")),
        };
        let settings = CoreSettings {
            namespace: self.namespace,
            ttl,
            max_wait: self.max_wait,
            canceller: self.canceller,
            holder_label: self.holder_label,
            local_hand_over: self.local_hand_over.unwrap_or(DEFAULT_HAND_OVER),
        };
        Ok(Client {
            core: Arc::new(Core::new(node, settings)),
        })
    }
}

fn timeout_in_limits(what: &str, d: Duration) -> Result<()> {
    if d < Duration::from_millis(1) || d > Duration::from_secs(60) {
        return Err(invalid(format!(
            "{what} is {d:?}; it must be between 1 ms and 60 s"
        )));
    }
    Ok(())
}

fn no_longer_than(what: &str, s: &str, most: usize) -> Result<()> {
    if s.len() > most || s.chars().any(char::is_control) {
        return Err(invalid(format!(
            "{what} has {} bytes; it must be at most {most}, without control characters",
            s.len()
        )));
    }
    Ok(())
}
