//! Invariant 4: a bounded wait keeps its bound, 10 % + 20 ms, whatever the server does; what does not fit goes on afterwards.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{Client, Error, ErrorKind, Mutex, Wait};

use crate::support::locks::{
    BOUND, Bench, Script, any, exists, ms, of, pttl, secs, take_as_foreigner, takes_at_most, timed,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::eventually;

const ASKED: Duration = Duration::from_millis(400);

/// What a bounded wait promises.
fn at_most(asked: Duration) -> Duration {
    asked + asked / 10 + ms(20)
}

/// Kept from below as well, each time: it does not give up sooner than asked.
fn takes_what_was_asked(what: &str, mut wait: impl FnMut() -> Error) {
    takes_at_most(at_most(ASKED), what, || {
        let (took, error) = timed(&mut wait);
        assert!(took >= ASKED, "{what}: {took:?}, {error}");
        took
    });
}

/// With a server that does this: a client that was never connected, one that was, and threads that meet in the process.
fn keeps_its_bound_with(fault: impl Fn(&Bench), undo: impl Fn(&Bench)) {
    let bench = Bench::new();
    let warm = bench.client(secs(30));
    warm.mutex("other").lock().unwrap().unlock().unwrap();
    fault(&bench);
    let wait = |client: &Client| client.mutex("m").try_lock_for(ASKED).unwrap_err();
    for (what, fresh) in [("a warm client", false), ("a fresh client", true)] {
        takes_what_was_asked(what, || {
            let error = match fresh {
                true => wait(&bench.client(secs(30))),
                false => wait(&warm),
            };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error
        });
    }
    // One of them asks the server; what it hears, if it does in time, is what the others say, too.
    takes_what_was_asked("three threads", || {
        let errors = thread::scope(|s| {
            let waits = [(); 3].map(|()| s.spawn(|| wait(&warm)));
            waits.map(|w| w.join().unwrap())
        });
        let kinds = errors.each_ref().map(Error::kind);
        assert!(kinds.contains(&ErrorKind::Unavailable), "{kinds:?}");
        let [error, ..] = errors;
        error
    });
    // One connection for all, which the first of them does not give back in time.
    let narrow = bench.builder().pool_size(1).build().unwrap();
    takes_what_was_asked("two locks over one connection", || {
        let errors = thread::scope(|s| {
            let mutexes = ["a", "b"].map(|name| narrow.mutex(name));
            let wait = |mutex: Mutex| move || mutex.try_lock_for(ASKED).unwrap_err();
            let waits = mutexes.map(|mutex| s.spawn(wait(mutex)));
            waits.map(|w| w.join().unwrap())
        });
        let [error, _] = errors;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error
    });
    undo(&bench);
    // Whatever of it the server has got by now is undone.
    let mut raw = bench.raw();
    for name in ["m", "a", "b"] {
        eventually(BOUND, "no key is left", || !exists(&mut raw, name));
    }
    assert_eq!((entries(&warm), entries(&narrow)), (0, 0));
    warm.mutex("m")
        .try_lock_for(secs(10))
        .unwrap()
        .unlock()
        .unwrap();
}

/// Invariant 4, redisson#2790, #2801.
#[test]
fn a_bounded_wait_keeps_its_bound_with_a_server_that_stands_still() {
    keeps_its_bound_with(
        |bench| bench.server.pause().unwrap(),
        |bench| bench.server.resume().unwrap(),
    );
}

/// Invariant 4, redisson#2790, #2801.
#[test]
fn a_bounded_wait_keeps_its_bound_with_a_network_that_swallows_all() {
    keeps_its_bound_with(
        |bench| bench.proxy.black_hole(true),
        |bench| bench.proxy.black_hole(false),
    );
}

/// Invariant 4, redisson#2790, #2801.
#[test]
fn a_bounded_wait_keeps_its_bound_with_nobody_listening() {
    keeps_its_bound_with(
        |bench| {
            bench.proxy.refuse(true);
            bench.proxy.cut();
        },
        |bench| bench.proxy.refuse(false),
    );
}

/// Invariant 4: so it is with a server that answers, but with errors only, and with one that hangs up each time.
#[test]
fn a_bounded_wait_keeps_its_bound_with_a_server_that_is_no_use() {
    let faults = [
        Action::ReplaceReply(b"-LOADING loading\r\n".to_vec()),
        Action::CutBeforeRequest,
    ];
    for fault in faults {
        let bench = Bench::new();
        let client = bench.client(secs(30));
        let matches = any(Script::Acquire);
        let rule = bench.proxy.rule(matches, fault, Times::Always);
        takes_what_was_asked("a wait", || {
            let error = client.mutex("m").try_lock_for(ASKED).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error
        });
        // At a pace, not in a busy loop.
        assert!((2..=60).contains(&rule.hits()), "{}", rule.hits());
    }
}

/// Invariant 4, python-redis-lock: somebody else's lock is waited for exactly as long, in all forms; polls don't add up.
#[test]
fn a_bounded_wait_for_a_held_lock_keeps_its_bound() {
    let bench = Bench::new();
    let mutex = bench.client(secs(30)).mutex("m");
    take_as_foreigner(&mut bench.raw(), "m", secs(60));
    let forms: [(&str, &dyn Fn() -> Error); 4] = [
        ("try_lock_for", &|| mutex.try_lock_for(ASKED).unwrap_err()),
        ("try_lock_until", &|| {
            mutex.try_lock_until(Instant::now() + ASKED).unwrap_err()
        }),
        ("lock_with", &|| {
            mutex.lock_with(Wait::for_duration(ASKED)).unwrap_err()
        }),
        ("max_wait", &|| {
            let client = bench.builder().max_wait(ASKED).build().unwrap();
            client.mutex("m").lock().unwrap_err()
        }),
    ];
    for (form, wait) in forms {
        takes_what_was_asked(form, || {
            let error = wait();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            error
        });
    }
    assert_eq!(mutex.inspect().unwrap().waiters, 0);
}

/// Invariant 4: a server that goes silent in the middle of a wait does not make it longer, and the waiter's place on the
/// list is given up when it is back.
#[test]
fn a_bounded_wait_keeps_its_bound_if_the_server_goes_silent_in_mid_wait() {
    let bench = Bench::new();
    let mut raw = bench.raw();
    take_as_foreigner(&mut raw, "m", secs(60));
    let observer = bench.direct(secs(30)).mutex("m");
    let asked = secs(1);
    takes_at_most(at_most(asked), "a wait", || {
        let client = bench.client(secs(30));
        let mutex = client.mutex("m");
        let took = thread::scope(|s| {
            let wait = s.spawn(|| {
                let (took, result) = timed(|| mutex.try_lock_for(asked));
                let error = result.unwrap_err();
                let kinds = [ErrorKind::TimedOut, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
                took
            });
            eventually(BOUND, "it waits", || {
                observer.inspect().unwrap().waiters == 1
            });
            bench.server.pause().unwrap();
            wait.join().unwrap()
        });
        bench.server.resume().unwrap();
        assert!(took >= asked);
        eventually(BOUND, "it has left", || {
            observer.inspect().unwrap().waiters == 0
        });
        assert_eq!(entries(&client), 0);
        took
    });
    assert!(pttl(&mut raw, "m") > 10_000);
}

/// Invariant 4: one look is one look, and no longer than one exchange may take.
#[test]
fn a_try_takes_no_longer_than_one_exchange() {
    let bench = Bench::new();
    let builder = || bench.builder().io_timeout(ms(200)).connect_timeout(ms(100));
    let client = builder().build().unwrap();
    client.mutex("m").try_lock().unwrap().unlock().unwrap();
    bench.proxy.black_hole(true);
    let most = at_most(ms(300));
    takes_at_most(most, "a warm client's try", || {
        let (took, result) = timed(|| client.mutex("m").try_lock());
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
        took
    });
    takes_at_most(most, "a fresh client's try", || {
        let client = builder().build().unwrap();
        let (took, result) = timed(|| client.mutex("m").try_lock());
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
        took
    });
}

/// Invariant 4: an unbounded wait ends with an error when the server has been away for as long as is promised, and not
/// sooner: min(max(ttl, 5 s), 60 s).
#[test]
fn an_unbounded_wait_rides_out_an_outage_of_five_seconds() {
    let bench = Bench::new();
    let client = bench.client(secs(1));
    bench.proxy.refuse(true);
    let (took, result) = timed(|| client.mutex("m").lock());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(took >= secs(5) && took < secs(8), "{took:?}");
    // And one that is shorter costs nothing.
    let guard = thread::scope(|s| {
        let lock = s.spawn(|| client.mutex("m").lock().map(|guard| guard.into_owned()));
        let began = Instant::now();
        eventually(BOUND, "a while", || began.elapsed() >= ms(600));
        bench.proxy.refuse(false);
        lock.join().unwrap().unwrap()
    });
    guard.verify().unwrap();
    assert_eq!(bench.proxy.count(of(Script::Acquire, "m")), 1);
}
