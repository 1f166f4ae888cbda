//! Invariant 11: drop never panics, is bounded by the I/O timeout, and works while unwinding.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use leasehold::testing::entries;
use leasehold::{Client, ErrorKind, MutexGuard, Predecessor};

use crate::support::locks::{
    BOUND, Scene, Script, any, exists, keys_without_ttl, ms, of, pttl, secs, takes_at_most, timed,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::eventually;

const IO: Duration = Duration::from_millis(300);

fn client(bench: &Scene) -> Client {
    let builder = bench.builder().io_timeout(IO).connect_timeout(IO);
    builder.build().unwrap()
}

/// Panics without a word on standard error, which one of its own making would not.
fn panics(f: impl FnOnce()) {
    let f = AssertUnwindSafe(|| {
        f();
        resume_unwind(Box::new(()));
    });
    assert!(catch_unwind(f).is_err());
}

/// Invariant 11: a panic releases the lock, and the next holder learns of it.
#[test]
fn a_panic_releases_the_lock_and_the_next_holder_learns_of_it() {
    let bench = Scene::new();
    let client = bench.builder().holder_label("batch").build().unwrap();
    let mutex = client.mutex("m");
    let mut token = None;
    let guard = mutex.lock().unwrap();
    panics(|| {
        token = Some(guard.fencing_token());
        let _held = guard;
        resume_unwind(Box::new(()));
    });
    assert!(!exists(&mut bench.raw(), "m"));
    let next = mutex.try_lock().unwrap();
    match next.predecessor() {
        Predecessor::Panicked {
            token: of, label, ..
        } => {
            assert_eq!(Some(*of), token);
            assert!(label.starts_with("batch@"), "{label}");
        }
        other => panic!("{other:?}"),
    }
    next.unlock().unwrap();
    // Told once.
    assert_eq!(*mutex.lock().unwrap().predecessor(), Predecessor::Clean);

    // `with`, and a guard that was sent away.
    panics(|| drop(mutex.with(|_| resume_unwind(Box::new(())))));
    let guard = mutex.try_lock().unwrap();
    assert!(matches!(guard.predecessor(), Predecessor::Panicked { .. }));
    let owned = guard.into_owned();
    let thread = std::thread::spawn(move || {
        let _owned = owned;
        resume_unwind(Box::new(()));
    });
    assert!(thread.join().is_err());
    let guard = mutex.try_lock().unwrap();
    assert!(matches!(guard.predecessor(), Predecessor::Panicked { .. }));
}

/// Invariant 11: a lock that is taken and given back by a destructor while a thread unwinds was not panicked in.
#[test]
fn a_lock_taken_while_unwinding_is_not_panicked_in() {
    struct LocksOnDrop(Client, Option<MutexGuard>);
    impl Drop for LocksOnDrop {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            self.0.mutex("short").lock().unwrap().unlock().unwrap();
            drop(self.0.mutex("dropped").lock().unwrap());
            self.1 = Some(self.0.mutex("kept").lock().unwrap());
        }
    }
    let bench = Scene::new();
    let client = client(&bench);
    let locks = LocksOnDrop(client.clone(), None);
    panics(|| {
        let _locks = locks;
        resume_unwind(Box::new(()));
    });
    for name in ["short", "dropped", "kept"] {
        let guard = client.mutex(name).try_lock().unwrap();
        assert_eq!(*guard.predecessor(), Predecessor::Clean, "{name}");
    }
}

/// Invariant 11: while unwinding with a server that is gone there is no second panic, which would abort.
#[test]
fn a_drop_while_unwinding_with_the_server_gone_does_not_panic() {
    let bench = Scene::new();
    let client = client(&bench);
    let guards: Vec<MutexGuard> = (0..3)
        .map(|i| client.mutex(format!("m{i}")).lock().unwrap())
        .collect();
    bench.server.kill().unwrap();
    panics(|| {
        let _guards = guards;
        resume_unwind(Box::new(()));
    });
    assert_eq!(entries(&client), 0);
    assert_eq!(client.metrics().release_errors, 3);
}

/// Invariant 11, DistributedLock#191: with a server that does not answer, a drop takes no longer than one command may, and
/// the key is gone by its ttl at the latest, or as soon as the server answers again.
#[test]
fn a_drop_is_bounded_by_the_io_timeout() {
    type Switch = fn(&Scene, bool);
    let faults: [(&str, Switch); 3] = [
        ("a network that swallows all", |b, on| {
            b.proxy.black_hole(on)
        }),
        ("nobody listening", |b, on| {
            b.proxy.refuse(on);
            b.proxy.cut();
        }),
        ("a server that stands still", |b, on| match on {
            true => b.server.pause().unwrap(),
            false => b.server.resume().unwrap(),
        }),
    ];
    for (what, fault) in faults {
        let bench = Scene::new();
        let client = client(&bench);
        takes_at_most(IO + IO / 10 + ms(20), what, || {
            let guard = client.mutex("m").lock().unwrap();
            fault(&bench, true);
            let (took, result) = timed(|| guard.unlock());
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
            fault(&bench, false);
            let mut raw = bench.raw();
            eventually(BOUND, "it is released in the background", || {
                !exists(&mut raw, "m")
            });
            took
        });
        assert_eq!(entries(&client), 0);
        assert!(client.metrics().release_errors > 0);
        let guard = client.mutex("m").lock().unwrap();
        assert_eq!(*guard.predecessor(), Predecessor::Clean);
    }
}

/// Invariant 11: and in the midst of a renewal, the renewal's own time comes first.
#[test]
fn a_drop_in_the_midst_of_a_renewal_is_bounded_too() {
    let bench = Scene::new();
    let client = client(&bench);
    let mutex = client.mutex("m").with_ttl(secs(3));
    for wanted in [Script::Renew, Script::Release] {
        let silent = Action::DropReply;
        bench.proxy.rule(any(wanted), silent, Times::Always);
    }
    takes_at_most(IO + IO / 10 + ms(70), "a drop", || {
        let renewals = bench.renewals("m");
        let guard = mutex.lock().unwrap();
        eventually(BOUND, "it is renewed", || bench.renewals("m") > renewals);
        let (took, ()) = timed(|| drop(guard));
        took
    });
}

/// Invariant 11: with many locks whose renewals all hang on one connection, too.
#[test]
fn a_drop_behind_other_locks_renewals_is_bounded_too() {
    let bench = Scene::new();
    let client = client(&bench);
    let first = client.mutex("first").with_ttl(secs(3));
    let second = client.mutex("second").with_ttl(secs(3));
    bench
        .proxy
        .rule(any(Script::Renew), Action::DropReply, Times::Always);
    takes_at_most(IO + IO / 10 + ms(70), "a drop", || {
        let renewals = bench.renewals("first");
        let one = first.lock().unwrap();
        let left = one.remaining() - ms(60);
        eventually(BOUND, "a moment", || one.remaining() < left);
        let two = second.lock().unwrap();
        eventually(BOUND, "the first is being renewed", || {
            bench.renewals("first") > renewals
        });
        let left = two.remaining();
        eventually(BOUND, "the second is due", || {
            two.remaining() < left - ms(60)
        });
        let (took, ()) = timed(|| drop(two));
        took
    });
}

/// Invariant 11: with all that it is told to do, hold-at-least included, in a silent network: the rest of it stays, with a ttl.
#[test]
fn a_drop_of_a_lock_that_is_to_be_kept_is_bounded_too() {
    let bench = Scene::new();
    let client = client(&bench);
    let mutex = client.mutex("m").with_hold_at_least(secs(40));
    let guard = mutex.lock().unwrap();
    let lost = Action::DropReply;
    let rule = bench
        .proxy
        .rule(of(Script::Release, "m"), lost, Times::Once);
    let (took, ()) = timed(|| drop(guard));
    assert!(took < secs(2), "{took:?}");
    assert!(rule.wait_hit(BOUND));
    // Repeated in the background, it does not start the time anew, nor end it.
    eventually(BOUND, "the second release", || {
        bench.proxy.count(any(Script::Release)) >= 2
    });
    let mut raw = bench.raw();
    assert!((20_000..=40_000).contains(&pttl(&mut raw, "m")));
    assert_eq!(keys_without_ttl(&mut raw), [""; 0]);
    assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
}
