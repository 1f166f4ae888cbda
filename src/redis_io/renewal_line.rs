//! The one connection that all renewals of a client share.
//!
//! Each lock's own thread brings its renewal here. Whoever finds the connection free sends all that are waiting in one
//! pipeline and hands the answers round; so a thousand locks due at once cost one round trip, and no thread of its own
//! sits between a lock and the wire. (The idea is flat combining: Hendler, Incze, Shavit, Tzafrir, 2010.)

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::redis_io::connection::{Budget, Limits, ManagedConnection, Target};
use crate::redis_io::failure::{Failure, Reached};
use crate::redis_io::node::Answer;
use crate::redis_io::script::Request;

/// Most renewals in one pipeline: keeps a batch's reply time well below any lease.
const BATCH: usize = 256;

pub(crate) struct RenewalLine {
    queue: Mutex<VecDeque<Pending>>,
    connection: Mutex<ManagedConnection>,
}

struct Pending {
    request: Request,
    limits: Limits,
    /// When its sender gives up.
    until: Instant,
    reply: Sender<Turn>,
}

enum Turn {
    Answered(Result<Answer, Failure>),
    /// The thread that was sending has its own answer and left: you are first in line, send for all.
    Send,
    /// The connection was busy with others for too long: there is no time left to send this one.
    Late,
}

impl fmt::Debug for RenewalLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewalLine").finish_non_exhaustive()
    }
}

impl RenewalLine {
    pub(crate) fn new(target: Arc<Target>) -> RenewalLine {
        RenewalLine {
            queue: Mutex::default(),
            connection: Mutex::new(ManagedConnection::new(target)),
        }
    }

    /// Runs one renewal; `None` if there was no answer within `patience`. One that was queued but not sent by then is
    /// taken back; one that was sent may still be carried out.
    pub(crate) fn call(
        &self,
        request: Request,
        limits: Limits,
        patience: Duration,
        clock: &Clock,
    ) -> Option<Result<Answer, Failure>> {
        let until = Instant::now() + patience;
        // Room for a turn and the answer: `pass_turn` never puts a second turn in.
        let (reply, turns) = bounded(2);
        self.queue.lock().push_back(Pending {
            request,
            limits,
            until,
            reply: reply.clone(),
        });
        loop {
            if let Some(answer) = self.send_if_free(&turns, until, clock) {
                return Some(answer);
            }
            match turns.recv_deadline(until) {
                Ok(Turn::Answered(answer)) => return Some(answer),
                Ok(Turn::Late) => return None,
                Ok(Turn::Send) => {}
                Err(_) => {
                    let mut queue = self.queue.lock();
                    queue.retain(|p| !p.reply.same_channel(&reply));
                    drop(queue);
                    return self.last_look(&turns);
                }
            }
        }
    }

    /// What came at the very moment of giving up: an answer is taken, a turn is passed on.
    fn last_look(&self, turns: &Receiver<Turn>) -> Option<Result<Answer, Failure>> {
        let mut answer = None;
        while let Ok(turn) = turns.try_recv() {
            match turn {
                Turn::Answered(a) => answer = Some(a),
                Turn::Late => {}
                Turn::Send => self.pass_turn(),
            }
        }
        answer
    }

    /// If nobody is sending, sends what is queued, until our own answer is here.
    fn send_if_free(
        &self,
        turns: &Receiver<Turn>,
        until: Instant,
        clock: &Clock,
    ) -> Option<Result<Answer, Failure>> {
        loop {
            let mut connection = self.connection.try_lock()?;
            let batch: Vec<Pending> = {
                let mut queue = self.queue.lock();
                let n = queue.len().min(BATCH);
                queue.drain(..n).collect()
            };
            if !batch.is_empty() {
                run(&mut connection, batch, clock);
            }
            drop(connection);
            match turns.try_recv() {
                Ok(Turn::Answered(answer)) => {
                    // Whoever queued while we held the connection saw it taken, and waits for a turn.
                    self.pass_turn();
                    return Some(answer);
                }
                Ok(Turn::Late) => {
                    self.pass_turn();
                    return None;
                }
                Ok(Turn::Send) => {}
                Err(_) if self.queue.lock().is_empty() => return None,
                Err(_) if Instant::now() >= until => {
                    // Too many stood before us: the next one goes on sending for all.
                    self.pass_turn();
                    return None;
                }
                Err(_) => {}
            }
        }
    }

    fn pass_turn(&self) {
        let queue = self.queue.lock();
        for pending in queue.iter() {
            // Not empty: it has been told already. Gone: it gave up, so ask the next.
            if !pending.reply.is_empty() || pending.reply.try_send(Turn::Send).is_ok() {
                return;
            }
        }
    }
}

/// Sends the whole batch, then reads the answers in order and stops at the first fault: waiting for each remaining answer
/// in turn would add up their timeouts.
fn run(connection: &mut ManagedConnection, batch: Vec<Pending>, clock: &Clock) {
    let now = Instant::now();
    // All must be answered before the first of them gives up. One that has waited for its turn for half of its time would
    // only hurry the others.
    let in_time = |p: &Pending| p.until.saturating_duration_since(now) >= p.limits.io / 2;
    let (batch, late): (Vec<_>, Vec<_>) = batch.into_iter().partition(in_time);
    for pending in late {
        let _ = pending.reply.try_send(Turn::Late);
    }
    // Those with little time go first and alone: their time limit would be too strict for the others.
    let longest = batch.iter().map(|p| p.limits.io).max().unwrap_or_default();
    let (hurried, batch): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|p| p.limits.io < longest / 4);
    for batch in [hurried, batch] {
        send_all(connection, batch, clock);
    }
}

fn send_all(connection: &mut ManagedConnection, batch: Vec<Pending>, clock: &Clock) {
    let unknown = send_batch(connection, batch, clock, Request::pack);
    // A server that was restarted or flushed knows no script: those go again with their source.
    if !unknown.is_empty() {
        let rest = send_batch(connection, unknown, clock, Request::pack_with_source);
        for (pending, failure) in rest.into_iter().zip(std::iter::repeat_with(no_script)) {
            answer(&pending, Err(failure));
        }
    }
}

fn no_script() -> Failure {
    Failure::unsent(crate::error::Error::new(
        crate::error::ErrorKind::Unavailable,
        "the server dropped the script between two commands",
    ))
}

/// Returns those whose script the server did not know.
fn send_batch(
    connection: &mut ManagedConnection,
    batch: Vec<Pending>,
    clock: &Clock,
    pack: fn(&Request) -> Vec<u8>,
) -> Vec<Pending> {
    let Some(until) = batch.iter().map(|p| p.until).min() else {
        return Vec::new();
    };
    let strictest = |f: fn(&Limits) -> Duration| batch.iter().map(|p| f(&p.limits)).min();
    let io = strictest(|l| l.io).unwrap_or_default();
    let connect = strictest(|l| l.connect).unwrap_or_default();
    let budget = Budget::until(until);
    let mut packed = Vec::with_capacity(batch.len() * 192);
    for pending in &batch {
        packed.extend_from_slice(&pack(&pending.request));
    }
    if let Err(failure) = connection.connect(connect.min(budget.left())) {
        return fail(batch, failure);
    }
    let sent_at = clock.now();
    if let Err(failure) = connection.send(&packed, io.min(budget.left())) {
        return fail(batch, failure);
    }
    let mut unknown = Vec::new();
    let mut batch = batch.into_iter();
    while let Some(pending) = batch.next() {
        let received = receive_within(connection, budget, io);
        match received {
            Ok(Ok(value)) => answer(
                &pending,
                Ok(Answer {
                    value,
                    sent_at,
                    repeated: false,
                }),
            ),
            Ok(Err(e)) => {
                let failure = connection.answered(e);
                if failure.is_noscript() {
                    unknown.push(pending);
                } else {
                    answer(&pending, Err(failure));
                }
            }
            Err(failure) => {
                unknown.extend(fail(
                    std::iter::once(pending).chain(batch).collect(),
                    failure,
                ));
                break;
            }
        }
    }
    unknown
}

/// One answer. The socket's timeout is per read, so a server that answers one after the other slowly must be stopped here.
fn receive_within(
    connection: &mut ManagedConnection,
    budget: Budget,
    io: Duration,
) -> Result<Result<redis::Value, redis::RedisError>, Failure> {
    let left = budget.left();
    if left.is_zero() {
        let slow = std::io::Error::from(std::io::ErrorKind::TimedOut);
        return Err(connection.failed(Reached::Maybe, slow.into()));
    }
    if left < io / 2 {
        connection.set_timeout(left)?;
    }
    connection.receive()
}

/// The same fault for all of them.
fn fail(batch: Vec<Pending>, failure: Failure) -> Vec<Pending> {
    for pending in &batch {
        answer(pending, Err(failure.share()));
    }
    Vec::new()
}

fn answer(pending: &Pending, result: Result<Answer, Failure>) {
    // Gone: it gave up waiting, and takes this renewal for "unknown".
    drop(pending.reply.try_send(Turn::Answered(result)));
}
