//! The server as a test sees it: a port, a life, faults on purpose.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;

use super::find::server_program;
use super::launch::Process;
use super::port::Port;
use super::start::{Failed, Folder, launch};
use super::unavailable;
use crate::Result;

const STATE_BOUND: Duration = Duration::from_secs(5);
const PORT_ATTEMPTS: u32 = 10;

/// A real Redis or Valkey server of its own: on `127.0.0.1` and a free port, without persistence.
///
/// It ends when this value is dropped, and also when the process that started it ends in any
/// other way, be it by `SIGKILL`. So does its folder in the temp directory (its working directory,
/// log and unix socket). Ctrl-C and Ctrl-Z in a terminal do not reach the server itself. A child
/// made by `fork` without `exec` shares the server's life: it ends with the last of them.
///
/// The type is `Sync`, and all its methods take `&self`: one thread may pause the server while
/// others use it.
///
/// See the [module](super) for where the program comes from.
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let server = leasehold::testing::Server::start_with(["--maxmemory", "3mb"])?;
/// server.pause()?; // Now it is silent, as behind a broken network.
/// server.resume()?;
/// server.restart()?; // It has forgotten everything.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    port: Port,
    program: PathBuf,
    args: Vec<OsString>,
    life: Mutex<Life>,
    folder: Folder,
}

#[derive(Debug)]
struct Life {
    /// `None` after a kill.
    process: Option<Process>,
    pid: u32,
}

impl Server {
    /// Starts a server and waits until it answers, usually some 40 ms, at most 10 s.
    ///
    /// The first call on a machine without a server fetches one, which takes seconds
    /// and at most two minutes.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no server to be had (the message names the three ways to get one),
    /// or if it does not start (the message has its log).
    pub fn start() -> Result<Server> {
        Server::start_with::<_, &str>([])
    }

    /// [`start`](Self::start), with more arguments: `["--maxmemory", "3mb"]`, say.
    ///
    /// Every setting of a configuration file can stand here, with two dashes before its name. Leave
    /// `port`, `bind`, `unixsocket`, `daemonize` and `logfile` to this type.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with<I, S>(args: I) -> Result<Server>
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        let program = server_program()?;
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let folder = Folder::unused();
        let mut attempt = 1;
        loop {
            let port = Port::reserve()?;
            match launch(&program, port.number(), &args, &folder) {
                Ok(process) => {
                    let life = Mutex::new(Life {
                        pid: process.pid(),
                        process: Some(process),
                    });
                    return Ok(Server {
                        port,
                        program,
                        args,
                        life,
                        folder,
                    });
                }
                Err(Failed::PortTaken(_)) if attempt < PORT_ATTEMPTS => attempt += 1,
                Err(failed) => return Err(failed.into()),
            }
        }
    }

    /// Where clients connect: `redis://127.0.0.1:PORT/`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port.number())
    }

    /// The TCP port on `127.0.0.1`, the same over [`restart`](Self::restart)s.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The server's process id; after a [`kill`](Self::kill) that of its last life.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.life.lock().pid
    }

    /// The path of the unix socket on which it listens, too: below 100 bytes, the same over
    /// [`restart`](Self::restart)s. `None` after a [`kill`](Self::kill).
    #[must_use]
    pub fn unix_socket(&self) -> Option<PathBuf> {
        let path = self.folder.socket();
        path.exists().then_some(path)
    }

    /// Stops the process where it stands (`SIGSTOP`): connections stay open, nothing is answered.
    /// [`resume`](Self::resume) undoes it.
    ///
    /// When this returns, the server has stopped. (On systems other than Linux: will have within
    /// moments.)
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has ended or does not stop within 5 s.
    pub fn pause(&self) -> Result<()> {
        let mut life = self.life.lock();
        signal(&mut life, Signal::STOP)?;
        let deadline = Instant::now() + STATE_BOUND;
        while !is_stopped(life.pid) {
            if Instant::now() >= deadline {
                return Err(unavailable(format!("server {} does not stop", life.pid)));
            }
            sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    /// Lets a [`pause`](Self::pause)d process go on (`SIGCONT`). No harm if it was not paused.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has ended.
    pub fn resume(&self) -> Result<()> {
        signal(&mut self.life.lock(), Signal::CONT)
    }

    /// Ends the process as a crash would (`SIGKILL`), paused or not, and returns when it is gone:
    /// clients see their connections closed, and new ones are refused. No harm if it is gone already.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it is not gone within 5 s.
    pub fn kill(&self) -> Result<()> {
        self.kill_life(&mut self.life.lock())
    }

    /// Starts the server again, on the same port, with the same arguments and without its data,
    /// after a [`kill`](Self::kill) if need be; waits until it answers, at most 10 s.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server does not end or does not start, or if another program has taken
    /// its port in the meantime and keeps it for 5 s.
    pub fn restart(&self) -> Result<()> {
        let mut life = self.life.lock();
        self.kill_life(&mut life)?;
        let deadline = Instant::now() + STATE_BOUND;
        let process = loop {
            match launch(&self.program, self.port.number(), &self.args, &self.folder) {
                Ok(process) => break process,
                // Any test may probe the port for an instant in search of one for itself.
                Err(Failed::PortTaken(_)) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(5))
                }
                Err(failed) => return Err(failed.into()),
            }
        };
        life.pid = process.pid();
        life.process = Some(process);
        Ok(())
    }

    fn kill_life(&self, life: &mut Life) -> Result<()> {
        if let Some(process) = &mut life.process {
            process
                .end()
                .map_err(|error| unavailable(format!("server {}: {error}", life.pid)))?;
            life.process = None;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn signal(life: &mut Life, signal: Signal) -> Result<()> {
    let sent = match &mut life.process {
        Some(process) => process.signal(signal),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "it was killed")),
    };
    sent.map_err(|error| unavailable(format!("cannot signal server {}: {error}", life.pid)))
}

/// A signal is sent at once and acted upon a little later.
fn is_stopped(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state stands behind the program's name, which is in parentheses.
        Ok(stat) => stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('T')),
        Err(_) => true,
    }
}
