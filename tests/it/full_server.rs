//! A server that is out of memory: it grants nothing, and everything that gives something back works.

use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, Predecessor};
use redis::Connection;

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::full;
use crate::support::wait::{eventually, raw};

const TTL: Duration = Duration::from_millis(1500);

struct Full {
    server: Server,
    raw: Connection,
}

impl Full {
    fn start() -> Full {
        let server = Server::start_with(full::SMALL).unwrap();
        let raw = raw(&server.url());
        Full { server, raw }
    }

    fn client(&self) -> Client {
        Client::builder()
            .url(&self.server.url())
            .ttl(TTL)
            .build()
            .unwrap()
    }

    fn fill(&mut self) {
        full::fill(&mut self.raw);
    }

    fn make_room(&mut self) {
        full::make_room(&mut self.raw);
    }
}

/// "out of memory": a look says so at once, a bounded wait at its end, and nothing is written.
#[test]
fn a_full_server_grants_nothing_and_says_why() {
    let mut full = Full::start();
    let client = full.client();
    full.fill();
    let mutex = client.mutex("new");
    let wait = Duration::from_millis(400);
    let (took, look) = timed(|| mutex.try_lock().unwrap_err());
    assert!(took < Duration::from_secs(2), "{took:?}");
    let (took, waited) = timed(|| mutex.try_lock_for(wait).unwrap_err());
    assert!(took >= wait && took < Duration::from_secs(2), "{took:?}");
    for error in [look, waited] {
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(error.is_retryable() && !error.is_busy());
        let text = error.to_string();
        assert!(
            text.contains("\"new\"") && text.contains("maxmemory"),
            "{text}"
        );
        assert_eq!(error.nodes().len(), 1);
    }
    for key in ["new", "{new}:lh:s"] {
        assert!(
            !ask::<bool>(&mut full.raw, &format!("EXISTS {key}")),
            "{key}"
        );
    }
    full.make_room();
    let guard = mutex.try_lock_for(BOUND).unwrap();
    assert_eq!(*guard.predecessor(), Predecessor::None);
}

/// Renewals and releases work on a full server; the release is complete, so that its successor finds a clean one.
#[test]
fn a_full_server_renews_and_releases() {
    let mut full = Full::start();
    let (client, other) = (full.client(), full.client());
    let (first, second) = (
        client.mutex("first").lock().unwrap(),
        client.mutex("second").lock().unwrap(),
    );
    let resting = client
        .mutex("resting")
        .with_hold_at_least(6 * BOUND)
        .lock()
        .unwrap();
    full.fill();
    let before = client.metrics();
    eventually(BOUND, "renewed over a whole ttl", || {
        client.metrics().renewals >= before.renewals + 12
    });
    assert_eq!(client.metrics().renewal_failures, before.renewal_failures);
    first.verify().unwrap();
    first.unlock().unwrap();
    drop(second);
    resting.unlock().unwrap();
    for key in ["first", "second"] {
        assert!(
            !ask::<bool>(&mut full.raw, &format!("EXISTS {key}")),
            "{key}"
        );
    }
    assert_eq!(other.mutex("resting").inspect().unwrap().kind, "resting");
    assert!(other.mutex("resting").force_unlock().unwrap());
    full.make_room();
    for name in ["first", "second"] {
        let next = other.mutex(name).try_lock_for(BOUND).unwrap();
        assert_eq!(*next.predecessor(), Predecessor::Clean, "{name}");
    }
}

/// Who waits for a lock on a full server can't be put on its list, and gets it all the same when there is room again.
#[test]
fn a_waiter_on_a_full_server_gets_its_turn() {
    let mut full = Full::start();
    let (holder, client) = (full.client(), full.client());
    let guard = holder.mutex("job").lock().unwrap();
    full.fill();
    let busy = elsewhere(|| client.mutex("job").try_lock().map(drop)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::WouldBlock, "held is held: {busy}");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex("job").try_lock_for(6 * BOUND).map(drop));
        guard.unlock().unwrap();
        full.make_room();
        let (took, result) = timed(|| waiter.join().unwrap());
        result.unwrap();
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
}
