//! Together with another library: redis-py's own `redis.lock.Lock` on the same key, in processes of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, unbounded};
use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, Predecessor};

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::child::{Child, args, say};
use crate::support::python::python_with_redis;
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[(&str, fn())] = &[("interop/count", count)];

/// A Python process that plays a part of interop.py.
struct Python {
    process: Process,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Python {
    fn play(server: &Server, name: &str, part: &[&str]) -> Python {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/interop.py");
        let mut process = Command::new(python_with_redis())
            .arg(script)
            .args([&server.port().to_string(), name])
            .args(part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python runs");
        let stdin = process.stdin.take().expect("its standard input");
        let stdout = BufReader::new(process.stdout.take().expect("its standard output"));
        let (sender, lines) = unbounded();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Python {
            process,
            stdin,
            lines,
        }
    }

    #[track_caller]
    fn expect(&self, line: &str) {
        let said = self.lines.recv_timeout(6 * BOUND);
        assert_eq!(said.as_deref(), Ok(line), "what redis-py says");
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// Theirs keeps us out, for as long as they hold it and no longer.
#[test]
fn a_lock_of_redis_py_excludes_ours() {
    let server = Server::start().unwrap();
    let client = server.client();
    let mutex = client.mutex("shared");
    let mut theirs = Python::play(&server, "shared", &["hold", "30"]);
    theirs.expect("got");
    assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
    let wait = Duration::from_millis(200);
    assert_eq!(
        mutex.try_lock_for(wait).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    let info = mutex.inspect().unwrap();
    assert_eq!(
        (&*info.kind, info.held, info.holder),
        ("foreign", true, None)
    );
    theirs.tell("release");
    theirs.expect("released");
    let guard = mutex.try_lock().unwrap();
    assert_eq!(
        *guard.predecessor(),
        Predecessor::None,
        "they tell us nothing"
    );
}

/// Ours keeps them out, and they leave it as it is.
#[test]
fn our_lock_excludes_redis_pys() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client.mutex("shared").lock().unwrap();
    Python::play(&server, "shared", &["try"]).expect("busy");
    guard.verify().unwrap();
    guard.unlock().unwrap();
    Python::play(&server, "shared", &["try"]).expect("got");
}

/// They wake nobody: our waiter finds their release at its poll, which is due within 1.25 s.
#[test]
fn our_waiter_finds_their_release_at_its_next_poll() {
    let server = Server::start().unwrap();
    let client = server.client();
    let mut theirs = Python::play(&server, "shared", &["hold", "60"]);
    theirs.expect("got");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = client.mutex("shared").try_lock_for(6 * BOUND);
            guard.map(|guard| (Instant::now(), guard.unlock()))
        });
        let known = || client.mutex("shared").inspect().unwrap().waiters == 1;
        eventually(BOUND, "it waits", known);
        let before = Instant::now();
        theirs.tell("release");
        theirs.expect("released");
        let (got, unlocked) = waiter.join().unwrap().unwrap();
        unlocked.unwrap();
        let took = got - before;
        assert!(took < Duration::from_millis(1250 + 750), "{took:?}");
    });
}

/// A holder of theirs that dies, or overruns its timeout: we get in when that is over, without waiting for the poll.
#[test]
fn our_waiter_gets_in_when_their_timeout_is_over() {
    let server = Server::start().unwrap();
    let client = server.client();
    let mut theirs = Python::play(&server, "shared", &["stale", "0.9"]);
    theirs.expect("got");
    let (took, guard) = timed(|| client.mutex("shared").try_lock_for(6 * BOUND).unwrap());
    assert!(took < Duration::from_secs(3), "{took:?}");
    // Their late release compares, as ours does.
    theirs.tell("release");
    theirs.expect("refused LockNotOwnedError");
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// Their waiter polls, and gets in soon after our release.
#[test]
fn their_waiter_gets_in_after_our_release() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client.mutex("shared").lock().unwrap();
    let theirs = Python::play(&server, "shared", &["wait"]);
    theirs.expect("waiting");
    let nothing = theirs.lines.recv_timeout(Duration::from_millis(300));
    assert!(nothing.is_err(), "in spite of our lock: {nothing:?}");
    guard.unlock().unwrap();
    let (took, ()) = timed(|| theirs.expect("got"));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A lock of theirs that lasts for ever has no ttl, as somebody's data have none: it is left alone, and said to be that.
#[test]
fn a_lock_of_theirs_without_a_timeout_is_left_alone() {
    let server = Server::start().unwrap();
    let mut theirs = Python::play(&server, "shared", &["hold", "forever"]);
    theirs.expect("got");
    let mutex = server.client().mutex("shared");
    for error in [mutex.lock().unwrap_err(), mutex.force_unlock().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::KeyConflict, "{error}");
    }
    theirs.tell("release");
    theirs.expect("released");
    drop(mutex.lock().unwrap());
}

const ROUNDS: u32 = 60;

/// As in interop.py.
fn count() {
    let [url, name] = args().try_into().expect("two arguments");
    let client = Client::builder()
        .url(&url)
        .max_wait(6 * BOUND)
        .build()
        .unwrap();
    let mutex = client.mutex(name);
    let mut connection = raw(&url);
    for _ in 0..ROUNDS {
        let guard = mutex.lock().unwrap();
        let inside: i64 = ask(&mut connection, "INCR inside");
        assert_eq!(inside, 1, "two are inside at once");
        let n: Option<u32> = ask(&mut connection, "GET counter");
        std::thread::sleep(Duration::from_micros(500));
        guard.check().unwrap();
        ask::<()>(
            &mut connection,
            &format!("SET counter {}", n.unwrap_or(0) + 1),
        );
        ask::<()>(&mut connection, "DECR inside");
        guard.unlock().unwrap();
    }
    say("counted");
}

/// Two processes of each library count in turn, each time reading first and then writing: none is ever lost.
#[test]
fn a_counter_shared_with_redis_py_loses_nothing() {
    let server = Server::start().unwrap();
    let rounds = ROUNDS.to_string();
    let theirs = [(); 2].map(|()| Python::play(&server, "shared", &["count", &rounds]));
    let role = || {
        Child::role("interop/count")
            .arg(server.url())
            .arg("shared")
            .spawn()
    };
    let ours = [role(), role()];
    for child in &ours {
        child.wait_for("counted", 6 * BOUND);
    }
    for python in &theirs {
        python.expect("counted");
    }
    let total: u32 = ask(&mut raw(&server.url()), "GET counter");
    assert_eq!(total, 4 * ROUNDS);
    elsewhere(|| server.client().mutex("shared").try_lock().map(drop)).expect("it is free");
}
