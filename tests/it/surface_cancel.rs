//! `Canceller` and `Wait`: ending waits from outside, and nothing else.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{Server, entries};
use leasehold::{Canceller, Client, ErrorKind, Wait};

use crate::support::ask::{BOUND, elsewhere, timed};
use crate::support::proxy::Proxy;
use crate::support::wait::eventually;

/// consul#4439: a wait that can't be ended. A cancel from another thread ends it at once, wherever the thread waits: at
/// the server, or behind another thread of its own client; and nothing stays of it.
#[test]
fn a_cancel_ends_a_wait_at_once_and_leaves_nothing() {
    let server = Server::start().unwrap();
    let (holder, client) = (server.client(), server.client());
    let guard = holder.mutex("busy").lock().unwrap();
    let before = entries(&client);
    let stop = Canceller::new();
    thread::scope(|scope| {
        let wait = || {
            // Bounded, so that a failure here ends the test.
            let wait = Wait::for_duration(6 * BOUND).cancelled_by(&stop);
            client.mutex("busy").lock_with(wait).map(drop)
        };
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(wait)).collect();
        // An entry each, the gate's and the inbox's.
        eventually(BOUND, "all three wait", || entries(&client) == before + 5);
        let known = || holder.mutex("busy").inspect().unwrap().waiters == 1;
        eventually(BOUND, "the one at the server is known there", known);
        let cancelled = Instant::now();
        stop.cancel();
        for waiter in waiters {
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            assert_eq!(error.name(), Some("busy"));
            assert!(!error.is_busy() && !error.is_retryable() && !error.is_lost());
        }
        let took = cancelled.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
    });
    assert_eq!(entries(&client), before);
    assert_eq!(holder.mutex("busy").inspect().unwrap().waiters, 0);
    guard.unlock().unwrap();
}

/// The client's canceller ends waits of all forms; the call's own does so beside it.
#[test]
fn the_clients_canceller_ends_every_wait_of_the_client() {
    let server = Server::start().unwrap();
    let holder = server.client();
    let stop = Canceller::new();
    let client = Client::builder()
        .url(&server.url())
        .cancelled_by(&stop)
        // So that a failure here ends the test.
        .max_wait(6 * BOUND)
        .build()
        .unwrap();
    let _guard = holder.mutex("busy").lock().unwrap();
    let before = entries(&client);
    let other = Canceller::new();
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| client.mutex("busy").lock().map(drop)),
            scope.spawn(|| client.mutex("busy").try_lock_for(6 * BOUND).map(drop)),
            scope.spawn(|| {
                let wait = Wait::until(Instant::now() + 6 * BOUND).cancelled_by(&other);
                client.mutex("busy").lock_with(wait).map(drop)
            }),
            scope.spawn(|| client.mutex("busy").with(|_| ())),
        ];
        eventually(BOUND, "all four wait", || entries(&client) == before + 6);
        stop.cancel();
        for wait in waits {
            assert_eq!(
                wait.join().unwrap().unwrap_err().kind(),
                ErrorKind::Cancelled
            );
        }
    });
    assert!(!other.is_cancelled());
}

/// Once cancelled it stays so: a later wait ends before anything is sent, even if the lock is free.
#[test]
fn a_cancelled_canceller_ends_later_waits_before_they_begin() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let stop = Canceller::default();
    let clone = stop.clone();
    assert!(!stop.is_cancelled() && !clone.is_cancelled());
    clone.cancel();
    clone.cancel();
    assert!(stop.is_cancelled() && clone.is_cancelled());
    let wait = Wait::for_duration(BOUND).cancelled_by(&stop);
    let error = client.mutex("free").lock_with(wait.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(
        client.mutex("free").lock_with(wait).unwrap_err().kind(),
        ErrorKind::Cancelled
    );
    assert_eq!(proxy.connections_total(), 0);
    assert!(format!("{stop:?}").contains("true"), "{stop:?}");
}

/// Locks that are held are not touched, and can be given back.
#[test]
fn a_cancel_leaves_held_locks_alone() {
    let server = Server::start().unwrap();
    let stop = Canceller::new();
    let client = Client::builder()
        .url(&server.url())
        .cancelled_by(&stop)
        .build()
        .unwrap();
    let guard = client.mutex("mine").lock().unwrap();
    stop.cancel();
    guard.check().unwrap();
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// A wait that was not cancelled ends as it would without a canceller.
#[test]
fn a_canceller_that_nobody_cancels_changes_nothing() {
    let server = Server::start().unwrap();
    let (holder, client) = (server.client(), server.client());
    let guard = holder.mutex("busy").lock().unwrap();
    let wait = Wait::for_duration(Duration::from_millis(300)).cancelled_by(&Canceller::new());
    let (took, error) = elsewhere(|| {
        timed(|| {
            client
                .mutex("busy")
                .lock_with(wait.clone())
                .map(drop)
                .unwrap_err()
        })
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(took >= Duration::from_millis(300));
    drop(guard);
    assert!(client.mutex("busy").lock_with(wait).is_ok());
}
