//! What every guard stands on: the hold, its clock, its renewer, the gate where threads of this process meet, and the way
//! in (acquire) and out (release).

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod convert;
pub(crate) mod core;
pub(crate) mod deadlock;
pub(crate) mod gate;
pub(crate) mod hand_over;
mod leave;
pub(crate) mod nested;
mod patience;
pub(crate) mod release;
pub(crate) mod renewer;
mod renewers;
pub(crate) mod replies;
pub(crate) mod way;

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::clock::{BootTime, Clock};
use crate::error::{LossReason, Lost};
use crate::fencing::FencingToken;
use crate::hold::acquire::Wanted;
use crate::hold::core::Core;
use crate::hold::deadlock::Tracked;
use crate::hold::gate::Pass;
use crate::hold::way::CLAIM_IS_RENEWED_AFTER;
use crate::lease::Predecessor;
use crate::name::Keys;
use crate::observe::metrics::Meters;
use crate::options::{HoldOptions, millis};
use crate::redis_io::script::Request;
use crate::redis_io::scripts::Family;

/// One hold of one lock: from the grant to the release or the loss.
pub(crate) struct Hold {
    pub(crate) keys: Keys,
    /// What the state calls it: `mutex`.
    pub(crate) kind: &'static str,
    /// The scripts that renew and release it.
    pub(crate) family: &'static Family,
    /// The word's value: a fresh uuid for every grant.
    pub(crate) token: Arc<str>,
    pub(crate) fencing: FencingToken,
    /// Where more tokens came with the grant, for threads of this process that it is handed to.
    pub(crate) block: Option<Block>,
    pub(crate) predecessor: Predecessor,
    pub(crate) options: HoldOptions,
    pub(crate) granted_at: BootTime,
    /// The server must remember the token longer than others: a copy of its acquire may still be on its way.
    pub(crate) repeated: bool,
    /// One extension at a time; holds the shortest lease of those whose outcome is not known, which may still come true.
    pub(crate) extending: Mutex<Option<Duration>>,
    /// Past this it is not held, whatever the server says later.
    deadline: AtomicU64,
    /// When the renewer has something to do for it.
    due: AtomicU64,
    /// Where `with_max_hold` ends it; the last lease that the server is given ends by a drift later.
    max_end: Option<BootTime>,
    /// What it was given at first, until it has been renewed: zero for a whole lease.
    claim: AtomicU64,
    /// The lease that runs now goes up to there, so there is nothing to renew any more.
    last_lease: AtomicBool,
    /// 0 while held, then a reason, for ever.
    ended: AtomicU8,
    /// Dropped at the end, so that every clone of `over` is disconnected at once.
    alive: Mutex<Option<Sender<Infallible>>>,
    pub(crate) over: Receiver<Infallible>,
    /// It is being replaced by another hold: that the server does not know it any more is no loss then.
    converting: AtomicBool,
    /// Its place in this process; given up at the end, whoever finds that it has come.
    local: Mutex<Local>,
    /// Wakes the renewer when something is due sooner than it thinks.
    nudge: OnceLock<Sender<()>>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) metrics: Arc<Meters>,
    /// Weak: a clone of a lease kept for its token must keep no connection open.
    pub(crate) core: Weak<Core>,
}

/// What a hold occupies in this process.
#[derive(Default)]
struct Local {
    tracked: Option<Tracked>,
    pass: Option<Pass>,
}

/// Fencing tokens that were reserved by a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) last: FencingToken,
    /// The server knows this holder: it is the first that has one of them.
    pub(crate) is_first: bool,
}

/// What a grant brings.
pub(crate) struct Grant {
    pub(crate) token: Arc<str>,
    pub(crate) fencing: FencingToken,
    /// The last of the tokens that were reserved, if more than one.
    pub(crate) reserved: Option<FencingToken>,
    /// Others wait for it, as far as the server knows.
    pub(crate) is_wanted: bool,
    pub(crate) predecessor: Predecessor,
    pub(crate) sent_at: BootTime,
    /// A copy of the acquire may still be on its way.
    pub(crate) repeated: bool,
    /// It came by a message, and is for so long only.
    pub(crate) claim: Option<Duration>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.keys.name)
            .field("fencing_token", &self.fencing)
            .field("held", &self.held_until_now())
            .finish_non_exhaustive()
    }
}

impl Hold {
    pub(crate) fn new(core: &Arc<Core>, wanted: &Wanted, grant: Grant) -> Hold {
        let options = wanted.options.clone();
        let lease = grant.claim.unwrap_or_else(|| first_lease(&options));
        let drift = HoldOptions::drift(lease);
        let max_end = options
            .max_hold
            .map(|max| grant.sent_at + max.saturating_sub(drift));
        let deadline = local_deadline(grant.sent_at, lease);
        let last_lease = options.max_hold.is_some_and(|max| max <= options.ttl);
        let clock = &core.node.clock;
        let (granted_at, due) = match grant.claim {
            // It came just now: sent was the look before.
            Some(_) => (clock.now(), clock.now() + CLAIM_IS_RENEWED_AFTER),
            None if options.renewed && !last_lease => {
                (grant.sent_at, renewal_due(grant.sent_at, lease))
            }
            None => (grant.sent_at, deadline),
        };
        let (alive, over) = bounded(0);
        Hold {
            keys: wanted.keys.clone(),
            kind: wanted.kind,
            family: wanted.family,
            token: grant.token,
            fencing: grant.fencing,
            block: grant.reserved.map(|last| Block {
                last,
                is_first: true,
            }),
            predecessor: grant.predecessor,
            options,
            granted_at,
            repeated: grant.repeated,
            extending: Mutex::default(),
            deadline: AtomicU64::new(deadline.nanos()),
            due: AtomicU64::new(due.nanos()),
            max_end,
            claim: AtomicU64::new(grant.claim.map_or(0, nanos)),
            last_lease: AtomicBool::new(last_lease),
            ended: AtomicU8::new(HELD),
            alive: Mutex::new(Some(alive)),
            over,
            converting: AtomicBool::new(false),
            local: Mutex::default(),
            nudge: OnceLock::new(),
            clock: core.node.clock.clone(),
            metrics: core.metrics.clone(),
            core: Arc::downgrade(core),
        }
    }

    /// Whether the next thread could still do something with it: a lease that it asked for itself would be longer, but not by
    /// more than it expects of a renewed one.
    pub(crate) fn can_be_handed_over(&self) -> bool {
        self.options.is_open_ended()
            && self.block.is_some_and(|block| self.fencing < block.last)
            && self.remaining_lease() >= self.present_lease() / 2
    }

    /// The hold of the thread that this one is handed to: the same for the server, so its lease goes on.
    pub(crate) fn successor(&self, panicked: Option<String>) -> Hold {
        let (alive, over) = bounded(0);
        let predecessor = match panicked {
            None => Predecessor::Clean,
            Some(label) => Predecessor::Panicked {
                token: self.fencing,
                label,
            },
        };
        Hold {
            keys: self.keys.clone(),
            kind: self.kind,
            family: self.family,
            token: self.token.clone(),
            fencing: FencingToken::from(self.fencing.get() + 1),
            block: self.block.map(|block| Block {
                is_first: false,
                ..block
            }),
            predecessor,
            options: self.options.clone(),
            granted_at: self.clock.now(),
            repeated: self.repeated,
            extending: Mutex::default(),
            deadline: AtomicU64::new(self.deadline().nanos()),
            due: AtomicU64::new(self.due().nanos()),
            max_end: None,
            claim: AtomicU64::new(self.claim.load(Ordering::Acquire)),
            last_lease: AtomicBool::new(false),
            ended: AtomicU8::new(HELD),
            alive: Mutex::new(Some(alive)),
            over,
            converting: AtomicBool::new(false),
            local: Mutex::default(),
            nudge: OnceLock::new(),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            core: self.core.clone(),
        }
    }

    pub(crate) fn occupy(&self, tracked: Option<Tracked>, pass: Option<Pass>) {
        *self.local.lock() = Local { tracked, pass };
    }

    pub(crate) fn set_converting(&self, converting: bool) {
        self.converting.store(converting, Ordering::Release);
    }

    pub(crate) fn is_converting(&self) -> bool {
        self.converting.load(Ordering::Acquire)
    }

    /// A renewal of it by `lease`.
    pub(crate) fn renewal(&self, lease: Duration) -> Request {
        Request::of_words(self.family.renew, &self.keys)
            .arg(&*self.token)
            .number(millis(lease))
    }

    /// The guard may go to another thread: nobody can say any more which thread holds it.
    pub(crate) fn untrack(&self) {
        let tracked = self.local.lock().tracked.take();
        drop(tracked);
    }

    /// Leaves the table of holds and lets the next thread of this process try.
    pub(crate) fn vacate(&self) {
        // Taken out first: letting the next one in takes other locks.
        let pass = self.leave_table();
        drop(pass);
    }

    /// Leaves the table of holds only; nobody else comes in as long as the pass is kept.
    pub(crate) fn leave_table(&self) -> Option<Pass> {
        let local = std::mem::take(&mut *self.local.lock());
        drop(local.tracked);
        local.pass
    }

    pub(crate) fn deadline(&self) -> BootTime {
        BootTime::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn due(&self) -> BootTime {
        BootTime::from_nanos(self.due.load(Ordering::Acquire))
    }

    pub(crate) fn set_due(&self, due: BootTime) {
        self.due
            .store(due.min(self.deadline()).nanos(), Ordering::Release);
    }

    /// The lease that a renewal should ask for now, and whether it is the last one that `with_max_hold` allows.
    pub(crate) fn next_lease(&self, now: BootTime) -> (Duration, bool) {
        let ttl = self.options.ttl;
        let drift = HoldOptions::drift(first_lease(&self.options));
        match self.max_end.map(|end| end.since(now) + drift) {
            Some(left) if left <= ttl => (left, true),
            _ => (ttl, false),
        }
    }

    /// A renewal of `lease`, sent at `sent_at`, was confirmed. No use to a hold that has ended: the end is sticky.
    pub(crate) fn renewed(&self, sent_at: BootTime, lease: Duration, last: bool) {
        self.set_deadline(local_deadline(sent_at, lease));
        self.claim.store(0, Ordering::Release);
        if last {
            self.last_lease.store(true, Ordering::Release);
            self.set_due(self.deadline());
        } else {
            self.set_due(renewal_due(sent_at, lease));
        }
    }

    /// How long the lease is that the server was told last.
    pub(crate) fn present_lease(&self) -> Duration {
        match self.claim.load(Ordering::Acquire) {
            0 => self.options.ttl,
            claim => Duration::from_nanos(claim),
        }
    }

    /// One that was given by a message has the time of its claim at first: sees that it is renewed, and waits for that, within
    /// `patience`.
    pub(crate) fn make_whole(&self, patience: Duration) {
        let until = self.clock.now() + patience;
        if self.claim.load(Ordering::Acquire) != 0 {
            self.set_due(self.clock.now());
            self.nudge();
        }
        while self.claim.load(Ordering::Acquire) != 0
            && self.clock.now() < until
            && self.end_reason().is_none()
        {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether nothing but the end of the present lease is to come.
    pub(crate) fn only_ends(&self) -> bool {
        !self.options.renewed || self.last_lease.load(Ordering::Acquire)
    }

    pub(crate) fn set_deadline(&self, deadline: BootTime) {
        // A renewal that was slow to be sent must not carry the hold past its longest time.
        let deadline = self.max_end.map_or(deadline, |end| deadline.min(end));
        self.deadline.store(deadline.nanos(), Ordering::Release);
    }

    /// Gives a fixed lease another end.
    pub(crate) fn set_end(&self, deadline: BootTime) {
        self.set_deadline(deadline);
        self.set_due(deadline);
        self.nudge();
    }

    pub(crate) fn nudged_by(&self, nudge: Sender<()>) {
        drop(self.nudge.set(nudge));
    }

    pub(crate) fn nudge(&self) {
        if let Some(nudge) = self.nudge.get() {
            let _ = nudge.try_send(());
        }
    }

    /// Whether it is held at this moment, changing nothing: for those who hold other locks while they ask.
    pub(crate) fn held_until_now(&self) -> bool {
        self.ended.load(Ordering::Acquire) == HELD && self.clock.now() < self.deadline()
    }

    /// The reason why it is over, or none. Past the deadline it is over, whoever looks first.
    pub(crate) fn end_reason(&self) -> Option<LossReason> {
        if let Some(reason) = reason(self.ended.load(Ordering::Acquire)) {
            return Some(reason);
        }
        if self.clock.now() < self.deadline() {
            return None;
        }
        self.end(self.why_past_deadline());
        reason(self.ended.load(Ordering::Acquire))
    }

    /// The reason why it is over, of one that is.
    pub(crate) fn why_over(&self) -> LossReason {
        self.end_reason().unwrap_or(LossReason::DeadlinePassed)
    }

    fn why_past_deadline(&self) -> LossReason {
        if !self.options.renewed {
            LossReason::Overrun
        } else if self.last_lease.load(Ordering::Acquire) {
            LossReason::MaxHold
        } else {
            LossReason::DeadlinePassed
        }
    }

    /// Ends the hold. Only the first end counts; the others change nothing. `true` for the first.
    pub(crate) fn end(&self, why: LossReason) -> bool {
        let first = self
            .ended
            .compare_exchange(HELD, code(why), Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if !first {
            return false;
        }
        // Counted before anybody is told.
        let is_loss = !matches!(why, LossReason::Released | LossReason::Converted);
        if is_loss {
            self.metrics.lost(why);
        }
        self.alive.lock().take();
        if is_loss {
            self.vacate();
            let (name, lost) = (&*self.keys.name, self.lost(why));
            let token = self.fencing.get();
            log::warn!(target: "leasehold", name = name, token = token; "{lost}");
        }
        true
    }

    pub(crate) fn lost(&self, why: LossReason) -> Lost {
        Lost::new(self.keys.name.clone(), self.fencing, why)
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        match self.end_reason() {
            None => Ok(()),
            Some(why) => Err(self.lost(why)),
        }
    }

    /// What is left of the lease as such, whether or not the hold is over.
    pub(crate) fn remaining_lease(&self) -> Duration {
        self.deadline().since(self.clock.now())
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.end_reason().is_some() {
            return Duration::ZERO;
        }
        self.deadline().since(self.clock.now())
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The lease that a grant brings: no longer than the hold may last.
pub(crate) fn first_lease(options: &HoldOptions) -> Duration {
    options
        .max_hold
        .map_or(options.ttl, |max| max.min(options.ttl))
}

/// When a lease is to be renewed. On a grid that all holds of the process share: those that are due at about the same time
/// are renewed in one exchange then, which for 1,000 of them takes a third less of a core.
fn renewal_due(sent_at: BootTime, lease: Duration) -> BootTime {
    (sent_at + lease / 3).rounded_down(lease / 90)
}

/// Until when a lease is ours for sure, counted from before its command was sent.
pub(crate) fn local_deadline(sent_at: BootTime, lease: Duration) -> BootTime {
    sent_at + lease.saturating_sub(HoldOptions::drift(lease))
}

const HELD: u8 = 0;

fn code(why: LossReason) -> u8 {
    match why {
        LossReason::TakenAway => 1,
        LossReason::DeadlinePassed => 2,
        LossReason::Overrun => 3,
        LossReason::MaxHold => 4,
        LossReason::Released => 5,
        LossReason::OnPurpose => 6,
        LossReason::TooLittleLeft { .. } | LossReason::Forked => 7,
        LossReason::Unconverted => 8,
        LossReason::Converted => 9,
    }
}

fn reason(code: u8) -> Option<LossReason> {
    match code {
        HELD => None,
        1 => Some(LossReason::TakenAway),
        2 => Some(LossReason::DeadlinePassed),
        3 => Some(LossReason::Overrun),
        4 => Some(LossReason::MaxHold),
        6 => Some(LossReason::OnPurpose),
        7 => Some(LossReason::Forked),
        8 => Some(LossReason::Unconverted),
        9 => Some(LossReason::Converted),
        _ => Some(LossReason::Released),
    }
}
