//! Input that can't be right is refused at once, before anything is sent.

use std::time::Duration;

use leasehold::testing::entries;
use leasehold::{Client, ErrorKind};

use super::kind::{Form, Kind, kind_of};
use super::topology::{Standalone, Topology};
use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

cases! {
    all: [bad_names_and_options_are_refused_before_anything_is_sent],
    marked: [],
}

/// phpredis#640, redis#6800, python-redis-lock#73: names that can't be keys or would be mistaken for ours, and leases that are
/// zero, too short or too long, with each form of acquire and each look: the handle can be made, and nothing is sent.
fn bad_names_and_options_are_refused_before_anything_is_sent<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let forms = || {
        let mut forms = vec![Form::Lock, Form::Try, Form::For(BOUND)];
        if kind.has_all_forms() {
            forms.push(Form::Until(std::time::Instant::now() + BOUND));
            forms.push(Form::With(BOUND.into()));
        }
        forms
    };
    for bad in ["", "a}b", "{}x", "x:lh:y", &"x".repeat(1025)] {
        let lock = kind.of(&client, bad);
        for form in forms() {
            let error = lock.acquire(form.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{bad:?} {form:?}");
            assert!(!error.is_retryable());
        }
        assert_eq!(kind_of(lock.inspect()), Some(ErrorKind::InvalidName));
        assert_eq!(kind_of(lock.is_locked()), Some(ErrorKind::InvalidName));
        assert_eq!(kind_of(lock.force_unlock()), Some(ErrorKind::InvalidName));
    }
    let good = || kind.of(&client, "job");
    let (day, second) = (Duration::from_secs(86_400), Duration::from_secs(1));
    let mut refused = vec![
        good().with_fixed_lease(second).with_max_hold(second),
        good().with_max_hold(second).with_fixed_lease(second),
    ];
    for bad in [
        Duration::ZERO,
        Duration::from_millis(49),
        366 * day,
        Duration::MAX,
    ] {
        refused.push(good().with_ttl(bad));
        refused.push(good().with_fixed_lease(bad));
        refused.push(good().with_max_hold(bad));
    }
    for lock in refused {
        for form in forms() {
            let error = lock.acquire(form.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{lock:?} {form:?}");
            assert_eq!(error.name(), Some(lock.name()));
        }
    }
    assert_eq!(topology.proxy().connections_total(), 0);
    assert_eq!(entries(&client), 0);
    assert_eq!(client.metrics().acquired, 0);
}

fn scene() -> (Scene, Client) {
    let scene = Standalone::new();
    let client = scene.client();
    (scene, client)
}

/// Nothing is sent, and nobody waits for ever: `InvalidOptions`, at once, from a handle that could be made.
#[test]
fn no_permits_and_more_than_there_are_is_an_error_at_once() {
    let (scene, client) = scene();
    let none = client.semaphore("s", 0);
    let three = client.semaphore("s", 3);
    let (took, kinds) = timed(|| {
        [
            kind_of(none.acquire()),
            kind_of(none.try_acquire()),
            kind_of(none.acquire_many(0)),
            kind_of(three.acquire_many(0)),
            kind_of(three.try_acquire_many(0)),
            kind_of(three.acquire_many(4)),
            kind_of(three.acquire_many_with(4, BOUND)),
            kind_of(three.try_acquire_many_for(u32::MAX, BOUND)),
            kind_of(three.set_permits(0)),
        ]
    });
    assert_eq!(kinds, [Some(ErrorKind::InvalidOptions); 9]);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(scene.proxy.connections_total(), 0);
    // All that there are is not too many.
    let all = three.acquire_many(3).unwrap();
    assert_eq!(all.permits(), 3);
    assert_eq!(three.available_permits().unwrap(), 0);
    assert_eq!(kind_of(three.try_acquire()), Some(ErrorKind::WouldBlock));
    all.unlock().unwrap();
    assert_eq!(three.available_permits().unwrap(), 3);
}

/// The limit is stored with the lock by its first user; a handle with another one is refused at once, held or not, until
/// `set_permits` changes the limit for all.
#[test]
fn a_handle_with_another_limit_is_refused_until_the_limit_is_changed() {
    let (_scene, client) = scene();
    let (two, three) = (client.semaphore("s", 2), client.semaphore("s", 3));
    let permit = two.acquire().unwrap();
    for _ in 0..2 {
        let (took, error) = timed(|| three.acquire().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        assert!(error.to_string().contains("2 permits"), "{error}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(
            kind_of(three.try_acquire_for(BOUND)),
            Some(ErrorKind::InvalidOptions)
        );
    }
    assert_eq!(
        two.inspect().unwrap().permits,
        Some((1, 2)),
        "nothing was taken"
    );
    assert_eq!(two.inspect().unwrap().waiters, 0);
    // Changed through any handle; that handle and its clones go on with it, and the others are refused.
    let clone = two.clone();
    two.set_permits(3).unwrap();
    permit.verify().unwrap();
    let more = [three.acquire().unwrap(), clone.acquire().unwrap()];
    assert_eq!(two.available_permits().unwrap(), 0);
    assert_eq!(
        kind_of(client.semaphore("s", 2).try_acquire()),
        Some(ErrorKind::InvalidOptions)
    );
    // Less than is held: nothing is taken away, and nobody gets any until it is less.
    three.set_permits(1).unwrap();
    permit.verify().unwrap();
    let one = client.semaphore("s", 1);
    assert_eq!(one.available_permits().unwrap(), 0);
    drop(more);
    assert_eq!(kind_of(one.try_acquire()), Some(ErrorKind::WouldBlock));
    permit.unlock().unwrap();
    one.try_acquire().unwrap().unlock().unwrap();
}

/// One who waits for more than the limit has become is told so; those behind him are served.
#[test]
fn who_waits_for_more_than_the_limit_has_become_is_told() {
    let (scene, client) = scene();
    let other = scene.outsider();
    let (three, watch) = (client.semaphore("s", 3), other.semaphore("s", 3));
    let held = watch.acquire_many(2).unwrap();
    std::thread::scope(|scope| {
        let wants_three = scope.spawn(|| kind_of(three.acquire_many(3)));
        eventually(BOUND, "it waits", || watch.inspect().unwrap().waiters == 1);
        let wants_one = scope.spawn(|| kind_of(three.acquire()));
        eventually(BOUND, "both wait", || watch.inspect().unwrap().waiters == 2);
        watch.set_permits(2).unwrap();
        let (took, told) = timed(|| wants_three.join().unwrap());
        assert_eq!(told, Some(ErrorKind::InvalidOptions));
        assert!(took < Duration::from_secs(3), "{took:?}");
        held.unlock().unwrap();
        assert_eq!(wants_one.join().unwrap(), None);
    });
}

/// No names, and one more than there may be: refused before anything is sent. A thousand are not too many.
#[test]
fn no_names_and_too_many_are_refused_and_a_thousand_are_not() {
    let (scene, client) = scene();
    let names = |n: usize| (0..n).map(|i| format!("m{i}"));
    let none = client.multi_mutex(names(0));
    let many = client.multi_mutex(names(1001));
    for lock in [&none, &many] {
        for kind in [
            kind_of(lock.lock()),
            kind_of(lock.try_lock()),
            kind_of(lock.try_lock_for(BOUND)),
            kind_of(lock.inspect()),
            kind_of(lock.force_unlock()),
        ] {
            assert_eq!(kind, Some(ErrorKind::InvalidOptions));
        }
    }
    assert_eq!(scene.proxy.connections_total(), 0);
    let thousand = client.multi_mutex(names(1000));
    let held = thousand.try_lock().unwrap();
    let last = client.mutex("m999");
    assert_eq!(
        kind_of(elsewhere(|| last.try_lock().map(drop))),
        Some(ErrorKind::WouldBlock)
    );
    held.verify().unwrap();
    held.unlock().unwrap();
    drop(last.try_lock().unwrap());
    assert_eq!(entries(&client), 0);
}

/// A name that is given twice is taken once; the order in which names are given is no matter; and one bad name spoils all.
#[test]
fn names_that_are_given_twice_are_taken_once() {
    let (scene, client) = scene();
    let held = client.multi_mutex(["b", "a", "b", "a"]).lock().unwrap();
    let mut keys: Vec<String> = ask(&mut scene.raw(), "KEYS *");
    keys.sort();
    assert_eq!(keys, ["a", "b", "{a}:lh:s", "{b}:lh:s"]);
    held.verify().unwrap();
    held.unlock().unwrap();
    drop(client.multi_mutex(["a", "b"]).lock().unwrap());
    // Whatever was given, all calls name the same keys, in one order.
    for command in scene.proxy.commands() {
        if command
            .script()
            .is_some_and(|script| script.ends_with("_all"))
        {
            let keys = ["a", "{a}:lh:s", "b", "{b}:lh:s"];
            assert_eq!(command.args[2], b"4");
            assert!(command.args[3..7].iter().eq(keys.map(str::as_bytes)));
        }
    }
    for name in ["a", "b"] {
        drop(client.mutex(name).try_lock().unwrap());
    }
    let spoilt = client.multi_mutex(["a", "x}y", "b"]);
    assert_eq!(kind_of(spoilt.try_lock()), Some(ErrorKind::InvalidName));
    // Two programs that name them in other orders can't lock each other up.
    let other = scene.outsider();
    std::thread::scope(|scope| {
        for (client, names) in [(&client, ["a", "b"]), (&other, ["b", "a"])] {
            scope.spawn(move || {
                for _ in 0..20 {
                    let held = client.multi_mutex(names).try_lock_for(BOUND);
                    held.unwrap().unlock().unwrap();
                }
            });
        }
    });
}
