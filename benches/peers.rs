//! Our locks beside those of other libraries: `cargo bench --bench peers [-- --quick --json --save NAME…]`.
//!
//! Builds the others under `target/peers/` from their registries, each in a version that stands here, and runs the same work
//! against the same server, one library after the other, in rounds that each begin with another one. Each is used as its
//! documentation recommends, with its renewal where it has one. One that can't be had is listed as such. `--save` writes
//! `benches/peers/results.{json,md,svg}`.

#[path = "peers/build.rs"]
mod build;
#[path = "peers/chart.rs"]
mod chart;
#[path = "peers/report.rs"]
mod report;
#[path = "peers/run.rs"]
mod run;

use std::path::Path;
use std::process::ExitCode;

use leasehold::Client;
use leasehold::testing::Server;

include!("peers/work.rs");

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The first argument of one of our own workers.
const WORKER: &str = "--worker";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((flag, args)) if flag == WORKER => our_own(args),
        _ => measure(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Ours as a worker.
fn our_own(args: &[String]) -> Outcome<()> {
    let client = Client::open(args.get(1).ok_or("no url")?)?;
    let is_fair = args[0] == "leasehold-fair";
    work(args, |name, section| {
        // As programs do it: a handle made when it is needed.
        if is_fair {
            let _guard = client.fair_mutex(name).lock().expect("the lock");
            section();
        } else {
            let _guard = client.mutex(name).lock().expect("the lock");
            section();
        }
    });
    Ok(())
}

fn measure(args: &[String]) -> Outcome<()> {
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let names: Vec<&str> = args
        .iter()
        .map(String::as_str)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chosen: Vec<build::Library> = build::LIBRARIES
        .into_iter()
        .filter(|l| names.is_empty() || names.contains(&l.lib))
        .collect();
    if chosen.is_empty() {
        let all = build::LIBRARIES.map(|l| l.lib).join(", ");
        return Err(format!("none of these is known: {names:?}; there are {all}").into());
    }
    let built = build::build(here, &chosen);
    let server = Server::start()?;
    let measured = run::run(&server, &built, has("--quick"))?;
    let machine = report::Machine::of(&server.url())?;
    if has("--json") {
        measured.iter().for_each(|m| println!("{}", m.json()));
    } else {
        println!("{}", report::table(&machine, &measured));
    }
    if has("--save") {
        let to = here.join("benches/peers");
        let lines: Vec<String> = measured.iter().map(run::Measured::json).collect();
        std::fs::write(
            to.join("results.json"),
            format!("[\n{}\n]\n", lines.join(",\n")),
        )?;
        std::fs::write(to.join("results.md"), report::table(&machine, &measured))?;
        std::fs::write(to.join("results.svg"), chart::draw(&machine, &measured))?;
    }
    Ok(())
}
