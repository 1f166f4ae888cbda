//! `RwLock`: conversions whose outcome nobody knows, and renewals that cross them.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind};

use super::actor::Actor;
use super::{BOUND, within};
use crate::support::ask::elsewhere;
use crate::support::late::warm;
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

const TTL: Duration = Duration::from_secs(3);

/// An acquire that replaces a read by a write.
fn upgrades(command: &Command) -> bool {
    command.runs("acquire_rw") && command.args.get(11).is_some_and(|mode| mode == b"x")
}

fn downgrades(command: &Command) -> bool {
    command.runs("downgrade")
}

fn client(scene: &Scene) -> Client {
    let client = scene.builder().ttl(TTL).build().unwrap();
    warm(&client);
    client
}

/// No lease is left on the server, sooner than any would have run out, and the next writer gets in.
#[track_caller]
fn nothing_stays(scene: &Scene, since: Instant) {
    let mut raw = scene.raw();
    eventually(BOUND, "no lease stays", || {
        let fields: Vec<String> = ask(&mut raw, "HKEYS {rw}:lh:rw");
        fields.iter().all(|field| !field.starts_with('h'))
    });
    within(Duration::from_millis(2500), since, "giving it back");
    let outsider = scene.outsider();
    let lock = outsider.rw_lock("rw");
    let info = lock.inspect().unwrap();
    assert_eq!((info.held, info.waiters), (false, 0), "{info:?}");
    elsewhere(|| lock.try_write().unwrap().unlock()).unwrap();
}

/// Nobody knows whether the server made a writer of the reader: both roles are given back, and the guard that comes back is lost.
#[test]
fn an_upgrade_of_which_nobody_knows_gives_both_roles_back() {
    for action in [Action::DropReply, Action::DropRequest] {
        let scene = Scene::new();
        let client = client(&scene);
        let reading = client.rw_lock("rw").upgradable_read().unwrap();
        let lease = reading.lease();
        let lost = scene.proxy.rule(upgrades, action.clone(), Times::Always);
        let wait = Duration::from_millis(900);
        let (reading, error) = reading.try_upgrade_for(wait).unwrap_err().into_parts();
        let ended = Instant::now();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{action:?}: {error}");
        assert!(lost.hits() > 0);
        assert!(!reading.is_held() && !lease.is_held());
        assert_eq!(reading.verify().unwrap_err().kind(), ErrorKind::Lost);
        let signal = lease.lost().recv_timeout(BOUND);
        assert!(signal.is_err_and(|e| e.is_disconnected()));
        nothing_stays(&scene, ended);
        assert_eq!(reading.unlock().unwrap_err().kind(), ErrorKind::Lost);
        let metrics = client.metrics();
        assert_eq!(metrics.lost, 1, "{metrics:?}");
    }
}

/// The upgrade reaches the server when all has been given back: it is refused.
#[test]
fn an_upgrade_that_arrives_late_comes_to_nothing() {
    let scene = Scene::new();
    let client = client(&scene);
    let reading = client.rw_lock("rw").upgradable_read().unwrap();
    scene
        .proxy
        .rule(upgrades, Action::DropRequest, Times::Always);
    let wait = Duration::from_millis(900);
    let rejected = reading.try_upgrade_for(wait).unwrap_err();
    let ended = Instant::now();
    let error = leasehold::Error::from(rejected);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    nothing_stays(&scene, ended);
    let commands = scene.proxy.commands();
    for late in commands.iter().filter(|c| upgrades(c)) {
        let reply = scene.deliver(late);
        assert!(!matches!(reply, redis::Value::BulkString(_)), "{reply:?}");
    }
    nothing_stays(&scene, Instant::now());
}

/// redisson#5358, #1966, #4109, of an upgrade: one lost reply is no reason to give up while there is time. It is the same write.
#[test]
fn an_upgrade_whose_first_reply_is_lost_goes_through() {
    for action in [Action::DropReply, Action::CutBeforeReply] {
        let scene = Scene::new();
        let client = client(&scene);
        let reading = client.rw_lock("rw").upgradable_read().unwrap();
        let lost = scene.proxy.rule(upgrades, action, Times::Once);
        let writing = reading.upgrade().unwrap();
        assert_eq!(lost.hits(), 1);
        writing.verify().unwrap();
        let info = scene.outsider().rw_lock("rw").inspect().unwrap();
        assert_eq!(info.token, Some(writing.fencing_token()), "{info:?}");
        writing.unlock().unwrap();
        nothing_stays(&scene, Instant::now());
        assert_eq!(client.metrics().lost, 0);
    }
}

/// Nobody knows whether the server made a reader of the writer: both roles are given back, and the guard that comes back is lost.
#[test]
fn a_downgrade_of_which_nobody_knows_gives_both_roles_back() {
    for action in [Action::DropReply, Action::DropRequest] {
        let scene = Scene::new();
        let client = client(&scene);
        let writing = client.rw_lock("rw").write().unwrap();
        let lease = writing.lease();
        let lost = scene.proxy.rule(downgrades, action.clone(), Times::Always);
        let (writing, error) = writing.downgrade().unwrap_err().into_parts();
        let ended = Instant::now();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{action:?}: {error}");
        assert!(lost.hits() > 0);
        assert!(!writing.is_held() && !lease.is_held());
        nothing_stays(&scene, ended);
        assert_eq!(writing.unlock().unwrap_err().kind(), ErrorKind::Lost);
        // The same call again, from a network that kept it.
        let late = scene.first_sent("downgrade", "{rw}:lh:rw");
        let reply = scene.deliver(&late);
        assert!(!matches!(reply, redis::Value::BulkString(_)), "{reply:?}");
        nothing_stays(&scene, Instant::now());
    }
}

/// No connection is left that looks good: what is sent over such a one may arrive.
fn cut_off(scene: &Scene, client: &Client) {
    scene.proxy.refuse(true);
    scene.proxy.cut();
    let error = client.ping().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// The server can't be asked at all: nothing has happened, and the guard that comes back is as good as before.
#[test]
fn a_conversion_that_never_left_gives_a_good_guard_back() {
    let scene = Scene::new();
    let client = scene
        .builder()
        .ttl(Duration::from_secs(20))
        .build()
        .unwrap();
    let writing = client.rw_lock("rw").write().unwrap();
    cut_off(&scene, &client);
    let (writing, error) = writing.downgrade().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    writing.check().unwrap();
    scene.proxy.refuse(false);
    writing.verify().unwrap();
    let reading = writing.downgrade().unwrap();
    reading.verify().unwrap();
    reading.unlock().unwrap();
    let reading = client.rw_lock("rw").upgradable_read().unwrap();
    cut_off(&scene, &client);
    let (reading, error) = reading.try_upgrade().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    reading.check().unwrap();
    scene.proxy.refuse(false);
    reading.upgrade().unwrap().verify().unwrap();
}

/// The read was taken away meanwhile: an upgrade says so, and makes no writer of it.
#[test]
fn a_conversion_of_what_was_taken_away_is_a_loss() {
    let scene = Scene::new();
    let client = scene.client();
    let lock = client.rw_lock("rw");
    let reading = lock.upgradable_read().unwrap();
    assert!(lock.force_unlock().unwrap());
    let (reading, error) = reading.upgrade().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!reading.is_held());
    drop(reading);
    let writing = lock.write().unwrap();
    assert!(lock.force_unlock().unwrap());
    let (writing, error) = writing.downgrade().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!writing.is_held());
    drop(writing);
    nothing_stays(&scene, Instant::now());
    assert_eq!(client.metrics().lost, 2);
}

/// A renewal of the old lease that reaches the server when the new one is there already is told "not yours": that is no loss.
#[test]
fn renewals_that_cross_a_conversion_are_no_loss() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(3);
    let client = scene.builder().ttl(ttl).build().unwrap();
    warm(&client);
    let lock = client.rw_lock("rw");
    // Every renewal is a moment late; a command has half a second.
    let late = Action::DelayRequest(Duration::from_millis(250));
    let renewals = scene
        .proxy
        .rule(|c| c.runs("renew_table"), late, Times::Always);
    {
        let before = client.metrics().renewals;
        let writing = lock.write().unwrap();
        let hits = renewals.hits();
        let sent = scene.proxy.count(|c| c.runs("renew_table"));
        eventually(BOUND, "a renewal is on its way", || {
            scene.proxy.count(|c| c.runs("renew_table")) > sent
        });
        let reading = writing.downgrade().unwrap();
        reading.check().unwrap();
        eventually(BOUND, "the new lease is renewed", || {
            renewals.hits() >= hits + 2 && client.metrics().renewals > before
        });
        reading.verify().unwrap();
        reading.unlock().unwrap();
    }
    {
        let before = client.metrics().renewals;
        let reading = lock.upgradable_read().unwrap();
        let sent = scene.proxy.count(|c| c.runs("renew_table"));
        eventually(BOUND, "a renewal is on its way", || {
            scene.proxy.count(|c| c.runs("renew_table")) > sent
        });
        let writing = reading.upgrade().unwrap();
        writing.check().unwrap();
        eventually(BOUND, "the new lease is renewed", || {
            client.metrics().renewals > before
        });
        writing.verify().unwrap();
        writing.unlock().unwrap();
    }
    assert_eq!(client.metrics().lost, 0);
}

/// The same where the upgrade is granted while it waits: the renewals of its read go on until then.
#[test]
fn renewals_that_cross_a_waiting_upgrade_are_no_loss() {
    let scene = Scene::new();
    let client = scene.builder().ttl(TTL).build().unwrap();
    let outsider = scene.outsider();
    let mut reader = Actor::new(&scene.server.url(), Duration::from_secs(30));
    reader.gets("read rw");
    let late = Action::DelayRequest(Duration::from_millis(250));
    let renewals = scene
        .proxy
        .rule(|c| c.runs("renew_table"), late, Times::Always);
    let reading = client.rw_lock("rw").upgradable_read().unwrap();
    let writing = std::thread::scope(|scope| {
        scope.spawn(|| {
            super::read_write::waiting(&outsider, 1);
            let sent = scene.proxy.count(|c| c.runs("renew_table"));
            eventually(BOUND, "a renewal is on its way", || {
                scene.proxy.count(|c| c.runs("renew_table")) > sent
            });
            reader.gets_rid();
        });
        reading.upgrade().unwrap()
    });
    let hits = renewals.hits();
    eventually(BOUND, "the write is renewed", || {
        renewals.hits() >= hits + 2
    });
    writing.verify().unwrap();
    assert_eq!(client.metrics().lost, 0);
}

/// redisson#763, of an upgrade that waits: its subscription is cut, and can't be had again for a while. It is the same upgrade as
/// before, not a second one that would have to be refused; and its place is kept.
#[test]
fn a_cut_subscription_does_not_refuse_an_upgrade_that_waits() {
    let scene = Scene::new();
    let client = scene.client();
    let outsider = scene.outsider();
    let mut reader = Actor::new(&scene.server.url(), Duration::from_secs(30));
    reader.gets("read rw");
    let looks = scene.sightings(upgrades);
    let reading = client.rw_lock("rw").upgradable_read().unwrap();
    let writing = std::thread::scope(|scope| {
        scope.spawn(|| {
            super::read_write::waiting(&outsider, 1);
            eventually(BOUND, "it listens", || {
                let listens: Vec<String> = scene.ask("PUBSUB CHANNELS leasehold:inbox:*");
                !listens.is_empty()
            });
            scene.proxy.rule(
                |c| c.name() == "SUBSCRIBE",
                Action::DropRequest,
                Times::Always,
            );
            let killed: u64 = scene.ask("CLIENT KILL TYPE pubsub");
            assert_eq!(killed, 1);
            let before = looks.lock().len();
            // For longer than a waiter that is silent keeps its place.
            let start = Instant::now();
            eventually(BOUND, "it goes on looking", || {
                looks.lock().len() >= before + 5 && start.elapsed() > Duration::from_secs(6)
            });
            super::read_write::waiting(&outsider, 1);
            reader.gets_rid();
        });
        reading.upgrade().unwrap()
    });
    writing.verify().unwrap();
}
