//! `FairMutex`: first come, first served; what that costs, and what those do to it who don't queue.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind};

use super::actor::{Actor, acquire};
use super::{BOUND, joined, noted, notes, one_by_one, turn, within};
use crate::support::ask::elsewhere;
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

const TTL: Duration = Duration::from_secs(30);

/// Returns when so many wait for the lock.
#[track_caller]
pub(super) fn queued(client: &Client, name: &str, n: u64) {
    let mutex = client.fair_mutex(name);
    eventually(BOUND, "all are in the queue", || {
        mutex.waiters().unwrap() == n
    });
}

/// python-redis-lock#58: a newcomer overtakes.
#[test]
fn turns_come_in_the_order_of_arrival_over_processes_and_threads() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actors = [(); 3].map(|()| Actor::new(&scene.server.url(), TTL));
    let held = client.fair_mutex("q").lock().unwrap();
    let mut threads = Vec::new();
    // Now this process, now that one; each with several threads.
    for n in 0..16 {
        match actors.get_mut(n % 4) {
            Some(actor) => actor.tell(&format!("turn {n} fair q")),
            None => threads.push(turn(&client, &scene, &n.to_string(), "fair q")),
        }
        queued(&client, "q", n as u64 + 1);
    }
    assert!(noted(&scene).is_empty());
    drop(held);
    assert_eq!(notes(&scene, 32), one_by_one(0..16));
    threads.into_iter().for_each(joined);
}

/// python-redis-lock#58, while the lock goes round: neither a `lock` that comes later nor a `try_lock` gets it before those who
/// wait.
#[test]
fn neither_a_newcomer_nor_try_lock_overtakes_those_who_wait() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    let held = client.fair_mutex("q").lock().unwrap();
    for n in 0..8 {
        actors[n % 2].tell(&format!("turn {n} fair q"));
        queued(&client, "q", n as u64 + 1);
    }
    let trying = scene.outsider();
    let tries = thread::spawn({
        let mut raw = scene.raw();
        move || {
            let mut refused = 0;
            loop {
                match trying.fair_mutex("q").try_lock() {
                    Ok(_guard) => return (refused, ask::<usize>(&mut raw, "LLEN turns")),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                refused += 1;
            }
        }
    });
    drop(held);
    notes(&scene, 1);
    let late = turn(&scene.outsider(), &scene, "late", "fair q");
    joined(late);
    let (refused, had_turns) = joined(tries);
    assert!(refused > 8, "{refused}");
    let labels = (0..8).map(|n| n.to_string());
    let mut all = one_by_one(labels.chain(["late".into()]));
    assert_eq!(notes(&scene, 18), all);
    // Had it come before the last of them, it would have found fewer. The newcomer, which queues, is before it, too.
    all.truncate(had_turns);
    assert_eq!(all.len(), 18);
}

/// What `FairMutex` says of other libraries' locks: they exclude each other, and where somebody queues a release leaves them no
/// moment to slip in.
#[test]
fn another_library_gets_no_chance_at_a_hand_over() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actor = Actor::new(&scene.server.url(), TTL);
    let held = client.fair_mutex("q").lock().unwrap();
    for n in 0..8 {
        actor.tell(&format!("turn {n} fair q"));
        queued(&client, "q", n + 1);
    }
    // As redis-py takes a lock, as fast as it can.
    let foreigner = thread::spawn({
        let mut raw = scene.raw();
        move || loop {
            let got: Option<String> = ask(&mut raw, "SET q foreign NX PX 30000");
            if got.is_some() {
                return ask::<usize>(&mut raw, "LLEN turns");
            }
        }
    });
    drop(held);
    assert_eq!(joined(foreigner), 16);
    assert_eq!(noted(&scene), one_by_one(0..8));
    let error = client.fair_mutex("q").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// What `FairMutex` says of other libraries' locks: one may take it when a holder's lease ran out. The queue stays as it was, and
/// goes on when the stranger is done.
#[test]
fn a_stranger_that_finds_the_lock_free_takes_it_and_the_queue_waits_on_in_its_order() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    let held = client.fair_mutex("q").with_fixed_lease(TTL).lock().unwrap();
    for n in 0..4 {
        actors[n % 2].tell(&format!("turn {n} fair q"));
        queued(&client, "q", n as u64 + 1);
    }
    // At the moment at which the lease runs out.
    let mut raw = scene.raw();
    redis::pipe()
        .atomic()
        .cmd("SET")
        .arg(&["q", "foreign", "PX", "60000"])
        .exec(&mut raw)
        .unwrap();
    // They have all looked meanwhile.
    let looks = "INFO commandstats";
    let before = evals(&ask::<String>(&mut raw, looks));
    eventually(BOUND, "everybody has looked twice", || {
        evals(&ask::<String>(&mut raw, looks)) >= before + 8
    });
    assert!(noted(&scene).is_empty());
    assert_eq!(ask::<String>(&mut raw, "GET q"), "foreign");
    let freed = Instant::now();
    let _: u64 = ask(&mut raw, "DEL q");
    assert_eq!(notes(&scene, 8), one_by_one(0..4));
    // Nobody tells them of it, so they find out by themselves.
    within(Duration::from_secs(8), freed, "finding it free");
    assert_eq!(held.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
}

/// How often a script was called.
fn evals(stats: &str) -> u64 {
    let calls = |line: &str| {
        let rest = line
            .strip_prefix("cmdstat_evalsha:calls=")
            .or_else(|| line.strip_prefix("cmdstat_eval:calls="))?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    stats.lines().filter_map(calls).sum()
}

/// What `FairMutex` says of a plain `Mutex` of its name: it excludes it, it has a place, and is told when its turn comes.
#[test]
fn a_plain_mutex_that_waits_is_told_when_its_turn_comes() {
    let attempt = || {
        let scene = Scene::new();
        let client = scene.outsider();
        let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
        let held = client.fair_mutex("q").lock().unwrap();
        let turns = ["fair q", "mutex q", "fair q", "fair q"];
        for (n, what) in turns.iter().enumerate() {
            actors[n % 2].tell(&format!("turn {n} {what}"));
            queued(&client, "q", n as u64 + 1);
        }
        drop(held);
        let notes = notes(&scene, 8);
        let mut in_turn = notes.clone();
        in_turn.sort_by_key(|note| note.rsplit(' ').next().map(str::to_owned));
        // Nobody was in with another in any case.
        for pair in notes.chunks(2) {
            let label = pair[0].strip_prefix("in ").unwrap();
            assert_eq!(pair[1], format!("out {label}"), "{notes:?}");
        }
        if notes == one_by_one(0..4) {
            return Ok(());
        }
        Err(format!("{notes:?}"))
    };
    // Told that it is free, it has to come for it, and one who queues may look in that moment.
    one_of(3, attempt);
}

/// What `FairMutex` says of a plain `Mutex`, with one that was stopped when its turn came: the lock is free then, and those who
/// queue behind it find that out by themselves.
#[test]
fn a_plain_mutex_that_was_stopped_costs_those_behind_it_a_look() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut stopped = Actor::new(&scene.server.url(), TTL);
    let mut next = Actor::new(&scene.server.url(), TTL);
    let held = client.fair_mutex("q").lock().unwrap();
    stopped.tell("mutex q");
    queued(&client, "q", 1);
    next.tell("fair q");
    queued(&client, "q", 2);
    stopped.child.stop();
    drop(held);
    let freed = Instant::now();
    assert_eq!(next.says(), "got it");
    within(Duration::from_secs(4), freed, "the next one's turn");
    stopped.child.cont();
    next.gets_rid();
    assert_eq!(stopped.says(), "got it");
}

impl Actor {
    #[track_caller]
    pub(super) fn gets_rid(&mut self) {
        assert_eq!(self.does("drop"), "dropped");
    }
}

/// consul#7523; rueidis#602: whoever queues, for whichever kind of lock, looks about once a second: at most 1.3 times.
#[test]
fn one_who_queues_looks_about_once_a_second() {
    const WAITERS: usize = 24;
    const KINDS: [&str; 4] = ["fair q", "read q", "write q", "permits q 1 1"];
    let scene = Scene::new();
    let outsider = scene.outsider();
    let held = ["fair q", "write q", "permits q 1 1"].map(|what| acquire(&outsider, what).unwrap());
    let clients = [(); 2].map(|()| scene.client());
    let waits: Vec<_> = (0..WAITERS)
        .map(|n| turn(&clients[n % 2], &scene, &n.to_string(), KINDS[n / 2 % 4]))
        .collect();
    queued(&outsider, "q", WAITERS as u64 / 4);
    eventually(BOUND, "all of them wait", || {
        let tables = outsider.rw_lock("q").inspect().unwrap().waiters
            + outsider.semaphore("q", 1).inspect().unwrap().waiters;
        tables == WAITERS as u64 * 3 / 4
    });
    scene.proxy.reset_counts();
    let start = Instant::now();
    thread::sleep(Duration::from_secs(4));
    let sent = scene.proxy.commands().len() as f64;
    let each = sent / WAITERS as f64 / start.elapsed().as_secs_f64();
    assert!(each <= 1.3, "{each} commands a second of each");
    // On a busy machine some are late.
    assert!(each >= 0.5, "{each}: do they look at all?");
    drop(held);
    waits.into_iter().for_each(joined);
}

/// consul#7523; rueidis#602: a release calls one of those who queue, and the others sleep on. One confirming round trip each.
#[test]
fn a_hand_over_costs_one_release_and_no_acquire() {
    const WAITERS: usize = 20;
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.client();
    let held = outsider.fair_mutex("q").lock().unwrap();
    let waits: Vec<_> = (0..WAITERS)
        .map(|n| turn(&client, &scene, &n.to_string(), "fair q"))
        .collect();
    queued(&outsider, "q", WAITERS as u64);
    scene.proxy.reset_counts();
    let start = Instant::now();
    drop(held);
    waits.into_iter().for_each(joined);
    let took = start.elapsed();
    let count = |script| scene.proxy.count(|c| c.runs(script));
    assert_eq!(count("release"), WAITERS);
    // While it goes round those who wait look for themselves as ever.
    let most = 1 + (1.3 * WAITERS as f64 * took.as_secs_f64()) as usize;
    let acquires = count("acquire_fair");
    assert!(acquires <= most, "{acquires} in {took:?}");
}

/// An operator takes the lock away: it goes to the first in the queue, who learns of it.
#[test]
fn force_unlock_hands_the_lock_to_the_first_in_the_queue() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    let held = client.fair_mutex("q").lock().unwrap();
    for (n, actor) in actors.iter_mut().enumerate() {
        actor.tell("fair q");
        queued(&client, "q", n as u64 + 1);
    }
    let start = Instant::now();
    assert!(client.fair_mutex("q").force_unlock().unwrap());
    assert_eq!(actors[0].says(), "got it");
    within(Duration::from_secs(2), start, "the hand-over");
    assert_eq!(held.verify().unwrap_err().kind(), ErrorKind::NotHeld);
    drop(held);
    assert!(
        actors[1]
            .child
            .try_line(Duration::from_millis(100))
            .is_none()
    );
    assert_eq!(actors[0].does("check"), "held");
    actors[0].gets_rid();
    assert_eq!(actors[1].says(), "got it");
}

/// Its own thread, and those of this process, through whichever handle: a wait for itself is refused, a try is told.
#[test]
fn a_thread_that_has_it_is_told_so() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mutex = client.fair_mutex("q");
    let held = mutex.lock().unwrap();
    assert_eq!(mutex.lock().unwrap_err().kind(), ErrorKind::Deadlock);
    assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
    let plain = client.mutex("q").lock().unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Deadlock);
    let kind = elsewhere(|| mutex.try_lock().unwrap_err().kind());
    assert_eq!(kind, ErrorKind::WouldBlock);
    drop(held);
    drop(mutex.lock().unwrap());
}
