//! A token is used once: acquires that come late, or may have been carried out, leave no key that nobody holds.

use std::thread;
use std::time::Duration;

use leasehold::{Canceller, Client, ErrorKind, MutexGuard, Wait};
use redis::Value;

use crate::support::late::warm;
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(10);
const STATE: &str = "{x}:lh:s";

fn is_acquire(command: &Command) -> bool {
    command.runs_on("acquire", "x")
}

fn is_leave(command: &Command) -> bool {
    command.runs_on("leave", "x")
}

/// A client with one connection, which has been used.
fn client(scene: &Scene, io_timeout: Duration) -> Client {
    let builder = scene.builder().pool_size(1).io_timeout(io_timeout);
    let client = builder.build().unwrap();
    warm(&client);
    client
}

/// More holds than the list of dead tokens of ordinary releases remembers, twice over.
fn a_busy_lock(scene: &Scene) {
    let mutex = scene.outsider().mutex("x");
    for _ in 0..40 {
        mutex.lock().unwrap().unlock().unwrap();
    }
}

/// The first acquire that was sent arrives now, and is refused.
#[track_caller]
fn assert_late_acquire_is_refused(scene: &Scene, when: &str) {
    let said = scene.deliver(&scene.first_sent("acquire", "x"));
    assert_eq!(said, Value::Array(vec![Value::Int(-1)]), "{when}");
    assert!(!scene.exists("x"), "a key that nobody holds: {when}");
}

/// The first try was carried out and its reply lost, the second could not connect; the error said "not sent", so nothing was
/// undone, and the key stayed for its whole ttl.
#[test]
fn an_acquire_that_may_have_been_carried_out_is_undone_though_its_second_try_could_not_connect() {
    let scene = Scene::new();
    let client = client(&scene, Duration::from_secs(2));
    let reply = Action::DelayReply(Duration::from_secs(60));
    let carried_out = scene.proxy.rule(is_acquire, reply, Times::Once);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            assert!(carried_out.wait_hit(BOUND));
            scene.proxy.refuse(true);
            scene.proxy.cut();
        });
        client.mutex("x").try_lock().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Else it was the first try that timed out, and this test shows nothing.
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(scene.exists("x"), "it was carried out");
    scene.proxy.refuse(false);
    // Long before its 30 s are over.
    eventually(BOUND, "the key is gone", || !scene.exists("x"));
}

/// An acquire was sent twice; its holder extended the lease, then the first copy arrived, found its own token, and re-armed the
/// key with the old, shorter lease.
#[test]
fn a_late_copy_of_an_acquire_shortens_no_lease() {
    let scene = Scene::new();
    let client = client(&scene, Duration::from_millis(500));
    scene
        .proxy
        .rule(is_acquire, Action::DropRequest, Times::Once);
    let mutex = client.mutex("x").with_fixed_lease(Duration::from_secs(12));
    let guard = mutex.try_lock_for(BOUND).unwrap();
    guard.extend(Duration::from_secs(60)).unwrap();
    scene.deliver(&scene.first_sent("acquire", "x"));
    let given = scene.left("x");
    let believed = guard.remaining();
    assert!(believed > Duration::from_secs(30), "{believed:?}");
    assert!(believed <= given, "{believed:?} > {given:?}");
    guard.verify().unwrap();
}

/// The server remembers 16 dead tokens; a busy lock pushed one out in milliseconds whose acquire was still on its way, and that
/// was granted to nobody.
#[test]
fn an_acquire_given_up_is_refused_however_late_it_comes_to_a_busy_lock() {
    let scene = Scene::new();
    let client = client(&scene, Duration::from_millis(500));
    let reply = Action::DelayReply(Duration::ZERO);
    let left = scene.proxy.rule(is_leave, reply, Times::Once);
    scene
        .proxy
        .rule(is_acquire, Action::DropRequest, Times::Once);
    assert!(client.mutex("x").try_lock().is_err());
    assert!(left.wait_hit(BOUND));
    a_busy_lock(&scene);
    assert_late_acquire_is_refused(&scene, "given up");
}

/// The same for a hold whose acquire was sent more than once, by a second try or by the wait's next look; however it ended.
#[test]
fn an_acquire_sent_twice_is_refused_after_its_hold_however_late_it_comes_to_a_busy_lock() {
    type End = fn(&Scene, MutexGuard);
    let released: End = |_, guard| guard.unlock().unwrap();
    let taken_away: End = |scene, guard| {
        let _: i64 = scene.ask("DEL x");
        let error = guard.unlock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld);
    };
    let without_state: End = |scene, guard| {
        let _: i64 = scene.ask("DEL {x}:lh:s");
        guard.unlock().unwrap();
    };
    let at_least = Duration::from_secs(60);
    let rested: End = |scene, guard| {
        guard.unlock().unwrap();
        assert!(scene.outsider().mutex("x").force_unlock().unwrap());
    };
    let ends = [
        ("released", None, released),
        ("taken away", None, taken_away),
        ("its state deleted", None, without_state),
        ("kept for a while", Some(at_least), rested),
    ];
    for fault in [Action::CutBeforeRequest, Action::DropRequest] {
        for (how, at_least, end) in &ends {
            let scene = Scene::new();
            let client = client(&scene, Duration::from_millis(500));
            scene.proxy.rule(is_acquire, fault.clone(), Times::Once);
            let mut mutex = client.mutex("x");
            if let Some(at_least) = at_least {
                mutex = mutex.with_hold_at_least(*at_least);
            }
            let guard = mutex.try_lock_for(BOUND).unwrap();
            assert!(scene.proxy.count(is_acquire) >= 2);
            end(&scene, guard);
            a_busy_lock(&scene);
            assert_late_acquire_is_refused(&scene, &format!("{how}, {fault:?}"));
        }
    }
}

/// A full server refused to remember the token that was given up, and granted its acquire when memory was there again.
#[test]
fn an_acquire_given_up_while_memory_is_full_is_refused_later() {
    for known in [false, true] {
        let scene = Scene::new();
        let client = client(&scene, Duration::from_millis(500));
        if known {
            scene
                .outsider()
                .mutex("x")
                .lock()
                .unwrap()
                .unlock()
                .unwrap();
        }
        assert_eq!(scene.exists(STATE), known);
        let reply = Action::DelayReply(Duration::ZERO);
        let left = scene.proxy.rule(is_leave, reply, Times::Once);
        scene
            .proxy
            .rule(is_acquire, Action::DropRequest, Times::Once);
        let _: String = scene.ask("CONFIG SET maxmemory 1");
        let error = scene.outsider().mutex("other").try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(client.mutex("x").try_lock().is_err());
        assert!(left.wait_hit(BOUND));
        let _: String = scene.ask("CONFIG SET maxmemory 0");
        assert_late_acquire_is_refused(&scene, &format!("its state known: {known}"));
    }
}

/// Waits registered under their client's inbox alone; a wait that left late, its first message lost, took a newer wait of the
/// same client off the list, which was then woken by nobody.
#[test]
fn a_wait_that_leaves_late_takes_no_other_off_the_list() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = scene.outsider().mutex("x");
    let guard = mutex.lock().unwrap();
    let waits = |n| {
        eventually(BOUND, "the list of waiters", || {
            mutex.inspect().unwrap().waiters == n
        })
    };
    thread::scope(|scope| {
        let stop = Canceller::new();
        let wait = Wait::forever().cancelled_by(&stop);
        let first = scope.spawn(|| client.mutex("x").lock_with(wait).map(drop));
        waits(1);
        stop.cancel();
        let error = first.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        waits(0);
        let second = scope.spawn(|| client.mutex("x").lock().map(drop));
        waits(1);
        scene.deliver(&scene.first_sent("leave", "x"));
        assert_eq!(mutex.inspect().unwrap().waiters, 1);
        guard.unlock().unwrap();
        second.join().unwrap().unwrap();
    });
}
