//! What locks cost against the least that they could: `cargo bench --bench speed [-- --json --quick NAME…]`.
//!
//! Each thing is timed beside its floor, in turn, in one run, so that a machine that drifts drifts for both; the ratio of the
//! medians is what counts. Server and clients are pinned to a core each where there are two, as on two hosts.

#[path = "speed/child.rs"]
mod child;
#[path = "speed/crowds.rs"]
mod crowds;
#[path = "speed/floor.rs"]
mod floor;
#[path = "speed/handoff.rs"]
mod handoff;
#[path = "speed/many.rs"]
mod many;
#[path = "speed/names.rs"]
mod names;
#[path = "speed/pairs.rs"]
mod pairs;
#[path = "speed/report.rs"]
mod report;

use std::process::ExitCode;

use report::{Outcome, Row};

/// How much is done.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    quick: bool,
}

impl Extent {
    /// A tenth of it, if it is to be quick.
    fn of(self, whole: usize) -> usize {
        if self.quick {
            whole.div_ceil(10)
        } else {
            whole
        }
    }
}

type Bench = fn(Extent) -> Outcome<Vec<Row>>;

const BENCHES: [(&str, Bench); 11] = [
    ("uncontended", pairs::uncontended),
    ("uncontended_one_core", pairs::uncontended_one_core),
    ("temporary_handle", pairs::temporary_handle),
    ("uncontended_family", pairs::family),
    ("nested", pairs::nested),
    ("handoff", handoff::handoff),
    ("threads", crowds::threads),
    ("processes", crowds::processes),
    ("idle_waiters", many::idle_waiters),
    ("held_1000", many::held),
    ("names", names::names),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == child::FLAG) {
        return report::code(child::play(&args[1..]));
    }
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let (json, quick) = (has("--json"), has("--quick"));
    let names: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    if let Some(unknown) = names
        .iter()
        .find(|n| BENCHES.iter().all(|(name, _)| name != *n))
    {
        eprintln!("no bench {unknown:?}; there are:");
        BENCHES.iter().for_each(|(name, _)| eprintln!("  {name}"));
        return ExitCode::FAILURE;
    }
    let mut all_well = true;
    for (name, bench) in BENCHES {
        if !names.is_empty() && names.iter().all(|n| *n != name) {
            continue;
        }
        match bench(Extent { quick }) {
            Ok(rows) => rows.iter().for_each(|row| row.print(json)),
            Err(e) => {
                eprintln!("{name}: {e}");
                all_well = false;
            }
        }
    }
    if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
