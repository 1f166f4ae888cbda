//! One client's connection, the connection to the server that goes with it, and a thread for each direction.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::replies::{Fate, Pending, Replies};
use super::resp;
use super::rules::{Action, Command, Rule};
use super::shared::Shared;

const CONNECT_BOUND: Duration = Duration::from_secs(2);
const DELIVERY_BOUND: Duration = Duration::from_secs(10);
const CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Link {
    id: u64,
    client: TcpStream,
    upstream: OnceLock<TcpStream>,
    pub(super) client_gone: AtomicBool,
    closed: AtomicBool,
    replies: Mutex<Replies>,
}

impl Link {
    pub(super) fn new(id: u64, client: TcpStream) -> Link {
        Link {
            id,
            client,
            upstream: OnceLock::new(),
            client_gone: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            replies: Mutex::default(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Both sides at once. Shutting down is what wakes a thread that reads or writes.
    pub(super) fn close(&self, shared: &Shared) {
        self.closed.store(true, Ordering::SeqCst);
        self.hang_up(shared);
        if let Some(upstream) = self.upstream.get() {
            let _ = upstream.shutdown(Shutdown::Both);
        }
    }

    /// The client's side alone: what has been sent to the server is still carried out.
    fn hang_up(&self, shared: &Shared) {
        let _ = self.client.shutdown(Shutdown::Both);
        self.client_gone.store(true, Ordering::SeqCst);
        shared.change(|_| ());
    }

    /// Serves the connection until both sides are closed.
    pub(super) fn run(self: &Arc<Link>, shared: &Arc<Shared>) {
        if let Ok(upstream) = TcpStream::connect_timeout(&shared.upstream, CONNECT_BOUND) {
            let _ = upstream.set_nodelay(true);
            let upstream = self.upstream.get_or_init(|| upstream);
            if self.is_closed() {
                self.close(shared);
            }
            thread::scope(|scope| {
                scope.spawn(|| serve_replies(shared, self, upstream));
                serve_requests(shared, self, upstream);
            });
        }
        self.close(shared);
        shared.change(|state| state.links.remove(&self.id));
    }
}

fn serve_requests(shared: &Shared, link: &Link, upstream: &TcpStream) {
    let mut requests = Requests {
        shared,
        link,
        upstream,
        out: Vec::new(),
        held: Vec::new(),
    };
    let mut bytes = Vec::new();
    let mut chunk = vec![0; CHUNK];
    while let Ok(n @ 1..) = (&link.client).read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..n]);
        if !shared.pass(link) || !requests.take(&mut bytes) {
            break;
        }
    }
    link.hang_up(shared);
    requests.deliver();
    // The server carries out what it has got, answers and closes.
    let _ = upstream.shutdown(Shutdown::Write);
}

struct Requests<'a> {
    shared: &'a Shared,
    link: &'a Link,
    upstream: &'a TcpStream,
    /// Not yet written, so that what came in one piece leaves in one piece.
    out: Vec<u8>,
    held: Vec<(Arc<Command>, Vec<u8>)>,
}

impl Requests<'_> {
    /// Handles the complete requests and leaves the rest; false if the connection is over.
    fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        let mut commands = Vec::new();
        let mut at = 0;
        let well_formed = loop {
            match resp::request(&bytes[at..]) {
                Ok(Some((args, length))) => {
                    let raw = bytes[at..at + length].to_vec();
                    at += length;
                    if !args.is_empty() {
                        commands.push((Arc::new(Command::new(args, self.link.id)), raw));
                    }
                }
                Ok(None) => break true,
                Err(resp::Malformed) => break false,
            }
        };
        bytes.drain(..at);
        // Several commands at once are one round trip, as is whatever follows before the last reply.
        let new_round_trip = !commands.is_empty() && self.link.replies.lock().is_empty();
        let logged: Vec<_> = commands
            .iter()
            .map(|(command, _)| Arc::clone(command))
            .collect();
        self.shared.log(&logged, new_round_trip);
        commands
            .into_iter()
            .all(|(command, raw)| self.one(command, raw))
            && self.flush()
            && well_formed
    }

    fn one(&mut self, command: Arc<Command>, raw: Vec<u8>) -> bool {
        if !self.held.is_empty() {
            self.hold(command, raw);
            return true;
        }
        let Some((rule, action)) = self.shared.fault(&command) else {
            self.forward(&command, &raw, Fate::Relay, None);
            return true;
        };
        match action {
            Action::DropRequest => self.shared.hit(Some(&rule)),
            Action::DropReply => self.forward(&command, &raw, Fate::Drop, Some(rule)),
            Action::CutBeforeRequest => {
                self.flush();
                self.shared.hit(Some(&rule));
                return false;
            }
            Action::CutBeforeReply => self.forward(&command, &raw, Fate::Cut, Some(rule)),
            Action::DelayRequest(delay) => {
                self.flush();
                self.shared.hit(Some(&rule));
                if !self.shared.delay(self.link, delay) {
                    return false;
                }
                self.forward(&command, &raw, Fate::Relay, None);
            }
            Action::DelayReply(delay) => {
                self.forward(&command, &raw, Fate::Delay(delay), Some(rule))
            }
            Action::DuplicateRequest => {
                self.forward(&command, &raw, Fate::Stash, None);
                self.forward(&command, &raw, Fate::Unstash, Some(rule));
            }
            Action::DeliverAfterClose => {
                self.hold(command, raw);
                self.shared.hit(Some(&rule));
            }
            Action::ReplaceReply(bytes) => {
                self.forward(&command, &raw, Fate::Replace(bytes), Some(rule))
            }
        }
        true
    }

    fn forward(&mut self, command: &Command, raw: &[u8], fate: Fate, rule: Option<Arc<Rule>>) {
        self.link
            .replies
            .lock()
            .push(Pending::new(command, fate, rule));
        self.out.extend_from_slice(raw);
    }

    fn flush(&mut self) -> bool {
        let out = std::mem::take(&mut self.out);
        out.is_empty()
            || self.shared.pass(self.link) && (&mut &*self.upstream).write_all(&out).is_ok()
    }

    fn hold(&mut self, command: Arc<Command>, raw: Vec<u8>) {
        self.held.push((command, raw));
        self.shared.change(|state| state.held += 1);
    }

    /// What was held for a client that is gone now.
    fn deliver(&mut self) {
        if self.held.is_empty() {
            return;
        }
        for (command, raw) in std::mem::take(&mut self.held) {
            self.forward(&command, &raw, Fate::Delivered, None);
        }
        // Not closed before the replies have come: a server gives up a blocked command when its client hangs up.
        if self.flush() {
            let link = self.link;
            self.shared.wait_until(DELIVERY_BOUND, |_| {
                link.is_closed() || link.replies.lock().is_empty()
            });
        }
    }
}

fn serve_replies(shared: &Shared, link: &Link, upstream: &TcpStream) {
    let mut replies = AnsweredTo {
        shared,
        link,
        stash: Vec::new(),
    };
    let mut bytes = Vec::new();
    let mut chunk = vec![0; CHUNK];
    while let Ok(n @ 1..) = (&mut &*upstream).read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..n]);
        let mut at = 0;
        let well_formed = loop {
            match resp::reply(&bytes[at..]) {
                Ok(Some(length)) => {
                    if !replies.one(&bytes[at..at + length]) {
                        break false;
                    }
                    at += length;
                }
                Ok(None) => break true,
                Err(resp::Malformed) => break false,
            }
        };
        bytes.drain(..at);
        if !well_formed {
            break;
        }
    }
    link.close(shared);
}

struct AnsweredTo<'a> {
    shared: &'a Shared,
    link: &'a Link,
    stash: Vec<u8>,
}

impl AnsweredTo<'_> {
    /// False if the link was closed.
    fn one(&mut self, reply: &[u8]) -> bool {
        let Some(answer) = self.link.replies.lock().fate_of(reply) else {
            return self.send(reply);
        };
        let hit = || self.shared.hit(answer.rule.as_ref());
        let settle = || self.link.replies.lock().settle();
        match answer.fate {
            Fate::Relay => {
                settle();
                return self.send(reply);
            }
            Fate::Drop => {
                hit();
                settle();
            }
            Fate::Cut => {
                hit();
                settle();
                self.link.hang_up(self.shared);
            }
            Fate::Delay(delay) => {
                hit();
                if !self.shared.delay(self.link, delay) {
                    return false;
                }
                settle();
                return self.send(reply);
            }
            Fate::Replace(bytes) => {
                hit();
                settle();
                return self.send(&bytes);
            }
            Fate::Stash => {
                settle();
                self.stash.extend_from_slice(reply);
            }
            Fate::Unstash => {
                hit();
                settle();
                if answer.is_last {
                    let stash = std::mem::take(&mut self.stash);
                    return self.send(&stash);
                }
            }
            Fate::Delivered => {
                settle();
                self.shared
                    .change(|state| state.delivered += usize::from(answer.is_last));
            }
        }
        true
    }

    fn send(&self, reply: &[u8]) -> bool {
        if !self.shared.pass(self.link) {
            return false;
        }
        // A client that has hung up misses its reply; the requests before its end are answered to nobody.
        let _ = (&self.link.client).write_all(reply);
        true
    }
}
