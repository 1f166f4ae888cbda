//! A proxy in front of a server that breaks what a network breaks, by the command.
//!
//! It stands where the network does, knows requests and replies, and can lose, delay, double and
//! cut each of them. Without rules it is a faithful wire.

mod link;
mod replies;
mod resp;
mod rules;
mod shared;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use leasehold::testing::Port;
use link::Link;
use rules::Rule;
pub(crate) use rules::{Action, Command, RuleHandle, Times};
use shared::Shared;

const LISTEN_BOUND: Duration = Duration::from_secs(5);

/// On drop all connections are closed and all threads joined.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    /// `None` while it refuses.
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// In front of the server at `upstream`, say `127.0.0.1:6379`, which need not run yet.
    pub(crate) fn start(upstream: impl Into<String>) -> Proxy {
        let upstream = upstream.into();
        let upstream: SocketAddr = upstream
            .parse()
            .unwrap_or_else(|_| panic!("no socket address: {upstream}"));
        let (port, listener) = listen_somewhere();
        let proxy = Proxy {
            port,
            shared: Arc::new(Shared::new(upstream)),
            acceptor: Mutex::default(),
        };
        proxy.accept_on(listener);
        proxy
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address to give to clients instead of the server's.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port.number())
    }

    /// From now on the matching commands, so many, meet the fault. Of several rules that match, the
    /// one that was made first and has times left applies.
    pub(crate) fn rule(
        &self,
        matches: impl Fn(&Command) -> bool + Send + Sync + 'static,
        action: Action,
        times: Times,
    ) -> RuleHandle {
        let rule = Arc::new(Rule::new(matches, action, times));
        self.shared.add(&rule);
        RuleHandle {
            rule,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Every request held by [`Action::DeliverAfterClose`] so far, one at least, has reached the
    /// server and been answered.
    pub(crate) fn wait_delivered(&self, timeout: Duration) -> bool {
        self.shared.wait_until(timeout, |state| {
            state.held > 0 && state.delivered >= state.held
        })
    }

    /// What the clients have sent, in the order of its arrival. After 64 MiB the oldest is forgotten.
    pub(crate) fn commands(&self) -> Vec<Arc<Command>> {
        self.shared
            .read(|state| state.log.iter().cloned().collect())
    }

    /// How many of the [`commands`](Self::commands) are so. Panics if some have been forgotten.
    pub(crate) fn count(&self, mut wanted: impl FnMut(&Command) -> bool) -> usize {
        assert!(
            !self.shared.read(|state| state.log_overflow),
            "too many commands to count: call reset_counts sooner"
        );
        self.commands()
            .iter()
            .filter(|command| wanted(command))
            .count()
    }

    /// How often a client sent something while no reply to it was due: a pipeline counts as one.
    pub(crate) fn round_trips(&self) -> usize {
        self.shared.read(|state| state.round_trips)
    }

    /// How many clients are connected now.
    pub(crate) fn connections(&self) -> usize {
        self.shared.open_connections()
    }

    /// How many have been since the start or [`reset_counts`](Self::reset_counts).
    pub(crate) fn connections_total(&self) -> usize {
        self.shared.read(|state| state.connections_total)
    }

    /// All counters and the log, not the rules and their hits.
    pub(crate) fn reset_counts(&self) {
        self.shared.change(|state| {
            state.log.clear();
            state.log_size = 0;
            state.log_overflow = false;
            state.round_trips = 0;
            state.connections_total = 0;
            state.held = 0;
            state.delivered = 0;
        });
    }

    /// Closes all connections, now; new ones are accepted. Requests that are held or delayed are lost.
    pub(crate) fn cut(&self) {
        // Connected is who the system says is, though the acceptor may not have come to it yet. Connections
        // are accepted in their order, and so ours comes after all that are to be closed.
        if self.acceptor.lock().is_some()
            && let Ok(bell) = self.ring().and_then(|bell| bell.local_addr())
        {
            self.shared
                .wait_until(LISTEN_BOUND, |state| !state.bells.contains(&bell));
        }
        let links: Vec<_> = self
            .shared
            .read(|state| state.links.values().cloned().collect());
        for link in links {
            link.close(&self.shared);
        }
    }

    /// While on, nobody listens on the port; connections that are open stay so.
    pub(crate) fn refuse(&self, on: bool) {
        if on {
            self.stop_accepting();
            // A child that another test starts right now has the listening socket until it has become another program.
            let deadline = Instant::now() + LISTEN_BOUND;
            let port = self.port.number();
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                assert!(Instant::now() < deadline, "{port} is still listened to");
                thread::sleep(Duration::from_millis(2));
            }
            return;
        }
        if self.acceptor.lock().is_some() {
            return;
        }
        let deadline = Instant::now() + LISTEN_BOUND;
        let listener = loop {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, self.port.number())) {
                Ok(listener) => break listener,
                // Other tests probe ports for an instant.
                Err(error) => assert!(Instant::now() < deadline, "{:?}: {error}", self.port),
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.shared.change(|state| state.refusing = false);
        self.accept_on(listener);
    }

    /// While on, connections are accepted and stay open, and no byte passes in either direction. What
    /// was sent meanwhile arrives afterwards.
    pub(crate) fn black_hole(&self, on: bool) {
        self.shared.change(|state| state.black_hole = on);
    }

    fn accept_on(&self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        let acceptor = thread::Builder::new()
            .name("proxy".into())
            .spawn(move || accept(&shared, &listener));
        *self.acceptor.lock() = Some(acceptor.expect("a thread"));
    }

    /// Makes a blocked accept return, which it does for nothing but a connection.
    fn ring(&self) -> io::Result<TcpStream> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()));
        // Under the lock, so that the acceptor can't see the connection before it is known for what it is.
        self.shared.change(|state| {
            let bell = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
            state.bells.insert(bell.local_addr()?);
            Ok(bell)
        })
    }

    fn stop_accepting(&self) {
        let Some(acceptor) = self.acceptor.lock().take() else {
            return;
        };
        self.shared.change(|state| state.refusing = true);
        // Unheard, it would be waited for in vain.
        if let Ok(_bell) = self.ring() {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop_accepting();
        self.cut();
        for link in self
            .shared
            .change(|state| std::mem::take(&mut state.threads))
        {
            let _ = link.join();
        }
    }
}

/// Reserved, so that no other test's server answers there while we refuse.
fn listen_somewhere() -> (Port, TcpListener) {
    loop {
        let port = Port::reserve().expect("a free port");
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
            return (port, listener);
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        let peer = accepted.as_ref().ok().map(|(_, peer)| *peer);
        let (refusing, is_bell) = shared.change(|state| {
            (
                state.refusing,
                peer.is_some_and(|peer| state.bells.remove(&peer)),
            )
        });
        if refusing {
            shared.change(|state| state.bells.clear());
            return;
        }
        match accepted {
            Ok(_) if is_bell => {}
            Ok((client, _)) => serve(shared, client),
            // Out of file descriptors, most likely; trying again at once would only spin.
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn serve(shared: &Arc<Shared>, client: TcpStream) {
    let _ = client.set_nodelay(true);
    let link = shared.change(|state| {
        state.connections_total += 1;
        state.last_id += 1;
        let link = Arc::new(Link::new(state.last_id, client));
        state.links.insert(state.last_id, Arc::clone(&link));
        link
    });
    let theirs = Arc::clone(shared);
    let thread = thread::Builder::new()
        .name("proxy-link".into())
        .spawn(move || link.run(&theirs))
        .expect("a thread");
    shared.change(|state| {
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
    });
}
