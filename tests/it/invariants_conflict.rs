//! Invariant 13: whoever reads a key wrongly destroys nothing: what is no lock is somebody's data.

use leasehold::{Client, Error, ErrorKind, Mutex};
use redis::Value;

use crate::support::locks::{BOUND, Scene, exists, get, ms, pttl, secs, take_as_foreigner, timed};
use crate::support::wait::eventually;

/// Somebody's data: how it is made, given its key.
const DATA: &[(&str, &[&str])] = &[
    ("string without ttl", &["SET", "KEY", "data"]),
    ("list", &["RPUSH", "KEY", "data", "more"]),
    ("hash", &["HSET", "KEY", "field", "data"]),
    ("set", &["SADD", "KEY", "data"]),
    ("sorted set", &["ZADD", "KEY", "1", "data"]),
    ("stream", &["XADD", "KEY", "*", "field", "data"]),
];

fn make(raw: &mut redis::Connection, command: &[&str], key: &str) {
    let mut cmd = redis::cmd(command[0]);
    for arg in &command[1..] {
        cmd.arg(if *arg == "KEY" { key } else { arg });
    }
    cmd.query::<Value>(raw).unwrap();
}

/// All there is of the key: its content to the last bit, and its ttl.
fn dump(raw: &mut redis::Connection, key: &str) -> (Vec<u8>, i64) {
    let content: Vec<u8> = redis::cmd("DUMP").arg(key).query(raw).unwrap();
    (content, pttl(raw, key))
}

/// Every way to take the lock, or to take it away.
fn attempts(mutex: &Mutex) -> [(&'static str, leasehold::Result<()>); 5] {
    [
        ("try_lock", mutex.try_lock().map(drop)),
        ("try_lock_for", mutex.try_lock_for(secs(30)).map(drop)),
        ("lock", mutex.lock().map(drop)),
        ("with", mutex.with(|_| ())),
        ("force_unlock", mutex.force_unlock().map(drop)),
    ]
}

fn is_conflict(error: &Error, name: &str) {
    assert_eq!(error.kind(), ErrorKind::KeyConflict, "{error}");
    assert_eq!(error.name(), Some(name));
    assert!(!error.is_retryable());
}

/// Invariant 13: any data under the word is refused at once, by whatever takes or takes away, and stays as it is.
#[test]
fn data_under_the_word_is_refused_and_left_untouched() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.client_with(secs(30));
    for (what, command) in DATA {
        make(&mut raw, command, what);
        let before = dump(&mut raw, what);
        assert_eq!(before.1, -1);
        let (took, results) = timed(|| attempts(&client.mutex(*what)));
        for (how, result) in results {
            let error = result.expect_err(how);
            is_conflict(&error, what);
        }
        assert!(took < secs(5), "not at once: {took:?}");
        assert_eq!(dump(&mut raw, what), before, "{what}");
        assert!(!exists(&mut raw, &format!("{{{what}}}:lh:s")), "{what}");
    }
    assert_eq!(leasehold::testing::entries(&client), 0);
}

/// Invariant 13: what is no string is no lock, ttl or not.
#[test]
fn data_of_another_type_is_refused_with_a_ttl_too() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.client_with(secs(30));
    for (what, command) in &DATA[1..] {
        make(&mut raw, command, what);
        let mut expire = redis::cmd("PEXPIRE");
        expire.arg(what).arg(100_000).exec(&mut raw).unwrap();
        let (content, _) = dump(&mut raw, what);
        for (how, result) in attempts(&client.mutex(*what)) {
            is_conflict(&result.expect_err(how), what);
        }
        let (after, left) = dump(&mut raw, what);
        assert_eq!(after, content, "{what}");
        assert!((50_000..=100_000).contains(&left), "{what}: {left}");
    }
}

/// What may stand under the state's key. `None`: it is somebody's data. `Some`: it is a state of a later layout.
fn states() -> Vec<(String, Vec<String>, ErrorKind)> {
    let data = DATA.iter().map(|(what, command)| {
        let command = command.iter().map(|arg| (*arg).to_owned()).collect();
        ((*what).to_owned(), command, ErrorKind::KeyConflict)
    });
    let set = |value: String| {
        ["SET", "KEY", &value, "PX", "100000"]
            .map(str::to_owned)
            .to_vec()
    };
    let later = format!("2CN{}{}\n\n\n", "0".repeat(61), "-".repeat(200));
    data.chain([
        (
            "string with ttl".into(),
            set("data".into()),
            ErrorKind::KeyConflict,
        ),
        (
            "long string".into(),
            set("data".repeat(200)),
            ErrorKind::KeyConflict,
        ),
        (
            "lines".into(),
            set("some line\n".repeat(60)),
            ErrorKind::KeyConflict,
        ),
        ("later layout".into(), set(later), ErrorKind::Unsupported),
    ])
    .collect()
}

fn make_state(raw: &mut redis::Connection, command: &[String], name: &str) -> String {
    let key = format!("{{{name}}}:lh:s");
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    make(raw, &command, &key);
    key
}

/// Invariant 13: the same under the key of the state, where the word is free, and where somebody has it.
#[test]
fn data_under_the_state_is_refused_and_left_untouched() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.client_with(secs(30));
    for (what, command, kind) in states() {
        let state = make_state(&mut raw, &command, &what);
        let (content, ttl) = dump(&mut raw, &state);
        let mutex = client.mutex(&what);
        let refused = |result: leasehold::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        };
        for (how, result) in attempts(&mutex) {
            match how {
                // Nobody has it, so there is nothing to be taken away.
                "force_unlock" => result.unwrap(),
                _ => refused(result),
            }
        }
        assert!(!exists(&mut raw, &what), "{what}: the word");
        // With a holder.
        take_as_foreigner(&mut raw, &what, secs(60));
        for (how, result) in attempts(&mutex) {
            match how {
                "try_lock" | "try_lock_for" | "lock" | "with" => refused(result),
                _ => refused(result),
            }
        }
        assert_eq!(get(&mut raw, &what).as_deref(), Some("foreign"));
        assert!(pttl(&mut raw, &what) > 30_000);
        let (after, left) = dump(&mut raw, &state);
        assert_eq!(after, content, "{what}");
        assert_eq!(left == -1, ttl == -1);
    }
}

/// Invariant 13: a holder whose keys turn into somebody's data renews and releases what is its own, and no more.
#[test]
fn a_holder_touches_no_data_that_has_taken_its_keys_place() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.client_with(secs(1));
    let witness = client.mutex("witness").lock().unwrap();
    // The state: the hold goes on, and the release frees the word.
    for (what, command, _) in states() {
        let guard = client.mutex(&what).with_ttl(secs(30)).lock().unwrap();
        redis::cmd("DEL")
            .arg(format!("{{{what}}}:lh:s"))
            .exec(&mut raw)
            .unwrap();
        let state = make_state(&mut raw, &command, &what);
        let (content, _) = dump(&mut raw, &state);
        guard.verify().unwrap();
        guard.unlock().unwrap();
        assert!(!exists(&mut raw, &what), "{what}");
        assert_eq!(dump(&mut raw, &state).0, content, "{what}");
    }
    // The word: the hold is lost, and the release does nothing.
    let held: Vec<_> = DATA
        .iter()
        .map(|(what, command)| {
            let word = format!("word of a {what}");
            let guard = client.mutex(&word).lock().unwrap();
            redis::cmd("DEL").arg(&word).exec(&mut raw).unwrap();
            make(&mut raw, command, &word);
            (dump(&mut raw, &word), guard)
        })
        .collect();
    bench.pass_renewals(&witness, 2);
    for (before, guard) in held {
        let word = guard.name().to_owned();
        eventually(BOUND, "it is lost", || !guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(dump(&mut raw, &word), before, "{word}");
    }
}

/// Invariant 13: a word that turns into data while it is waited for ends the wait.
#[test]
fn a_wait_ends_when_the_lock_turns_into_data() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    take_as_foreigner(&mut raw, "m", secs(60));
    let client: Client = bench.client_with(secs(30));
    let mutex = client.mutex("m");
    std::thread::scope(|s| {
        let wait = s.spawn(|| mutex.lock().map(drop));
        eventually(BOUND, "it waits", || mutex.inspect().unwrap().waiters == 1);
        redis::cmd("PERSIST").arg("m").exec(&mut raw).unwrap();
        let (took, result) = timed(|| wait.join().unwrap());
        is_conflict(&result.unwrap_err(), "m");
        // By the next poll.
        assert!(took < secs(5), "{took:?}");
    });
    assert_eq!(get(&mut raw, "m").as_deref(), Some("foreign"));
    assert_eq!(
        mutex.try_lock_for(ms(50)).unwrap_err().kind(),
        ErrorKind::KeyConflict
    );
}
