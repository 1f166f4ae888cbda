//! What the models found, each by itself.

use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{FairMutex, RwLock};
use redis::Connection;

use crate::support::ask::{BOUND, ask, elsewhere};
use crate::support::scripts::source;
use crate::support::wait::{eventually, raw};

/// redisson#1104 and its kind: an own entry on the list must not stand in a waiter's way. Every look of a fair waiter was
/// answered "dead token", because the list holds its token, and after some of them `lock` failed.
#[test]
fn a_fair_waiter_may_look_as_often_as_it_likes() {
    let server = Server::start().unwrap();
    // Half a second between two looks.
    let ttl = Duration::from_millis(1500);
    let lock = || FairMutex::new(&server.client(), "queue").with_ttl(ttl);
    let held = lock().lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock().lock().map(drop));
        let mut raw = raw(&server.url());
        eventually(BOUND, "a waiter", || {
            ask::<String>(&mut raw, "GET {queue}:lh:s").contains(",f,")
        });
        // Six looks and more.
        thread::sleep(3 * ttl);
        drop(held);
        waiter.join().unwrap().unwrap();
    });
}

/// Invariant 5, and "nothing shortens": a wait that ended left the table an hour, whatever the leases in it.
#[test]
fn one_who_gives_up_a_wait_does_not_shorten_a_long_lease() {
    let server = Server::start().unwrap();
    let day = Duration::from_secs(24 * 3600);
    let reader = RwLock::new(&server.client(), "long").with_fixed_lease(day);
    let _read = reader.read().unwrap();
    let writer = RwLock::new(&server.client(), "long");
    let refused = elsewhere(|| writer.try_write_for(Duration::from_millis(100)).map(drop));
    assert!(refused.is_err(), "{refused:?}");
    let mut raw = raw(&server.url());
    let key: Vec<String> = ask(&mut raw, "KEYS *:lh:rw");
    let left: u128 = ask(&mut raw, &format!("PTTL {}", key[0]));
    assert!(left > day.as_millis() - 10_000, "{left} ms left of a day");
}

fn acquire(raw: &mut Connection, token: &str, mode: &str, ticket: &str) -> bool {
    let mut call = redis::cmd("EVAL");
    call.arg(source("acquire_rw")).arg(1).arg("rw");
    call.arg(token).arg(30_000).arg("label\nkind");
    call.arg("0".repeat(16)).arg(600_000);
    call.arg(ticket).arg(format!("{mode},3000,{token}"));
    let reply: redis::Value = call.arg(mode).query(raw).unwrap();
    matches!(reply, redis::Value::BulkString(_))
}

/// Invariant 8: where no message comes through, those who wait find the truth by looking.
#[test]
fn a_reader_and_a_writer_whom_no_message_reaches_do_not_wait_for_each_other() {
    let server = Server::start().unwrap();
    let raw = &mut raw(&server.url());
    let token = |c: &str| c.repeat(32);
    let ticket = |c: &str| c.repeat(40);
    assert!(acquire(raw, &token("a"), "w", &ticket("1")));
    assert!(!acquire(raw, &token("b"), "r", &ticket("2")));
    assert!(!acquire(raw, &token("c"), "w", &ticket("3")));
    let mut release = redis::cmd("EVAL");
    release.arg(source("release_table")).arg(1).arg("rw");
    let released: i64 = release.arg(token("a")).arg("C").query(raw).unwrap();
    assert_eq!(released, 1);
    let reader = acquire(raw, &token("b"), "r", &ticket("2"));
    let writer = acquire(raw, &token("c"), "w", &ticket("3"));
    assert!(reader && !writer, "reader {reader}, writer {writer}");
}
