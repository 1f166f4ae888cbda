//! `Semaphore`: permits by weight, in order of arrival, under one limit.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind};

use super::actor::Actor;
use super::{BOUND, joined, notes, one_by_one, turn, within};
use crate::support::ask::elsewhere;
use crate::support::scene::Scene;
use crate::support::wait::{eventually, one_of};

const TTL: Duration = Duration::from_secs(30);

/// Returns when so many wait for permits.
#[track_caller]
pub(super) fn waiting(client: &Client, n: u64) {
    // Of whichever limit: nothing is asked of it.
    let semaphore = client.semaphore("s", 1);
    eventually(BOUND, "all of them wait", || {
        semaphore.inspect().unwrap().waiters == n
    });
}

fn kind<T: std::fmt::Debug>(outcome: leasehold::Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// First come, first served over processes, and a try does not overtake.
#[test]
fn permits_are_given_in_order_of_arrival_over_processes() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actors = [(); 3].map(|()| Actor::new(&scene.server.url(), TTL));
    let all = client.semaphore("s", 2).acquire_many(2).unwrap();
    for n in 0..9 {
        // Two of two: so each is alone.
        actors[n % 3].tell(&format!("turn {n} permits s 2 2"));
        waiting(&client, n as u64 + 1);
    }
    drop(all);
    notes(&scene, 1);
    let late = turn(&client, &scene, "late", "permits s 1 2");
    let labels = (0..9).map(|n| n.to_string()).chain(["late".into()]);
    joined(late);
    assert_eq!(notes(&scene, 20), one_by_one(labels));
}

/// One that wants many is not overtaken by those who want few, though there were enough for them.
#[test]
fn one_that_wants_many_is_not_overtaken_by_those_who_want_few() {
    let scene = Scene::new();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", 3);
    let [mut many, mut few] = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    let two = semaphore.acquire_many(2).unwrap();
    assert_eq!(two.permits(), 2);
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    many.tell("permits s 3 3");
    waiting(&client, 1);
    few.tell("permits s 1 3");
    waiting(&client, 2);
    assert_eq!(kind(semaphore.try_acquire()), ErrorKind::WouldBlock);
    let wait = Duration::from_millis(1500);
    assert_eq!(kind(semaphore.try_acquire_for(wait)), ErrorKind::TimedOut);
    assert!(few.child.try_line(Duration::ZERO).is_none());
    drop(two);
    assert_eq!(many.says(), "got it");
    assert!(few.child.try_line(Duration::from_millis(100)).is_none());
    many.gets_rid();
    assert_eq!(few.says(), "got it");
    assert_eq!(semaphore.available_permits().unwrap(), 2);
}

/// One release may serve several.
#[test]
fn a_release_serves_as_many_as_there_are_permits_for() {
    let scene = Scene::new();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", 4);
    let mut actors = [(); 4].map(|()| Actor::new(&scene.server.url(), TTL));
    let all = semaphore.acquire_many(4).unwrap();
    for (n, want) in [1, 2, 1, 1].into_iter().enumerate() {
        actors[n].tell(&format!("permits s {want} 4"));
        waiting(&client, n as u64 + 1);
    }
    let freed = Instant::now();
    drop(all);
    for actor in &actors[..3] {
        assert_eq!(actor.says(), "got it");
    }
    within(Duration::from_secs(3), freed, "three turns");
    waiting(&client, 1);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    actors[1].gets_rid();
    assert_eq!(actors[3].says(), "got it");
    assert_eq!(semaphore.available_permits().unwrap(), 1);
}

/// redisson#5066, #2045: a double release adds permits. Here whatever is given back twice, or comes back late, adds nothing.
#[test]
fn giving_back_twice_adds_nothing() {
    let scene = Scene::new();
    let client = scene.client();
    let semaphore = client.semaphore("s", 3);
    let (one, two) = (
        semaphore.acquire().unwrap(),
        semaphore.acquire_many(2).unwrap(),
    );
    one.unlock().unwrap();
    let release = scene.first_sent("release_table", "{s}:lh:sem");
    let acquire = scene.first_sent("acquire_permits", "{s}:lh:sem");
    for _ in 0..3 {
        assert_eq!(scene.deliver(&release), redis::Value::Int(1));
        assert_eq!(semaphore.available_permits().unwrap(), 1);
    }
    // Nor does a late copy of its acquire take any.
    let dead = redis::Value::Array(vec![redis::Value::Int(-1)]);
    assert_eq!(scene.deliver(&acquire), dead);
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    // Of a hold that was taken away.
    assert!(semaphore.force_unlock().unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    assert_eq!(kind(two.unlock()), ErrorKind::NotHeld);
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    let all = semaphore.acquire_many(3).unwrap();
    assert_eq!(kind(semaphore.try_acquire()), ErrorKind::WouldBlock);
    all.unlock().unwrap();
}

/// A limit that grows lets in those who wait, at once.
#[test]
fn a_limit_that_grows_wakes_those_who_wait() {
    let scene = Scene::new();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", 1);
    let _one = semaphore.acquire().unwrap();
    let mut actors = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    for (n, actor) in actors.iter_mut().enumerate() {
        actor.tell("permits s 1 1");
        waiting(&client, n as u64 + 1);
    }
    let grown = Instant::now();
    semaphore.set_permits(3).unwrap();
    for actor in &actors {
        assert_eq!(actor.says(), "got it");
    }
    within(Duration::from_secs(2), grown, "two turns");
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    // This handle and its clones know; one that was made with the old number does not agree.
    assert_eq!(kind(semaphore.clone().try_acquire()), ErrorKind::WouldBlock);
    assert_eq!(
        kind(client.semaphore("s", 1).try_acquire()),
        ErrorKind::InvalidOptions
    );
    assert_eq!(
        kind(client.semaphore("s", 3).try_acquire()),
        ErrorKind::WouldBlock
    );
}

/// A limit that shrinks takes nothing from those who hold; nobody gets any until it is less.
#[test]
fn a_limit_that_shrinks_takes_nothing_from_holders() {
    let scene = Scene::new();
    let client = scene
        .builder()
        .ttl(Duration::from_millis(1500))
        .build()
        .unwrap();
    let semaphore = client.semaphore("s", 4);
    let held = [(); 4].map(|()| semaphore.acquire().unwrap());
    semaphore.set_permits(2).unwrap();
    let renewals = client.metrics().renewals;
    eventually(BOUND, "all are renewed", || {
        client.metrics().renewals >= renewals + 8
    });
    for permit in &held {
        permit.verify().unwrap();
    }
    let [one, two, three, four] = held;
    for permit in [one, two] {
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        assert_eq!(kind(semaphore.try_acquire()), ErrorKind::WouldBlock);
        permit.unlock().unwrap();
    }
    assert_eq!(kind(semaphore.try_acquire()), ErrorKind::WouldBlock);
    three.unlock().unwrap();
    let again = semaphore.try_acquire().unwrap();
    assert_eq!(kind(semaphore.try_acquire()), ErrorKind::WouldBlock);
    drop((four, again));
    assert_eq!(semaphore.available_permits().unwrap(), 2);
}

/// Promised: one who waits for more than there are after a change is told so, and those behind it go on.
#[test]
fn a_request_in_the_queue_that_is_too_big_now_is_refused() {
    let scene = Scene::new();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", 3);
    let two = semaphore.acquire_many(2).unwrap();
    let [mut big, mut small] = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    big.tell("permits s 3 3");
    waiting(&client, 1);
    small.tell("permits s 1 3");
    waiting(&client, 2);
    let changed = Instant::now();
    semaphore.set_permits(2).unwrap();
    assert_eq!(big.says(), "InvalidOptions");
    within(Duration::from_secs(3), changed, "telling it");
    assert!(small.child.try_line(Duration::from_millis(50)).is_none());
    drop(two);
    assert_eq!(small.says(), "got it");
    waiting(&client, 0);
}

/// Promised: another limit is refused until `set_permits` changes it, whether or not anybody holds.
#[test]
fn a_handle_with_another_limit_is_refused_until_it_is_changed() {
    let scene = Scene::new();
    let client = scene.outsider();
    let (two, five) = (client.semaphore("s", 2), client.semaphore("s", 5));
    two.acquire().unwrap().unlock().unwrap();
    let refused = |semaphore: &leasehold::Semaphore| {
        [
            kind(semaphore.acquire()),
            kind(semaphore.try_acquire()),
            kind(semaphore.acquire_many(2)),
            kind(semaphore.try_acquire_for(Duration::from_secs(60))),
        ]
    };
    assert_eq!(refused(&five), [ErrorKind::InvalidOptions; 4]);
    five.set_permits(5).unwrap();
    let all = five.acquire_many(5).unwrap();
    assert_eq!(refused(&two), [ErrorKind::InvalidOptions; 4]);
    drop(all);
    assert_eq!(refused(&two), [ErrorKind::InvalidOptions; 4]);
    let seen = five.inspect().unwrap();
    assert_eq!(seen.permits, Some((5, 5)));
    assert_eq!(
        kind(two.set_permits(0).map(drop)),
        ErrorKind::InvalidOptions
    );
}

/// Promised: what can never be had is refused at once, and nothing is sent.
#[test]
fn what_can_never_be_had_is_refused_before_anything_is_sent() {
    let scene = Scene::new();
    let client = scene.client();
    let three = client.semaphore("s", 3);
    let outcomes = [
        kind(three.acquire_many(4)),
        kind(three.try_acquire_many(4)),
        kind(three.acquire_many(0)),
        kind(client.semaphore("s", 0).acquire()),
        kind(client.semaphore("s", 0).try_acquire()),
    ];
    assert_eq!(outcomes, [ErrorKind::InvalidOptions; 5]);
    assert!(scene.proxy.commands().is_empty());
}

/// Promised: a permit belongs to no thread. Another may give it back, and one that has some may wait for more.
#[test]
fn a_permit_may_be_sent_to_another_thread() {
    let scene = Scene::new();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", 2);
    let (permits, taken) = mpsc::channel();
    let worker = thread::spawn(move || {
        let permit: leasehold::SemaphorePermit = taken.recv_timeout(BOUND).unwrap();
        permit.verify().unwrap();
        permit.unlock().unwrap();
    });
    let (first, second) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    // This thread has all, and waits for one: no deadlock, as another may give it back.
    let waiting_for = thread::spawn({
        let client = client.clone();
        move || {
            waiting(&client, 1);
            permits.send(second).unwrap();
        }
    });
    let third = semaphore.acquire().unwrap();
    joined(waiting_for);
    joined(worker);
    drop(first);
    elsewhere(move || drop(third));
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    assert_eq!(leasehold::testing::entries(&client), 0);
}

/// Whoever is concerned by a new limit is called, and does not have to look for himself: the one who can enter now, and the one
/// who never could.
#[test]
fn a_new_limit_calls_those_whom_it_concerns() {
    for (n, limit, outcome) in [(1, 4, Ok(())), (3, 2, Err(ErrorKind::InvalidOptions))] {
        one_of(3, || {
            let scene = Scene::new();
            let outsider = scene.outsider();
            let semaphore = outsider.semaphore("s", 3);
            let _all = semaphore.acquire_many(3).unwrap();
            let waits = scene.client().semaphore("s", 3);
            let waiter = thread::spawn(move || {
                let outcome = waits.acquire_many(n).map(drop).map_err(|e| e.kind());
                (outcome, Instant::now())
            });
            waiting(&outsider, 1);
            // It has just looked, and won't look again by itself for three quarters of a second.
            let looks = scene.sightings(|c| c.runs("acquire_permits"));
            eventually(BOUND, "it has looked", || !looks.lock().is_empty());
            let changed = Instant::now();
            semaphore.set_permits(limit).unwrap();
            let (said, at) = joined(waiter);
            assert_eq!(said, outcome);
            let took = at.saturating_duration_since(changed);
            if took < Duration::from_millis(500) {
                return Ok(());
            }
            Err(format!("{took:?}"))
        });
    }
}
