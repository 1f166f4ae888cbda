//! How one who must wait for a lock comes to it: woken to try for himself, or given it when it is his turn.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::hold::first_lease;
use crate::options::{HoldOptions, invalid, millis};
use crate::redis_io::script::Request;

/// Longest time that one whose turn has come has to come for it: so much does a waiter that was stopped cost its successor.
const LONGEST_CLAIM: Duration = Duration::from_secs(3);
/// Shortest: a third of it is the pace at which waiters look, which must not be more than twice a second.
const SHORTEST_CLAIM: Duration = Duration::from_millis(1500);
/// The same for one who waits at a gate, for others as well. It is known by a look a second, so this leaves time after that.
const CLAIM_AT_GATE: Duration = Duration::from_secs(2);
/// One who is given the lock by a message begins to work on his claim, and makes a whole lease of it after so long: most holds
/// are over by then, and never cost that call.
pub(crate) const CLAIM_IS_RENEWED_AFTER: Duration = Duration::from_millis(10);

/// How a waiter comes to a lock.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Threads of one client line up at a gate. The first of them is woken when the lock is free, and tries for all.
    Gate,
    /// Every thread is woken, and tries for itself.
    Try,
    /// Every thread has a place of its own on the server, and is given the lock when it is its turn.
    Queue(Want),
}

/// What one who queues waits for.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    /// The word, as the only one.
    Word,
    Read,
    Write,
    /// To write, instead of the read lease with this token. `repeated`: a copy of its acquire may still be on its way.
    Upgrade {
        old: Arc<str>,
        repeated: bool,
    },
    /// So many of so many.
    Permits {
        n: u32,
        limit: u32,
    },
}

impl Way {
    /// # Errors
    ///
    /// `InvalidOptions` for a number of permits that can never be had.
    pub(crate) fn check(&self) -> Result<()> {
        match *self {
            Way::Queue(Want::Permits { n: 0, .. } | Want::Permits { limit: 0, .. }) => {
                Err(invalid("0 permits; it must be at least 1"))
            }
            Way::Queue(Want::Permits { n, limit }) if n > limit => Err(invalid(format!(
                "{n} permits are wanted of a semaphore that has {limit}: that would wait for ever"
            ))),
            _ => Ok(()),
        }
    }

    /// What one should do who waits for himself.
    pub(crate) fn own_hold(&self) -> &'static str {
        match self {
            Way::Queue(Want::Read) => {
                "drop the first guard, or make a reader of the writer by downgrade()"
            }
            Way::Queue(Want::Write) => {
                "drop the first guard, or read with upgradable_read() and make a writer of that by upgrade()"
            }
            Way::Queue(Want::Upgrade { .. }) => "drop the other read guard of this thread",
            _ => "drop the first guard, hand its lease() on instead, or use a ReentrantMutex",
        }
    }

    /// Who has it, as far as one who was kept out can know.
    pub(crate) fn kept_out(&self, name: Option<&str>) -> String {
        match (self, name) {
            (Way::Queue(Want::Permits { n, .. }), _) => {
                format!("there are not enough permits free for {n}")
            }
            (_, Some(name)) => format!("somebody else holds {name:?} of it"),
            (_, None) => "somebody else holds it".into(),
        }
    }

    /// Whether a thread holds it, so that it can be found waiting for itself. A permit may be given back by any thread.
    pub(crate) fn is_tracked(&self) -> bool {
        !matches!(self, Way::Queue(Want::Permits { .. }))
    }

    /// Whether others may hold it at the same time.
    pub(crate) fn shares(&self) -> bool {
        matches!(self, Way::Queue(Want::Read))
    }

    /// The token of the lease that is given up for this one.
    pub(crate) fn replaces(&self) -> Option<&str> {
        match self {
            Way::Queue(Want::Upgrade { old, .. }) => Some(old),
            _ => None,
        }
    }

    /// Whether one who waits in this way may be given the lock while he does.
    pub(crate) fn is_given(&self) -> bool {
        !matches!(self, Way::Try)
    }

    /// For how long one who is given the lock has it at first.
    pub(crate) fn claim(&self, options: &HoldOptions) -> Duration {
        match self {
            // Nobody counts on the look of one who waits for all: so no longer than the lease that he wants.
            Way::Gate => first_lease(options).min(CLAIM_AT_GATE),
            Way::Try | Way::Queue(_) => claim_in_queue(options),
        }
    }

    /// Adds to an acquire what is told of this way: see the scripts.
    pub(crate) fn complete(
        &self,
        request: Request,
        ticket: Option<&str>,
        token: &str,
        options: &HoldOptions,
        registered: bool,
        word: &WordEntry<'_>,
    ) -> Request {
        let claim = millis(self.claim(options));
        let entry = |want: &str| format!("{want},{claim},{token}");
        let word_entry = |want: &str| {
            let WordEntry { block, floor, text } = word;
            format!("{},{block},{floor:016},{}", entry(want), escaped(text))
        };
        let queued = |request: Request, want: &str| match ticket {
            Some(ticket) => request.arg(ticket).arg(entry(want)),
            None => request.arg("").arg(""),
        };
        match self {
            Way::Gate => {
                let request = match ticket {
                    Some(ticket) => request.arg(ticket).arg(word_entry("m")),
                    None if word.block > 0 => request.arg("").arg(""),
                    None => return request,
                };
                match word.block {
                    0 => request,
                    block => request.number(block),
                }
            }
            Way::Try => match ticket {
                Some(ticket) => request.arg(ticket).arg(",,"),
                None => request,
            },
            Way::Queue(Want::Word) => match ticket {
                Some(ticket) => request.arg(ticket).arg(word_entry("f")),
                None => request,
            },
            Way::Queue(Want::Read) => queued(request, "r").arg("r"),
            Way::Queue(Want::Write) => queued(request, "w").arg("w"),
            Way::Queue(Want::Upgrade { old, repeated }) => {
                let request = queued(request, "x").arg("x").arg(&**old);
                if *repeated { request.arg("1") } else { request }
            }
            Way::Queue(Want::Permits { n, limit }) => {
                let request = queued(request, itoa::Buffer::new().format(*n))
                    .number(u64::from(*n))
                    .number(u64::from(*limit));
                if registered {
                    request.arg("1")
                } else {
                    request
                }
            }
        }
    }
}

/// What a release must know to grant the word to one who waits for it.
pub(crate) struct WordEntry<'a> {
    /// How many fencing tokens to reserve, if more than one.
    pub(crate) block: u64,
    /// The lowest one to give.
    pub(crate) floor: u64,
    /// Label and kind, as the state has them.
    pub(crate) text: &'a str,
}

/// Without the signs that part entries, and their parts.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '%' => out.push_str("%25"),
            ',' => out.push_str("%2c"),
            ';' => out.push_str("%3b"),
            '\n' => out.push_str("%0a"),
            c => out.push(c),
        }
    }
    out
}

/// How often one who queues looks for itself: so that it is heard of, and comes for its turn even if no message reaches it.
pub(crate) fn heartbeat(options: &HoldOptions) -> Duration {
    claim_in_queue(options) / 3
}

fn claim_in_queue(options: &HoldOptions) -> Duration {
    options.ttl.clamp(SHORTEST_CLAIM, LONGEST_CLAIM)
}
