//! How long a hold lasts: renewed for as long as its guard lives, fixed, extended, limited.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;

use super::held::abandoned;
use super::kind::{Kind, kind_of};
use super::topology::Topology;
use crate::support::ask::{BOUND, elsewhere};
use crate::support::locks::{await_end, is_signalled};
use crate::support::wait::eventually;

cases! {
    all: [
        a_hold_is_renewed_beyond_its_ttl_and_not_after_its_release,
        a_fixed_lease_held_past_its_end_is_lost,
        a_fixed_lease_gets_the_end_that_it_is_given,
        a_hold_with_a_limit_is_renewed_up_to_it,
    ],
    marked: [],
}

/// Invariants 2 and 3; redisson#7272, #7251: over two ttls it is ours and nobody else's, by renewals alone; after
/// the release there are none.
fn a_hold_is_renewed_beyond_its_ttl_and_not_after_its_release<T: Topology>(kind: Kind) {
    let topology = T::start();
    let ttl = Duration::from_millis(1200);
    let client = topology.builder().ttl(ttl).build().unwrap();
    let other = topology.outsider();
    let rival = kind.rival().of(&other, "job");
    let held = kind.of(&client, "job").lock().unwrap();
    let start = Instant::now();
    while start.elapsed() < ttl * 2 {
        held.check().unwrap();
        assert!(held.remaining() <= ttl);
        assert_eq!(
            elsewhere(|| kind_of(rival.try_lock())),
            Some(ErrorKind::WouldBlock)
        );
        thread::sleep(ttl / 20);
    }
    held.verify().unwrap();
    let metrics = client.metrics();
    assert!(metrics.renewals >= 3, "{metrics:?}");
    assert_eq!(metrics.lost, 0);
    held.unlock().unwrap();
    let renewals = kind.renewals(&topology, "job");
    assert!(kind.is_free(&topology, "job"));
    // As many more as would have been due, of another lock.
    let witness = kind.of(&client, "witness").lock().unwrap();
    eventually(BOUND, "another is renewed", || {
        kind.renewals(&topology, "witness") >= 2
    });
    assert_eq!(kind.renewals(&topology, "job"), renewals);
    witness.unlock().unwrap();
}

/// A fixed lease is not renewed: at its end it is lost, for good, which the lease, its clones, the metrics and the release say;
/// the next one gets it, and learns that it was abandoned.
fn a_fixed_lease_held_past_its_end_is_lost<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let term = Duration::from_millis(600);
    let held = kind
        .of(&client, "job")
        .with_fixed_lease(term)
        .lock()
        .unwrap();
    let clone = held.lease();
    held.check().unwrap();
    assert!(!is_signalled(&held));
    await_end(&clone);
    let why = held.check().unwrap_err().to_string();
    assert!(why.contains("fixed lease"), "{why}");
    assert!(!held.is_held() && !clone.is_held() && held.remaining().is_zero());
    let next = elsewhere(|| {
        let next = kind.rival().of(&other, "job").try_lock_for(BOUND).unwrap();
        let of = abandoned(&next);
        next.unlock().unwrap();
        of
    });
    let told = (!kind.leaves_no_mark()).then(|| held.fencing_token().get());
    assert_eq!(next, told);
    // Sticky: that it is free now, and could be renewed, is no matter.
    assert!(held.check().is_err() && is_signalled(&clone));
    assert_eq!(kind_of(held.verify()), Some(ErrorKind::Lost));
    assert_eq!(kind_of(held.extend(BOUND)), Some(ErrorKind::Lost));
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    let metrics = client.metrics();
    assert_eq!(
        (metrics.overrun_leases, metrics.lost),
        (1, 1),
        "{metrics:?}"
    );
    assert_eq!(kind.renewals(&topology, "job"), 0);
}

/// `extend` sets the end anew, later or sooner, here and on the server, in one step; a renewed hold has no end to be set.
fn a_fixed_lease_gets_the_end_that_it_is_given<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let lock = kind.of(&client, "job");
    let fixed = lock.clone().with_fixed_lease(Duration::from_secs(20));
    let held = fixed.lock().unwrap();
    for secs in [40, 10, 30] {
        let lease = Duration::from_secs(secs);
        held.extend(lease).unwrap();
        let (here, there) = (held.remaining(), lock.inspect().unwrap().ttl_left.unwrap());
        let least = lease.saturating_sub(Duration::from_secs(5));
        assert!(here > least && here < lease, "{here:?} of {lease:?}");
        assert!(
            there >= here && there <= lease,
            "{there:?}, and {here:?} here"
        );
    }
    for bad in [Duration::ZERO, Duration::from_millis(49), Duration::MAX] {
        assert_eq!(kind_of(held.extend(bad)), Some(ErrorKind::InvalidOptions));
    }
    held.verify().unwrap();
    held.unlock().unwrap();
    let renewed = lock.lock().unwrap();
    let refused = kind_of(renewed.extend(Duration::from_secs(40)));
    assert_eq!(refused, Some(ErrorKind::InvalidOptions));
    renewed.verify().unwrap();
}

/// A hung job lets go: renewed as any, but lost when its limit is reached, for which the others wait no longer than that.
fn a_hold_with_a_limit_is_renewed_up_to_it<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let (ttl, max) = (Duration::from_secs(1), Duration::from_millis(1500));
    let lock = kind.of(&client, "job").with_ttl(ttl).with_max_hold(max);
    let start = Instant::now();
    let held = lock.lock().unwrap();
    await_end(&held);
    let lasted = start.elapsed();
    assert!(lasted > ttl, "it was renewed at first: {lasted:?}");
    assert!(client.metrics().renewals >= 1);
    let next = elsewhere(|| kind_of(kind.rival().of(&other, "job").try_lock_for(BOUND)));
    let waited = start.elapsed();
    assert_eq!(next, None);
    assert!(waited < max + Duration::from_secs(2), "{waited:?}");
    assert!(!held.is_held());
    assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
    let metrics = client.metrics();
    assert_eq!(
        (metrics.lost, metrics.overrun_leases),
        (1, 0),
        "{metrics:?}"
    );
}
