//! Given by the release itself: who has waited has it when he hears of it.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::{Canceller, Client, ErrorKind, Lease, Predecessor, Result, Wait};

use super::{BOUND, joined, registered};
use crate::support::child::Child;
use crate::support::full::{SMALL, fill};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

/// Longest that somebody is given a lock for who has not come for it.
const CLAIM: u64 = 3000;

type Take = fn(&Client, Wait) -> Result<Box<dyn std::ops::Deref<Target = Lease>>>;

/// Both kinds that are given.
const KINDS: [(&str, Take); 2] = [
    ("mutex", |client, wait| {
        client
            .mutex("x")
            .lock_with(wait)
            .map(|guard| Box::new(guard) as _)
    }),
    ("fair mutex", |client, wait| {
        client
            .fair_mutex("x")
            .lock_with(wait)
            .map(|guard| Box::new(guard) as _)
    }),
];

fn asks(command: &Command) -> bool {
    command.runs("acquire") || command.runs("acquire_fair")
}

/// Waits for it, and says what `then` finds.
fn waiting<T: Send + 'static>(
    client: &Client,
    take: Take,
    then: impl FnOnce(&Lease) -> T + Send + 'static,
) -> JoinHandle<T> {
    let client = client.clone();
    thread::spawn(move || {
        let guard = take(&client, Wait::forever()).unwrap();
        then(&guard)
    })
}

fn pttl(scene: &Scene) -> u64 {
    scene.ask("PTTL x")
}

/// Two processes that take turns: each turn costs its release, and that is all that is sent.
#[test]
fn a_turn_costs_two_commands_at_most() {
    const TURNS: usize = 40;
    for (kind, take) in KINDS {
        one_of(3, || {
            let scene = Scene::new();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let client = scene.client();
                    thread::spawn(move || {
                        for _ in 0..TURNS {
                            let _guard = take(&client, Wait::forever()).unwrap();
                            thread::sleep(Duration::from_millis(2));
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(joined);
            let count = |wanted: fn(&Command) -> bool| scene.proxy.count(wanted);
            let (asked, renewed) = (count(asks), count(|c| c.runs("renew")));
            assert_eq!(count(|c| c.runs("release")), 2 * TURNS);
            // One to register, and the first ones, which can't.
            match asked + renewed <= 2 * TURNS + 6 {
                true => Ok(()),
                false => Err(format!("{kind}: {asked} acquires, {renewed} renewals")),
            }
        });
    }
}

/// It works on a claim of seconds, but not for long.
#[test]
fn what_is_given_is_soon_a_whole_lease() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    for (kind, take) in KINDS {
        let held = take(&outsider, Wait::forever()).unwrap();
        let waits = waiting(&scene.client(), take, |lease| {
            // More than the claim has: it waits for the renewal.
            lease.check_for(Duration::from_secs(20)).unwrap();
            lease.remaining()
        });
        registered(&outsider, "x", 1);
        let looks = scene.sightings(asks);
        drop(held);
        assert!(joined(waits) > Duration::from_secs(20), "{kind}");
        assert!(looks.lock().len() <= 1, "{kind}: it need not ask");
    }
    // Also if nobody asks how much is left.
    let held = outsider.mutex("x").lock().unwrap().into_owned();
    let (stay, end) = crossbeam_channel::bounded::<()>(0);
    let waits = waiting(&scene.client(), KINDS[0].1, move |lease| {
        let _ = end.recv();
        lease.verify().unwrap();
    });
    registered(&outsider, "x", 1);
    held.unlock().unwrap();
    eventually(BOUND, "it is whole", || pttl(&scene) > CLAIM);
    drop(stay);
    joined(waits);
}

/// The pace of the tries is the claim's: with a ttl of hours the next one would come too late.
#[test]
fn a_claims_renewal_that_fails_is_tried_again_in_time() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    for (kind, take) in KINDS {
        let held = take(&outsider, Wait::forever()).unwrap();
        let hours = Duration::from_secs(7200);
        let client = scene.builder().ttl(hours).build().unwrap();
        let (stay, end) = crossbeam_channel::bounded::<()>(0);
        let waits = waiting(&client, take, move |lease| {
            let _ = end.recv();
            lease.check().map_err(|lost| lost.to_string())
        });
        registered(&outsider, "x", 1);
        let lost = |c: &Command| c.runs("renew");
        let lost = scene
            .proxy
            .rule(lost, Action::CutBeforeRequest, Times::N(2));
        drop(held);
        assert!(lost.wait_hit(BOUND));
        eventually(BOUND, "it is whole", || pttl(&scene) > CLAIM);
        drop(stay);
        assert_eq!(joined(waits), Ok(()), "{kind}");
    }
}

/// What is counted from a grant of its own is asked for.
#[test]
fn a_lease_with_an_end_is_never_begun_on_a_claim() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.client();
    let minute = Duration::from_secs(60);
    for fixed in [true, false] {
        let held = outsider.mutex("x").lock().unwrap().into_owned();
        let mutex = match fixed {
            true => client.mutex("x").with_fixed_lease(minute),
            false => client.mutex("x").with_max_hold(minute),
        };
        let url = scene.server.url();
        let waits = thread::spawn(move || {
            let guard = mutex.lock().unwrap();
            let mut raw = crate::support::wait::raw(&url);
            let left: u64 = ask(&mut raw, "PTTL x");
            assert!(guard.remaining() > Duration::from_secs(20));
            left
        });
        registered(&outsider, "x", 1);
        held.unlock().unwrap();
        assert!(joined(waits) > CLAIM);
    }
}

/// Stopped until its claim was over: somebody else has the lock by then, and the message is worth nothing. Invariant 1.
#[test]
fn a_message_that_is_read_too_late_is_not_believed() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let held = outsider.mutex("x").lock().unwrap().into_owned();
    let mut child = Child::role("waiting/wait");
    child = child.arg(scene.server.url()).arg("x");
    let mut child = child.spawn();
    child.wait_for("waits", BOUND);
    registered(&outsider, "x", 1);
    child.stop();
    held.unlock().unwrap();
    let info = outsider.mutex("x").inspect().unwrap();
    assert!(info.held, "it is given to the one who is stopped: {info:?}");
    // Its claim ends.
    let held = outsider.mutex("x").try_lock_for(BOUND).unwrap();
    assert!(held.fencing_token() > info.token.unwrap());
    child.cont();
    let looks = scene.sightings(|_| false);
    assert!(looks.lock().is_empty());
    registered(&outsider, "x", 1);
    assert_eq!(child.try_line(Duration::from_millis(500)), None);
    held.verify().unwrap();
    held.unlock().unwrap();
    child.wait_for("got it", BOUND);
    child.send_line("end");
    child.wait_for("gave it back", BOUND);
}

/// A message that comes twice: with no more than the last token that it was told of, it is an old one. Invariant 8.
#[test]
fn an_old_message_is_not_believed() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    for (kind, take) in KINDS {
        let held = take(&outsider, Wait::forever()).unwrap();
        let waits = waiting(&scene.client(), take, |lease| lease.verify().is_ok());
        registered(&outsider, "x", 1);
        let state: String = scene.ask("GET {x}:lh:s");
        let waiter = state.rsplit('\n').next().unwrap().to_owned();
        let (inbox, number) = waiter[..40].split_at(32);
        let reply = format!("{}C{:016}", held.fencing_token(), 0);
        let message = format!("{number}+{:04}{reply}x", reply.len());
        let looks = scene.sightings(asks);
        let heard: u64 = scene.ask(&format!("PUBLISH leasehold:inbox:{inbox} {message}"));
        assert_eq!(heard, 1);
        // It asks, and is told that it waits.
        eventually(BOUND, "it looks", || !looks.lock().is_empty());
        registered(&outsider, "x", 1);
        assert!(!waits.is_finished(), "{kind}");
        held.verify().unwrap();
        drop(held);
        assert!(joined(waits), "{kind}");
    }
}

/// One who has been given it, and leaves before he knows: the next one has it at once, and learns of the one before as if
/// nothing had been.
#[test]
fn who_leaves_when_he_has_just_been_given_it_passes_it_on() {
    for (kind, take) in KINDS {
        one_of(4, || {
            let scene = Scene::new();
            let outsider = scene.outsider();
            let held = take(&outsider, Wait::forever()).unwrap();
            // What the server says on the channel comes late.
            let late = Action::DelayReply(Duration::from_millis(700));
            scene
                .proxy
                .rule(|c| c.name() == "SUBSCRIBE", late, Times::Always);
            let (client, canceller) = (scene.client(), Canceller::new());
            let wait = Wait::forever().cancelled_by(&canceller);
            let leaves = thread::spawn(move || take(&client, wait).map(drop));
            registered(&outsider, "x", 1);
            let next = waiting(&scene.outsider(), take, |lease| {
                (lease.predecessor().clone(), Instant::now())
            });
            registered(&outsider, "x", 2);
            // It has just looked, so it will not look again for a while.
            let looks = scene.sightings(asks);
            eventually(BOUND, "it looks", || !looks.lock().is_empty());
            drop(held);
            let start = Instant::now();
            canceller.cancel();
            let left = joined(leaves);
            let (predecessor, got) = joined(next);
            assert_eq!(predecessor, Predecessor::Clean, "{kind}");
            let took = got - start;
            match left {
                Err(e) if e.kind() == ErrorKind::Cancelled => {}
                // It looked at just that moment.
                other => return Err(format!("{kind}: {other:?}")),
            }
            match took < Duration::from_millis(1200) {
                true => Ok(()),
                false => Err(format!("{kind}: {took:?}")),
            }
        });
    }
}

/// Others see the one who has it, not the one who gave it; and it learns what an acquire would have told it.
#[test]
fn the_grant_is_that_of_an_acquire() {
    let scene = Scene::new();
    let outsider = scene.builder().holder_label("before").build().unwrap();
    for (kind, take) in KINDS {
        let held = take(&outsider, Wait::forever()).unwrap();
        let before = held.fencing_token();
        let label = "one, two; 100%25 three\u{20ac}";
        let client = scene.builder().holder_label(label).build().unwrap();
        let watcher = scene.outsider();
        let waits = waiting(&client, take, move |lease| {
            let info = watcher.mutex("x").inspect().unwrap();
            (info, lease.fencing_token(), lease.predecessor().clone())
        });
        registered(&outsider, "x", 1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = held;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(caught.is_err());
        let (info, token, predecessor) = joined(waits);
        assert!(token > before);
        assert_eq!(info.token, Some(token));
        assert_eq!(info.kind, kind);
        assert!(info.since.is_some());
        let holder = info.holder.unwrap();
        assert!(holder.starts_with(&format!("{label}@")), "{holder}");
        let Predecessor::Panicked { token, label, .. } = predecessor else {
            panic!("{kind}: {predecessor:?}");
        };
        assert_eq!(token, before);
        assert!(label.starts_with("before@"), "{label}");
    }
}

/// A server that lost its data, or whose clock is behind, must not give a token below one that was seen. Invariant 9.
#[test]
fn the_token_is_above_all_that_the_waiter_has_seen() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    for (kind, take) in KINDS {
        let client = scene.client();
        let guard = client.mutex("other").lock().unwrap();
        let ahead = guard.fencing_token().get() + 3_600_000_000;
        guard.unlock().unwrap();
        // As if the other lock had been on a server whose clock is an hour ahead.
        let state: String = scene.ask("GET {other}:lh:s");
        let state = format!("{}{ahead}{}", &state[..3], &state[19..]);
        let mut raw = scene.raw();
        let mut set = redis::cmd("SET");
        let set = set.arg("{other}:lh:s").arg(state).arg("PX").arg(60_000);
        set.exec(&mut raw).unwrap();
        let seen = client.mutex("other").lock().unwrap().fencing_token();
        assert!(seen.get() > ahead);
        let held = take(&outsider, Wait::forever()).unwrap();
        let waits = waiting(&client, take, Lease::fencing_token);
        registered(&outsider, "x", 1);
        drop(held);
        assert!(joined(waits) > seen, "{kind}");
        let _: u64 = scene.ask("DEL {x}:lh:s");
    }
}

/// An acquire whose answer never came may have been carried out: then a message alone proves nothing.
#[test]
fn after_a_lost_answer_it_asks() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    for (kind, take) in KINDS {
        let held = take(&outsider, Wait::forever()).unwrap();
        let io = Duration::from_millis(500);
        let client = scene.builder().io_timeout(io).build().unwrap();
        let url = scene.server.url();
        let waits = waiting(&client, take, move |lease| {
            let mut raw = crate::support::wait::raw(&url);
            let left: u64 = ask(&mut raw, "PTTL x");
            lease.verify().unwrap();
            left
        });
        registered(&outsider, "x", 1);
        // The next look, and all after that until it is given.
        let lost = scene.proxy.rule(asks, Action::DropReply, Times::Once);
        assert!(lost.wait_hit(BOUND));
        drop(held);
        assert!(joined(waits) > CLAIM, "{kind}");
    }
}

/// A release works when the server is full, and so does what it gives.
#[test]
fn a_full_server_gives_it_too() {
    for (kind, take) in KINDS {
        let scene = Scene::with_args(SMALL);
        let outsider = scene.outsider();
        let held = take(&outsider, Wait::forever()).unwrap();
        let waits = waiting(&scene.client(), take, |lease| lease.verify().is_ok());
        registered(&outsider, "x", 1);
        fill(&mut scene.raw());
        drop(held);
        assert!(joined(waits), "{kind}");
    }
}
