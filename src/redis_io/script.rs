//! The scripts that run inside the server, and how one call of one of them is put on the wire.

use std::sync::{Arc, LazyLock};

use redis::Value;

/// A script: sent by its hash, and whole to a server that does not know it yet.
pub(crate) struct Script {
    /// What messages call it.
    pub(crate) name: &'static str,
    body: LazyLock<Body>,
}

struct Body {
    source: String,
    sha: String,
}

/// Where a script wants the functions that scripts share. Inside a branch they cost nothing to calls that don't take it.
const INCLUDE: &str = "--#include layout.lua";
const LAYOUT: &str = include_str!("scripts/layout.lua");

impl Script {
    const fn new(name: &'static str, body: fn() -> Body) -> Script {
        Script {
            name,
            body: LazyLock::new(body),
        }
    }
}

fn body(source: &str) -> Body {
    let source = source.replace(INCLUDE, LAYOUT);
    let sha = redis::Script::new(&source).get_hash().to_owned();
    Body { source, sha }
}

macro_rules! script {
    ($(#[$doc:meta])* $ident:ident, $name:literal) => {
        $(#[$doc])*
        pub(crate) static $ident: Script =
            Script::new($name, || body(include_str!(concat!("scripts/", $name, ".lua"))));
    };
}

script!(
    /// Takes the word, or registers a waiter.
    ACQUIRE, "acquire"
);
script!(
    /// Re-arms the word's ttl if it is ours.
    RENEW, "renew"
);
script!(
    /// Gives the word back and wakes one waiter.
    RELEASE, "release"
);
script!(
    /// Ends a wait: takes the ticket out, and undoes a grant that was never delivered.
    LEAVE, "leave"
);
script!(
    /// Reads all there is to know of a lock.
    INSPECT, "inspect"
);
script!(
    /// Takes the word away from whoever holds it.
    FORCE_UNLOCK, "force_unlock"
);

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
    pub(crate) fn new(script: &'static Script, keys: &[&Arc<str>]) -> Request {
        let mut request = Request {
            script,
            body: Vec::with_capacity(320),
            parts: 0,
        };
        request.push(itoa::Buffer::new().format(keys.len()).as_bytes());
        for key in keys {
            request.push(key.as_bytes());
        }
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

    #[test]
    fn a_request_is_packed_as_the_package_would_pack_it() {
        let (word, state): (Arc<str>, Arc<str>) = ("o:1".into(), "{o:1}:lh:s".into());
        let request = Request::new(&ACQUIRE, &[&word, &state])
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

    #[test]
    fn every_script_has_the_shared_functions_where_it_wants_them() {
        for script in [&ACQUIRE, &RENEW, &RELEASE, &LEAVE, &INSPECT, &FORCE_UNLOCK] {
            assert!(!script.body.source.contains("#include"), "{}", script.name);
        }
    }
}
