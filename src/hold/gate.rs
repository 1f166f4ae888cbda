//! Where threads of one client that want the same word meet: one of them speaks to the server, the others wait here.
//!
//! What one of them gives back may go to the next without a word to the server: see [`hand_over`](crate::hold::hand_over). It
//! lies on the gate's shelf then until somebody takes it, for half a millisecond whoever comes first, as a thread that comes
//! back at once costs no change of threads; after that the longest waiter has it. (Eventual fairness, as in WebKit's locks and
//! parking_lot.)

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::error::Error;
use crate::hold::hand_over::{Handed, Wish};
use crate::wait::{Cancellers, Woken};

/// For so long what is given back goes to whoever comes first.
const FIRST_COME: Duration = Duration::from_micros(500);

/// The gates of one client, by word. A gate exists only while somebody has passed it, or something lies on its shelf.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) server: Arc<str>,
    /// Other processes that wait have it handed over their heads for no longer than this.
    hand_over: Duration,
    gates: Mutex<HashMap<Arc<str>, Gate>>,
}

struct Gate {
    queue: VecDeque<Waiter>,
    next_ticket: u64,
    /// Given back, and not taken yet: then nobody has passed, and somebody waits who may have it.
    shelf: Option<Handed>,
    /// From then on what is given back goes to the longest waiter.
    fair_at: Instant,
    /// Since when others wait for the word on the server, as far as is known.
    others: Option<Instant>,
    trouble: Option<Trouble>,
}

struct Waiter {
    ticket: u64,
    turn: Sender<Turn>,
    wish: Wish,
    /// Told to look at the shelf, and has not yet.
    woken: bool,
}

/// What a waiting thread is told.
enum Turn {
    /// It has passed, and is to ask the server.
    Pass,
    /// It has passed, and this is its.
    Handed(Handed),
    /// Something lies on the shelf.
    Look,
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
    /// Somebody else has it by now.
    is_given: bool,
}

/// One who has passed.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) pass: Pass,
    /// What another thread of this process gave back.
    pub(crate) handed: Option<Handed>,
}

/// Why a thread did not pass.
#[derive(Debug)]
pub(crate) enum Stopped {
    TimedOut,
    Cancelled,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl Gates {
    pub(crate) fn new(server: Arc<str>, hand_over: Duration) -> Gates {
        Gates {
            server,
            hand_over,
            gates: Mutex::default(),
        }
    }

    /// Whether holds are handed over at all.
    pub(crate) fn hands_over(&self) -> bool {
        !self.hand_over.is_zero()
    }

    /// Passes, if nobody has, or if something is there to be taken.
    pub(crate) fn try_enter(self: &Arc<Self>, word: &Arc<str>, wish: &Wish) -> Option<Entered> {
        let mut gates = self.gates.lock();
        let Some(gate) = gates.get_mut(word) else {
            gates.insert(word.clone(), Gate::new());
            drop(gates);
            return Some(self.entered(word, None));
        };
        let handed = gate.take_first_come(wish)?;
        drop(gates);
        Some(self.entered(word, Some(handed)))
    }

    /// Passes, in order of arrival.
    pub(crate) fn enter(
        self: &Arc<Self>,
        word: &Arc<str>,
        wish: &Wish,
        until: Option<Instant>,
        cancellers: &Cancellers,
    ) -> Result<Entered, Stopped> {
        // Room for a look, and for the turn that comes before it was had.
        let (tx, turns) = bounded(2);
        let ticket = {
            let mut gates = self.gates.lock();
            let Some(gate) = gates.get_mut(word) else {
                gates.insert(word.clone(), Gate::new());
                drop(gates);
                return Ok(self.entered(word, None));
            };
            if let Some(handed) = gate.take_first_come(wish) {
                drop(gates);
                return Ok(self.entered(word, Some(handed)));
            }
            gate.next_ticket += 1;
            gate.queue.push_back(Waiter {
                ticket: gate.next_ticket,
                turn: tx,
                wish: wish.clone(),
                woken: false,
            });
            gate.next_ticket
        };
        let stopped = loop {
            match cancellers.recv(&turns, until) {
                Woken::Message(Turn::Pass) => return Ok(self.entered(word, None)),
                Woken::Message(Turn::Handed(handed)) => {
                    return Ok(self.entered(word, Some(handed)));
                }
                Woken::Message(Turn::Look) => {
                    if let Some(handed) = self.look(word, ticket) {
                        return Ok(self.entered(word, Some(handed)));
                    }
                }
                Woken::Cancelled => break Stopped::Cancelled,
                Woken::Timeout | Woken::Disconnected => break Stopped::TimedOut,
            }
        };
        self.give_up(word, ticket, &turns);
        Err(stopped)
    }

    /// Takes what lies on the shelf. If somebody was quicker, it is told of the next thing.
    fn look(&self, word: &Arc<str>, ticket: u64) -> Option<Handed> {
        let mut gates = self.gates.lock();
        let gate = gates.get_mut(word)?;
        let at = gate.queue.iter().position(|w| w.ticket == ticket)?;
        let handed = gate.shelf.take();
        if handed.is_some() {
            gate.queue.remove(at);
        } else if let Some(waiter) = gate.queue.get_mut(at) {
            waiter.woken = false;
        }
        handed
    }

    /// One stops waiting. What has come for it at this very moment, or would be left behind, goes to the next in line, or back to
    /// the server.
    fn give_up(self: &Arc<Self>, word: &Arc<str>, ticket: u64, turns: &Receiver<Turn>) {
        let left_behind = {
            let mut gates = self.gates.lock();
            gates.get_mut(word).and_then(|gate| {
                gate.queue.retain(|w| w.ticket != ticket);
                gate.shelf.take()
            })
        };
        if let Some(handed) = left_behind {
            handed.pass_on(self.pass(word));
        }
        while let Ok(turn) = turns.try_recv() {
            match turn {
                Turn::Pass => drop(self.pass(word)),
                Turn::Handed(handed) => handed.pass_on(self.pass(word)),
                Turn::Look => {}
            }
        }
    }

    fn pass(self: &Arc<Self>, word: &Arc<str>) -> Pass {
        Pass {
            gates: self.clone(),
            word: word.clone(),
            is_given: false,
        }
    }

    fn entered(self: &Arc<Self>, word: &Arc<str>, handed: Option<Handed>) -> Entered {
        Entered {
            pass: self.pass(word),
            handed,
        }
    }

    /// What the server said last to whoever asks for `word`, if it was trouble.
    pub(crate) fn trouble(&self, word: &Arc<str>) -> Option<Error> {
        let gates = self.gates.lock();
        let trouble = gates.get(word)?.trouble.as_ref()?;
        Some(trouble.error.share())
    }

    /// Another process has begun to wait for `word`.
    pub(crate) fn others_wait(&self, word: &str) {
        if let Some(gate) = self.gates.lock().get_mut(word) {
            gate.others.get_or_insert_with(Instant::now);
        }
    }

    /// Other processes may wait for any of the words, and we would not hear of it.
    pub(crate) fn others_may_wait(&self) {
        for gate in self.gates.lock().values_mut() {
            gate.others.get_or_insert_with(Instant::now);
        }
    }

    /// How many gates stand: tests see that nothing stays behind.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.gates.lock().len()
    }
}

impl Gate {
    fn new() -> Gate {
        Gate {
            queue: VecDeque::new(),
            next_ticket: 0,
            shelf: None,
            fair_at: Instant::now() + FIRST_COME,
            others: None,
            trouble: None,
        }
    }

    /// What lies on the shelf, for one who has not waited.
    fn take_first_come(&mut self, wish: &Wish) -> Option<Handed> {
        let suits = self.shelf.as_ref().is_some_and(|h| h.suits(wish));
        if suits && Instant::now() < self.fair_at {
            return self.shelf.take();
        }
        None
    }
}

impl Pass {
    /// Whether other threads of this process wait here. What is known of other processes is forgotten: whoever asks the server
    /// now learns it anew.
    pub(crate) fn is_wanted(&self) -> bool {
        let mut gates = self.gates.gates.lock();
        let gate = gates.get_mut(&self.word);
        gate.is_some_and(|gate| {
            gate.others = None;
            !gate.queue.is_empty()
        })
    }

    /// Other processes wait for what we have been granted, or may do so unseen.
    pub(crate) fn others_wait(&self) {
        self.gates.others_wait(&self.word);
    }

    /// Gives `handed` to those who wait here.
    ///
    /// # Errors
    ///
    /// Both again, if the next in line wants something else, or other processes have waited for long enough.
    pub(crate) fn hand_over(mut self, handed: Handed) -> Result<(), (Pass, Handed)> {
        let gates = self.gates.clone();
        let mut gates = gates.gates.lock();
        let bound = self.gates.hand_over;
        let Some(gate) = gates.get_mut(&self.word) else {
            return Err((self, handed));
        };
        let others_have_waited = gate.others.is_some_and(|t| t.elapsed() >= bound);
        let Some(next) = gate.queue.front_mut() else {
            return Err((self, handed));
        };
        if others_have_waited || !handed.suits(&next.wish) {
            return Err((self, handed));
        }
        self.is_given = true;
        let now = Instant::now();
        if now < gate.fair_at {
            if !next.woken {
                next.woken = true;
                let _ = next.turn.try_send(Turn::Look);
            }
            gate.shelf = Some(handed);
            return Ok(());
        }
        gate.fair_at = now + FIRST_COME;
        if let Some(next) = gate.queue.pop_front() {
            // There is room: it has been told to look once at most.
            let _ = next.turn.try_send(Turn::Handed(handed));
        }
        Ok(())
    }

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
        if self.is_given {
            return;
        }
        let mut gates = self.gates.gates.lock();
        let Some(gate) = gates.get_mut(&self.word) else {
            return;
        };
        while let Some(next) = gate.queue.pop_front() {
            if next.turn.try_send(Turn::Pass).is_ok() {
                return;
            }
        }
        gates.remove(&self.word);
    }
}
