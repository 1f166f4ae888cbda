//! `FairMutex`: keys deleted by hand, calls that nobody hears, clocks that are wrong.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold::ErrorKind;

use super::actor::{Actor, acquire};
use super::fair::queued;
use super::{BOUND, joined, noted, notes, one_by_one, within};
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

const TTL: Duration = Duration::from_secs(30);
const WAITERS: u64 = 6;
const SECONDS: Duration = Duration::from_secs(8);

/// Six that wait, in two processes.
fn six(scene: &Scene) -> [Actor; 2] {
    let client = scene.outsider();
    let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    for n in 0..WAITERS {
        actors[n as usize % 2].tell(&format!("turn {n} fair q"));
        queued(&client, "q", n + 1);
    }
    actors
}

/// Whoever was in was in alone, and each once.
#[track_caller]
fn one_at_a_time(notes: &[String], n: usize) {
    let labels: Vec<&str> = notes
        .chunks(2)
        .map(|pair| {
            let label = pair[0].strip_prefix("in ").expect("nobody else is in");
            assert_eq!(pair[1], format!("out {label}"), "{notes:?}");
            label
        })
        .collect();
    let mut each = labels.clone();
    each.sort_unstable();
    each.dedup();
    assert_eq!((each.len(), labels.len()), (n, n), "{notes:?}");
}

/// redisson#3829, #4153, #5989: the lock's key is deleted by hand. The queue goes on, in its order.
#[test]
fn the_queue_goes_on_when_the_word_is_deleted() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.fair_mutex("q").lock().unwrap();
    let _actors = six(&scene);
    let deleted = Instant::now();
    let _: u64 = scene.ask("DEL q");
    assert_eq!(notes(&scene, 12), one_by_one(0..WAITERS));
    within(SECONDS, deleted, "healing");
    assert_eq!(held.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
}

/// redisson#3829, #4153, #5989: the queue is deleted by hand. The holder is the holder as before, and those who wait form a new
/// queue.
#[test]
fn a_new_queue_forms_when_the_state_is_deleted() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.fair_mutex("q").lock().unwrap();
    let _actors = six(&scene);
    let deleted = Instant::now();
    let _: u64 = scene.ask("DEL {q}:lh:s");
    queued(&client, "q", WAITERS);
    within(SECONDS, deleted, "forming a queue");
    assert!(noted(&scene).is_empty());
    assert!(held.verify().is_ok());
    let token = held.fencing_token();
    held.unlock().unwrap();
    one_at_a_time(&notes(&scene, 12), 6);
    // The tokens are above those of before.
    let after = client.fair_mutex("q").lock().unwrap().fencing_token();
    assert!(after > token);
}

/// redisson#3829, #4153, #5989: both are deleted.
#[test]
fn the_lock_heals_when_word_and_state_are_deleted() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.fair_mutex("q").lock().unwrap();
    let token = held.fencing_token();
    let _actors = six(&scene);
    let deleted = Instant::now();
    let _: u64 = scene.ask("DEL q {q}:lh:s");
    one_at_a_time(&notes(&scene, 12), 6);
    within(SECONDS, deleted, "healing");
    assert_eq!(held.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    let after = client.fair_mutex("q").lock().unwrap().fencing_token();
    assert!(after > token);
}

/// redisson#4153: the queue is deleted again and again while the lock goes round: never two at a time, and nobody is forgotten.
#[test]
fn deleting_the_queue_while_the_lock_goes_round_lets_nobody_in_twice() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.fair_mutex("q").lock().unwrap();
    let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    for n in 0..20 {
        actors[n % 2].tell(&format!("turn {n} fair q"));
    }
    queued(&client, "q", 20);
    drop(held);
    let mut raw = scene.raw();
    let mut deleted = 0;
    eventually(BOUND, "all have had their turns", || {
        thread::sleep(Duration::from_millis(10));
        deleted += ask::<u64>(&mut raw, "DEL {q}:lh:s");
        ask::<usize>(&mut raw, "LLEN turns") == 40
    });
    assert!(deleted >= 3, "{deleted}");
    one_at_a_time(&noted(&scene), 20);
}

/// redisson#763, #3891, of those who queue: all subscriptions are cut, and the lock is given back at that moment. They look for
/// themselves within a second, and are heard again.
#[test]
fn cut_subscriptions_cost_those_who_queue_a_look() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.fair_mutex("q").lock().unwrap();
    let _actors = six(&scene);
    let mut raw = scene.raw();
    let cut = Instant::now();
    let killed: u64 = ask(&mut raw, "CLIENT KILL TYPE pubsub");
    assert!(killed >= 2, "{killed}");
    held.unlock().unwrap();
    notes(&scene, 2);
    // And in the middle of going round.
    let _: u64 = ask(&mut raw, "CLIENT KILL TYPE pubsub");
    one_at_a_time(&notes(&scene, 12), 6);
    within(SECONDS, cut, "six turns");
}

/// Redisson's head, run: one client six minutes fast evicts live waiters. Here no client tells the server a time: all that it
/// sends of the size of one is a fencing token which the server gave before, or the one after that. So a clock that is off by six minutes, or by an
/// hour, changes nothing of what the server sees.
#[test]
fn no_client_tells_the_server_what_time_it_is() {
    let scene = Scene::new();
    let (one, two) = (scene.client(), scene.client());
    let mut given: HashSet<u64> = HashSet::new();
    let kinds = [
        ("fair q", "fair q"),
        ("mutex m", "mutex m"),
        ("read r", "write r"),
        ("write w", "read w"),
        ("upgradable u", "write u"),
        ("permits s 2 2", "permits s 1 2"),
        ("several a n z", "several n z"),
    ];
    let held: Vec<_> = kinds.map(|(what, _)| acquire(&one, what).unwrap()).into();
    // Contended, so that waiters are registered, heard of, called and given it.
    let before = scene.proxy.commands().len();
    let waits = kinds.map(|(_, what)| {
        let two = two.clone();
        thread::spawn(move || acquire(&two, what).unwrap().lease().fencing_token())
    });
    eventually(BOUND, "each of them has looked twice", || {
        scene.proxy.commands().len() >= before + 4 * kinds.len()
    });
    given.extend(held.iter().map(|guard| guard.lease().fencing_token().get()));
    drop(held);
    given.extend(waits.map(|wait| joined(wait).get()));
    for (what, _) in kinds {
        given.insert(acquire(&two, what).unwrap().lease().fencing_token().get());
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let mut floors = 0;
    let mut looked_at = 0;
    for command in scene.proxy.commands() {
        // A script's source and its hash are no data.
        for (at, arg) in command.args.iter().enumerate().skip(2) {
            let text = String::from_utf8_lossy(arg);
            for number in text.split(|c: char| !c.is_ascii_hexdigit()) {
                looked_at += 1;
                // Tokens and tickets are hexadecimal, and of 32 digits or more.
                if number.len() >= 32 {
                    continue;
                }
                let Some(seconds) = number.get(..10).and_then(|n| n.parse::<u64>().ok()) else {
                    continue;
                };
                if seconds.abs_diff(now) > 10 * 86_400 {
                    continue;
                }
                let token = number.parse::<u64>().unwrap_or(1);
                assert!(
                    given.contains(&token) || given.contains(&(token - 1)),
                    "{} sends {text} at {at}",
                    command.name()
                );
                floors += 1;
            }
        }
    }
    assert!(looked_at > 100, "{looked_at}");
    // The test can see a time when there is one.
    assert!(floors > 0);
}

/// redisson#3829, #4153: a release that is not ours any more says so, whatever stands in the queue: only dead tokens are known as
/// released.
#[test]
fn a_release_of_what_is_not_ours_is_told_so_whoever_waits() {
    let scene = Scene::new();
    let client = scene.outsider();
    for several in [false, true] {
        let held = acquire(&client, if several { "several q z" } else { "fair q" }).unwrap();
        let token: String = scene.ask("GET q");
        let time: Vec<String> = scene.ask("TIME");
        let ms = format!("{}000", time[0]);
        let ticket = "0".repeat(40);
        let _: u64 = scene.ask(&format!(
            "APPEND {{q}}:lh:s {ticket},{ms},{ms},f,1500,{token};"
        ));
        assert_eq!(client.fair_mutex("q").waiters().unwrap(), 1);
        let _: u64 = scene.ask("DEL q");
        let outcome = match held {
            super::actor::Held::Several(guard) => guard.unlock(),
            super::actor::Held::Fair(guard) => guard.unlock(),
            _ => unreachable!(),
        };
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NotHeld);
        let _: u64 = scene.ask("DEL q {q}:lh:s z {z}:lh:s");
    }
}
