//! Waiting: who waits is woken when it is free, holds no connection meanwhile, and every one of many comes to its turn.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::testing::entries;

use super::kind::Kind;
use super::topology::Topology;
use crate::support::ask::{BOUND, ask};
use crate::support::wait::{eventually, one_of};

cases! {
    all: [
        who_waits_is_woken_at_once,
        thirty_threads_wait_with_one_connection,
        who_waits_outlasts_many_leases,
    ],
    marked: [],
}

/// redisson#1763, #763: three hand-overs in a row, each to one who has just begun to wait, take less time than one poll (750 ms
/// at the least; 1 s for those who queue). A waiter that found the lock by its poll would take that long each time.
fn who_waits_is_woken_at_once<T: Topology>(kind: Kind) {
    let topology = T::start();
    let (client, other) = (topology.builder().build().unwrap(), topology.outsider());
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    one_of(3, || {
        let mut total = Duration::ZERO;
        for _ in 0..3 {
            let holder = rival.lock().unwrap();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let held = lock.try_lock_for(BOUND).unwrap();
                    let now = Instant::now();
                    held.unlock().unwrap();
                    now
                });
                eventually(BOUND, "it waits", || rival.waiters() == 1);
                let start = Instant::now();
                holder.unlock().unwrap();
                total += waiter.join().unwrap().saturating_duration_since(start);
            });
        }
        if total > Duration::from_millis(600) {
            return Err(format!("{total:?}"));
        }
        Ok(())
    });
    assert_eq!(entries(&client), 0);
    assert!(client.metrics().contended >= 3);
}

/// go-redis#1798, invariant 7: a wait holds no pooled connection. Thirty threads wait while the client has one, with which it
/// goes on working; then all of them come to their turn.
fn thirty_threads_wait_with_one_connection<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().pool_size(1).build().unwrap();
    let other = topology.outsider();
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    let holder = rival.lock().unwrap();
    let (tell, told) = unbounded();
    thread::scope(|scope| {
        for _ in 0..30 {
            let (lock, tell) = (lock.clone(), tell.clone());
            scope.spawn(move || {
                let held = lock.try_lock_for(4 * BOUND).unwrap();
                tell.send(held.fencing_token().get()).unwrap();
                held.unlock().unwrap();
            });
        }
        // Each of them is in a table of the client, once or more, and none of them has it.
        eventually(BOUND, "they wait", || {
            entries(&client) >= 30 && rival.waiters() >= 1
        });
        assert!(told.is_empty());
        let free = kind.of(&client, "another");
        free.try_lock().unwrap().unlock().unwrap();
        assert!(topology.proxy().connections() <= 1 + 3);
        let start = Instant::now();
        holder.unlock().unwrap();
        let mut tokens: Vec<u64> = (0..30)
            .map(|_| told.recv_timeout(4 * BOUND).expect("a turn"))
            .collect();
        let took = start.elapsed();
        assert!(took < BOUND, "{took:?}");
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 30, "each was a grant of its own");
        assert!(topology.proxy().connections() <= 1 + 3);
    });
    eventually(BOUND, "nothing is left", || entries(&client) == 0);
    assert_eq!(rival.waiters(), 0);
    assert!(kind.is_free(&topology, "job"));
}

/// redislock#21: a wait is not capped at the ttl: the holder's lease, and the waiter's own, run out twice over, being
/// renewed, and the waiter is still on the list, whatever it does there at each of its looks.
fn who_waits_outlasts_many_leases<T: Topology>(kind: Kind) {
    let topology = T::start();
    let ttl = Duration::from_millis(1500);
    let client = topology.builder().ttl(ttl).build().unwrap();
    let other = topology.builder().ttl(ttl).build().unwrap();
    let (lock, rival) = (kind.of(&client, "job"), kind.rival().of(&other, "job"));
    let holder = rival.lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let held = lock.lock().unwrap();
            held.verify().unwrap();
            held.fencing_token()
        });
        eventually(BOUND, "two leases have passed", || {
            kind.rival().renewals(&topology, "job") >= 6
        });
        assert_eq!(rival.waiters(), 1);
        assert!(!waiter.is_finished());
        let token = holder.fencing_token();
        holder.unlock().unwrap();
        assert!(waiter.join().unwrap() > token);
    });
    let mut raw = topology.raw("job");
    drop((lock, client, rival, other));
    eventually(BOUND, "no channel is left", || {
        ask::<Vec<String>>(&mut raw, "PUBSUB CHANNELS").is_empty()
    });
}
