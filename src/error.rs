//! What can go wrong, told so that a reader knows what happened, to which lock, and what to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fencing::FencingToken;

/// `Result` with [`Error`] as its error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a lock failed.
///
/// Opaque on purpose: [`kind`](Error::kind) is what programs branch on, the text is for people. The text names the lock,
/// says what happened and what to do; it never holds a password.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::ErrorKind;
/// let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// match client.mutex("report").try_lock() {
///     Ok(guard) => println!("mine, token {}", guard.fencing_token()),
///     Err(e) if e.kind() == ErrorKind::WouldBlock => println!("another host is at it"),
///     Err(e) => return Err(e),
/// }
/// # Ok(()) }
/// ```
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    name: Option<Arc<str>>,
    what: String,
    advice: &'static str,
    nodes: Vec<NodeError>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    #[cold]
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error(Arc::new(Inner {
            kind,
            name: None,
            what: what.into(),
            advice: kind.advice(),
            nodes: Vec::new(),
            source: None,
        }))
    }

    /// Replaces the kind's general advice by one that fits the case.
    #[cold]
    pub(crate) fn advise(self, advice: &'static str) -> Error {
        self.change(|inner| inner.advice = advice)
    }

    #[cold]
    pub(crate) fn because(self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.change(|inner| inner.source = Some(Box::new(source)))
    }

    #[cold]
    pub(crate) fn on_node(self, node: &str) -> Error {
        let message = self.0.what.clone();
        self.change(|inner| {
            inner.nodes = vec![NodeError {
                node: node.to_owned(),
                message,
            }];
        })
    }

    /// The same error, said of the lock `name`.
    #[cold]
    pub(crate) fn for_lock(self, name: &Arc<str>) -> Error {
        self.change(|inner| inner.name = Some(name.clone()))
    }

    /// A second handle on the same error: one failure may end the waits of several threads.
    #[cold]
    pub(crate) fn share(&self) -> Error {
        Error(self.0.clone())
    }

    fn change(mut self, f: impl FnOnce(&mut Inner)) -> Error {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => f(inner),
            None => {
                // Shared: the copy keeps all but the source, which stays reachable as the shared error itself.
                let mut inner = Inner {
                    kind: self.0.kind,
                    name: self.0.name.clone(),
                    what: self.0.what.clone(),
                    advice: self.0.advice,
                    nodes: self.0.nodes.clone(),
                    source: Some(Box::new(self.share())),
                };
                f(&mut inner);
                return Error(Arc::new(inner));
            }
        }
        self
    }

    /// What went wrong, for programs to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lock's name, where one is concerned.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Per node: what it said. One entry for a standalone server that failed, none where no server was asked.
    pub fn nodes(&self) -> &[NodeError] {
        &self.0.nodes
    }

    /// Whether the same call may succeed later without anybody changing a setting.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::*;
        matches!(
            self.0.kind,
            WouldBlock | TimedOut | LeaseExpired | Unavailable | Quorum | Replication | OutOfMemory
        )
    }

    /// [`WouldBlock`](ErrorKind::WouldBlock) or [`TimedOut`](ErrorKind::TimedOut): somebody else has the lock.
    pub fn is_busy(&self) -> bool {
        matches!(self.0.kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
    }

    /// [`Lost`](ErrorKind::Lost) or [`NotHeld`](ErrorKind::NotHeld): we had the lock and have it no longer, so what was
    /// done under it may have met another holder.
    pub fn is_lost(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Lost | ErrorKind::NotHeld)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.0.name {
            write!(f, "lock {name:?}: ")?;
        }
        f.write_str(&self.0.what)?;
        if !self.0.advice.is_empty() {
            write!(f, "; {}", self.0.advice)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind)
            .field("message", &self.to_string());
        if !self.0.nodes.is_empty() {
            out.field("nodes", &self.0.nodes);
        }
        if let Some(source) = &self.0.source {
            out.field("source", &source.to_string());
        }
        out.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|s| s as _)
    }
}

/// What one node said, in an error that more than one node, or a node by its address, has to do with.
#[derive(Debug, Clone)]
pub struct NodeError {
    /// The node's address, without credentials.
    pub node: String,
    /// What it said or did.
    pub message: String,
}

/// The kinds of [`Error`].
///
/// Kinds that waiting can't cure (`Deadlock`, `AccessDenied`, `KeyConflict`, `Invalid…`, `Unsupported`, `Script`) end a
/// wait at once. A bounded wait that ends while an error stood last has that error's kind, else `TimedOut`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `try_lock` found the lock taken.
    WouldBlock,
    /// The time given for waiting went by.
    TimedOut,
    /// A [`Canceller`](crate::Canceller) ended the wait.
    Cancelled,
    /// This thread holds the lock already, or threads of this process wait for each other in a circle.
    Deadlock,
    /// The hold ended while its guard lived.
    Lost,
    /// We believed the lock ours; the server said, at `unlock` or `verify`, that it is not.
    NotHeld,
    /// The server granted the lock, but the answer came too late to be used.
    LeaseExpired,
    /// The server could not be reached, did not answer in time, or said that it can't serve now.
    Unavailable,
    /// The server refused the credentials, or the user lacks a right.
    AccessDenied,
    /// Too few nodes of a quorum agreed.
    Quorum,
    /// Too few replicas confirmed.
    Replication,
    /// A script failed, or answered in a shape that we don't know.
    Script,
    /// The server is out of memory and grants nothing.
    OutOfMemory,
    /// The key of that name is somebody's data, not a lock: it was left untouched.
    KeyConflict,
    /// The name can't be a lock's name; nothing was sent.
    InvalidName,
    /// An option is out of its limits, or doesn't go with another; nothing was sent.
    InvalidOptions,
    /// Not possible on this server, in this topology, or in this process.
    Unsupported,
}

impl ErrorKind {
    fn advice(self) -> &'static str {
        use ErrorKind::*;
        match self {
            WouldBlock => "try again later, or wait with lock() or try_lock_for()",
            TimedOut => "wait longer, or see with inspect() who holds it",
            Cancelled => "nothing is held",
            Deadlock => {
                "lock in one order everywhere, or drop the first guard before locking again"
            }
            Lost => "stop the work, and check the fencing token where it was written",
            NotHeld => {
                "somebody else may have worked at the same time; check the fencing token where it was written"
            }
            LeaseExpired => "lock again; a longer ttl survives longer pauses",
            Unavailable => "see that the server is up and reachable, then try again",
            AccessDenied => "check the user, the password and the user's rights on the server",
            Quorum => "see what each node said in nodes()",
            Replication => "see that the replicas are connected, or ask for fewer",
            Script => "check the server's version and that nobody else writes these keys",
            OutOfMemory => "free memory on the server or raise maxmemory; releasing still works",
            KeyConflict => "choose another lock name, or remove the foreign key yourself",
            InvalidName => "use 1 to 1024 bytes without ':lh:', and '}' only in a valid hash tag",
            InvalidOptions => "correct the option",
            Unsupported => "",
        }
    }
}

/// Why a hold is over: an error of its own, because worker threads only ever see this one.
///
/// Converts into [`Error`], whose kind is then [`Lost`](ErrorKind::Lost).
#[derive(Debug, Clone)]
pub struct Lost {
    name: Arc<str>,
    token: FencingToken,
    reason: LossReason,
}

/// How a hold ended, or why it does not do for what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossReason {
    /// A renewal or `verify` found another value, or none, under the key.
    TakenAway,
    /// No renewal was confirmed before the local deadline.
    DeadlinePassed,
    /// A fixed lease was held past its end.
    Overrun,
    /// `with_max_hold` ended it.
    MaxHold,
    /// Given back: nothing was lost, but it is held no longer.
    Released,
    /// Upgraded or downgraded: it goes on as another hold.
    Converted,
    /// `testing::lose`.
    #[cfg_attr(not(feature = "testing"), allow(dead_code))]
    OnPurpose,
    /// An upgrade or downgrade of it was sent, and nobody knows whether the server did it.
    Unconverted,
    /// `check_for` wanted more than is left.
    TooLittleLeft { left: Duration, wanted: Duration },
    /// The process was forked: the hold is its parent's.
    Forked,
}

impl Lost {
    pub(crate) fn new(name: Arc<str>, token: FencingToken, reason: LossReason) -> Lost {
        Lost {
            name,
            token,
            reason,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost {
            name,
            token,
            reason,
        } = self;
        write!(f, "lock {name:?} (fencing token {token}) ")?;
        match reason {
            LossReason::TakenAway => {
                f.write_str("is lost: the server says that it is not ours any more")
            }
            LossReason::DeadlinePassed => {
                f.write_str("is lost: no renewal was confirmed before its lease ended")
            }
            LossReason::Overrun => f.write_str("is lost: held past the end of its fixed lease"),
            LossReason::MaxHold => f.write_str("is lost: held as long as with_max_hold allows"),
            LossReason::Released => f.write_str("is no longer held: it was released"),
            LossReason::Converted => f.write_str(
                "is no longer held in this way: it was upgraded or downgraded, take the lease() of the new guard",
            ),
            LossReason::OnPurpose => f.write_str("is lost: a test took it away"),
            LossReason::Unconverted => f.write_str(
                "is lost: it was to be upgraded or downgraded, and the server did not say whether it was",
            ),
            LossReason::TooLittleLeft { left, wanted } => {
                write!(
                    f,
                    "has {left:?} left of its lease, less than the {wanted:?} asked for"
                )
            }
            LossReason::Forked => f.write_str("is held by the parent of this forked process"),
        }
    }
}

impl std::error::Error for Lost {}

impl From<Lost> for Error {
    #[cold]
    fn from(lost: Lost) -> Error {
        let text = lost.to_string();
        let name = lost.name.clone();
        // The text names the lock already; `name()` must, too, but not twice in what people read.
        let what = text
            .split_once(") ")
            .map_or(text.clone(), |(_, rest)| rest.to_owned());
        Error::new(
            ErrorKind::Lost,
            format!("it {what} (fencing token {})", lost.token),
        )
        .because(lost)
        .for_lock(&name)
    }
}

/// [`busy_as_none`](BusyAsNone::busy_as_none): a busy lock as `Ok(None)`.
pub trait BusyAsNone<G> {
    /// [`WouldBlock`](ErrorKind::WouldBlock) and [`TimedOut`](ErrorKind::TimedOut) become `Ok(None)`, a guard `Ok(Some)`.
    ///
    /// # Errors
    ///
    /// Every other error, as it is.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::BusyAsNone;
    /// let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if let Some(guard) = client.mutex("nightly").try_lock().busy_as_none()? {
    ///     println!("this host runs it, token {}", guard.fencing_token());
    /// }
    /// # Ok(()) }
    /// ```
    fn busy_as_none(self) -> Result<Option<G>>;
}

impl<G> BusyAsNone<G> for Result<G> {
    fn busy_as_none(self) -> Result<Option<G>> {
        match self {
            Ok(guard) => Ok(Some(guard)),
            Err(e) if e.is_busy() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_lock_what_happened_and_what_to_do() {
        let e = Error::new(ErrorKind::TimedOut, "still held after 3s").for_lock(&"order:1".into());
        assert_eq!(
            e.to_string(),
            "lock \"order:1\": still held after 3s; wait longer, or see with inspect() who holds it"
        );
        assert_eq!(e.name(), Some("order:1"));
        assert!(e.is_busy() && e.is_retryable() && !e.is_lost());
    }

    #[test]
    fn a_loss_becomes_an_error_that_names_its_lock_once() {
        let lost = Lost::new(
            "stock".into(),
            FencingToken::from(7),
            LossReason::DeadlinePassed,
        );
        let e = Error::from(lost);
        assert_eq!(e.kind(), ErrorKind::Lost);
        assert_eq!(e.to_string().matches("stock").count(), 1, "{e}");
        assert!(std::error::Error::source(&e).is_some());
    }

    #[test]
    fn changing_a_shared_error_leaves_the_other_as_it_is() {
        let a = Error::new(ErrorKind::Unavailable, "gone");
        let b = a.share().for_lock(&"x".into());
        assert_eq!(a.name(), None);
        assert_eq!(b.name(), Some("x"));
        assert_eq!(b.kind(), ErrorKind::Unavailable);
    }
}
