//! A forked child has copies of its parent's locks, which are nothing to it.
#![cfg(unix)]

use std::time::{Duration, Instant};

use leasehold::ErrorKind;

use super::kind::{Form, Kind, kind_of};
use super::topology::{Standalone, Topology};
use crate::invariants_fork::in_a_fork;
use crate::support::ask::BOUND;
use crate::support::child::{Child, args, hear, say};
use crate::support::wait::eventually;

cases! {
    all: [a_forked_child_does_nothing_to_its_parents_lock],
    marked: [],
}

/// The role of a process: holds a lock, and forks.
pub(crate) fn fork_and_use() {
    let [place, kind] = &args()[..] else {
        panic!("two arguments")
    };
    let kind = Kind::named(kind);
    let builder = Standalone::builder_at(place).ttl(Duration::from_secs(2));
    let client = builder.build().unwrap();
    let lock = kind.of(&client, "job");
    let held = lock.lock().unwrap();
    say("held");
    hear(BOUND);
    // Moved into the copy: there they are used up and dropped, here they live on.
    let (mut held, mut lock, mut client) = (Some(held), Some(lock), Some(client));
    in_a_fork(|| {
        let start = Instant::now();
        let (held, lock) = (held.take().unwrap(), lock.take().unwrap());
        for lock in [&lock, &kind.of(client.as_ref().unwrap(), "free")] {
            for form in [Form::Lock, Form::Try, Form::For(BOUND)] {
                assert_eq!(kind_of(lock.acquire(form)), Some(ErrorKind::Unsupported));
            }
            assert_eq!(kind_of(lock.inspect()), Some(ErrorKind::Unsupported));
            assert_eq!(kind_of(lock.force_unlock()), Some(ErrorKind::Unsupported));
        }
        let lease = held.lease();
        assert!(!lease.is_held() && lease.remaining().is_zero());
        assert_eq!(kind_of(lease.verify()), Some(ErrorKind::Lost));
        assert_eq!(kind_of(held.unlock()), Some(ErrorKind::Lost));
        drop((lease, lock, client.take()));
        // None of that waited for anything.
        assert!(start.elapsed() < BOUND / 2);
    });
    // A guard that is only dropped there.
    let mut second = Some(kind.of(client.as_ref().unwrap(), "second").lock().unwrap());
    in_a_fork(|| drop(second.take()));
    say("forked");
    hear(BOUND);
    for held in [held, second] {
        let held = held.unwrap();
        held.verify().unwrap();
        held.unlock().unwrap();
    }
    lock.unwrap().try_lock().unwrap().unlock().unwrap();
    say("released");
}

/// Invariant 11: every operation fails at once in a forked child, every drop does nothing, nothing is sent, and the parent's
/// lock is held, renewed and given back as if nothing had been.
fn a_forked_child_does_nothing_to_its_parents_lock<T: Topology>(kind: Kind) {
    let topology = T::start();
    let mut child = Child::role("compat/fork_and_use")
        .arg(topology.place())
        .arg(format!("{kind:?}"))
        .spawn();
    child.wait_for("held", BOUND);
    let released = || topology.proxy().count(|c| kind.is("release", "job", c));
    child.send_line("fork");
    child.wait_for("forked", BOUND);
    assert_eq!(released(), 0);
    let renewals = kind.renewals(&topology, "job");
    eventually(BOUND, "it is renewed", || {
        kind.renewals(&topology, "job") > renewals
    });
    assert!(!kind.is_free(&topology, "job") && !kind.is_free(&topology, "second"));
    child.send_line("go on");
    child.wait_for("released", BOUND);
    assert_eq!(released(), 2);
    for name in ["job", "second"] {
        assert!(kind.is_free(&topology, name));
    }
}
