//! Invariant 5: every key has a ttl, at every instant, as any other client sees it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::lose;
use leasehold::{BusyAsNone, Client, Mutex};

use crate::support::child::{Child, args, say};
use crate::support::locks::{
    BOUND, Scene, Script, any, delete, keys_without_ttl, ms, pttl, secs, take_as_foreigner,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::eventually;

pub(crate) const ROLES: &[(&str, fn())] = &[("ttl/churn", churn)];

/// All that can be done with one lock, over and over: it is contended, so that some of it fails.
fn churn_once(mutex: &Mutex, round: u32) {
    let try_for = |mutex: &Mutex, d| mutex.try_lock_for(d).busy_as_none();
    match round % 6 {
        0 => drop(mutex.try_lock().busy_as_none()),
        1 => {
            // Held until it is renewed.
            if let Ok(Some(guard)) = try_for(mutex, ms(300)) {
                thread::sleep(ms(120));
                drop(guard.unlock());
            }
        }
        2 => drop(try_for(&mutex.clone().with_hold_at_least(ms(40)), ms(100))),
        3 => {
            if let Ok(Some(guard)) = try_for(&mutex.clone().with_fixed_lease(ms(50)), ms(100)) {
                // Past its end now and then.
                thread::sleep(ms(30) * (round % 4));
                drop(guard);
            }
        }
        4 => drop(mutex.clone().with_max_hold(ms(60)).try_lock()),
        _ => {
            if let Ok(Some(guard)) = try_for(mutex, ms(20)) {
                if round % 4 == 1 {
                    lose(&guard);
                }
                drop(guard);
            }
        }
    }
}

/// Invariant 5, redis-py#818, #554: another client that does nothing but look never sees a key without a ttl.
#[test]
fn nobody_ever_sees_a_key_without_a_ttl() {
    let bench = Scene::new();
    let over = AtomicBool::new(false);
    let mut looks = 0_u32;
    let mut seen = HashSet::new();
    thread::scope(|s| {
        let workers: Vec<_> = (0..6)
            .map(|t| {
                let client = bench.client_with(ms(300));
                let (bench, over) = (&bench, &over);
                s.spawn(move || {
                    let mut raw = bench.raw();
                    for round in t.. {
                        let name = ["a", "b"][round as usize % 2];
                        let mutex = client.mutex(name);
                        churn_once(&mutex, round);
                        match round % 23 {
                            5 => drop(mutex.force_unlock()),
                            // By hand, under whoever has it.
                            11 => drop(delete(&mut raw, &format!("{{{name}}}:lh:s"))),
                            17 => drop(delete(&mut raw, name)),
                            _ => {}
                        }
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                })
            })
            .collect();
        // Replies that are lost make for repeated acquires, leaves and releases.
        for script in [
            Script::Acquire,
            Script::Renew,
            Script::Release,
            Script::Leave,
        ] {
            let lost = Action::DropReply;
            bench.proxy.rule(any(script), lost, Times::N(5));
        }
        let mut raw = bench.raw();
        let began = Instant::now();
        let enough = |script| bench.proxy.count(any(script)) >= 10;
        let all = [
            Script::Acquire,
            Script::Renew,
            Script::Release,
            Script::Leave,
            Script::ForceUnlock,
        ];
        while began.elapsed() < ms(1500) || !all.into_iter().all(enough) {
            assert!(began.elapsed() < BOUND, "not enough happens");
            for _ in 0..50 {
                let bad = keys_without_ttl(&mut raw);
                if !bad.is_empty() {
                    over.store(true, Ordering::Relaxed);
                }
                assert!(bad.is_empty(), "without a ttl: {bad:?}");
                looks += 1;
            }
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut raw).unwrap();
            seen.extend(keys);
        }
        over.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    assert!(looks >= 500, "{looks}");
    let expected = ["a", "b", "{a}:lh:s", "{b}:lh:s"].map(String::from);
    assert_eq!(seen, HashSet::from(expected));
}

/// Says "on" and churns until it is killed.
fn churn() {
    let [url] = &args()[..] else {
        panic!("one argument")
    };
    let client = Client::builder().url(url).ttl(ms(500)).build().unwrap();
    client.ping().unwrap();
    say("on");
    thread::scope(|s| {
        for t in 0..3_u32 {
            let mutex = client.mutex(["a", "b"][t as usize % 2]);
            s.spawn(move || {
                for round in t.. {
                    churn_once(&mutex, round);
                }
            });
        }
    });
}

/// Invariant 5, redis-py#818, #554: killed at any moment, a process leaves no key behind for good, and its locks come free.
#[test]
fn a_process_killed_at_any_moment_leaves_no_key_without_a_ttl() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let random = RandomState::new();
    for round in 0..8_u32 {
        let mut children: Vec<Child> = (0..2)
            .map(|_| Child::role("ttl/churn").arg(bench.proxy.url()).spawn())
            .collect();
        for child in &children {
            child.wait_for("on", BOUND);
        }
        thread::sleep(Duration::from_micros(random.hash_one(round) % 120_000));
        for child in &mut children {
            child.kill();
        }
        let bad = keys_without_ttl(&mut raw);
        assert!(bad.is_empty(), "without a ttl: {bad:?}");
    }
    assert!(bench.proxy.count(any(Script::Acquire)) > 50);
    // Nobody is left to renew them.
    for name in ["a", "b"] {
        let left = pttl(&mut raw, name);
        assert!(left <= 500, "{name}: {left} ms left");
        let lock = bench.client_with(secs(30)).mutex(name);
        lock.try_lock_for(secs(10)).unwrap().unlock().unwrap();
    }
}

/// Invariant 5: a waiter's registration is kept no longer than the lock's state, also where there was no state: a foreign
/// lock has none.
#[test]
fn waiting_for_another_librarys_lock_leaves_nothing_without_a_ttl() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    take_as_foreigner(&mut raw, "m", secs(30));
    let mutex = bench.client_with(secs(30)).mutex("m");
    thread::scope(|s| {
        s.spawn(|| assert!(mutex.try_lock_for(ms(300)).is_err()));
        eventually(BOUND, "it waits", || mutex.inspect().unwrap().waiters == 1);
        assert_eq!(keys_without_ttl(&mut raw), [""; 0]);
        assert!(pttl(&mut raw, "{m}:lh:s") > 0);
    });
    assert_eq!(keys_without_ttl(&mut raw), [""; 0]);
    assert!(mutex.force_unlock().unwrap());
    assert_eq!(keys_without_ttl(&mut raw), [""; 0]);
}
