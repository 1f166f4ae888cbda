//! How long to wait for a lock, and how to end a wait from outside.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, Sender, bounded};
use parking_lot::Mutex;

/// How long an acquire may wait, and what may end it early.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// use leasehold::{Canceller, Wait};
/// use std::time::Duration;
///
/// let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let stop = Canceller::new();
/// let wait = Wait::for_duration(Duration::from_secs(3)).cancelled_by(&stop);
/// let guard = client.mutex("order:12345").lock_with(wait)?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Wait {
    pub(crate) until: Until,
    pub(crate) canceller: Option<Canceller>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// One look, no waiting.
    Now,
    Forever,
    For(Duration),
    At(Instant),
}

impl Wait {
    /// Waits as long as it takes (or as long as the client's `max_wait` allows).
    pub fn forever() -> Wait {
        Wait::new(Until::Forever)
    }

    /// Waits for at most `d`, counted from the call that acquires.
    pub fn for_duration(d: Duration) -> Wait {
        Wait::new(Until::For(d))
    }

    /// Waits until `i` at the latest.
    pub fn until(i: Instant) -> Wait {
        Wait::new(Until::At(i))
    }

    pub(crate) fn new(until: Until) -> Wait {
        Wait {
            until,
            canceller: None,
        }
    }

    /// Lets `canceller` end the wait: the acquire then returns [`Cancelled`](crate::ErrorKind::Cancelled).
    pub fn cancelled_by(mut self, canceller: &Canceller) -> Self {
        self.canceller = Some(canceller.clone());
        self
    }

    /// When the wait ends; `None`: never. A duration too long for the clock is "never", too.
    pub(crate) fn deadline(&self, now: Instant, max_wait: Option<Duration>) -> Option<Instant> {
        let own = match self.until {
            Until::Now => Some(now),
            Until::Forever => None,
            Until::For(d) => now.checked_add(d),
            Until::At(i) => Some(i),
        };
        let cap = max_wait.and_then(|d| now.checked_add(d));
        match (own, cap) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl From<Duration> for Wait {
    fn from(d: Duration) -> Self {
        Wait::for_duration(d)
    }
}

impl From<Instant> for Wait {
    fn from(i: Instant) -> Self {
        Wait::until(i)
    }
}

/// Ends waits from another thread: a shutdown, or the thread that handles signals.
///
/// Clones are one canceller. Once cancelled it stays so: every wait that it was given to, now or later, ends with
/// [`Cancelled`](crate::ErrorKind::Cancelled). Locks that are held are not touched. A wait sleeps nearly all of its time and
/// ends at once then; an exchange with the server that is under way is not broken off, so with a server that does not answer
/// it may take the client's `connect_timeout` and `io_timeout` more.
///
/// # Examples
///
/// ```
/// use leasehold::Canceller;
/// let stop = Canceller::new();
/// let seen_elsewhere = stop.clone();
/// stop.cancel();
/// assert!(seen_elsewhere.is_cancelled());
/// ```
#[derive(Clone)]
pub struct Canceller(Arc<CancelState>);

struct CancelState {
    /// Dropped by `cancel`, which disconnects `over` for everybody at once.
    alive: Mutex<Option<Sender<Infallible>>>,
    over: Receiver<Infallible>,
}

impl Canceller {
    /// A canceller that nobody has cancelled yet.
    pub fn new() -> Canceller {
        let (alive, over) = bounded(0);
        Canceller(Arc::new(CancelState {
            alive: Mutex::new(Some(alive)),
            over,
        }))
    }

    /// Ends all waits that this canceller was given to. Doing it again does nothing.
    ///
    /// Takes a lock for a moment, so it is for a thread, not for the body of a signal handler.
    pub fn cancel(&self) {
        self.0.alive.lock().take();
    }

    /// Whether [`cancel`](Canceller::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.alive.lock().is_none()
    }

    pub(crate) fn over(&self) -> &Receiver<Infallible> {
        &self.0.over
    }
}

impl Default for Canceller {
    fn default() -> Canceller {
        Canceller::new()
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller")
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

/// Both cancellers that may end one wait: the client's and the call's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancellers(pub(crate) [Option<Canceller>; 2]);

/// What ended a sleep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken<T> {
    Message(T),
    /// The sender is gone.
    Disconnected,
    Cancelled,
    Timeout,
}

impl Cancellers {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.iter().flatten().any(Canceller::is_cancelled)
    }

    /// Waits for a message until `until` (`None`: for ever), a cancel ending it at once.
    pub(crate) fn recv<T>(&self, messages: &Receiver<T>, until: Option<Instant>) -> Woken<T> {
        let mut select = Select::new();
        let message = select.recv(messages);
        for canceller in self.0.iter().flatten() {
            select.recv(canceller.over());
        }
        let ready = match until {
            Some(until) => select.select_deadline(until).ok(),
            None => Some(select.select()),
        };
        match ready {
            None => Woken::Timeout,
            Some(op) if op.index() == message => match op.recv(messages) {
                Ok(message) => Woken::Message(message),
                Err(_) => Woken::Disconnected,
            },
            Some(op) => {
                let index = op.index() - 1;
                // The channel carries nothing, so its only event is that it was cut: cancelled.
                let canceller = self.0.iter().flatten().nth(index);
                let _ = canceller.map(|c| op.recv(c.over()));
                Woken::Cancelled
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_ends_a_sleep_whichever_canceller_it_was() {
        let (_tx, rx) = bounded::<()>(1);
        for which in 0..2 {
            let both = Cancellers([Some(Canceller::new()), Some(Canceller::new())]);
            let c = both.0[which].clone().unwrap();
            std::thread::scope(|s| {
                s.spawn(move || c.cancel());
                assert_eq!(both.recv(&rx, None), Woken::Cancelled);
            });
        }
    }

    #[test]
    fn a_wait_too_long_for_the_clock_is_for_ever() {
        let wait = Wait::for_duration(Duration::MAX);
        assert!(wait.deadline(Instant::now(), None).is_none());
        let capped = wait.deadline(Instant::now(), Some(Duration::from_secs(1)));
        assert!(capped.is_some());
    }
}
