//! The way out: join the renewer, then send the release script.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::hold::Hold;
use crate::hold::core::Core;
use crate::hold::hand_over::Handed;
use crate::hold::renewer::Renewer;
use crate::hold::replies::read_release;
use crate::lease::Lease;
use crate::options::{KEEP_CLEAN, KEEP_MARKED, millis};
use crate::redis_io::connection::Budget;
use crate::redis_io::script::Request;

/// What every guard is inside: a lease, and the duty to give it back.
pub(crate) struct HoldGuard {
    lease: Lease,
    core: Arc<Core>,
    /// Taken at the release.
    renewer: Option<Renewer>,
    /// A guard made while unwinding can't tell a panic of its own section.
    was_panicking: bool,
}

/// How a hold ended, as the next holder learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Clean,
    Panicked,
    Abandoned,
}

impl Mark {
    fn letter(self) -> &'static str {
        match self {
            Mark::Clean => "C",
            Mark::Panicked => "P",
            Mark::Abandoned => "A",
        }
    }

    /// How long the state is kept.
    fn keep(self) -> Duration {
        match self {
            Mark::Clean => KEEP_CLEAN,
            Mark::Panicked | Mark::Abandoned => KEEP_MARKED,
        }
    }
}

impl fmt::Debug for HoldGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

impl Deref for HoldGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl HoldGuard {
    pub(crate) fn new(hold: Arc<Hold>, core: Arc<Core>, renewer: Renewer) -> HoldGuard {
        HoldGuard {
            lease: Lease::new(hold),
            core,
            renewer: Some(renewer),
            was_panicking: std::thread::panicking(),
        }
    }

    /// The guard may go to another thread from here on.
    pub(crate) fn untrack(&self) {
        if !self.core.is_forked() {
            self.lease.hold().untrack();
        }
    }

    /// Gives the lock back and says how that went.
    pub(crate) fn unlock(mut self) -> Result<()> {
        self.release(Mark::Clean)
    }

    fn release(&mut self, mark: Mark) -> Result<()> {
        if self.renewer.is_none() {
            return Ok(());
        }
        if self.core.is_forked() {
            self.leak_to_parent();
            let hold = self.lease.hold();
            return Err(hold.lost(LossReason::Forked).into());
        }
        let (budget, renewer) = self.retire();
        let hold = self.lease.hold();
        let ended = hold
            .end_reason()
            .or_else(|| (!hold.end(LossReason::Released)).then(|| hold.why_over()));
        if let Some(why) = ended {
            self.give_back(renewer);
            return Err(give_up(&self.core, hold, why));
        }
        let held = hold.clock.now().since(hold.granted_at);
        let renewer = match renewer.map(|renewer| self.hand_over(renewer, mark)) {
            Some(Ok(())) => {
                released(hold, held, &Ok(()));
                return Ok(());
            }
            Some(Err(renewer)) => Some(renewer),
            None => None,
        };
        self.give_back(renewer);
        let result = send(&self.core, hold, mark, held, budget);
        hold.vacate();
        released(hold, held, &result);
        result
    }

    /// Lets the next thread of this process have it as it is.
    ///
    /// # Errors
    ///
    /// The renewer again, if nobody here wants it, or others have waited for long enough.
    fn hand_over(&self, renewer: Renewer, mark: Mark) -> Result<(), Renewer> {
        let hold = self.lease.hold();
        let panicked = (mark == Mark::Panicked).then(|| self.core.holder_label());
        let handed = Handed::new(self.lease.shared_hold(), renewer, panicked)?;
        let Some(pass) = hold.leave_table() else {
            return Err(handed.into_renewer());
        };
        pass.hand_over(handed).map_err(|(pass, handed)| {
            // Nobody may ask the server before it was told.
            hold.occupy(None, Some(pass));
            handed.into_renewer()
        })
    }

    fn give_back(&self, renewer: Option<Renewer>) {
        if let Some(renewer) = renewer {
            self.core.renewers.give_back(renewer);
        }
    }

    /// Ends a hold that the server has replaced by another already: nothing is sent.
    pub(crate) fn dissolve(mut self) {
        let (_, renewer) = self.retire();
        self.give_back(renewer);
        let hold = self.lease.hold();
        if hold.end(LossReason::Converted) {
            hold.vacate();
            hold.metrics
                .released(hold.clock.now().since(hold.granted_at));
        }
    }

    /// Ends a hold of which nobody knows whether the server has replaced it, and gives it back in the background.
    pub(crate) fn doubt(&self) {
        let hold = self.lease.hold();
        if hold.end(LossReason::Unconverted) {
            drop(give_up(&self.core, hold, LossReason::Unconverted));
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Takes the hold out of its renewer's hands: from then on no renewal of it is started, and none is under way.
    /// Returns what is left of the time for this, and the renewer, if it is good for another hold.
    fn retire(&mut self) -> (Budget, Option<Renewer>) {
        let budget = Budget::new(self.core.node.limits.io);
        let mut renewer = self.renewer.take();
        if renewer.as_ref().is_some_and(|r| !r.detach(budget.left()))
            && let Some(renewer) = renewer.take()
        {
            renewer.abandon();
        }
        (budget, renewer)
    }

    /// In a forked child: all of this is a copy of the parent's, with threads that do not exist here. Nothing is sent,
    /// joined or closed.
    fn leak_to_parent(&mut self) {
        std::mem::forget(self.renewer.take());
        std::mem::forget(self.core.clone());
        std::mem::forget(self.lease.clone());
    }
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        let mark = if std::thread::panicking() && !self.was_panicking {
            Mark::Panicked
        } else {
            Mark::Clean
        };
        // Logged and counted there; whoever wants to know calls `unlock`. The user's logger may panic, which would be the end
        // of the process if this drop belongs to a panic already.
        drop(catch_unwind(AssertUnwindSafe(|| self.release(mark))));
    }
}

/// Counts a release, and says how it went.
fn released(hold: &Hold, held: Duration, result: &Result<()>) {
    hold.metrics.released(held);
    let (name, token) = (&*hold.keys.name, hold.fencing.get());
    match result {
        Ok(()) => {
            log::debug!(target: "leasehold", name = name, token = token, held:? = held; "released");
        }
        Err(e) => {
            log::warn!(target: "leasehold", name = name, token = token, held:? = held; "release failed: {e}");
        }
    }
}

/// Sends the release script, within the budget; what does not fit goes on in the background.
fn send(core: &Core, hold: &Hold, mark: Mark, held: Duration, budget: Budget) -> Result<()> {
    let request = request(core, hold, mark, held);
    // Waiting for a renewal may have used the budget up, and one try is due in any case.
    let left = budget.left().max(Duration::from_millis(50));
    let limits = core.node.limits.within(left);
    let failure = match core.node.call(&request, limits, Budget::new(left)) {
        Ok(answer) => match read_release(
            &answer.value,
            hold.family.release,
            &core.node.target.address,
        ) {
            Ok(true) => return Ok(()),
            Ok(false) => {
                hold.metrics.release_refused();
                let what =
                    "the server says that it was not ours any more when it was to be released";
                let error = Error::new(ErrorKind::NotHeld, what);
                return Err(error.for_lock(&hold.keys.name));
            }
            Err(failure) => failure,
        },
        Err(failure) => failure,
    };
    hold.metrics.release_failed();
    if failure.is_transient() {
        undo_later(core, hold, request);
        let advice =
            "it is tried again in the background; at the latest the lock ends with its lease";
        return Err(failure.error.advise(advice).for_lock(&hold.keys.name));
    }
    Err(failure.error.for_lock(&hold.keys.name))
}

fn request(core: &Core, hold: &Hold, mark: Mark, held: Duration) -> Request {
    let rest = hold
        .options
        .at_least
        .map_or(Duration::ZERO, |at_least| at_least.saturating_sub(held));
    let how = how_it_ended(hold, mark, || core.holder_label());
    request_for(hold, &how, mark, rest)
}

fn request_for(hold: &Hold, how: &str, mark: Mark, rest: Duration) -> Request {
    let request = Request::new(hold.family.release, &hold.keys)
        .arg(&*hold.token)
        .arg(how)
        .number(millis(mark.keep()));
    match (rest.is_zero(), hold.repeated) {
        (true, false) => request,
        (_, false) => request.number(millis(rest)),
        (_, true) => request.number(millis(rest)).arg("1"),
    }
}

/// A hold that was lost before its guard was dropped. The server may still have the key, if the loss was ours: a lease that
/// we could not renew in time; or the others, if it was one of several that was taken away.
fn give_up(core: &Core, hold: &Hold, why: LossReason) -> Error {
    if why != LossReason::TakenAway || hold.keys.words() > 1 {
        // A lost hold keeps nothing: as if it had been held for ever, so that nothing is left of `at_least`.
        let request = request(core, hold, Mark::Abandoned, Duration::MAX);
        undo_later(core, hold, request);
    }
    hold.lost(why).into()
}

/// Releases a hold that nobody has any more, soon.
pub(crate) fn in_background(core: &Core, hold: &Hold, panicked: Option<String>) {
    let mark = panicked.as_ref().map_or(Mark::Clean, |_| Mark::Panicked);
    let how = how_it_ended(hold, mark, || panicked.unwrap_or_default());
    undo_later(core, hold, request_for(hold, &how, mark, Duration::ZERO));
}

/// How the hold ended. If there were several tokens, with the last one that was used; and with whose that was, where the next
/// holder is told of it and the server knows only the first.
fn how_it_ended(hold: &Hold, mark: Mark, who: impl FnOnce() -> String) -> Cow<'static, str> {
    let letter = mark.letter();
    match hold.block {
        None => letter.into(),
        Some(block) if mark == Mark::Clean || block.is_first => {
            format!("{letter}{:016}", hold.fencing.get()).into()
        }
        Some(_) => format!("{letter}{:016}{}", hold.fencing.get(), who()).into(),
    }
}

fn undo_later(core: &Core, hold: &Hold, request: Request) {
    // A renewal that was carried out, but not answered, may have armed the key only just now.
    let lease = hold.options.ttl.max(hold.remaining_lease());
    let until = hold.clock.now() + lease + Duration::from_secs(1);
    core.cleaner
        .push(&core.node, request, until, &hold.keys.name);
}

/// As if the lease had run out: the hold is lost, and its key gone from the server.
///
/// # Errors
///
/// When the server can't be told.
#[cfg(feature = "testing")]
pub(crate) fn lose(hold: &Hold) -> Result<()> {
    let core = hold.core.upgrade();
    core.as_ref().map_or(Ok(()), |core| core.check_process())?;
    if !hold.end(LossReason::OnPurpose) {
        return Ok(());
    }
    let Some(core) = core else {
        return Ok(());
    };
    let limits = core.node.limits;
    let request = request(&core, hold, Mark::Abandoned, Duration::MAX);
    let budget = Budget::new(limits.connect + limits.io);
    core.node.call(&request, limits, budget).map(drop)?;
    Ok(())
}
