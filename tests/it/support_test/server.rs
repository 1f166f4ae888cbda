//! The server of `leasehold::testing`: its life, and above all its end.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use rustix::process::{Pid, getpgid};

use crate::support::child::{Child, hear, say};
use crate::support::temp::TempDir;
use crate::support::wait::{eventually, raw, raw_with_timeout};

const BOUND: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(200);

fn ping(connection: &mut redis::Connection) -> redis::RedisResult<String> {
    redis::cmd("PING").query(connection)
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn folder(server: &Server) -> PathBuf {
    let socket = server.unix_socket().expect("a socket");
    socket.parent().expect("a folder").to_owned()
}

#[test]
fn a_server_answers_at_its_url_and_on_its_unix_socket() {
    let server = Server::start().unwrap();
    assert_eq!(ping(&mut raw(&server.url())).unwrap(), "PONG");
    let socket = server.unix_socket().unwrap();
    assert!(socket.as_os_str().len() < 100);
    assert_eq!(
        ping(&mut raw(&format!("unix://{}", socket.display()))).unwrap(),
        "PONG"
    );
}

#[test]
fn a_fresh_server_has_no_connections_but_the_callers() {
    let server = Server::start().unwrap();
    let clients: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut raw(&server.url()))
        .unwrap();
    assert_eq!(clients.lines().count(), 1, "{clients}");
}

#[test]
fn servers_started_at_once_have_ports_of_their_own() {
    let start = || Server::start().unwrap();
    let servers: Vec<Server> = thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    for server in &servers {
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query(&mut raw(&server.url()))
            .unwrap();
        assert!(
            info.contains(&format!("process_id:{}\r\n", server.pid())),
            "{info}"
        );
    }
}

#[test]
fn arguments_reach_the_server_and_persistence_is_off() {
    let server = Server::start_with(["--maxmemory", "3mb"]).unwrap();
    let mut connection = raw(&server.url());
    let mut setting = |name: &str| -> String {
        let (_, value): (String, String) = redis::cmd("CONFIG")
            .arg("GET")
            .arg(name)
            .query(&mut connection)
            .unwrap();
        value
    };
    assert_eq!(setting("maxmemory"), "3145728");
    assert_eq!(setting("save"), "");
    assert_eq!(setting("appendonly"), "no");
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let error = Server::start_with(["--no-such-setting", "1"]).unwrap_err();
    assert!(error.to_string().contains("no-such-setting"), "{error}");
}

#[test]
fn a_server_with_a_password_starts() {
    let server = Server::start_with(["--requirepass", "secret"]).unwrap();
    let url = format!("redis://:secret@127.0.0.1:{}/", server.port());
    assert_eq!(ping(&mut raw(&url)).unwrap(), "PONG");
}

#[test]
fn a_dropped_server_leaves_nothing() {
    for paused in [false, true] {
        let server = Server::start().unwrap();
        let (port, folder) = (server.port(), folder(&server));
        if paused {
            server.pause().unwrap();
        }
        drop(server);
        assert!(!listens(port));
        assert!(!folder.exists());
    }
}

#[test]
fn a_paused_server_is_silent_until_resumed() {
    let server = Server::start().unwrap();
    let mut connection = raw_with_timeout(&server.url(), SHORT);
    server.pause().unwrap();
    assert!(ping(&mut connection).unwrap_err().is_timeout());
    server.resume().unwrap();
    assert_eq!(ping(&mut raw(&server.url())).unwrap(), "PONG");
}

#[test]
fn a_killed_server_comes_back_on_its_port_without_its_data() {
    let server = Server::start_with(["--maxmemory", "5mb"]).unwrap();
    let (port, first, socket) = (server.port(), server.pid(), server.unix_socket());
    let mut connection = raw(&server.url());
    redis::cmd("SET")
        .arg("key")
        .arg("value")
        .exec(&mut connection)
        .unwrap();
    server.pause().unwrap();
    server.kill().unwrap();
    server.kill().unwrap();
    assert!(!listens(port));
    assert!(ping(&mut connection).is_err());
    assert!(server.pause().is_err());
    assert_eq!(server.unix_socket(), None);
    server.restart().unwrap();
    assert_eq!((server.port(), server.unix_socket()), (port, socket));
    assert_ne!(server.pid(), first);
    let mut connection = raw(&server.url());
    let value: Option<String> = redis::cmd("GET").arg("key").query(&mut connection).unwrap();
    assert_eq!(value, None);
    let (_, limit): (String, u64) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("maxmemory")
        .query(&mut connection)
        .unwrap();
    assert_eq!(limit, 5 << 20);
}

#[test]
fn a_running_server_can_be_restarted_again_and_again() {
    let server = Server::start().unwrap();
    for _ in 0..10 {
        server.restart().unwrap();
        assert_eq!(ping(&mut raw(&server.url())).unwrap(), "PONG");
    }
}

#[test]
fn a_server_that_ended_by_itself_is_not_signalled_and_can_be_restarted() {
    let server = Server::start().unwrap();
    // The server closes the connection for an answer.
    let _ = redis::cmd("SHUTDOWN")
        .arg("NOSAVE")
        .exec(&mut raw(&server.url()));
    eventually(BOUND, "the server ends", || server.resume().is_err());
    server.restart().unwrap();
    assert_eq!(ping(&mut raw(&server.url())).unwrap(), "PONG");
}

#[test]
fn a_restart_waits_for_a_port_that_somebody_probes() {
    let server = Server::start().unwrap();
    // The log of a failed start will show that the restart has met the probe.
    let log = folder(&server).join("log");
    server.kill().unwrap();
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    thread::scope(|scope| {
        let restart = scope.spawn(|| server.restart());
        eventually(BOUND, "a failed start", || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains("in use"))
        });
        drop(probe);
        restart.join().unwrap().unwrap();
    });
    assert_eq!(ping(&mut raw(&server.url())).unwrap(), "PONG");
}

#[test]
fn the_terminals_signals_do_not_reach_a_server() {
    // Ctrl-C and Ctrl-Z go to the process group in the foreground.
    let server = Server::start().unwrap();
    let pid = Pid::from_raw(server.pid().cast_signed()).unwrap();
    assert_ne!(getpgid(Some(pid)).unwrap(), getpgid(None).unwrap());
}

pub(crate) fn own_a_server() {
    own(&Server::start().unwrap());
}

pub(crate) fn own_a_paused_server() {
    let server = Server::start().unwrap();
    server.pause().unwrap();
    own(&server);
}

fn own(server: &Server) {
    say(server.port().to_string());
    say(folder(server).to_str().unwrap());
    hear(Duration::from_secs(60));
}

pub(crate) fn program_of(server: &Server) -> PathBuf {
    fs::read_link(format!("/proc/{}/exe", server.pid())).unwrap_or_else(|_| {
        let ps = Command::new("ps")
            .args(["-o", "comm=", "-p", &server.pid().to_string()])
            .output();
        String::from_utf8(ps.unwrap().stdout).unwrap().trim().into()
    })
}

#[test]
fn a_server_ends_with_its_parent() {
    for role in ["support/own_a_server", "support/own_a_paused_server"] {
        let mut parent = Child::role(role).spawn();
        let port: u16 = parent
            .expect_line(Duration::from_secs(120))
            .parse()
            .unwrap();
        let folder = parent.expect_line(BOUND);
        assert!(listens(port) && Path::new(&folder).exists());
        parent.kill();
        eventually(BOUND, "the server is gone", || !listens(port));
        eventually(BOUND, "its folder is gone", || !Path::new(&folder).exists());
    }
}

#[test]
fn a_server_started_by_a_script_ends_with_its_parent() {
    let program = program_of(&Server::start().unwrap());
    let scripts = TempDir::new();
    // Where one program is several, what it is depends on the name that it is called by.
    let named = scripts.path().join("redis-server");
    std::os::unix::fs::symlink(program, &named).unwrap();
    let script = scripts.path().join("server");
    fs::write(
        &script,
        format!("#!/bin/sh\n'{}' \"$@\"\nexit\n", named.display()),
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut parent = Child::role("support/own_a_server")
        .env("LEASEHOLD_SERVER_BIN", &script)
        .spawn();
    let port: u16 = parent.expect_line(BOUND).parse().unwrap();
    assert!(listens(port));
    parent.kill();
    eventually(BOUND, "the server is gone", || !listens(port));
}
