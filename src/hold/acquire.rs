//! The way in: from the first look to a guard, or to an error that leaves nothing behind.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::hold::attempt::{Attempt, Granted};
use crate::hold::core::Core;
use crate::hold::deadlock::{self, Circle, Resource};
use crate::hold::gate::{Entered, Pass, Stopped};
use crate::hold::hand_over::{Handed, Wish};
use crate::hold::patience::{Patience, cancelled};
use crate::hold::release::HoldGuard;
use crate::hold::renewer::Renewer;
use crate::hold::way::Way;
use crate::name::Keys;
use crate::options::HoldOptions;
use crate::redis_io::scripts::Family;
use crate::wait::Wait;

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
    let patience = Patience::new(core, &wanted.way, wait, began);
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
            let (entered, contended) = entered.map_err(Failed::surely)?;
            if let Some((hold, renewer)) = entered.handed.and_then(Handed::take) {
                core.saw(hold.fencing.get());
                let pass = Some(entered.pass);
                let guard = hold_it(core, wanted, hold, renewer, pass, began, contended);
                return Ok(guard);
            }
            (Some(entered.pass), contended)
        }
        Way::Try | Way::Queue(_) => (None, false),
    };
    let mut attempt = Attempt::new(core, wanted, patience, pass.as_ref(), contended);
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
    let hold = Hold::new(core, wanted, granted.grant);
    hold_it(core, wanted, hold, granted.renewer, pass, began, contended)
}

/// Puts a hold into the hands of its renewer and its guard.
fn hold_it(
    core: &Arc<Core>,
    wanted: &Wanted,
    hold: Hold,
    renewer: Renewer,
    pass: Option<Pass>,
    began: Instant,
    contended: bool,
) -> HoldGuard {
    let waited = began.elapsed();
    core.metrics.acquired(waited, contended);
    let hold = Arc::new(hold);
    let tracked = wanted.way.is_tracked().then(|| {
        let resources = wanted.resources(core);
        deadlock::track(resources, wanted.way.shares(), &hold)
    });
    hold.occupy(tracked, pass);
    renewer.attach(&hold);
    // The guard first: the user's logger may panic.
    let guard = HoldGuard::new(hold.clone(), core.clone(), renewer);
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

pub(crate) fn resource(core: &Core, word: Arc<str>) -> Resource {
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
) -> Result<(Entered, bool)> {
    let word = &wanted.keys.word;
    let wish = Wish {
        kind: wanted.kind,
        options: wanted.options.clone(),
    };
    if let Some(entered) = core.gates.try_enter(word, &wish) {
        let contended = entered.handed.is_some();
        return Ok((entered, contended));
    }
    if patience.is_try {
        return Err(Error::new(
            ErrorKind::WouldBlock,
            "another thread of this process holds it, or waits for it",
        ));
    }
    let _waiting = deadlock::wait_for(deadlock::Wanted::alone(resource), None)
        .map_err(|c| patience.circle(c))?;
    let entered = core
        .gates
        .enter(word, &wish, patience.deadline, &patience.cancellers);
    entered
        .map(|entered| (entered, true))
        .map_err(|stopped| match stopped {
            Stopped::Cancelled => cancelled(),
            // One thread asks the server for all: what it heard last is what all of them waited for.
            Stopped::TimedOut => core.gates.trouble(word).unwrap_or_else(|| {
                patience.timed_out("another thread of this process had it, or was ahead")
            }),
        })
}
