//! Copies of a command that reach the server late, as a network may deliver them long after the client has given up.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Client;

use super::proxy::Command;
use super::scene::Scene;

/// Leaves a connection in the pool that has been used: only such a one gets a second try.
pub(crate) fn warm(client: &Client) {
    let mutex = client
        .mutex("warm")
        .with_fixed_lease(Duration::from_secs(60));
    mutex.lock().unwrap().unlock().unwrap();
}

impl Scene {
    /// The first call of `script` on `word` that a client has sent through the proxy, whatever became of it.
    #[track_caller]
    pub(crate) fn first_sent(&self, script: &str, word: &str) -> Arc<Command> {
        let sent = self.proxy.commands();
        let first = sent
            .into_iter()
            .find(|command| command.runs_on(script, word));
        first.unwrap_or_else(|| panic!("no {script} of {word} was sent"))
    }

    /// A copy of `command` arrives at the server now; what it says to that.
    pub(crate) fn deliver(&self, command: &Command) -> redis::Value {
        let mut copy = redis::cmd(command.name());
        for arg in &command.args[1..] {
            copy.arg(&arg[..]);
        }
        copy.query(&mut self.raw()).unwrap()
    }

    pub(crate) fn exists(&self, key: &str) -> bool {
        self.ask(&format!("EXISTS {key}"))
    }

    /// What is left of a key's life by the server's clock; nothing of one that is not there.
    pub(crate) fn left(&self, key: &str) -> Duration {
        let ms: i64 = self.ask(&format!("PTTL {key}"));
        Duration::from_millis(ms.max(0).unsigned_abs())
    }
}
