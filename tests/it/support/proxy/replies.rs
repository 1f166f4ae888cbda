//! Which request a server's reply belongs to, and what is to become of it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::resp;
use super::rules::{Command, Rule};

#[derive(Clone, Debug)]
pub(super) enum Fate {
    Relay,
    Drop,
    Cut,
    Delay(Duration),
    Replace(Vec<u8>),
    /// Kept for the client until the twin request is answered, too.
    Stash,
    Unstash,
    /// The reply to a request that was delivered when nobody waited any longer.
    Delivered,
}

#[derive(Debug)]
pub(super) struct Pending {
    fate: Fate,
    rule: Option<Arc<Rule>>,
    is_subscription: bool,
    expect: Expect,
}

/// What to do with one reply.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) fate: Fate,
    /// To be counted as hit.
    pub(super) rule: Option<Arc<Rule>>,
    /// The request has no more replies to come.
    pub(super) is_last: bool,
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    Replies(usize),
    /// One reply for each channel of this kind that is subscribed by then, or one if there is none.
    Unsubscribed(&'static str),
}

impl Pending {
    pub(super) fn new(command: &Command, fate: Fate, rule: Option<Arc<Rule>>) -> Pending {
        let channels = command.args.len().saturating_sub(1);
        let expect = match (command.name(), channels) {
            ("UNSUBSCRIBE", 0) => Expect::Unsubscribed("subscribe"),
            ("PUNSUBSCRIBE", 0) => Expect::Unsubscribed("psubscribe"),
            ("SUNSUBSCRIBE", 0) => Expect::Unsubscribed("ssubscribe"),
            (name, n) if name.ends_with("SUBSCRIBE") && n > 0 => Expect::Replies(n),
            _ => Expect::Replies(1),
        };
        Pending {
            fate,
            rule,
            is_subscription: command.name().ends_with("SUBSCRIBE"),
            expect,
        }
    }
}

/// The requests that await a reply on one connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pending: VecDeque<Pending>,
    /// Kind and channel.
    subscribed: HashSet<(String, Vec<u8>)>,
}

impl Replies {
    pub(super) fn push(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// What to do with this reply; `None` if it answers no request: a message to a subscriber, or a
    /// refusal with which the server greets a connection.
    pub(super) fn fate_of(&mut self, reply: &[u8]) -> Option<Answer> {
        let strings = resp::strings(reply);
        let kind = strings
            .first()
            .map(|kind| String::from_utf8_lossy(kind).into_owned());
        let kind = kind.unwrap_or_default();
        let is_subscriber = !self.subscribed.is_empty();
        if reply.first() == Some(&b'>') && !kind.ends_with("subscribe")
            || is_subscriber && matches!(kind.as_str(), "message" | "pmessage" | "smessage")
        {
            return None;
        }
        let subscribed = |kind: &str| {
            self.subscribed
                .iter()
                .filter(|(other, _)| other == kind)
                .count()
        };
        let pending = self.pending.front_mut()?;
        let left = match pending.expect {
            Expect::Replies(n) => n,
            Expect::Unsubscribed(kind) => subscribed(kind).max(1),
        };
        pending.expect = Expect::Replies(left - 1);
        let fate = match &mut pending.fate {
            // Once for the whole request.
            Fate::Replace(bytes) => Fate::Replace(std::mem::take(bytes)),
            fate => fate.clone(),
        };
        let answer = Answer {
            fate,
            rule: pending.rule.take(),
            is_last: left == 1,
        };
        if pending.is_subscription {
            self.note_subscription(&kind, strings.get(1).copied());
        }
        Some(answer)
    }

    /// To be called after [`fate_of`](Self::fate_of) and just before the reply goes out, when the next
    /// request may follow.
    pub(super) fn settle(&mut self) {
        if self
            .pending
            .front()
            .is_some_and(|pending| matches!(pending.expect, Expect::Replies(0)))
        {
            self.pending.pop_front();
        }
    }

    fn note_subscription(&mut self, kind: &str, channel: Option<&[u8]>) {
        let Some(channel) = channel else { return };
        match kind {
            "subscribe" | "psubscribe" | "ssubscribe" => {
                self.subscribed
                    .insert((kind.to_owned(), channel.to_owned()));
            }
            "unsubscribe" | "punsubscribe" | "sunsubscribe" => {
                self.subscribed
                    .remove(&(kind.replacen("unsub", "sub", 1), channel.to_owned()));
            }
            _ => {}
        }
    }
}
