//! The way in: from the first look to a guard, or to an error that leaves nothing behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::never;

use crate::error::{Error, ErrorKind, Result};
use crate::hold::core::Core;
use crate::hold::deadlock::{self, Circle, Resource, Waiting};
use crate::hold::gate::{Pass, Stopped};
use crate::hold::leave::leave;
use crate::hold::patience::{Patience, cancelled, jittered, until_poll};
use crate::hold::release::HoldGuard;
use crate::hold::renewer::Renewer;
use crate::hold::replies::{Said, read_acquire};
use crate::hold::way::{Way, heartbeat};
use crate::hold::{Grant, Hold, first_lease, local_deadline};
use crate::name::Keys;
use crate::options::{HoldOptions, KEEP_MARKED, millis};
use crate::redis_io::connection::{Budget, Limits};
use crate::redis_io::failure::{Failure, Reached};
use crate::redis_io::inbox::{Mailbox, Ticket};
use crate::redis_io::script::Request;
use crate::redis_io::scripts::Family;
use crate::wait::{Wait, Woken};

/// Pace of trying again while the server can't be used.
const FIRST_RETRY: Duration = Duration::from_millis(25);
const SLOWEST_RETRY: Duration = Duration::from_millis(500);

/// A fresh token that passes for a dead one is rarer than one in a million: so many are a server gone wrong.
const MOST_DEAD: u32 = 3;

/// Longest that a wait is kept from ending by what it must undo; then that goes on in the background.
const LONGEST_FAREWELL: Duration = Duration::from_millis(250);

/// What is to be acquired, and how it is to be held.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) keys: Keys,
    /// What the state calls it: `mutex`.
    pub(crate) kind: &'static str,
    pub(crate) family: &'static Family,
    pub(crate) way: Way,
    pub(crate) options: HoldOptions,
}

/// An acquire that failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Whether the server may have granted it, or may yet, for all that is known here.
    pub(crate) unsure: bool,
}

/// Acquires `wanted`, waiting as `wait` says.
///
/// # Errors
///
/// All kinds but `Lost`, `NotHeld`. Whatever the error, no key stays that this call set, and nothing renews; if the server
/// can't be told now, it is told in the background.
pub(crate) fn acquire(core: &Arc<Core>, wanted: &Wanted, wait: &Wait) -> Result<HoldGuard> {
    acquire_or_say(core, wanted, wait).map_err(|failed| failed.error)
}

/// The same, for one who must know how it failed.
pub(crate) fn acquire_or_say(
    core: &Arc<Core>,
    wanted: &Wanted,
    wait: &Wait,
) -> Result<HoldGuard, Failed> {
    let name = &wanted.keys.name;
    let checked = core
        .check_process()
        .and_then(|()| wanted.options.check())
        .and_then(|()| wanted.way.check());
    let began = Instant::now();
    let patience = Patience::new(core, wait, began);
    let result = checked
        .map_err(Failed::surely)
        .and_then(|()| try_acquire(core, wanted, &patience, began));
    result.map_err(|failed| Failed {
        error: failed.error.for_lock(name),
        ..failed
    })
}

impl Failed {
    fn surely(error: Error) -> Failed {
        Failed {
            error,
            unsure: false,
        }
    }
}

fn try_acquire(
    core: &Arc<Core>,
    wanted: &Wanted,
    patience: &Patience,
    began: Instant,
) -> Result<HoldGuard, Failed> {
    if patience.cancellers.is_cancelled() {
        return Err(Failed::surely(cancelled()));
    }
    let resources = wanted.resources(core);
    if wanted.way.is_tracked()
        && wanted.way.replaces().is_none()
        && deadlock::is_mine(&resources, wanted.way.shares())
    {
        return Err(Failed::surely(patience.circle(Circle::Itself)));
    }
    let (pass, contended) = match wanted.way {
        Way::Gate => {
            let entered = enter(core, wanted, patience, &resources[0]);
            let (pass, contended) = entered.map_err(Failed::surely)?;
            (Some(pass), contended)
        }
        Way::Try | Way::Queue(_) => (None, false),
    };
    let mut attempt = Attempt {
        core,
        wanted,
        patience,
        pass: pass.as_ref(),
        since: None,
        token: fresh_token(),
        ticket: core.inbox.ticket(),
        unsure: false,
        was_unsure: false,
        registered: false,
        mailbox: None,
        waiting: None,
        retry: FIRST_RETRY,
        holder: None,
        contended,
        dead: 0,
        trouble: None,
        answering: true,
    };
    let outcome = attempt.run();
    let contended = attempt.contended;
    match outcome {
        Ok(granted) => {
            drop(attempt);
            Ok(begin(core, wanted, granted, pass, began, contended))
        }
        Err(error) => {
            attempt.undo();
            let unsure = attempt.was_unsure;
            Err(Failed { error, unsure })
        }
    }
}

/// Makes a hold of a grant, and puts it into the hands of its renewer.
pub(crate) fn begin(
    core: &Arc<Core>,
    wanted: &Wanted,
    granted: Granted,
    pass: Option<Pass>,
    began: Instant,
    contended: bool,
) -> HoldGuard {
    let waited = began.elapsed();
    core.metrics.acquired(waited, contended);
    let hold = Arc::new(Hold::new(
        core,
        wanted.keys.clone(),
        wanted.family,
        wanted.options.clone(),
        granted.grant,
    ));
    let tracked = wanted.way.is_tracked().then(|| {
        let resources = wanted.resources(core);
        deadlock::track(resources, wanted.way.shares(), &hold)
    });
    hold.occupy(tracked, pass);
    granted.renewer.attach(&hold);
    // The guard first: the user's logger may panic.
    let guard = HoldGuard::new(hold.clone(), core.clone(), granted.renewer);
    let (name, token) = (&*hold.keys.name, hold.fencing.get());
    log::debug!(target: "leasehold", name = name, token = token, waited:? = waited; "acquired");
    guard
}

impl Wanted {
    /// What this process's table of holds and waits calls it.
    fn resources(&self, core: &Core) -> Vec<Resource> {
        let mut resources = Vec::with_capacity(self.keys.words());
        self.keys
            .each_word(|word| resources.push(resource(core, word.clone())));
        resources
    }
}

fn resource(core: &Core, word: Arc<str>) -> Resource {
    Resource {
        server: core.gates.server.clone(),
        word,
    }
}

/// Waits for the other threads of this client that want the same word, and says whether there were any.
fn enter(
    core: &Arc<Core>,
    wanted: &Wanted,
    patience: &Patience,
    resource: &Resource,
) -> Result<(Pass, bool)> {
    let word = &wanted.keys.word;
    if let Some(pass) = core.gates.try_enter(word) {
        return Ok((pass, false));
    }
    if patience.is_try {
        return Err(Error::new(
            ErrorKind::WouldBlock,
            "another thread of this process holds it, or waits for it",
        ));
    }
    let _waiting = deadlock::wait_for(resource, None).map_err(|c| patience.circle(c))?;
    let entered = core
        .gates
        .enter(word, patience.deadline, &patience.cancellers);
    entered
        .map(|pass| (pass, true))
        .map_err(|stopped| match stopped {
            Stopped::Cancelled => cancelled(),
            // One thread asks the server for all: what it heard last is what all of them waited for.
            Stopped::TimedOut => core.gates.trouble(word).unwrap_or_else(|| {
                patience.timed_out("another thread of this process had it, or was ahead")
            }),
        })
}

pub(crate) fn fresh_token() -> Arc<str> {
    uuid::Uuid::new_v4().simple().to_string().into()
}

/// A grant that can be held: in time, and with a thread to watch it.
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    pub(crate) renewer: Renewer,
}

/// One thread asking the server for one word, again and again if need be.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    wanted: &'a Wanted,
    patience: &'a Patience,
    /// Where those meet who share one attempt.
    pass: Option<&'a Pass>,
    /// Since when the server can't be used, where nobody shares the attempt.
    since: Option<Instant>,
    token: Arc<str>,
    /// What this attempt is called on the word's list of waiters.
    ticket: Ticket,
    /// An acquire with this token was sent whose outcome nobody knows.
    unsure: bool,
    /// That was so at some time, also if it has been undone since.
    was_unsure: bool,
    /// Our ticket stands on the word's list of waiters.
    registered: bool,
    mailbox: Option<Mailbox>,
    waiting: Option<Waiting>,
    retry: Duration,
    /// Who had it at the last look.
    holder: Option<String>,
    contended: bool,
    /// How many tokens the server has called dead.
    dead: u32,
    /// What stood in the way at the last look, if it was not another holder.
    trouble: Option<Error>,
    /// The server answered the last call, whatever it said.
    answering: bool,
}

impl Attempt<'_> {
    fn run(&mut self) -> Result<Granted> {
        loop {
            let is_up = self.core.inbox.is_up();
            // Once on the list it is heard of there, also while no wake can reach it: else it would wait behind itself.
            let with_ticket = self.mailbox.is_some() && (is_up || self.registered);
            let next_look = match self.ask(with_ticket) {
                Ok(Said::Granted(grant)) => match self.take(grant)? {
                    Some(granted) => {
                        self.no_trouble();
                        return Ok(granted);
                    }
                    None => {
                        let what = "the server granted it too late to be used";
                        let error = Error::new(ErrorKind::LeaseExpired, what);
                        if self.patience.is_try || self.patience.is_over() {
                            return Err(error);
                        }
                        continue;
                    }
                },
                Ok(Said::DeadToken) => {
                    self.token = fresh_token();
                    self.unsure = false;
                    self.dead += 1;
                    if self.dead > MOST_DEAD {
                        let what =
                            "the server takes every fresh token for one that was used before";
                        return Err(Error::new(ErrorKind::Script, what));
                    }
                    continue;
                }
                Ok(Said::Held { left, by, word }) => {
                    self.no_trouble();
                    self.retry = FIRST_RETRY;
                    self.registered |= with_ticket;
                    self.refuse_circle(&by, word.as_deref())?;
                    let renewed = self.holder.replace(by.clone()) == Some(by);
                    if self.patience.is_try {
                        let what = format!("somebody else holds it{}", for_how_long(left));
                        return Err(Error::new(ErrorKind::WouldBlock, what));
                    }
                    if !(with_ticket && is_up) && self.open_mailbox() {
                        // It may have come free before we could be told: look again, this time with a ticket. Where wakes
                        // can't reach us yet, the first one comes when they can.
                        continue;
                    }
                    let poll = until_poll(left, renewed);
                    match self.wanted.way {
                        Way::Queue(_) => poll.min(heartbeat(&self.wanted.options)),
                        Way::Gate | Way::Try => poll,
                    }
                }
                Err(failure) => {
                    let transient = failure.is_transient();
                    let error = failure.error;
                    if self.patience.is_try && error.kind() == ErrorKind::Deadlock {
                        let what = "another reader waits to upgrade";
                        return Err(Error::new(ErrorKind::WouldBlock, what));
                    }
                    if !transient || self.patience.is_try {
                        return Err(error);
                    }
                    let since = match self.pass {
                        Some(pass) => pass.note_trouble(&error),
                        None => *self.since.get_or_insert_with(Instant::now),
                    };
                    if since.elapsed() >= self.wanted.options.outage_bound() {
                        return Err(error);
                    }
                    self.trouble = Some(error);
                    let pause = jittered(self.retry);
                    self.retry = (self.retry * 2).min(SLOWEST_RETRY);
                    pause
                }
            };
            self.sleep(next_look)?;
        }
    }

    fn no_trouble(&mut self) {
        self.trouble = None;
        self.since = None;
        if let Some(pass) = self.pass {
            pass.no_trouble();
        }
    }

    /// Sleeps until the next look, a wake, or the end of the wait.
    fn sleep(&mut self, pause: Duration) -> Result<()> {
        self.contended = true;
        let look = Instant::now() + pause;
        let until = self.patience.deadline.map_or(look, |d| d.min(look));
        let wakes = match &self.mailbox {
            // While the server can't be used a wake is no news: the pace of trying again holds.
            Some(mailbox) if self.trouble.is_none() => mailbox.wakes.clone(),
            _ => never(),
        };
        match self.patience.cancellers.recv(&wakes, Some(until)) {
            Woken::Cancelled => Err(cancelled()),
            Woken::Timeout if self.patience.is_over() => Err(self
                .trouble
                .take()
                .unwrap_or_else(|| self.patience.timed_out("somebody else holds it"))),
            Woken::Timeout | Woken::Message(()) | Woken::Disconnected => Ok(()),
        }
    }

    /// One acquire.
    fn ask(&mut self, with_ticket: bool) -> Result<Said, Failure> {
        let (core, wanted) = (self.core, self.wanted);
        let lease = first_lease(&wanted.options);
        let request = Request::new(wanted.family.acquire, &wanted.keys)
            .arg(&*self.token)
            .number(millis(lease))
            .arg(format!("{}\n{}", core.holder_label(), wanted.kind))
            .arg(format!("{:016}", core.floor()))
            .number(millis(lease.saturating_add(KEEP_MARKED)));
        let ticket = with_ticket.then_some(&*self.ticket.text);
        let request = wanted.way.complete(
            request,
            ticket,
            &self.token,
            &wanted.options,
            self.registered,
        );
        let limits = Limits {
            io: wanted.options.command_timeout(core.node.limits.io),
            ..core.node.limits
        };
        let budget = self.patience.budget(limits);
        match core.node.call(&request, limits, budget) {
            Ok(answer) => {
                self.answering = true;
                let address = &core.node.target.address;
                let repeated = answer.repeated;
                let script = wanted.family.acquire;
                let said = read_acquire(answer, script, &self.token, &wanted.keys, address);
                // What the script did is not known if its reply is not understood.
                self.unsure |=
                    repeated || said.as_ref().is_err_and(|f| f.reached == Reached::Maybe);
                said.map(|said| match said {
                    Said::Granted(grant) => Said::Granted(Grant {
                        repeated: self.unsure,
                        ..grant
                    }),
                    said => said,
                })
            }
            Err(failure) => {
                self.answering = failure.reached == Reached::Answered;
                self.unsure |= failure.may_have_written();
                // Perhaps the registration was carried out, and its answer lost.
                self.registered |= with_ticket && failure.reached == Reached::Maybe;
                Err(failure)
            }
        }
    }

    /// Turns a grant into something to hold; `None` if it came too late, which has been undone then.
    fn take(&mut self, grant: Grant) -> Result<Option<Granted>> {
        let core = self.core;
        // Until it is in the caller's hands, whatever goes wrong must free the word.
        self.unsure = true;
        core.saw(grant.fencing.get());
        let deadline = local_deadline(grant.sent_at, first_lease(&self.wanted.options));
        if core.node.clock.now() >= deadline {
            self.undo();
            self.token = fresh_token();
            return Ok(None);
        }
        let renewer = core.renewers.lend()?;
        self.unsure = false;
        // The grant took our inbox off the list.
        self.registered = false;
        Ok(Some(Granted { grant, renewer }))
    }

    /// Whoever holds it may be this thread itself, or one that waits for it; perhaps through a client that calls the server by
    /// another name, whose holds are known by their tokens.
    fn refuse_circle(&mut self, holder: &str, word: Option<&str>) -> Result<()> {
        if self.patience.is_try || !self.wanted.way.is_tracked() {
            return Ok(());
        }
        if deadlock::is_my_token(holder) {
            return Err(self.patience.circle(Circle::Itself));
        }
        let word = word.unwrap_or(&self.wanted.keys.word);
        if self.waiting.as_ref().is_none_or(|w| !w.is_for(word)) {
            self.waiting = None;
            let resource = resource(self.core, word.into());
            let waiting = deadlock::wait_for(&resource, self.wanted.way.replaces());
            self.waiting = Some(waiting.map_err(|c| self.patience.circle(c))?);
        }
        if let Some(waiting) = &self.waiting {
            waiting
                .is_for_token(holder)
                .map_err(|c| self.patience.circle(c))?;
        }
        Ok(())
    }

    /// Sees that wakes will reach us. `false`: they can't yet, so we poll until they can. Never waits for it: that would put
    /// off the poll, and a cancel.
    fn open_mailbox(&mut self) -> bool {
        let core = self.core;
        if self.mailbox.is_none() {
            self.mailbox = Some(core.inbox.mailbox(&self.ticket));
        }
        core.inbox.open()
    }

    /// Undoes what this attempt may have left on the server: at once if it answers, else in the background.
    fn undo(&mut self) {
        self.was_unsure |= self.unsure;
        if !self.unsure && !self.registered {
            return;
        }
        let (core, keys) = (self.core, &self.wanted.keys);
        let queued = self.registered && matches!(self.wanted.way, Way::Queue(_));
        let token = if self.unsure || queued {
            &*self.token
        } else {
            ""
        };
        let ticket = if self.registered {
            &*self.ticket.text
        } else {
            ""
        };
        let request = leave(self.wanted.family, keys, token, ticket, self.unsure);
        self.unsure = false;
        self.registered = false;
        // No longer waiting here: a wake that comes now is passed on by the script, or as a stray one. Another ticket for
        // whatever comes after: this one may be taken off the list late.
        self.mailbox = None;
        self.waiting = None;
        self.ticket = core.inbox.ticket();
        if self.answering {
            // Whoever cancels a wait, or whose time is up, wants to go on.
            let most = if self.patience.is_bounded() {
                self.patience.slack() / 2
            } else {
                core.node.limits.io.min(LONGEST_FAREWELL)
            };
            let limits = core.node.limits.within(most);
            match core.node.call(&request, limits, Budget::new(most)) {
                Ok(_) => return,
                Err(failure) => {
                    let name = &keys.name;
                    log::debug!(target: "leasehold", "lock {name:?}: not cleaned up yet: {}", failure.error);
                    if !failure.is_transient() {
                        // Later is no better.
                        return;
                    }
                }
            }
        }
        // Nothing of ours outlives its lease, or its silence on the list of waiters.
        let lasts = first_lease(&self.wanted.options).max(Duration::from_secs(10));
        let until = core.node.clock.now() + lasts;
        core.cleaner.push(&core.node, request, until, &keys.name);
    }
}

fn for_how_long(left: Option<Duration>) -> String {
    left.map_or_else(String::new, |left| {
        format!(", its lease has {left:.1?} left")
    })
}
