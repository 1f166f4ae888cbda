//! Which commands meet which fault, how often, and what came of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::shared::Shared;

/// A command as a client sent it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    name: String,
    /// With the command's name at the head.
    pub(crate) args: Vec<Vec<u8>>,
    /// The number of the client's connection, from 1 in the order of arrival.
    pub(crate) connection: u64,
}

impl Command {
    pub(super) fn new(args: Vec<Vec<u8>>, connection: u64) -> Command {
        let name = args
            .first()
            .map(|name| String::from_utf8_lossy(name).to_uppercase());
        Command {
            name: name.unwrap_or_default(),
            args,
            connection,
        }
    }

    /// In capitals.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether one of the arguments (a script, too, that is sent by EVAL) contains the text.
    pub(crate) fn contains(&self, text: &str) -> bool {
        let text = text.as_bytes();
        text.is_empty()
            || self
                .args
                .iter()
                .any(|arg| arg.windows(text.len()).any(|window| window == text))
    }

    pub(super) fn size(&self) -> usize {
        self.args.iter().map(|arg| arg.len() + 32).sum()
    }
}

/// What happens to a command instead of what should.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Never reaches the server; no reply ever.
    DropRequest,
    /// Carried out; the reply never reaches the client.
    DropReply,
    /// The client's connection is closed; the command never reaches the server.
    CutBeforeRequest,
    /// Carried out; when the reply comes, the client's connection is closed instead.
    CutBeforeReply,
    /// Reaches the server so much later, even if the client has hung up by then. What the client sends on the same
    /// connection meanwhile waits behind it, as bytes do.
    DelayRequest(Duration),
    /// The reply, and all that comes after it on the connection, so much later.
    DelayReply(Duration),
    /// Reaches the server twice; the client gets the first reply.
    DuplicateRequest,
    /// Held, together with what the client sends after it on the same connection, until the client closes the
    /// connection; only then does it reach the server, whose reply nobody hears. See [`Proxy::wait_delivered`].
    ///
    /// [`Proxy::wait_delivered`]: super::Proxy::wait_delivered
    DeliverAfterClose,
    /// Carried out; the client gets these bytes, RESP if they are to be understood, for a reply.
    ReplaceReply(Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Times {
    Once,
    N(usize),
    Always,
}

type Matcher = Box<dyn Fn(&Command) -> bool + Send + Sync>;

pub(super) struct Rule {
    matches: Matcher,
    action: Action,
    left: AtomicUsize,
    hits: AtomicUsize,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("action", &self.action)
            .field("hits", &self.hits)
            .finish_non_exhaustive()
    }
}

impl Rule {
    pub(super) fn new(
        matches: impl Fn(&Command) -> bool + Send + Sync + 'static,
        action: Action,
        times: Times,
    ) -> Rule {
        let left = match times {
            Times::Once => 1,
            Times::N(n) => n,
            Times::Always => usize::MAX,
        };
        Rule {
            matches: Box::new(matches),
            action,
            left: AtomicUsize::new(left),
            hits: AtomicUsize::new(0),
        }
    }

    /// The fault that this command meets, one time less to go.
    pub(super) fn take(&self, command: &Command) -> Option<&Action> {
        if self.left.load(Ordering::SeqCst) == 0 || !(self.matches)(command) {
            return None;
        }
        let less = |left: usize| match left {
            usize::MAX => Some(left),
            _ => left.checked_sub(1),
        };
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .ok()
            .map(|_| &self.action)
    }
}

/// A rule in force. Dropping the handle changes nothing.
#[derive(Debug)]
pub(crate) struct RuleHandle {
    pub(super) rule: Arc<Rule>,
    pub(super) shared: Arc<Shared>,
}

impl RuleHandle {
    /// How many commands have met the fault. Counted when it takes effect and before the client can
    /// notice; where it concerns the reply, the server has then carried out the command.
    pub(crate) fn hits(&self) -> usize {
        self.rule.hits.load(Ordering::SeqCst)
    }

    /// Waits for the first hit.
    pub(crate) fn wait_hit(&self, timeout: Duration) -> bool {
        self.wait_hits(1, timeout)
    }

    pub(crate) fn wait_hits(&self, hits: usize, timeout: Duration) -> bool {
        self.shared.wait_until(timeout, |_| self.hits() >= hits)
    }

    /// Commands from now on are spared; those that have met the rule are not.
    pub(crate) fn remove(&self) {
        self.rule.left.store(0, Ordering::SeqCst);
        self.shared.forget(&self.rule);
    }
}

impl Shared {
    pub(super) fn hit(&self, rule: Option<&Arc<Rule>>) {
        if let Some(rule) = rule {
            self.change(|_| rule.hits.fetch_add(1, Ordering::SeqCst));
        }
    }
}
