//! `Semaphore`: holders that die, again and again.

use std::time::{Duration, Instant};

use leasehold::ErrorKind;

use super::actor::Actor;
use super::semaphore::waiting;
use super::{BOUND, joined, turn, within};
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

const LIMIT: u64 = 3;

/// redisson#5066, #2045; dv/redis-semaphore#64, #13: a crash loses permits, clocks decide who is dead. Processes that take and
/// give back are killed wherever they are, again and again: never are more in than may be, and all permits come back.
#[test]
fn killed_holders_give_their_permits_back_and_never_too_many() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(2);
    let url = scene.server.url();
    let churning = |id: usize| {
        let mut actor = Actor::new(&url, ttl);
        actor.tell(&format!("churn {id} permits s 1 {LIMIT}"));
        actor
    };
    let mut raw = scene.raw();
    let mut actors: Vec<(usize, Actor)> = (0..5).map(|id| (id, churning(id))).collect();
    for id in 5..15 {
        // Wherever it is by now.
        let seen: u64 = ask(&mut raw, "GET rounds");
        eventually(BOUND, "they go round", || {
            ask::<u64>(&mut raw, "GET rounds") >= seen + 20
        });
        let (killed, mut actor) = actors.remove(0);
        actor.child.kill();
        eventually(BOUND, "its last count has arrived", || {
            let list: String = ask(&mut raw, "CLIENT LIST");
            !list.contains(&format!("name=churn-{killed} "))
        });
        // The dead are not in; their permits stay away for what is left of their leases, which is more than this took.
        let left: Option<i64> = ask(&mut raw, &format!("GETDEL within:{killed}"));
        let _: i64 = ask(&mut raw, &format!("DECRBY within {}", left.unwrap_or(0)));
        actors.push((id, churning(id)));
    }
    let seen: Vec<u64> = ask(&mut raw, "SMEMBERS seen");
    let most = seen.iter().copied().max().unwrap();
    assert_eq!(most, LIMIT, "{seen:?}");
    for (_, actor) in &mut actors {
        actor.child.kill();
    }
    let killed = Instant::now();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", u32::try_from(LIMIT).unwrap());
    let all = semaphore.acquire_many(3).unwrap();
    // The leases, and the places of those who waited.
    within(Duration::from_secs(9), killed, "all permits' return");
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    all.unlock().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 3);
}

/// dv/redis-semaphore#64: permits of one that died come back when its ttl has run out, though nobody gives back or asks, and a
/// renewed holder keeps its own meanwhile.
#[test]
fn the_permits_of_a_dead_holder_come_back_after_its_ttl() {
    let scene = Scene::new();
    let client = scene.outsider();
    let ttl = Duration::from_millis(1500);
    let semaphore = client.semaphore("s", 3);
    let renewed = client.semaphore("s", 3).with_ttl(ttl).acquire().unwrap();
    let mut dead = Actor::new(&scene.server.url(), ttl);
    dead.gets("permits s 2 3");
    let next = turn(&client, &scene, "next", "permits s 2 3");
    waiting(&client, 1);
    let killed = Instant::now();
    dead.child.kill();
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    joined(next);
    assert!(killed.elapsed() >= ttl / 2, "{:?}", killed.elapsed());
    within(ttl + Duration::from_secs(3), killed, "their return");
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    renewed.verify().unwrap();
}

/// A waiter that is killed, and one that is stopped when its turn comes, cost those behind them seconds.
#[test]
fn dead_and_stopped_waiters_cost_their_successors_seconds() {
    let scene = Scene::new();
    let client = scene.outsider();
    let semaphore = client.semaphore("s", 2);
    let all = semaphore.acquire_many(2).unwrap();
    let ttl = Duration::from_millis(1500);
    let [mut killed, mut stopped] = [(); 2].map(|()| Actor::new(&scene.server.url(), ttl));
    killed.tell("permits s 2 2");
    waiting(&client, 1);
    stopped.tell("permits s 2 2");
    waiting(&client, 2);
    let next = turn(&client, &scene, "next", "permits s 1 2");
    waiting(&client, 3);
    killed.child.kill();
    stopped.child.stop();
    let freed = Instant::now();
    drop(all);
    joined(next);
    within(Duration::from_secs(8), freed, "the next one's turn");
    stopped.child.cont();
    assert_eq!(stopped.says(), "got it");
    assert_eq!(stopped.does("check"), "held");
    assert_eq!(
        semaphore.try_acquire().unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    stopped.gets_rid();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
}

/// Lost, a permit is one less for its holder, and none more for the others than there are.
#[test]
fn a_table_that_is_deleted_by_hand_is_made_anew_and_its_holders_are_told() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(1)).build().unwrap();
    let semaphore = client.semaphore("s", 2);
    let held = semaphore.acquire_many(2).unwrap();
    let next = turn(&scene.outsider(), &scene, "next", "permits s 1 2");
    waiting(&scene.outsider(), 1);
    let deleted = Instant::now();
    let _: u64 = scene.ask("DEL {s}:lh:sem");
    assert!(
        held.lost()
            .recv_timeout(BOUND)
            .is_err_and(|e| e.is_disconnected())
    );
    within(Duration::from_secs(3), deleted, "telling its holder");
    joined(next);
    within(Duration::from_secs(5), deleted, "the next one's turn");
    assert_eq!(held.unlock().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(semaphore.available_permits().unwrap(), 2);
}
