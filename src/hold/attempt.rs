//! One thread that asks the server for a lock: looks, waits, looks again, and undoes what came to nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::never;

use crate::clock::BootTime;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::acquire::{Wanted, resource};
use crate::hold::core::Core;
use crate::hold::deadlock::{self, Circle, Waiting};
use crate::hold::gate::Pass;
use crate::hold::hand_over::BLOCK;
use crate::hold::leave::leave;
use crate::hold::patience::{Patience, cancelled, jittered, until_poll};
use crate::hold::renewer::Renewer;
use crate::hold::replies::{Said, read_acquire, read_grant};
use crate::hold::way::{Way, WordEntry, heartbeat};
use crate::hold::{Grant, first_lease, local_deadline};
use crate::options::{KEEP_MARKED, millis};
use crate::redis_io::connection::{Budget, Limits};
use crate::redis_io::failure::{Failure, Reached};
use crate::redis_io::inbox::{Mailbox, Ticket, Wake};
use crate::redis_io::script::Request;
use crate::wait::Woken;

/// Pace of trying again while the server can't be used.
const FIRST_RETRY: Duration = Duration::from_millis(25);
const SLOWEST_RETRY: Duration = Duration::from_millis(500);

/// A fresh token that passes for a dead one is rarer than one in a million: so many are a server gone wrong.
const MOST_DEAD: u32 = 3;

/// A state is not kept for longer than a week for one who has not asked: so who wants a longer lease asks.
const LONGEST_GIVEN: Duration = Duration::from_secs(86_400);

/// Longest that a wait is kept from ending by what it must undo; then that goes on in the background.
const LONGEST_FAREWELL: Duration = Duration::from_millis(250);

pub(crate) fn fresh_token() -> Arc<str> {
    uuid::Uuid::new_v4().simple().to_string().into()
}

/// A grant that can be held: in time, and with a thread to watch it.
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    pub(crate) renewer: Renewer,
}

/// One thread asking the server for one word, again and again if need be.
pub(super) struct Attempt<'a> {
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
    pub(super) was_unsure: bool,
    /// Our ticket stands on the word's list of waiters.
    registered: bool,
    mailbox: Option<Mailbox>,
    waiting: Option<Waiting>,
    retry: Duration,
    /// Who had it at the last look.
    holder: Option<String>,
    /// Which of several words that was.
    word: Option<String>,
    pub(super) contended: bool,
    /// How many tokens the server has called dead.
    dead: u32,
    /// What stood in the way at the last look, if it was not another holder.
    trouble: Option<Error>,
    /// The server answered the last call, whatever it said.
    answering: bool,
    /// The lowest fencing token to be given by a message: as at the first look, so that our place on the list stays as it is.
    floor: u64,
    /// When we asked last, and the last fencing token at that time, if we were on the list then.
    look: Option<(BootTime, u64)>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        wanted: &'a Wanted,
        patience: &'a Patience,
        pass: Option<&'a Pass>,
        contended: bool,
    ) -> Attempt<'a> {
        Attempt {
            core,
            wanted,
            patience,
            pass,
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
            word: None,
            contended,
            dead: 0,
            trouble: None,
            answering: true,
            floor: core.floor(),
            look: None,
        }
    }

    pub(super) fn run(&mut self) -> Result<Granted> {
        // One who upgrades is on the list in any case, so that a second one learns of him.
        let upgrades = self.wanted.way.replaces().is_some() && !self.patience.is_try;
        if !self.patience.is_try && self.core.inbox.is_up() {
            // Somebody here has waited a moment ago, so we may have to as well: then the first look registers us.
            self.mailbox = Some(self.core.inbox.mailbox(&self.ticket));
        }
        loop {
            let has_mailbox = self.mailbox.is_some();
            let is_reached = has_mailbox && self.core.inbox.is_up();
            // One who may stand on the list says who he is, wakes or not: a lease must not be given twice, once to him and
            // once to his place.
            let with_ticket = is_reached || self.registered || upgrades;
            let asked = Instant::now();
            let asked_at = self.core.node.clock.now();
            self.look = None;
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
                Ok(Said::Held {
                    left,
                    by,
                    word,
                    last,
                }) => {
                    self.no_trouble();
                    self.retry = FIRST_RETRY;
                    self.registered |= with_ticket;
                    self.look = last.filter(|_| with_ticket).map(|last| (asked_at, last));
                    self.refuse_circle(&by, word.as_deref(), asked)?;
                    let renewed = self.holder.replace(by.clone()) == Some(by);
                    self.word = word;
                    if self.patience.is_try {
                        let who = self.wanted.way.kept_out(self.word.as_deref());
                        let what = format!("{who}{}", for_how_long(left));
                        return Err(Error::new(ErrorKind::WouldBlock, what));
                    }
                    let could_be_told = has_mailbox && with_ticket;
                    if !is_reached && self.open_mailbox() && !could_be_told {
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
                        let what = "another reader is already waiting to upgrade";
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
            if let Some(Wake::Given(reply)) = self.sleep(next_look)?
                && let Some(grant) = self.accept(&reply)
                && let Some(granted) = self.take(grant)?
            {
                return Ok(granted);
            }
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
    fn sleep(&mut self, pause: Duration) -> Result<Option<Wake>> {
        self.contended = true;
        let look = Instant::now() + pause;
        let until = self.patience.deadline.map_or(look, |d| d.min(look));
        let wakes = match &self.mailbox {
            // While the server can't be used a wake is no news: the pace of trying again holds.
            Some(mailbox) if self.trouble.is_none() => {
                let is_cancelled = self.patience.cancellers.is_cancelled();
                let wake = (!is_cancelled).then(|| self.core.inbox.read_for(mailbox, until));
                if let Some(wake) = wake.flatten() {
                    return Ok(Some(wake));
                }
                mailbox.wakes.clone()
            }
            _ => never(),
        };
        match self.patience.cancellers.recv(&wakes, Some(until)) {
            Woken::Cancelled => Err(cancelled()),
            Woken::Timeout if self.patience.is_over() => {
                Err(self.trouble.take().unwrap_or_else(|| {
                    let who = self.wanted.way.kept_out(self.word.as_deref());
                    self.patience.timed_out(&who)
                }))
            }
            Woken::Message(wake) => Ok(Some(wake)),
            Woken::Timeout | Woken::Disconnected => Ok(None),
        }
    }

    /// One acquire.
    fn ask(&mut self, with_ticket: bool) -> Result<Said, Failure> {
        let (core, wanted) = (self.core, self.wanted);
        let lease = first_lease(&wanted.options);
        let block = self.is_to_be_handed_over();
        let hears_of_others = block && core.inbox.open();
        let inbox = if hears_of_others { core.inbox.id() } else { "" };
        let text = text(core, wanted.kind, inbox);
        let request = Request::new(wanted.family.acquire, &wanted.keys)
            .arg(&*self.token)
            .number(millis(lease))
            .arg(&text)
            .arg(format!("{:016}", core.floor()))
            .number(millis(lease.saturating_add(KEEP_MARKED)));
        let ticket = with_ticket.then_some(&*self.ticket.text);
        let request = wanted.way.complete(
            request,
            ticket,
            &self.token,
            &wanted.options,
            self.registered,
            &WordEntry {
                block: if block { BLOCK } else { 0 },
                floor: self.floor,
                text: &text,
            },
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
                        // Whoever can't hear of others must not count on there being none.
                        is_wanted: grant.is_wanted || !hears_of_others,
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

    /// Whether threads of this process wait for the lock, too, and can have it from us.
    fn is_to_be_handed_over(&self) -> bool {
        self.pass.is_some_and(Pass::is_wanted)
            && self.core.gates.hands_over()
            && self.wanted.options.is_open_ended()
    }

    /// A grant that came by a message, if it can be had without asking again: it was made after our last look, on which the
    /// server said that we wait, so the word is ours for a claim from then on at least. What can't is asked for with the same
    /// token, and found to be ours.
    fn accept(&self, reply: &str) -> Option<Grant> {
        let (asked_at, last) = self.look?;
        let options = &self.wanted.options;
        if self.unsure
            || !self.registered
            || !options.is_open_ended()
            || options.ttl > LONGEST_GIVEN
        {
            return None;
        }
        let grant = read_grant(reply.as_bytes(), &self.token, asked_at)?;
        // The server keeps it for no less. What is counted on must not shrink when the lease is made whole.
        let claim = self.wanted.way.claim(options).min(first_lease(options));
        let left = local_deadline(asked_at, claim).since(self.core.node.clock.now());
        if grant.fencing.get() <= last || left < claim / 4 {
            return None;
        }
        let hears_of_others = self.core.inbox.is_up();
        Some(Grant {
            claim: Some(claim),
            is_wanted: grant.is_wanted || !hears_of_others,
            ..grant
        })
    }

    /// Turns a grant into something to hold; `None` if it came too late, which has been undone then.
    fn take(&mut self, grant: Grant) -> Result<Option<Granted>> {
        let core = self.core;
        // Until it is in the caller's hands, whatever goes wrong must free the word.
        self.unsure = true;
        core.saw(grant.fencing.get());
        let lease = first_lease(&self.wanted.options);
        let deadline = local_deadline(grant.sent_at, grant.claim.unwrap_or(lease));
        if core.node.clock.now() >= deadline {
            self.undo();
            self.token = fresh_token();
            return Ok(None);
        }
        let renewer = core.renewers.lend()?;
        if let Some(pass) = self.pass
            && grant.reserved.is_some()
            && grant.is_wanted
        {
            pass.others_wait();
        }
        self.unsure = false;
        // The grant took our inbox off the list.
        self.registered = false;
        Ok(Some(Granted { grant, renewer }))
    }

    /// Whoever holds it may be this thread itself, or one that waits for it; perhaps through a client that calls the server by
    /// another name, whose holds are known by their tokens.
    fn refuse_circle(&mut self, holder: &str, word: Option<&str>, asked: Instant) -> Result<()> {
        if self.patience.is_try || !self.wanted.way.is_tracked() {
            return Ok(());
        }
        if deadlock::is_my_token(holder) {
            return Err(self.patience.circle(Circle::Itself));
        }
        let word = word.unwrap_or(&self.wanted.keys.word);
        let shares = self.wanted.way.shares();
        // Whom one who would share it waits for is another question at each look.
        if shares || self.waiting.as_ref().is_none_or(|w| !w.is_for(word)) {
            self.waiting = None;
            let wanted = deadlock::Wanted {
                resource: resource(self.core, word.into()),
                shares,
                asked,
            };
            let waiting = deadlock::wait_for(wanted, self.wanted.way.replaces());
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
    pub(super) fn undo(&mut self) {
        self.was_unsure |= self.unsure;
        if !self.unsure && !self.registered {
            return;
        }
        let (core, keys) = (self.core, &self.wanted.keys);
        let queued = self.registered && self.wanted.way.is_given();
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
        self.floor = core.floor();
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

/// Who holds it and how, as the state tells others. A holder that may hand it over names the inbox where it hears of others that
/// wait.
fn text(core: &Core, kind: &str, inbox: &str) -> String {
    let label = core.holder_label();
    if inbox.is_empty() {
        format!("{label}\n{kind}")
    } else {
        format!("{label}\n{kind}\t{inbox}")
    }
}

fn for_how_long(left: Option<Duration>) -> String {
    left.map_or_else(String::new, |left| {
        format!(", its lease has {left:.1?} left unless it is renewed or released")
    })
}
