//! A Python that has redis-py: a named one, or a virtual environment in the cargo target folder, made once.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

const NAMED: &str = "LEASEHOLD_PYTHON";
/// Making the environment takes some seconds; a package index may be slow.
const BOUND: Duration = Duration::from_secs(180);

/// Panics, with what would help, where there is none to be had.
pub(crate) fn python_with_redis() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| find(&target_folder()).unwrap_or_else(|why| panic!("{why}")))
}

/// In the folder `target` it is made where there is none.
pub(crate) fn find(target: &Path) -> Result<PathBuf, String> {
    if let Some(named) = env::var_os(NAMED).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return match imports_redis(&named) {
            Ok(()) => Ok(named),
            Err(why) => Err(format!(
                "{NAMED} names {}, which has no redis-py: {why}",
                named.display()
            )),
        };
    }
    let python = PathBuf::from("python3");
    if imports_redis(&python).is_ok() {
        return Ok(python);
    }
    made(target).map_err(|why| {
        format!(
            "no Python with redis-py for the tests with another library's locks: python3 can't import redis, and \
             making an environment for it failed: {why}\n\
             Any of these helps: (1) set {NAMED} to a Python that has redis-py; (2) `python3 -m pip install redis`; \
             (3) have python3 with venv and pip, and a package index that they reach"
        )
    })
}

fn imports_redis(python: &Path) -> Result<(), String> {
    run(Command::new(python).args(["-c", "import redis, redis.lock"])).map(drop)
}

/// Found again by the next run, if it is whole.
fn made(target: &Path) -> Result<PathBuf, String> {
    let folder = target.join("leasehold-testing").join("python");
    let said =
        |what: &str, error: std::io::Error| format!("cannot {what} {}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(|e| said("make", e))?;
    let python = folder.join("venv/bin/python");
    // Test processes run side by side: one makes it while the others wait. The lock goes with its process.
    let _turn = turn(&folder.join("lock"))?;
    if imports_redis(&python).is_ok() {
        return Ok(python);
    }
    // Not println!, which the test harness hides: whoever waits for a download should see why.
    let _ = writeln!(
        std::io::stderr(),
        "leasehold: python3 has no redis-py; making an environment with it in {} (once)",
        folder.display()
    );
    let venv = folder.join("venv");
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&venv))?;
    run(Command::new(&python)
        .args([
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args(["--retries", "2", "--timeout", "15", "redis>=5,<9"]))?;
    imports_redis(&python).map(|()| python)
}

fn turn(path: &Path) -> Result<File, String> {
    let said = |error: std::io::Error| format!("cannot lock {}: {error}", path.display());
    let mut options = OpenOptions::new();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(said)?;
    let deadline = Instant::now() + BOUND;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if Instant::now() >= deadline {
            return Err(said(error.into()));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(file)
}

/// The one that this program was built in.
fn target_folder() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let around = program.ancestors().find(is_target);
    around.map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target"),
        Path::to_owned,
    )
}

/// Runs to the end, but not for ever.
fn run(command: &mut Command) -> Result<Output, String> {
    let what = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{what}: {error}"))?;
    let deadline = Instant::now() + BOUND;
    while child
        .try_wait()
        .map_err(|error| format!("{what}: {error}"))?
        .is_none()
    {
        if Instant::now() >= deadline {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(format!("{what}: no end after {BOUND:?}"));
        }
        sleep(Duration::from_millis(5));
    }
    let output = child
        .wait_with_output()
        .map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{what}: {}\n{}", output.status, said.trim()))
}
