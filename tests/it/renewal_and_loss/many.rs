//! Many holds, one after the other or at once.

use std::thread;
use std::time::Duration;

use leasehold::testing::{Server, entries};
use leasehold::{Client, Lease, MutexGuard};

use crate::support::child::{Child, args, hear, say};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask, calls};
use crate::support::wait::{eventually, one_of, raw, threads_of_this_process};

const BOUND: Duration = Duration::from_secs(60);

/// Of the quick holds: renewed for the first time after 100 ms.
const SHORT_TTL: Duration = Duration::from_millis(300);

/// In a process of its own, where no other test's threads are counted.
pub(crate) fn quick_holds() {
    let url = &args()[0];
    let threads = threads_of_this_process();
    let client = Client::builder().url(url).ttl(SHORT_TTL).build().unwrap();
    thread::scope(|scope| {
        for t in 0..8_u64 {
            let mutex = client.mutex(format!("quick:{t}"));
            scope.spawn(move || {
                for round in 0..1250 {
                    // Lost on a busy machine, perhaps; that must leave nothing behind either.
                    let _guard = mutex.lock().unwrap();
                    if round % 50 == 0 {
                        // Given back just when its renewal is due, a little before or a little after.
                        thread::sleep(Duration::from_millis(92 + (t + round / 50) % 16));
                    }
                }
            });
        }
    });
    let metrics = client.metrics();
    assert_eq!(metrics.acquired, 10_000);
    assert!(metrics.renewals > 0, "the race was never run: {metrics:?}");
    eventually(BOUND, "the client's tables are empty", || {
        entries(&client) == 0
    });
    say("quiet");
    hear(BOUND);
    drop(client);
    eventually(BOUND, "all threads ended", || {
        threads_of_this_process() == threads
    });
    say("gone");
}

/// redisson#7272, #6844, #1626; spring-integration#10513: a renewal that was scheduled while it was being cancelled
/// outlives the unlock.
#[test]
fn ten_thousand_quick_holds_leave_no_key_no_renewal_and_no_thread() {
    let server = Server::start().unwrap();
    let mut direct = raw(&server.url());
    let mut child = Child::role("renewal/quick_holds").arg(server.url()).spawn();
    child.wait_for("quiet", BOUND);
    // Holds that were lost are given back in the background.
    eventually(BOUND, "no key is left", || {
        (0..8).all(|t| !ask::<bool>(&mut direct, &format!("EXISTS quick:{t}")))
    });
    // A renewal counts even if it finds nothing: its first command is a GET of the word.
    let before = calls(&mut direct, "get");
    thread::sleep(SHORT_TTL + SHORT_TTL / 3);
    assert_eq!(
        calls(&mut direct, "get"),
        before,
        "somebody goes on renewing"
    );
    child.send_line("end");
    child.wait_for("gone", BOUND);
    eventually(BOUND, "its connections are gone", || {
        ask::<String>(&mut direct, "CLIENT LIST").lines().count() == 1
    });
}

/// The same race, slowed down: the release begins while a renewal is on its way.
///
/// redisson#7272, #6844, #1626; spring-integration#10513. Invariant 3.
#[test]
fn a_release_waits_for_the_renewal_that_is_under_way_and_none_follows() {
    const DELAY: Duration = Duration::from_millis(450);
    let scene = Scene::new();
    let releases = scene.sightings(|c| c.runs_on("release", "join"));
    let renewals = scene.sightings(|c| c.runs_on("renew", "join"));
    let delayed = scene.proxy.rule(
        |c| c.runs_on("renew", "join"),
        Action::DelayReply(DELAY),
        Times::Once,
    );
    let ttl = Duration::from_secs(4);
    let client = scene.builder().ttl(ttl).build().unwrap();
    let guard = client.mutex("join").lock().unwrap();
    assert!(delayed.wait_hit(BOUND));
    guard.unlock().unwrap();
    let sent = releases.lock()[0] - renewals.lock()[0];
    assert!(sent >= DELAY, "the release was sent after {sent:?}");
    // The next one would have been due by then.
    thread::sleep(ttl / 3 + Duration::from_millis(300));
    assert_eq!(renewals.lock().len(), 1);
}

/// Each hold has a thread, so this is a process of its own.
pub(crate) fn two_thousand_holds() {
    const HOLDS: usize = 2000;
    const BAD: usize = 777;
    let url = &args()[0];
    let ttl = Duration::from_secs(4);
    let client = Client::builder().url(url).ttl(ttl).build().unwrap();
    let take = |n| client.mutex(format!("many:{n}")).lock().unwrap();
    let guards: Vec<MutexGuard> = (0..HOLDS).map(take).collect();
    let mut direct = raw(url);
    ask::<()>(&mut direct, &format!("DEL many:{BAD}"));
    let leases: Vec<Lease> = guards.iter().map(MutexGuard::lease).collect();
    leases[BAD]
        .lost()
        .recv_timeout(BOUND)
        .expect_err("a channel that is cut");
    assert!(!leases[BAD].is_held());
    // By the end of a whole ttl from now each of the others has been renewed, or is lost.
    assert_eq!(
        leases[BAD + 1].lost().recv_timeout(ttl),
        Err(leasehold::crossbeam_channel::RecvTimeoutError::Timeout)
    );
    let held = leases.iter().filter(|lease| lease.is_held()).count();
    assert_eq!((held, client.metrics().lost), (HOLDS - 1, 1));
    let there: u64 = ask(&mut direct, "DBSIZE");
    // Each word has its state beside it.
    assert_eq!(there, 2 * HOLDS as u64 - 1);
    drop(guards);
    say("one was lost");
}

/// redisson#6962, #6483: with many locks held, one renewal that goes wrong stops all.
#[test]
fn of_two_thousand_holds_only_the_one_whose_key_was_deleted_is_lost() {
    let server = Server::start().unwrap();
    let child = Child::role("renewal/two_thousand_holds")
        .arg(server.url())
        .spawn();
    child.wait_for("one was lost", BOUND);
}

/// redisson#6962, #6483, once more: the renewal is answered by an error, among others in the same pipeline.
#[test]
fn a_hold_whose_renewals_all_fail_takes_no_other_with_it() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(3);
    let client = scene.builder().ttl(ttl).build().unwrap();
    let failing = scene.proxy.rule(
        |c| c.runs_on("renew", "among:7"),
        Action::ReplaceReply(b"-ERR out of order\r\n".to_vec()),
        Times::Always,
    );
    let guards: Vec<MutexGuard> = (0..20)
        .map(|n| client.mutex(format!("among:{n}")).lock().unwrap())
        .collect();
    guards[7].lost().recv_timeout(BOUND).unwrap_err();
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    assert_eq!(held, 19, "{:?}", client.metrics());
    assert!(failing.hits() > 3, "tried again {} times", failing.hits());
    assert!(!guards[7].is_held());
}

/// redisson#6962, #6483: renewals that are due at once share a pipeline; one that is refused in its midst is nobody else's
/// trouble.
#[test]
fn a_refused_renewal_in_a_pipeline_spoils_no_other() {
    const HOLDS: usize = 20;
    let scene = Scene::new();
    // That they come together at all needs a machine which is not too busy.
    one_of(5, || {
        let client = scene.builder().ttl(Duration::from_secs(6)).build().unwrap();
        // While the first one waits for its answer, the others come together behind it.
        let slow = Action::DelayReply(Duration::from_millis(400));
        let first = |c: &Command| c.runs_on("renew", "piped:0");
        scene.proxy.rule(first, slow, Times::Once);
        let refused = Action::ReplaceReply(b"-ERR out of order\r\n".to_vec());
        let in_the_midst = |c: &Command| c.runs_on("renew", "piped:7");
        scene.proxy.rule(in_the_midst, refused, Times::Once);
        let guards: Vec<MutexGuard> = (0..HOLDS)
            .map(|n| client.mutex(format!("piped:{n}")).lock().unwrap())
            .collect();
        scene.proxy.reset_counts();
        eventually(BOUND, "all are renewed", || {
            client.metrics().renewals >= HOLDS as u64
        });
        let metrics = client.metrics();
        assert_eq!(metrics.renewal_failures, 1, "{metrics:?}");
        assert!(guards.iter().all(|guard| guard.is_held()));
        // The slow one, all the others, and the refused one once more; a few more if the others did not come together.
        let trips = scene.proxy.round_trips();
        if trips < HOLDS / 2 {
            Ok(())
        } else {
            Err(format!("{trips} round trips"))
        }
    });
}
