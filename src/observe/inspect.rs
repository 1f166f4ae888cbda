//! Who holds a lock, as the server knows it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::fencing::FencingToken;
use crate::hold::core::Core;
use crate::hold::replies::{misshapen, refusal};
use crate::name::{Keys, Locks};
use crate::observe::table;
use crate::redis_io::connection::Budget;
use crate::redis_io::script::{Reply, Request, Script};
use crate::redis_io::scripts::{
    FORCE_UNLOCK, FORCE_UNLOCK_TABLE, INSPECT, INSPECT_TABLE, SET_PERMITS,
};

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
    /// How many wait for it: of a `Mutex` clients, where threads line up behind one of them; of those that queue, threads.
    pub waiters: u64,
    /// Readers of a read-write lock; 0 for others.
    pub readers: u64,
    /// Free and all permits of a semaphore; `None` for others.
    pub permits: Option<(u32, u32)>,
}

/// A waiter that was not heard for so long is not counted.
const SILENT_MS: u64 = 5000;
/// Places in a packed state: see layout.lua, which counts from 1.
pub(super) const LAST_TOKEN: std::ops::Range<usize> = 3..19;
pub(super) const MARK_TOKEN: std::ops::Range<usize> = 19..35;
const SINCE: std::ops::Range<usize> = 51..64;
const HOLDER: std::ops::Range<usize> = 64..72;
pub(super) const TEXTS: usize = 264;

/// Of the layout that this version writes, and of no other.
pub(super) fn is_readable(state: &str) -> bool {
    state.len() > TEXTS + 2 && state.starts_with('1') && state.is_char_boundary(TEXTS)
}

/// `limit` is a semaphore's, as its handle knows it.
pub(crate) fn inspect(core: &Arc<Core>, keys: &Keys, limit: Option<u32>) -> Result<LockInfo> {
    core.check_process()?;
    let info = match keys.each_lock() {
        Locks::Table => {
            let reply = call(core, keys, &INSPECT_TABLE)?;
            table::read(keys, reply, limit)
        }
        Locks::One => read(keys, call(core, keys, &INSPECT)?),
        Locks::Several(locks) => return inspect_all(core, keys, &locks),
    };
    let shape = || misshapen(&core.node.target.address, &INSPECT).error;
    info.ok_or_else(shape).map_err(|e| e.for_lock(&keys.name))
}

/// Of several locks: held if one of them is, by whoever has the first of those.
fn inspect_all(core: &Arc<Core>, keys: &Keys, locks: &[Keys]) -> Result<LockInfo> {
    let mut all = locks
        .iter()
        .map(|keys| inspect(core, keys, None))
        .collect::<Result<Vec<_>>>()?;
    let waiters = all.iter().map(|info| info.waiters).max().unwrap_or(0);
    let token = all.iter().filter_map(|info| info.token).max();
    let first = all.iter().position(|info| info.held).unwrap_or(0);
    let info = all.swap_remove(first);
    Ok(LockInfo {
        name: keys.name.to_string(),
        waiters,
        token,
        ..info
    })
}

/// # Errors
///
/// `KeyConflict` for what is no lock; `Unavailable` and the like.
pub(crate) fn force_unlock(core: &Arc<Core>, keys: &Keys) -> Result<bool> {
    core.check_process()?;
    match keys.each_lock() {
        Locks::Table => order(core, keys, Request::new(&FORCE_UNLOCK_TABLE, keys)),
        Locks::One => order(core, keys, Request::new(&FORCE_UNLOCK, keys)),
        Locks::Several(locks) => {
            let mut held = false;
            for keys in &locks {
                held |= force_unlock(core, keys)?;
            }
            Ok(held)
        }
    }
}

/// # Errors
///
/// As for `force_unlock`.
pub(crate) fn set_permits(core: &Arc<Core>, keys: &Keys, permits: u32) -> Result<()> {
    core.check_process()?;
    let request = Request::new(&SET_PERMITS, keys).number(u64::from(permits));
    order(core, keys, request).map(drop)
}

/// What is answered with 1 or 0, or refused.
fn order(core: &Core, keys: &Keys, request: Request) -> Result<bool> {
    let script = request.script;
    let mut reply = send(core, keys, &request)?;
    let address = &core.node.target.address;
    let failure = match reply.int() {
        Some(n @ 0..=1) => return Ok(n == 1),
        Some(code) => refusal(code, keys, &mut reply, script, address),
        None => misshapen(address, script),
    };
    Err(failure.error.for_lock(&keys.name))
}

fn call(core: &Core, keys: &Keys, script: &'static Script) -> Result<Reply> {
    send(core, keys, &Request::new(script, keys))
}

fn send(core: &Core, keys: &Keys, request: &Request) -> Result<Reply> {
    let limits = core.node.limits;
    let budget = Budget::new(limits.connect + limits.io);
    let answer = core.node.call(request, limits, budget);
    let answer = answer.map_err(|f| f.error.for_lock(&keys.name))?;
    let address = &core.node.target.address;
    let shape = || {
        misshapen(address, request.script)
            .error
            .for_lock(&keys.name)
    };
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
            // After a tab, where the holder hears of others.
            (true, true, _) => kind.split('\t').next().unwrap_or(kind).to_owned(),
            (true, false, true) => "resting".into(),
            (true, false, false) => "foreign".into(),
        },
        held,
        holder: ours.then(|| label.to_owned()),
        // Of one who holds it, not the last that he may hand on.
        token: number(if ours { MARK_TOKEN } else { LAST_TOKEN }).map(FencingToken::from),
        since: number(SINCE)
            .filter(|_| ours)
            .map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms)),
        ttl_left: u64::try_from(left).ok().map(Duration::from_millis),
        waiters: waiters(waiting, now_ms),
        readers: 0,
        permits: None,
    })
}

pub(super) fn waiters(list: &str, now_ms: u64) -> u64 {
    let heard = |w: &&str| {
        let last = w.split(',').nth(2).and_then(|ms| ms.parse::<u64>().ok());
        last.is_some_and(|ms| ms.saturating_add(SILENT_MS) >= now_ms)
    };
    list.split(';').filter(heard).count() as u64
}
