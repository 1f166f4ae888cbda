//! Invariant 11: in a forked child every operation, and every drop, does nothing to the parent's locks.
#![cfg(unix)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use leasehold::testing::lose;
use leasehold::{Client, ErrorKind, Predecessor, Result};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::support::child::{Child, args, hear, say};
use crate::support::locks::{BOUND, Scene, Script, any, exists, ms, script, secs};
use crate::support::wait::eventually;

pub(crate) const ROLES: &[(&str, fn())] = &[
    ("fork/use_all_of_the_parents", use_all_of_the_parents),
    ("fork/drop_the_client", drop_the_client),
    ("fork/make_a_client", make_a_client),
];

/// Runs `f` in a forked copy of this process, which ends with it; fails if `f` panics there.
pub(crate) fn in_a_fork(f: impl FnOnce()) {
    // SAFETY: the copy has this thread only, and locks that other threads held stay locked there for ever. Those that there
    // are here sleep: the harness, the reader of standard input, renewers and idle pool threads between two ticks. The
    // allocator sees to itself. The copy leaves by _exit: no destructor and no exit handler of the parent's runs in it.
    #[allow(unsafe_code)]
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let went_well = catch_unwind(AssertUnwindSafe(f)).is_ok();
        // SAFETY: it does not return, and has no conditions.
        #[allow(unsafe_code)]
        unsafe {
            libc::_exit(if went_well { 0 } else { 1 })
        }
    }
    let pid = Pid::from_raw(pid).unwrap();
    let mut ended = None;
    eventually(BOUND, "the fork ends", || {
        ended = waitpid(Some(pid), WaitOptions::NOHANG).unwrap();
        ended.is_some()
    });
    let (_, status) = ended.unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
}

fn is_unsupported<T>(result: Result<T>) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("fork"), "{error}");
}

fn use_all_of_the_parents() {
    let [url] = &args()[..] else {
        panic!("one argument")
    };
    let client = Client::builder().url(url).ttl(secs(2)).build().unwrap();
    let mutex = client.mutex("m");
    let guard = mutex.lock().unwrap();
    let owned = client.mutex("owned").lock().unwrap().into_owned();
    let fixed = client.mutex("fixed").with_fixed_lease(secs(60));
    let fixed = fixed.lock().unwrap();
    let lease = guard.lease();
    say("held");
    hear(BOUND);
    // Moved into the copy: there they are used up and dropped, here they live on.
    let (mut guard, mut owned, mut fixed) = (Some(guard), Some(owned), Some(fixed));
    let (mut client, mut mutex) = (Some(client), Some(mutex));
    in_a_fork(|| {
        let began = Instant::now();
        let (client, mutex) = (client.take().unwrap(), mutex.take().unwrap());
        let (guard, owned, fixed) = (
            guard.take().unwrap(),
            owned.take().unwrap(),
            fixed.take().unwrap(),
        );
        for mutex in [&mutex, &client.mutex("free")] {
            is_unsupported(mutex.lock());
            is_unsupported(mutex.try_lock());
            is_unsupported(mutex.try_lock_for(secs(1)));
            is_unsupported(mutex.with(|_| ()));
            is_unsupported(mutex.inspect());
            is_unsupported(mutex.is_locked());
            is_unsupported(mutex.force_unlock());
        }
        is_unsupported(client.ping());
        for lease in [&lease, &*guard, &*owned, &*fixed] {
            let lost = lease.check().unwrap_err();
            assert!(lost.to_string().contains("parent"), "{lost}");
            assert!(!lease.is_held() && lease.check_for(ms(1)).is_err());
            assert_eq!(lease.verify().unwrap_err().kind(), ErrorKind::Lost);
            lose(lease);
        }
        assert_eq!(fixed.extend(secs(1)).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
        drop(fixed.into_owned());
        drop((owned, lease.clone(), mutex, client));
        // None of that waited for anything.
        assert!(began.elapsed() < secs(5));
    });
    say("forked");
    hear(BOUND);
    for lease in [
        &**guard.as_ref().unwrap(),
        &**owned.as_ref().unwrap(),
        &lease,
    ] {
        lease.verify().unwrap();
    }
    fixed.as_ref().unwrap().extend(secs(90)).unwrap();
    guard.unwrap().unlock().unwrap();
    owned.unwrap().unlock().unwrap();
    fixed.unwrap().unlock().unwrap();
    mutex.unwrap().lock().unwrap().unlock().unwrap();
    say("released");
}

/// Invariant 11: every operation fails at once, every drop does nothing, nothing is sent, and the parent's locks are held,
/// renewed and given back as if nothing had been.
#[test]
fn a_forked_child_does_nothing_to_its_parents_locks() {
    let bench = Scene::new();
    let mut child = Child::role("fork/use_all_of_the_parents")
        .arg(bench.proxy.url())
        .spawn();
    child.wait_for("held", BOUND);
    let sent = || {
        let not_renewals = |c: &_| script(c) != Some(Script::Renew);
        bench.proxy.count(not_renewals)
    };
    let connections = bench.proxy.connections();
    let before = sent();
    child.send_line("fork");
    child.wait_for("forked", BOUND);
    assert_eq!(sent(), before);
    assert_eq!(bench.proxy.connections(), connections);
    let mut raw = bench.raw();
    assert!(
        ["m", "owned", "fixed"]
            .iter()
            .all(|key| exists(&mut raw, key))
    );
    // The parent's threads go on renewing.
    for name in ["m", "owned"] {
        let renewals = bench.renewals(name);
        eventually(BOUND, "it is renewed", || {
            bench.renewals(name) >= renewals + 2
        });
    }
    child.send_line("go on");
    child.wait_for("released", BOUND);
    assert!(
        !["m", "owned", "fixed"]
            .iter()
            .any(|key| exists(&mut raw, key))
    );
    assert_eq!(bench.proxy.count(any(Script::Release)), 4);
}

/// Has nothing left of its client but the client itself, and drops that in the copy.
fn drop_the_client() {
    let [url] = &args()[..] else {
        panic!("one argument")
    };
    let client = Client::open(url).unwrap();
    // Its threads: a renewer, the listener, and the pool's.
    let held = client.mutex("held").lock().unwrap().into_owned();
    let other = Client::open(url).unwrap();
    let holder = other.mutex("m").lock().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| assert!(client.mutex("m").try_lock_for(ms(200)).is_err()));
    });
    drop((holder, held));
    let mut last = Some(client);
    in_a_fork(|| {
        let began = Instant::now();
        drop(last.take());
        assert!(began.elapsed() < secs(5));
    });
    let client = last.unwrap();
    client.mutex("m").lock().unwrap().unlock().unwrap();
    client.ping().unwrap();
    say("done");
}

/// Invariant 11: the drop of the client itself waits for no thread, because there is none in the child, and closes nothing.
#[test]
fn a_client_dropped_in_a_forked_child_is_the_parents_still() {
    let bench = Scene::new();
    let child = Child::role("fork/drop_the_client")
        .arg(bench.proxy.url())
        .spawn();
    child.wait_for("done", BOUND);
}

/// Forked before there was a client here, the child makes one.
fn make_a_client() {
    let [url] = &args()[..] else {
        panic!("one argument")
    };
    let make = || Client::builder().url(url).ttl(secs(1)).build().unwrap();
    in_a_fork(|| {
        let client = make();
        let guard = client.mutex("m").lock().unwrap();
        eventually(BOUND, "a renewal", || client.metrics().renewals > 0);
        let error = make().mutex("m").try_lock_for(ms(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        guard.unlock().unwrap();
        drop(client.mutex("left behind").lock().unwrap().into_owned());
    });
    let guard = make().mutex("m").try_lock().unwrap();
    assert_eq!(*guard.predecessor(), Predecessor::Clean);
    say("done");
}

/// Invariant 11: what the error advises: a client that is made after the fork is as good as any.
#[test]
fn a_client_made_after_the_fork_works() {
    let bench = Scene::new();
    let child = Child::role("fork/make_a_client")
        .arg(bench.proxy.url())
        .spawn();
    child.wait_for("done", BOUND);
    assert!(!exists(&mut bench.raw(), "left behind"));
}
