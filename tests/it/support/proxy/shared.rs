//! What the proxy's threads and its owner share: one lock, and one condition that says "something changed".

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::link::Link;
use super::rules::{Action, Command, Rule};

/// A test that sends more without [`super::Proxy::reset_counts`] has lost count.
const LOG_LIMIT: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The proxy does not accept, for now or for good.
    pub(super) refusing: bool,
    pub(super) black_hole: bool,
    /// With either side still open.
    pub(super) links: HashMap<u64, Arc<Link>>,
    /// Connections of the proxy to itself, which wake the acceptor.
    pub(super) bells: HashSet<SocketAddr>,
    /// One for each link, and some that have ended.
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) last_id: u64,
    pub(super) connections_total: usize,
    pub(super) round_trips: usize,
    pub(super) log: VecDeque<Arc<Command>>,
    pub(super) log_size: usize,
    pub(super) log_overflow: bool,
    pub(super) held: usize,
    pub(super) delivered: usize,
    rules: Vec<Arc<Rule>>,
}

impl Shared {
    pub(super) fn new(upstream: SocketAddr) -> Shared {
        Shared {
            upstream,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock())
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_all();
        result
    }

    /// Whether it came true in time.
    pub(super) fn wait_until(
        &self,
        timeout: Duration,
        mut cond: impl FnMut(&State) -> bool,
    ) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !cond(&state) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return cond(&state);
            }
        }
        true
    }

    /// Waits while the network is a black hole; false if the link was closed instead.
    pub(super) fn pass(&self, link: &Link) -> bool {
        let mut state = self.state.lock();
        while state.black_hole && !link.is_closed() {
            self.changed.wait(&mut state);
        }
        !link.is_closed()
    }

    /// Lets the time go by; false if the link was closed in it.
    pub(super) fn delay(&self, link: &Link, delay: Duration) -> bool {
        !self.wait_until(delay, |_| link.is_closed())
    }

    pub(super) fn log(&self, commands: &[Arc<Command>], new_round_trip: bool) {
        self.change(|state| {
            state.round_trips += usize::from(new_round_trip);
            for command in commands {
                state.log_size += command.size();
                state.log.push_back(Arc::clone(command));
            }
            while state.log_size > LOG_LIMIT {
                let oldest = state.log.pop_front();
                state.log_size -= oldest.map_or(state.log_size, |command| command.size());
                state.log_overflow = true;
            }
        });
    }

    pub(super) fn add(&self, rule: &Arc<Rule>) {
        self.change(|state| state.rules.push(Arc::clone(rule)));
    }

    pub(super) fn forget(&self, rule: &Arc<Rule>) {
        self.change(|state| state.rules.retain(|other| !Arc::ptr_eq(other, rule)));
    }

    /// The first rule that matches. Asked without the lock, because matchers are the test's code.
    pub(super) fn fault(&self, command: &Command) -> Option<(Arc<Rule>, Action)> {
        let rules = self.read(|state| state.rules.clone());
        rules.into_iter().find_map(|rule| {
            let action = rule.take(command)?.clone();
            Some((rule, action))
        })
    }

    pub(super) fn open_connections(&self) -> usize {
        self.read(|state| {
            state
                .links
                .values()
                .filter(|link| !link.client_gone.load(Ordering::SeqCst))
                .count()
        })
    }
}
