//! What all handles of one client share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::hold::gate::Gates;
use crate::hold::leave::pass_stray_wakes_on;
use crate::hold::renewers::Renewers;
use crate::observe::metrics::Meters;
use crate::redis_io::cleaner::Cleaner;
use crate::redis_io::inbox::Inbox;
use crate::redis_io::node::Node;
use crate::wait::Canceller;

/// The inside of a client. Guards keep it alive, so that they can release after the client is gone.
pub(crate) struct Core {
    /// The process that made it: in a forked child nothing of it may be used.
    pid: u32,
    pub(crate) namespace: String,
    pub(crate) ttl: Duration,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) canceller: Option<Canceller>,
    /// Who holds, as others read it: all but the thread.
    label: String,
    /// Highest fencing token seen, whichever lock's: a lower one is not taken from a server that lost its data.
    highest: AtomicU64,
    pub(crate) metrics: Arc<Meters>,
    pub(crate) node: Arc<Node>,
    pub(crate) gates: Arc<Gates>,
    pub(crate) inbox: Inbox,
    pub(crate) cleaner: Cleaner,
    pub(crate) renewers: Renewers,
}

/// What the builder gives a core.
pub(crate) struct CoreSettings {
    pub(crate) namespace: String,
    pub(crate) ttl: Duration,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) canceller: Option<Canceller>,
    pub(crate) holder_label: Option<String>,
    pub(crate) local_hand_over: Duration,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.node.target.address)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(node: Node, settings: CoreSettings) -> Core {
        let node = Arc::new(node);
        let metrics = Arc::new(Meters::default());
        let cleaner = Cleaner::new(&node);
        let gates = Arc::new(Gates::new(
            node.target.address.clone(),
            settings.local_hand_over,
        ));
        let id: Arc<str> = uuid::Uuid::new_v4().simple().to_string().into();
        let inbox = Inbox::new(
            id,
            node.target.clone(),
            node.limits,
            pass_stray_wakes_on(&cleaner),
            heed_others(&gates),
            heed_deafness(&gates),
        );
        Core {
            pid: std::process::id(),
            label: label(settings.holder_label.as_deref()),
            namespace: settings.namespace,
            ttl: settings.ttl,
            max_wait: settings.max_wait,
            canceller: settings.canceller,
            highest: AtomicU64::new(0),
            gates,
            renewers: Renewers::new(node.clone(), metrics.clone()),
            inbox,
            cleaner,
            metrics,
            node,
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// # Errors
    ///
    /// `Unsupported` in a forked child: its copies of our locks and connections are the parent's.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this client was made before the process was forked",
            )
            .advise("fork before the first client is made, or let the child exec"));
        }
        Ok(())
    }

    /// `label@host/pid/thread`.
    pub(crate) fn holder_label(&self) -> String {
        let thread = std::thread::current();
        match thread.name() {
            Some(name) => format!("{}{}", self.label, one_line(name, 64)),
            None => format!("{}{:?}", self.label, thread.id()),
        }
    }

    /// The lowest fencing token to take: above all that this client has seen.
    pub(crate) fn floor(&self) -> u64 {
        self.highest.load(Ordering::Relaxed) + 1
    }

    pub(crate) fn saw(&self, fencing: u64) {
        self.highest.fetch_max(fencing, Ordering::Relaxed);
    }
}

/// What the inbox does when it hears that other processes wait for a word that is held here.
fn heed_others(gates: &Arc<Gates>) -> Box<dyn Fn(&str) + Send + Sync> {
    let gates = Arc::downgrade(gates);
    Box::new(move |word| {
        if let Some(gates) = gates.upgrade() {
            gates.others_wait(word);
        }
    })
}

/// What it does when it can't hear of them any more: a hold that is handed on counts on that for as long as a block of tokens
/// lasts.
fn heed_deafness(gates: &Arc<Gates>) -> Box<dyn Fn() + Send + Sync> {
    let gates = Arc::downgrade(gates);
    Box::new(move || {
        if let Some(gates) = gates.upgrade() {
            gates.others_may_wait();
        }
    })
}

fn label(own: Option<&str>) -> String {
    let host = host_name();
    let pid = std::process::id();
    match own {
        Some(own) => format!("{}@{}/{pid}/", one_line(own, 128), one_line(&host, 64)),
        None => format!("{}/{pid}/", one_line(&host, 64)),
    }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "host".into())
}

/// Fit for a line of the state: no line breaks or other control characters, and not longer than `most` characters.
fn one_line(s: &str, most: usize) -> String {
    s.chars()
        .take(most)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
