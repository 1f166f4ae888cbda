//! Acquires that go wrong: a true guard or an error that leaves nothing behind, and a bound that is kept.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{Canceller, ErrorKind, Predecessor, Wait};

use super::kind::{Form, Kind, kind_of};
use super::topology::Topology;
use crate::support::ask::{BOUND, bound_of, elsewhere, timed};
use crate::support::proxy::{Action, Times};
use crate::support::wait::{eventually, one_of};

cases! {
    all: [
        an_acquire_whose_reply_is_lost_gives_a_true_guard_or_nothing,
        a_wait_that_fails_leaves_nothing_behind,
        a_bounded_wait_keeps_its_bound_while_the_server_is_silent,
        a_lost_release_is_no_second_one,
    ],
    marked: [],
}

/// Well above all that is waited for here: nothing may be healed by an expiry.
const LONG: Duration = Duration::from_secs(60);
const IO: Duration = Duration::from_millis(300);

/// redisson#5358, #1966, #4109, #4822; invariant 4: the acquire is carried out, and nobody hears of it, or hears of it late, or
/// it is carried out twice: what comes of it is a guard that the server confirms, or an error after which the lock is free,
/// with nobody renewing it.
fn an_acquire_whose_reply_is_lost_gives_a_true_guard_or_nothing<T: Topology>(kind: Kind) {
    let topology = T::start();
    let late = IO * 2;
    thread::scope(|scope| {
        for (name, action) in [
            ("reply-lost", Action::DropReply),
            ("cut", Action::CutBeforeReply),
            ("late-reply", Action::DelayReply(late)),
            ("late-request", Action::DelayRequest(late)),
            ("twice", Action::DuplicateRequest),
            ("lost", Action::DropRequest),
        ] {
            let topology = &topology;
            scope.spawn(move || {
                let acquires = move |c: &_| kind.is("acquire", name, c);
                let met = topology.proxy().rule(acquires, action, Times::Once);
                let client = topology.builder().ttl(LONG).io_timeout(IO).build().unwrap();
                let lock = kind.of(&client, name);
                let outcome = lock.try_lock();
                assert!(met.wait_hits(1, BOUND), "{name}");
                match outcome {
                    Ok(held) => {
                        held.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
                        // Counted once: one release frees it.
                        held.unlock().unwrap();
                        assert!(kind.is_free(topology, name), "{name}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error}");
                    }
                }
                let other = topology.outsider();
                let next = kind
                    .rival()
                    .of(&other, name)
                    .try_lock_for(LONG / 4)
                    .unwrap();
                let known = [Predecessor::None, Predecessor::Clean];
                assert!(
                    known.contains(next.predecessor()),
                    "{name}: nobody was cut off"
                );
                next.unlock().unwrap();
                assert_eq!(kind.renewals(topology, name), 0, "{name}");
                // The one that is late arrives, and is for nobody.
                thread::sleep(late);
                assert!(kind.is_free(topology, name), "{name}");
            });
        }
    });
    assert_eq!(entries(&topology.builder().build().unwrap()), 0);
}

/// However a wait ends without the lock (timed out, cancelled, its client's bound), nobody waits afterwards, nothing is held
/// for it, and the lock is not handed to it later.
fn a_wait_that_fails_leaves_nothing_behind<T: Topology>(kind: Kind) {
    let topology = T::start();
    let bounded = topology.builder().max_wait(Duration::from_millis(200));
    let canceller = Canceller::new();
    let cancelled = topology.builder().cancelled_by(&canceller);
    let (bounded, cancelled) = (bounded.build().unwrap(), cancelled.build().unwrap());
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let rival = kind.rival().of(&other, "job");
    let holder = rival.lock().unwrap();
    thread::scope(|scope| {
        let in_time = Form::For(Duration::from_millis(200));
        let waits = [
            (&client, in_time, ErrorKind::TimedOut),
            (&bounded, Form::Lock, ErrorKind::TimedOut),
            (&cancelled, Form::Lock, ErrorKind::Cancelled),
        ];
        let waits = waits.map(|(client, form, kind_of_end)| {
            let lock = kind.of(client, "job");
            scope.spawn(move || {
                let error = lock.acquire(form).unwrap_err();
                // Where the machine is busy the server may have been too slow to say who has it.
                let known = [kind_of_end, ErrorKind::Unavailable];
                assert!(known.contains(&error.kind()), "{error}");
            })
        });
        let [one, two, three] = waits;
        one.join().unwrap();
        two.join().unwrap();
        eventually(BOUND, "one is left", || rival.waiters() == 1);
        canceller.cancel();
        three.join().unwrap();
    });
    for client in [&client, &bounded, &cancelled] {
        assert_eq!(entries(client), 0);
    }
    eventually(BOUND, "nobody waits", || rival.waiters() == 0);
    holder.verify().unwrap();
    holder.unlock().unwrap();
    assert!(
        kind.is_free(&topology, "job"),
        "it was given to one who has gone"
    );
    elsewhere(|| {
        kind.of(&client, "job")
            .try_lock()
            .unwrap()
            .unlock()
            .unwrap()
    });
    assert_eq!(client.metrics().acquired, 1);
}

/// redisson#2790, #2801, #543; invariant 4: the server takes connections and answers nothing, before the first contact, with
/// connections that stand, and in mid-wait: a bounded wait ends when it must, with the reason, and what it may have left there
/// is gone soon after the server speaks again.
fn a_bounded_wait_keeps_its_bound_while_the_server_is_silent<T: Topology>(kind: Kind) {
    let topology = T::start();
    let wait = Duration::from_millis(600);
    for is_warm in [false, true] {
        one_of(8, || {
            let client = topology.builder().build().unwrap();
            let lock = kind.of(&client, "job");
            if is_warm {
                lock.lock().unwrap().unlock().unwrap();
            }
            topology.proxy().black_hole(true);
            let (took, result) = timed(|| lock.try_lock_for(wait));
            topology.proxy().black_hole(false);
            assert_eq!(kind_of(result), Some(ErrorKind::Unavailable));
            let free = topology.outsider();
            let free = kind.rival().of(&free, "job");
            free.try_lock_for(BOUND).unwrap().unlock().unwrap();
            eventually(BOUND, "nothing is left", || entries(&client) == 0);
            if took > bound_of(wait) {
                return Err(format!("{took:?}, warm: {is_warm}"));
            }
            Ok(())
        });
    }
    // In mid-wait.
    let other = topology.outsider();
    let holder = kind.rival().of(&other, "job").held_elsewhere();
    one_of(8, || {
        let client = topology.builder().build().unwrap();
        let lock = kind.of(&client, "job");
        let took = thread::scope(|scope| {
            let start = Instant::now();
            let waiter = scope.spawn(|| lock.try_lock_for(2 * wait).map(drop));
            eventually(BOUND, "it waits", || {
                lock.waiters() >= 1 || waiter.is_finished()
            });
            topology.proxy().black_hole(true);
            let ended = waiter.join().unwrap();
            let took = start.elapsed();
            topology.proxy().black_hole(false);
            let known = [ErrorKind::Unavailable, ErrorKind::TimedOut];
            assert!(known.contains(&ended.unwrap_err().kind()));
            took
        });
        eventually(BOUND, "it is off the list", || lock.waiters() == 0);
        if took > bound_of(2 * wait) {
            return Err(format!("{took:?}"));
        }
        Ok(())
    });
    holder.lease.verify().unwrap();
    holder.unlock().unwrap();
    let lock = kind.of(&other, "job");
    assert_eq!(kind_of(lock.acquire(form_of(kind))), None);
}

/// The longest form that each kind has, bounded.
fn form_of(kind: Kind) -> Form {
    if kind.has_all_forms() {
        Form::With(Wait::for_duration(BOUND))
    } else {
        Form::For(BOUND)
    }
}

/// redisson#5066; DistributedLock#191: the reply to a release is lost: it is sent again, which frees nothing that somebody else
/// has by then, and is told "released"; the drop does not hang.
fn a_lost_release_is_no_second_one<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().io_timeout(IO).build().unwrap();
    let lock = kind.of(&client, "job");
    for action in [
        Action::CutBeforeReply,
        Action::DuplicateRequest,
        Action::DropReply,
    ] {
        let releases = move |c: &_| kind.is("release", "job", c);
        let held = lock.try_lock_for(BOUND).unwrap();
        let met = topology.proxy().rule(releases, action.clone(), Times::Once);
        let (took, result) = timed(|| held.unlock());
        assert!(took < Duration::from_secs(5), "{took:?}");
        let known = [None, Some(ErrorKind::Unavailable)];
        assert!(known.contains(&kind_of(result)), "{action:?}");
        assert!(met.wait_hits(1, BOUND));
        // The next one holds it whatever still arrives of that.
        let other = topology.outsider();
        let next = kind.rival().of(&other, "job").try_lock_for(BOUND).unwrap();
        if !kind.leaves_no_mark() {
            assert_eq!(*next.predecessor(), Predecessor::Clean);
        }
        thread::sleep(IO);
        next.verify().unwrap();
        if let Some((free, all)) = kind.of(&other, "job").inspect().unwrap().permits {
            assert_eq!(free, all - if kind == Kind::Permits { 2 } else { 1 });
        }
        next.unlock().unwrap();
    }
    assert!(kind.is_free(&topology, "job"));
    assert_eq!(client.metrics().releases_refused, 0);
}
