//! What must be refused, and how: the right kind, in bounded time, with the lock's name and what to do; nothing sent that
//! need not be, and nothing of anybody else's touched.

use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, Error, ErrorKind, Mutex, Result};
use redis::Connection;

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::proxy::Proxy;
use crate::support::wait::{eventually, raw};

const WAIT: Duration = Duration::from_millis(200);

type Call = (&'static str, fn(&Mutex) -> Result<()>);

/// Every call of a handle that goes to the server.
const CALLS: [Call; 9] = [
    ("lock", |m| m.lock().map(drop)),
    ("try_lock", |m| m.try_lock().map(drop)),
    ("try_lock_for", |m| m.try_lock_for(WAIT).map(drop)),
    ("try_lock_until", |m| {
        m.try_lock_until(std::time::Instant::now() + WAIT).map(drop)
    }),
    ("lock_with", |m| m.lock_with(WAIT).map(drop)),
    ("with", |m| m.with(|_| panic!("it ran without the lock"))),
    ("inspect", |m| m.inspect().map(drop)),
    ("is_locked", |m| m.is_locked().map(drop)),
    ("force_unlock", |m| m.force_unlock().map(drop)),
];
/// Those of them that acquire.
const ACQUIRES: usize = 6;

/// Whose `lock()` would end some time, if it were not refused.
fn client_of(server: &Server) -> Client {
    let builder = Client::builder().url(&server.url());
    builder.max_wait(2 * BOUND).build().unwrap()
}

#[track_caller]
fn assert_refused(what: &str, error: &Error, kind: ErrorKind, name: &str) {
    assert_eq!(error.kind(), kind, "{what}: {error}");
    assert_eq!(error.name(), Some(name), "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains(&format!("lock {name:?}")), "{what}: {text}");
    // What happened, and what to do.
    assert!(text.contains("; "), "{what}: {text}");
    assert!(
        !error.is_retryable() && !error.is_busy() && !error.is_lost(),
        "{what}: {error}"
    );
}

/// Names that could not be told from our own keys, or would leave their hash slot: refused before anything is sent.
#[test]
fn names_that_can_not_be_a_locks_are_refused_before_anything_is_sent() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let (long, odd) = ("x".repeat(1025), "ü".repeat(513));
    for (name, why) in [
        ("", "empty"),
        (long.as_str(), "1025 bytes"),
        (odd.as_str(), "1026 bytes"),
        ("a}b", "'}'"),
        ("}", "'}'"),
        ("{}x", "'}'"),
        ("{}{x}", "'}'"),
        ("{x}:lh:s", "':lh:'"),
        ("a:lh:b", "':lh:'"),
        (":lh:", "':lh:'"),
    ] {
        for (call, make) in CALLS {
            let error = make(&client.mutex(name)).unwrap_err();
            assert_refused(call, &error, ErrorKind::InvalidName, name);
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.nodes().is_empty(), "no server was asked");
        }
    }
    assert_eq!(proxy.connections_total(), 0);
}

/// Every other name is one, whatever is in it, and is waited for and woken like any other.
#[test]
fn odd_names_are_names() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let longest = "x".repeat(1024);
    let names = [
        longest.as_str(),
        " ",
        "a b\r\n$1\r\n*\0\u{1f}",
        "lh:s",
        "{x}y",
        "a{b",
        "a{b}c}d",
        "日本 🦀",
        "%s%n\\\"'",
        "-1",
    ];
    for name in names {
        let guard = client
            .mutex(name)
            .lock()
            .unwrap_or_else(|e| panic!("{name:?}: {e}"));
        assert_eq!(guard.name(), name);
        let exists: bool = redis::cmd("EXISTS")
            .arg(name)
            .query(&mut raw(&server.url()))
            .unwrap();
        assert!(exists, "the key is not the name: {name:?}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| other.mutex(name).try_lock_for(6 * BOUND).map(drop));
            let known = || client.mutex(name).inspect().unwrap().waiters == 1;
            eventually(BOUND, "it waits", known);
            guard.unlock().unwrap();
            let (took, result) = timed(|| waiter.join().unwrap());
            result.unwrap_or_else(|e| panic!("{name:?}: {e}"));
            assert!(took < Duration::from_secs(5), "{name:?}: {took:?}");
        });
        let missing = client
            .mutex(name)
            .with_ttl(Duration::ZERO)
            .lock()
            .unwrap_err();
        assert!(
            missing.to_string().starts_with(&format!("lock {name:?}: ")),
            "{missing}"
        );
    }
}

/// phpredis#640, redis#6800, python-redis-lock#73: a ttl of nothing, too short, or overflowing; options that contradict each
/// other. Refused with the option's name and limits, before anything is sent.
#[test]
fn options_out_of_their_limits_are_refused_before_anything_is_sent() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let (ms, year) = (Duration::from_millis, Duration::from_secs(365 * 86_400));
    let mutex = || client.mutex("job");
    let mut refused: Vec<(&str, Mutex)> = Vec::new();
    for bad in [
        Duration::ZERO,
        ms(1),
        ms(49),
        ms(50) - Duration::from_nanos(1),
        year + ms(1),
        Duration::MAX,
    ] {
        refused.push(("ttl", mutex().with_ttl(bad)));
        refused.push(("lease", mutex().with_fixed_lease(bad)));
        refused.push(("max_hold", mutex().with_max_hold(bad)));
    }
    for bad in [Duration::ZERO, year + ms(1), Duration::MAX] {
        refused.push(("hold_at_least", mutex().with_hold_at_least(bad)));
    }
    let contradiction = mutex().with_fixed_lease(ms(500)).with_max_hold(ms(900));
    refused.push(("with_fixed_lease", contradiction));
    for (option, mutex) in &refused {
        for (call, make) in &CALLS[..ACQUIRES] {
            let error = make(mutex).unwrap_err();
            assert_refused(call, &error, ErrorKind::InvalidOptions, "job");
            assert!(error.to_string().contains(option), "{option}: {error}");
        }
    }
    assert_eq!(proxy.connections_total(), 0);
    for good in [ms(50), year] {
        let options = [
            mutex().with_ttl(good),
            mutex().with_fixed_lease(good),
            mutex().with_max_hold(good),
            mutex().with_hold_at_least(Duration::from_nanos(1)),
        ];
        for mutex in options {
            // 50 ms may have passed before the answer is here.
            match mutex.try_lock_for(BOUND) {
                Ok(_guard) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::LeaseExpired, "{e}"),
            }
            server.client().mutex("job").force_unlock().unwrap();
        }
    }
}

/// All that somebody may have under a key that is no lock.
const DATA: [(&str, &str); 7] = [
    ("a string without a ttl", "SET KEY somebody's"),
    ("an empty string", "SETRANGE KEY 0 x"),
    ("a list", "RPUSH KEY a b"),
    ("a hash", "HSET KEY field value"),
    ("a set", "SADD KEY a b"),
    ("a sorted set", "ZADD KEY 1 a"),
    ("a stream", "XADD KEY * field value"),
];

fn dump(raw: &mut Connection, key: &str) -> (Vec<u8>, i64) {
    (
        ask(raw, &format!("DUMP {key}")),
        ask(raw, &format!("PTTL {key}")),
    )
}

/// Invariant 13: whoever reads the key wrongly destroys nothing. No wait, and not a bit of it changes.
#[test]
fn a_key_that_is_somebodys_data_is_a_conflict_and_stays() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (client_of(&server), raw(&server.url()));
    for (what, set) in DATA {
        ask::<()>(&mut raw, &set.replace("KEY", "job"));
        let before = dump(&mut raw, "job");
        for (call, make) in &CALLS[..ACQUIRES] {
            let (took, error) = timed(|| make(&client.mutex("job")).unwrap_err());
            assert_refused(
                &format!("{call}, {what}"),
                &error,
                ErrorKind::KeyConflict,
                "job",
            );
            assert!(took < Duration::from_secs(5), "{call}, {what}: {took:?}");
        }
        let force = client.mutex("job").force_unlock().unwrap_err();
        assert_refused(what, &force, ErrorKind::KeyConflict, "job");
        assert!(client.mutex("job").is_locked().unwrap(), "it can't be had");
        assert_eq!(dump(&mut raw, "job"), before, "{what} was touched");
        let keys: Vec<String> = ask(&mut raw, "KEYS *");
        assert_eq!(keys, ["job"], "{what}: something was written beside it");
        ask::<()>(&mut raw, "DEL job");
        client.mutex("job").try_lock().unwrap().unlock().unwrap();
        ask::<()>(&mut raw, "FLUSHALL");
    }
}

/// The same for the key beside it, where the lock's state would be; of the lock itself nothing stays.
#[test]
fn a_state_key_that_is_somebodys_data_is_a_conflict_and_stays() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (client_of(&server), raw(&server.url()));
    let state = "{job}:lh:s";
    let filler = "z".repeat(600);
    let digits = "0".repeat(61);
    let strings = [
        format!("SET {state} {filler}"),
        format!("SET {state} 1"),
        format!("SET {state} 1NN{filler}"),
        format!("SET {state} 1NN00{filler}"),
        format!("SET {state} {}␤z␤z␤", "z".repeat(300)),
        // Right in front, and without the lines at the end.
        format!("SET {state} 1NN{digits}{}", "-".repeat(500)),
        format!("SET {state} 1NN{digits}{} PX 60000", "-".repeat(100)),
    ];
    let others = DATA.iter().map(|(_, set)| set.replace("KEY", state));
    for set in strings.into_iter().chain(others) {
        ask::<()>(&mut raw, &set);
        let (before, ttl) = dump(&mut raw, state);
        for (call, make) in &CALLS[..ACQUIRES] {
            let (took, error) = timed(|| make(&client.mutex("job")).unwrap_err());
            assert_refused(
                &format!("{call}, {set}"),
                &error,
                ErrorKind::KeyConflict,
                "job",
            );
            assert!(took < Duration::from_secs(5), "{call}: {took:?}");
            assert!(
                !ask::<bool>(&mut raw, "EXISTS job"),
                "{call} left the lock: {set}"
            );
        }
        client.mutex("job").inspect().unwrap();
        ask::<()>(&mut raw, "SET job another's PX 60000");
        let force = client.mutex("job").force_unlock().unwrap_err();
        assert_refused(&set, &force, ErrorKind::KeyConflict, "job");
        assert!(ask::<bool>(&mut raw, "EXISTS job"));
        let (after, ttl_after) = dump(&mut raw, state);
        assert!(
            after == before && (ttl < 0) == (ttl_after < 0),
            "touched: {set}"
        );
        ask::<()>(&mut raw, "FLUSHALL");
    }
}

/// Data that comes in mid-hold or in mid-wait: the hold is over, the wait ends, the data stays.
#[test]
fn data_that_takes_a_locks_place_stays() {
    let server = Server::start().unwrap();
    let (client, other, mut raw) = (server.client(), server.client(), raw(&server.url()));
    let ttl = Duration::from_millis(1500);
    let guard = client.mutex("job").with_ttl(ttl).lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.mutex("job").try_lock_for(6 * BOUND).map(drop));
        let known = || other.mutex("job").inspect().unwrap().waiters == 1;
        eventually(BOUND, "it waits", known);
        ask::<()>(&mut raw, "DEL job");
        ask::<()>(&mut raw, "RPUSH job a b");
        let error = waiter.join().unwrap().unwrap_err();
        assert_refused("the waiter", &error, ErrorKind::KeyConflict, "job");
    });
    let told = guard.lost().recv_timeout(BOUND);
    assert!(told.is_err_and(|e| e.is_disconnected()), "nobody was told");
    let lost = guard.check().unwrap_err().to_string();
    assert!(lost.contains("not ours"), "found out too late: {lost}");
    drop(guard);
    // Whatever is still to be done in the background has been, when another lock of the client has come and gone.
    client.mutex("other").lock().unwrap().unlock().unwrap();
    let data: Vec<String> = ask(&mut raw, "LRANGE job 0 -1");
    assert_eq!(data, ["a", "b"]);
}

/// A state that a later leasehold has written: `Unsupported`, at once, and it stays.
#[test]
fn a_state_of_a_later_layout_is_unsupported_and_stays() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (client_of(&server), raw(&server.url()));
    let state = "{job}:lh:s";
    for version in ['2', '9', 'a', 'z'] {
        for held in [false, true] {
            ask::<()>(&mut raw, "FLUSHALL");
            let of_later = format!("{version}AN{}and-what-not", "0".repeat(300));
            ask::<()>(&mut raw, &format!("SET {state} {of_later} PX 60000"));
            if held {
                ask::<()>(&mut raw, "SET job 7f3e PX 60000");
            }
            for (call, make) in &CALLS[..ACQUIRES] {
                let (took, error) = timed(|| make(&client.mutex("job")).unwrap_err());
                assert_refused(call, &error, ErrorKind::Unsupported, "job");
                let text = error.to_string();
                assert!(text.contains(&format!("version {version}")), "{text}");
                assert!(
                    text.contains("newest"),
                    "it does not say what to do: {text}"
                );
                assert!(took < Duration::from_secs(5), "{call}: {took:?}");
            }
            if held {
                let force = client.mutex("job").force_unlock().unwrap_err();
                assert_refused("force", &force, ErrorKind::Unsupported, "job");
            }
            client.mutex("job").inspect().unwrap();
            assert_eq!(ask::<String>(&mut raw, &format!("GET {state}")), of_later);
            assert_eq!(ask::<bool>(&mut raw, "EXISTS job"), held);
        }
    }
}

/// A holder whose state somebody has replaced can still give its lock back, and the data stays.
#[test]
fn a_lock_can_be_given_back_whatever_its_state_has_become() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let state = "{job}:lh:s";
    let filler = "z".repeat(600);
    let zeros = "0".repeat(61);
    let strings = [
        format!("SET {state} {filler}"),
        format!("SET {state} {filler}␤z␤z␤"),
        format!("SET {state} 2AN{}", "0".repeat(300)),
        format!("SET {state} 1AN{zeros}{}", "-".repeat(500)),
        format!("SET {state} 1AN{zeros}{}␤z", "-".repeat(500)),
    ];
    let others = DATA.iter().map(|(_, set)| set.replace("KEY", state));
    for set in strings.into_iter().chain(others) {
        let guard = client.mutex("job").lock().unwrap();
        ask::<()>(&mut raw, &format!("DEL {state}"));
        ask::<()>(&mut raw, &set);
        let before = dump(&mut raw, state);
        elsewhere(|| guard.check()).unwrap();
        guard.unlock().unwrap_or_else(|e| panic!("{set}: {e}"));
        assert!(!ask::<bool>(&mut raw, "EXISTS job"), "{set}");
        assert_eq!(dump(&mut raw, state), before, "{set}");
        ask::<()>(&mut raw, "FLUSHALL");
    }
}

/// Numbers in a state that no clock gives: not believed, and no panic. Nobody waits under such a number for ever.
#[test]
fn absurd_numbers_in_a_state_do_no_harm() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    let absurd = ["18446744073709551615", "99999999999999999999999999", "0"];
    let waiters: String = absurd.map(|n| format!("abc,{n},{n};")).concat();
    let digits = "9".repeat(61);
    let state = format!("1NN{digits}{}label\nmutex\n\n{waiters}", "-".repeat(200));
    let mut set = redis::cmd("SET");
    set.arg("{job}:lh:s").arg(&state).arg("PX").arg(60_000);
    set.exec(&mut raw).unwrap();
    let info = client.mutex("job").inspect().unwrap();
    assert!(info.waiters <= 3 && !info.held, "{info:?}");
    // A token above all that a server's clock gives could not rise any more.
    let error = client.mutex("job").try_lock().unwrap_err();
    assert_refused("try_lock", &error, ErrorKind::Script, "job");
    assert!(!ask::<bool>(&mut raw, "EXISTS job"));
    let state = state.replace(&digits, &"0".repeat(61));
    let mut set = redis::cmd("SET");
    set.arg("{job}:lh:s").arg(&state).exec(&mut raw).unwrap();
    let guard = client.mutex("job").try_lock().unwrap();
    assert!(elsewhere(|| server.client().mutex("job").try_lock_for(WAIT).map(drop)).is_err());
    guard.unlock().unwrap();
    client.mutex("job").inspect().unwrap();
}
