//! From one process to the next: each holds the lock for 200 µs while the other waits for it.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::testing::Server;
use rustix::time::{ClockId, clock_gettime};

use crate::Extent;
use crate::child::{Kid, ready, say};
use crate::floor::{connect, pin};
use crate::report::{Outcome, Row, quantile};

const TURNS: usize = 1500;
const ROUNDS: usize = 5;
const HOLD: Duration = Duration::from_micros(200);

/// How it goes round, and the bar.
const WAYS: [(&str, f64); 3] = [("publish", 0.0), ("fair", 1.6), ("mutex", 2.0)];

/// On a clock that all processes share (ns).
fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn hold() -> (u64, u64) {
    let (start, got) = (Instant::now(), now());
    while start.elapsed() < HOLD {
        std::hint::spin_loop();
    }
    (got, now())
}

/// One of the two: says when it had it, and when it began to give it back.
pub(crate) fn side(args: &[String]) -> Outcome<()> {
    let [way, url, me, turns] = args else {
        return Err("a way, a url, a side and a number".into());
    };
    let (me, turns): (usize, usize) = (me.parse()?, turns.parse()?);
    let mut held = Vec::with_capacity(turns);
    if way == "publish" {
        let mut to = connect(url)?;
        let mut from = connect(url)?;
        let mut from = from.as_pubsub();
        from.subscribe(format!("side:{me}"))?;
        ready()?;
        for turn in 0..turns {
            if me + turn > 0 {
                let _ = from.get_message()?;
            }
            held.push(hold());
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(format!("side:{}", 1 - me)).arg("00000000speed");
            let _: i64 = publish.query(&mut to)?;
        }
    } else {
        let client = Client::open(url)?;
        let (mutex, fair) = (client.mutex("speed"), client.fair_mutex("speed"));
        ready()?;
        for _ in 0..turns {
            if way == "fair" {
                let _guard = fair.lock()?;
                held.push(hold());
            } else {
                let _guard = mutex.lock()?;
                held.push(hold());
            }
        }
    }
    held.iter()
        .try_for_each(|(got, gave)| say(format!("{got} {gave}")))
}

/// From the beginning of a release to the other's return from `lock()`.
fn round(way: &str, url: &str, turns: usize) -> Outcome<Vec<Duration>> {
    let turns_text = turns.to_string();
    let mut kids = [
        Kid::spawn("handoff", &[way, url, "0", &turns_text])?,
        Kid::spawn("handoff", &[way, url, "1", &turns_text])?,
    ];
    kids.iter_mut().rev().try_for_each(Kid::go)?;
    let mut held = Vec::new();
    for (side, kid) in kids.iter_mut().enumerate() {
        for _ in 0..turns {
            let line = kid.line()?;
            let (got, gave) = line.split_once(' ').ok_or("no two times")?;
            held.push((got.parse::<u64>()?, gave.parse::<u64>()?, side));
        }
    }
    held.sort_unstable();
    let handed = held.windows(2).filter(|pair| pair[0].2 != pair[1].2);
    let took = |pair: &[(u64, u64, usize)]| pair[1].0.saturating_sub(pair[0].1);
    let times: Vec<_> = handed
        .map(|pair| Duration::from_nanos(took(pair)))
        .collect();
    if times.len() < turns {
        return Err(format!(
            "{way}: only {} of {} turns changed sides",
            times.len(),
            2 * turns
        )
        .into());
    }
    Ok(times)
}

pub(crate) fn handoff(extent: Extent) -> Outcome<Vec<Row>> {
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let mut all = [const { Vec::new() }; WAYS.len()];
    for _ in 0..ROUNDS {
        for ((way, _), times) in WAYS.iter().zip(&mut all) {
            times.extend(round(way, &server.url(), extent.of(TURNS))?);
        }
    }
    let [floor, rest @ ..] = &mut all;
    let (floor_p50, floor_p99) = (quantile(floor, 50), quantile(floor, 99));
    let rows = WAYS[1..].iter().zip(rest).map(|((way, most), times)| {
        let value = quantile(times, 50);
        Row::of_times(format!("handoff_{way}"), value, floor_p50, *most, placement)
            .with("p99_us", quantile(times, 99))
            .with("floor_p99_us", floor_p99)
            .with("rounds", ROUNDS as f64)
    });
    Ok(rows.collect())
}
