//! Waiting: nobody sleeps on, nobody wakes for nothing, and whoever leaves leaves nothing behind.

mod bounds;
mod crowds;
mod gaps;
mod gate;
mod given;
mod hand_over;
mod hearing;
mod leaving;

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::{Canceller, Client, Error, Wait};

use crate::Role;
use crate::support::child::{args, hear, say};
use crate::support::wait::eventually;

pub(crate) const ROLES: &[Role] = &[
    ("waiting/wait", wait),
    ("waiting/ten_clients", crowds::ten_clients),
    ("waiting/thousand_names", crowds::thousand_names),
    ("waiting/hand_on", hand_over::hand_on),
];

const BOUND: Duration = Duration::from_secs(20);
/// A waiter looks for itself every second, give or take a quarter: not sooner than this after its last look.
const SOONEST_POLL: Duration = Duration::from_millis(750);
const LATEST_POLL: Duration = Duration::from_millis(1250);

/// Waits for the lock in a thread of its own, says when it got it, and gives it back.
fn waiting(client: &Client, name: &str) -> JoinHandle<Instant> {
    let mutex = client.mutex(name);
    thread::spawn(move || {
        let guard = mutex.lock().unwrap();
        let got = Instant::now();
        guard.unlock().unwrap();
        got
    })
}

/// What came of a wait, and when.
type Waiting = JoinHandle<(Result<(), Error>, Instant)>;

/// The same with an end in view.
fn waiting_until(client: &Client, name: &str, canceller: &Canceller) -> Waiting {
    let mutex = client.mutex(name);
    let wait = Wait::forever().cancelled_by(canceller);
    thread::spawn(move || {
        let outcome = mutex.lock_with(wait).map(drop);
        (outcome, Instant::now())
    })
}

/// What came of a thread. One that does not end is a fault to be told of, not to be waited for.
#[track_caller]
fn joined<T>(thread: JoinHandle<T>) -> T {
    eventually(BOUND, "the thread ends", || thread.is_finished());
    thread.join().unwrap()
}

/// Returns when so many clients stand on the lock's list of waiters.
#[track_caller]
fn registered(watcher: &Client, name: &str, waiters: u64) {
    let mutex = watcher.mutex(name);
    eventually(BOUND, "the waiters are registered", || {
        mutex.inspect().unwrap().waiters == waiters
    });
}

/// A process that waits for a lock: holds it until it hears a line.
pub(crate) fn wait() {
    let [url, name] = &args()[..] else {
        panic!("a url and a name")
    };
    let client = Client::open(url).unwrap();
    say("waits");
    let guard = client.mutex(name).lock().unwrap();
    say("got it");
    hear(BOUND);
    guard.unlock().unwrap();
    say("gave it back");
}
