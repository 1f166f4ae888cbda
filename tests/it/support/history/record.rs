//! A process writes down what it does, so that the record outlives its being killed: one write to a file for each event.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, HoldId, Mode, Op, Outcome, Owner, Time, Words};

#[derive(Debug)]
pub(crate) struct Recorder {
    file: File,
    process: u32,
    last: AtomicU64,
}

impl Recorder {
    /// `process` is that process's number in the history, and no other's.
    pub(crate) fn new(path: &Path, process: u32) -> Recorder {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Recorder {
            file: file.expect("a file for the record"),
            process,
            last: AtomicU64::new(0),
        }
    }

    pub(crate) fn fresh_hold(&self) -> HoldId {
        let n = self.last.fetch_add(1, Ordering::Relaxed);
        HoldId::from(self.process) << 32 | n
    }

    /// To be called before the operation is.
    pub(crate) fn call(&self, thread: u32, lock: &str, call: &Call) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        self.write(id, format_args!("{thread} {lock} {}", Words(call)));
        id
    }

    /// To be called when it has returned; `id` is what its call gave.
    pub(crate) fn returned(&self, id: u64, outcome: &Outcome) {
        self.write(id, format_args!("= {}", Words(outcome)));
    }

    /// An event is on the file in one piece, or not at all.
    fn write(&self, id: u64, what: impl Display) {
        let line = format!("{id} {} {what}\n", now());
        (&self.file)
            .write_all(line.as_bytes())
            .expect("room for the record");
    }
}

/// The clock that goes on while the machine sleeps, and which no one can set.
fn now() -> Time {
    #[cfg(target_os = "linux")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let t = rustix::time::clock_gettime(CLOCK);
    let part = |n: i64| u64::try_from(n).expect("a time since boot");
    part(t.tv_sec) * 1_000_000_000 + part(t.tv_nsec)
}

/// What the process of this number wrote, in the order of its calls.
pub(crate) fn read(path: &Path, process: u32) -> Vec<Op> {
    let text = fs::read_to_string(path).expect("the record of a process");
    // What is after the last end of a line was being written when the process was killed.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut ops = Vec::new();
    let mut places = HashMap::new();
    for line in whole.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let event = event(&words).unwrap_or_else(|| panic!("no event: {line}"));
        match event {
            Event::Called(id, op) => {
                places.insert(id, ops.len());
                let owner = Owner {
                    process,
                    ..op.owner
                };
                ops.push(Op { owner, ..op });
            }
            Event::Returned(id, time, outcome) => {
                let op: &mut Op = &mut ops[places[&id]];
                op.returned = Some(time);
                op.outcome = outcome;
            }
        }
    }
    ops
}

enum Event {
    Called(u64, Op),
    Returned(u64, Time, Outcome),
}

fn event(words: &[&str]) -> Option<Event> {
    let (id, time) = (words[0].parse().ok()?, words.get(1)?.parse().ok()?);
    match words.get(2..)? {
        ["=", outcome @ ..] => Some(Event::Returned(id, time, read_outcome(outcome)?)),
        [thread, lock, call @ ..] => {
            let owner = Owner {
                process: 0,
                thread: thread.parse().ok()?,
            };
            let op = Op {
                owner,
                lock: (*lock).to_owned(),
                call: read_call(call)?,
                invoked: time,
                returned: None,
                outcome: Outcome::Unsure,
            };
            Some(Event::Called(id, op))
        }
        _ => None,
    }
}

pub(crate) fn read_call(words: &[&str]) -> Option<Call> {
    let hold = |word: &str| HoldId::from_str_radix(word, 16).ok();
    Some(match *words {
        ["take", h, mode] => Call::Take {
            hold: hold(h)?,
            mode: read_mode(mode)?,
        },
        ["swap", from, h, mode] => Call::Swap {
            from: hold(from)?,
            hold: hold(h)?,
            mode: read_mode(mode)?,
        },
        ["give", h] => Call::Give { hold: hold(h)? },
        ["check", h] => Call::Check { hold: hold(h)? },
        ["limit", n] => Call::Limit(n.parse().ok()?),
        _ => return None,
    })
}

fn read_mode(word: &str) -> Option<Mode> {
    Some(match word {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        n => Mode::Permits(n.parse().ok()?),
    })
}

pub(crate) fn read_outcome(words: &[&str]) -> Option<Outcome> {
    Some(match *words {
        ["granted", token] => Outcome::Granted {
            token: token.parse().ok()?,
        },
        ["held", left] => Outcome::Held {
            left: left.parse().ok()?,
        },
        ["done"] => Outcome::Done,
        ["refused"] => Outcome::Refused,
        ["over"] => Outcome::Over,
        ["unsure"] => Outcome::Unsure,
        _ => return None,
    })
}
