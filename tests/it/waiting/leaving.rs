//! Who is woken, and what becomes of the wakes of those who are dead, or about to leave.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use leasehold::testing::entries;
use leasehold::{Canceller, ErrorKind};

use super::{BOUND, Waiting, joined, registered, waiting, waiting_until};
use crate::support::child::Child;
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask, calls};
use crate::support::wait::{eventually, one_of, raw};

/// All wakes that are sent, to whom and for what.
fn overhear(scene: &Scene) -> Receiver<(String, String)> {
    let mut connection = raw(&scene.server.url());
    let (heard, wakes) = unbounded();
    let (ready, subscribed) = unbounded();
    thread::spawn(move || {
        let mut pubsub = connection.as_pubsub();
        pubsub.set_read_timeout(None).unwrap();
        pubsub.psubscribe("leasehold:inbox:*").unwrap();
        ready.send(()).unwrap();
        // Until the server ends.
        while let Ok(message) = pubsub.get_message() {
            let channel = message.get_channel_name();
            let inbox = channel.trim_start_matches("leasehold:inbox:").to_owned();
            let message: String = message.get_payload().unwrap();
            let _ = heard.send((inbox, word_of(&message).to_owned()));
        }
    });
    subscribed.recv_timeout(BOUND).unwrap();
    wakes
}

/// The word that a message is about: after the number of the wait, and what it is granted, if it is.
fn word_of(message: &str) -> &str {
    match message[8..].split_at(1) {
        ("+", granted) => &granted[4 + granted[..4].parse::<usize>().unwrap()..],
        (_, word) => word,
    }
}

/// The inboxes that have been registered for a lock over the proxy, in the order of their arrival.
fn inboxes(scene: &Scene, name: &str) -> Vec<String> {
    let mut all = Vec::new();
    for command in scene.proxy.commands() {
        if command.registers() && command.runs_on("acquire", name) {
            // The inbox, and the number of the ticket.
            let inbox = String::from_utf8(command.args[10][..32].to_vec()).unwrap();
            if !all.contains(&inbox) {
                all.push(inbox);
            }
        }
    }
    all
}

fn child_waiting(scene: &Scene, name: &str) -> Child {
    let child = Child::role("waiting/wait");
    let child = child.arg(scene.proxy.url()).arg(name).spawn();
    child.wait_for("waits", BOUND);
    child
}

/// consul#7523; rueidis#602: of three who wait, one is told of a release, the one who waits longest.
#[test]
fn a_release_wakes_one_waiter_the_longest_and_lets_the_others_sleep() {
    let scene = Scene::new();
    let wakes = overhear(&scene);
    let outsider = scene.outsider();
    let holder = outsider.mutex("three").lock().unwrap().into_owned();
    let mut waiters = Vec::new();
    for n in 1..=3 {
        waiters.push(child_waiting(&scene, "three"));
        registered(&outsider, "three", n);
    }
    let inboxes = inboxes(&scene, "three");
    assert_eq!(inboxes.len(), 3);
    holder.unlock().unwrap();
    waiters[0].wait_for("got it", BOUND);
    let first = wakes.recv_timeout(BOUND).unwrap();
    assert_eq!(first, (inboxes[0].clone(), "three".to_owned()));
    // While it is held nobody is woken, however often the others look.
    let looks = scene.sightings(|c| c.runs_on("acquire", "three"));
    eventually(BOUND, "each of the others has looked twice", || {
        looks.lock().len() >= 4
    });
    assert!(wakes.is_empty(), "{wakes:?}");
    waiters[0].send_line("end");
    waiters[0].wait_for("gave it back", BOUND);
    let next = wakes.recv_timeout(BOUND).unwrap();
    assert_eq!(next, (inboxes[1].clone(), "three".to_owned()));
    waiters[1].wait_for("got it", BOUND);
    waiters[1].send_line("end");
    waiters[2].wait_for("got it", BOUND);
    assert_eq!(wakes.recv_timeout(BOUND).unwrap().0, inboxes[2]);
    waiters[2].send_line("end");
    waiters[2].wait_for("gave it back", BOUND);
    // Nobody waits, nobody is told.
    assert!(wakes.is_empty(), "{wakes:?}");
}

/// A waiter that was killed costs its successors nothing but a call that reaches nobody. Invariant 8.
#[test]
fn a_killed_waiter_is_passed_over_at_once() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("dead").lock().unwrap().into_owned();
    let mut dead: Vec<Child> = Vec::new();
    for n in 1..=5 {
        dead.push(child_waiting(&scene, "dead"));
        registered(&outsider, "dead", n);
    }
    let waiter = waiting(&scene.client(), "dead");
    registered(&outsider, "dead", 6);
    for child in &mut dead {
        child.kill();
    }
    let mut direct = scene.raw();
    eventually(BOUND, "the server knows that they are gone", || {
        ask::<Vec<String>>(&mut direct, "PUBSUB CHANNELS *").len() == 1
    });
    let start = Instant::now();
    holder.unlock().unwrap();
    let got = joined(waiter);
    assert!(got - start < Duration::from_secs(3), "{:?}", got - start);
    // Five that reached nobody, and the one that did; then those of the waiter's own release.
    let published = calls(&mut direct, "publish");
    assert!(published >= 6, "published {published} times");
}

/// A waiter that is stopped seems to hear its wake. Invariant 8.
#[test]
fn a_stopped_waiter_costs_its_successor_seconds_and_is_forgotten() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("stopped").lock().unwrap().into_owned();
    let mut stopped = child_waiting(&scene, "stopped");
    registered(&outsider, "stopped", 1);
    let waiter = waiting(&scene.client(), "stopped");
    registered(&outsider, "stopped", 2);
    stopped.stop();
    let start = Instant::now();
    holder.unlock().unwrap();
    let took = joined(waiter) - start;
    assert!(took < Duration::from_secs(3), "{took:?}");

    // Stopped while it stands on the list: it goes from there in time.
    stopped.cont();
    stopped.wait_for("got it", BOUND);
    let mut next = child_waiting(&scene, "stopped");
    registered(&outsider, "stopped", 1);
    next.stop();
    registered(&outsider, "stopped", 0);
    stopped.send_line("end");
    stopped.wait_for("gave it back", BOUND);
    let publishes = calls(&mut scene.raw(), "publish");
    assert_eq!(
        publishes, 1,
        "the one who was silent too long is woken no more"
    );
    // It finds the lock by itself, and is none the worse.
    next.cont();
    next.wait_for("got it", BOUND);
    next.send_line("end");
    next.wait_for("gave it back", BOUND);
}

/// A signal in the midst of a read, as when a process is stopped and goes on, or when its children end, is no reason to give
/// up the subscription.
#[test]
fn a_waiter_that_was_stopped_for_a_moment_keeps_its_subscription() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("moment").lock().unwrap().into_owned();
    let subscribes = scene.sightings(|c| c.name() == "SUBSCRIBE");
    let mut waiter = child_waiting(&scene, "moment");
    registered(&outsider, "moment", 1);
    for _ in 0..20 {
        waiter.stop();
        waiter.cont();
    }
    let looks = scene.sightings(|c| c.runs_on("acquire", "moment"));
    eventually(BOUND, "it has looked", || !looks.lock().is_empty());
    holder.unlock().unwrap();
    waiter.wait_for("got it", BOUND);
    assert_eq!(subscribes.lock().len(), 1);
    waiter.send_line("end");
    waiter.wait_for("gave it back", BOUND);
}

/// A wake meets a waiter that is just leaving: its successor must not sleep on.
///
/// The successor is a process that was stopped after it had registered: so it can't find the lock by looking, and the wake
/// that is passed on is the only thing that can be seen of it.
#[test]
fn a_waiter_that_leaves_when_it_is_woken_passes_the_wake_on() {
    fn own(command: &Command) -> bool {
        command.runs("leave") && !command.args[6].is_empty()
    }
    // The waiter itself passes it on, by a leave that comes later. If that is lost for good, its claim ends.
    let gap = Duration::from_millis(300);
    for (is_lost, on_its_way) in [
        (true, Action::DropRequest),
        (false, Action::DelayRequest(gap)),
    ] {
        let scene = Scene::new();
        let wakes = overhear(&scene);
        let outsider = scene.outsider();
        let holder = outsider.mutex("leaving").lock().unwrap().into_owned();
        let leave = scene.proxy.rule(own, on_its_way, Times::Always);
        let client = scene
            .builder()
            .io_timeout(Duration::from_secs(1))
            .build()
            .unwrap();
        let canceller = Canceller::new();
        let leaving = waiting_until(&client, "leaving", &canceller);
        registered(&outsider, "leaving", 1);
        let successor = child_waiting(&scene, "leaving");
        registered(&outsider, "leaving", 2);
        successor.stop();
        let inboxes = inboxes(&scene, "leaving");
        canceller.cancel();
        assert!(leave.wait_hit(BOUND));
        // It is on its way out, and still on the list.
        holder.unlock().unwrap();
        assert_eq!(wakes.recv_timeout(BOUND).unwrap().0, inboxes[0]);
        if !is_lost {
            assert_eq!(wakes.recv_timeout(BOUND).unwrap().0, inboxes[1]);
        }
        let (outcome, _) = joined(leaving);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
        successor.cont();
        successor.wait_for("got it", BOUND);
    }
}

/// A cancel ends a wait at once, wherever it waits, and leaves no ticket.
#[test]
fn a_cancel_from_another_thread_ends_a_wait_at_once_and_leaves_no_ticket() {
    const AT_ONCE: Duration = Duration::from_millis(250);
    fn subscribe(command: &Command) -> bool {
        command.name() == "SUBSCRIBE"
    }
    // Without, and with a subscription that is not answered: nothing that can't be helped may delay a cancel.
    for stalled in [false, true] {
        one_of(3, || {
            let scene = Scene::new();
            let outsider = scene.outsider();
            let _holder = outsider.mutex("cancel").lock().unwrap().into_owned();
            let drop = Action::DropRequest;
            let stall = stalled.then(|| scene.proxy.rule(subscribe, drop, Times::Always));
            let cancellers = [Canceller::new(), Canceller::new()];
            let shutdown = Canceller::new();
            let client = scene.builder().cancelled_by(&shutdown).build().unwrap();
            // One asks the server, another waits behind it in the process.
            let asking = waiting_until(&client, "cancel", &cancellers[0]);
            match &stall {
                Some(stall) => assert!(stall.wait_hit(BOUND)),
                None => registered(&outsider, "cancel", 1),
            }
            // Gate, table and inbox for the one that asks, the table alone for one behind it.
            let second = waiting_until(&client, "cancel", &cancellers[1]);
            eventually(BOUND, "it waits, too", || entries(&client) == 4);
            let mut longest = Duration::ZERO;
            let mut ends = |canceller: &Canceller, waits: Waiting| {
                let start = Instant::now();
                canceller.cancel();
                let (outcome, when) = joined(waits);
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
                longest = longest.max(when - start);
            };
            ends(&cancellers[1], second);
            assert!(!asking.is_finished());
            let third = waiting_until(&client, "cancel", &Canceller::new());
            eventually(BOUND, "it waits, too", || entries(&client) == 4);
            ends(&cancellers[0], asking);
            // The third has moved up; the client's own canceller ends it.
            ends(&shutdown, third);
            // Sooner than a ticket is forgotten.
            eventually(Duration::from_secs(3), "no ticket is left", || {
                outsider.mutex("cancel").inspect().unwrap().waiters == 0
            });
            assert_eq!(entries(&client), 0);
            let late = client.mutex("free").lock().unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Cancelled, "it stays so");
            assert_eq!(scene.proxy.count(|c| c.contains("free")), 0);
            match longest < AT_ONCE {
                true => Ok(()),
                false => Err(format!("stalled {stalled}: {longest:?}")),
            }
        });
    }
}

/// An answer that is being waited for can't be called off; but nothing is waited for longer than one.
#[test]
fn a_cancel_while_the_server_is_silent_takes_one_answers_time_at_most() {
    const IO: Duration = Duration::from_millis(400);
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("silent").lock().unwrap().into_owned();
    let canceller = Canceller::new();
    let client = scene.builder().io_timeout(IO).build().unwrap();
    let cancelled = waiting_until(&client, "silent", &canceller);
    registered(&outsider, "silent", 1);
    let looks = scene.sightings(|c| c.runs("acquire"));
    scene.server.pause().unwrap();
    eventually(BOUND, "it has asked", || !looks.lock().is_empty());
    let start = Instant::now();
    canceller.cancel();
    let (outcome, when) = joined(cancelled);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(when - start < IO * 2, "{:?}", when - start);
    scene.server.resume().unwrap();
    // In the background, and sooner than a ticket is forgotten.
    eventually(Duration::from_secs(4), "no ticket is left", || {
        outsider.mutex("silent").inspect().unwrap().waiters == 0
    });
    holder.verify().unwrap();
}
