//! `extend`: a holder never believes in more than the server may give, whatever becomes of the commands.

use std::thread;
use std::time::Duration;

use leasehold::{Client, ErrorKind, MutexGuard};

use crate::support::late::warm;
use crate::support::proxy::{Action, Times};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
/// Long enough for a try to have all of the I/O timeout.
const SHORTER: Duration = Duration::from_secs(13);

/// The lock `d`, held for a minute through a pool of one used connection.
fn held(scene: &Scene, io_timeout: Duration) -> (Client, MutexGuard) {
    let builder = scene.builder().pool_size(1).io_timeout(io_timeout);
    let client = builder.build().unwrap();
    warm(&client);
    let guard = client.mutex("d").with_fixed_lease(MINUTE).lock().unwrap();
    (client, guard)
}

#[track_caller]
fn assert_believes_no_more_than_the_server_gives(scene: &Scene, guard: &MutexGuard) {
    // In this order, so that the time between the two can't hide a fault.
    let given = scene.left("d");
    let believed = guard.remaining();
    assert!(
        believed <= given,
        "{believed:?} believed, {given:?} on the server"
    );
}

/// The first try of an extension was carried out, its reply lost, and the second try could not connect. What was reported was
/// the second try, "not sent": the holder went on believing in its old, longer lease, and two held the lock.
#[test]
fn an_extension_to_a_shorter_lease_counts_though_its_second_try_could_not_connect() {
    let scene = Scene::new();
    let (_client, guard) = held(&scene, Duration::from_secs(2));
    let carried_out = scene.proxy.rule(
        |c| c.runs_on("renew", "d"),
        Action::DelayReply(MINUTE),
        Times::Once,
    );
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            assert!(carried_out.wait_hit(BOUND));
            scene.proxy.refuse(true);
            scene.proxy.cut();
        });
        guard.extend(SHORTER).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // Else it was the first try that timed out, and this test shows nothing.
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(scene.left("d") <= SHORTER, "it was carried out");
    assert_believes_no_more_than_the_server_gives(&scene, &guard);
    scene.proxy.refuse(false);
    guard.unlock().unwrap();
}

/// The counterpart: what was never sent changes nothing.
#[test]
fn an_extension_that_was_never_sent_leaves_the_lease_as_it_was() {
    let scene = Scene::new();
    let (client, guard) = held(&scene, Duration::from_secs(2));
    scene.proxy.refuse(true);
    scene.proxy.cut();
    // Takes the connection that was cut out of the pool, so that the extension has none to send anything on.
    assert!(client.ping().is_err());
    let error = guard.extend(Duration::from_secs(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(guard.remaining() > MINUTE / 2, "{:?}", guard.remaining());
    scene.proxy.refuse(false);
    guard.extend(MINUTE).unwrap();
    assert!(guard.remaining() > MINUTE / 2, "{:?}", guard.remaining());
}

/// Two extensions under way at once: the server did the shorter one last, the holder heard of the longer one last, believed in
/// that, and two held the lock.
#[test]
fn of_two_extensions_at_once_the_one_that_the_server_did_last_counts() {
    let scene = Scene::new();
    let builder = scene.builder().io_timeout(Duration::from_secs(5));
    let client = builder.build().unwrap();
    let guard = client.mutex("d").with_fixed_lease(MINUTE).lock().unwrap();
    let late_answer = scene.proxy.rule(
        |c| c.runs_on("renew", "d"),
        Action::DelayReply(Duration::from_millis(500)),
        Times::Once,
    );
    thread::scope(|scope| {
        let longer = scope.spawn({
            let lease = guard.lease();
            move || lease.extend(MINUTE)
        });
        assert!(late_answer.wait_hit(BOUND));
        guard.extend(SHORTER).unwrap();
        longer.join().unwrap().unwrap();
    });
    assert!(scene.left("d") <= SHORTER, "the shorter one came last");
    assert_believes_no_more_than_the_server_gives(&scene, &guard);
}

/// An extension to a shorter lease timed out, a later one to a longer lease was confirmed; then the first reached the server
/// after all and cut the lease, while the holder believed in the longer one.
#[test]
fn an_extension_given_up_may_still_come_true_and_cuts_the_later_ones() {
    let scene = Scene::new();
    let (_client, guard) = held(&scene, Duration::from_millis(750));
    let is_renewal = |c: &crate::support::proxy::Command| c.runs_on("renew", "d");
    scene
        .proxy
        .rule(is_renewal, Action::DropRequest, Times::Once);
    assert!(guard.extend(SHORTER).is_err());
    eventually(BOUND, "confirmed", || guard.extend(MINUTE).is_ok());
    scene.deliver(&scene.first_sent("renew", "d"));
    assert!(scene.left("d") <= SHORTER, "the late one cut it");
    assert_believes_no_more_than_the_server_gives(&scene, &guard);
}

/// The same where nobody saw an error: the connection broke, the second try was confirmed, and the first one is still on its
/// way when a longer lease is confirmed.
#[test]
fn an_extension_sent_twice_may_come_true_once_more_and_cuts_the_later_ones() {
    let scene = Scene::new();
    let (_client, guard) = held(&scene, Duration::from_secs(2));
    let is_renewal = |c: &crate::support::proxy::Command| c.runs_on("renew", "d");
    scene
        .proxy
        .rule(is_renewal, Action::CutBeforeRequest, Times::Once);
    guard.extend(SHORTER).unwrap();
    guard.extend(MINUTE).unwrap();
    assert_eq!(scene.proxy.count(is_renewal), 3);
    scene.deliver(&scene.first_sent("renew", "d"));
    assert!(scene.left("d") <= SHORTER, "the late one cut it");
    assert_believes_no_more_than_the_server_gives(&scene, &guard);
}
