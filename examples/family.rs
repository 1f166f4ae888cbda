//! Every kind of lock in a few lines, against a server of its own (or the one at `$REDIS_URL`).

use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{BusyAsNone, Client, ErrorKind};

fn main() -> leasehold::Result<()> {
    let (client, server) = match std::env::var("REDIS_URL") {
        Ok(url) => (
            Client::builder()
                .url(&url)
                .namespace("family-example")
                .build()?,
            None,
        ),
        Err(_) => {
            let server = Server::start()?;
            (server.client(), Some(server))
        }
    };
    reentrant(&client)?;
    fair(&client)?;
    read_write(&client)?;
    semaphore(&client)?;
    several(&client)?;
    drop(server);
    Ok(())
}

/// A function that locks may be called by one that has the lock.
fn reentrant(client: &Client) -> leasehold::Result<()> {
    let account = client.reentrant_mutex("account:7");
    let outer = account.lock()?;
    let inner = account.lock()?; // no round trip
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    println!(
        "reentrant: locked {} times, token {}",
        outer.depth(),
        outer.fencing_token()
    );
    Ok(())
}

/// Whoever came first is served first.
fn fair(client: &Client) -> leasehold::Result<()> {
    let printer = client.fair_mutex("printer");
    let guard = printer.lock()?;
    thread::scope(|scope| {
        let mut jobs = Vec::new();
        for job in 1..=3 {
            let printer = &printer;
            jobs.push(scope.spawn(move || {
                let _turn = printer.lock()?;
                println!("fair: job {job}");
                leasehold::Result::Ok(())
            }));
            while printer.waiters()? < job {
                thread::sleep(Duration::from_millis(1));
            }
        }
        guard.unlock()?;
        jobs.into_iter()
            .try_for_each(|job| job.join().expect("a job does not panic"))
    })
}

/// Readers together, a writer alone, and the ways from one to the other.
fn read_write(client: &Client) -> leasehold::Result<()> {
    let prices = client.rw_lock("prices");
    let reading = prices.upgradable_read()?;
    let other = thread::scope(|scope| {
        scope
            .spawn(|| {
                prices
                    .try_write()
                    .busy_as_none()
                    .map(|guard| guard.is_some())
            })
            .join()
            .expect("no panic")
    })?;
    println!("read-write: while one reads, another may write: {other}");
    let writing = reading.upgrade()?; // nobody wrote in between
    println!("read-write: written with token {}", writing.fencing_token());
    let reading = writing.downgrade()?; // nor here
    reading.unlock()
}

/// At most so many at once, on all hosts together.
fn semaphore(client: &Client) -> leasehold::Result<()> {
    let uploads = client.semaphore("uploads", 3);
    let _two = uploads.acquire_many(2)?;
    let _one = uploads.acquire()?;
    let error = uploads.try_acquire().expect_err("all three are taken");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    println!("semaphore: {} of 3 free", uploads.available_permits()?);
    Ok(())
}

/// All or none, so that two transfers in opposite directions can't wait for each other.
fn several(client: &Client) -> leasehold::Result<()> {
    let both = client.multi_mutex(["account:7", "account:3"]);
    let guard = both.lock()?;
    println!(
        "several: {} with token {}",
        guard.name(),
        guard.fencing_token()
    );
    guard.unlock()
}
