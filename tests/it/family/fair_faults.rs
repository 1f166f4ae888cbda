//! `FairMutex`: what waiters that are gone, stopped or cut off cost those who wait behind them.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Canceller, ErrorKind, Wait};

use super::actor::Actor;
use super::fair::queued;
use super::{BOUND, joined, notes, one_by_one, turn, within};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

const TTL: Duration = Duration::from_secs(30);

/// An acquire of one who queues.
fn queues(command: &Command) -> bool {
    command.runs("acquire_fair") && command.args.len() > 10
}

/// redisson#1104, #2099, #4929, #6150, #5019, #4595: deadlines of waiters drift hours ahead, dead or failed waiters stay at the
/// head. A thousand waits that timed out and twenty waiters that were killed leave nothing that the next one would wait for.
#[test]
fn a_thousand_waits_that_timed_out_and_twenty_killed_waiters_cost_the_next_one_nothing() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let held = outsider.fair_mutex("q").lock().unwrap();
    let mut dead = [(); 4].map(|()| Actor::new(&scene.server.url(), TTL));
    for actor in &mut dead {
        actor.tell("hang 5 fair q");
    }
    queued(&outsider, "q", 20);
    let client = scene.client();
    thread::scope(|scope| {
        for _ in 0..40 {
            let mutex = client.fair_mutex("q");
            scope.spawn(move || {
                for _ in 0..25 {
                    let error = mutex.try_lock_for(Duration::from_millis(80)).unwrap_err();
                    // On a busy machine the server may look silent for so long.
                    let known = [ErrorKind::TimedOut, ErrorKind::Unavailable];
                    assert!(known.contains(&error.kind()), "{error}");
                }
            });
        }
    });
    let registered = scene.proxy.count(queues);
    assert!(registered >= 900, "{registered} of 1,000 queued");
    queued(&outsider, "q", 20);
    let mut next = Actor::new(&scene.server.url(), TTL);
    next.tell("fair q");
    queued(&outsider, "q", 21);
    for actor in &mut dead {
        actor.child.kill();
    }
    let mut raw = scene.raw();
    eventually(BOUND, "the server knows that they are gone", || {
        ask::<Vec<String>>(&mut raw, "PUBSUB CHANNELS *").len() <= 2
    });
    let freed = Instant::now();
    drop(held);
    assert_eq!(next.says(), "got it");
    // A claim of one that is gone would be 3 s.
    within(Duration::from_millis(2500), freed, "the next one's turn");
    next.gets_rid();
    // Those that were killed keep their places until they have been silent for 5 s.
    queued(&outsider, "q", 0);
}

/// redisson#4929, #6150: a head that is stopped. Given the lock while it can't come for it, it costs its successor its claim, and
/// is no holder when it wakes up.
#[test]
fn a_stopped_waiter_whose_turn_comes_costs_its_successor_the_claim() {
    let scene = Scene::new();
    let client = scene.outsider();
    let short = Duration::from_millis(1500);
    let mut stopped = Actor::new(&scene.server.url(), short);
    let mut next = Actor::new(&scene.server.url(), TTL);
    let held = client.fair_mutex("q").lock().unwrap();
    stopped.tell("fair q");
    queued(&client, "q", 1);
    next.tell("fair q");
    queued(&client, "q", 2);
    stopped.child.stop();
    let freed = Instant::now();
    drop(held);
    // It has the word, for the time of its claim.
    let info = client.fair_mutex("q").inspect().unwrap();
    assert!(info.held, "{info:?}");
    assert!(info.ttl_left.is_some_and(|left| left <= short), "{info:?}");
    assert_eq!(info.waiters, 1);
    assert_eq!(next.says(), "got it");
    within(Duration::from_secs(5), freed, "the next one's turn");
    stopped.child.cont();
    // It queues again, and has its turn.
    queued(&client, "q", 1);
    assert_eq!(next.does("check"), "held");
    let token: u64 = next.does("token").parse().unwrap();
    next.gets_rid();
    assert_eq!(stopped.says(), "got it");
    let after: u64 = stopped.does("token").parse().unwrap();
    assert!(after > token);
}

/// redisson#4929, #6150: one that has been silent for five seconds has no place any more, so it costs nothing.
#[test]
fn a_waiter_that_was_stopped_for_long_is_passed_over() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut stopped = Actor::new(&scene.server.url(), TTL);
    let mut next = Actor::new(&scene.server.url(), TTL);
    let held = client.fair_mutex("q").lock().unwrap();
    stopped.tell("fair q");
    queued(&client, "q", 1);
    stopped.child.stop();
    next.tell("fair q");
    queued(&client, "q", 2);
    queued(&client, "q", 1);
    let freed = Instant::now();
    drop(held);
    assert_eq!(next.says(), "got it");
    within(Duration::from_millis(2500), freed, "the next one's turn");
}

/// A head that is killed when it has been given the lock, and before it came for it.
#[test]
fn a_waiter_that_dies_when_its_turn_has_come_costs_its_successor_the_claim() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut dead = Actor::new(&scene.server.url(), TTL);
    let held = client.fair_mutex("q").lock().unwrap();
    dead.tell("fair q");
    queued(&client, "q", 1);
    let next = turn(&client, &scene, "next", "fair q");
    queued(&client, "q", 2);
    dead.child.stop();
    let freed = Instant::now();
    drop(held);
    let info = client.fair_mutex("q").inspect().unwrap();
    assert!(info.held, "{info:?}");
    dead.child.kill();
    joined(next);
    // Three seconds and a look.
    within(Duration::from_secs(8), freed, "the next one's turn");
}

/// A head that can't reach the server when its turn comes: its successor has it after the claim, and when it is back it waits
/// behind that one.
#[test]
fn a_waiter_that_is_cut_off_when_its_turn_comes_is_no_holder_afterwards() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let ttl = Duration::from_millis(1500);
    let client = scene.builder().ttl(ttl).build().unwrap();
    let held = outsider.fair_mutex("q").lock().unwrap();
    let cut_off = turn(&client, &scene, "cut off", "fair q");
    queued(&outsider, "q", 1);
    let mut next = Actor::new(&scene.server.url(), TTL);
    next.tell("fair q");
    queued(&outsider, "q", 2);
    scene.proxy.black_hole(true);
    let freed = Instant::now();
    drop(held);
    assert_eq!(next.says(), "got it");
    within(Duration::from_secs(5), freed, "the next one's turn");
    scene.proxy.black_hole(false);
    // It has looked, and is in the queue again.
    queued(&outsider, "q", 1);
    assert!(super::noted(&scene).is_empty());
    assert_eq!(next.does("check"), "held");
    next.gets_rid();
    joined(cut_off);
}

/// redisson#5019, #4595: waits that failed. Cancelled ones leave the queue as if they had never been there.
#[test]
fn cancelled_waiters_cost_nothing() {
    let scene = Scene::new();
    let client = scene.outsider();
    let held = client.fair_mutex("q").lock().unwrap();
    let canceller = Canceller::new();
    let mut waits = Vec::new();
    let mut turns = Vec::new();
    for n in 0..10 {
        if n % 2 == 0 {
            let mutex = client.fair_mutex("q");
            let wait = Wait::forever().cancelled_by(&canceller);
            waits.push(thread::spawn(move || {
                mutex.lock_with(wait).map(drop).unwrap_err().kind()
            }));
        } else {
            turns.push(turn(&client, &scene, &n.to_string(), "fair q"));
        }
        queued(&client, "q", n + 1);
    }
    canceller.cancel();
    for wait in waits {
        assert_eq!(joined(wait), ErrorKind::Cancelled);
    }
    queued(&client, "q", 5);
    let freed = Instant::now();
    drop(held);
    assert_eq!(notes(&scene, 10), one_by_one([1, 3, 5, 7, 9]));
    within(Duration::from_millis(2500), freed, "five turns");
    turns.into_iter().for_each(joined);
}

/// redisson#5019, #4595: cancelled when it has been given the lock, and its acquire is under way: the lock is passed on at once,
/// not after its claim.
#[test]
fn one_that_is_cancelled_when_its_turn_has_come_passes_the_lock_on() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.builder().ttl(Duration::from_secs(3)).build().unwrap();
    let held = outsider.fair_mutex("q").lock().unwrap();
    let canceller = Canceller::new();
    let cancelled = {
        // A fixed lease: so it has to ask for it.
        let mutex = client
            .fair_mutex("q")
            .with_fixed_lease(Duration::from_secs(3));
        let wait = Wait::forever().cancelled_by(&canceller);
        thread::spawn(move || mutex.lock_with(wait).map(drop).unwrap_err().kind())
    };
    queued(&outsider, "q", 1);
    let mut next = Actor::new(&scene.server.url(), TTL);
    next.tell("fair q");
    queued(&outsider, "q", 2);
    let lost = scene.proxy.rule(queues, Action::DropRequest, Times::Always);
    drop(held);
    assert!(lost.wait_hit(BOUND));
    let info = outsider.fair_mutex("q").inspect().unwrap();
    assert!(info.held, "{info:?}");
    let start = Instant::now();
    canceller.cancel();
    assert_eq!(joined(cancelled), ErrorKind::Cancelled);
    assert_eq!(next.says(), "got it");
    // A command has half a second. What is left of the claim is much longer.
    within(Duration::from_millis(2500), start, "passing it on");
    assert_eq!(outsider.fair_mutex("q").waiters().unwrap(), 0);
}

/// The same where no acquire of it is under way, because the call has not reached it yet.
#[test]
fn one_that_is_cancelled_before_it_hears_that_it_has_the_lock_passes_it_on() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.client();
    let held = outsider.fair_mutex("q").lock().unwrap();
    let canceller = Canceller::new();
    let cancelled = {
        let mutex = client.fair_mutex("q");
        let wait = Wait::forever().cancelled_by(&canceller);
        thread::spawn(move || mutex.lock_with(wait).map(drop).unwrap_err().kind())
    };
    queued(&outsider, "q", 1);
    let mut next = Actor::new(&scene.server.url(), TTL);
    next.tell("fair q");
    queued(&outsider, "q", 2);
    // It has left, but the server does not know yet, and gives it the lock.
    let slow = Action::DelayRequest(Duration::from_millis(150));
    let leaves = scene.proxy.rule(|c| c.runs("leave"), slow, Times::Once);
    canceller.cancel();
    assert!(leaves.wait_hit(BOUND));
    let start = Instant::now();
    drop(held);
    assert_eq!(joined(cancelled), ErrorKind::Cancelled);
    assert_eq!(next.says(), "got it");
    within(Duration::from_millis(1500), start, "passing it on");
}
