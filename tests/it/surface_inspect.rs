//! `inspect`, `is_locked`, `force_unlock`, and the metrics.

use std::thread;
use std::time::{Duration, SystemTime};

use leasehold::testing::{Server, entries};
use leasehold::{Client, ErrorKind, Predecessor};

use crate::support::ask::{BOUND, ask, elsewhere, is_renewal};
use crate::support::proxy::{Action, Proxy, Times};
use crate::support::wait::{eventually, raw};

#[test]
fn inspect_shows_a_free_lock_and_a_held_one() {
    let server = Server::start().unwrap();
    let builder = Client::builder().url(&server.url()).holder_label("settle");
    let client = builder.build().unwrap();
    let mutex = client.mutex("order:1");
    let never = mutex.inspect().unwrap();
    assert_eq!(
        (&*never.name, &*never.kind, never.held),
        ("order:1", "free", false)
    );
    assert_eq!((never.holder, never.token, never.since), (None, None, None));
    assert_eq!((never.ttl_left, never.waiters, never.readers), (None, 0, 0));
    assert!(never.permits.is_none());
    assert!(!mutex.is_locked().unwrap());

    let before = SystemTime::now();
    let guard = thread::Builder::new()
        .name("cashier".into())
        .spawn({
            let mutex = mutex.clone();
            move || mutex.lock().unwrap().into_owned()
        })
        .unwrap()
        .join()
        .unwrap();
    let held = mutex.inspect().unwrap();
    assert_eq!(
        (&*held.name, &*held.kind, held.held),
        ("order:1", "mutex", true)
    );
    let holder = held.holder.expect("a holder");
    let pid = std::process::id();
    assert!(holder.starts_with("settle@"), "{holder}");
    assert!(holder.ends_with(&format!("/{pid}/cashier")), "{holder}");
    assert_eq!(held.token, Some(guard.fencing_token()));
    let since = held.since.expect("since when");
    let slack = Duration::from_secs(1);
    assert!(
        since + slack > before && since < SystemTime::now() + slack,
        "{since:?}"
    );
    let left = held.ttl_left.expect("a ttl");
    assert!(
        left > Duration::from_secs(15) && left <= Duration::from_secs(30),
        "{left:?}"
    );
    assert!(mutex.is_locked().unwrap());

    let token = guard.fencing_token();
    guard.unlock().unwrap();
    let free = mutex.inspect().unwrap();
    assert_eq!((&*free.kind, free.held, free.holder), ("free", false, None));
    assert_eq!(
        (free.token, free.since, free.ttl_left),
        (Some(token), None, None)
    );
    assert!(!mutex.is_locked().unwrap());
}

/// Waiters are counted by client, and those that have left or died are not.
#[test]
fn inspect_counts_who_waits() {
    let server = Server::start().unwrap();
    let (client, others) = (server.client(), [server.client(), server.client()]);
    let mutex = client.mutex("job");
    let guard = mutex.lock().unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = others
            .iter()
            .flat_map(|other| [other, other])
            .map(|other| {
                scope.spawn(|| {
                    other
                        .mutex("job")
                        .try_lock_for(Duration::from_secs(1))
                        .is_err()
                })
            })
            .collect();
        eventually(BOUND, "two clients wait", || {
            mutex.inspect().unwrap().waiters == 2
        });
        assert!(waits.into_iter().all(|wait| wait.join().unwrap()));
    });
    assert_eq!(mutex.inspect().unwrap().waiters, 0);
    guard.unlock().unwrap();
}

/// A lock of another library, with and without a history of ours under that name, and what is no lock at all.
#[test]
fn inspect_shows_what_is_not_ours_as_foreign() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let mutex = client.mutex("job");
    for with_history in [false, true] {
        let last = with_history.then(|| {
            let guard = mutex.lock().unwrap();
            guard.fencing_token()
        });
        ask::<()>(&mut raw, "SET job 7f3e NX PX 20000");
        let foreign = mutex.inspect().unwrap();
        assert_eq!(
            (&*foreign.kind, foreign.held, foreign.holder),
            ("foreign", true, None)
        );
        assert_eq!((foreign.token, foreign.since), (last, None));
        let left = foreign.ttl_left.expect("a ttl");
        assert!(
            left > Duration::from_secs(10) && left <= Duration::from_secs(20),
            "{left:?}"
        );
        assert!(mutex.is_locked().unwrap());
        ask::<()>(&mut raw, "DEL job");
    }
    ask::<()>(&mut raw, "RPUSH job a b");
    let data = mutex.inspect().unwrap();
    assert_eq!(
        (&*data.kind, data.held, data.ttl_left),
        ("foreign", true, None)
    );
    // Our word, but its state was deleted: nobody knows whose it is.
    ask::<()>(&mut raw, "DEL job");
    let _guard = mutex.lock().unwrap();
    ask::<()>(&mut raw, "DEL {job}:lh:s");
    assert_eq!(mutex.inspect().unwrap().kind, "foreign");
}

/// An operator's way in: the holder learns of it at its next renewal, the next holder finds "abandoned".
#[test]
fn force_unlock_takes_the_lock_from_whoever_has_it() {
    let server = Server::start().unwrap();
    let (client, operator) = (server.client(), server.client());
    let mutex = client.mutex("job").with_ttl(Duration::from_millis(1500));
    let theirs = operator.mutex("job");
    assert!(!theirs.force_unlock().unwrap(), "nobody had it");
    let guard = mutex.lock().unwrap();
    assert!(theirs.force_unlock().unwrap());
    assert!(!theirs.is_locked().unwrap());
    assert!(!theirs.force_unlock().unwrap());
    let next = elsewhere(|| theirs.try_lock().map(|guard| guard.into_owned())).unwrap();
    assert!(matches!(
        next.predecessor(),
        Predecessor::Abandoned { token, .. } if *token == guard.fencing_token()
    ));
    let told = guard.lost().recv_timeout(BOUND);
    assert!(
        told.is_err_and(|e| e.is_disconnected()),
        "the holder was never told"
    );
    // Whoever waits on it is told before it is counted.
    eventually(BOUND, "counted", || client.metrics().lost == 1);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
    next.verify().unwrap();
}

/// Also from another library; and who waits is woken.
#[test]
fn force_unlock_frees_another_librarys_lock_and_wakes_a_waiter() {
    let server = Server::start().unwrap();
    let (client, operator, mut raw) = (server.client(), server.client(), raw(&server.url()));
    ask::<()>(&mut raw, "SET job 7f3e NX PX 600000");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = client.mutex("job").try_lock_for(6 * BOUND);
            guard.map(|guard| guard.predecessor().clone())
        });
        let mutex = operator.mutex("job");
        eventually(BOUND, "the waiter is known", || {
            mutex.inspect().unwrap().waiters == 1
        });
        let mut wakes = raw.as_pubsub();
        wakes.psubscribe("leasehold:inbox:*").unwrap();
        assert!(mutex.force_unlock().unwrap());
        let wake: String = wakes.get_message().unwrap().get_payload().unwrap();
        // For the first wait of its client: it is given the lock.
        assert!(
            wake.starts_with("00000000+") && wake.ends_with("job"),
            "{wake}"
        );
        let found = waiter.join().unwrap().unwrap();
        assert!(
            matches!(&found, Predecessor::Abandoned { label, .. } if label == "another library"),
            "{found:?}"
        );
    });
}

/// Invariant 13: what is no lock is somebody's data, and stays.
#[test]
fn force_unlock_refuses_what_is_no_lock() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    for (set, kind) in [
        ("SET job somebody's", "string"),
        ("RPUSH job a b", "list"),
        ("HSET job field value", "hash"),
    ] {
        ask::<()>(&mut raw, set);
        let before: Vec<u8> = ask(&mut raw, "DUMP job");
        let error = client.mutex("job").force_unlock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyConflict, "{kind}: {error}");
        assert_eq!(error.name(), Some("job"));
        assert_eq!(ask::<Vec<u8>>(&mut raw, "DUMP job"), before);
        assert_eq!(ask::<i64>(&mut raw, "PTTL job"), -1);
        ask::<()>(&mut raw, "DEL job");
    }
}

/// All of them start at zero, belong to one client, and count what they say.
#[test]
fn metrics_count_what_happened() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let (client, idle) = (Client::open(&proxy.url()).unwrap(), server.client());
    let zero = client.metrics();
    assert_eq!(
        (zero.acquired, zero.contended, zero.renewals, zero.lost),
        (0, 0, 0, 0)
    );
    assert_eq!(
        (
            zero.wait.count,
            zero.hold.count,
            zero.least_remaining_at_renewal
        ),
        (0, 0, None)
    );

    let ttl = Duration::from_millis(1500);
    let mutex = client.mutex("job").with_ttl(ttl);
    let held = Duration::from_millis(120);
    let guard = mutex.lock().unwrap();
    thread::sleep(held);
    drop(guard);
    assert!(elsewhere(|| client.mutex("").lock().map(drop)).is_err());
    let one = client.metrics();
    assert_eq!((one.acquired, one.contended, one.hold.count), (1, 0, 1));
    assert!(
        one.hold.p50 >= held && one.hold.p50 == one.hold.max,
        "{:?}",
        one.hold
    );
    assert!(one.wait.max < one.hold.max, "{:?}", one.wait);

    // Both ways to wait for somebody: at the server, and behind a thread of the same client.
    for (n, holder) in [&idle, &client].into_iter().enumerate() {
        let guard = holder.mutex("job").lock().unwrap();
        let before = entries(&client);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| mutex.try_lock_for(6 * BOUND).map(drop));
            eventually(BOUND, "it waits", || entries(&client) > before);
            if n == 0 {
                let known = || mutex.inspect().unwrap().waiters == 1;
                eventually(BOUND, "it is known to wait", known);
            }
            drop(guard);
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(client.metrics().contended, n as u64 + 1, "{n}");
    }

    let refused = client.metrics().releases_refused;
    let guard = mutex.lock().unwrap();
    let rule = proxy.rule(
        is_renewal,
        Action::ReplaceReply(b"-LOADING\r\n".to_vec()),
        Times::N(2),
    );
    assert!(rule.wait_hits(2, BOUND));
    let before = client.metrics().renewals;
    eventually(BOUND, "renewed", || client.metrics().renewals > before);
    assert!(
        client.metrics().renewal_failures >= 2,
        "{:?}",
        client.metrics()
    );
    assert!(guard.is_held());
    ask::<()>(&mut raw(&server.url()), "DEL job");
    eventually(BOUND, "lost", || client.metrics().lost == 1);
    drop(guard);
    assert_eq!(
        client.metrics().releases_refused,
        refused,
        "what is known to be lost is not sent"
    );
    assert_eq!(idle.metrics().lost, 0);
}
