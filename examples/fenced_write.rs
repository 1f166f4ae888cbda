//! A holder is paused for longer than its lease, wakes up and writes. A table that remembers the highest
//! token refuses that late write; a table that does not is overwritten.
//!
//! ```text
//! cargo run --example fenced_write
//! ```

mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold::{Client, FencingToken};
use support::Setup;

/// A table with one row. In SQL: UPDATE results SET data = ?, token = ? WHERE period = ? AND token <= ?
#[derive(Default)]
struct Table {
    row: Mutex<(Option<FencingToken>, String)>,
}

impl Table {
    /// Comparing and writing must be one step, or the late writer slips in between.
    fn write_unless_stale(&self, data: &str, token: FencingToken) -> bool {
        let mut row = self.row.lock().unwrap();
        if row.0.is_some_and(|highest| token < highest) {
            return false;
        }
        *row = (Some(token), data.to_owned());
        true
    }

    fn write_blindly(&self, data: &str) {
        self.row.lock().unwrap().1 = data.to_owned();
    }

    fn read(&self) -> String {
        self.row.lock().unwrap().1.clone()
    }
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let setup = Setup::new("fenced-write")?;
    let (fenced, blind) = (Table::default(), Table::default());
    let client = || {
        Client::builder()
            .url(&setup.url)
            .namespace(&setup.namespace)
            .build()
    };

    // A fixed lease is not renewed. That stands in here for a process that is paused as a whole
    // (a stopped container, a suspended machine), and its renewing with it.
    let mutex = client()?
        .mutex("settle:2026-07")
        .with_fixed_lease(Duration::from_millis(300));
    let paused = mutex.lock()?;
    println!("first holder:  token {}", paused.fencing_token());

    thread::scope(|scope| {
        let second = scope.spawn(|| -> leasehold::Result<()> {
            let guard = client()?.mutex("settle:2026-07").lock()?; // once the lease has run out
            let token = guard.fencing_token();
            println!("second holder: token {token}, {:?}", guard.predecessor());
            fenced.write_unless_stale("by the second holder", token);
            blind.write_blindly("by the second holder");
            guard.unlock()
        });
        second.join().expect("the second holder does not panic")
    })?;

    // The first holder wakes up. Asking comes first in real code, too; but the pause may as well have
    // come between the asking and the writing, so suppose that it did and write all the same.
    let noticed = paused.check().is_err();
    println!(
        "first holder:  check() says: {:?}",
        paused.check().map_err(|lost| lost.to_string())
    );
    let accepted = fenced.write_unless_stale("by the first holder", paused.fencing_token());
    if !accepted {
        paused.stale_write_rejected(); // counted: the fence did its work
    }
    blind.write_blindly("by the first holder");

    println!("fenced table:  written {}", fenced.read());
    println!("blind table:   written {}", blind.read());
    if noticed && !accepted && fenced.read() == "by the second holder" {
        println!("the late write was refused");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("WRONG: noticed {noticed}, late write accepted {accepted}");
        Ok(ExitCode::FAILURE)
    }
}
