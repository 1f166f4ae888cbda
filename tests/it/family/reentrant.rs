//! `ReentrantMutex`: nested guards cost nothing, end in any order, and are lost together.

use std::time::Duration;

use leasehold::testing::{entries, lose};
use leasehold::{Client, ErrorKind, Predecessor};

use super::BOUND;
use crate::support::ask::elsewhere;
use crate::support::scene::Scene;
use crate::support::wait::eventually;

fn kind<T: std::fmt::Debug>(outcome: leasehold::Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// Promised: nested locks ask nobody. Two round trips in all, and not one more for a thousand nested guards.
#[test]
fn nested_locks_send_nothing() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.reentrant_mutex("r");
    drop(mutex.lock().unwrap());
    scene.proxy.reset_counts();
    let outer = mutex.lock().unwrap();
    for n in 0..200 {
        let other = client.clone().reentrant_mutex("r");
        let guards = [
            other.lock().unwrap(),
            other.try_lock().unwrap(),
            other.try_lock_for(Duration::ZERO).unwrap(),
            mutex.lock().unwrap(),
        ];
        assert_eq!(guards[0].depth(), 5, "round {n}");
        for guard in &guards {
            assert_eq!(guard.fencing_token(), outer.fencing_token());
            assert!(guard.is_held());
        }
    }
    assert_eq!(outer.depth(), 1);
    assert_eq!(other_with(&client), 3);
    assert_eq!(scene.proxy.commands().len(), 1);
    drop(outer);
    assert_eq!(scene.proxy.commands().len(), 2);
    assert_eq!(scene.proxy.round_trips(), 2);
}

/// A section within a section within that of the caller.
fn other_with(client: &Client) -> usize {
    let mutex = client.reentrant_mutex("r");
    let depth = mutex.with(|_| mutex.with(|_| mutex.lock().unwrap().depth() - 1));
    depth.unwrap().unwrap()
}

/// Promised: nested guards may drop in any order; the last one releases, whichever that is.
#[test]
fn guards_end_in_any_order_and_the_last_one_releases() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.reentrant_mutex("r");
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        scene.proxy.reset_counts();
        let mut guards = [(); 3].map(|()| Some(mutex.lock().unwrap()));
        for (nth, at) in order.into_iter().enumerate() {
            assert!(mutex.is_locked().unwrap());
            let guard = guards[at].take().unwrap();
            assert_eq!(guard.depth(), 3 - nth);
            let busy = elsewhere(|| kind(mutex.try_lock()));
            assert_eq!(busy, ErrorKind::WouldBlock);
            if nth == 1 {
                guard.unlock().unwrap();
            } else {
                drop(guard);
            }
        }
        assert!(!mutex.is_locked().unwrap());
        assert_eq!(scene.proxy.count(|c| c.runs("release")), 1);
        assert_eq!(scene.proxy.count(|c| c.runs("acquire")), 1);
    }
    assert_eq!(entries(&client), 0);
}

/// Promised: another thread, another client of the process, and another process are somebody else.
#[test]
fn another_thread_and_another_client_are_kept_out() {
    let scene = Scene::new();
    let (client, other) = (scene.client(), scene.client());
    let outer = client.reentrant_mutex("r").lock().unwrap();
    let inner = client.reentrant_mutex("r").lock().unwrap();
    // This thread through another client would wait for itself.
    let twin = other.reentrant_mutex("r");
    assert_eq!(kind(twin.try_lock()), ErrorKind::WouldBlock);
    assert_eq!(kind(twin.lock()), ErrorKind::Deadlock);
    for client in [&client, &other] {
        let mutex = client.reentrant_mutex("r");
        let outcome = elsewhere(|| kind(mutex.try_lock_for(Duration::from_millis(50))));
        assert_eq!(outcome, ErrorKind::TimedOut);
    }
    // Another name is another lock.
    assert_eq!(client.reentrant_mutex("r2").lock().unwrap().depth(), 1);
    drop(outer);
    assert_eq!(
        kind(elsewhere(|| twin.try_lock().map(drop))),
        ErrorKind::WouldBlock
    );
    drop(inner);
    elsewhere(|| twin.try_lock().map(drop)).unwrap();
    drop(twin.lock().unwrap());
}

/// Promised: the other types on its word are not nested: the thread is told that it would wait for itself.
#[test]
fn other_types_on_its_word_are_told_of_the_deadlock() {
    let scene = Scene::new();
    let client = scene.client();
    let outer = client.reentrant_mutex("r").lock().unwrap();
    let long = Duration::from_secs(60);
    let locks = [
        kind(client.mutex("r").lock()),
        kind(client.mutex("r").try_lock_for(long)),
        kind(client.fair_mutex("r").lock()),
        kind(client.fair_mutex("r").try_lock_for(long)),
        kind(client.multi_mutex(["a", "r"]).lock()),
        kind(client.multi_mutex(["r", "z"]).try_lock_for(long)),
    ];
    assert_eq!(locks, [ErrorKind::Deadlock; 6]);
    let tries = [
        kind(client.mutex("r").try_lock()),
        kind(client.fair_mutex("r").try_lock()),
        kind(client.multi_mutex(["a", "r"]).try_lock()),
    ];
    assert_eq!(tries, [ErrorKind::WouldBlock; 3]);
    // A read-write lock of that name is another lock.
    drop(client.rw_lock("r").write().unwrap());
    drop(outer);
    // And the other way round.
    for held in ["mutex r", "fair r", "several a r"] {
        let _held = super::actor::acquire(&client, held).unwrap();
        assert_eq!(
            kind(client.reentrant_mutex("r").lock()),
            ErrorKind::Deadlock
        );
    }
}

/// redisson#2515, #3712: after a loss a nested lock is an error until all guards of that hold are gone; then a new one is held,
/// and renewed.
#[test]
fn after_a_loss_nothing_is_nested_until_all_guards_are_gone() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(1)).build().unwrap();
    let mutex = client.reentrant_mutex("r");
    let outer = mutex.lock().unwrap();
    let inner = mutex.lock().unwrap();
    let token = outer.fencing_token();
    // By somebody's hand: the next renewal finds out.
    let _: u64 = scene.ask("DEL r");
    assert!(
        inner
            .lost()
            .recv_timeout(BOUND)
            .is_err_and(|e| e.is_disconnected())
    );
    assert_eq!((outer.is_held(), inner.is_held()), (false, false));
    scene.proxy.reset_counts();
    assert_eq!(kind(mutex.lock()), ErrorKind::Lost);
    assert_eq!(kind(mutex.try_lock()), ErrorKind::Lost);
    assert_eq!(kind(mutex.with(|_| ())), ErrorKind::Lost);
    assert_eq!(outer.depth(), 2);
    assert_eq!(kind(outer.unlock()), ErrorKind::Lost);
    assert_eq!(kind(mutex.lock()), ErrorKind::Lost);
    assert!(scene.proxy.commands().is_empty());
    // Another thread is not in that section.
    elsewhere(|| mutex.lock().unwrap().unlock()).unwrap();
    assert_eq!(kind(mutex.lock()), ErrorKind::Lost);
    assert_eq!(kind(inner.unlock()), ErrorKind::Lost);
    let again = mutex.lock().unwrap();
    assert!(again.fencing_token() > token);
    assert_eq!(again.depth(), 1);
    let renewals = || scene.proxy.count(|c| c.runs("renew"));
    let before = renewals();
    eventually(BOUND, "it is renewed", || renewals() >= before + 2);
    assert!(again.is_held());
    assert_eq!(mutex.lock().unwrap().depth(), 2);
}

/// The same where the loss is found by the process itself: the key goes as well.
#[test]
fn a_loss_on_this_side_ends_all_guards_at_once() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.reentrant_mutex("r");
    let guards = [(); 3].map(|()| mutex.lock().unwrap());
    lose(&guards[1]);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    assert_eq!(kind(mutex.lock()), ErrorKind::Lost);
    drop(guards);
    let again = mutex.lock().unwrap();
    assert!(matches!(again.predecessor(), Predecessor::Abandoned { .. }));
}

/// Promised: how it is held is what the outermost handle says.
#[test]
fn the_outer_holds_options_stay() {
    let scene = Scene::new();
    let client = scene.client();
    let short = Duration::from_secs(2);
    let outer = client
        .reentrant_mutex("r")
        .with_fixed_lease(short)
        .lock()
        .unwrap();
    let long = client
        .reentrant_mutex("r")
        .with_ttl(Duration::from_secs(600));
    let inner = long.lock().unwrap();
    assert!(inner.remaining() <= short);
    drop(inner);
    assert!(outer.remaining() <= short);
    let left: u64 = scene.ask("PTTL r");
    assert!(left <= 2000, "{left}");
    // A fixed lease, as the outer handle said: it can be extended, and is not renewed.
    let inner = long.lock().unwrap();
    inner.extend(Duration::from_secs(5)).unwrap();
    assert!(outer.remaining() > short);
    assert_eq!(scene.proxy.count(|c| c.runs("renew")), 1);
}
