//! Four processes settle twelve accounting periods, each exactly once, though one of them is killed at work.
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! Runs against the server at `$REDIS_URL` if that is set, else against one that it starts itself.

mod support;

use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use leasehold::{Client, FencingToken, Lease, Mutex, Predecessor};
use support::Setup;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Short, so that a killed worker's lock is soon free. A living worker renews it as long as it works.
const TTL: Duration = Duration::from_secs(1);
/// Whoever comes to this period first is made so slow that the parent can kill it there.
const FATAL: &str = "2026-05";

fn periods() -> impl Iterator<Item = String> {
    (1..=12).map(|month| format!("2026-{month:02}"))
}

// ---- what each worker does: this is the part to copy ----------------------------------------------

fn worker(label: &str, url: &str, namespace: &str) -> Result<()> {
    let client = Client::builder()
        .url(url)
        .namespace(namespace)
        .holder_label(label)
        .ttl(TTL)
        .max_wait(Duration::from_secs(20)) // no lock() takes longer than this
        .build()?;
    let mutex = client.mutex("settle");
    let mut ledger = Ledger::open(url, namespace)?;
    while settle_one(&mutex, &mut ledger, label)? {
        thread::sleep(Duration::from_millis(30)); // the notices go out without the lock
    }
    Ok(())
}

/// Settles the first period that is still open; false if there is none.
fn settle_one(mutex: &Mutex, ledger: &mut Ledger, label: &str) -> Result<bool> {
    let asked = Instant::now();
    let guard = mutex.lock()?;
    let waited = asked.elapsed();
    let Some(period) = ledger.first_open()? else {
        return Ok(false); // the guard's drop releases the lock
    };
    report("begun", &period, label, &guard, waited);
    let sum = add_up(&period, &guard)?;
    guard.check()?; // still ours? Else this work is no longer wanted
    ledger.write(&period, sum, guard.fencing_token())?;
    report("settled", &period, label, &guard, waited);
    guard.unlock()?; // a drop that says so if the release went wrong
    Ok(true)
}

/// The long part. It looks between its steps whether the lock is still held.
fn add_up(period: &str, lease: &Lease) -> Result<u64> {
    let first_try = !matches!(lease.predecessor(), Predecessor::Abandoned { .. });
    let pace = if period == FATAL && first_try {
        5_000
    } else {
        10
    };
    let mut sum = 0;
    for step in 1..=6 {
        lease.check()?;
        thread::sleep(Duration::from_millis(pace));
        sum += step;
    }
    Ok(sum)
}

/// One line to the parent: what happened, and a row for its table.
fn report(event: &str, period: &str, label: &str, lease: &Lease, waited: Duration) {
    let predecessor = match lease.predecessor() {
        Predecessor::Abandoned { token, .. } => format!("Abandoned, token {token}"),
        other => format!("{other:?}"),
    };
    let (token, waited) = (lease.fencing_token(), waited.as_millis());
    println!("{event}\t{period}  {label}  {token:<16} {waited:>6} ms  {predecessor}");
}

/// Stands in for your database, and like most programs' tables it is asked first and written later:
/// without the lock, two workers would find the same period open and both settle it. It remembers the
/// highest token, so that a writer whose lock has passed to another in the meantime is refused.
struct Ledger {
    connection: redis::Connection,
    key: String,
}

impl Ledger {
    fn open(url: &str, namespace: &str) -> Result<Ledger> {
        let connection = redis::Client::open(url)?.get_connection()?;
        let key = format!("ledger:{namespace}");
        Ok(Ledger { connection, key })
    }

    fn first_open(&mut self) -> Result<Option<String>> {
        for period in periods() {
            if self.times_settled(&period)? == 0 {
                return Ok(Some(period));
            }
        }
        Ok(None)
    }

    fn times_settled(&mut self, period: &str) -> Result<u64> {
        let mut times = redis::cmd("HGET");
        times.arg(&self.key).arg(format!("{period} times"));
        Ok(times
            .query::<Option<u64>>(&mut self.connection)?
            .unwrap_or(0))
    }

    /// Comparing the tokens and writing are one step: in Redis a script, in SQL one UPDATE … WHERE token <= ?
    fn write(&mut self, period: &str, sum: u64, token: FencingToken) -> Result<()> {
        let write = redis::Script::new(
            "local ledger, period, sum, token = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
             local highest = tonumber(redis.call('HGET', ledger, 'token') or 0)
             if highest > tonumber(token) then return 0 end
             redis.call('HSET', ledger, 'token', token, period .. ' sum', sum)
             redis.call('EXPIRE', ledger, 3600)
             return redis.call('HINCRBY', ledger, period .. ' times', 1)",
        );
        let mut write = write.key(&self.key);
        let times: u64 = write
            .arg(period)
            .arg(sum)
            .arg(token.get())
            .invoke(&mut self.connection)?;
        match times {
            0 => Err(format!("{period}: token {token} is too old").into()),
            _ => Ok(()),
        }
    }
}

// ---- what the parent does: it starts the workers, kills one and checks the ledger ------------------

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.as_slice() {
        [hidden, label, namespace] if hidden == "worker" => {
            worker(label, &env::var("REDIS_URL")?, namespace)?;
            Ok(ExitCode::SUCCESS)
        }
        _ => parent(),
    }
}

fn parent() -> Result<ExitCode> {
    let setup = Setup::new("quickstart")?;
    let started = Instant::now();
    let (lines, writer) = io::pipe()?;
    let mut workers = Vec::new();
    for n in 1..=4 {
        let label = format!("worker-{n}");
        let process = Command::new(env::current_exe()?)
            .args(["worker", &label, &setup.namespace])
            .env("REDIS_URL", &setup.url)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .spawn()?;
        workers.push((label, process));
    }
    drop(writer); // so that the lines end with the last worker

    println!("4 processes, 12 periods, ttl {TTL:?}\n");
    println!("period   who       fencing token       waited  predecessor");
    let mut killed_with = None;
    let mut taken_over = 0;
    for line in BufReader::new(lines).lines() {
        let line = line?;
        let (event, row) = line.split_once('\t').ok_or("not a worker's line")?;
        let fields: Vec<&str> = row.split_whitespace().collect();
        let (period, who, token) = (fields[0], fields[1], fields[2]);
        if event == "settled" {
            println!("{row}");
            let after = killed_with
                .as_ref()
                .map(|token| format!("Abandoned, token {token}"));
            taken_over += usize::from(after.is_some_and(|after| row.ends_with(&after)));
        } else if period == FATAL && killed_with.is_none() {
            let victim = workers.iter_mut().find(|(label, _)| label == who);
            victim.ok_or("not a worker of ours")?.1.kill()?;
            println!("{row}; killed at work");
            killed_with = Some(token.to_owned());
        }
    }

    let mut failed = 0;
    for (_, process) in &mut workers {
        failed += usize::from(!process.wait()?.success());
    }
    let mut ledger = Ledger::open(&setup.url, &setup.namespace)?;
    let settled_once = periods()
        .filter(|period| matches!(ledger.times_settled(period), Ok(1)))
        .count();
    println!("\n{:.1} s", started.elapsed().as_secs_f64());
    if (settled_once, taken_over, failed) == (12, 1, 1) {
        println!("12 periods settled, each exactly once; 1 taken over from a killed worker");
        return Ok(ExitCode::SUCCESS);
    }
    println!("WRONG: {settled_once} of 12 periods settled exactly once,");
    println!("{taken_over} taken over (1 expected), {failed} workers failed (1 expected)");
    Ok(ExitCode::FAILURE)
}
