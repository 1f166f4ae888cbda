//! From a program to a server that answers, in a folder and at a port of its own.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::launch::Process;
use super::unavailable;
use crate::Result;

const READY_BOUND: Duration = Duration::from_secs(10);
const SOCKET: &str = "s";
const LOG: &str = "log";

#[derive(Debug)]
pub(super) enum Failed {
    PortTaken(String),
    Otherwise(String),
}

impl From<Failed> for crate::Error {
    fn from(failed: Failed) -> Self {
        let (Failed::PortTaken(message) | Failed::Otherwise(message)) = failed;
        unavailable(message)
    }
}

/// Returns when the server answers.
pub(super) fn launch(
    program: &Path,
    port: u16,
    args: &[OsString],
    folder: &Folder,
) -> Result<Process, Failed> {
    let log = folder.0.join(LOG);
    let mut all: Vec<OsString> = [
        "--bind",
        "127.0.0.1",
        "--daemonize",
        "no",
        "--appendonly",
        "no",
        "--save",
        "",
    ]
    .map(OsString::from)
    .into();
    all.extend(["--port".into(), port.to_string().into()]);
    all.extend(["--unixsocket".into(), folder.socket().into()]);
    all.extend_from_slice(args);
    let failed = |what: &str| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let message = format!("{} {what}; its log:\n{}", program.display(), log.trim());
        match log.contains("ddress already in use") {
            true => Failed::PortTaken(message),
            false => Failed::Otherwise(message),
        }
    };
    let log = folder.make().and_then(|()| File::create(&log));
    let process = log.and_then(|log| Process::start(program, &all, &folder.0, log));
    let mut process = process.map_err(|error| failed(&format!("cannot be started: {error}")))?;
    let deadline = Instant::now() + READY_BOUND;
    while !answers(port, folder) {
        if process.is_gone(Duration::from_millis(1)) {
            return Err(failed("ended at once"));
        }
        if Instant::now() >= deadline {
            return Err(failed(&format!("did not answer within {READY_BOUND:?}")));
        }
    }
    Ok(process)
}

/// The unix socket first: it is in a folder of ours, and so it is our server that answers there and
/// not another one that won the race for the port. A server opens it after it has got the port.
fn answers(port: u16, folder: &Folder) -> bool {
    let timeout = Some(Duration::from_millis(500));
    let unix = || {
        let stream = UnixStream::connect(folder.socket())?;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        ping(stream)
    };
    let tcp = || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        ping(stream)
    };
    unix().and_then(|unix| Ok(unix && tcp()?)).unwrap_or(false)
}

/// Leaves nothing behind: a test that counts the server's connections should find its own only.
fn ping(mut stream: impl Read + Write) -> io::Result<bool> {
    stream.write_all(b"PING\r\nQUIT\r\n")?;
    let mut replies = Vec::new();
    stream.take(1024).read_to_end(&mut replies)?;
    // A server with a password is up, too.
    Ok(replies.starts_with(b"+PONG\r\n") || replies.starts_with(b"-NOAUTH"))
}

/// Made anew for each life of the server; removed on drop.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn unused() -> Folder {
        let name = format!("lh-{}", Uuid::new_v4().simple());
        // A socket's path may have some 100 bytes, and a temp directory's can be longer by itself.
        let temp = env::temp_dir();
        let fits = temp.join(&name).join(SOCKET).as_os_str().len() < 100;
        let parent = if fits && temp.is_absolute() {
            temp
        } else {
            PathBuf::from("/tmp")
        };
        Folder(parent.join(name))
    }

    /// Where the server's unix socket is while it runs.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }

    /// Not everybody's business: who may connect to the socket may do anything.
    fn make(&self) -> io::Result<()> {
        self.remove();
        DirBuilder::new().mode(0o700).create(&self.0)
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.remove();
    }
}
