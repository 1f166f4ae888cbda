//! Who reads a client's subscription.
//!
//! A thread that waits and reads it for itself has its message 35 µs sooner than from the listener, which must wake it: on a lock
//! that goes round quickly that is a third of the way from one holder to the next. But a read can't be broken off from outside. So
//! the listener, when it has passed a message on and nobody else waits for one, leaves the subscription alone for a moment;
//! whoever begins to wait meanwhile reads for himself, and for all, for a few milliseconds. When that brings nothing the listener
//! goes on.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Error;
use crate::redis_io::connection::ManagedConnection;
use crate::redis_io::inbox::{Inbox, Mailbox, Shared, Wake};

/// For so long one who waits reads for himself.
const LEAD: Duration = Duration::from_millis(5);
/// For so long the listener leaves the subscription to those who will wait.
const REST: Duration = Duration::from_millis(3);

/// The subscription, if it stands. Whoever has the lock reads it.
#[derive(Default)]
pub(super) struct Seat(Mutex<Option<ManagedConnection>>);

impl Seat {
    pub(super) fn place(&self, connection: ManagedConnection) {
        *self.0.lock() = Some(connection);
    }

    pub(super) fn clear(&self) {
        self.0.lock().take();
    }

    /// The next message, if there is one within `patience`.
    pub(super) fn read(&self, patience: Duration) -> Result<Option<String>, Error> {
        read(&mut self.0.lock(), patience)
    }

    /// Asks for a sign of life.
    pub(super) fn ping(&self, io: Duration) -> Result<(), Error> {
        let mut seat = self.0.lock();
        let Some(connection) = seat.as_mut() else {
            return Err(is_gone());
        };
        connection.set_timeout(io)?;
        let answered = connection.exchange(|c| {
            // Dropped, it would end the subscription.
            ManuallyDrop::new(c.as_pubsub()).ping::<redis::Value>()
        });
        let answered = answered.map(drop);
        answered.map_err(|e| connection.answered(e).error)
    }
}

fn read(seat: &mut Option<ManagedConnection>, patience: Duration) -> Result<Option<String>, Error> {
    let Some(connection) = seat.as_mut() else {
        return Err(is_gone());
    };
    let message = connection.message(patience);
    message.map_err(|e| connection.answered(e).error)
}

/// One who read for himself has found it broken.
fn is_gone() -> Error {
    let e = std::io::Error::from(std::io::ErrorKind::NotConnected);
    Error::new(
        crate::error::ErrorKind::Unavailable,
        "the subscription was lost",
    )
    .because(e)
}

impl Inbox {
    /// One who waits reads for himself, if the listener leaves it to him: until he has heard something, or for a few
    /// milliseconds, in which nothing else wakes him.
    pub(crate) fn read_for(&self, mailbox: &Mailbox, until: Instant) -> Option<Wake> {
        let shared = &mailbox.shared;
        let began = Instant::now();
        {
            let mut table = shared.table.lock();
            if !table.up || table.read_now || table.rest_until.is_none_or(|t| t <= began) {
                return None;
            }
            if began + 2 * LEAD > until {
                shared.read_now(&mut table);
                return None;
            }
            table.rest_until = Some(began + LEAD + REST);
        }
        let mut seat = shared.seat.0.try_lock()?;
        // The listener may have been here first.
        let mut found = mailbox.wakes.try_recv().ok();
        while found.is_none() && began.elapsed() < LEAD {
            match read(&mut seat, LEAD) {
                Ok(Some(message)) => shared.wake(&message),
                Ok(None) => {}
                Err(_) => {
                    // The listener finds it gone, and subscribes anew.
                    seat.take();
                    break;
                }
            }
            found = mailbox.wakes.try_recv().ok();
        }
        let is_lost = seat.is_none();
        drop(seat);
        if found.is_none() || is_lost {
            shared.read_now(&mut shared.table.lock());
        } else {
            shared.leave_the_seat();
        }
        found
    }
}

impl Shared {
    /// Whoever has read, and passed a message on, leaves the subscription to those who will wait, unless others wait for it to
    /// be read.
    pub(super) fn leave_the_seat(&self) {
        let mut table = self.table.lock();
        if table.waiting.values().any(|tx| tx.is_empty()) {
            self.read_now(&mut table);
        } else {
            table.rest_until = Some(Instant::now() + REST);
        }
    }

    fn read_now(&self, table: &mut crate::redis_io::inbox::Table) {
        table.rest_until = None;
        table.read_now = true;
        self.changed.notify_all();
    }

    /// The listener waits until it is to read.
    pub(super) fn rest(&self) {
        let mut table = self.table.lock();
        while !table.stop && !table.read_now {
            match table.rest_until {
                Some(until) if Instant::now() < until => {
                    self.changed.wait_until(&mut table, until);
                }
                _ => break,
            }
        }
        table.read_now = false;
        table.rest_until = None;
    }
}
