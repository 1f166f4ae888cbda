//! The server under test: one connection for the calls, one for the messages.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold::testing::Server;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::{Connection, PubSub, Value};

use crate::support::scripts::source;
use crate::support::wait::{raw, was_interrupted};

/// How far two looks at the clock may be apart: the longest that a case may take (ms). One that takes longer, because the
/// machine is busy elsewhere, ends early. All leases are longer by far, and time passes in steps that end beside them.
pub(super) const SLOP: i64 = 1400;

/// Reads keys of any type.
const LOOK: &str = "
local out = {}
for _, key in ipairs(KEYS) do
  local kind, value = redis.call('TYPE', key).ok, ''
  if kind == 'string' then value = redis.call('GET', key) end
  if kind == 'hash' then value = table.concat(redis.call('HGETALL', key), '\\1') end
  if kind == 'list' then value = table.concat(redis.call('LRANGE', key, 0, -1), '\\1') end
  out[#out + 1] = {kind, redis.call('PTTL', key), value}
end
return {redis.call('DBSIZE'), out}";

/// Makes time pass: everything ends so much sooner.
const PASS: &str = "
local by = tonumber(ARGV[1])
local function less(n) return string.format('%.0f', math.max(0, n - by)) end
local function waiters(s)
  local head, rest = string.match(s, '^(1.*\\n.*\\n.*\\n)([^\\n]*)$')
  if not head then return s end
  return head .. string.gsub(rest, '(%x+),(%d%d%d%d%d%d%d%d%d%d%d%d%d),(%d%d%d%d%d%d%d%d%d%d%d%d%d),', function(t, a, b) return t .. ',' .. less(a) .. ',' .. less(b) .. ',' end)
end
for _, key in ipairs(KEYS) do
  local kind, left = redis.call('TYPE', key).ok, redis.call('PTTL', key)
  if kind == 'string' then redis.call('SET', key, waiters(redis.call('GET', key)), 'KEEPTTL') end
  if kind == 'hash' then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      local field, value = all[i], all[i + 1]
      if field == 's' then value = waiters(value) end
      if field == 'x' then
        value = string.gsub(value, '^(%d+),(%d+),(%d+)', function(u, e, x)
          return u .. ',' .. (e == '9999999999999' and e or less(e)) .. ',' .. less(x) end)
      end
      if string.sub(field, 1, 1) == 'h' then value = string.gsub(value, '^%d+', less) end
      redis.call('HSET', key, field, value)
    end
  end
  if left >= 0 then redis.call('PEXPIRE', key, left - by) end
end
return 'OK'";

/// One key as it is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) kind: String,
    pub(super) left: i64,
    pub(super) value: String,
}

/// What one call did.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) reply: Value,
    pub(super) keys: Vec<Key>,
    /// How many there are in all.
    pub(super) size: i64,
    /// Inbox and text.
    pub(super) messages: Vec<(String, String)>,
    /// Before and after (µs).
    pub(super) from: i64,
    pub(super) to: i64,
}

pub(super) struct World<'a> {
    connection: Connection,
    inboxes: PubSub<'a>,
    /// Who listens.
    pub(super) listening: BTreeSet<String>,
    shas: BTreeMap<&'static str, String>,
    look: String,
    pub(super) keys: Vec<String>,
    /// How often each script had each outcome.
    outcomes: BTreeMap<String, u32>,
}

/// Runs `case` for so many lists of operations (or `PROPTEST_CASES`), and shows the shortest one that fails. Each of
/// `outcomes` must have come up.
pub(super) fn check<Op: Debug + Clone>(
    cases: u32,
    ops: impl Strategy<Value = Vec<Op>>,
    keys: &[&str],
    outcomes: &[&str],
    case: impl Fn(&mut World<'_>, &[Op]) -> Result<bool, String>,
) {
    let server = Server::start().unwrap();
    let mut listener = raw(&server.url());
    let mut inboxes = listener.as_pubsub();
    undisturbed(|| inboxes.subscribe("sync"));
    let mut world = World {
        connection: raw(&server.url()),
        inboxes,
        listening: BTreeSet::new(),
        shas: BTreeMap::new(),
        look: String::new(),
        outcomes: BTreeMap::new(),
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
    };
    world.look = world.load(LOOK);
    let world = RefCell::new(world);
    let ended_early = RefCell::new(0);
    let cases = std::env::var("PROPTEST_CASES").map_or(cases, |n| n.parse().unwrap());
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..Config::default()
    });
    let outcome = runner.run(&ops, |ops| {
        let mut world = world.borrow_mut();
        world.send(&redis::cmd("FLUSHALL"));
        let run = catch_unwind(AssertUnwindSafe(|| case(&mut world, &ops)));
        match run {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => {
                *ended_early.borrow_mut() += 1;
                Ok(())
            }
            Ok(Err(what)) => Err(TestCaseError::fail(what)),
            Err(_) => Err(TestCaseError::fail("a panic, see above")),
        }
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let ended_early = ended_early.into_inner();
    assert!(
        ended_early * 2 < cases,
        "too slow here: {ended_early} of {cases} cases ended early"
    );
    let seen = &world.borrow().outcomes;
    let missing = outcomes
        .iter()
        .find(|outcome| !seen.contains_key(**outcome));
    assert!(missing.is_none(), "never {missing:?}: {seen:#?}");
}

impl World<'_> {
    fn load(&mut self, source: &str) -> String {
        let reply = self.send(redis::cmd("SCRIPT").arg("LOAD").arg(source));
        text(&reply)
    }

    pub(super) fn send(&mut self, command: &redis::Cmd) -> Value {
        self.connection
            .send_packed_command(&command.get_packed_command())
            .unwrap();
        self.receive()
    }

    fn receive(&mut self) -> Value {
        loop {
            match self.connection.recv_response() {
                Ok(value) => return value,
                Err(error) if was_interrupted(&error) => {}
                Err(error) => return Value::SimpleString(format!("error {error}")),
            }
        }
    }

    pub(super) fn listen(&mut self, inbox: &str, on: bool) {
        let channel = format!("leasehold:inbox:{inbox}");
        if on && self.listening.insert(inbox.to_owned()) {
            undisturbed(|| self.inboxes.subscribe(&channel));
        } else if !on && self.listening.remove(inbox) {
            undisturbed(|| self.inboxes.unsubscribe(&channel));
        }
    }

    pub(super) fn now(&mut self) -> i64 {
        time(&self.send(&redis::cmd("TIME"))) / 1000
    }

    /// Calls a script of ours.
    pub(super) fn call(&mut self, script: &'static str, keys: &[&str], args: &[String]) -> Seen {
        if !self.shas.contains_key(script) {
            let sha = self.load(source(script));
            self.shas.insert(script, sha);
        }
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&self.shas[script])
            .arg(keys.len())
            .arg(keys)
            .arg(args);
        let seen = self.run(&command);
        let outcome = match &seen.reply {
            Value::BulkString(_) => "granted".to_owned(),
            Value::Int(n) => n.to_string(),
            Value::Array(parts) => match parts.first() {
                Some(Value::Int(n)) => n.to_string(),
                _ => "seen".into(),
            },
            _ => "error".into(),
        };
        for what in [outcome, format!("messages: {}", seen.messages.len())] {
            *self.outcomes.entry(format!("{script} {what}")).or_default() += 1;
        }
        seen
    }

    pub(super) fn pass(&mut self, ms: i64) -> Seen {
        let mut command = redis::cmd("EVAL");
        command
            .arg(PASS)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(ms);
        self.run(&command)
    }

    /// One command, and what the world looks like after it.
    pub(super) fn run(&mut self, command: &redis::Cmd) -> Seen {
        let mut look = redis::cmd("EVALSHA");
        look.arg(&self.look).arg(self.keys.len()).arg(&self.keys);
        let mut sync = redis::cmd("PUBLISH");
        sync.arg("sync").arg("");
        let time_now = redis::cmd("TIME");
        let mut packed = Vec::new();
        for command in [&time_now, command, &look, &sync, &time_now] {
            packed.extend(command.get_packed_command());
        }
        self.connection.send_packed_command(&packed).unwrap();
        let from = time(&self.receive());
        let reply = self.receive();
        let look = parts(self.receive());
        self.receive();
        let to = time(&self.receive());
        let mut messages = Vec::new();
        loop {
            let message = undisturbed(|| self.inboxes.get_message());
            let channel = message.get_channel_name().to_owned();
            let Some(inbox) = channel.strip_prefix("leasehold:inbox:") else {
                break;
            };
            messages.push((inbox.to_owned(), message.get_payload().unwrap()));
        }
        let keys = parts(look[1].clone()).into_iter().map(|key| {
            let key = parts(key);
            Key {
                kind: text(&key[0]),
                left: number(&key[1]),
                value: text(&key[2]),
            }
        });
        Seen {
            reply,
            size: number(&look[0]),
            keys: keys.collect(),
            messages,
            from,
            to,
        }
    }
}

/// Once more if a signal ended a read.
fn undisturbed<T>(mut ask: impl FnMut() -> redis::RedisResult<T>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if was_interrupted(&error) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) fn parts(value: Value) -> Vec<Value> {
    match value {
        Value::Array(parts) => parts,
        other => panic!("no list: {other:?}"),
    }
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

pub(super) fn number(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        other => panic!("no number: {other:?}"),
    }
}

/// Of a TIME reply (µs).
fn time(value: &Value) -> i64 {
    let parts = parts(value.clone());
    let part = |i: usize| text(&parts[i]).parse::<i64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

/// A token that looks like a random one, and is the same in every run.
pub(super) fn token(n: u64) -> String {
    let mixed = |n: u64| {
        let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    };
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:016x}{:016x}", mixed(n), mixed(!n))
}
