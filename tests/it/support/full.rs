//! A server that is out of memory.

use redis::Connection;

use super::ask::{ask, try_ask};

/// What such a server is started with.
pub(crate) const SMALL: [&str; 4] = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"];

/// Until not even a byte fits.
pub(crate) fn fill(raw: &mut Connection) {
    let mut n = 0;
    let mut size = 1 << 20;
    while size > 0 {
        n += 1;
        let command = format!("SET filler-{n} {}", "x".repeat(size));
        match try_ask::<()>(raw, &command) {
            Ok(()) => {}
            Err(e) if e.code() == Some("OOM") => size /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    // Of what the server frees in between (a connection's buffer, say) nothing must become room again.
    ask::<()>(raw, "CONFIG SET maxmemory 1mb");
}

pub(crate) fn make_room(raw: &mut Connection) {
    ask::<()>(raw, "CONFIG SET maxmemory 0");
}
