//! The thread that keeps a client's inbox subscribed, and reads it while nobody who waits does: see [`Seat`].
//!
//! [`Seat`]: crate::redis_io::seat::Seat

use std::time::{Duration, Instant};

use redis::RedisResult;

use crate::error::{Error, ErrorKind};
use crate::redis_io::connection::ManagedConnection;
use crate::redis_io::inbox::Shared;

/// How often the listener looks whether it is still wanted; no other thread can end its read.
const SLICE: Duration = Duration::from_millis(100);
/// After so long without a message the listener asks whether the connection still lives.
const SILENCE: Duration = Duration::from_secs(4);
/// Pace of reconnecting, and the slowest.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_secs(1);

/// The listener: subscribes, passes wakes on, reconnects; until nobody waits any more.
pub(super) fn listen(shared: &Shared) {
    let mut pause = FIRST_RETRY;
    loop {
        let mut was_up = false;
        let outcome = subscribe_and_read(shared, &mut was_up);
        shared.seat.clear();
        match outcome {
            Ok(()) => return,
            Err(e) => {
                shared.set_up(false);
                if e.kind() == ErrorKind::AccessDenied {
                    log::warn!(target: "leasehold::inbox", "no wakes for this client, waiters poll: {e}");
                    shared.table.lock().denied = Some(Instant::now());
                } else {
                    log::debug!(target: "leasehold::inbox", "{e}");
                }
                if was_up {
                    pause = FIRST_RETRY;
                }
            }
        }
        let until = Instant::now() + pause;
        let mut table = shared.table.lock();
        while !table.stop && Instant::now() < until {
            shared.changed.wait_until(&mut table, until);
        }
        drop(table);
        if shared.may_go() {
            return;
        }
        pause = (pause * 2).min(SLOWEST_RETRY);
    }
}

/// `Ok` when the listener is no longer wanted.
fn subscribe_and_read(shared: &Shared, was_up: &mut bool) -> Result<(), Error> {
    let mut connection = ManagedConnection::new(shared.target.clone());
    connection.connect(shared.limits.connect)?;
    connection.set_timeout(shared.limits.io)?;
    let subscribed = connection.exchange(|c| subscribe(c, &shared.channel()));
    subscribed.map_err(|e| connection.answered(e).error)?;
    shared.seat.place(connection);
    shared.set_up(true);
    shared.wake_all();
    *was_up = true;
    read(shared)
}

/// By hand: the package's own `subscribe` takes an error reply, a user without rights for instance, for a success.
fn subscribe(connection: &mut redis::Connection, channel: &str) -> RedisResult<()> {
    let subscribe = redis::cmd("SUBSCRIBE").arg(channel).get_packed_command();
    connection.send_packed_command(&subscribe)?;
    match connection.recv_response()? {
        redis::Value::ServerError(e) => Err(e.into()),
        _ => Ok(()),
    }
}

fn read(shared: &Shared) -> Result<(), Error> {
    let mut heard = Instant::now();
    loop {
        shared.rest();
        let Some(message) = shared.seat.read(SLICE)? else {
            if shared.may_go() {
                return Ok(());
            }
            if heard.elapsed() >= SILENCE {
                // A connection that is cut without a word would stay silent for ever.
                shared.seat.ping(shared.limits.io)?;
                heard = Instant::now();
            }
            continue;
        };
        heard = Instant::now();
        shared.wake(&message);
        shared.leave_the_seat();
    }
}
