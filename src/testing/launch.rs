//! One life of a server process, tied to ours.
//!
//! A process that is killed runs no destructors, and a child learns of its parent's death only by
//! a system call that needs unsafe code. So a shell stands between: it reads its standard input, a
//! pipe whose only other end is ours. Whatever ends us closes the pipe, and the shell kills the
//! server. It stands in a process group of its own, so that the terminal's Ctrl-C and Ctrl-Z reach
//! neither.
//!
//! The server for its part holds the other end of a socket of ours, so that we know of its end
//! at once and for certain, though it is not our child.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Arguments: the server's program and its arguments. Standard output: the server's pid, then
/// nothing. When standard input ends, the server is killed and the working directory removed.
///
/// A pid is free for others as soon as it is reaped, and shells differ in when they do that. So the
/// one that kills is not the one that reaps: it is ended when the server has been. The last line
/// meets the shell itself and, if the program was a script around the server, the server.
const KEEPER: &str = r#"
trap '' HUP INT QUIT TERM
dir=$PWD
exec 3<&0 </dev/null
"$@" 3<&- 9>&1 >&2 &
server=$!
echo "$server"
exec >/dev/null
(
    while read -r _; do :; done <&3
    kill -KILL "$server"
) &
killer=$!
wait "$server"
kill -KILL "$killer"
while read -r _; do :; done <&3
cd / && command -p rm -rf -- "$dir"
kill -KILL 0
"#;

const END_BOUND: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Process {
    keeper: Child,
    /// Closed to make the keeper kill the server.
    leash: Option<ChildStdin>,
    /// At its end when the server is gone.
    lifeline: UnixStream,
    pid: Pid,
    gone: bool,
}

impl Process {
    /// Starts the program in the folder `dir`, with its output going to `log`.
    pub(super) fn start(
        program: &Path,
        args: &[OsString],
        dir: &Path,
        log: File,
    ) -> io::Result<Process> {
        let (lifeline, theirs) = UnixStream::pair()?;
        lifeline.set_read_timeout(Some(END_BOUND))?;
        let mut keeper = Command::new("/bin/sh")
            .args(["-c", KEEPER, "leasehold-server"])
            .arg(program)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(OwnedFd::from(theirs))
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let leash = keeper.stdin.take();
        match read_pid(&lifeline) {
            Ok(pid) => Ok(Process {
                keeper,
                leash,
                lifeline,
                pid,
                gone: false,
            }),
            Err(error) => {
                drop(leash);
                let _ = keeper.kill().and_then(|()| keeper.wait());
                Err(error)
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits for the server's end, at most this long.
    pub(super) fn is_gone(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while !self.gone {
            // Zero would mean no timeout.
            let left = deadline
                .saturating_duration_since(Instant::now())
                .max(Duration::from_micros(100));
            if self.lifeline.set_read_timeout(Some(left)).is_err() {
                break;
            }
            match (&self.lifeline).read(&mut [0]) {
                Ok(0) => self.gone = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.gone = true,
                Err(_) if Instant::now() >= deadline => break,
                Err(_) => {}
            }
        }
        self.gone
    }

    pub(super) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // The shell may have reaped a server that ended by itself: then its pid is free for others.
        if self.is_gone(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the server has ended",
            ));
        }
        kill_process(self.pid, signal).map_err(io::Error::from)
    }

    /// Kills the server and waits until it is gone, even if it is stopped. Its folder goes, too.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.leash = None;
        let deadline = Instant::now() + END_BOUND;
        while self.keeper.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the server does not end",
                ));
            }
            sleep(Duration::from_micros(500));
        }
        // A shell that somebody else has killed leaves the work to us.
        if !self.is_gone(END_BOUND) {
            self.signal(Signal::KILL)?;
            self.is_gone(END_BOUND);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn read_pid(mut lifeline: &UnixStream) -> io::Result<Pid> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        lifeline.read_exact(&mut byte)?;
        line.extend(byte);
    }
    let pid = String::from_utf8_lossy(&line)
        .trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no pid from the shell"))
}
