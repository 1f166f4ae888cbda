//! What passes between clients and server, by the script's name, and what the server has: for tests of the word's locks.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, TryRecvError};
use leasehold::{Client, Lease};

pub(crate) use super::ask::timed;
use super::proxy::{Action, Command, RuleHandle, Times};
pub(crate) use super::scene::Scene;
use super::wait::eventually;

/// For what comes about soon, or never: on a busy machine "soon" may be long.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

// ---- the scripts ----------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Acquire,
    Renew,
    Release,
    Leave,
    Verify,
    Inspect,
    ForceUnlock,
}

/// Which script the command calls, by its hash or with its source.
pub(crate) fn script(command: &Command) -> Option<Script> {
    Some(match command.script()? {
        "acquire" => Script::Acquire,
        "renew" => Script::Renew,
        "release" => Script::Release,
        "leave" => Script::Leave,
        "verify" => Script::Verify,
        "inspect" => Script::Inspect,
        "force_unlock" => Script::ForceUnlock,
        _ => return None,
    })
}

/// The keys of a script's call.
pub(crate) fn keys(command: &Command) -> &[Vec<u8>] {
    let count = || str::from_utf8(command.args.get(2)?).ok()?.parse().ok();
    let n: usize = count().expect("a script's call");
    &command.args[3..3 + n]
}

/// The script's first argument, which is the hold's token in all scripts that have one.
pub(crate) fn token(command: &Command) -> String {
    let token = command.args.get(3 + keys(command).len());
    let token = token.expect("a script with arguments");
    String::from_utf8_lossy(token).into_owned()
}

/// Calls of `wanted`, of whichever lock.
pub(crate) fn any(wanted: Script) -> impl Fn(&Command) -> bool + Clone + Send + Sync + 'static {
    move |command| script(command) == Some(wanted)
}

/// Calls of `wanted` for the lock `word`.
pub(crate) fn of(
    wanted: Script,
    word: &str,
) -> impl Fn(&Command) -> bool + Clone + Send + Sync + 'static {
    let word = word.as_bytes().to_vec();
    move |command| script(command) == Some(wanted) && keys(command).first() == Some(&word)
}

// ---- the scene, as these tests use it ---------------------------------------------------------------

impl Scene {
    /// A client that goes through the proxy.
    pub(crate) fn client_with(&self, ttl: Duration) -> Client {
        self.builder().ttl(ttl).build().expect("a client")
    }

    /// A client that goes around the proxy.
    pub(crate) fn direct(&self, ttl: Duration) -> Client {
        let builder = Client::builder().url(&self.server.url()).ttl(ttl);
        builder.build().expect("a client")
    }

    /// A rule that changes nothing, whose hits say that the server has carried such a command out.
    pub(crate) fn watch(
        &self,
        matches: impl Fn(&Command) -> bool + Send + Sync + 'static,
    ) -> RuleHandle {
        self.proxy
            .rule(matches, Action::DelayReply(Duration::ZERO), Times::Always)
    }

    /// How many renewals of the lock `word` have been sent.
    pub(crate) fn renewals(&self, word: &str) -> usize {
        self.proxy.count(of(Script::Renew, word))
    }

    /// Lets time pass in which whoever renews at the pace of the lock `witness` does so `n` times more.
    #[track_caller]
    pub(crate) fn pass_renewals(&self, witness: &Lease, n: usize) {
        let word = witness.name();
        let before = self.renewals(word);
        eventually(BOUND, "the witness is renewed", || {
            witness.check().expect("the witness is held");
            self.renewals(word) >= before + n
        });
    }
}

/// Waits until the hold is over, be it by loss or by release.
#[track_caller]
pub(crate) fn await_end(lease: &Lease) {
    let ended = lease.lost().recv_timeout(BOUND);
    assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
}

/// `lost()` without waiting.
pub(crate) fn is_signalled(lease: &Lease) -> bool {
    lease.lost().try_recv() == Err(TryRecvError::Disconnected)
}

// ---- what the server has --------------------------------------------------------------------------

pub(crate) fn exists(raw: &mut redis::Connection, key: &str) -> bool {
    redis::cmd("EXISTS").arg(key).query(raw).expect("EXISTS")
}

pub(crate) fn get(raw: &mut redis::Connection, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(raw).expect("GET")
}

/// Milliseconds; -1: no ttl; -2: no key.
pub(crate) fn pttl(raw: &mut redis::Connection, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query(raw).expect("PTTL")
}

pub(crate) fn delete(raw: &mut redis::Connection, key: &str) -> bool {
    redis::cmd("DEL").arg(key).query(raw).expect("DEL")
}

/// As another library takes a lock.
pub(crate) fn take_as_foreigner(raw: &mut redis::Connection, key: &str, ttl: Duration) {
    let ttl = u64::try_from(ttl.as_millis()).expect("a ttl");
    let mut set = redis::cmd("SET");
    set.arg(key).arg("foreign").arg("NX").arg("PX").arg(ttl);
    set.exec(raw).expect("SET");
    assert_eq!(get(raw, key).as_deref(), Some("foreign"));
}

/// All keys that have no ttl, looked for at one moment.
pub(crate) fn keys_without_ttl(raw: &mut redis::Connection) -> Vec<String> {
    let look = "local bad = {} \
        for _, key in ipairs(redis.call('KEYS', '*')) do \
          if redis.call('PTTL', key) == -1 then bad[#bad + 1] = key end \
        end \
        return bad";
    let mut eval = redis::cmd("EVAL");
    eval.arg(look).arg(0).query(raw).expect("EVAL")
}

/// How many script calls the server has carried out.
pub(crate) fn scripts_run(raw: &mut redis::Connection) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(raw)
        .expect("INFO");
    let calls = |line: &str| -> Option<u64> {
        let rest = line
            .strip_prefix("cmdstat_eval:calls=")
            .or_else(|| line.strip_prefix("cmdstat_evalsha:calls="))?;
        rest.split(',').next()?.parse().ok()
    };
    info.lines().filter_map(calls).sum()
}

// ---- time -----------------------------------------------------------------------------------------

/// Runs `f` up to five times until it takes no longer than `most`: on a busy machine any thread may be kept from running
/// for so long, once; what breaks its promise breaks it each time.
#[track_caller]
pub(crate) fn takes_at_most(most: Duration, what: &str, mut f: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..5 {
        let this = f();
        took.push(this);
        if this <= most {
            return;
        }
    }
    panic!("{what} took {took:?}, more than {most:?}");
}
