//! What the lock's scripts answer, read: what was asked of them stands beside each script.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::clock::BootTime;
use crate::error::{Error, ErrorKind};
use crate::fencing::FencingToken;
use crate::hold::Grant;
use crate::hold::hand_over::BLOCK;
use crate::lease::Predecessor;
use crate::name::Keys;
use crate::redis_io::failure::Failure;
use crate::redis_io::node::Answer;
use crate::redis_io::script::{Reply, Script};

/// What the server said to an acquire.
pub(crate) enum Said {
    Granted(Grant),
    Held {
        left: Option<Duration>,
        by: String,
        /// Which word it is, where several are wanted.
        word: Option<String>,
        /// The last fencing token that was given or reserved.
        last: Option<u64>,
    },
    DeadToken,
}

/// What an acquire with `token` was answered by `script`.
pub(crate) fn read_acquire(
    answer: Answer,
    script: &Script,
    token: &Arc<str>,
    keys: &Keys,
    address: &str,
) -> Result<Said, Failure> {
    let shape = || misshapen(address, script);
    if let Value::BulkString(grant) = &answer.value {
        return read_grant(grant, token, answer.sent_at)
            .map(Said::Granted)
            .ok_or_else(shape);
    }
    let mut reply = Reply::new(answer.value).ok_or_else(shape)?;
    match reply.int().ok_or_else(shape)? {
        0 => {
            let left = reply.int().and_then(|ms| u64::try_from(ms).ok());
            let by = reply.text().ok_or_else(shape)?;
            let _waiters = reply.int();
            Ok(Said::Held {
                left: left.map(Duration::from_millis),
                by,
                word: reply.text().filter(|word| !word.is_empty()),
                last: reply.number(),
            })
        }
        -1 => Ok(Said::DeadToken),
        code @ -6..=-2 => Err(refusal(code, keys, &mut reply, script, address)),
        _ => Err(shape()),
    }
}

/// Fencing token, mark, mark's token, mark's label: the numbers have 16 digits each. After a line break, if more than one token
/// was reserved, whether others wait.
pub(crate) fn read_grant(packed: &[u8], token: &Arc<str>, sent_at: BootTime) -> Option<Grant> {
    let text = String::from_utf8_lossy(packed);
    let fencing: u64 = text.get(..16)?.parse().ok()?;
    let mark_token: u64 = text.get(17..33)?.parse().ok()?;
    let rest = text.get(33..)?;
    let (label, others) = match rest.split_once('\n') {
        Some((label, others)) => (label, Some(others)),
        None => (rest, None),
    };
    Some(Grant {
        token: token.clone(),
        fencing: FencingToken::from(fencing),
        reserved: others.map(|_| FencingToken::from(fencing.saturating_add(BLOCK - 1))),
        is_wanted: others.is_some_and(|others| !others.is_empty()),
        predecessor: Predecessor::read(text.get(16..17)?, mark_token, label.to_owned())?,
        sent_at,
        repeated: false,
        claim: None,
    })
}

/// What a renewal was answered: what was left by the server's clock, or that it is not ours.
pub(crate) fn read_renew(
    value: Value,
    script: &Script,
    address: &str,
) -> Result<Option<Duration>, Failure> {
    let shape = || misshapen(address, script);
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
pub(crate) fn read_release(value: &Value, script: &Script, address: &str) -> Result<bool, Failure> {
    match value {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(misshapen(address, script)),
    }
}

/// Whether it is ours, as a verification says.
pub(crate) fn read_verify(value: Value, script: &Script, address: &str) -> Result<bool, Failure> {
    match Reply::new(value).and_then(|mut reply| reply.int()) {
        Some(1) => Ok(true),
        Some(0) => Ok(false),
        _ => Err(misshapen(address, script)),
    }
}

/// A reply whose shape we don't know.
pub(crate) fn misshapen(address: &str, script: &Script) -> Failure {
    Failure::misshapen(address, script.name)
}

/// The replies below zero, which all scripts share.
pub(crate) fn refusal(
    code: i64,
    keys: &Keys,
    reply: &mut Reply,
    script: &Script,
    address: &str,
) -> Failure {
    let Some(detail) = reply.text().or((code < -4).then(String::new)) else {
        return misshapen(address, script);
    };
    Failure::unsent(match code {
        -2 => {
            let key = match &*detail {
                "word" => &keys.word,
                "state" => keys.state(),
                key => key,
            };
            let what = format!(
                "the key {key:?} on {address} holds other data (not what a lock of this kind has there), which was left untouched"
            );
            Error::new(ErrorKind::KeyConflict, what)
        }
        -3 if detail.len() == 1 => {
            let what = format!(
                "its state on {address} has layout version {detail}, which this leasehold does not know"
            );
            let error = Error::new(ErrorKind::Unsupported, what);
            error.advise("use one version of leasehold, the newest, everywhere")
        }
        -4 => {
            let what = format!("the semaphore has {detail} permits on {address}");
            let error = Error::new(ErrorKind::InvalidOptions, what);
            error.advise(
                "ask for no more, and make each handle with that number; set_permits changes it",
            )
        }
        -5 => {
            let what = "another reader is already waiting to upgrade, and waits for this one";
            let error = Error::new(ErrorKind::Deadlock, what);
            error.advise("drop this guard")
        }
        -6 => Error::new(
            ErrorKind::Lost,
            "the server does not know the read lease any more",
        ),
        _ => return misshapen(address, script),
    })
}
