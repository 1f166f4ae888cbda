//! What it costs: round trips, and what stays when it is over.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;

use super::kind::{Form, Kind};
use super::topology::{Standalone, Topology};
use crate::support::ask::{BOUND, ask, elsewhere};
use crate::support::child::{Child, args, hear, say};
use crate::support::wait::{eventually, threads_of_this_process};

cases! {
    all: [
        an_uncontended_acquire_is_one_round_trip_and_so_is_its_release,
        nothing_outlives_its_use,
    ],
    marked: [],
}

/// One command each way for an acquire, in each of its forms, and one for the release, by `unlock` and by drop.
fn an_uncontended_acquire_is_one_round_trip_and_so_is_its_release<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let lock = kind.of(&client, "job");
    // The connection is made, and the renewer's thread.
    lock.lock().unwrap().unlock().unwrap();
    let trips = || {
        let proxy = topology.proxy();
        (proxy.round_trips(), proxy.count(|_| true))
    };
    let fixed = lock.clone().with_fixed_lease(BOUND);
    let limited = lock.clone().with_max_hold(BOUND);
    for lock in [&lock, &fixed, &limited] {
        let mut forms = vec![Form::Lock, Form::Try, Form::For(BOUND)];
        if kind.has_all_forms() {
            forms.push(Form::Until(Instant::now() + BOUND));
            forms.push(Form::With(BOUND.into()));
        }
        for (i, form) in forms.into_iter().enumerate() {
            topology.proxy().reset_counts();
            let held = lock.acquire(form.clone()).unwrap();
            assert_eq!(trips(), (1, 1), "{form:?}");
            held.check().unwrap();
            assert!(held.is_held() && !held.remaining().is_zero());
            assert_eq!(trips(), (1, 1), "a check asks nobody");
            if i % 2 == 0 {
                held.unlock().unwrap();
            } else {
                drop(held);
            }
            assert_eq!(trips(), (2, 2), "{form:?}");
            assert!(kind.is_free(&topology, "job"));
        }
    }
    assert_eq!(topology.proxy().connections(), 1);
}

/// The role of a process: uses locks in all ways, alone and with others; says what its clients' tables and how many threads
/// are left.
pub(crate) fn use_and_drop() {
    let [place, kind] = &args()[..] else {
        panic!("two arguments")
    };
    let kind = Kind::named(kind);
    let threads_before = threads_of_this_process();
    let build = || {
        let builder = Standalone::builder_at(place);
        builder.ttl(Duration::from_secs(5)).build().unwrap()
    };
    let clients = [build(), build()];
    for i in 0..10 {
        let name = format!("job{i}");
        let [lock, rival] = [(kind, &clients[0]), (kind.rival(), &clients[1])]
            .map(|(kind, client)| kind.of(client, &name));
        let holder = rival.lock().unwrap();
        thread::scope(|scope| {
            let waiters = [0, 1, 2].map(|_| scope.spawn(|| lock.try_lock_for(BOUND).map(drop)));
            let in_vain = scope.spawn(|| lock.try_lock_for(Duration::from_millis(20)).map(drop));
            assert!(in_vain.join().unwrap().is_err());
            eventually(BOUND, "they wait", || rival.waiters() >= 1);
            holder.unlock().unwrap();
            for waiter in waiters {
                waiter.join().unwrap().unwrap();
            }
        });
        let fixed = lock.clone().with_fixed_lease(Duration::from_millis(50));
        let lost = fixed.try_lock_for(BOUND);
        if let Ok(lost) = &lost {
            eventually(BOUND, "it is lost", || !lost.is_held());
        }
        eventually(BOUND, "nothing is in the tables", || {
            clients.each_ref().map(entries) == [0, 0]
        });
        drop(lost);
    }
    drop(clients);
    eventually(BOUND, "all threads have ended", || {
        threads_of_this_process() <= threads_before
    });
    say("dropped");
    // Its connections must be closed while it lives, not because it ends.
    hear(BOUND);
}

/// Invariant 10; redisson#2575, #4064, #3577, #7264: after waits that were met and not met, holds that were given back and
/// lost, and the clients' end: no entry, thread, channel or connection is left, no lease and nobody on a list; all keys expire.
fn nothing_outlives_its_use<T: Topology>(kind: Kind) {
    let topology = T::start();
    let mut raw = topology.raw("job");
    let mut child = Child::role("compat/use_and_drop")
        .arg(topology.place())
        .arg(format!("{kind:?}"))
        .spawn();
    child.wait_for("dropped", 6 * BOUND);
    eventually(BOUND, "all connections are closed", || {
        topology.proxy().connections() == 0
    });
    assert_eq!(ask::<Vec<String>>(&mut raw, "PUBSUB CHANNELS"), [""; 0]);
    let other = topology.outsider();
    for i in 0..10 {
        let name = format!("job{i}");
        let lock = kind.of(&other, &name);
        eventually(BOUND, "the last lease has run out", || {
            !lock.is_locked().unwrap()
        });
        assert_eq!(lock.waiters(), 0);
        elsewhere(|| lock.try_lock().unwrap().unlock().unwrap());
        assert!(kind.is_free(&topology, &name));
    }
    let keys: Vec<String> = ask(&mut raw, "KEYS *");
    assert!(keys.iter().all(|key| key.contains(":lh:")), "{keys:?}");
    assert_eq!(keys.len(), 10 * kind.keys("job").len(), "{keys:?}");
    for key in keys {
        assert!(ask::<i64>(&mut raw, &format!("PTTL {key}")) > 0, "{key}");
    }
    child.send_line("end");
}
