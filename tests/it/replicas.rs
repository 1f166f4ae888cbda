//! Servers that are not, or not any more, a master.

use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, MutexGuard};
use redis::Connection;

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::wait::{eventually, raw};

const SECOND: Duration = Duration::from_secs(1);

/// That does not wait for more replicas before it serves one.
fn master() -> Server {
    Server::start_with(["--repl-diskless-sync-delay", "0"]).unwrap()
}

fn replica_of(master: &Server) -> Server {
    let port = master.port().to_string();
    let server = Server::start_with(["--replicaof", "127.0.0.1", &port]).unwrap();
    let mut raw = raw(&server.url());
    eventually(BOUND, "the link is up", || {
        ask::<String>(&mut raw, "INFO replication").contains("master_link_status:up")
    });
    server
}

/// As a failover does it by mistake: nobody listens there, so that the data stays what it was.
fn demote(raw: &mut Connection) {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    drop(nobody);
    ask::<()>(raw, &format!("REPLICAOF 127.0.0.1 {port}"));
}

fn promote(raw: &mut Connection) {
    ask::<()>(raw, "REPLICAOF NO ONE");
}

/// alturkovic/distributed-lock#37: READONLY. A replica grants nothing and says why, in bounded time; what only reads works.
#[test]
fn a_replica_grants_nothing_and_says_why() {
    let master = master();
    let replica = replica_of(&master);
    let client = replica.client();
    let (took, error) = timed(|| client.mutex("free").try_lock().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(
        text.contains("\"free\"") && text.contains("not a master"),
        "{text}"
    );
    assert!(took < 5 * SECOND, "{took:?}");
    let wait = SECOND / 2;
    let (took, error) = timed(|| client.mutex("free").try_lock_for(wait).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took >= wait && took < 3 * SECOND, "{took:?}");
    for server in [&master, &replica] {
        assert!(!ask::<bool>(&mut raw(&server.url()), "EXISTS free"));
        assert!(!ask::<bool>(&mut raw(&server.url()), "EXISTS {free}:lh:s"));
    }
    let guard = master.client().mutex("job").lock().unwrap();
    let seen = client.mutex("job");
    eventually(BOUND, "it is replicated", || seen.is_locked().unwrap());
    assert_eq!(seen.inspect().unwrap().token, Some(guard.fencing_token()));
    assert_eq!(
        seen.force_unlock().unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    guard.verify().unwrap();
}

/// A wait before a replica goes on, and ends well when that is promoted.
#[test]
fn a_wait_outlasts_a_failover() {
    let master = master();
    let replica = replica_of(&master);
    let client = replica.client();
    let mut raw = raw(&replica.url());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex("job").try_lock_for(BOUND).map(drop));
        let tries = || ask::<String>(&mut raw, "INFO commandstats").contains("cmdstat_eval");
        eventually(BOUND, "it was refused", tries);
        promote(&mut crate::support::wait::raw(&replica.url()));
        waiter.join().unwrap().unwrap();
    });
}

struct Demoted {
    server: Server,
    client: Client,
    guard: MutexGuard,
    raw: Connection,
}

/// A master that was made a replica while a lock was held there. It keeps its data, and answers reads or refuses them.
fn demoted(ttl: Duration, answers_reads: bool) -> Demoted {
    let stale = if answers_reads { "yes" } else { "no" };
    let server = Server::start_with(["--replica-serve-stale-data", stale]).unwrap();
    let client = Client::builder()
        .url(&server.url())
        .ttl(ttl)
        .build()
        .unwrap();
    let mut raw = raw(&server.url());
    let guard = client.mutex("job").lock().unwrap();
    demote(&mut raw);
    eventually(BOUND, "renewals fail", || {
        assert!(
            guard.is_held(),
            "lost by one answer that says nothing about the lock"
        );
        client.metrics().renewal_failures >= 2
    });
    Demoted {
        server,
        client,
        guard,
        raw,
    }
}

/// Invariant 2: a server that can't write, or not even read, has not said that the lock is not ours. When it is master again
/// in time, the hold has survived.
#[test]
fn a_hold_survives_a_master_that_was_a_replica_for_a_while() {
    for answers_reads in [true, false] {
        let mut it = demoted(3 * SECOND, answers_reads);
        let before = it.client.metrics().renewals;
        promote(&mut it.raw);
        eventually(BOUND, "renewed", || it.client.metrics().renewals > before);
        it.guard.check().unwrap();
        it.guard.unlock().unwrap();
        assert_eq!(it.client.metrics().lost, 0);
    }
}

/// If it stays a replica the hold is over at its deadline, and not before.
#[test]
fn a_hold_ends_at_its_deadline_when_its_master_stays_a_replica() {
    for answers_reads in [true, false] {
        let it = demoted(2 * SECOND, answers_reads);
        let told = it.guard.lost().recv_timeout(BOUND);
        assert!(told.is_err_and(|e| e.is_disconnected()), "nobody was told");
        let lost = it.guard.check().unwrap_err().to_string();
        assert!(
            lost.contains("no renewal was confirmed"),
            "{answers_reads}: {lost}"
        );
        drop(it.server);
    }
}

/// A release that a replica refuses is not known, is tried again, and done when that is master again.
#[test]
fn a_release_that_a_replica_refuses_is_made_up_for() {
    for answers_reads in [true, false] {
        let mut it = demoted(20 * SECOND / 10, answers_reads);
        let error = it.guard.unlock().unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Unavailable,
            "{answers_reads}: {error}"
        );
        assert!(error.is_retryable() && !error.is_lost());
        promote(&mut it.raw);
        // Not by its ttl: the next one learns of a clean release.
        let next = elsewhere(|| {
            let mutex = it.client.mutex("job");
            let guard = mutex.try_lock_for(BOUND).unwrap();
            guard.predecessor().clone()
        });
        assert_eq!(next, leasehold::Predecessor::Clean, "{answers_reads}");
    }
}
