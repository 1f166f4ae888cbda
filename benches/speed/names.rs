//! Very many names, one after the other.

use std::time::{Duration, Instant};

use leasehold::testing::{Server, entries};

use crate::Extent;
use crate::floor::{Floor, connect, pin};
use crate::report::{Outcome, Row, quantile};

const NAMES: usize = 200_000;
const STRETCH: usize = 10_000;

fn used_memory(connection: &mut redis::Connection) -> Outcome<f64> {
    let info: String = redis::cmd("INFO").arg("memory").query(connection)?;
    let line = info.lines().find_map(|l| l.strip_prefix("used_memory:"));
    Ok(line.ok_or("no used_memory")?.trim().parse()?)
}

pub(crate) fn names(extent: Extent) -> Outcome<Vec<Row>> {
    let server = Server::start()?;
    let placement = pin(server.pid(), false);
    let client = server.client();
    let mut floor = Floor::connect(&server.url())?;
    let mut watch = connect(&server.url())?;
    let (names, stretch) = (extent.of(NAMES), extent.of(STRETCH));
    // Both have run for a while when it begins.
    for i in 0..2000 {
        floor.pair()?;
        drop(client.mutex(format!("warm:{}", i % 10)).lock()?);
    }
    let memory = used_memory(&mut watch)?;
    let mut ends = Vec::new();
    let mut i = 0;
    // The floor beside the locks at both ends: a machine that drifts drifts for both.
    for part in [stretch, names - 2 * stretch, stretch] {
        let (mut bare, mut ours) = (Vec::new(), Vec::<Duration>::new());
        for _ in 0..part {
            if part == stretch {
                let start = Instant::now();
                floor.pair()?;
                bare.push(start.elapsed());
            }
            let name = format!("name:{i:06}");
            i += 1;
            let start = Instant::now();
            drop(client.mutex(name).lock()?);
            ours.push(start.elapsed());
        }
        if part == stretch {
            ends.push((quantile(&mut ours, 50), quantile(&mut bare, 50)));
        }
    }
    let bytes = (used_memory(&mut watch)? - memory) / names as f64;
    let kept: i64 = redis::cmd("PTTL")
        .arg("{name:000000}:lh:s")
        .query(&mut watch)?;
    let left = entries(&client);
    let [(first, first_floor), (last, last_floor)] = ends[..] else {
        return Err("no two ends".into());
    };
    // Of the ratios to the floor.
    let change = (last / last_floor) / (first / first_floor);
    let row = Row::of(
        "names",
        last,
        first,
        "last within 10 % of first, tables empty",
        (0.9..=1.1).contains(&change) && left == 0,
        placement,
    );
    Ok(vec![
        row.with("change_against_floor", change)
            .with("entries_left", left as f64)
            .with("server_bytes_a_name", bytes)
            .with("kept_seconds", (kept as f64 / 1000.0).round()),
    ])
}
