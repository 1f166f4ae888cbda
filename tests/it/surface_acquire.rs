//! The five forms of acquiring, `busy_as_none`, bounds: what each gives, and when.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{Server, entries, lose};
use leasehold::{BusyAsNone, Client, ErrorKind, Mutex, MutexGuard, Result, Wait};

use crate::support::ask::{BOUND, ask, best_of_three, bound_of, elsewhere, timed};
use crate::support::wait::{eventually, raw};

const SHORT: Duration = Duration::from_millis(300);

type Form = (&'static str, fn(&Mutex, Duration) -> Result<MutexGuard>);

/// Those that wait for a time that is given.
const BOUNDED: [Form; 4] = [
    ("try_lock_for", |m, d| m.try_lock_for(d)),
    ("try_lock_until", |m, d| {
        m.try_lock_until(Instant::now() + d)
    }),
    ("lock_with(duration)", |m, d| m.lock_with(d)),
    ("lock_with(instant)", |m, d| m.lock_with(Instant::now() + d)),
];
const UNBOUNDED: [Form; 3] = [
    ("lock", |m, _| m.lock()),
    ("try_lock", |m, _| m.try_lock()),
    ("lock_with(forever)", |m, _| m.lock_with(Wait::forever())),
];

/// The README's table "Acquiring": every form returns a guard of a free lock.
#[test]
fn every_form_takes_a_free_lock() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let mutex = client.mutex("free");
    for (form, acquire) in BOUNDED.iter().chain(&UNBOUNDED) {
        let guard = acquire(&mutex, BOUND).unwrap_or_else(|e| panic!("{form}: {e}"));
        assert!(guard.is_held(), "{form}");
        assert_eq!((guard.name(), mutex.name()), ("free", "free"));
        let left: i64 = ask(&mut raw, "PTTL free");
        assert!(left > 0, "{form} left a key with ttl {left}");
        drop(guard);
        assert!(
            !ask::<bool>(&mut raw, "EXISTS free"),
            "{form} was not given back"
        );
    }
}

/// `Mutex::new` and `Client::mutex` are the same; handles of one name are one lock, in one client and in two.
#[test]
fn handles_of_one_name_are_one_lock() {
    let server = Server::start().unwrap();
    let (one, two) = (server.client(), server.client());
    let handles = [
        one.mutex("name"),
        Mutex::new(&one, "name"),
        one.mutex(String::from("name")).clone(),
        two.mutex("name"),
    ];
    for handle in &handles {
        let _guard = handle.lock().unwrap();
        for other in &handles {
            let busy = elsewhere(|| other.try_lock().map(drop)).unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::WouldBlock);
        }
    }
}

/// redis-py#621: a body must not run unlocked. `try_lock` on a taken lock is an error, at once, from every side.
#[test]
fn try_lock_on_a_taken_lock_is_would_block_at_once() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let _guard = client.mutex("taken").lock().unwrap();
    let tries: [(&str, Result<()>, Duration); 3] = [
        ("this thread", client.mutex("taken")),
        ("another thread", client.mutex("taken")),
        ("another client", other.mutex("taken")),
    ]
    .map(|(who, mutex)| {
        let (took, result) = match who {
            "this thread" => timed(|| mutex.try_lock().map(drop)),
            _ => elsewhere(|| timed(|| mutex.try_lock().map(drop))),
        };
        (who, result, took)
    });
    for (who, result, took) in tries {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{who}: {error}");
        assert!(error.is_busy() && error.is_retryable() && !error.is_lost());
        assert_eq!(error.name(), Some("taken"));
        assert!(took < Duration::from_secs(1), "{who} took {took:?}");
    }
}

/// redisson#2790, #2801: a bounded wait keeps its bound (10 % + 20 ms), does not end before it, and says `TimedOut`.
#[test]
fn bounded_forms_wait_as_long_as_they_were_told() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let _guard = client.mutex("taken").lock().unwrap();
    let before = entries(&other);
    for (form, acquire) in BOUNDED {
        for (where_from, mutex) in [
            ("here", client.mutex("taken")),
            ("there", other.mutex("taken")),
        ] {
            let best = best_of_three(bound_of(SHORT), || {
                let (took, error) =
                    elsewhere(|| timed(|| acquire(&mutex, SHORT).map(drop).unwrap_err()));
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{form}: {error}");
                assert!(error.is_busy() && error.is_retryable());
                assert_eq!(error.name(), Some("taken"));
                assert!(
                    took >= SHORT,
                    "{form} from {where_from} ended after {took:?}"
                );
                took
            });
            assert!(
                best <= bound_of(SHORT),
                "{form} from {where_from} took {best:?}"
            );
        }
    }
    eventually(BOUND, "nothing stays of the waits", || {
        entries(&other) == before
    });
}

/// Every form that waits gets the lock when it is given back, long before its bound: it is woken, most of the time long
/// before its next poll, which is due a second after it has begun to wait.
#[test]
fn forms_that_wait_get_the_lock_when_it_is_given_back() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let forms = BOUNDED
        .iter()
        .chain(UNBOUNDED.iter().filter(|(form, _)| *form != "try_lock"));
    let mut times = Vec::new();
    for (form, acquire) in forms {
        let guard = client.mutex("handed").lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let got = acquire(&other.mutex("handed"), 6 * BOUND);
                got.map(|guard| guard.fencing_token())
            });
            let waits = || client.mutex("handed").inspect().unwrap().waiters == 1;
            eventually(BOUND, "the waiter is known", waits);
            let mine = guard.fencing_token();
            guard.unlock().unwrap();
            let (took, token) = timed(|| waiter.join().unwrap());
            let token = token.unwrap_or_else(|e| panic!("{form}: {e}"));
            assert!(token > mine, "{form}");
            assert!(took < Duration::from_secs(5), "{form} took {took:?}");
            times.push(took);
        });
    }
    times.sort();
    let median = times[times.len() / 2];
    assert!(
        median < Duration::from_millis(500),
        "by polls only: {times:?}"
    );
}

/// A holder's lease may end before the next poll is due: then the waiter looks at that moment.
#[test]
fn a_waiter_looks_when_the_holders_lease_ends() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let lease = Duration::from_millis(300);
    // A poll comes 750 ms after the first look at the soonest.
    let bound = Duration::from_millis(650);
    let best = best_of_three(bound, || {
        ask::<()>(
            &mut raw,
            &format!("SET brief 7f3e PX {}", lease.as_millis()),
        );
        let (took, guard) = timed(|| client.mutex("brief").try_lock_for(BOUND));
        guard.unwrap().unlock().unwrap();
        took
    });
    assert!(best <= bound, "{best:?}");
}

/// redislock#21: a wait is not capped at the ttl. And a duration too long for the clock is "for ever", not an overflow.
#[test]
fn a_wait_outlasts_any_ttl() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let ttl = Duration::from_secs(1);
    let holder = client.mutex("long").with_ttl(ttl).lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mutex = other.mutex("long").with_ttl(Duration::from_millis(400));
            let (waited, guard) = timed(|| mutex.try_lock_for(Duration::MAX));
            guard.map(|_| waited)
        });
        eventually(BOUND, "renewed over two ttls", || {
            client.metrics().renewals >= 7
        });
        assert!(!waiter.is_finished());
        drop(holder);
        let waited = waiter.join().unwrap().unwrap();
        assert!(waited > 3 * Duration::from_millis(400), "{waited:?}");
    });
}

/// A deadline that has passed, and a duration of zero, are one look: a free lock is taken, a taken one is `TimedOut`.
#[test]
fn a_wait_of_nothing_is_one_look() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let forms: [Form; 2] = [
        ("past", |m, _| {
            m.try_lock_until(Instant::now() - Duration::from_secs(1))
        }),
        ("zero", |m, _| m.try_lock_for(Duration::ZERO)),
    ];
    for (form, acquire) in forms {
        let mutex = client.mutex("look");
        // Connected and with the script known: a look of no length has some 10 ms, which a busy machine may miss.
        drop(mutex.lock().unwrap());
        eventually(BOUND, form, || acquire(&mutex, SHORT).is_ok());
        let _guard = elsewhere(|| other.mutex("look").lock().unwrap().into_owned());
        eventually(BOUND, form, || {
            let (took, result) = timed(|| acquire(&mutex, SHORT));
            let error = result.unwrap_err();
            assert!(took < Duration::from_secs(1), "{form} took {took:?}");
            error.kind() == ErrorKind::TimedOut
        });
    }
}

/// `max_wait` bounds every wait of a client, `lock()` too; a shorter bound of the call still holds.
#[test]
fn max_wait_bounds_every_form() {
    let server = Server::start().unwrap();
    let holder = server.client();
    let client = Client::builder()
        .url(&server.url())
        .max_wait(SHORT)
        .build()
        .unwrap();
    let _guard = holder.mutex("taken").lock().unwrap();
    let mutex = client.mutex("taken");
    let waits = |bound, acquire: &(dyn Fn() -> Result<MutexGuard> + Sync)| {
        best_of_three(bound, || {
            let (took, error) = elsewhere(|| timed(|| acquire().map(drop).unwrap_err()));
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            took
        })
    };
    for (form, acquire) in BOUNDED.iter().chain(&UNBOUNDED[..1]).chain(&UNBOUNDED[2..]) {
        let took = waits(bound_of(SHORT), &|| acquire(&mutex, BOUND));
        assert!(
            took >= SHORT && took <= bound_of(SHORT),
            "{form} took {took:?}"
        );
    }
    let shorter = Duration::from_millis(100);
    let took = waits(bound_of(shorter), &|| mutex.try_lock_for(shorter));
    assert!(took <= bound_of(shorter), "{took:?}");
}

/// "Somebody else has it" may be a normal answer: only `WouldBlock` and `TimedOut` become `None`.
#[test]
fn busy_as_none_makes_none_of_a_busy_lock_and_of_nothing_else() {
    let server = Server::start().unwrap();
    let client = server.client();
    let mutex = client.mutex("nightly");
    let guard = mutex
        .try_lock()
        .busy_as_none()
        .unwrap()
        .expect("it is free");
    elsewhere(|| {
        assert!(mutex.try_lock().busy_as_none().unwrap().is_none());
        assert!(mutex.try_lock_for(SHORT).busy_as_none().unwrap().is_none());
    });
    let deadlock = mutex.lock().busy_as_none().unwrap_err();
    assert_eq!(deadlock.kind(), ErrorKind::Deadlock);
    drop(guard);
    let invalid = client.mutex("").try_lock().busy_as_none().unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::InvalidName);
}

/// Locking twice on one thread is an error, not a hang: through any handle and client; a lost hold is no obstacle.
#[test]
fn a_thread_that_locks_twice_is_told_at_once() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    // The same server by another name: only its own word in the answer gives it away.
    let alias = Client::open(&format!("redis://localhost:{}/", server.port())).unwrap();
    let guard = client.mutex("twice").lock().unwrap();
    for mutex in [
        client.mutex("twice"),
        other.mutex("twice"),
        alias.mutex("twice"),
    ] {
        for (form, acquire) in BOUNDED {
            let (took, result) = timed(|| acquire(&mutex, BOUND));
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{form}: {error}");
            assert!(!error.is_busy() && !error.is_retryable());
            assert!(took < Duration::from_secs(5), "{form} took {took:?}");
        }
        assert_eq!(mutex.lock().unwrap_err().kind(), ErrorKind::Deadlock);
        assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    lose(&guard);
    let again = client.mutex("twice").try_lock_for(BOUND).unwrap();
    assert!(again.is_held() && !guard.is_held());
    drop(guard);
    assert!(
        again.verify().is_ok(),
        "dropping the lost one has taken its successor's lock"
    );
}

/// Two threads that lock two names in opposite order: one is told, so that neither waits for ever.
#[test]
fn two_threads_in_a_circle_do_not_wait_for_each_other() {
    let server = Server::start().unwrap();
    let (one, two) = (server.client(), server.client());
    let both_hold = std::sync::Barrier::new(2);
    let take = |client: &Client, first: &str, second: &str| {
        let outer = client.mutex(first).lock().unwrap();
        both_hold.wait();
        let inner = client.mutex(second).lock().map(drop);
        drop(outer);
        inner
    };
    let (a, b) = thread::scope(|scope| {
        let a = scope.spawn(|| take(&one, "a", "b"));
        let b = scope.spawn(|| take(&two, "b", "a"));
        (a.join().unwrap(), b.join().unwrap())
    });
    let told: Vec<_> = [a, b].into_iter().filter_map(Result::err).collect();
    assert!(!told.is_empty(), "nobody was told");
    assert!(
        told.iter().all(|e| e.kind() == ErrorKind::Deadlock),
        "{told:?}"
    );
}
