//! `MultiMutex`: all or none, in any order of names.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind};

use super::actor::Actor;
use super::{BOUND, joined, turn, within};
use crate::support::ask::{elsewhere, timed};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

const TTL: Duration = Duration::from_secs(30);

fn kind<T: std::fmt::Debug>(outcome: leasehold::Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

#[track_caller]
fn waiting(client: &Client, name: &str, n: u64) {
    let mutex = client.mutex(name);
    eventually(BOUND, "it is on the list", || {
        mutex.inspect().unwrap().waiters == n
    });
}

/// Promised: programs that name the same locks in other orders, or one of them twice, can't wait for each other in a circle.
#[test]
fn processes_that_name_them_in_other_orders_never_block_each_other() {
    let scene = Scene::new();
    let mut actors = [(); 4].map(|()| Actor::new(&scene.server.url(), TTL));
    let orders = ["a b c", "c b a", "b a b", "c a"];
    let start = Instant::now();
    for (actor, names) in actors.iter_mut().zip(orders) {
        actor.tell(&format!("rounds 25 several {names}"));
    }
    for actor in &actors {
        assert_eq!(actor.says(), "done");
    }
    within(BOUND, start, "a hundred rounds");
    // Each of them wants `a`: never were two in.
    assert_eq!(scene.ask::<Vec<u64>>("SMEMBERS seen"), [1]);
    for name in ["a", "b", "c"] {
        assert!(!scene.exists(name));
        waiting(&scene.outsider(), name, 0);
    }
}

/// Promised: one key lost is the guard lost, and what is left of it is given back, long before its lease would have run out.
#[test]
fn one_key_lost_is_all_lost_and_the_others_are_given_back() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(3)).build().unwrap();
    for lost in ["a", "b", "c"] {
        let guard = client.multi_mutex(["c", "a", "b"]).lock().unwrap();
        let _: String = scene.ask(&format!("SET {lost} foreign PX 60000"));
        // The next renewal, which is due when two thirds of the lease are left.
        let signal = guard.lost().recv_timeout(BOUND);
        assert!(signal.is_err_and(|e| e.is_disconnected()));
        assert!(!guard.is_held());
        assert_eq!(kind(guard.verify()), ErrorKind::Lost);
        assert_eq!(kind(guard.unlock()), ErrorKind::Lost);
        let start = Instant::now();
        eventually(BOUND, "the others' return", || {
            let others = ["a", "b", "c"].into_iter().filter(|n| *n != lost);
            others.filter(|n| scene.exists(n)).count() == 0
        });
        within(Duration::from_millis(1000), start, "the others' return");
        // What is somebody else's by now stays.
        assert_eq!(scene.ask::<String>(&format!("GET {lost}")), "foreign");
        let _: u64 = scene.ask(&format!("DEL {lost}"));
    }
}

/// The same where the loss is found at the release: it gives back what is ours, and says so.
#[test]
fn a_release_gives_back_what_is_still_there() {
    let scene = Scene::new();
    let client = scene.client();
    let guard = client.multi_mutex(["a", "b", "c"]).lock().unwrap();
    let _: u64 = scene.ask("DEL b");
    assert_eq!(kind(guard.unlock()), ErrorKind::NotHeld);
    assert!(!scene.exists("a") && !scene.exists("c"));
    drop(client.multi_mutex(["a", "b", "c"]).try_lock().unwrap());
}

/// Promised: it holds nothing while it waits. Others come and go on the free ones.
#[test]
fn it_holds_nothing_while_it_waits() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.mutex("b").lock().unwrap();
    let several = turn(&scene.client(), &scene, "all", "several a b c");
    waiting(&client, "b", 1);
    let looks = scene.sightings(|c| c.runs("acquire_all"));
    eventually(BOUND, "it has looked twice", || {
        for name in ["a", "c"] {
            let guard = elsewhere(|| client.mutex(name).try_lock().map(drop));
            guard.unwrap();
        }
        looks.lock().len() >= 2
    });
    assert!(super::noted(&scene).is_empty());
    let freed = Instant::now();
    drop(held);
    joined(several);
    within(Duration::from_secs(3), freed, "its turn");
    assert_eq!(super::noted(&scene), ["in all", "out all"]);
}

/// Promised: a thousand names, in one round trip each way, and not one more.
#[test]
fn a_thousand_names_are_one_lock() {
    let scene = Scene::new();
    let client = scene.client();
    let names: Vec<String> = (0..1000).map(|n| format!("n{n}")).collect();
    scene.proxy.reset_counts();
    let all = client.multi_mutex(names.clone()).lock().unwrap();
    assert_eq!(scene.proxy.commands().len(), 1);
    all.verify().unwrap();
    for name in ["n0", "n500", "n999"] {
        assert_eq!(
            elsewhere(|| kind(client.mutex(name).try_lock())),
            ErrorKind::WouldBlock
        );
    }
    // A second one of all the same, given twice.
    let twice = names.iter().rev().chain(&names).take(1000).cloned();
    let (took, outcome) = timed(|| elsewhere(|| kind(client.multi_mutex(twice).try_lock())));
    assert_eq!(outcome, ErrorKind::WouldBlock);
    assert!(took < Duration::from_secs(2), "{took:?}");
    scene.proxy.reset_counts();
    all.unlock().unwrap();
    assert_eq!(scene.proxy.commands().len(), 1);
    let keys: Vec<String> = scene.ask("KEYS n*");
    let words: Vec<_> = keys.iter().filter(|key| !key.contains(":lh:")).collect();
    assert!(words.is_empty(), "{words:?}");
    scene.proxy.reset_counts();
    let more = client.multi_mutex(names.into_iter().chain(["one".into()]));
    assert_eq!(kind(more.lock()), ErrorKind::InvalidOptions);
    let none = client.multi_mutex(Vec::<String>::new());
    assert_eq!(kind(none.lock()), ErrorKind::InvalidOptions);
    assert!(scene.proxy.commands().is_empty());
}

/// Invariant 8: told that a word is free, it finds another one held: then it waits for that one, and the next in line for the
/// first is told.
#[test]
fn a_wake_for_one_word_is_passed_on_while_another_is_held() {
    one_of(3, || {
        let scene = Scene::new();
        let client = scene.outsider();
        let b = client.mutex("b").lock().unwrap();
        let several = turn(&client, &scene, "all", "several a b");
        waiting(&client, "b", 1);
        // Behind it, through the proxy, one who waits for `b` alone.
        let behind = thread::spawn({
            let mutex = scene.client().mutex("b");
            move || {
                let guard = mutex.lock().unwrap();
                let got = Instant::now();
                drop(guard);
                got
            }
        });
        waiting(&client, "b", 2);
        // It has just looked, and won't look again by itself for three quarters of a second.
        let looks = scene.sightings(|c| c.runs_on("acquire", "b"));
        eventually(BOUND, "it has looked", || !looks.lock().is_empty());
        looks.lock().clear();
        let a = client.mutex("a").lock().unwrap();
        let freed = Instant::now();
        drop(b);
        let took = joined(behind).saturating_duration_since(freed);
        assert!(super::noted(&scene).is_empty());
        waiting(&client, "a", 1);
        waiting(&client, "b", 0);
        drop(a);
        joined(several);
        if took < Duration::from_millis(500) {
            return Ok(());
        }
        Err(format!("{took:?}"))
    });
}

/// Promised: its token is above every earlier token of each of its names, and each name's next one is above it.
#[test]
fn its_token_is_above_all_its_names_tokens() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut last = 0;
    for round in 0..5 {
        // Clients of their own, which know nothing of the others' tokens.
        for name in ["a", "b", "c"] {
            let alone = scene.outsider().mutex(name).lock().unwrap();
            let token = alone.fencing_token().get();
            assert!(token > last, "round {round}, {name}");
            drop(alone);
            if name == "b" {
                // As if it had been held by clients that knew of higher ones.
                lift(&scene, "{b}:lh:s", token + 10_000_000_000);
            }
        }
        let b = token_of(&scene, "{b}:lh:s");
        let all = scene
            .outsider()
            .multi_mutex(["c", "b", "a"])
            .lock()
            .unwrap();
        last = all.fencing_token().get();
        assert!(last > b, "{last} {b}");
        drop(all);
        for key in ["{a}:lh:s", "{b}:lh:s", "{c}:lh:s"] {
            assert_eq!(token_of(&scene, key), last);
        }
    }
    drop(client);
}

/// Threads of this process that wait for each other: seen also where one of them waits for several.
#[test]
fn a_circle_through_several_names_is_a_deadlock() {
    let scene = Scene::new();
    let client = scene.outsider();
    let a = client.mutex("a").lock().unwrap();
    let (has_it, had) = mpsc::channel();
    let other = thread::spawn({
        let client = client.clone();
        move || {
            let c = client.mutex("c").lock().unwrap();
            has_it.send(()).unwrap();
            let several = client.multi_mutex(["b", "a"]).lock().unwrap();
            drop((several, c));
        }
    });
    had.recv_timeout(BOUND).unwrap();
    waiting(&client, "a", 1);
    let several = client.multi_mutex(["d", "c"]);
    assert_eq!(kind(several.lock()), ErrorKind::Deadlock);
    assert_eq!(kind(several.try_lock()), ErrorKind::WouldBlock);
    drop(a);
    joined(other);
    drop(several.lock().unwrap());
    assert_eq!(leasehold::testing::entries(&client), 0);
}

/// The last token in a state, digits 4 to 19.
fn token_of(scene: &Scene, key: &str) -> u64 {
    let state: String = ask(&mut scene.raw(), &format!("GETRANGE {key} 3 18"));
    state.parse().unwrap()
}

fn lift(scene: &Scene, key: &str, token: u64) {
    let _: u64 = scene.ask(&format!("SETRANGE {key} 3 {token:016}"));
}
