//! From thread to thread of one process, without a word to the server: not over the heads of others.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{BusyAsNone, Client};

use super::BOUND;
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

/// So long that a block of tokens lasts for longer than any bound here: only who knows of others gives it back sooner.
const SECTION: Duration = Duration::from_millis(100);
/// Far more than the sections that may come first, far less than a block.
const SOON: Duration = Duration::from_secs(3);

/// Three threads of `client` hand the lock on for as long as `meanwhile` takes, which is told how often it was had.
fn while_it_goes_round<T>(client: &Client, meanwhile: impl FnOnce(&AtomicU32) -> T) -> T {
    let (stop, had) = (AtomicBool::new(false), AtomicU32::new(0));
    /// Also when the test fails: or its threads would go on for ever.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                let mutex = client.mutex("round");
                while !stop.load(Ordering::Relaxed) {
                    let _guard = mutex.lock().unwrap();
                    thread::sleep(SECTION);
                    had.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        meanwhile(&had)
    })
}

/// Returns when it is handed on without a word to the server.
#[track_caller]
fn in_mid_chain(scene: &Scene, had: &AtomicU32) {
    let acquires = || scene.proxy.count(|c| c.runs("acquire"));
    eventually(BOUND, "it goes round without a command", || {
        let (asked, before) = (acquires(), had.load(Ordering::Relaxed));
        eventually(BOUND, "they are at it", || {
            had.load(Ordering::Relaxed) >= before + 4
        });
        acquires() == asked
    });
}

#[track_caller]
fn outsider_has_it_soon(scene: &Scene) {
    let start = Instant::now();
    let got = scene.outsider().mutex("round").try_lock_for(SOON);
    let got = got.busy_as_none().unwrap().is_some();
    assert!(got, "still waiting after {:?}", start.elapsed());
}

/// The one who listens for those who wait goes when no thread has waited for the server for 20 s. A chain may last longer.
#[test]
fn others_are_heard_of_in_a_chain_that_lasts_longer_than_the_listener() {
    let scene = Scene::new();
    let client = scene.client();
    while_it_goes_round(&client, |had| {
        in_mid_chain(&scene, had);
        outsider_has_it_soon(&scene);
        in_mid_chain(&scene, had);
        let since = Instant::now();
        eventually(2 * BOUND, "the listener would be gone", || {
            since.elapsed() > Duration::from_secs(22)
        });
        outsider_has_it_soon(&scene);
    });
    assert_eq!(entries(&client), 0);
}

/// The subscription breaks in mid-chain, and can't be had again.
#[test]
fn others_are_not_overlooked_when_the_subscription_breaks_in_mid_chain() {
    let scene = Scene::new();
    let client = scene.client();
    while_it_goes_round(&client, |had| {
        in_mid_chain(&scene, had);
        let subscribes = |c: &Command| c.name() == "SUBSCRIBE";
        scene
            .proxy
            .rule(subscribes, Action::DropRequest, Times::Always);
        scene.ask::<u64>("CLIENT KILL TYPE pubsub");
        outsider_has_it_soon(&scene);
    });
    assert_eq!(entries(&client), 0);
}
