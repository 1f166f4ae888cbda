//! Pooled connections: the user's own pool, or ours, and how few of them do.

use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, Manager};

use crate::support::ask::{BOUND, ask, timed};
use crate::support::wait::{eventually, raw};

/// A pool of the user's own: its size bounds the connections for acquiring and releasing, however many threads come.
#[test]
fn a_pool_of_the_users_own_is_used_and_not_exceeded() {
    let server = Server::start().unwrap();
    let manager = Manager::open(&server.url()).unwrap();
    let pool = r2d2::Pool::builder()
        .max_size(2)
        .min_idle(Some(0))
        .build(manager)
        .unwrap();
    let client = Client::builder()
        .pool(pool.clone())
        .ttl(Duration::from_millis(1500))
        .build()
        .unwrap();
    let clients = || -> usize {
        let list: String = ask(&mut raw(&server.url()), "CLIENT LIST");
        list.lines().count() - 1
    };
    std::thread::scope(|scope| {
        for n in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("job-{}", (n + round) % 5);
                    client
                        .mutex(name)
                        .try_lock_for(6 * BOUND)
                        .unwrap()
                        .unlock()
                        .unwrap();
                }
            });
        }
    });
    assert!(pool.state().connections <= 2);
    // Two of the pool, and those for renewals, for wakes and for cleaning up.
    assert!(clients() <= 2 + 3, "{} connections", clients());
    let guard = client.mutex("job").lock().unwrap();
    eventually(BOUND, "renewed", || client.metrics().renewals >= 1);
    guard.unlock().unwrap();
    assert_eq!(client.metrics().acquired, 8 * 20 + 1);
}

/// All connections of the given pool in use: said so, in the pool's own time.
#[test]
fn a_pool_without_a_free_connection_is_unavailable() {
    let server = Server::start().unwrap();
    let manager = Manager::open(&server.url()).unwrap();
    let timeout = Duration::from_millis(200);
    let pool = r2d2::Pool::builder()
        .max_size(1)
        .connection_timeout(timeout)
        .build(manager)
        .unwrap();
    let taken = pool.get().unwrap();
    let (took, error) = timed(|| Client::builder().pool(pool.clone()).build().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(taken);
    let client = Client::builder().pool(pool.clone()).build().unwrap();
    client.mutex("job").lock().unwrap().unlock().unwrap();
    let taken = pool.get().unwrap();
    let (took, error) = timed(|| client.mutex("job").try_lock_for(timeout).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("pooled connections"), "{error}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(taken);
}

/// A pool may test what it gives out, as r2d2's do by default: a connection whose server has gone is replaced, and a pool
/// before a dead server holds nobody up for long.
#[test]
fn a_pool_that_tests_its_connections_will_do() {
    let server = Server::start().unwrap();
    let manager = Manager::open(&server.url()).unwrap();
    let pool = r2d2::Pool::builder().max_size(1).build(manager).unwrap();
    let builder = || {
        let ms = Duration::from_millis(300);
        let builder = Client::builder().pool(pool.clone());
        builder.connect_timeout(ms).io_timeout(ms)
    };
    let client = builder().build().unwrap();
    client.mutex("job").lock().unwrap().unlock().unwrap();
    server.restart().unwrap();
    client.mutex("job").lock().unwrap().unlock().unwrap();
    server.kill().unwrap();
    let (took, error) = timed(|| builder().build().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// One in a lifetime, two or a thousand waiting threads: `pool_size` is what bounds the connections.
#[test]
fn a_pool_of_one_serves_many_threads() {
    let server = Server::start().unwrap();
    let builder = Client::builder().url(&server.url()).pool_size(1);
    let client = builder.build().unwrap();
    let holder = server.client();
    let guard = holder.mutex("busy").lock().unwrap();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| client.mutex("busy").try_lock_for(6 * BOUND).map(drop)))
            .collect();
        let known = || holder.mutex("busy").inspect().unwrap().waiters == 1;
        eventually(BOUND, "they wait", known);
        // Waiting holds no pooled connection.
        client
            .mutex("free")
            .try_lock_for(BOUND)
            .unwrap()
            .unlock()
            .unwrap();
        guard.unlock().unwrap();
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().unwrap().unwrap());
    });
}
