//! A thread waits for a lock that somebody else keeps. Another thread ends the wait, as a program does
//! that has been told to stop.
//!
//! ```text
//! cargo run --example cancel
//! ```

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Canceller, Client, ErrorKind, Wait};
use support::Setup;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let setup = Setup::new("cancel")?;
    let client = || {
        Client::builder()
            .url(&setup.url)
            .namespace(&setup.namespace)
            .build()
    };
    let holder = client()?.mutex("order:12345");
    let guard = holder.lock()?;

    let canceller = Canceller::new();
    let (error, took) = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mutex = client()?.mutex("order:12345");
            mutex
                .lock_with(Wait::forever().cancelled_by(&canceller))
                .map(drop)
        });
        thread::sleep(Duration::from_millis(300)); // the waiter has long been waiting
        let asked = Instant::now();
        canceller.cancel(); // any thread may; and it may be called more than once
        let result = waiter.join().expect("the waiter does not panic");
        (result.expect_err("the lock was not free"), asked.elapsed())
    });

    println!("the waiter: {error}, {took:.1?} after cancel()");
    let left_over = holder.inspect()?.waiters;
    let held = guard.check().is_ok();
    guard.unlock()?;
    if error.kind() == ErrorKind::Cancelled && held && left_over == 0 {
        println!("the wait is over, the holder was not disturbed, nobody is queued");
        Ok(ExitCode::SUCCESS)
    } else {
        println!(
            "WRONG: {:?}, held {held}, {left_over} still queued",
            error.kind()
        );
        Ok(ExitCode::FAILURE)
    }
}
