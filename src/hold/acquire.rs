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
use crate::hold::{Grant, Hold, first_lease, local_deadline};
use crate::name::Keys;
use crate::options::{HoldOptions, KEEP_MARKED, millis};
use crate::redis_io::connection::{Budget, Limits};
use crate::redis_io::failure::{Failure, Reached};
use crate::redis_io::inbox::Mailbox;
use crate::redis_io::script::{ACQUIRE, Request};
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
    pub(crate) options: HoldOptions,
}

/// Acquires `wanted`, waiting as `wait` says.
///
/// # Errors
///
/// All kinds but `Lost`, `NotHeld`. Whatever the error, no key stays that this call set, and nothing renews; if the server
/// can't be told now, it is told in the background.
pub(crate) fn acquire(core: &Arc<Core>, wanted: &Wanted, wait: &Wait) -> Result<HoldGuard> {
    let name = &wanted.keys.name;
    core.check_process()?;
    wanted.options.check().map_err(|e| e.for_lock(name))?;
    let began = Instant::now();
    let patience = Patience::new(core, wait, began);
    let result = try_acquire(core, wanted, &patience, began);
    result.map_err(|e| e.for_lock(name))
}

fn try_acquire(
    core: &Arc<Core>,
    wanted: &Wanted,
    patience: &Patience,
    began: Instant,
) -> Result<HoldGuard> {
    if patience.cancellers.is_cancelled() {
        return Err(cancelled());
    }
    let resource = Resource {
        server: core.gates.server.clone(),
        word: wanted.keys.word.clone(),
    };
    if deadlock::is_mine(&resource) {
        return Err(patience.circle(Circle::Itself));
    }
    let (pass, contended) = enter(core, wanted, patience, &resource)?;
    let mut attempt = Attempt {
        core,
        wanted,
        patience,
        resource: &resource,
        pass: &pass,
        token: fresh_token(),
        ticket: core.inbox.ticket(),
        unsure: false,
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
        Ok(grant) => {
            drop(attempt);
            let waited = began.elapsed();
            core.metrics.acquired(waited, contended);
            let hold = Arc::new(Hold::new(
                core,
                wanted.keys.clone(),
                wanted.options.clone(),
                grant.grant,
            ));
            let tracked = deadlock::track(resource, &hold);
            hold.occupy(tracked, pass);
            grant.renewer.attach(&hold);
            // The guard first: the user's logger may panic.
            let guard = HoldGuard::new(hold.clone(), core.clone(), grant.renewer);
            let (name, token) = (&*hold.keys.name, hold.fencing.get());
            log::debug!(target: "leasehold", name = name, token = token, waited:? = waited; "acquired");
            Ok(guard)
        }
        Err(e) => {
            attempt.undo();
            Err(e)
        }
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
    let _waiting = deadlock::wait_for(resource).map_err(|c| patience.circle(c))?;
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

fn fresh_token() -> Arc<str> {
    uuid::Uuid::new_v4().simple().to_string().into()
}

/// A grant that can be held: in time, and with a thread to watch it.
struct Granted {
    grant: Grant,
    renewer: Renewer,
}

/// One thread asking the server for one word, again and again if need be.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    wanted: &'a Wanted,
    patience: &'a Patience,
    resource: &'a Resource,
    pass: &'a Pass,
    token: Arc<str>,
    /// What this attempt is called on the word's list of waiters.
    ticket: String,
    /// An acquire with this token was sent whose outcome nobody knows.
    unsure: bool,
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
            let with_ticket = self.mailbox.is_some() && self.core.inbox.is_up();
            let next_look = match self.ask(with_ticket) {
                Ok(Said::Granted(grant)) => match self.take(grant)? {
                    Some(granted) => {
                        self.pass.no_trouble();
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
                Ok(Said::Held { left, by }) => {
                    self.trouble = None;
                    self.pass.no_trouble();
                    self.retry = FIRST_RETRY;
                    self.registered |= with_ticket;
                    self.refuse_circle(&by)?;
                    let renewed = self.holder.replace(by.clone()) == Some(by);
                    if self.patience.is_try {
                        let what = format!("somebody else holds it{}", for_how_long(left));
                        return Err(Error::new(ErrorKind::WouldBlock, what));
                    }
                    if !with_ticket && self.open_mailbox() {
                        // It may have come free before we could be told: look again, this time with a ticket. Where wakes
                        // can't reach us yet, the first one comes when they can.
                        continue;
                    }
                    until_poll(left, renewed)
                }
                Err(failure) => {
                    let transient = failure.is_transient();
                    let error = failure.error;
                    if !transient || self.patience.is_try {
                        return Err(error);
                    }
                    let since = self.pass.note_trouble(&error);
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
        let request = Request::new(&ACQUIRE, &[&wanted.keys.word, &wanted.keys.state])
            .arg(&*self.token)
            .number(millis(lease))
            .arg(format!("{}\n{}", core.holder_label(), wanted.kind))
            .arg(format!("{:016}", core.floor()))
            .number(millis(lease.saturating_add(KEEP_MARKED)));
        let request = if with_ticket {
            request.arg(&*self.ticket)
        } else {
            request
        };
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
                let said = read_acquire(answer, &self.token, &wanted.keys, address);
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

    /// Whoever holds it may be this thread itself, or one that waits for it, through a client that calls the server by
    /// another name.
    fn refuse_circle(&mut self, holder: &str) -> Result<()> {
        if self.patience.is_try {
            return Ok(());
        }
        if deadlock::is_my_token(holder) {
            return Err(self.patience.circle(Circle::Itself));
        }
        if self.waiting.is_none() {
            let waiting = deadlock::wait_for(self.resource);
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
            self.mailbox = Some(core.inbox.mailbox(&self.wanted.keys.word));
        }
        core.inbox.open()
    }

    /// Undoes what this attempt may have left on the server: at once if it answers, else in the background.
    fn undo(&mut self) {
        if !self.unsure && !self.registered {
            return;
        }
        let (core, keys) = (self.core, &self.wanted.keys);
        let token = if self.unsure { &*self.token } else { "" };
        let ticket = if self.registered { &*self.ticket } else { "" };
        let request = leave(keys, token, ticket);
        self.unsure = false;
        self.registered = false;
        // No longer waiting here: a wake that comes now is passed on by the script, or as a stray one.
        self.mailbox = None;
        self.waiting = None;
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
