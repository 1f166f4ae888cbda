//! What a table of leases tells: see `table.lua`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use redis::Value;

use crate::fencing::FencingToken;
use crate::name::Keys;
use crate::observe::inspect::{LAST_TOKEN, LockInfo, TEXTS, is_readable, waiters};
use crate::redis_io::script::Reply;

/// One lease: its end, weight, since when (ms), and its label.
struct Lease<'a> {
    ends: u64,
    weight: u32,
    since: u64,
    token: u64,
    label: &'a str,
}

/// Of a read-write lock, or of a semaphore that has `limit` permits as far as its handle knows.
pub(super) fn read(keys: &Keys, mut reply: Reply, limit: Option<u32>) -> Option<LockInfo> {
    let kind_of_key = reply.text()?;
    let now = reply.number()?;
    let fields = fields(reply.value()?)?;
    let state = fields.get("s").filter(|s| is_readable(s));
    let state = state.map_or("", String::as_str);
    let extra: Vec<&str> = fields.get("x").map_or(vec![], |x| x.split(',').collect());
    let mut leases: Vec<Lease<'_>> = fields
        .iter()
        .filter(|(field, _)| field.starts_with('h'))
        .filter_map(|(_, lease)| parse(lease))
        .filter(|lease| lease.ends > now)
        .collect();
    leases.sort_by_key(|lease| lease.since);
    let first = leases.first();
    let is_ours = kind_of_key == "none" || !state.is_empty();
    let used = leases.iter().map(|l| l.weight).sum::<u32>();
    let stored = extra.get(3).and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    let limit = limit.map(|known| stored.unwrap_or(known));
    let writes = limit.is_none() && extra.get(4) == Some(&"w");
    let named = |label: &str| (!label.is_empty()).then(|| label.to_owned());
    let last = state.get(LAST_TOKEN).and_then(|t| t.parse::<u64>().ok());
    let text = state.get(TEXTS..).unwrap_or("");
    let ends = leases.iter().map(|lease| lease.ends).max();
    Some(LockInfo {
        name: keys.name.to_string(),
        kind: match (is_ours, first, limit) {
            (false, ..) => "foreign".into(),
            (true, None, _) => "free".into(),
            (true, Some(_), Some(_)) => "semaphore".into(),
            (true, Some(_), None) => "rw lock".into(),
        },
        held: first.is_some() || !is_ours,
        holder: first.and_then(|lease| named(lease.label)),
        token: first
            .map(|lease| lease.token)
            .filter(|&token| token > 0)
            .or(last.filter(|&token| token > 0))
            .map(FencingToken::from),
        since: first.map(|l| SystemTime::UNIX_EPOCH + Duration::from_millis(l.since)),
        ttl_left: ends.map(|ends| Duration::from_millis(ends - now)),
        waiters: waiters(text.splitn(4, '\n').nth(3).unwrap_or(""), now),
        readers: if writes || limit.is_some() {
            0
        } else {
            leases.len() as u64
        },
        permits: limit.map(|limit| (limit.saturating_sub(used), limit)),
    })
}

fn fields(value: Value) -> Option<HashMap<String, String>> {
    let pairs = match value {
        Value::Array(pairs) => pairs,
        _ => return None,
    };
    let mut texts = pairs.into_iter().map(|value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        _ => None,
    });
    let mut fields = HashMap::new();
    while let Some(field) = texts.next() {
        fields.insert(field?, texts.next()??);
    }
    Some(fields)
}

fn parse(lease: &str) -> Option<Lease<'_>> {
    let mut parts = lease.splitn(5, ',');
    Some(Lease {
        ends: parts.next()?.parse().ok()?,
        weight: parts.next()?.parse().ok()?,
        since: parts.next()?.parse().ok()?,
        token: parts.next()?.parse().ok()?,
        label: parts.next()?,
    })
}
