//! What can be seen of it: the lock's state for everybody, and the client's own numbers.

use std::thread;
use std::time::{Duration, SystemTime};

use super::kind::{Kind, kind_of};
use super::topology::Topology;
use crate::support::ask::{BOUND, elsewhere};
use crate::support::wait::eventually;

cases! {
    all: [
        a_look_tells_who_has_it_for_how_long_and_who_waits,
        the_numbers_of_a_client_are_those_of_its_locks,
    ],
    marked: [],
}

/// All fields of a look, while it is free, held, waited for, and free again.
fn a_look_tells_who_has_it_for_how_long_and_who_waits<T: Topology>(kind: Kind) {
    let topology = T::start();
    let labelled = || topology.builder().holder_label("settle").build().unwrap();
    let (client, other) = (labelled(), topology.outsider());
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    let free = lock.inspect().unwrap();
    assert_eq!(
        (free.kind.as_str(), free.held, free.waiters),
        ("free", false, 0)
    );
    assert_eq!(
        (free.holder, free.token, free.since, free.ttl_left),
        (None, None, None, None)
    );

    let before = SystemTime::now();
    let held = lock.lock().unwrap();
    for look in [lock.clone(), kind.of(&other, "job")] {
        let info = look.inspect().unwrap();
        assert!(look.is_locked().unwrap() && info.held);
        assert_eq!(info.name, lock.name());
        assert_eq!(info.kind, kind.says());
        let holder = info.holder.expect("a holder");
        let process = format!("/{}/", std::process::id());
        assert!(
            holder.starts_with("settle@") && holder.contains(&process),
            "{holder}"
        );
        assert_eq!(info.token, Some(held.fencing_token()));
        // The server counts in milliseconds, by a clock that is this machine's.
        let since = info.since.expect("a time") + Duration::from_millis(2);
        assert!(since >= before && since <= SystemTime::now() + Duration::from_secs(1));
        let left = info.ttl_left.expect("a ttl");
        assert!(
            left <= Duration::from_secs(30) && left > Duration::from_secs(15),
            "{left:?}"
        );
        assert_eq!(info.waiters, 0);
        assert_eq!(info.readers, u64::from(kind.is_rw() && kind != Kind::Write));
        let permits = match kind {
            Kind::Permit => Some((0, 1)),
            Kind::Permits => Some((1, 3)),
            _ => None,
        };
        assert_eq!(info.permits, permits);
    }
    thread::scope(|scope| {
        let waiters = [0, 1].map(|_| scope.spawn(|| rival.try_lock_for(4 * BOUND).map(drop)));
        let together = [Kind::Mutex, Kind::Reentrant].contains(&kind);
        // Threads of one client that line up at its gate wait as one.
        let n = if together { 1 } else { 2 };
        eventually(BOUND, "they wait", || lock.waiters() == n);
        let info = lock.inspect().unwrap();
        assert_eq!(
            info.token,
            Some(held.fencing_token()),
            "whoever waits, it is ours"
        );
        let token = held.fencing_token();
        held.unlock().unwrap();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        let free = lock.inspect().unwrap();
        assert_eq!(
            (free.kind.as_str(), free.held, free.waiters),
            ("free", false, 0)
        );
        assert_eq!((free.holder, free.since, free.readers), (None, None, 0));
        assert!(free.token.expect("the last one") > token);
        assert!(!rival.is_locked().unwrap());
    });
}

/// Acquisitions, those that had to wait, renewals, times: of this client and no other.
fn the_numbers_of_a_client_are_those_of_its_locks<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    for _ in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let metrics = client.metrics();
    assert_eq!((metrics.acquired, metrics.contended), (3, 0));
    assert_eq!((metrics.wait.count, metrics.hold.count), (3, 3));

    let holder = rival.lock().unwrap();
    assert!(elsewhere(|| kind_of(lock.try_lock())).is_some());
    let waited = Duration::from_millis(300);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.try_lock_for(2 * BOUND).map(drop));
        eventually(BOUND, "it waits", || lock.waiters() == 1);
        thread::sleep(waited);
        holder.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    let metrics = client.metrics();
    assert_eq!((metrics.acquired, metrics.contended), (4, 1));
    assert!(metrics.wait.max >= waited, "{metrics:?}");
    assert_eq!((metrics.renewals, metrics.lost), (0, 0));
    assert_eq!((metrics.release_errors, metrics.releases_refused), (0, 0));

    let held = lock
        .clone()
        .with_ttl(Duration::from_secs(1))
        .lock()
        .unwrap();
    eventually(BOUND, "it is renewed", || client.metrics().renewals >= 1);
    held.stale_write_rejected();
    held.unlock().unwrap();
    let metrics = client.metrics();
    assert_eq!(metrics.stale_writes_rejected, 1);
    assert_eq!(metrics.hold.count, 5);
    assert!(
        metrics.hold.max >= Duration::from_millis(300),
        "{metrics:?}"
    );
    assert!(metrics.least_remaining_at_renewal.is_some());
    let others = other.metrics();
    assert_eq!(
        (others.acquired, others.contended, others.renewals),
        (1, 0, 0)
    );
}
