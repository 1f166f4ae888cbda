//! A hold that is taken away: it is told once, it stays lost, and the name is as good as new.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::testing::{entries, lose, suspend};

use super::held::abandoned;
use super::kind::{Kind, kind_of};
use super::topology::Topology;
use crate::support::ask::{BOUND, ask, elsewhere};
use crate::support::locks::{await_end, is_signalled};
use crate::support::wait::eventually;

cases! {
    all: [
        a_key_deleted_under_the_holder_is_a_loss_that_is_told_once,
        a_loss_is_found_by_whoever_asks_the_server,
        a_forced_lock_goes_to_who_waits,
        a_lease_that_ran_out_here_is_lost_whatever_the_server_says,
    ],
    marked: [],
}

fn delete<T: Topology>(topology: &T, kind: Kind, name: &str) {
    let key = kind.key(name);
    assert!(ask::<bool>(&mut topology.raw(&key), &format!("DEL {key}")));
}

/// redisson#3712; redis-semaphore#175; invariant 2: the next renewal finds that the key is gone: lost, signalled, counted, once
/// and for good. It is not made anew, what is left of several keys is given back, and a new lock of that name is renewed.
fn a_key_deleted_under_the_holder_is_a_loss_that_is_told_once<T: Topology>(kind: Kind) {
    let topology = T::start();
    let ttl = Duration::from_secs(1);
    let client = topology.builder().ttl(ttl).build().unwrap();
    let lock = kind.of(&client, "job");
    let held = lock.lock().unwrap();
    let (clone, token) = (held.lease(), held.fencing_token());
    delete(&topology, kind, "job");
    await_end(&held);
    for lease in [&*held, &clone] {
        let why = lease.check().unwrap_err().to_string();
        assert!(why.contains("server"), "{why}");
        assert!(!lease.is_held() && is_signalled(lease) && lease.remaining().is_zero());
        assert_eq!(kind_of(lease.verify()), Some(ErrorKind::Lost));
    }
    eventually(BOUND, "it is in nobody's way", || entries(&client) == 0);
    let renewals = kind.renewals(&topology, "job");
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    eventually(BOUND, "all of it is free", || {
        kind.is_free(&topology, "job")
    });
    let metrics = client.metrics();
    assert_eq!(
        (metrics.lost, metrics.releases_refused),
        (1, 0),
        "{metrics:?}"
    );
    assert_eq!(kind.renewals(&topology, "job"), renewals);
    let again = lock.try_lock_for(BOUND).unwrap();
    assert!(again.fencing_token() > token);
    eventually(BOUND, "the new one is renewed", || {
        again.check().unwrap();
        kind.renewals(&topology, "job") >= renewals + 2
    });
    again.verify().unwrap();
    again.unlock().unwrap();
    assert_eq!(client.metrics().lost, 1);
}

/// Between two renewals `verify` and `unlock` ask the server, and the first of them that hears of the loss says `NotHeld`; all
/// that is asked afterwards is `Lost`. A second release is not sent.
fn a_loss_is_found_by_whoever_asks_the_server<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let lock = kind.of(&client, "job");

    let held = lock.lock().unwrap();
    held.verify().unwrap();
    delete(&topology, kind, "job");
    held.check().expect("nobody knows yet");
    assert_eq!(kind_of(held.verify()), Some(ErrorKind::NotHeld));
    assert_eq!(kind_of(held.verify()), Some(ErrorKind::Lost));
    assert!(!held.is_held() && is_signalled(&held));
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    assert_eq!(
        (client.metrics().lost, client.metrics().releases_refused),
        (1, 0)
    );

    eventually(BOUND, "all of it is free", || {
        kind.is_free(&topology, "job")
    });
    let held = lock.lock().unwrap();
    let clone = held.lease();
    delete(&topology, kind, "job");
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::NotHeld));
    assert!(!clone.is_held() && is_signalled(&clone));
    assert_eq!(
        (client.metrics().lost, client.metrics().releases_refused),
        (1, 1)
    );

    // And of one that somebody else has by now: it stays his.
    eventually(BOUND, "all of it is free", || {
        kind.is_free(&topology, "job")
    });
    let held = lock.lock().unwrap();
    delete(&topology, kind, "job");
    if kind == Kind::Several {
        // The others are still ours, and keep him out.
        assert_eq!(kind_of(held.unlock()), Some(ErrorKind::NotHeld));
        return;
    }
    let thief = kind
        .rival()
        .of(&topology.outsider(), "job")
        .held_elsewhere();
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::NotHeld));
    thief.lease.verify().unwrap();
    thief.unlock().unwrap();
}

/// `force_unlock`: the holder is told so at its next renewal, who waits gets it at once, and learns that the holder was cut off.
/// Of a free lock it says that there was nothing to do.
fn a_forced_lock_goes_to_who_waits<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology
        .builder()
        .ttl(Duration::from_secs(3))
        .build()
        .unwrap();
    let other = topology.outsider();
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    assert!(!lock.force_unlock().unwrap());
    let held = lock.lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let next = rival.try_lock_for(2 * BOUND).unwrap();
            next.verify().unwrap();
            let of = abandoned(&next);
            next.unlock().unwrap();
            of
        });
        eventually(BOUND, "it waits", || lock.waiters() == 1);
        assert!(rival.force_unlock().unwrap());
        let told = (!kind.leaves_no_mark()).then(|| held.fencing_token().get());
        assert_eq!(waiter.join().unwrap(), told);
    });
    await_end(&held);
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    assert_eq!(client.metrics().lost, 1);
    assert!(!lock.is_locked().unwrap());
    assert!(!lock.force_unlock().unwrap());
}

/// Invariant 1: a machine that slept past the lease, and a hold that a test makes lost: not held from then on, though the key
/// may still be there; others get it in the end.
fn a_lease_that_ran_out_here_is_lost_whatever_the_server_says<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let lock = kind.of(&client, "job");
    let held = lock.lock().unwrap();
    suspend(&client, Duration::from_secs(31));
    assert!(!kind.is_free(&topology, "job"));
    assert!(held.check().is_err() && held.remaining().is_zero());
    assert_eq!(kind_of(held.verify()), Some(ErrorKind::Lost));
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    let rival = kind.rival().of(&other, "job");
    elsewhere(|| rival.try_lock_for(BOUND).unwrap().unlock().unwrap());
    let held = lock.lock().unwrap();
    lose(&held);
    assert!(held.check().is_err() && is_signalled(&held));
    let of = elsewhere(|| abandoned(&rival.try_lock_for(BOUND).unwrap()));
    let told = (!kind.leaves_no_mark()).then(|| held.fencing_token().get());
    assert_eq!(of, told);
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    assert_eq!(client.metrics().lost, 2);
}
