//! The usual scene: a server, a proxy before it for clients to meet faults in, and an eye on the truth beside it.

use std::sync::Arc;
use std::time::Instant;

use leasehold::testing::Server;
use leasehold::{Client, ClientBuilder};
use parking_lot::Mutex;
use redis::{Connection, FromRedisValue};

use super::proxy::{Action, Command, Proxy, Times};
use super::scripts::sources;
use super::wait::{raw, was_interrupted};

#[derive(Debug)]
pub(crate) struct Scene {
    // Dropped first, so that its connections end before the server does.
    pub(crate) proxy: Proxy,
    pub(crate) server: Server,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::with_args([])
    }

    /// The server with these arguments. It knows leasehold's scripts already.
    pub(crate) fn with_args<const N: usize>(args: [&str; N]) -> Scene {
        Scene::before(Server::start_with(args).unwrap())
    }

    /// The same with a server that runs already.
    pub(crate) fn before(server: Server) -> Scene {
        let mut direct = raw(&server.url());
        for source in sources() {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(source).exec(&mut direct).unwrap();
        }
        let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
        Scene { proxy, server }
    }

    /// Of a client that sees the server through the proxy.
    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder().url(&self.proxy.url())
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(&self.proxy.url()).unwrap()
    }

    /// A client that the proxy's faults don't touch, and whose commands it doesn't count.
    pub(crate) fn outsider(&self) -> Client {
        self.server.client()
    }

    /// Another way to the truth: a connection of the test's own.
    pub(crate) fn raw(&self) -> Connection {
        raw(&self.server.url())
    }

    /// One command, its words separated by spaces.
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        ask(&mut self.raw(), command)
    }

    /// When each of the commands that are so reaches the proxy, from now on. To be called before the rules that break
    /// them.
    pub(crate) fn sightings(
        &self,
        wanted: impl Fn(&Command) -> bool + Send + Sync + 'static,
    ) -> Arc<Mutex<Vec<Instant>>> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&seen);
        // A rule that never applies: only its matcher, which is asked for each command, is of use.
        let looks = move |command: &Command| {
            if wanted(command) {
                note.lock().push(Instant::now());
            }
            false
        };
        self.proxy.rule(looks, Action::DropRequest, Times::Always);
        seen
    }
}

/// One command, its words separated by spaces. Sent again if a signal ended the read of its answer, as one does now and then
/// in a process with many children.
pub(crate) fn ask<T: FromRedisValue>(connection: &mut Connection, command: &str) -> T {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap_or_default());
    for word in words {
        cmd.arg(word);
    }
    loop {
        match cmd.query(connection) {
            Ok(value) => return value,
            Err(error) if was_interrupted(&error) => {}
            Err(error) => panic!("{command}: {error}"),
        }
    }
}

/// How often the server has run a command, also inside scripts.
pub(crate) fn calls(connection: &mut Connection, command: &str) -> u64 {
    let stats: String = ask(connection, "INFO commandstats");
    let head = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&head));
    line.and_then(|rest| rest.split(',').next())
        .map_or(0, |calls| calls.parse().unwrap())
}
