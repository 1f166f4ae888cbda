//! Ports that no other test gets while this one still counts on them.

use std::collections::hash_map::RandomState;
use std::env;
use std::fs::{self, OpenOptions};
use std::hash::BuildHasher;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, test_kill_process};

use super::unavailable;
use crate::Result;

/// Below those that systems give to outgoing connections: a client that dials a dead port again and again could be given
/// that very port, and connect to itself. With 10,000 added, a cluster's bus still fits.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// A claim of a process that is gone is taken away after so long, when nobody can be about to do the same.
const STALE: Duration = Duration::from_secs(600);

/// For so long a port that was given back is not given out again by this process: what a client of the server that was there
/// still tries in the background would reach the next one.
const RESTS: Duration = Duration::from_secs(90);

static GIVEN_BACK: Mutex<Vec<(u16, Instant)>> = Mutex::new(Vec::new());

/// A free TCP port on `127.0.0.1`, reserved until this value is dropped among all processes that use this type.
///
/// A server that is killed leaves its port to whoever comes next. A client that goes on dialling it would then talk to
/// another test's server, and be answered. For the same reason this process does not get a port again for 90 s after it was
/// given back. [`Server`](super::Server) reserves its port for its whole life, over kills and restarts.
#[derive(Debug)]
pub struct Port {
    number: u16,
    claim: PathBuf,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Errors
    ///
    /// `Unavailable` if none is found among a few hundred.
    ///
    /// # Examples
    ///
    /// ```
    /// let port = leasehold::testing::Port::reserve()?;
    /// let listener = std::net::TcpListener::bind(("127.0.0.1", port.number())).expect("it is free");
    /// # drop(listener); Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reserve() -> Result<Port> {
        let span = u64::from(PORTS.end - PORTS.start);
        // Every hasher of this kind has keys of its own: the standard library's source of randomness.
        let random = RandomState::new();
        (0..400_u32)
            .map(|attempt| PORTS.start + (random.hash_one(attempt) % span) as u16)
            .find_map(Port::claim)
            .ok_or_else(|| unavailable(format!("no free port among {PORTS:?}")))
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn claim(number: u16) -> Option<Port> {
        if rests(number) {
            return None;
        }
        let claim = env::temp_dir().join(format!("leasehold-port-{number}"));
        let file = OpenOptions::new().write(true).create_new(true).open(&claim);
        let Ok(mut file) = file else {
            remove_if_stale(&claim);
            return None;
        };
        let port = Port { number, claim };
        let noted = write!(file, "{}", std::process::id());
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, number));
        (noted.is_ok() && free.is_ok()).then_some(port)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        GIVEN_BACK.lock().push((self.number, Instant::now()));
        let _ = fs::remove_file(&self.claim);
    }
}

fn rests(number: u16) -> bool {
    let mut given_back = GIVEN_BACK.lock();
    given_back.retain(|(_, at)| at.elapsed() < RESTS);
    given_back.iter().any(|(resting, _)| *resting == number)
}

/// Not taken over, only taken away, for the next one who wants it.
fn remove_if_stale(claim: &Path) {
    let age = fs::metadata(claim)
        .and_then(|m| m.modified())
        .ok()
        .and_then(|at| at.elapsed().ok());
    let owner = fs::read_to_string(claim)
        .ok()
        .and_then(|pid| pid.parse().ok())
        .and_then(Pid::from_raw);
    let gone = owner.is_none_or(|pid| test_kill_process(pid).is_err());
    if gone && age.is_some_and(|age| age > STALE) {
        let _ = fs::remove_file(claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_was_given_back_is_not_given_out_again_at_once() {
        let number = Port::reserve().unwrap().number();
        assert!(Port::claim(number).is_none());
    }
}
