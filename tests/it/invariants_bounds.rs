//! Invariant 4: a bounded wait keeps its bound, 10 % + 20 ms, whatever the server does; what does not fit goes on afterwards.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{Error, ErrorKind, Mutex, Wait};

use crate::support::locks::{
    BOUND, Scene, Script, any, exists, ms, of, pttl, secs, take_as_foreigner, takes_at_most, timed,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::eventually;

const ASKED: Duration = Duration::from_millis(400);

/// What a bounded wait promises.
fn at_most(asked: Duration) -> Duration {
    asked + asked / 10 + ms(20)
}

/// A wait that came to nothing, and how long it took by the clock of its own thread.
type Waited = (Duration, Error);

fn wait(mutex: &Mutex) -> Waited {
    let (took, result) = timed(|| mutex.try_lock_for(ASKED));
    (took, result.unwrap_err())
}

/// The bound is kept by all of them, and from below as well, each time: none gives up sooner than asked.
fn take_what_was_asked(what: &str, mut waits: impl FnMut() -> Vec<Waited>) {
    takes_at_most(at_most(ASKED), what, || {
        let waits = waits();
        for (took, error) in &waits {
            assert!(*took >= ASKED, "{what}: {took:?}, {error}");
        }
        waits.into_iter().map(|(took, _)| took).max().unwrap()
    });
}

/// A thread for each.
fn wait_together<const N: usize>(mutexes: [Mutex; N]) -> [Waited; N] {
    thread::scope(|s| {
        let waits = mutexes.map(|mutex| s.spawn(move || wait(&mutex)));
        waits.map(|w| w.join().unwrap())
    })
}

/// With a server that does this: a client that was never connected, one that was, and threads that meet in the process.
fn keeps_its_bound_with(fault: impl Fn(&Scene), undo: impl Fn(&Scene)) {
    let bench = Scene::new();
    let warm = bench.client_with(secs(30));
    warm.mutex("other").lock().unwrap().unlock().unwrap();
    fault(&bench);
    for is_fresh in [false, true] {
        take_what_was_asked(
            if is_fresh {
                "a fresh client"
            } else {
                "a warm one"
            },
            || {
                let fresh = is_fresh.then(|| bench.client_with(secs(30)));
                let (took, error) = wait(&fresh.as_ref().unwrap_or(&warm).mutex("m"));
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                vec![(took, error)]
            },
        );
    }
    // One of them asks the server; what it hears, if it does in time, is what the others say, too.
    take_what_was_asked("three threads", || {
        let waits = wait_together([(); 3].map(|()| warm.mutex("m")));
        let kinds = waits.each_ref().map(|(_, error)| error.kind());
        assert!(kinds.contains(&ErrorKind::Unavailable), "{kinds:?}");
        waits.into()
    });
    // One connection for all, which the first of them does not give back in time.
    let narrow = bench.builder().pool_size(1).build().unwrap();
    take_what_was_asked("two locks over one connection", || {
        let waits = wait_together(["a", "b"].map(|name| narrow.mutex(name)));
        for (_, error) in &waits {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        waits.into()
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
        let bench = Scene::new();
        let client = bench.client_with(secs(30));
        let matches = any(Script::Acquire);
        let rule = bench.proxy.rule(matches, fault, Times::Always);
        take_what_was_asked("a wait", || {
            let (took, error) = wait(&client.mutex("m"));
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            vec![(took, error)]
        });
        // At a pace, not in a busy loop.
        assert!((2..=60).contains(&rule.hits()), "{}", rule.hits());
    }
}

/// Invariant 4, python-redis-lock: somebody else's lock is waited for exactly as long, in all forms; polls don't add up.
#[test]
fn a_bounded_wait_for_a_held_lock_keeps_its_bound() {
    let bench = Scene::new();
    let mutex = bench.client_with(secs(30)).mutex("m");
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
        take_what_was_asked(form, || {
            let (took, error) = timed(wait);
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            vec![(took, error)]
        });
    }
    assert_eq!(mutex.inspect().unwrap().waiters, 0);
}

/// Invariant 4: a server that goes silent in the middle of a wait does not make it longer, and the waiter's place on the
/// list is given up when it is back.
#[test]
fn a_bounded_wait_keeps_its_bound_if_the_server_goes_silent_in_mid_wait() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    take_as_foreigner(&mut raw, "m", secs(60));
    let observer = bench.direct(secs(30)).mutex("m");
    let asked = secs(1);
    takes_at_most(at_most(asked), "a wait", || {
        let client = bench.client_with(secs(30));
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

/// Invariant 4: nor does a wait take longer because the server has no answer for the one who leaves.
#[test]
fn a_bounded_wait_keeps_its_bound_if_its_leaving_is_not_answered() {
    let bench = Scene::new();
    take_as_foreigner(&mut bench.raw(), "m", secs(60));
    let mutex = bench.client_with(secs(30)).mutex("m");
    let silent = Action::DropReply;
    let left = bench.proxy.rule(any(Script::Leave), silent, Times::Always);
    take_what_was_asked("a wait", || {
        let (took, error) = wait(&mutex);
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        vec![(took, error)]
    });
    assert!(left.hits() > 0, "it had nothing to leave");
}

/// Invariant 4: one look is one look, and no longer than one exchange may take.
#[test]
fn a_try_takes_no_longer_than_one_exchange() {
    let bench = Scene::new();
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
    let bench = Scene::new();
    let client = bench.client_with(secs(1));
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
