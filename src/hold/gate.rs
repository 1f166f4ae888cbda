//! Where threads of one client that want the same word meet: one of them speaks to the server, the others wait here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;

use crate::error::Error;
use crate::wait::{Cancellers, Woken};

/// The gates of one client, by word. A gate exists only while somebody has passed it.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) server: Arc<str>,
    gates: Mutex<HashMap<Arc<str>, Gate>>,
}

#[derive(Debug, Default)]
struct Gate {
    queue: VecDeque<(u64, Sender<()>)>,
    next_ticket: u64,
    trouble: Option<Trouble>,
}

/// The server can't be used, since when, and what it said last: shared by all that wait at one gate, because one of them
/// asks for all.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) since: Instant,
    pub(crate) error: Error,
}

/// The right to ask the server for a word, and then to hold it. Dropped, the next thread in line has it.
#[derive(Debug)]
pub(crate) struct Pass {
    gates: Arc<Gates>,
    word: Arc<str>,
}

/// Why a thread did not pass.
#[derive(Debug)]
pub(crate) enum Stopped {
    TimedOut,
    Cancelled,
}

impl Gates {
    pub(crate) fn new(server: Arc<str>) -> Gates {
        Gates {
            server,
            gates: Mutex::default(),
        }
    }

    /// Passes, if nobody has.
    pub(crate) fn try_enter(self: &Arc<Self>, word: &Arc<str>) -> Option<Pass> {
        let mut gates = self.gates.lock();
        if gates.contains_key(word) {
            return None;
        }
        gates.insert(word.clone(), Gate::default());
        Some(self.pass(word))
    }

    /// Passes, in order of arrival.
    pub(crate) fn enter(
        self: &Arc<Self>,
        word: &Arc<str>,
        until: Option<Instant>,
        cancellers: &Cancellers,
    ) -> Result<Pass, Stopped> {
        let (ticket, turn) = {
            let mut gates = self.gates.lock();
            let Some(gate) = gates.get_mut(word) else {
                gates.insert(word.clone(), Gate::default());
                return Ok(self.pass(word));
            };
            let (tx, rx) = bounded(1);
            gate.next_ticket += 1;
            gate.queue.push_back((gate.next_ticket, tx));
            (gate.next_ticket, rx)
        };
        let stopped = match cancellers.recv(&turn, until) {
            Woken::Message(()) => return Ok(self.pass(word)),
            Woken::Cancelled => Stopped::Cancelled,
            Woken::Timeout | Woken::Disconnected => Stopped::TimedOut,
        };
        if let Some(gate) = self.gates.lock().get_mut(word) {
            gate.queue.retain(|(t, _)| *t != ticket);
        }
        if turn.try_recv().is_ok() {
            // Our turn came at this very moment: it goes to the next in line.
            drop(self.pass(word));
        }
        Err(stopped)
    }

    fn pass(self: &Arc<Self>, word: &Arc<str>) -> Pass {
        Pass {
            gates: self.clone(),
            word: word.clone(),
        }
    }

    /// What the server said last to whoever asks for `word`, if it was trouble.
    pub(crate) fn trouble(&self, word: &Arc<str>) -> Option<Error> {
        let gates = self.gates.lock();
        let trouble = gates.get(word)?.trouble.as_ref()?;
        Some(trouble.error.share())
    }

    /// How many gates stand: tests see that nothing stays behind.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.gates.lock().len()
    }
}

impl Pass {
    /// Notes trouble, and says since when it lasts.
    pub(crate) fn note_trouble(&self, error: &Error) -> Instant {
        let mut gates = self.gates.gates.lock();
        let since = gates
            .get(&self.word)
            .and_then(|g| g.trouble.as_ref())
            .map_or_else(Instant::now, |t| t.since);
        if let Some(gate) = gates.get_mut(&self.word) {
            let error = error.share();
            gate.trouble = Some(Trouble { since, error });
        }
        since
    }

    /// The server answers again.
    pub(crate) fn no_trouble(&self) {
        if let Some(gate) = self.gates.gates.lock().get_mut(&self.word) {
            gate.trouble = None;
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut gates = self.gates.gates.lock();
        let Some(gate) = gates.get_mut(&self.word) else {
            return;
        };
        while let Some((_, turn)) = gate.queue.pop_front() {
            if turn.try_send(()).is_ok() {
                return;
            }
        }
        gates.remove(&self.word);
    }
}
