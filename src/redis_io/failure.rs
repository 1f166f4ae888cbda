//! What a failed exchange tells: the error for the user, and whether the server may have done what was asked.

use redis::{ErrorKind as RedisKind, RedisError};

use crate::error::{Error, ErrorKind};

/// How far a command that failed got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It was not sent.
    No,
    /// It was sent, or part of it was: the server may have done it, or may do it later.
    Maybe,
    /// The server answered with an error.
    Answered,
}

/// A failed exchange.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reached: Reached,
    pub(crate) error: Error,
    /// The error code that the server sent, also where it stands inside a script's error.
    code: Code,
    /// Whether the connection gave up waiting, rather than learning of a fault.
    pub(crate) timed_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    NoScript,
    NotMaster,
    LoggedOut,
    /// None of the server's: a signal ended the read.
    Interrupted,
    Other,
}

impl Failure {
    #[cold]
    pub(crate) fn new(reached: Reached, address: &str, e: RedisError) -> Failure {
        let (kind, code, what, advice) = classify(&e, address);
        let timed_out = e.is_timeout();
        let mut error = Error::new(kind, what).because(e).on_node(address);
        if let Some(advice) = advice {
            error = error.advise(advice);
        }
        Failure {
            reached,
            error,
            code,
            timed_out,
        }
    }

    /// An error of our own making, at a point where nothing was sent.
    #[cold]
    pub(crate) fn unsent(error: Error) -> Failure {
        Failure {
            reached: Reached::No,
            error,
            code: Code::Other,
            timed_out: false,
        }
    }

    /// A reply whose shape we don't know: the script ran.
    #[cold]
    pub(crate) fn misshapen(address: &str, script: &str) -> Failure {
        let what = format!("{address} answered the {script} script in a way that it never does");
        Failure {
            reached: Reached::Maybe,
            error: Error::new(ErrorKind::Script, what).on_node(address),
            code: Code::Other,
            timed_out: false,
        }
    }

    /// The same fault, told to one more who waited for it.
    pub(crate) fn share(&self) -> Failure {
        Failure {
            reached: self.reached,
            error: self.error.share(),
            code: self.code,
            timed_out: self.timed_out,
        }
    }

    pub(crate) fn is_noscript(&self) -> bool {
        self.code == Code::NoScript
    }

    /// Whether a signal ended the exchange: the process was stopped and goes on, or a handler ran. A socket with a timeout
    /// reports that, and nothing is wrong.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.code == Code::Interrupted
    }

    /// Whether asking again over a new connection may give another answer.
    pub(crate) fn needs_new_connection(&self) -> bool {
        matches!(self.code, Code::NotMaster | Code::LoggedOut)
    }

    /// Whether the script may have got as far as to write. One that ends in an error may: what was written before it stays.
    /// (Where the server can't serve, or is out of memory, it says so before the first write.)
    pub(crate) fn may_have_written(&self) -> bool {
        match self.reached {
            Reached::No => false,
            Reached::Maybe => true,
            Reached::Answered => {
                self.code == Code::Other
                    && matches!(
                        self.error.kind(),
                        ErrorKind::Script | ErrorKind::AccessDenied
                    )
            }
        }
    }

    /// Whether time may heal it: the server is away, busy, loading, full, or not the master at the moment.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self.error.kind(),
            ErrorKind::Unavailable | ErrorKind::OutOfMemory
        )
    }
}

impl From<Failure> for Error {
    fn from(f: Failure) -> Error {
        f.error
    }
}

type Classified = (ErrorKind, Code, String, Option<&'static str>);

fn classify(e: &RedisError, address: &str) -> Classified {
    match e.kind() {
        RedisKind::Server(_) | RedisKind::Extension => classify_server(e, address),
        RedisKind::AuthenticationFailed => (
            ErrorKind::AccessDenied,
            Code::LoggedOut,
            format!("{address} refused the login"),
            None,
        ),
        RedisKind::Io if e.is_timeout() => (
            ErrorKind::Unavailable,
            Code::Other,
            format!("{address} did not answer in time"),
            None,
        ),
        RedisKind::Io if is_interrupted(e) => (
            ErrorKind::Unavailable,
            Code::Interrupted,
            format!("a signal came while {address} was to answer"),
            None,
        ),
        RedisKind::Io if e.is_connection_refusal() => (
            ErrorKind::Unavailable,
            Code::Other,
            format!("{address} refused the connection"),
            Some("see that a server listens there"),
        ),
        RedisKind::Io => (
            ErrorKind::Unavailable,
            Code::Other,
            format!("the connection to {address} failed: {e}"),
            None,
        ),
        RedisKind::Parse | RedisKind::UnexpectedReturnType => (
            ErrorKind::Unavailable,
            Code::Other,
            format!("{address} did not answer in the Redis protocol"),
            Some("see that a Redis or Valkey server listens there"),
        ),
        _ => (
            ErrorKind::Unavailable,
            Code::Other,
            format!("talking to {address} failed: {e}"),
            None,
        ),
    }
}

/// Whether a signal ended the read.
pub(crate) fn is_interrupted(e: &RedisError) -> bool {
    // The package has no accessor for it, and gives the source as it keeps it, in an `Arc`.
    type Kept = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    std::error::Error::source(e)
        .and_then(|source| source.downcast_ref::<Kept>())
        .and_then(|kept| kept.downcast_ref::<std::io::Error>())
        .is_some_and(|e| e.kind() == std::io::ErrorKind::Interrupted)
}

/// Codes are looked for in the whole text, too: Redis before 7 wraps a command's error in the script's.
fn classify_server(e: &RedisError, address: &str) -> Classified {
    let code = e.code().unwrap_or("ERR");
    let detail = e.detail().unwrap_or("");
    let says = |word: &str| code == word || detail.contains(word);
    let text = if code == "ERR" {
        detail.to_owned()
    } else {
        format!("{code} {detail}")
    };
    let said = |what: &str| format!("{address} {what}: {}", text.trim());
    let denied = "can't run this command";
    if code == "NOSCRIPT" {
        let what = said("does not know the script");
        return (ErrorKind::Script, Code::NoScript, what, None);
    }
    if says("NOAUTH") || detail.contains("Authentication required") {
        let what = said("wants a login");
        return (ErrorKind::AccessDenied, Code::LoggedOut, what, None);
    }
    if says("WRONGPASS") || says("NOPERM") || says(denied) || says("permissions") {
        let what = said("denied access");
        return (ErrorKind::AccessDenied, Code::Other, what, None);
    }
    if says("WRONGTYPE") {
        let what = said("has other data under this lock's key");
        return (ErrorKind::KeyConflict, Code::Other, what, None);
    }
    if says("OOM") {
        let what = said("is out of memory");
        return (ErrorKind::OutOfMemory, Code::Other, what, None);
    }
    if says("READONLY") || says("MASTERDOWN") {
        let what = said("is not a master that can write now");
        return (ErrorKind::Unavailable, Code::NotMaster, what, None);
    }
    if code == "TRYAGAIN" || code == "CLUSTERDOWN" {
        let what = said("can't serve this slot now");
        return (ErrorKind::Unavailable, Code::Other, what, None);
    }
    if code == "MOVED" || code == "ASK" {
        let what = format!("{address} is a node of a Redis Cluster and does not hold this key");
        let advice = Some("connect to a standalone server; clusters are not in this release");
        return (ErrorKind::Unsupported, Code::Other, what, advice);
    }
    let busy = ["BUSY", "LOADING", "MISCONF", "NOREPLICAS", "UNKILLABLE"];
    if busy.iter().any(|b| says(b)) || detail.contains("max number of clients") {
        let what = said("can't serve now");
        return (ErrorKind::Unavailable, Code::Other, what, None);
    }
    if detail.contains("unknown command") {
        let what = said("lacks a command that locks need");
        let advice = Some("use Redis 6.2 or later, or Valkey, with EVAL and EVALSHA allowed");
        return (ErrorKind::Unsupported, Code::Other, what, advice);
    }
    if detail.contains("DB index") || detail.contains("switch database") {
        let what = said("has no such database");
        return (ErrorKind::InvalidOptions, Code::Other, what, None);
    }
    (ErrorKind::Script, Code::Other, said("answered"), None)
}
