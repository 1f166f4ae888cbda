//! A lock and its drop, nobody else in the way.

use std::hint::black_box;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::testing::Server;

use crate::Extent;
use crate::floor::{Floor, pin};
use crate::report::{Outcome, Row, quantile};

const ROUNDS: usize = 9;
const PAIRS: usize = 3000;

/// Times `floor` and `thing` in turn. The first round warms up.
fn pairs(
    extent: Extent,
    mut floor: impl FnMut() -> Outcome<()>,
    mut thing: impl FnMut() -> Outcome<()>,
) -> Outcome<[Vec<Duration>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for _ in 0..extent.of(PAIRS) {
            let start = Instant::now();
            floor()?;
            let bare = start.elapsed();
            let start = Instant::now();
            thing()?;
            let ours = start.elapsed();
            if round > 0 {
                times[0].push(bare);
                times[1].push(ours);
            }
        }
    }
    Ok(times)
}

fn row(name: &str, mut times: [Vec<Duration>; 2], most: f64, placement: &str) -> Row {
    let [bare, ours] = &mut times;
    let (floor, value) = (quantile(bare, 50), quantile(ours, 50));
    let (floor_p99, value_p99) = (quantile(bare, 99), quantile(ours, 99));
    Row::of_times(name, value, floor, most, placement)
        .and("p99 <= 2 x", value_p99 <= floor_p99 * 2.0)
        .with("p99_ratio", value_p99 / floor_p99)
        .with("rounds", ROUNDS as f64)
}

fn mutex(name: &str, extent: Extent, together: bool, most: f64) -> Outcome<Vec<Row>> {
    let server = Server::start()?;
    let placement = pin(server.pid(), together);
    let mutex = server.client().mutex("speed");
    let mut floor = Floor::connect(&server.url())?;
    let times = pairs(extent, || floor.pair(), || done(mutex.lock()))?;
    Ok(vec![row(name, times, most, placement)])
}

pub(crate) fn uncontended(extent: Extent) -> Outcome<Vec<Row>> {
    mutex("uncontended", extent, false, 1.15)
}

pub(crate) fn uncontended_one_core(extent: Extent) -> Outcome<Vec<Row>> {
    mutex("uncontended_one_core", extent, true, 1.7)
}

/// A fresh handle and a fresh name each time, against a handle that is kept.
pub(crate) fn temporary_handle(extent: Extent) -> Outcome<Vec<Row>> {
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let client = server.client();
    let mutex = client.mutex("speed");
    let mut n = 0;
    let mut threads = Vec::new();
    let temporary = || {
        n += 1;
        drop(client.mutex(format!("speed:{n}")).lock()?);
        if n % 500 == 0 {
            threads.push(std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count));
        }
        Ok(())
    };
    let times = pairs(extent, || done(mutex.lock()), temporary)?;
    let spawned = threads.last().unwrap_or(&0) - threads.first().unwrap_or(&0);
    let row = row("temporary_handle", times, 1.1, placement)
        .and("no thread spawned", spawned == 0)
        .with("threads_spawned", spawned as f64);
    Ok(vec![row])
}

fn done<T>(taken: leasehold::Result<T>) -> Outcome<()> {
    drop(taken?);
    Ok(())
}

type Take<'a> = Box<dyn FnMut() -> Outcome<()> + 'a>;

pub(crate) fn family(extent: Extent) -> Outcome<Vec<Row>> {
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let client: Client = server.client();
    let reentrant = client.reentrant_mutex("speed:re");
    let fair = client.fair_mutex("speed:fair");
    let rw = client.rw_lock("speed:rw");
    let semaphore = client.semaphore("speed:sem", 5);
    let multi = client.multi_mutex(["speed:a", "speed:b", "speed:c"]);
    let kinds: [(&str, Take<'_>); 7] = [
        ("reentrant_mutex", Box::new(|| done(reentrant.lock()))),
        ("fair_mutex", Box::new(|| done(fair.lock()))),
        ("read", Box::new(|| done(rw.read()))),
        ("upgradable_read", Box::new(|| done(rw.upgradable_read()))),
        ("write", Box::new(|| done(rw.write()))),
        ("semaphore", Box::new(|| done(semaphore.acquire()))),
        ("three_names", Box::new(|| done(multi.lock()))),
    ];
    let mut rows = Vec::new();
    for (name, take) in kinds {
        let mut floor = match name {
            "three_names" => Floor::of_several(&server.url(), 3)?,
            _ => Floor::connect(&server.url())?,
        };
        let times = pairs(extent, || floor.pair(), take)?;
        rows.push(row(&format!("family_{name}"), times, 1.35, placement));
    }
    Ok(rows)
}

/// Nested in a lock of the same thread: no server has a part in it. Its floor is an uncontended `std::sync::Mutex`.
pub(crate) fn nested(extent: Extent) -> Outcome<Vec<Row>> {
    const TIMES: u32 = 10_000;
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let mutex = server.client().reentrant_mutex("speed");
    let outer = mutex.lock()?;
    let plain = std::sync::Mutex::new(());
    let per_call = |of: Duration| of / TIMES;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..extent.of(100).max(5) {
        let start = Instant::now();
        for _ in 0..TIMES {
            drop(black_box(plain.lock()));
        }
        bare.push(per_call(start.elapsed()));
        let start = Instant::now();
        for _ in 0..TIMES {
            drop(black_box(mutex.lock()?));
        }
        ours.push(per_call(start.elapsed()));
    }
    drop(outer);
    let value = quantile(&mut ours, 50);
    let row = Row::of(
        "nested",
        value,
        quantile(&mut bare, 50),
        "<= 0.2 us",
        value <= 0.2,
        placement,
    );
    Ok(vec![row])
}
