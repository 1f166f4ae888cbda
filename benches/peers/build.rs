//! The other libraries, built from their registries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Outcome, WORKER};

/// One library's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    /// What its worker calls it.
    pub(crate) lib: &'static str,
    pub(crate) shown: &'static str,
    pub(crate) language: &'static str,
    /// What its registry calls it.
    package: &'static str,
}

const fn library(
    lib: &'static str,
    shown: &'static str,
    language: &'static str,
    package: &'static str,
) -> Library {
    Library {
        lib,
        shown,
        language,
        package,
    }
}

pub(crate) const LIBRARIES: [Library; 13] = [
    library("leasehold", "leasehold Mutex", OURS, "leasehold"),
    library("leasehold-fair", "leasehold FairMutex", OURS, "leasehold"),
    library("redis-py", "redis-py Lock", "Python", "redis"),
    library(
        "python-redis-lock",
        "python-redis-lock, auto_renewal",
        "Python",
        "python-redis-lock",
    ),
    library(
        "redis-semaphore",
        "redis-semaphore Mutex",
        "Node",
        "redis-semaphore",
    ),
    library("node-redlock", "redlock 5 beta, using()", "Node", "redlock"),
    library(
        "redsync",
        "redsync",
        "Go",
        "github.com/go-redsync/redsync/v4",
    ),
    library(
        "redislock",
        "bsm/redislock",
        "Go",
        "github.com/bsm/redislock",
    ),
    library(
        "rueidislock",
        "rueidislock",
        "Go",
        "github.com/redis/rueidis",
    ),
    library("redisson", "Redisson RLock", "Java", "redisson"),
    library("redisson-fair", "Redisson FairLock", "Java", "redisson"),
    library("redlock", "redlock", "Rust", "redlock"),
    library("redis-lock", "redis-lock", "Rust", "redis-lock"),
];

pub(crate) const OURS: &str = "Rust, ours";

/// A library that can be run, or why it can't.
pub(crate) struct Built {
    pub(crate) library: Library,
    pub(crate) version: String,
    pub(crate) command: Result<Vec<String>, String>,
}

/// Builds what the chosen ones need, each language once.
pub(crate) fn build(here: &Path, chosen: &[Library]) -> Vec<Built> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| here.join("target"), Into::into);
    let site = Site {
        sources: here.join("benches/peers"),
        target: target.join("peers"),
    };
    let mut commands: HashMap<&str, Result<Vec<String>, String>> = HashMap::new();
    chosen
        .iter()
        .map(|&library| {
            let command = commands
                .entry(library.language)
                .or_insert_with(|| {
                    eprintln!("building for {} …", library.language);
                    site.worker(library.language).map_err(|e| e.to_string())
                })
                .clone();
            let version = match command {
                Ok(_) => site
                    .version(&library)
                    .unwrap_or_else(|e| format!("? ({e})")),
                Err(_) => String::new(),
            };
            Built {
                library,
                version,
                command,
            }
        })
        .collect()
}

struct Site {
    sources: PathBuf,
    target: PathBuf,
}

impl Site {
    /// The command that starts a worker for this language's libraries.
    fn worker(&self, language: &str) -> Outcome<Vec<String>> {
        let out = |name: &str| self.target.join(name);
        let text = |path: PathBuf| path.display().to_string();
        let source = |name: &str| self.sources.join(name);
        match language {
            "Python" => {
                let venv = out("python");
                if !venv.join("bin/python").exists() {
                    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
                }
                let python = venv.join("bin/python");
                let mut pip = Command::new(&python);
                pip.args(["-m", "pip", "install", "--quiet", "-r"]);
                run(pip.arg(source("python/requirements.txt")))?;
                Ok(vec![text(python), text(source("python/worker.py"))])
            }
            "Node" => {
                let dir = out("node");
                std::fs::create_dir_all(&dir)?;
                for file in ["package.json", "package-lock.json", "worker.js"] {
                    std::fs::copy(source("node").join(file), dir.join(file))?;
                }
                let mut npm = Command::new("npm");
                npm.args(["ci", "--silent", "--no-audit", "--no-fund"]);
                run(npm.current_dir(&dir))?;
                Ok(vec!["node".into(), text(dir.join("worker.js"))])
            }
            "Go" => {
                let to = out("go/worker");
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(&to).arg(".");
                run(go.current_dir(source("go")))?;
                Ok(vec![text(to)])
            }
            "Java" => {
                let dir = out("java");
                let mut mvn = Command::new("mvn");
                mvn.arg("-q").arg("-f").arg(source("java/pom.xml"));
                mvn.arg(format!("-Dout={}", dir.display()));
                mvn.args(["compile", "dependency:copy-dependencies"]);
                run(mvn.arg(format!("-DoutputDirectory={}", dir.join("deps").display())))?;
                let classes = format!("{0}/classes:{0}/deps/*", dir.display());
                Ok(vec!["java".into(), "-cp".into(), classes, "Worker".into()])
            }
            "Rust" => {
                let dir = out("rust");
                let mut cargo = Command::new("cargo");
                cargo.args([
                    "build",
                    "--quiet",
                    "--release",
                    "--locked",
                    "--manifest-path",
                ]);
                cargo
                    .arg(source("rust/Cargo.toml"))
                    .env("CARGO_TARGET_DIR", &dir);
                run(&mut cargo)?;
                Ok(vec![text(dir.join("release/worker"))])
            }
            _ => Ok(vec![text(std::env::current_exe()?), WORKER.into()]),
        }
    }

    /// As it is installed.
    fn version(&self, library: &Library) -> Outcome<String> {
        let package = library.package;
        Ok(match library.language {
            "Python" => {
                let ask = format!("import importlib.metadata as m; print(m.version('{package}'))");
                let python = self.target.join("python/bin/python");
                said(Command::new(python).arg("-c").arg(ask))?
            }
            "Node" => {
                let ask = format!("require('./node_modules/{package}/package.json').version");
                let dir = self.target.join("node");
                said(Command::new("node").arg("-p").arg(ask).current_dir(dir))?
            }
            "Go" => {
                let mut go = Command::new("go");
                go.args(["list", "-m", "-f", "{{.Version}}", package]);
                said(go.current_dir(self.sources.join("go")))?
            }
            "Java" => {
                let mut jars = std::fs::read_dir(self.target.join("java/deps"))?.flatten();
                let version = jars.find_map(|jar| {
                    let name = jar.file_name().into_string().ok()?;
                    let rest = name.strip_prefix(package)?.strip_prefix('-')?;
                    Some(rest.strip_suffix(".jar")?.to_owned())
                });
                version.ok_or("no such jar")?
            }
            "Rust" => {
                let lock = std::fs::read_to_string(self.sources.join("rust/Cargo.lock"))?;
                let head = format!("name = \"{package}\"\nversion = \"");
                let at = lock.find(&head).ok_or("not in the lock file")? + head.len();
                lock[at..].split('"').next().unwrap_or_default().to_owned()
            }
            _ => env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

fn run(command: &mut Command) -> Outcome<()> {
    said(command).map(drop)
}

/// What it says, or what went wrong.
fn said(command: &mut Command) -> Outcome<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = text.lines().rev().find(|l| !l.trim().is_empty());
        return Err(format!("{program}: {}", last.unwrap_or("it failed")).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
