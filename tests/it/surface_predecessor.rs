//! `predecessor`: how the hold before this one ended. POSIX calls it EOWNERDEAD, std poisoning.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::thread;
use std::time::Duration;

use leasehold::testing::{Server, lose, suspend};
use leasehold::{Client, FencingToken, Mutex, MutexGuard, Predecessor};

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::child::{Child, args, hear, say};
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[(&str, fn())] = &[("predecessor/hold", hold)];

const TTL: Duration = Duration::from_millis(800);

fn panicked(predecessor: &Predecessor) -> Option<(FencingToken, &str)> {
    match predecessor {
        Predecessor::Panicked { token, label, .. } => Some((*token, label)),
        _ => None,
    }
}

fn abandoned(predecessor: &Predecessor) -> Option<(FencingToken, &str)> {
    match predecessor {
        Predecessor::Abandoned { token, label, .. } => Some((*token, label)),
        _ => None,
    }
}

/// Runs into a panic with the guard in hand.
fn panic_holding(guard: MutexGuard) -> FencingToken {
    let token = guard.fencing_token();
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        // Without a message: this one is on purpose.
        panic_any(());
    }));
    assert!(unwound.is_err());
    token
}

#[test]
fn the_first_holder_has_no_predecessor_and_the_next_a_clean_one() {
    let server = Server::start().unwrap();
    let mutex = server.client().mutex("job");
    let first = mutex.lock().unwrap();
    assert_eq!(*first.predecessor(), Predecessor::None);
    first.unlock().unwrap();
    for _ in 0..2 {
        let next = mutex.lock().unwrap();
        assert_eq!(*next.predecessor(), Predecessor::Clean);
        drop(next);
    }
}

/// A drop by unwinding says so; it keeps nobody out, and the one after is told nothing of it any more.
#[test]
fn a_panic_is_told_to_the_next_holder_and_to_no_other() {
    let server = Server::start().unwrap();
    let builder = Client::builder().url(&server.url()).holder_label("settle");
    let mutex = builder.build().unwrap().mutex("job");
    let token = panic_holding(mutex.lock().unwrap());
    let (took, next) = timed(|| mutex.lock().unwrap());
    assert!(
        took < Duration::from_secs(5),
        "the lock was not given back: {took:?}"
    );
    let (of, label) = panicked(next.predecessor()).expect("it panicked");
    assert_eq!(of, token);
    assert!(label.starts_with("settle@"), "{label}");
    assert!(
        label.contains(&format!("/{}/", std::process::id())),
        "{label}"
    );
    assert!(next.fencing_token() > token);
    next.unlock().unwrap();
    assert_eq!(*mutex.lock().unwrap().predecessor(), Predecessor::Clean);
}

/// Only a panic of its own section counts: not one that was caught before, nor one that was under way already.
#[test]
fn a_panic_elsewhere_is_not_taken_for_the_holders() {
    struct LocksWhenDropped<'a>(&'a Mutex);
    impl Drop for LocksWhenDropped<'_> {
        fn drop(&mut self) {
            assert!(thread::panicking());
            drop(self.0.lock().unwrap());
        }
    }
    let server = Server::start().unwrap();
    let mutex = server.client().mutex("job");
    let guard = mutex.lock().unwrap();
    assert!(catch_unwind(|| panic_any(())).is_err());
    drop(guard);
    assert_eq!(*mutex.lock().unwrap().predecessor(), Predecessor::Clean);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _late = LocksWhenDropped(&mutex);
        panic_any(());
    }));
    assert!(unwound.is_err());
    assert_eq!(*mutex.lock().unwrap().predecessor(), Predecessor::Clean);
}

/// An owned guard that is dropped by a panic of the thread it went to.
#[test]
fn a_panic_with_an_owned_guard_is_told() {
    let server = Server::start().unwrap();
    let mutex = server.client().mutex("job");
    let owned = mutex.lock().unwrap().into_owned();
    let token = owned.fencing_token();
    let thread = thread::spawn(move || {
        let _owned = owned;
        panic_any(());
    });
    assert!(thread.join().is_err());
    let next = mutex.lock().unwrap();
    assert_eq!(panicked(next.predecessor()).expect("it panicked").0, token);
}

pub(crate) fn hold() {
    let [url, name] = args().try_into().expect("two arguments");
    let client = Client::builder()
        .url(&url)
        .holder_label("doomed")
        .ttl(TTL)
        .build()
        .unwrap();
    let guard = client.mutex(name).lock().unwrap();
    say(guard.fencing_token().to_string());
    hear(6 * BOUND);
}

/// A process that is killed in mid-section: the next holder gets in by the ttl, and learns who it was.
#[test]
fn a_killed_process_is_found_to_have_abandoned_the_lock() {
    let server = Server::start().unwrap();
    let mutex = server.client().mutex("job");
    let mut child = Child::role("predecessor/hold")
        .arg(server.url())
        .arg("job")
        .spawn();
    let token: FencingToken = child.expect_line(3 * BOUND).parse().unwrap();
    let pid = child.pid();
    child.kill();
    let next = mutex.try_lock_for(BOUND).unwrap();
    let (of, label) = abandoned(next.predecessor()).expect("it died");
    assert_eq!(of, token);
    assert!(
        label.starts_with("doomed@") && label.contains(&format!("/{pid}/")),
        "{label}"
    );
    next.unlock().unwrap();
    assert_eq!(*mutex.lock().unwrap().predecessor(), Predecessor::Clean);
}

/// All other ways to lose a lock: each is "abandoned" to the next holder, however late the guard goes.
#[test]
fn every_loss_is_found_by_the_next_holder() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    type Loss<'a> = (&'a str, Box<dyn FnMut(&MutexGuard) + 'a>);
    let losses: [Loss<'_>; 5] = [
        (
            "overrun",
            Box::new(|guard| eventually(BOUND, "it ends", || !guard.is_held())),
        ),
        ("lose", Box::new(|guard| lose(guard))),
        (
            "forced",
            Box::new(|guard| assert!(client.mutex(guard.name()).force_unlock().unwrap())),
        ),
        (
            "deleted",
            Box::new(|guard| ask(&mut raw, &format!("DEL {}", guard.name()))),
        ),
        ("suspended", Box::new(|_| suspend(&client, 2 * TTL))),
    ];
    for (name, mut lose_it) in losses {
        for guard_goes_first in [true, false] {
            let mutex = client.mutex(name).with_fixed_lease(TTL);
            let guard = mutex.lock().unwrap();
            let token = guard.fencing_token();
            lose_it(&guard);
            let kept = if guard_goes_first {
                drop(guard);
                None
            } else {
                Some(guard)
            };
            let predecessor = elsewhere(|| {
                let next = mutex.try_lock_for(BOUND).unwrap();
                next.predecessor().clone()
            });
            let found = abandoned(&predecessor);
            assert_eq!(
                found.map(|(of, _)| of),
                Some(token),
                "{name}: {predecessor:?}"
            );
            drop(kept);
            let after = mutex.try_lock_for(BOUND).unwrap();
            assert_eq!(*after.predecessor(), Predecessor::Clean, "{name}");
        }
    }
}

/// Waits that come to nothing, looks and refusals in between leave the mark for whoever gets the lock.
#[test]
fn those_who_did_not_get_the_lock_take_nothing_from_who_does() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let token = panic_holding(client.mutex("job").lock().unwrap());
    let holder = client.mutex("job").lock().unwrap();
    assert!(panicked(holder.predecessor()).is_some());
    elsewhere(|| {
        let mutex = other.mutex("job");
        assert!(mutex.try_lock().is_err());
        assert!(mutex.try_lock_for(Duration::from_millis(50)).is_err());
        mutex.inspect().unwrap();
    });
    let mine = panic_holding(holder);
    assert!(mine > token);
    let next = client.mutex("job").lock().unwrap();
    assert_eq!(panicked(next.predecessor()).unwrap().0, mine);
}

/// Kept for an hour after a clean release, for a week where the next holder must learn of something.
#[test]
fn the_mark_is_kept_for_a_week_and_a_clean_state_for_an_hour() {
    let server = Server::start().unwrap();
    let mutex = server.client().mutex("job");
    let mut raw = raw(&server.url());
    let mut kept = || Duration::from_millis(ask(&mut raw, "PTTL {job}:lh:s"));
    let (hour, week) = (Duration::from_secs(3600), Duration::from_secs(7 * 86_400));
    mutex.lock().unwrap().unlock().unwrap();
    let clean = kept();
    assert!(clean <= hour && clean > hour - BOUND, "{clean:?}");
    let guard = mutex.lock().unwrap();
    let held = kept();
    assert!(
        held >= week,
        "a holder that dies now would be forgotten: {held:?}"
    );
    panic_holding(guard);
    let marked = kept();
    assert!(marked <= week && marked > week - BOUND, "{marked:?}");
}
