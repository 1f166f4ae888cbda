//! The lock comes free at a moment when its waiter can't hear of it.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;

use super::{BOUND, LATEST_POLL, SOONEST_POLL, joined, registered, waiting};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

/// Longer than a wake takes on a busy machine, shorter than it takes a waiter to look for itself.
const AT_ONCE: Duration = Duration::from_millis(650);
/// How long a gap stands open.
const GAP: Duration = Duration::from_millis(300);

const _: () = assert!(AT_ONCE.as_millis() < SOONEST_POLL.as_millis());

fn is_subscribe(command: &Command) -> bool {
    command.name() == "SUBSCRIBE"
}

/// Within `limit` of `start`, else what went wrong.
fn in_time(start: Instant, got: Instant, limit: Duration) -> Result<(), String> {
    let took = got.saturating_duration_since(start);
    match took < limit {
        true => Ok(()),
        false => Err(format!("after {took:?}")),
    }
}

/// redisson#1763; python-redis-lock#71: the lock is given back between the failed try and the subscription, or between
/// that and the registration, or before the waiter has heard that it is registered.
#[test]
fn a_release_in_a_gap_of_the_waiters_is_not_missed() {
    type Which = fn(&Command) -> bool;
    let gaps: [(&str, Which, Action); 4] = [
        (
            "before the subscription",
            is_subscribe,
            Action::DelayRequest(GAP),
        ),
        ("before its answer", is_subscribe, Action::DelayReply(GAP)),
        (
            "before the registration",
            Command::registers,
            Action::DelayRequest(GAP),
        ),
        (
            "before its answer, too",
            Command::registers,
            Action::DelayReply(GAP),
        ),
    ];
    for (what, matches, action) in gaps {
        one_of(3, || {
            let scene = Scene::new();
            let holder = scene.outsider().mutex("gap").lock().unwrap().into_owned();
            let gap = scene.proxy.rule(matches, action.clone(), Times::Once);
            let waiter = waiting(&scene.client(), "gap");
            assert!(gap.wait_hit(BOUND), "{what}");
            let start = Instant::now();
            holder.unlock().unwrap();
            in_time(start, joined(waiter), AT_ONCE).map_err(|e| format!("{what}: {e}"))
        });
    }
}

/// A client whose subscription is about to be lost, and the lock that it waits for.
fn waiter_to_cut(scene: &Scene) -> (Client, leasehold::OwnedMutexGuard) {
    let outsider = scene.outsider();
    let holder = outsider.mutex("cut").lock().unwrap().into_owned();
    (outsider, holder)
}

fn subscribers(scene: &Scene) -> usize {
    let list: String = scene.ask("CLIENT LIST TYPE pubsub");
    list.lines().count()
}

/// redisson#763, #3891: the notification is lost with its connection, and the waiter sleeps to the ttl. Invariant 8.
#[test]
fn a_waiter_whose_subscription_was_cut_looks_as_soon_as_it_is_back() {
    one_of(3, || {
        let scene = Scene::new();
        let (outsider, holder) = waiter_to_cut(&scene);
        let waiter = waiting(&scene.client(), "cut");
        registered(&outsider, "cut", 1);
        let start = Instant::now();
        let cut: u64 = scene.ask("CLIENT KILL TYPE pubsub");
        // Nobody hears it.
        holder.unlock().unwrap();
        assert_eq!(cut, 1);
        in_time(start, joined(waiter), AT_ONCE)
    });
}

/// redisson#763, #3891: after the reconnect the waiter is as easily woken as before.
#[test]
fn a_waiter_whose_subscription_was_cut_is_woken_afterwards() {
    one_of(3, || {
        let scene = Scene::new();
        let (outsider, holder) = waiter_to_cut(&scene);
        let waiter = waiting(&scene.client(), "cut");
        registered(&outsider, "cut", 1);
        let looked = scene.sightings(Command::registers);
        scene.ask::<u64>("CLIENT KILL TYPE pubsub");
        eventually(BOUND, "it subscribes again", || subscribers(&scene) == 1);
        eventually(BOUND, "and looks", || !looked.lock().is_empty());
        let start = Instant::now();
        holder.unlock().unwrap();
        in_time(start, joined(waiter), AT_ONCE)
    });
}

/// redisson#763, #3891: the way to the server is gone for longer than one try of the listener's, and more than two.
#[test]
fn a_waiter_is_woken_again_after_an_outage() {
    one_of(3, || {
        let scene = Scene::new();
        let (outsider, holder) = waiter_to_cut(&scene);
        let waiter = waiting(&scene.client(), "cut");
        registered(&outsider, "cut", 1);
        scene.proxy.refuse(true);
        scene.proxy.cut();
        // It tries again after 20 ms, 40 ms and so on, up to a second.
        thread::sleep(Duration::from_millis(500));
        let looked = scene.sightings(Command::registers);
        scene.proxy.refuse(false);
        eventually(BOUND, "it subscribes again", || subscribers(&scene) == 1);
        eventually(BOUND, "and looks", || !looked.lock().is_empty());
        let start = Instant::now();
        holder.unlock().unwrap();
        in_time(start, joined(waiter), AT_ONCE)
    });
}

/// redisson#763, #3891: the subscription is cut and does not come back. Invariant 8.
#[test]
fn a_waiter_that_can_not_subscribe_again_finds_out_by_its_poll() {
    one_of(3, || {
        let scene = Scene::new();
        let (outsider, holder) = waiter_to_cut(&scene);
        let client = scene.client();
        let waiter = waiting(&client, "cut");
        registered(&outsider, "cut", 1);
        scene
            .proxy
            .rule(is_subscribe, Action::DropRequest, Times::Always);
        let looks = scene.sightings(|c| c.runs("acquire"));
        scene.ask::<u64>("CLIENT KILL TYPE pubsub");
        // It has noticed, and goes on looking without.
        eventually(BOUND, "three more looks", || looks.lock().len() >= 3);
        let start = Instant::now();
        holder.unlock().unwrap();
        let got = joined(waiter);
        // One sighting more than the wait has gaps: the last look is the one that succeeded.
        let looks = looks.lock();
        let longest = looks.windows(2).map(|pair| pair[1] - pair[0]).max();
        if longest > Some(LATEST_POLL + Duration::from_millis(150)) {
            return Err(format!("{longest:?} between two looks"));
        }
        in_time(start, got, LATEST_POLL + Duration::from_millis(150))
    });
}

/// redisson#763, #3891: the notification is never sent, because the releaser's user has no right to. Invariant 8.
#[test]
fn a_release_without_the_right_to_notify_succeeds_and_is_found_by_the_poll() {
    let scene = Scene::new();
    scene.ask::<()>("ACL SETUSER mute on >secret ~* +@all resetchannels");
    let mute = Client::open(&format!(
        "redis://mute:secret@127.0.0.1:{}/",
        scene.server.port()
    ));
    let (mute, outsider) = (mute.unwrap(), scene.outsider());
    one_of(3, || {
        let holder = mute.mutex("mute").lock().unwrap().into_owned();
        let waiter = waiting(&scene.client(), "mute");
        registered(&outsider, "mute", 1);
        let start = Instant::now();
        holder.unlock().unwrap();
        in_time(
            start,
            joined(waiter),
            LATEST_POLL + Duration::from_millis(150),
        )
    });
    assert!(mute.metrics().releases_refused == 0 && mute.metrics().release_errors == 0);
}

/// redisson#763, #3891: the waiter's own user may not listen: it polls, and does not ask for the channel again and again.
#[test]
fn a_waiter_without_the_right_to_listen_finds_out_by_its_poll() {
    let scene = Scene::new();
    scene.ask::<()>("ACL SETUSER deaf on >secret ~* +@all resetchannels");
    let url = format!("redis://deaf:secret@127.0.0.1:{}/", scene.proxy.port());
    let subscribes = scene.sightings(is_subscribe);
    let looks = scene.sightings(|c| c.runs("acquire"));
    one_of(3, || {
        looks.lock().clear();
        subscribes.lock().clear();
        let deaf = Client::open(&url).unwrap();
        let holder = scene.outsider().mutex("deaf").lock().unwrap().into_owned();
        let waiter = waiting(&deaf, "deaf");
        eventually(BOUND, "it has looked twice", || looks.lock().len() >= 2);
        let start = Instant::now();
        holder.unlock().unwrap();
        let got = joined(waiter);
        let asked = subscribes.lock().len();
        assert!(asked == 1, "subscribed {asked} times");
        in_time(start, got, LATEST_POLL + Duration::from_millis(150))
    });
}

/// Whatever comes over the channel, the lock is got when it is free, and no sooner. Invariant 8.
#[test]
fn false_and_doubled_notifications_do_no_harm() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("noise").lock().unwrap().into_owned();
    let client = scene.client();
    let waiter = waiting(&client, "noise");
    registered(&outsider, "noise", 1);
    let mut direct = scene.raw();
    let channels: Vec<String> = ask(&mut direct, "PUBSUB CHANNELS leasehold:inbox:*");
    let mut publish = |text: &[u8]| {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channels[0]).arg(text);
        let heard: u64 = publish.query(&mut direct).unwrap();
        assert_eq!(heard, 1);
    };
    let long = [b'x'; 4096];
    for text in [
        &b"00000000=noise"[..],
        b"00000000=noise",
        b"00000000=another",
        b"ffffffffnoise",
        b"-0000000noise",
        b"noise",
        b"",
        b"another",
        b"a}b",
        b"{}:lh:s",
        &[0xff, 0xfe],
        &long,
    ] {
        publish(text);
    }
    // The connection outlived that, and what came over it for other locks has made none.
    eventually(BOUND, "it has looked", || {
        scene.proxy.count(Command::registers) > 1
    });
    holder.verify().unwrap();
    assert!(!waiter.is_finished());
    assert_eq!(channels.len(), 1);
    holder.unlock().unwrap();
    joined(waiter);
    for text in [&b"noise"[..], b"noise"] {
        publish(text);
    }
    let again = outsider.mutex("noise").try_lock().unwrap();
    again.unlock().unwrap();
}

/// redisson#763, #3891: the connection is cut without a word, as by a firewall that forgets: nothing comes over it, and
/// nothing says so. Invariant 8.
#[test]
fn a_subscription_that_has_gone_silent_is_asked_for_a_sign_of_life_and_replaced() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("hush").lock().unwrap().into_owned();
    let subscribes = scene.sightings(is_subscribe);
    let unheard = scene
        .proxy
        .rule(|c| c.name() == "PING", Action::DropRequest, Times::Once);
    let client = scene
        .builder()
        .io_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let waiter = waiting(&client, "hush");
    eventually(BOUND, "it subscribes anew", || subscribes.lock().len() == 2);
    assert_eq!(unheard.hits(), 1);
    eventually(BOUND, "over one connection", || subscribers(&scene) == 1);
    holder.unlock().unwrap();
    joined(waiter);
}

/// A lease that ends by itself notifies nobody: its waiter looks when it is over.
#[test]
fn a_waiter_looks_when_the_holders_lease_is_over() {
    one_of(3, || {
        let scene = Scene::new();
        let start = Instant::now();
        // Of another library, which tells nobody when it is done, or dies.
        scene.ask::<()>("SET foreign another NX PX 300");
        let got = joined(waiting(&scene.client(), "foreign"));
        assert!(got - start >= Duration::from_millis(300));
        // Its first look came after the start, its next one by the clock would come later than this.
        in_time(start, got, SOONEST_POLL)
    });
}
