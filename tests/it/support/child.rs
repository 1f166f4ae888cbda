//! Other processes, to be stopped and killed: this test binary once more, in a role.
//!
//! A role is a function in the table [`roles`](crate::roles). It runs inside a test of the child's
//! harness, and talks with its parent in lines: [`say`] and [`hear`] here, [`Child::expect_line`] and
//! [`Child::send_line`] there. A role whose parent is gone ends.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "LEASEHOLD_ROLE";
const ARGS: &str = "LEASEHOLD_ROLE_ARGS";
/// Unlikely in an argument, possible in an environment variable.
const SEPARATOR: char = '\u{1f}';
const MARK: &str = "@@ ";
const END_BOUND: Duration = Duration::from_secs(5);

// ---- in the child -------------------------------------------------------------------------------

/// Where a child starts. In the parent it is a test that has nothing to do.
#[test]
fn role_entry() {
    let Ok(name) = env::var(ROLE) else {
        return;
    };
    let role = crate::roles().find(|(role, _)| *role == name);
    let (_, play) = role.unwrap_or_else(|| panic!("no role {name}"));
    heard();
    play();
}

/// What [`Builder::arg`] gave.
pub(crate) fn args() -> Vec<String> {
    let args = env::var(ARGS).unwrap_or_default();
    args.split(SEPARATOR).skip(1).map(str::to_owned).collect()
}

/// To the parent's [`Child::expect_line`].
pub(crate) fn say(text: impl AsRef<str>) {
    // The harness may have begun a line of its own.
    let line = format!("\n{MARK}{}\n", text.as_ref());
    let mut out = io::stdout().lock();
    let said = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    said.expect("the parent listens");
}

/// The next of the parent's [`Child::send_line`]s; panics if there is none in time.
pub(crate) fn hear(timeout: Duration) -> String {
    heard()
        .recv_timeout(timeout)
        .expect("a line from the parent")
}

fn heard() -> &'static Receiver<String> {
    static HEARD: OnceLock<Receiver<String>> = OnceLock::new();
    HEARD.get_or_init(|| {
        let (sender, receiver) = unbounded();
        let listen = move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
            // The parent has ended, and nobody else would end us.
            std::process::exit(1);
        };
        thread::Builder::new()
            .name("role-stdin".into())
            .spawn(listen)
            .expect("a thread");
        receiver
    })
}

// ---- in the parent ------------------------------------------------------------------------------

/// Killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Child {
    role: String,
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All that it printed, for messages.
    printed: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
}

#[derive(Debug)]
pub(crate) struct Builder {
    role: String,
    args: String,
    command: Command,
}

impl Builder {
    pub(crate) fn arg(mut self, arg: impl ToString) -> Builder {
        self.args.push(SEPARATOR);
        self.args += &arg.to_string();
        self
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Builder {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: impl AsRef<OsStr>) -> Builder {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn spawn(mut self) -> Child {
        let spawned = self.command.env(ARGS, &self.args).spawn();
        let mut process = spawned.unwrap_or_else(|error| panic!("role {}: {error}", self.role));
        let (sender, lines) = unbounded();
        let printed = collect(process.stdout.take(), move |line| {
            if let Some(said) = line.strip_prefix(MARK) {
                let _ = sender.send(said.to_owned());
            }
        });
        let stderr = collect(process.stderr.take(), |_| ());
        Child {
            role: self.role,
            stdin: process.stdin.take(),
            process,
            lines,
            printed,
            stderr,
        }
    }
}

impl Child {
    /// A process that will play this role.
    pub(crate) fn role(name: &str) -> Builder {
        let this = env::current_exe().expect("the path of this program");
        let mut command = Command::new(this);
        // Where the module stands in the crate is part of a test's name, but the crate's name is not.
        let path = module_path!().split_once("::").map_or("", |(_, path)| path);
        command
            .args([
                "--exact",
                &format!("{path}::role_entry"),
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Builder {
            role: name.to_owned(),
            args: String::new(),
            command,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line that it says; panics if none comes in time, or if it ends.
    #[track_caller]
    pub(crate) fn expect_line(&self, timeout: Duration) -> String {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => line,
            Err(error) => self.fail(&missing("a line", timeout, error)),
        }
    }

    /// Its lines up to the one that is `text`; panics if that does not come in time.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        loop {
            match self.lines.recv_deadline(deadline) {
                Ok(line) if line == text => return,
                Ok(_) => {}
                Err(error) => self.fail(&missing(text, timeout, error)),
            }
        }
    }

    /// The next line if one is there or comes in time.
    pub(crate) fn try_line(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    #[track_caller]
    pub(crate) fn send_line(&mut self, line: impl AsRef<str>) {
        let line = format!("{}\n", line.as_ref());
        let stdin = self.stdin.as_mut().expect("its standard input is open");
        if let Err(error) = stdin.write_all(line.as_bytes()) {
            self.fail(&format!("does not listen: {error}"));
        }
    }

    /// What it has printed on standard error so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().clone()
    }

    /// `SIGSTOP`; when it returns, the process has stopped (on Linux, else: will have within moments).
    #[track_caller]
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.pid());
        super::wait::eventually(
            END_BOUND,
            "the child stops",
            || match std::fs::read_to_string(&stat) {
                Ok(stat) => stat
                    .rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z'])),
                Err(_) => true,
            },
        );
    }

    /// `SIGCONT`.
    #[track_caller]
    pub(crate) fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Any other signal. (Not reaped yet, it still has its pid.)
    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a pid");
        if let Err(error) = kill_process(pid, signal) {
            self.fail(&format!("cannot be signalled: {error}"));
        }
    }

    /// `SIGKILL`; when it returns, the process is gone.
    pub(crate) fn kill(&mut self) -> ExitStatus {
        self.process.kill().expect("a child may be killed");
        self.process.wait().expect("a child may be reaped")
    }

    /// Its exit status, if it ends by itself in time.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.process.try_wait().expect("a child may be reaped");
            if status.is_some() || Instant::now() >= deadline {
                return status;
            }
            sleep(Duration::from_millis(2));
        }
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!(
            "role {}: {what}\nstdout: {}\nstderr: {}",
            self.role,
            self.printed.lock(),
            self.stderr.lock()
        );
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

fn missing(what: &str, timeout: Duration, error: RecvTimeoutError) -> String {
    match error {
        RecvTimeoutError::Timeout => format!("no {what:?} within {timeout:?}"),
        RecvTimeoutError::Disconnected => format!("ended before {what:?}"),
    }
}

/// A thread that reads to the end, so that the child never blocks on a full pipe.
fn collect(
    pipe: Option<impl Read + Send + 'static>,
    mut each: impl FnMut(&str) + Send + 'static,
) -> Arc<Mutex<String>> {
    let all = Arc::new(Mutex::new(String::new()));
    let collected = Arc::clone(&all);
    let pipe = BufReader::new(pipe.expect("a piped stream"));
    let read = move || {
        for line in pipe.lines().map_while(Result::ok) {
            *collected.lock() += &format!("{line}\n");
            each(&line);
        }
    };
    thread::Builder::new()
        .name("child-output".into())
        .spawn(read)
        .expect("a thread");
    all
}
