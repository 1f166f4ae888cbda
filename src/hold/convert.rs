//! From one hold of a read-write lock to another, without letting go in between.
//!
//! The server replaces one lease by another, under a new token, in one script. Until its answer is here the old hold is as it
//! was, but that a renewal which the server refuses is no loss. If it is not known what the server did, both are given up.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::hold::acquire::{Failed, Wanted, acquire_or_say, begin};
use crate::hold::attempt::{Granted, fresh_token};
use crate::hold::core::Core;
use crate::hold::leave::leave;
use crate::hold::release::HoldGuard;
use crate::hold::replies::{Said, misshapen, read_acquire};
use crate::hold::way::{Want, Way};
use crate::hold::{Grant, Hold, first_lease, local_deadline};
use crate::options::millis;
use crate::redis_io::connection::Budget;
use crate::redis_io::script::Request;
use crate::redis_io::scripts::DOWNGRADE;
use crate::wait::Wait;

/// Makes a writer of a reader, waiting for the other readers to go.
///
/// # Errors
///
/// The reader again, held or lost, and what stood in the way.
pub(crate) fn upgrade(
    reader: HoldGuard,
    kind: &'static str,
    wait: &Wait,
) -> Result<HoldGuard, (HoldGuard, Error)> {
    let hold = reader.hold();
    if let Err(lost) = hold.check() {
        return Err((reader, lost.into()));
    }
    let way = Way::Queue(Want::Upgrade {
        old: hold.token.clone(),
        repeated: hold.repeated,
    });
    let wanted = wanted(hold, kind, way);
    hold.set_converting(true);
    match acquire_or_say(&reader.core().clone(), &wanted, wait) {
        Ok(writer) => {
            reader.dissolve();
            Ok(writer)
        }
        Err(failed) => {
            let hold = reader.hold();
            hold.set_converting(false);
            if failed.unsure {
                reader.doubt();
            } else if failed.error.kind() == ErrorKind::Lost {
                hold.end(LossReason::TakenAway);
            }
            Err((reader, failed.error))
        }
    }
}

/// Makes a reader of a writer, and lets the readers in that wait.
///
/// # Errors
///
/// The writer again, held or lost, and what stood in the way.
pub(crate) fn downgrade(
    writer: HoldGuard,
    kind: &'static str,
) -> Result<HoldGuard, (HoldGuard, Error)> {
    let hold = writer.hold();
    if let Err(lost) = hold.check() {
        return Err((writer, lost.into()));
    }
    hold.set_converting(true);
    let wanted = wanted(hold, kind, Way::Queue(Want::Read));
    match ask(writer.core(), &wanted, hold) {
        Ok(reader) => {
            writer.dissolve();
            Ok(reader)
        }
        Err(refused) => {
            hold.set_converting(false);
            if refused.unsure {
                writer.doubt();
            } else if refused.error.kind() == ErrorKind::Lost {
                hold.end(LossReason::TakenAway);
            }
            let error = refused.error.for_lock(&hold.keys.name);
            Err((writer, error))
        }
    }
}

/// One exchange with the server.
fn ask(core: &Arc<Core>, wanted: &Wanted, old: &Hold) -> Result<HoldGuard, Failed> {
    let sure = |error| Failed {
        error,
        unsure: false,
    };
    core.check_process().map_err(sure)?;
    let began = Instant::now();
    let renewer = core.renewers.lend().map_err(sure)?;
    let token = fresh_token();
    let asked = ask_for(core, wanted, &token, old);
    match asked {
        Ok(grant) => {
            let granted = Granted { grant, renewer };
            Ok(begin(core, wanted, granted, None, began, false))
        }
        Err(failed) => {
            core.renewers.give_back(renewer);
            if failed.unsure {
                let request = leave(wanted.family, &wanted.keys, &token, "", true);
                let until = core.node.clock.now() + wanted.options.ttl;
                core.cleaner
                    .push(&core.node, request, until, &wanted.keys.name);
            }
            Err(failed)
        }
    }
}

fn ask_for(core: &Core, wanted: &Wanted, token: &Arc<str>, old: &Hold) -> Result<Grant, Failed> {
    let lease = first_lease(&wanted.options);
    let request = Request::new(&DOWNGRADE, &wanted.keys)
        .arg(&**token)
        .number(millis(lease))
        .arg(format!("{}\n{}", core.holder_label(), wanted.kind))
        .arg(format!("{:016}", core.floor()))
        .arg(&*old.token);
    let request = if old.repeated {
        request.arg("1")
    } else {
        request
    };
    let mut limits = core.node.limits;
    limits.io = wanted.options.command_timeout(limits.io);
    let budget = Budget::new(limits.connect + limits.io);
    let address = &core.node.target.address;
    let answer = core.node.call(&request, limits, budget);
    let repeated = answer.as_ref().is_ok_and(|answer| answer.repeated);
    let said =
        answer.and_then(|answer| read_acquire(answer, &DOWNGRADE, token, &wanted.keys, address));
    match said {
        Ok(Said::Granted(grant)) => {
            core.saw(grant.fencing.get());
            if core.node.clock.now() < local_deadline(grant.sent_at, lease) {
                return Ok(Grant { repeated, ..grant });
            }
            let what = "the server did it too late to be used";
            Err(Failed {
                error: Error::new(ErrorKind::LeaseExpired, what),
                unsure: true,
            })
        }
        Ok(Said::DeadToken | Said::Held { .. }) => Err(Failed {
            error: misshapen(address, &DOWNGRADE).error,
            unsure: repeated,
        }),
        Err(failure) => Err(Failed {
            unsure: repeated || failure.may_have_written(),
            error: failure.error,
        }),
    }
}

fn wanted(hold: &Hold, kind: &'static str, way: Way) -> Wanted {
    Wanted {
        keys: hold.keys.clone(),
        kind,
        family: hold.family,
        way,
        options: hold.options.clone(),
    }
}
