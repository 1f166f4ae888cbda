//! What kind of hold a handle asks for: renewed or fixed, not for ever, not too short.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{Server, suspend};
use leasehold::{Client, ErrorKind, Predecessor};
use redis::Connection;

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::wait::{eventually, raw};

fn ttl_of(raw: &mut Connection, key: &str) -> Duration {
    let ms: i64 = ask(raw, &format!("PTTL {key}"));
    Duration::from_millis(u64::try_from(ms).unwrap_or_else(|_| panic!("{key} has ttl {ms}")))
}

fn exists(raw: &mut Connection, key: &str) -> bool {
    ask(raw, &format!("EXISTS {key}"))
}

/// The default: 30 s, and the client's or the handle's own where one is given. Two handles of one name may differ.
#[test]
fn the_key_lives_as_long_as_the_handle_or_the_client_or_the_default_says() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    let with_ttl = |secs| {
        let builder = Client::builder().url(&server.url());
        builder.ttl(Duration::from_secs(secs)).build().unwrap()
    };
    let (plain, ten) = (server.client(), with_ttl(10));
    let day = Duration::from_secs(86_400);
    for (mutex, secs) in [
        (plain.mutex("key"), 30),
        (ten.mutex("key"), 10),
        (ten.mutex("key").with_ttl(day), 86_400),
        (ten.mutex("key").with_fixed_lease(2 * day), 2 * 86_400),
        // The last word counts.
        (
            ten.mutex("key").with_fixed_lease(day).with_ttl(2 * day),
            2 * 86_400,
        ),
        // No longer than the hold may last.
        (ten.mutex("key").with_max_hold(Duration::from_secs(5)), 5),
    ] {
        let guard = mutex.lock().unwrap();
        let (left, here) = (ttl_of(&mut raw, "key"), guard.remaining());
        let most = Duration::from_secs(secs);
        assert!(
            left <= most && left > most - Duration::from_secs(3),
            "{left:?} of {most:?}"
        );
        assert!(here <= left, "we count on {here:?}, the server on {left:?}");
        assert!(
            here > most * 9 / 10 - Duration::from_secs(3),
            "{here:?} of {most:?}"
        );
    }
}

/// Invariants 1 and 2: a renewed hold lasts as long as its guard, over many ttls, and under the same word.
#[test]
fn a_renewed_hold_outlives_its_ttl_many_times() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let ttl = Duration::from_millis(1200);
    let mutex = client.mutex("long").with_ttl(ttl);
    let guard = mutex.lock().unwrap();
    let word: String = ask(&mut raw, "GET long");
    let start = Instant::now();
    eventually(BOUND, "renewed through three ttls", || {
        guard.check().unwrap();
        assert!(ttl_of(&mut raw, "long") <= ttl);
        start.elapsed() > 3 * ttl
    });
    let metrics = client.metrics();
    assert!(
        (8..=10).contains(&metrics.renewals),
        "every third of a ttl: {metrics:?}"
    );
    let least = metrics.least_remaining_at_renewal.expect("it was renewed");
    assert!(least > ttl / 4 && least < ttl * 7 / 10, "{least:?}");
    // One may be under way.
    let started = metrics.renewal_lateness.count;
    assert!(
        (0..=1).contains(&(started - metrics.renewals)),
        "{started} started"
    );
    assert_eq!(ask::<String>(&mut raw, "GET long"), word);
    guard.unlock().unwrap();
    assert_eq!(client.metrics().lost, 0);
}

/// A fixed lease is never renewed: it is over when it was said to be, for us before the server, and counted.
#[test]
fn a_fixed_lease_ends_by_itself_and_is_a_loss() {
    let server = Server::start().unwrap();
    let (client, other, mut raw) = (server.client(), server.client(), raw(&server.url()));
    let lease = Duration::from_millis(900);
    let guard = client
        .mutex("fixed")
        .with_fixed_lease(lease)
        .lock()
        .unwrap();
    let start = Instant::now();
    assert!(guard.remaining() <= lease);
    let held = guard.lost().recv_timeout(BOUND);
    assert!(held.is_err_and(|e| e.is_disconnected()), "nobody was told");
    let (ended, on_server) = (start.elapsed(), exists(&mut raw, "fixed"));
    // Only a busy machine tells us of it when the server has ended it, too.
    assert!(
        on_server || ended >= lease,
        "the server was first: {ended:?}"
    );
    assert!(ended > lease * 8 / 10, "{ended:?}");
    let lost = guard.check().unwrap_err();
    assert!(lost.to_string().contains("fixed lease"), "{lost}");
    assert_eq!(guard.remaining(), Duration::ZERO);
    elsewhere(|| other.mutex("fixed").try_lock_for(BOUND).map(drop)).unwrap();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
    let metrics = client.metrics();
    assert_eq!(
        (metrics.renewals, metrics.lost, metrics.overrun_leases),
        (0, 1, 1)
    );
}

/// A fixed lease given back in time is no loss.
#[test]
fn a_fixed_lease_given_back_in_time_is_no_loss() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let lease = Duration::from_secs(5);
    client
        .mutex("fixed")
        .with_fixed_lease(lease)
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    assert!(!exists(&mut raw, "fixed"));
    let metrics = client.metrics();
    assert_eq!(
        (
            metrics.lost,
            metrics.overrun_leases,
            metrics.releases_refused
        ),
        (0, 0, 0)
    );
}

/// Renewed past its ttl, but no longer than it may last: a hung job lets go, and the server never keeps the key longer.
#[test]
fn max_hold_ends_a_renewed_hold() {
    let server = Server::start().unwrap();
    let (client, other, mut raw) = (server.client(), server.client(), raw(&server.url()));
    let (ttl, max) = (Duration::from_millis(900), Duration::from_millis(2100));
    let mutex = client.mutex("hung").with_ttl(ttl).with_max_hold(max);
    let before = Instant::now();
    let guard = mutex.lock().unwrap();
    let granted = Instant::now();
    eventually(BOUND, "it ends", || {
        // Read before the ttl, which is of a moment later.
        let (sure, asked) = (guard.is_held(), granted.elapsed());
        if exists(&mut raw, "hung") {
            let left: i64 = ask(&mut raw, "PTTL hung");
            let end = asked + Duration::from_millis(left.max(0).unsigned_abs());
            assert!(
                end <= max + Duration::from_millis(5),
                "would last for {end:?}"
            );
        }
        !sure
    });
    let ended = before.elapsed();
    assert!(ended > max * 9 / 10, "ended after {ended:?}");
    let renewals = client.metrics().renewals;
    assert!(
        (2..=7).contains(&renewals),
        "every third of a ttl: {renewals}"
    );
    let told = guard.lost().recv_timeout(BOUND);
    assert!(told.is_err_and(|e| e.is_disconnected()));
    let lost = guard.check().unwrap_err();
    assert!(lost.to_string().contains("with_max_hold"), "{lost}");
    let next = elsewhere(|| {
        other
            .mutex("hung")
            .try_lock_for(BOUND)
            .map(|g| g.predecessor().clone())
    });
    assert!(matches!(next.unwrap(), Predecessor::Abandoned { .. }));
    assert_eq!(client.metrics().overrun_leases, 0);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
}

/// Given back early, the key stays for the rest; nobody gets in, and no waiter is woken early or late.
#[test]
fn hold_at_least_keeps_the_key_for_the_rest() {
    let server = Server::start().unwrap();
    let (client, other, mut raw) = (server.client(), server.client(), raw(&server.url()));
    let at_least = Duration::from_millis(1500);
    let mutex = client.mutex("cron").with_hold_at_least(at_least);
    let (before, guard) = (Instant::now(), mutex.try_lock().unwrap());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = other.mutex("cron").try_lock_for(6 * BOUND).unwrap();
            (before.elapsed(), guard.predecessor().clone())
        });
        let info = || client.mutex("cron").inspect().unwrap();
        eventually(BOUND, "the waiter is known", || info().waiters == 1);
        guard.unlock().unwrap();
        let left = ttl_of(&mut raw, "cron");
        assert!(
            left <= at_least && left + before.elapsed() >= at_least,
            "{left:?}"
        );
        assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
        let resting = info();
        assert_eq!((resting.kind.as_str(), resting.held), ("resting", true));
        assert_eq!(resting.waiters, 1, "it still waits");
        let (entered, predecessor) = waiter.join().unwrap();
        assert!(entered >= at_least, "woken early, after {entered:?}");
        assert!(
            entered < at_least + Duration::from_secs(1),
            "late, after {entered:?}"
        );
        assert_eq!(predecessor, Predecessor::Clean);
    });
}

/// Held for that long and more, it is free at the drop, at once.
#[test]
fn hold_at_least_does_not_last_beyond_its_time() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let at_least = Duration::from_millis(200);
    let mutex = client
        .mutex("cron")
        .with_hold_at_least(at_least)
        .with_ttl(Duration::from_secs(3));
    let guard = mutex.lock().unwrap();
    let start = Instant::now();
    eventually(BOUND, "the time has passed", || start.elapsed() >= at_least);
    assert!(guard.is_held());
    drop(guard);
    assert!(!exists(&mut raw, "cron"));
    drop(mutex.try_lock().unwrap());
}

/// A panicking holder's key rests, too, and the next one learns of the panic. It may rest for longer than its ttl.
#[test]
fn hold_at_least_holds_for_a_panic_and_beyond_the_ttl() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let mutex = client
        .mutex("cron")
        .with_ttl(Duration::from_secs(5))
        .with_hold_at_least(Duration::from_secs(60));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = mutex.lock().unwrap();
        panic!("in mid-section");
    }));
    assert!(panicked.is_err());
    let left = ttl_of(&mut raw, "cron");
    assert!(
        left > Duration::from_secs(50) && left <= Duration::from_secs(60),
        "{left:?}"
    );
    assert!(
        mutex.force_unlock().unwrap(),
        "an operator can end the rest"
    );
    let next = mutex.lock().unwrap();
    assert!(
        matches!(next.predecessor(), Predecessor::Panicked { .. }),
        "{next:?}"
    );
}

/// A lost hold keeps nothing: its key, if it is still there, is freed.
#[test]
fn a_lost_hold_does_not_rest() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let mutex = client
        .mutex("cron")
        .with_ttl(Duration::from_secs(5))
        .with_hold_at_least(Duration::from_secs(60));
    let guard = mutex.lock().unwrap();
    // For us the lease has run out, for the server it has not.
    suspend(&client, Duration::from_secs(5));
    assert!(!guard.is_held());
    drop(guard);
    eventually(BOUND, "the key is gone", || !exists(&mut raw, "cron"));
}

/// The parts go together: a renewed hold that is given back after several ttls rests for what is left.
#[test]
fn hold_at_least_counts_from_the_acquisition() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let mutex = client
        .mutex("cron")
        .with_ttl(Duration::from_millis(900))
        .with_hold_at_least(Duration::from_secs(30));
    let guard = mutex.lock().unwrap();
    eventually(BOUND, "renewed", || client.metrics().renewals >= 4);
    let (_, released) = timed(|| guard.unlock());
    released.unwrap();
    let left = ttl_of(&mut raw, "cron");
    assert!(left < Duration::from_millis(28_900), "{left:?}");
    assert!(left > Duration::from_secs(15), "{left:?}");
}
