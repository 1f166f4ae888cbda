//! Short forms of what most tests do: ask the server, run something on another thread, tell the scripts apart.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue};

use super::proxy::Command;

/// Longest wait for what should come soon.
pub(crate) const BOUND: Duration = Duration::from_secs(10);

/// Sends a command written as in a shell: `ask::<u64>(&mut raw, "PTTL order:1")`. No argument holds a space; `␤` stands for
/// a line break.
#[track_caller]
pub(crate) fn ask<T: FromRedisValue>(connection: &mut Connection, line: &str) -> T {
    let reply = try_ask(connection, line);
    reply.unwrap_or_else(|error| panic!("{line}: {error}"))
}

pub(crate) fn try_ask<T: FromRedisValue>(
    connection: &mut Connection,
    line: &str,
) -> redis::RedisResult<T> {
    let mut words = line.split_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    for word in words {
        command.arg(word.replace('␤', "\n"));
    }
    command.query(connection)
}

/// On a thread of its own: one thread is not let in twice, whichever client it uses.
#[track_caller]
pub(crate) fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(f).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// How long it took, and what came of it.
pub(crate) fn timed<T>(f: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = f();
    (start.elapsed(), result)
}

/// The shortest of three tries, or the first that is within `bound`: on a busy machine any one of them may be late
/// through no fault of ours.
pub(crate) fn best_of_three(bound: Duration, mut f: impl FnMut() -> Duration) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        best = best.min(f());
        if best <= bound {
            break;
        }
    }
    best
}

/// What a bounded wait of `asked` may take at most, as promised.
pub(crate) fn bound_of(asked: Duration) -> Duration {
    asked + asked / 10 + Duration::from_millis(20)
}

pub(crate) fn is_acquire(command: &Command) -> bool {
    command.runs("acquire")
}

pub(crate) fn is_renewal(command: &Command) -> bool {
    command.runs("renew")
}

pub(crate) fn is_release(command: &Command) -> bool {
    command.runs("release")
}

pub(crate) fn is_leave(command: &Command) -> bool {
    command.runs("leave")
}

/// What asks and changes nothing by itself, and what an operator does.
pub(crate) fn is_look(command: &Command) -> bool {
    ["inspect", "verify", "force_unlock"]
        .iter()
        .any(|script| command.runs(script))
}
