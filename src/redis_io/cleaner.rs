//! Undoes in the background what could not be undone in time.
//!
//! A bounded wait keeps its bound and a drop is bounded, whatever the server does; a release or a leave that failed, or did
//! not fit, comes here. Each job is tried until the lease it concerns has run out anyway.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::BootTime;
use crate::redis_io::STACK;
use crate::redis_io::connection::{Budget, ManagedConnection};
use crate::redis_io::node::{Node, call_over};
use crate::redis_io::script::Request;

/// More than this many undone jobs are not kept: their leases end by themselves.
const MOST: usize = 10_000;
/// A lease of days is not a reason to keep a thread at it for days.
const LONGEST: Duration = Duration::from_secs(600);
/// The thread goes when there was nothing to do for so long.
const LINGER: Duration = Duration::from_millis(500);
/// Slowest pace of trying again.
const SLOWEST_RETRY: Duration = Duration::from_millis(500);

pub(crate) struct Cleaner {
    shared: Arc<Shared>,
}

struct Shared {
    node: Weak<Node>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

struct Job {
    request: Request,
    until: BootTime,
    name: Arc<str>,
}

impl fmt::Debug for Cleaner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cleaner").finish_non_exhaustive()
    }
}

impl Cleaner {
    pub(crate) fn new(node: &Arc<Node>) -> Cleaner {
        Cleaner {
            shared: Arc::new(Shared {
                node: Arc::downgrade(node),
                queue: Mutex::default(),
                changed: Condvar::new(),
            }),
        }
    }

    /// Runs `request` soon, and again until it is answered or `until` has passed.
    pub(crate) fn push(
        &self,
        node: &Arc<Node>,
        request: Request,
        until: BootTime,
        name: &Arc<str>,
    ) {
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() >= MOST {
            queue.jobs.pop_front();
            log::warn!(target: "leasehold::cleaner", "too much to clean up; a key is left to its ttl");
        }
        queue.jobs.push_back(Job {
            request,
            until: until.min(node.clock.now() + LONGEST),
            name: name.clone(),
        });
        if queue.running {
            self.shared.changed.notify_one();
            return;
        }
        let (shared, node) = (self.shared.clone(), node.clone());
        let thread = std::thread::Builder::new()
            .name("leasehold-cleaner".into())
            .stack_size(STACK)
            .spawn(move || {
                let gone = Gone(&shared);
                shared.work(&node);
                drop(gone);
            });
        match thread {
            Ok(_) => queue.running = true,
            Err(e) => {
                queue.jobs.clear();
                log::warn!(target: "leasehold::cleaner", "no thread to clean up, keys are left to their ttl: {e}");
            }
        }
    }

    /// Someone else's lock may be free, and its waiter asleep: see to it if we still can.
    pub(crate) fn handle(&self) -> CleanerHandle {
        CleanerHandle(Arc::downgrade(&self.shared))
    }
}

/// For threads that must not keep the client alive.
#[derive(Clone)]
pub(crate) struct CleanerHandle(Weak<Shared>);

impl CleanerHandle {
    pub(crate) fn push(&self, request: Request, lasts: Duration, name: &Arc<str>) {
        if let Some(shared) = self.0.upgrade()
            && let Some(node) = shared.node.upgrade()
        {
            let until = node.clock.now() + lasts;
            Cleaner { shared }.push(&node, request, until, name);
        }
    }
}

/// Notes that the thread is gone, also when the user's logger has panicked in it: the next job starts another.
struct Gone<'a>(&'a Shared);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.lock().running = false;
        }
    }
}

impl Shared {
    fn work(&self, node: &Arc<Node>) {
        let mut connection = ManagedConnection::new(node.target.clone());
        let mut pause = Duration::from_millis(20);
        while let Some(job) = self.next() {
            if node.clock.now() >= job.until {
                log::debug!(target: "leasehold::cleaner", "lock {:?}: left to its ttl", job.name);
                continue;
            }
            let limits = node.limits;
            let budget = Budget::new(limits.connect + limits.io);
            let result = call_over(&mut connection, &job.request, limits, budget, &node.clock);
            match result {
                Ok(_) => pause = Duration::from_millis(20),
                Err(failure) if failure.is_transient() => {
                    let mut queue = self.queue.lock();
                    queue.jobs.push_front(job);
                    self.changed.wait_for(&mut queue, pause);
                    pause = (pause * 2).min(SLOWEST_RETRY);
                }
                Err(failure) => {
                    let (name, error) = (&job.name, failure.error);
                    log::warn!(target: "leasehold::cleaner", "lock {name:?}: could not clean up: {error}");
                }
            }
        }
    }

    /// The next job; `None`, and the thread marked as gone, when there was none for a while.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() {
            self.changed.wait_for(&mut queue, LINGER);
        }
        let job = queue.jobs.pop_front();
        queue.running = job.is_some();
        job
    }
}
