//! The same job is due on three hosts, and their clocks differ. One of them runs it. The lock is kept for
//! a while after the job, so that a host whose clock is behind does not run it a second time.
//!
//! ```text
//! cargo run --example cron_once
//! ```

mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{BusyAsNone, Client};
use support::Setup;

/// Longer than clocks differ, shorter than the time between two runs.
const HOLD_AT_LEAST: Duration = Duration::from_secs(2);
const BETWEEN_RUNS: Duration = Duration::from_millis(2_500);

/// What each host does when the job is due. Says whether the job ran here.
fn fire(client: &Client, job: impl FnOnce()) -> leasehold::Result<bool> {
    let mutex = client
        .mutex("nightly-report")
        .with_hold_at_least(HOLD_AT_LEAST);
    let Some(guard) = mutex.try_lock().busy_as_none()? else {
        return Ok(false); // it runs elsewhere, or has just run
    };
    job();
    guard.unlock()?; // given back here; free for others when HOLD_AT_LEAST is over
    Ok(true)
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let setup = Setup::new("cron-once")?;
    let mut runs_each = Vec::new();
    for run in 1..=2 {
        if run > 1 {
            thread::sleep(BETWEEN_RUNS);
        }
        let runs = AtomicUsize::new(0);
        thread::scope(|scope| {
            let hosts: Vec<_> = (0..3_u64)
                .map(|host| {
                    let (setup, runs) = (&setup, &runs);
                    scope.spawn(move || -> leasehold::Result<()> {
                        let client = Client::builder()
                            .url(&setup.url)
                            .namespace(&setup.namespace)
                            .holder_label(&format!("host-{host}"))
                            .build()?;
                        thread::sleep(Duration::from_millis(200 * host)); // its clock is behind
                        let ran = fire(&client, || thread::sleep(Duration::from_millis(50)))?;
                        runs.fetch_add(usize::from(ran), Ordering::Relaxed);
                        println!(
                            "run {run}, host-{host}: {}",
                            if ran { "ran" } else { "left it" }
                        );
                        Ok(())
                    })
                })
                .collect();
            hosts
                .into_iter()
                .try_for_each(|host| host.join().expect("no host panics"))
        })?;
        runs_each.push(runs.into_inner());
    }
    if runs_each == [1, 1] {
        println!("due twice on three hosts, ran twice");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("WRONG: ran {runs_each:?} times, [1, 1] expected");
        Ok(ExitCode::FAILURE)
    }
}
