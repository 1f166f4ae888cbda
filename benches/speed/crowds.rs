//! Many that want one lock.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::testing::Server;

use crate::Extent;
use crate::child::{Kid, ready, say};
use crate::floor::{Floor, connect, pin};
use crate::report::{Outcome, Row};

/// Eight threads of one process, and nothing to do inside.
pub(crate) fn threads(extent: Extent) -> Outcome<Vec<Row>> {
    const THREADS: usize = 8;
    const ROUNDS: usize = 5;
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let client = server.client();
    let mut floor = Floor::connect(&server.url())?;
    let span = Duration::from_millis(extent.of(2000) as u64);
    let (mut rates, mut floors, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (start, mut pairs) = (Instant::now(), 0_u32);
        while start.elapsed() < span / 4 {
            floor.pair()?;
            pairs += 1;
        }
        floors.push(f64::from(pairs) / start.elapsed().as_secs_f64());
        let start = Instant::now();
        let had: Vec<Outcome<u32>> = thread::scope(|scope| {
            let work = || {
                let (mutex, mut had) = (client.mutex("speed"), 0);
                while start.elapsed() < span {
                    drop(mutex.lock()?);
                    had += 1;
                }
                Ok(had)
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            let join =
                |t: thread::ScopedJoinHandle<'_, _>| t.join().map_err(|_| "a thread panicked")?;
            threads.into_iter().map(join).collect()
        });
        let took = start.elapsed().as_secs_f64();
        let had = had.into_iter().collect::<Outcome<Vec<u32>>>()?;
        rates.push(f64::from(had.iter().sum::<u32>()) / took);
        let (least, most) = (had.iter().min(), had.iter().max());
        shares.push(f64::from(*least.unwrap_or(&0)) / f64::from(*most.unwrap_or(&1)));
    }
    let (rate, floor) = (median(&mut rates), median(&mut floors));
    let share = median(&mut shares);
    // As times, so that less is better everywhere.
    let row = Row::of(
        "threads",
        1e6 / rate,
        1e6 / floor,
        "throughput >= 10 x, min/max >= 0.5",
        rate >= 10.0 * floor && share >= 0.5,
        placement,
    )
    .with("throughput_ratio", rate / floor)
    .with("per_second", rate)
    .with("min_by_max", share)
    .with("rounds", ROUNDS as f64);
    Ok(vec![row])
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

/// One of several processes: locks, sleeps for so long, gives it back, until its time is up.
pub(crate) fn worker(args: &[String]) -> Outcome<()> {
    let [url, hold_us, span_ms] = args else {
        return Err("a url and two times".into());
    };
    let (hold, span) = (hold_us.parse()?, span_ms.parse()?);
    let (hold, span) = (Duration::from_micros(hold), Duration::from_millis(span));
    let mutex = Client::open(url)?.mutex("speed");
    ready()?;
    let (start, mut had) = (Instant::now(), 0_u64);
    while start.elapsed() < span {
        let _guard = mutex.lock()?;
        if !hold.is_zero() {
            thread::sleep(hold);
        }
        had += 1;
    }
    say(had.to_string())
}

/// What the clients have sent, so far: what scripts do is not counted.
pub(crate) fn sent(connection: &mut redis::Connection) -> Outcome<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    let calls = |name: &str| {
        let head = format!("cmdstat_{name}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&head));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok())
    };
    // All that our clients send, but for their first words on a connection.
    Ok(["eval", "evalsha", "subscribe", "ping"]
        .into_iter()
        .filter_map(calls)
        .sum())
}

pub(crate) fn processes(extent: Extent) -> Outcome<Vec<Row>> {
    const WORKERS: usize = 8;
    let mut rows = Vec::new();
    for hold_us in [0, 1000, 10_000_u64] {
        let server = Server::start()?;
        let placement = pin(server.pid(), false);
        let span_ms = extent.of(10_000);
        let mut watch = connect(&server.url())?;
        let args = [server.url(), hold_us.to_string(), span_ms.to_string()];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut kids = (0..WORKERS)
            .map(|_| Kid::spawn("worker", &args))
            .collect::<Outcome<Vec<Kid>>>()?;
        let before = sent(&mut watch)?;
        kids.iter_mut().try_for_each(Kid::go)?;
        let mut had = Vec::new();
        for kid in &mut kids {
            had.push(kid.line()?.parse::<u64>()?);
        }
        let sent = sent(&mut watch)? - before;
        let total: u64 = had.iter().sum();
        let mean = total as f64 / WORKERS as f64;
        let share = *had.iter().min().unwrap_or(&0) as f64 / mean;
        let commands = sent as f64 / total as f64;
        let rate = total as f64 / (span_ms as f64 / 1000.0);
        // The floor is the hold itself: nobody can be quicker.
        let floor = if hold_us == 0 {
            f64::NAN
        } else {
            hold_us as f64
        };
        let row = Row::of(
            format!("processes_{}ms", hold_us / 1000),
            1e6 / rate,
            floor,
            "min/mean >= 0.5, commands an acquisition <= 4",
            share >= 0.5 && commands <= 4.0,
            placement,
        );
        let row = row.with("per_second", rate).with("min_by_mean", share);
        rows.push(row.with("commands", commands));
    }
    Ok(rows)
}
