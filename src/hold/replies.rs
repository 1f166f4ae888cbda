//! What the lock's scripts answer, read: what was asked of them stands beside each script.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::clock::BootTime;
use crate::error::{Error, ErrorKind};
use crate::fencing::FencingToken;
use crate::hold::Grant;
use crate::lease::Predecessor;
use crate::name::Keys;
use crate::redis_io::failure::Failure;
use crate::redis_io::node::Answer;
use crate::redis_io::script::{ACQUIRE, RELEASE, RENEW, Reply, Script};

/// What the server said to an acquire.
pub(crate) enum Said {
    Granted(Grant),
    Held { left: Option<Duration>, by: String },
    DeadToken,
}

/// What an acquire with `token` was answered.
pub(crate) fn read_acquire(
    answer: Answer,
    token: &Arc<str>,
    keys: &Keys,
    address: &str,
) -> Result<Said, Failure> {
    let shape = || misshapen(address, &ACQUIRE);
    if let Value::BulkString(grant) = &answer.value {
        return read_grant(grant, token, answer.sent_at)
            .map(Said::Granted)
            .ok_or_else(shape);
    }
    let mut reply = Reply::new(answer.value).ok_or_else(shape)?;
    match reply.int().ok_or_else(shape)? {
        0 => Ok(Said::Held {
            left: reply
                .int()
                .and_then(|ms| u64::try_from(ms).ok())
                .map(Duration::from_millis),
            by: reply.text().ok_or_else(shape)?,
        }),
        -1 => Ok(Said::DeadToken),
        -3 | -2 => Err(refusal(keys, &mut reply, address)),
        _ => Err(shape()),
    }
}

/// Fencing token, mark, mark's token, mark's label: the numbers have 16 digits each.
fn read_grant(packed: &[u8], token: &Arc<str>, sent_at: BootTime) -> Option<Grant> {
    let text = String::from_utf8_lossy(packed);
    let fencing: u64 = text.get(..16)?.parse().ok()?;
    let mark_token: u64 = text.get(17..33)?.parse().ok()?;
    let label = text.get(33..)?.to_owned();
    Some(Grant {
        token: token.clone(),
        fencing: FencingToken::from(fencing),
        predecessor: Predecessor::read(text.get(16..17)?, mark_token, label)?,
        sent_at,
        repeated: false,
    })
}

/// What a renewal was answered: what was left by the server's clock, or that it is not ours.
pub(crate) fn read_renew(value: Value, address: &str) -> Result<Option<Duration>, Failure> {
    let shape = || misshapen(address, &RENEW);
    let mut reply = Reply::new(value).ok_or_else(shape)?;
    match reply.int() {
        Some(1) => {
            let left = reply.int().and_then(|ms| u64::try_from(ms).ok());
            left.map(Duration::from_millis).map(Some).ok_or_else(shape)
        }
        Some(0) => Ok(None),
        _ => Err(shape()),
    }
}

/// What a release was answered: whether it was ours.
pub(crate) fn read_release(value: &Value, address: &str) -> Result<bool, Failure> {
    match value {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(misshapen(address, &RELEASE)),
    }
}

/// A reply whose shape we don't know.
pub(crate) fn misshapen(address: &str, script: &Script) -> Failure {
    Failure::misshapen(address, script.name)
}

/// The replies below zero that all scripts share.
pub(crate) fn refusal(keys: &Keys, reply: &mut Reply, address: &str) -> Failure {
    // The first number is read already; what is left tells which.
    match reply.text() {
        Some(which) if which == "word" || which == "state" => {
            let key = if which == "word" {
                &keys.word
            } else {
                &keys.state
            };
            let what = format!(
                "the key {key:?} on {address} holds other data (not a string with a ttl), which was left untouched"
            );
            Failure::unsent(Error::new(ErrorKind::KeyConflict, what))
        }
        Some(version) if version.len() == 1 => {
            let what = format!(
                "its state on {address} has layout version {version}, which this leasehold does not know"
            );
            let error = Error::new(ErrorKind::Unsupported, what);
            Failure::unsent(error.advise("use one version of leasehold, the newest, everywhere"))
        }
        _ => Failure::misshapen(address, "lock"),
    }
}
