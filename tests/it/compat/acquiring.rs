//! Who gets it and who does not, and that each form of acquire says so in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{BusyAsNone, Canceller, ErrorKind, Wait};

use super::kind::{Form, Kind, kind_of};
use super::topology::{Standalone, Topology};
use crate::support::ask::{BOUND, bound_of, elsewhere, timed};
use crate::support::wait::{eventually, one_of};

cases! {
    all: [
        two_clients_exclude_each_other,
        each_form_takes_what_is_free,
        each_form_says_in_time_that_it_is_busy,
        a_cancelled_wait_ends_at_once,
        tokens_rise_with_every_acquisition_by_any_client,
    ],
    marked: [],
}

/// Invariant 1, redis-py#621: who has it keeps the other out, whichever of them came first; and in a race of many rounds the
/// two are never in it together.
fn two_clients_exclude_each_other<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (mine, theirs) = (topology.outsider(), topology.outsider());
    for (first, second) in [(kind, kind.rival()), (kind.rival(), kind)] {
        let (first, second) = (first.of(&mine, "job"), second.of(&theirs, "job"));
        let held = first.lock().unwrap();
        assert!(second.is_locked().unwrap());
        let refused = elsewhere(|| kind_of(second.try_lock()));
        assert_eq!(refused, Some(ErrorKind::WouldBlock));
        held.verify().unwrap();
        held.unlock().unwrap();
        assert!(!second.is_locked().unwrap() && kind.is_free(&topology, "job"));
        elsewhere(|| second.try_lock().unwrap().unlock().unwrap());
    }
    let is_inside = AtomicBool::new(false);
    thread::scope(|scope| {
        for lock in [kind.of(&mine, "race"), kind.rival().of(&theirs, "race")] {
            let is_inside = &is_inside;
            scope.spawn(move || {
                for _ in 0..20 {
                    let held = lock.try_lock_for(BOUND).unwrap();
                    assert!(!is_inside.swap(true, Ordering::SeqCst), "{lock:?}");
                    thread::yield_now();
                    assert!(is_inside.swap(false, Ordering::SeqCst), "{lock:?}");
                    held.unlock().unwrap();
                }
            });
        }
    });
}

/// The forms of an acquire that the kind has, each of which waits for so long at most.
fn forms(kind: Kind, wait: Duration) -> Vec<Form> {
    let mut forms = vec![Form::For(wait)];
    if kind.has_all_forms() {
        forms.push(Form::Until(Instant::now() + wait));
        forms.push(Form::With(wait.into()));
    }
    forms
}

/// Each form gives a guard that the server confirms, and that frees the lock when it is dropped.
fn each_form_takes_what_is_free<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.outsider();
    let lock = kind.of(&client, "job");
    let all = [Form::Lock, Form::Try];
    for form in all.into_iter().chain(forms(kind, BOUND)) {
        let held = lock.acquire(form.clone()).unwrap();
        assert!(
            held.is_held() && !kind.is_free(&topology, "job"),
            "{form:?}"
        );
        held.verify().unwrap_or_else(|e| panic!("{form:?}: {e}"));
        assert_eq!(lock.name(), held.name());
        drop(held);
        assert!(kind.is_free(&topology, "job"), "{form:?}");
    }
}

/// The five forms on a busy lock: a look says `WouldBlock` at once, a bounded wait `TimedOut` when its time is up, to 10 % and
/// 20 ms (python-redis-lock: each poll restarted the time). Afterwards nobody waits.
fn each_form_says_in_time_that_it_is_busy<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let lock = kind.of(&client, "job");
    let holder = kind.rival().of(&other, "job").lock().unwrap();
    thread::scope(|scope| {
        let tries = scope.spawn(|| {
            let busy = lock.try_lock().unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::WouldBlock, "{busy}");
            assert_eq!(busy.name(), Some(lock.name()));
            assert!(lock.try_lock().busy_as_none().unwrap().is_none());
            let wait = Duration::from_millis(250);
            for i in 0..forms(kind, wait).len() {
                one_of(8, || {
                    let form = forms(kind, wait).swap_remove(i);
                    let (took, result) = timed(|| lock.acquire(form.clone()));
                    let error = result.expect_err("it is held");
                    let is_right = error.kind() == ErrorKind::TimedOut && error.is_busy();
                    if is_right && took >= wait && took <= bound_of(wait) {
                        return Ok(());
                    }
                    Err(format!("{form:?}: {error} after {took:?}"))
                });
            }
        });
        tries.join().unwrap();
    });
    assert_eq!(entries(&client), 0);
    // What does not fit into the bound goes on in the background.
    eventually(BOUND, "nobody waits", || lock.waiters() == 0);
    holder.verify().unwrap();
    holder.unlock().unwrap();
}

/// A canceller of the wait, or of the client, ends a wait of any length at once; one that was used before lets nothing be sent.
fn a_cancelled_wait_ends_at_once<T: Topology>(kind: Kind) {
    let topology = T::start();
    let other = topology.outsider();
    let watch = kind.of(&other, "job");
    let holder = kind.rival().of(&other, "job").lock().unwrap();
    let of_client = [true, false];
    for of_client in &of_client[..1 + usize::from(kind.has_all_forms())] {
        one_of(3, || {
            let canceller = Canceller::new();
            let builder = topology.builder();
            let client = if *of_client {
                builder.cancelled_by(&canceller).build().unwrap()
            } else {
                builder.build().unwrap()
            };
            let lock = kind.of(&client, "job");
            let form = || match of_client {
                true => Form::Lock,
                false => Form::With(Wait::forever().cancelled_by(&canceller)),
            };
            let took = thread::scope(|scope| {
                let waiter = scope.spawn(|| kind_of(lock.acquire(form())));
                eventually(BOUND, "it waits", || watch.waiters() == 1);
                let start = Instant::now();
                canceller.cancel();
                assert_eq!(waiter.join().unwrap(), Some(ErrorKind::Cancelled));
                start.elapsed()
            });
            eventually(BOUND, "it is off the list", || watch.waiters() == 0);
            topology.proxy().reset_counts();
            let again = elsewhere(|| kind_of(lock.acquire(form())));
            assert_eq!(again, Some(ErrorKind::Cancelled));
            assert_eq!(topology.proxy().count(|c| kind.is("acquire", "job", c)), 0);
            assert_eq!(entries(&client), 0);
            if took > Duration::from_millis(400) {
                return Err(format!("{took:?}"));
            }
            Ok(())
        });
    }
    holder.unlock().unwrap();
}

/// Invariant 9: over many acquisitions by two clients, threads and the rival included, each token is above the one before.
fn tokens_rise_with_every_acquisition_by_any_client<T: Topology>(kind: Kind) {
    let topology = T::start();
    let clients = [topology.outsider(), topology.outsider()];
    let mut last = 0;
    for round in 0..8 {
        for client in &clients {
            for kind in [kind, kind.rival()] {
                let acquire = || {
                    let held = kind.of(client, "job").lock().unwrap();
                    let token = held.fencing_token().get();
                    held.unlock().unwrap();
                    token
                };
                let token = if round % 2 == 0 {
                    acquire()
                } else {
                    elsewhere(acquire)
                };
                assert!(token > last, "{token} after {last}");
                last = token;
            }
        }
    }
    let info = kind.of(&clients[0], "job").inspect().unwrap();
    assert_eq!(info.token.map(|token| token.get()), Some(last));
}

/// All or nothing: any one of several names, be it taken as a plain mutex, keeps the whole out, and the others stay free.
#[test]
fn one_busy_name_of_several_keeps_the_whole_out_and_nothing_is_taken() {
    let topology = Standalone::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let lock = Kind::Several.of(&client, "job");
    for busy in Kind::Several.keys("job") {
        let holder = other.mutex(&*busy).lock().unwrap();
        let wait = Duration::from_millis(100);
        let kinds = elsewhere(|| [kind_of(lock.try_lock()), kind_of(lock.try_lock_for(wait))]);
        assert_eq!(kinds[0], Some(ErrorKind::WouldBlock), "{busy}");
        assert!(kinds[1].is_some(), "{busy}");
        for name in Kind::Several.keys("job") {
            let is_free = !other.mutex(&*name).is_locked().unwrap();
            assert_eq!(is_free, name != busy, "{name}, while {busy} is held");
        }
        holder.verify().unwrap();
        holder.unlock().unwrap();
        let all = lock.try_lock().unwrap();
        let refused = elsewhere(|| kind_of(other.mutex(&*busy).try_lock()));
        assert_eq!(refused, Some(ErrorKind::WouldBlock), "{busy}");
        all.unlock().unwrap();
    }
}
