//! Who holds a lock, as the server knows it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::fencing::FencingToken;
use crate::hold::core::Core;
use crate::hold::replies::{misshapen, refusal};
use crate::name::Keys;
use crate::redis_io::connection::Budget;
use crate::redis_io::script::{FORCE_UNLOCK, INSPECT, Reply, Request};

/// Who holds a lock, for people and tools: a snapshot that may be old when it is read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock's name.
    pub name: String,
    /// `mutex` and the like; `foreign` for a lock of another library, `free` where nobody holds it, `resting` where
    /// `with_hold_at_least` keeps it.
    pub kind: String,
    /// Whether anybody has it.
    pub held: bool,
    /// `label@host/pid/thread`; `None` for a foreign lock.
    pub holder: Option<String>,
    /// The holder's fencing token, or the last one given.
    pub token: Option<FencingToken>,
    /// Since when, by the server's clock.
    pub since: Option<SystemTime>,
    /// What is left of its lease; a renewed one is renewed before that.
    pub ttl_left: Option<Duration>,
    /// How many processes (clients, to be exact) wait for it.
    pub waiters: u64,
    /// Readers of a read-write lock; 0 for others.
    pub readers: u64,
    /// Free and all permits of a semaphore; `None` for others.
    pub permits: Option<(u32, u32)>,
}

/// A waiter that was not heard for so long is not counted.
const SILENT_MS: u64 = 5000;
/// Places in a packed state: see layout.lua, which counts from 1.
const LAST_TOKEN: std::ops::Range<usize> = 3..19;
const SINCE: std::ops::Range<usize> = 51..64;
const HOLDER: std::ops::Range<usize> = 64..72;
const TEXTS: usize = 264;

/// Of the layout that this version writes, and of no other.
fn is_readable(state: &str) -> bool {
    state.len() > TEXTS + 2 && state.starts_with('1') && state.is_char_boundary(TEXTS)
}

pub(crate) fn inspect(core: &Arc<Core>, keys: &Keys) -> Result<LockInfo> {
    core.check_process()?;
    let reply = call(core, keys, &INSPECT)?;
    let address = &core.node.target.address;
    let shape = || misshapen(address, &INSPECT).error;
    let info = read(keys, reply).ok_or_else(shape);
    info.map_err(|e| e.for_lock(&keys.name))
}

/// # Errors
///
/// `KeyConflict` for what is no lock; `Unavailable` and the like.
pub(crate) fn force_unlock(core: &Arc<Core>, keys: &Keys) -> Result<bool> {
    core.check_process()?;
    let mut reply = call(core, keys, &FORCE_UNLOCK)?;
    let address = &core.node.target.address;
    let failure = match reply.int() {
        Some(n @ 0..=1) => return Ok(n == 1),
        Some(_) => refusal(keys, &mut reply, address),
        None => misshapen(address, &FORCE_UNLOCK),
    };
    Err(failure.error.for_lock(&keys.name))
}

fn call(
    core: &Core,
    keys: &Keys,
    script: &'static crate::redis_io::script::Script,
) -> Result<Reply> {
    let request = Request::new(script, &[&keys.word, &keys.state]);
    let limits = core.node.limits;
    let budget = Budget::new(limits.connect + limits.io);
    let answer = core.node.call(&request, limits, budget);
    let answer = answer.map_err(|f| f.error.for_lock(&keys.name))?;
    let address = &core.node.target.address;
    let shape = || misshapen(address, script).error.for_lock(&keys.name);
    Reply::new(answer.value).ok_or_else(shape)
}

fn read(keys: &Keys, mut reply: Reply) -> Option<LockInfo> {
    let value = reply.maybe_text()?;
    let left = reply.int()?;
    let state = reply.maybe_text()?;
    let now_ms = reply.number()?;
    let kind_of_key = reply.text()?;
    let state = state.as_deref().filter(|s| is_readable(s)).unwrap_or("");
    let field = |places: std::ops::Range<usize>| state.get(places).unwrap_or("");
    let mut texts = field(TEXTS..state.len()).split('\n');
    let mut text = || texts.next().unwrap_or("");
    let (label, kind, _earlier, waiting) = (text(), text(), text(), text());
    let ours = value
        .as_deref()
        .is_some_and(|v| !state.is_empty() && v.get(..8) == Some(field(HOLDER)));
    let resting = value.as_deref().is_some_and(|v| v.starts_with("lh:rest:"));
    let held = kind_of_key != "none";
    let number = |places| field(places).parse::<u64>().ok().filter(|&n| n > 0);
    Some(LockInfo {
        name: keys.name.to_string(),
        kind: match (held, ours, resting) {
            (false, ..) => "free".into(),
            (true, true, _) => kind.to_owned(),
            (true, false, true) => "resting".into(),
            (true, false, false) => "foreign".into(),
        },
        held,
        holder: ours.then(|| label.to_owned()),
        token: number(LAST_TOKEN).map(FencingToken::from),
        since: number(SINCE)
            .filter(|_| ours)
            .map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms)),
        ttl_left: u64::try_from(left).ok().map(Duration::from_millis),
        waiters: waiters(waiting, now_ms),
        readers: 0,
        permits: None,
    })
}

fn waiters(list: &str, now_ms: u64) -> u64 {
    let heard = |w: &&str| {
        let last = w.rsplit(',').next().and_then(|ms| ms.parse::<u64>().ok());
        last.is_some_and(|ms| ms.saturating_add(SILENT_MS) >= now_ms)
    };
    list.split(';').filter(heard).count() as u64
}
