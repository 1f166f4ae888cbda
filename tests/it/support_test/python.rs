//! Where the Python with redis-py comes from, and what is said where there is none.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::support::child::{Builder, Child, args, say};
use crate::support::python::find;
use crate::support::temp::TempDir;

const BOUND: Duration = Duration::from_secs(30);

pub(crate) fn find_python() {
    match find(Path::new(&args()[0])) {
        Ok(python) => say(format!("found {}", python.display())),
        Err(why) => say(format!("none: {}", why.replace('\n', " "))),
    }
}

/// A process that looks for a Python with this folder for its `PATH` and its target folder, which is where programs of the
/// system are found, too, if they must.
fn looks_in(folder: &TempDir) -> Builder {
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    Child::role("support/find_python")
        .arg(folder.path().display())
        .env_remove("LEASEHOLD_PYTHON")
        .env("PATH", path)
}

/// A `python3` that has no redis-py and can make environments, in which pip works or does not; and notes what it makes.
fn fake(folder: &TempDir, pip: &str) {
    let script = format!(
        r#"#!/bin/sh
case "$*" in
    *"import redis"*) exec test -e "$0.has-redis" ;;
    *"-m venv"*)
        for venv; do :; done
        echo made >> {folder}/log
        mkdir -p "$venv/bin" && cp "$0" "$venv/bin/python" ;;
    *"-m pip"*) {pip} ;;
esac
"#,
        folder = folder.path().display(),
    );
    let path = folder.path().join("python3");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_named_python_without_redis_py_is_an_error_of_its_own() {
    let folder = TempDir::new();
    let child = looks_in(&folder)
        .env("LEASEHOLD_PYTHON", "/bin/false")
        .spawn();
    let said = child.expect_line(BOUND);
    assert!(
        said.starts_with("none: LEASEHOLD_PYTHON names /bin/false"),
        "{said}"
    );
}

#[test]
fn a_machine_that_can_not_have_redis_py_gets_told_what_would_help() {
    let folder = TempDir::new();
    fake(&folder, "echo no such index >&2; exit 1");
    let said = looks_in(&folder).spawn().expect_line(BOUND);
    assert!(said.starts_with("none: no Python with redis-py"), "{said}");
    for word in [
        "LEASEHOLD_PYTHON",
        "pip install redis",
        "venv",
        "no such index",
    ] {
        assert!(said.contains(word), "no {word} in {said}");
    }
}

#[test]
fn a_missing_redis_py_is_installed_once_by_however_many_processes() {
    let folder = TempDir::new();
    fake(&folder, r#"sleep 0.2; touch "$0.has-redis""#);
    let children = [(); 3].map(|()| looks_in(&folder).spawn());
    for child in &children {
        let said = child.expect_line(BOUND);
        assert!(
            said.starts_with("found ") && said.ends_with("venv/bin/python"),
            "{said}"
        );
    }
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(log, "made\n");
}

#[test]
fn a_half_made_environment_is_made_anew() {
    let folder = TempDir::new();
    let half = folder.path().join("leasehold-testing/python/venv/bin");
    fs::create_dir_all(&half).unwrap();
    fake(&folder, r#"touch "$0.has-redis""#);
    let said = looks_in(&folder).spawn().expect_line(BOUND);
    assert!(said.starts_with("found "), "{said}");
}
