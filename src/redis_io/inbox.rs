//! The one channel on which a client hears that a lock it waits for may be free.
//!
//! Subscribed before anybody registers as a waiter, so that no wake can fall between; one thread listens for all waits of
//! the client, and ends when nobody has waited for a while. A lost, late or doubled message costs time, never truth: every
//! waiter polls as well.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::redis_io::STACK;
use crate::redis_io::connection::{Limits, Target};
use crate::redis_io::listener::listen;
use crate::redis_io::seat::Seat;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

/// After so long without a waiter the listener goes, and its connection with it.
const IDLE: Duration = Duration::from_secs(20);
/// After a refusal nobody asks for so long: rights may be given meanwhile.
const DENIED: Duration = Duration::from_secs(60);

/// Told a word.
type Heed = Box<dyn Fn(&str) + Send + Sync>;

/// What a waiter hears.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// It may be free: time to look.
    Look,
    /// It has been granted: what an acquire would have been answered.
    Given(Box<str>),
}

pub(crate) struct Inbox {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    id: Arc<str>,
    pub(super) target: Arc<Target>,
    pub(super) limits: Limits,
    /// A wake for it came that nobody here waits for any more.
    on_stray: Heed,
    /// Others wait for it.
    on_others: Heed,
    /// What is said from now on is not heard.
    on_deaf: Box<dyn Fn() + Send + Sync>,
    tickets: AtomicU32,
    pub(super) table: Mutex<Table>,
    /// Told when the listener has to stop, or to read.
    pub(super) changed: Condvar,
    pub(super) seat: Seat,
}

#[derive(Default)]
pub(super) struct Table {
    /// A listener thread exists.
    running: bool,
    /// It is subscribed.
    pub(super) up: bool,
    /// When the server refused the channel to this user: asking again is no use for a while.
    pub(super) denied: Option<Instant>,
    pub(super) stop: bool,
    /// Until then the listener leaves the reading to those who wait, unless it is told not to.
    pub(super) rest_until: Option<Instant>,
    pub(super) read_now: bool,
    /// By the number of the wait, which is the end of its ticket.
    pub(super) waiting: HashMap<u32, Sender<Wake>>,
    last_waiter: Option<Instant>,
}

/// What one wait registers under: the inbox, and a number of its own, so that an earlier wait that leaves late takes nobody
/// else off the list, and a wake reaches no one but him whom it is for.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    number: u32,
    pub(crate) text: String,
}

/// Where one wait gets its wakes. Dropped: no longer waiting.
pub(crate) struct Mailbox {
    pub(super) shared: Arc<Shared>,
    number: u32,
    pub(crate) wakes: Receiver<Wake>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.shared.id).finish()
    }
}

impl Inbox {
    pub(crate) fn new(
        id: Arc<str>,
        target: Arc<Target>,
        limits: Limits,
        on_stray: Heed,
        on_others: Heed,
        on_deaf: Box<dyn Fn() + Send + Sync>,
    ) -> Inbox {
        Inbox {
            shared: Arc::new(Shared {
                id,
                target,
                limits,
                on_stray,
                on_others,
                on_deaf,
                tickets: AtomicU32::new(0),
                table: Mutex::default(),
                changed: Condvar::new(),
                seat: Seat::default(),
            }),
        }
    }

    /// What others call it.
    pub(crate) fn id(&self) -> &str {
        &self.shared.id
    }

    /// A ticket for one more wait.
    pub(crate) fn ticket(&self) -> Ticket {
        let number = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        let text = format!("{}{number:08x}", self.shared.id);
        Ticket { number, text }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.shared.table.lock().up
    }

    /// How many waits there are.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> usize {
        self.shared.table.lock().waiting.len()
    }

    /// Takes a place for the wakes of one wait, which also keeps the listener from going.
    pub(crate) fn mailbox(&self, ticket: &Ticket) -> Mailbox {
        // Room for a grant beside a wake that was not heeded yet.
        let (tx, wakes) = bounded(2);
        self.shared.table.lock().waiting.insert(ticket.number, tx);
        Mailbox {
            shared: self.shared.clone(),
            number: ticket.number,
            wakes,
        }
    }

    /// Sees that the listener runs. Whether it is subscribed; if not, all who have a mailbox get a wake when it is.
    pub(crate) fn open(&self) -> bool {
        let mut table = self.shared.table.lock();
        table.last_waiter = Some(Instant::now());
        let denied = table.denied.is_some_and(|at| at.elapsed() < DENIED);
        if !table.running && !denied && !table.stop {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new()
                .name("leasehold-inbox".into())
                .stack_size(STACK)
                .spawn(move || {
                    let gone = Gone(&shared);
                    listen(&shared);
                    drop(gone);
                });
            match thread {
                Ok(_) => table.running = true,
                Err(e) => {
                    log::warn!(target: "leasehold::inbox", "no listener thread, waiters poll: {e}");
                }
            }
        }
        table.up
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // The thread sees it within a slice. Not joined: that would make dropping a client wait for it.
        self.shared.table.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.waiting.remove(&self.number);
        table.last_waiter = Some(Instant::now());
    }
}

/// Notes that the listener is gone, also when the user's logger has panicked in it: the next wait starts another. Holds that
/// count on it to hear of others learn that they can't.
struct Gone<'a>(&'a Shared);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut table = self.0.table.lock();
            table.running = false;
            table.up = false;
        }
        (self.0.on_deaf)();
    }
}

impl Shared {
    pub(super) fn channel(&self) -> String {
        format!("leasehold:inbox:{}", self.id)
    }

    pub(super) fn wake(&self, message: &str) {
        let Some((number, what, word)) = read_message(message) else {
            return;
        };
        let Some(wake) = what else {
            return (self.on_others)(word);
        };
        let table = self.table.lock();
        match table.waiting.get(&number) {
            Some(tx) => {
                // Full: it is awake already.
                let _ = tx.try_send(wake);
            }
            None => {
                drop(table);
                // What was granted to one who has gone, he undoes himself.
                if let Wake::Look = wake {
                    (self.on_stray)(word);
                }
            }
        }
    }

    /// Wakes may have been lost: everybody looks for himself.
    pub(super) fn wake_all(&self) {
        let table = self.table.lock();
        for tx in table.waiting.values() {
            let _ = tx.try_send(Wake::Look);
        }
    }

    /// Whether the listener has nothing left to do; if so it is marked as gone, before anybody can count on it again.
    pub(super) fn may_go(&self) -> bool {
        let mut table = self.table.lock();
        let idle =
            table.waiting.is_empty() && table.last_waiter.is_none_or(|t| t.elapsed() >= IDLE);
        let denied = table.denied.is_some_and(|at| at.elapsed() < DENIED);
        if table.stop || denied || idle {
            table.running = false;
            table.up = false;
            return true;
        }
        false
    }

    pub(super) fn set_up(&self, up: bool) {
        self.table.lock().up = up;
        // After that, so that whoever asks the server meanwhile sees one of the two.
        if !up {
            (self.on_deaf)();
        }
    }
}

/// The number of the wait that a message is for, what it hears, or nothing if it is for whoever holds the word, and the word:
/// `nnnnnnnn=word`, `nnnnnnnn+LLLL<reply>word`, `nnnnnnnn!word`.
fn read_message(message: &str) -> Option<(u32, Option<Wake>, &str)> {
    let (number, rest) = message.split_at_checked(8)?;
    let number = u32::from_str_radix(number, 16).ok()?;
    let (sign, rest) = rest.split_at_checked(1)?;
    match sign {
        "=" => Some((number, Some(Wake::Look), rest)),
        "!" => Some((number, None, rest)),
        "+" => {
            let (length, rest) = rest.split_at_checked(4)?;
            let (reply, word) = rest.split_at_checked(length.parse().ok()?)?;
            Some((number, Some(Wake::Given(reply.into())), word))
        }
        _ => None,
    }
}
