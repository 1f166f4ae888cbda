//! What it costs to wait, and to hold.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::testing::Server;

use crate::Extent;
use crate::child::{Kid, hear, ready, say};
use crate::crowds::sent;
use crate::floor::{connect, pin};
use crate::report::{Outcome, Row};

const THREADS: usize = 10;
const PROCESSES: usize = 5;
/// A client's own, unless said otherwise.
const POOL_SIZE: usize = 8;

/// So many threads that wait for a lock, until the parent ends us.
pub(crate) fn waiters(args: &[String]) -> Outcome<()> {
    let [url, kind] = args else {
        return Err("a url and a kind".into());
    };
    let client = Client::open(url)?;
    let fair = kind == "fair";
    ready()?;
    for _ in 0..THREADS {
        let client = client.clone();
        thread::spawn(move || match fair {
            true => client.fair_mutex("speed").lock().map(drop),
            false => client.mutex("speed").lock().map(drop),
        });
    }
    say("waiting")?;
    while hear().is_ok() {}
    // Nobody waits for the threads.
    std::process::exit(0);
}

pub(crate) fn idle_waiters(extent: Extent) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for (kind, per) in [("mutex", 1), ("fair", THREADS)] {
        let server = Server::start()?;
        let placement = pin(server.pid(), false);
        let holder = server.client();
        let guard = holder.mutex("speed").lock()?;
        let mut kids = (0..PROCESSES)
            .map(|_| Kid::spawn("waiters", &[&server.url(), kind]))
            .collect::<Outcome<Vec<Kid>>>()?;
        for kid in &mut kids {
            kid.go()?;
            kid.line()?;
        }
        let waits = (PROCESSES * per) as u64;
        let bound = Instant::now() + Duration::from_secs(20);
        while holder.mutex("speed").inspect()?.waiters < waits {
            if Instant::now() >= bound {
                return Err("they do not all wait".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        // The first looks are over then.
        thread::sleep(Duration::from_secs(2));
        let mut watch = connect(&server.url())?;
        let (start, before) = (Instant::now(), sent(&mut watch)?);
        thread::sleep(Duration::from_millis(extent.of(10_000).max(3000) as u64));
        let during = (sent(&mut watch)? - before) as f64;
        // The holder renews meanwhile.
        let renewed = holder.metrics().renewals as f64;
        let rate = (during - renewed).max(0.0) / start.elapsed().as_secs_f64() / waits as f64;
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut watch)?;
        // Ours beside theirs: the watch, and the holder's own.
        let connections = (list.lines().count().saturating_sub(3)) as f64 / PROCESSES as f64;
        drop(kids);
        guard.unlock()?;
        let row = Row::of(
            format!("idle_waiters_{kind}"),
            1e6 / rate,
            f64::NAN,
            "<= 1.3 commands a second, connections <= pool_size + 3",
            rate <= 1.3 && connections <= (POOL_SIZE + 3) as f64,
            placement,
        );
        rows.push(
            row.with("commands_a_second", rate)
                .with("connections_a_process", connections),
        );
    }
    Ok(rows)
}

fn resident_kib() -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next());
    Ok(kib.ok_or("no resident size")?.parse()?)
}

/// What this process has used of the processor.
fn cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

pub(crate) fn held(extent: Extent) -> Outcome<Vec<Row>> {
    const LOCKS: usize = 1000;
    const TTL: Duration = Duration::from_secs(3);
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let client = Client::builder().url(&server.url()).ttl(TTL).build()?;
    // What there is once, for however many locks.
    drop(client.mutex("speed").lock()?);
    let before = resident_kib()?;
    let guards = (0..LOCKS)
        .map(|i| client.mutex(format!("speed:{i}")).lock())
        .collect::<leasehold::Result<Vec<_>>>()?;
    // Each of them has been renewed once.
    thread::sleep(TTL);
    let resident = (resident_kib()? - before) / LOCKS as f64;
    let (start, used, renewals) = (Instant::now(), cpu(), client.metrics().renewals);
    thread::sleep(Duration::from_secs(extent.of(30).max(6) as u64));
    let span = start.elapsed().as_secs_f64();
    let share = (cpu() - used).as_secs_f64() / span * 100.0;
    let renewals = (client.metrics().renewals - renewals) as f64;
    let expected = span / (TTL.as_secs_f64() / 3.0) * LOCKS as f64;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count() as f64;
    drop(guards);
    let row = Row::of(
        "held_1000",
        1e6 / (renewals / span),
        f64::NAN,
        "none lost, <= 48 KiB a lock, cpu <= 5 %, renewals within 10 %",
        lost == 0.0
            && resident <= 48.0
            && share <= 5.0
            && (0.9..=1.1).contains(&(renewals / expected)),
        placement,
    );
    Ok(vec![
        row.with("lost", lost)
            .with("kib_a_lock", resident)
            .with("cpu_percent", share)
            .with("renewals_by_expected", renewals / expected),
    ])
}
