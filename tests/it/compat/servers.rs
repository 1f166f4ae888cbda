//! Servers that can't do all: out of memory, and for a user with few rights.

use std::thread;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::testing::entries;

use super::kind::{Kind, kind_of};
use super::topology::Topology;
use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::full::{self, fill, make_room};
use crate::support::wait::{eventually, one_of};

cases! {
    all: [
        a_full_server_grants_nothing_and_says_why,
        a_full_server_renews_and_releases,
        a_user_without_channels_is_served_by_his_polls,
        scripts_that_the_server_forgot_are_sent_again,
    ],
    marked: [],
}

/// Nothing is granted when memory is full, be it a lock that is new to the server or one that it knows: a look says so at once, a
/// bounded wait at its end. No key is made.
fn a_full_server_grants_nothing_and_says_why<T: Topology>(kind: Kind) {
    let topology = T::with_args(full::SMALL);
    let mut raw = topology.raw("new");
    let client = topology.builder().build().unwrap();
    let (new, known) = (kind.of(&client, "new"), kind.of(&client, "known"));
    known.lock().unwrap().unlock().unwrap();
    fill(&mut raw);
    for (name, lock) in [("new", &new), ("known", &known)] {
        let error = lock.try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{name}: {error}");
        let wait = Duration::from_millis(300);
        one_of(3, || {
            let (took, error) = timed(|| lock.try_lock_for(wait).unwrap_err());
            assert!(took >= wait && took < BOUND, "{took:?}");
            match error.kind() {
                ErrorKind::OutOfMemory => Ok(()),
                _ => Err(error.to_string()),
            }
        });
        assert!(kind.is_free(&topology, name));
    }
    for key in kind.keys("new") {
        assert!(!ask::<bool>(&mut raw, &format!("EXISTS {key}")), "{key}");
    }
    assert_eq!(entries(&client), 0);
    make_room(&mut raw);
    new.try_lock_for(BOUND).unwrap().unlock().unwrap();
}

/// A server without any memory left renews and releases, completely; it says of a held lock that it is held; and who waits gets
/// it when there is room.
fn a_full_server_renews_and_releases<T: Topology>(kind: Kind) {
    let topology = T::with_args(full::SMALL);
    let mut raw = topology.raw("job");
    let ttl = Duration::from_millis(1500);
    let client = topology.builder().ttl(ttl).build().unwrap();
    let other = topology.builder().ttl(ttl).build().unwrap();
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    let held = lock.lock().unwrap();
    let dropped = kind.of(&client, "dropped").lock().unwrap();
    fill(&mut raw);
    let before = client.metrics();
    eventually(BOUND, "renewed over a whole ttl", || {
        held.check().unwrap();
        client.metrics().renewals >= before.renewals + 8
    });
    held.verify().unwrap();
    let busy = elsewhere(|| kind_of(rival.try_lock()));
    assert_eq!(busy, Some(ErrorKind::WouldBlock));
    let in_tables = entries(&other);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rival.try_lock_for(6 * BOUND).map(drop));
        eventually(BOUND, "it waits", || entries(&other) > in_tables);
        held.unlock().unwrap();
        assert!(
            !waiter.is_finished() || kind.is_table(),
            "nothing is granted"
        );
        drop(dropped);
        assert!(kind.is_free(&topology, "dropped"));
        make_room(&mut raw);
        let (took, result) = timed(|| waiter.join().unwrap());
        result.unwrap();
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
    let metrics = client.metrics();
    assert_eq!((metrics.lost, metrics.releases_refused), (0, 0));
    eventually(BOUND, "it is free", || kind.is_free(&topology, "job"));
    lock.try_lock_for(BOUND).unwrap().unlock().unwrap();
}

/// Without rights on channels nobody can be called, and can call nobody: a release is one all the same, and a waiter finds the
/// free lock at its next look.
fn a_user_without_channels_is_served_by_his_polls<T: Topology>(kind: Kind) {
    let topology = T::start();
    ask::<()>(
        &mut topology.raw("job"),
        "ACL SETUSER deaf reset on >pw ~* resetchannels +@all",
    );
    let deaf = || topology.builder_as("deaf", "pw").build().unwrap();
    let (one, two) = (deaf(), deaf());
    for (holder, waiter) in [(&one, &two), (&one, &topology.outsider())] {
        let (lock, rival) = (kind.of(waiter, "job"), kind.rival().of(holder, "job"));
        let held = rival.lock().unwrap();
        let in_tables = entries(waiter);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock.try_lock_for(6 * BOUND).map(drop));
            eventually(BOUND, "it waits", || entries(waiter) > in_tables);
            held.unlock().unwrap();
            let (took, result) = timed(|| waiting.join().unwrap());
            result.unwrap();
            assert!(took < Duration::from_secs(4), "beyond any poll: {took:?}");
        });
        assert_eq!(entries(waiter), 0);
        assert!(kind.is_free(&topology, "job"));
        assert_eq!(holder.metrics().release_errors, 0);
    }
}

/// redlock-rb#148; symfony#59795: scripts that the server has forgotten are sent again, by each of the steps that a hold takes.
fn scripts_that_the_server_forgot_are_sent_again<T: Topology>(kind: Kind) {
    let topology = T::start();
    let mut raw = topology.raw("job");
    let client = topology
        .builder()
        .ttl(Duration::from_secs(1))
        .build()
        .unwrap();
    let lock = kind.of(&client, "job");
    let mut flush = || ask::<()>(&mut raw, "SCRIPT FLUSH");
    flush();
    let held = lock.lock().unwrap();
    flush();
    held.verify().unwrap();
    let renewals = client.metrics().renewals;
    flush();
    eventually(BOUND, "it is renewed", || {
        client.metrics().renewals > renewals
    });
    flush();
    assert!(lock.inspect().unwrap().held);
    flush();
    held.unlock().unwrap();
    flush();
    assert!(!lock.force_unlock().unwrap());
    assert!(kind.is_free(&topology, "job"));
}
