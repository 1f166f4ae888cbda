//! How one who must wait for a lock comes to it: woken to try for himself, or given it when it is his turn.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::hold::hand_over::BLOCK;
use crate::options::{HoldOptions, invalid, millis};
use crate::redis_io::script::Request;

/// Longest time that one whose turn has come has to come for it: so much does a waiter that was stopped cost its successor.
const LONGEST_CLAIM: Duration = Duration::from_secs(3);
/// Shortest: a third of it is the pace at which waiters look, which must not be more than twice a second.
const SHORTEST_CLAIM: Duration = Duration::from_millis(1500);

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

    /// Adds to an acquire what is told of this way: see the scripts.
    pub(crate) fn complete(
        &self,
        request: Request,
        ticket: Option<&str>,
        token: &str,
        options: &HoldOptions,
        registered: bool,
        block: bool,
    ) -> Request {
        let claim = millis(claim(options));
        let entry = |want: &str| format!("{want},{claim},{token}");
        let queued = |request: Request, want: &str| match ticket {
            Some(ticket) => request.arg(ticket).arg(entry(want)),
            None => request.arg("").arg(""),
        };
        match self {
            Way::Gate if block => {
                let request = request.arg(ticket.unwrap_or("")).arg(",,");
                request.number(BLOCK)
            }
            Way::Gate | Way::Try => match ticket {
                Some(ticket) => request.arg(ticket).arg(",,"),
                None => request,
            },
            Way::Queue(Want::Word) => match ticket {
                Some(ticket) => request.arg(ticket).arg(entry("f")),
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

fn claim(options: &HoldOptions) -> Duration {
    options.ttl.clamp(SHORTEST_CLAIM, LONGEST_CLAIM)
}

/// How often one who queues looks for itself: so that it is heard of, and comes for its turn even if no message reaches it.
pub(crate) fn heartbeat(options: &HoldOptions) -> Duration {
    claim(options) / 3
}
