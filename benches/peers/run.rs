//! The work, library after library, in rounds.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, unbounded};
use leasehold::testing::Server;

use crate::Outcome;
use crate::build::{Built, Library};

const WORKERS: usize = 8;
/// What the eight do inside (ms).
pub(crate) const HOLDS: [u64; 3] = [0, 1, 10];
/// Of the two that alternate (µs): time enough for the other one to begin to wait.
const TURN_US: u64 = 2000;
/// For a worker to be ready, and for its last words after its time is up.
const BOUND: Duration = Duration::from_secs(90);
const REST: Duration = Duration::from_secs(20);

/// Processes that want one lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd {
    pub(crate) per_second: f64,
    /// The least of a worker, to the mean.
    pub(crate) least: f64,
}

/// What was seen of one library: the medians of all rounds.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) library: Library,
    pub(crate) version: String,
    pub(crate) trouble: Option<String>,
    /// Which work was not done in time: a waiter hung.
    pub(crate) stuck: [bool; 2 + HOLDS.len()],
    pub(crate) pair_us: f64,
    pub(crate) handoff_us: f64,
    pub(crate) handoff_p99_us: f64,
    pub(crate) crowds: [Crowd; 3],
}

#[derive(Default)]
struct Rounds {
    pairs: Vec<f64>,
    handoffs: Vec<f64>,
    crowds: [Vec<Crowd>; 3],
    trouble: Option<String>,
    /// Which work was not done in time.
    stuck: [bool; 2 + HOLDS.len()],
}

pub(crate) fn run(server: &Server, built: &[Built], quick: bool) -> Outcome<Vec<Measured>> {
    let (rounds, turns, pairs, crowd) = if quick {
        (1, 1.0, 0.3, 1.0)
    } else {
        (3, 2.0, 1.0, 3.4)
    };
    let mut seen: Vec<Rounds> = built.iter().map(|_| Rounds::default()).collect();
    for (library, seen) in built.iter().zip(&mut seen) {
        seen.trouble = library.command.as_ref().err().cloned();
    }
    for round in 0..rounds {
        for work in 0..2 + HOLDS.len() {
            for i in 0..built.len() {
                let i = (i + round * 5 + work) % built.len();
                let (Ok(command), None, false) =
                    (&built[i].command, &seen[i].trouble, seen[i].stuck[work])
                else {
                    continue;
                };
                let lib = built[i].library.lib;
                eprintln!("round {} of {rounds}, work {work}: {lib}", round + 1);
                let job = Job {
                    command,
                    lib,
                    url: server.url(),
                    name: format!("peer:{lib}:{round}:{work}"),
                };
                let done = match work {
                    0 => job.pairs(pairs, &mut seen[i].pairs),
                    1 => job.turns(turns, &mut seen[i].handoffs),
                    n => job.crowd(HOLDS[n - 2], crowd, &mut seen[i].crowds[n - 2]),
                };
                if let Err(e) = done {
                    eprintln!("{lib}: {e}");
                    // What works when it is alone, but not among others, is worth a line all the same.
                    match work {
                        0 => seen[i].trouble = Some(e.to_string()),
                        _ => seen[i].stuck[work] = true,
                    }
                }
            }
        }
    }
    let measured = built.iter().zip(seen).map(|(built, mut seen)| Measured {
        library: built.library,
        version: built.version.clone(),
        trouble: seen.trouble,
        stuck: seen.stuck,
        pair_us: quantile(&mut seen.pairs, 50),
        handoff_us: quantile(&mut seen.handoffs, 50),
        handoff_p99_us: quantile(&mut seen.handoffs, 99),
        crowds: seen.crowds.map(|crowds| {
            let of = |f: fn(&Crowd) -> f64| {
                let mut all: Vec<f64> = crowds.iter().map(f).collect();
                quantile(&mut all, 50)
            };
            Crowd {
                per_second: of(|c| c.per_second),
                least: of(|c| c.least),
            }
        }),
    });
    Ok(measured.collect())
}

fn quantile(all: &mut [f64], percent: usize) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get((all.len() * percent / 100).min(all.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

struct Job<'a> {
    command: &'a [String],
    lib: &'a str,
    url: String,
    name: String,
}

impl Job<'_> {
    fn spawn(&self, mode: &str, hold_us: u64, seconds: f64) -> Outcome<Worker> {
        let (program, args) = self.command.split_first().ok_or("no command")?;
        let mut child = Command::new(program)
            .args(args)
            .args([self.lib, &self.url, mode])
            .args([hold_us.to_string(), seconds.to_string(), self.name.clone()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (tx, lines) = unbounded();
        let out = child.stdout.take().ok_or("no output")?;
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = tx.send(line);
            }
        });
        Ok(Worker { child, lines })
    }

    /// All of them at work at once; the lines that each has said.
    fn all(&self, n: usize, mode: &str, hold_us: u64, seconds: f64) -> Outcome<Vec<Vec<String>>> {
        let mut workers = self.ready(n, mode, hold_us, seconds)?;
        workers.iter_mut().try_for_each(Worker::go)?;
        let end = Instant::now() + Duration::from_secs_f64(seconds) + REST;
        workers.iter().map(|worker| worker.rest(end)).collect()
    }

    fn ready(&self, n: usize, mode: &str, hold_us: u64, seconds: f64) -> Outcome<Vec<Worker>> {
        let workers = (0..n)
            .map(|_| self.spawn(mode, hold_us, seconds))
            .collect::<Outcome<Vec<Worker>>>()?;
        let ready = Instant::now() + BOUND;
        for worker in &workers {
            if worker.line(ready)? != "ready" {
                return Err("a worker was not ready".into());
            }
        }
        Ok(workers)
    }

    fn pairs(&self, seconds: f64, out: &mut Vec<f64>) -> Outcome<()> {
        let said = self.all(1, "pair", 0, seconds)?;
        for (began, done) in times(&said[0])? {
            out.push((done - began) as f64 / 1000.0);
        }
        Ok(())
    }

    /// From the beginning of a release to the other's having it.
    fn turns(&self, seconds: f64, out: &mut Vec<f64>) -> Outcome<()> {
        let mut workers = self.ready(2, "turns", TURN_US, seconds)?;
        workers.iter_mut().try_for_each(Worker::go)?;
        let end = Instant::now() + Duration::from_secs_f64(seconds) + REST;
        let lines = [workers[0].lines.clone(), workers[1].lines.clone()];
        // Each tries again as soon as the other one has it: so the other one always waits.
        let mut ended = None;
        while ended.is_none() {
            let mut select = Select::new();
            for lines in &lines {
                select.recv(lines);
            }
            let ready = select
                .select_deadline(end)
                .map_err(|_| "nobody has it for too long")?;
            let side = ready.index();
            match ready.recv(&lines[side])?.as_str() {
                "got" => workers[1 - side].go()?,
                first => ended = Some((side, first.to_owned())),
            }
        }
        let (first_to_end, line) = ended.ok_or("it has not ended")?;
        let mut said = [Vec::new(), Vec::new()];
        workers.iter_mut().for_each(|w| drop(w.child.stdin.take()));
        for side in [first_to_end, 1 - first_to_end] {
            said[side] = workers[side].rest(end)?;
        }
        said[first_to_end].insert(0, line);
        let mut holds = Vec::new();
        for (side, lines) in said.iter_mut().enumerate() {
            lines.retain(|line| line != "got" && line != "end");
            holds.extend(
                times(lines)?
                    .into_iter()
                    .map(|(got, gave)| (got, gave, side)),
            );
        }
        holds.sort_unstable();
        let handed = holds.windows(2).filter(|pair| pair[0].2 != pair[1].2);
        out.extend(handed.map(|pair| pair[1].0.saturating_sub(pair[0].1) as f64 / 1000.0));
        Ok(())
    }

    fn crowd(&self, hold_ms: u64, seconds: f64, out: &mut Vec<Crowd>) -> Outcome<()> {
        let said = self.all(WORKERS, "hold", hold_ms * 1000, seconds)?;
        let mut had = Vec::new();
        for lines in &said {
            had.push(lines.first().ok_or("no count")?.parse::<f64>()?);
        }
        let total: f64 = had.iter().sum();
        let least = had.iter().copied().fold(f64::INFINITY, f64::min);
        out.push(Crowd {
            per_second: total / seconds,
            least: least / (total / WORKERS as f64),
        });
        Ok(())
    }
}

fn times(lines: &[String]) -> Outcome<Vec<(u64, u64)>> {
    let read = |line: &String| {
        let (a, b) = line.split_once(' ').ok_or("no two times")?;
        Ok((a.parse()?, b.parse()?))
    };
    lines.iter().map(read).collect()
}

struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn go(&mut self) -> Outcome<()> {
        let to = self.child.stdin.as_mut().ok_or("no input")?;
        Ok(writeln!(to, "go")?)
    }

    fn line(&self, until: Instant) -> Outcome<String> {
        let line = self.lines.recv_deadline(until);
        Ok(line.map_err(|_| "a worker ended, or said nothing for too long")?)
    }

    fn rest(&self, until: Instant) -> Outcome<Vec<String>> {
        let mut all = Vec::new();
        loop {
            match self.line(until)? {
                line if line == "end" => return Ok(all),
                line => all.push(line),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
