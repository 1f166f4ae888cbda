//! A script that runs inside the server, how a call of it is put on the wire, and how its reply is read.

use std::fmt;
use std::sync::LazyLock;

use redis::Value;

use crate::name::Keys;

/// A script: sent by its hash, and whole to a server that does not know it yet.
pub(crate) struct Script {
    /// What messages call it.
    pub(crate) name: &'static str,
    body: LazyLock<Body>,
}

pub(crate) struct Body {
    source: String,
    sha: String,
}

/// What scripts share. Inside a branch it costs nothing to calls that don't take it. Those that include others come first.
const SHARED: [(&str, &str); 5] = [
    (
        "--#include acquire.lua",
        include_str!("scripts/acquire.lua"),
    ),
    ("--#include enter.lua", include_str!("scripts/enter.lua")),
    ("--#include table.lua", include_str!("scripts/table.lua")),
    ("--#include layout.lua", include_str!("scripts/layout.lua")),
    ("--#include grant.lua", include_str!("scripts/grant.lua")),
];

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Script {
    #[cfg(test)]
    pub(crate) fn source(&self) -> &str {
        &self.body.source
    }

    pub(crate) const fn new(name: &'static str, body: fn() -> Body) -> Script {
        Script {
            name,
            body: LazyLock::new(body),
        }
    }
}

pub(crate) fn body(source: &str) -> Body {
    let include = |source: String, (mark, shared): &(&str, &str)| source.replace(mark, shared);
    let source = SHARED.iter().fold(source.to_owned(), include);
    let sha = redis::Script::new(&source).get_hash().to_owned();
    Body { source, sha }
}

/// One call of one script, as it goes on the wire but for the command and the script itself.
///
/// Written straight into one buffer: with the package's general `Cmd` packing took a fifth of the client's instructions.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) script: &'static Script,
    body: Vec<u8>,
    /// How many strings `body` has.
    parts: usize,
}

impl Request {
    /// A call with all keys of a lock.
    pub(crate) fn new(script: &'static Script, keys: &Keys) -> Request {
        let mut request = Request::empty(script, keys.count());
        keys.each(|key| request.push(key.as_bytes()));
        request
    }

    /// A call with its words only: a renewal touches nothing else.
    pub(crate) fn of_words(script: &'static Script, keys: &Keys) -> Request {
        let mut request = Request::empty(script, keys.words());
        keys.each_word(|key| request.push(key.as_bytes()));
        request
    }

    fn empty(script: &'static Script, keys: usize) -> Request {
        let mut request = Request {
            script,
            body: Vec::with_capacity(320),
            parts: 0,
        };
        request.push(itoa::Buffer::new().format(keys).as_bytes());
        request
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Request {
        self.push(arg.as_ref());
        self
    }

    pub(crate) fn number(self, n: u64) -> Request {
        self.arg(itoa::Buffer::new().format(n))
    }

    fn push(&mut self, part: &[u8]) {
        bulk(&mut self.body, part);
        self.parts += 1;
    }

    /// By its hash: what nearly every call is.
    pub(crate) fn pack(&self) -> Vec<u8> {
        self.pack_as("EVALSHA", &self.script.body.sha)
    }

    /// With its source, which the server then remembers.
    pub(crate) fn pack_with_source(&self) -> Vec<u8> {
        self.pack_as("EVAL", &self.script.body.source)
    }

    fn pack_as(&self, command: &str, script: &str) -> Vec<u8> {
        let mut packed = Vec::with_capacity(self.body.len() + script.len() + 48);
        packed.push(b'*');
        packed.extend_from_slice(itoa::Buffer::new().format(self.parts + 2).as_bytes());
        packed.extend_from_slice(b"\r\n");
        bulk(&mut packed, command.as_bytes());
        bulk(&mut packed, script.as_bytes());
        packed.extend_from_slice(&self.body);
        packed
    }
}

/// One bulk string of the Redis protocol.
fn bulk(out: &mut Vec<u8>, part: &[u8]) {
    let mut length = itoa::Buffer::new();
    let length = length.format(part.len()).as_bytes();
    out.reserve(part.len() + length.len() + 5);
    out.push(b'$');
    out.extend_from_slice(length);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(part);
    out.extend_from_slice(b"\r\n");
}

/// Reads a script's reply part by part; any other shape gives `None`, never a panic.
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn new(value: Value) -> Option<Reply> {
        match value {
            Value::Array(parts) => Some(Reply(parts.into_iter())),
            Value::Int(_) => Some(Reply(vec![value].into_iter())),
            _ => None,
        }
    }

    pub(crate) fn int(&mut self) -> Option<i64> {
        match self.0.next()? {
            Value::Int(n) => Some(n),
            _ => None,
        }
    }

    /// Bytes that a script gives as text.
    pub(crate) fn text(&mut self) -> Option<String> {
        match self.0.next()? {
            Value::BulkString(b) => Some(String::from_utf8_lossy(&b).into_owned()),
            Value::SimpleString(s) => Some(s),
            _ => None,
        }
    }

    /// Whatever comes next.
    pub(crate) fn value(&mut self) -> Option<Value> {
        self.0.next()
    }

    /// A number that a script gives as text, because it does not fit a Lua integer on every server.
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    /// Text, or nothing where the script gave `false`.
    pub(crate) fn maybe_text(&mut self) -> Option<Option<String>> {
        match self.0.next()? {
            Value::Nil => Some(None),
            Value::BulkString(b) => Some(Some(String::from_utf8_lossy(&b).into_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_io::scripts::ACQUIRE;

    #[test]
    fn a_request_is_packed_as_the_package_would_pack_it() {
        let keys = Keys::new("", "o:1".into()).unwrap();
        let request = Request::new(&ACQUIRE, &keys)
            .arg("tok\r\nen")
            .number(30_000)
            .arg("");
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&ACQUIRE.body.sha)
            .arg(2)
            .arg("o:1")
            .arg("{o:1}:lh:s");
        cmd.arg("tok\r\nen").arg(30_000).arg("");
        assert_eq!(request.pack(), cmd.get_packed_command());
    }
}
