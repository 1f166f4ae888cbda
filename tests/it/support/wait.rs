//! Waits that end: for a condition, not for a time, and never without a bound.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(2);

/// Returns when `cond` holds; panics with `what` if it does not within the bound.
#[track_caller]
pub(crate) fn eventually(bound: Duration, what: &str, mut cond: impl FnMut() -> bool) {
    let start = Instant::now();
    while !cond() {
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        sleep(POLL);
    }
}

/// How many threads this process has; `None` where the system has no `/proc`.
pub(crate) fn threads_of_this_process() -> Option<usize> {
    fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

/// Their names, of which Linux keeps 15 bytes; empty where the system has no `/proc`.
pub(crate) fn thread_names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    // A thread may end between the listing and the reading.
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim().into())
        .collect()
}

/// A connection of the test's own, which gives up on a silent server after 5 s.
#[track_caller]
pub(crate) fn raw(url: &str) -> redis::Connection {
    raw_with_timeout(url, Duration::from_secs(5))
}

/// The same for faults: a short timeout to connect, to read and to write.
#[track_caller]
pub(crate) fn raw_with_timeout(url: &str, timeout: Duration) -> redis::Connection {
    let client = redis::Client::open(url).expect("a url");
    let connection = loop {
        match client.get_connection_with_timeout(timeout) {
            Ok(connection) => break connection,
            Err(error) if was_interrupted(&error) => {}
            Err(error) => panic!("no connection: {error}"),
        }
    };
    connection
        .set_read_timeout(Some(timeout))
        .expect("a read timeout");
    connection
        .set_write_timeout(Some(timeout))
        .expect("a write timeout");
    connection
}

/// Whether a signal ended a read: nothing is wrong then. In a process whose children end while it starts others, the system
/// interrupts reads that have a timeout.
pub(crate) fn was_interrupted(error: &redis::RedisError) -> bool {
    let interrupted = std::io::Error::from(rustix::io::Errno::INTR);
    error.is_io_error() && error.to_string().contains(&interrupted.to_string())
}

/// Succeeds at the first of so many attempts that does; panics with what each of them said.
///
/// For promises about short times: a machine that is busy elsewhere breaks each of them now and then, a fault every time.
#[track_caller]
pub(crate) fn one_of(attempts: u32, mut attempt: impl FnMut() -> Result<(), String>) {
    let mut said = Vec::new();
    for _ in 0..attempts {
        match attempt() {
            Ok(()) => return,
            Err(what) => said.push(what),
        }
    }
    panic!("none of {attempts} attempts: {said:#?}");
}
