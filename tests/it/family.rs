//! The family: what each type promises beside what `Mutex` does, and the faults that other libraries' kinds of it had.

mod actor;
mod conversion_faults;
mod conversions;
mod fair;
mod fair_faults;
mod fair_healing;
mod fair_waiting;
mod read_write;
mod readers;
mod reentrant;
mod semaphore;
mod semaphore_faults;
mod several;

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::Client;

use crate::Role;
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

pub(crate) const ROLES: &[Role] = &[("family/actor", actor::act)];

/// Longest wait for what should come soon.
const BOUND: Duration = Duration::from_secs(20);

/// What came of a thread. One that does not end is a fault to be told of, not to be waited for.
#[track_caller]
fn joined<T>(thread: JoinHandle<T>) -> T {
    eventually(BOUND, "the thread ends", || thread.is_finished());
    thread.join().unwrap()
}

/// Runs a turn on a thread of this process: see [`actor::turn`].
fn turn(client: &Client, scene: &Scene, label: &str, what: &str) -> JoinHandle<()> {
    let (client, url) = (client.clone(), scene.server.url());
    let (label, what) = (label.to_owned(), what.to_owned());
    thread::spawn(move || actor::turn(&client, &url, &label, &what))
}

/// What the turns have noted so far: `in a`, `out a` and so on.
fn noted(scene: &Scene) -> Vec<String> {
    ask(&mut scene.raw(), "LRANGE turns 0 -1")
}

/// Returns when so many notes have been made, with all of them.
#[track_caller]
fn notes(scene: &Scene, n: usize) -> Vec<String> {
    let mut raw = scene.raw();
    eventually(BOUND, "the turns are taken", || {
        ask::<usize>(&mut raw, "LLEN turns") >= n
    });
    noted(scene)
}

/// The notes of turns that were taken in this order, each alone.
fn one_by_one<T: ToString>(labels: impl IntoIterator<Item = T>) -> Vec<String> {
    let both = |label: T| {
        let label = label.to_string();
        [format!("in {label}"), format!("out {label}")]
    };
    labels.into_iter().flat_map(both).collect()
}

/// Since then.
fn within(bound: Duration, since: Instant, what: &str) {
    let took = since.elapsed();
    assert!(took <= bound, "{what} took {took:?}, more than {bound:?}");
}
