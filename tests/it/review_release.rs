//! What a release says, and what is left on the server of a hold that was lost.

use std::thread;
use std::time::Duration;

use leasehold::testing::{Server, suspend};
use leasehold::{ErrorKind, MutexGuard, OwnedMutexGuard};

use crate::support::late::warm;
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

fn is_release(command: &Command) -> bool {
    command.runs_on("release", "x")
}

fn lose_silently(scene: &Scene) {
    let _: i64 = scene.ask("DEL x");
}

/// The server said "not ours", that reply was lost, and the repeated release found its token among the dead ones: "released".
#[test]
fn an_unlock_says_not_held_though_the_first_refusal_was_lost() {
    let scene = Scene::new();
    let client = scene.client();
    for retaken in [false, true] {
        warm(&client);
        let guard = client.mutex("x").lock().unwrap();
        lose_silently(&scene);
        let other = retaken.then(|| scene.outsider().mutex("x").try_lock().unwrap());
        let cut = scene
            .proxy
            .rule(is_release, Action::CutBeforeReply, Times::Once);
        let error = guard.unlock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
        assert_eq!(cut.hits(), 1, "the first refusal was lost");
        // Whoever has it now keeps it.
        assert_eq!(scene.exists("x"), retaken);
        drop(other);
    }
    assert_eq!(client.metrics().releases_refused, 2);
}

/// The counterpart: a release whose reply was lost is told "released" when it is repeated.
#[test]
fn an_unlock_whose_reply_was_lost_says_released() {
    let scene = Scene::new();
    let client = scene.client();
    warm(&client);
    let guard = client.mutex("x").lock().unwrap();
    let cut = scene
        .proxy
        .rule(is_release, Action::CutBeforeReply, Times::Once);
    guard.unlock().unwrap();
    assert_eq!((cut.hits(), scene.proxy.count(is_release)), (1, 2));
}

/// Another thread, so that this process does not refuse it as a lock of the thread's own.
fn take_away(server: &Server, name: &str) -> OwnedMutexGuard {
    thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let mutex = server.client().mutex(name);
            assert!(mutex.force_unlock().unwrap());
            mutex.lock().map(MutexGuard::into_owned).unwrap()
        });
        thief.join().unwrap()
    })
}

/// `force_unlock` noted the token as released: the holder's unlock said `Ok`, and `with` gave out its result, of a lock that
/// somebody else had.
#[test]
fn a_lock_that_was_forced_away_is_not_said_to_be_released() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client.mutex("x").lock().unwrap();
    let thief = take_away(&server, "x");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    thief.verify().unwrap();

    let mut thief = None;
    let result = client
        .mutex("y")
        .with(|_| thief = Some(take_away(&server, "y")));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
    thief.expect("with ran it").verify().unwrap();
    assert_eq!(client.metrics().releases_refused, 2);
}

/// A hold that could not be renewed in time, and was given up, kept its key for the rest of `hold_at_least`: an hour, say, in
/// which nobody had done the work.
#[test]
fn a_lost_hold_keeps_nothing_of_hold_at_least() {
    let scene = Scene::new();
    let client = scene.client();
    let guard = client
        .mutex("x")
        .with_hold_at_least(HOUR)
        .lock()
        .map(MutexGuard::into_owned)
        .unwrap();
    suspend(&client, TTL);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
    eventually(BOUND, "the key is gone", || !scene.exists("x"));
}

/// A renewal may be carried out and never answered, so that the key outlives by far what its holder believes in; the clean-up
/// gave up a little after the holder's deadline, and the key stayed for its ttl.
#[test]
fn the_key_of_a_lost_hold_is_cleaned_up_long_after_its_deadline() {
    let scene = Scene::new();
    let client = scene.client();
    let guard = client.mutex("x").lock().unwrap();
    suspend(&client, TTL * 2);
    assert!(guard.check().is_err());
    assert!(scene.left("x") > TTL / 2, "the server has it still");
    drop(guard);
    eventually(BOUND, "the key is gone", || !scene.exists("x"));
}

/// A release that can't be sent is tried again for as long as the key may live, which is longer than the first lease of one
/// that was extended.
#[test]
fn the_release_of_an_extended_lease_is_tried_for_all_of_it() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.mutex("x").with_fixed_lease(Duration::from_secs(5));
    let guard = mutex.lock().unwrap();
    guard.extend(HOUR).unwrap();
    scene.proxy.refuse(true);
    scene.proxy.cut();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Unavailable);
    // The clean-up, too, sees so much time pass.
    suspend(&client, Duration::from_secs(60));
    scene.proxy.refuse(false);
    eventually(BOUND, "the key is gone", || !scene.exists("x"));
}

/// Without the state beside the word (evicted, or deleted by hand) the release freed the word and remembered nothing: repeated,
/// it said "not ours", and `hold_at_least` was forgotten.
#[test]
fn a_release_works_and_may_be_repeated_though_the_state_is_gone() {
    let scene = Scene::new();
    let client = scene.client();
    for at_least in [None, Some(HOUR)] {
        warm(&client);
        let mut mutex = client.mutex("x");
        if let Some(at_least) = at_least {
            mutex = mutex.with_hold_at_least(at_least);
        }
        let guard = mutex.lock().unwrap();
        let deleted: i64 = scene.ask("DEL {x}:lh:s");
        assert_eq!(deleted, 1);
        let cut = scene
            .proxy
            .rule(is_release, Action::CutBeforeReply, Times::Once);
        guard.unlock().unwrap();
        assert_eq!(cut.hits(), 1);
        let left = scene.left("x");
        match at_least {
            None => assert!(left.is_zero(), "{left:?}"),
            Some(_) => assert!(left > HOUR / 2, "it rests: {left:?}"),
        }
    }
    let info = scene.outsider().mutex("x").inspect().unwrap();
    assert_eq!(info.kind, "resting");
}
