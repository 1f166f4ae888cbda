//! Holders that end badly: a panic, a killed process. The lock comes free, and the next one learns what happened.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::time::{Duration, Instant};

use leasehold::Predecessor;

use super::held::{abandoned, panicked};
use super::kind::Kind;
use super::topology::{Standalone, Topology};
use crate::support::ask::BOUND;
use crate::support::child::{Child, args, hear, say};

cases! {
    all: [a_panic_gives_it_back, a_killed_holder_is_gone_within_its_ttl],
    marked: [an_end_in_good_order_is_told_as_such],
}

/// Invariant 11: a guard that is dropped by unwinding releases; where holders leave a mark, the next one learns of the panic,
/// and nobody after that.
fn a_panic_gives_it_back<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&client, "job"));
    let held = lock.lock().unwrap();
    let (lease, token) = (held.lease(), held.fencing_token().get());
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _held = held;
        // Without a message: this one is on purpose.
        panic_any(());
    }));
    assert!(unwound.is_err());
    assert!(kind.is_free(&topology, "job"));
    assert!(!lease.is_held());
    for (lock, told) in [(&rival, !kind.leaves_no_mark()), (&lock, false)] {
        let next = lock.try_lock().unwrap();
        assert_eq!(panicked(&next), told.then_some(token));
        next.unlock().unwrap();
    }
    assert_eq!(client.metrics().lost, 0, "it was given back, not lost");
}

/// The role of a process: holds a lock until it is killed, or told to let go.
pub(crate) fn hold() {
    let [place, kind, name, ttl] = &args()[..] else {
        panic!("four arguments")
    };
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    // The one place where the topology is known by its place alone.
    let builder = Standalone::builder_at(place).ttl(ttl);
    let client = builder.holder_label("victim").build().unwrap();
    let held = Kind::named(kind).of(&client, name).lock().unwrap();
    say(held.fencing_token().to_string());
    hear(6 * BOUND);
    held.unlock().unwrap();
    say("released");
}

/// dv/redis-semaphore#13, redis-py#554: the lock of a process that was killed (while it was renewing, and with one waiting) is
/// free when its ttl has run out: the waiter has it then, and not a fallback poll later by much. Where holders leave a mark it
/// says so.
fn a_killed_holder_is_gone_within_its_ttl<T: Topology>(kind: Kind) {
    let topology = T::start();
    let ttl = Duration::from_secs(1);
    let mut child = Child::role("compat/hold")
        .arg(topology.place())
        .arg(format!("{kind:?}"))
        .arg("job")
        .arg(ttl.as_millis())
        .spawn();
    let token: u64 = child.expect_line(BOUND).parse().unwrap();
    let client = topology.outsider();
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&client, "job"));
    let info = lock.inspect().unwrap();
    assert!(info.held && info.holder.unwrap().starts_with("victim@"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let next = rival.try_lock_for(2 * BOUND).unwrap();
            let got = Instant::now();
            if kind.leaves_no_mark() {
                assert_eq!(*next.predecessor(), Predecessor::None);
            } else {
                assert_eq!(abandoned(&next), Some(token));
                assert!(format!("{:?}", next.predecessor()).contains("victim@"));
            }
            assert!(next.fencing_token().get() > token);
            next.unlock().unwrap();
            got
        });
        crate::support::wait::eventually(BOUND, "it waits", || lock.waiters() == 1);
        let killed = Instant::now();
        child.kill();
        let took = waiter.join().unwrap().duration_since(killed);
        // To the ttl comes at most one heartbeat of those who queue, a third of their claim, and what a busy machine takes.
        assert!(took < ttl + Duration::from_secs(2), "{took:?}");
    });
    assert!(kind.is_free(&topology, "job"));
}

/// A release in good order is told as one, and the first holder of all as none; so is an end in another process.
fn an_end_in_good_order_is_told_as_such<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.outsider();
    let lock = kind.of(&client, "job");
    let mut child = Child::role("compat/hold")
        .arg(topology.place())
        .arg(format!("{kind:?}"))
        .arg("job")
        .arg(30_000)
        .spawn();
    child.expect_line(BOUND);
    child.send_line("release");
    child.wait_for("released", BOUND);
    for _ in 0..2 {
        let next = lock.try_lock().unwrap();
        assert_eq!(*next.predecessor(), Predecessor::Clean);
    }
    let first = kind.of(&client, "new").try_lock().unwrap();
    assert_eq!(*first.predecessor(), Predecessor::None);
}
