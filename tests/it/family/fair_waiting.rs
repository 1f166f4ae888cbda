//! Waiting, as those do who queue: the faults of `tests/it/waiting`, each for its own queue on the server.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{Canceller, ErrorKind, Wait};

use super::actor::acquire;
use super::fair::queued;
use super::{BOUND, joined, notes, one_by_one, turn, within};
use crate::support::ask::{bound_of, timed};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

/// redisson#1763; python-redis-lock#71: given back between the failed try and the subscription.
#[test]
fn a_release_between_the_first_try_and_the_registration_is_not_missed() {
    one_of(3, || {
        let scene = Scene::new();
        let outsider = scene.outsider();
        let client = scene.client();
        let held = outsider.fair_mutex("q").lock().unwrap();
        // It hears late that its first try has failed.
        let delay = Action::DelayReply(Duration::from_millis(300));
        let first = scene
            .proxy
            .rule(|c| c.runs("acquire_fair"), delay, Times::Once);
        let waiting = turn(&client, &scene, "a", "fair q");
        assert!(first.wait_hit(BOUND));
        let freed = Instant::now();
        drop(held);
        joined(waiting);
        let took = freed.elapsed();
        // Not a look later, which is a second.
        if took < Duration::from_millis(700) {
            return Ok(());
        }
        Err(format!("{took:?}"))
    });
}

/// redisson#2790, #2801, #543: a bounded wait keeps its deadline, also when the server falls silent while it queues.
#[test]
fn a_bounded_wait_in_the_queue_keeps_its_deadline_when_the_server_falls_silent() {
    const ASKED: Duration = Duration::from_millis(600);
    one_of(3, || {
        let scene = Scene::new();
        let outsider = scene.outsider();
        let client = scene.client();
        let _held = outsider.fair_mutex("q").lock().unwrap();
        let mutex = client.fair_mutex("q");
        let waiting = thread::spawn(move || timed(|| mutex.try_lock_for(ASKED).map(drop)));
        queued(&outsider, "q", 1);
        scene.proxy.black_hole(true);
        let (took, outcome) = joined(waiting);
        scene.proxy.black_hole(false);
        let kind = outcome.unwrap_err().kind();
        let known = [ErrorKind::TimedOut, ErrorKind::Unavailable];
        assert!(known.contains(&kind), "{kind:?}");
        if took <= bound_of(ASKED) {
            return Ok(());
        }
        Err(format!("{took:?}"))
    });
}

/// python-redis-lock: each poll restarts the timeout. The wait as a whole takes what was asked, over several looks.
#[test]
fn a_bounded_wait_in_the_queue_takes_what_was_asked() {
    const ASKED: Duration = Duration::from_millis(2500);
    one_of(2, || {
        let scene = Scene::new();
        let _held = scene.outsider().fair_mutex("q").lock().unwrap();
        let client = scene.client();
        let (took, outcome) = timed(|| {
            let mutex = client.fair_mutex("q");
            thread::spawn(move || mutex.try_lock_for(ASKED).map(drop).unwrap_err().kind())
                .join()
                .unwrap()
        });
        assert_eq!(outcome, ErrorKind::TimedOut);
        assert!(took >= ASKED, "{took:?}");
        assert!(scene.proxy.count(|c| c.runs("acquire_fair")) >= 3);
        if took <= bound_of(ASKED) {
            return Ok(());
        }
        Err(format!("{took:?}"))
    });
}

/// redislock#21: a wait capped at the ttl. This one is three times as long, and so is the hold.
#[test]
fn a_wait_in_the_queue_may_be_much_longer_than_the_ttl() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(1);
    let outsider = scene.outsider();
    let held = outsider.fair_mutex("q").with_ttl(ttl).lock().unwrap();
    let client = scene.builder().ttl(ttl).build().unwrap();
    let waiting = turn(&client, &scene, "a", "fair q");
    queued(&outsider, "q", 1);
    let ended = held.lost().recv_timeout(ttl * 3);
    assert!(ended.is_err_and(|e| e.is_timeout()), "{:?}", held.check());
    assert!(!waiting.is_finished());
    let freed = Instant::now();
    held.unlock().unwrap();
    joined(waiting);
    within(Duration::from_secs(2), freed, "the hand-over");
}

/// go-redis#1798: blocked waiters eat the pool, so that nobody can release.
#[test]
fn many_in_the_queue_leave_a_pool_of_one_to_those_who_release() {
    let scene = Scene::new();
    let client = scene.builder().pool_size(1).build().unwrap();
    let held = client.fair_mutex("q").lock().unwrap();
    let waits: Vec<_> = (0..30)
        .map(|n| turn(&client, &scene, &n.to_string(), "fair q"))
        .collect();
    queued(&scene.outsider(), "q", 30);
    let start = Instant::now();
    held.unlock().unwrap();
    within(Duration::from_secs(2), start, "the release");
    waits.into_iter().for_each(joined);
    // A second connection for renewals, a third for the inbox.
    let connections = scene.proxy.connections_total();
    assert!(connections <= 1 + 3, "{connections}");
}

/// redisson#2575, #4064, #3577, #7264: channels, connections and permits of a listener leak. A third of the waits ends well, a
/// third in time, a third is cancelled, in each kind of queue.
#[test]
fn queues_leave_no_ticket_no_channel_and_no_entry() {
    const NAMES: usize = 60;
    let scene = Scene::new();
    let holding = scene.outsider();
    let client = scene.client();
    let what = |n: usize| match n % 4 {
        0 => format!("fair q{n}"),
        1 => format!("write q{n}"),
        2 => format!("permits q{n} 1 1"),
        _ => format!("several q{n} z{n}"),
    };
    let held: Vec<_> = (0..NAMES)
        .map(|n| acquire(&holding, &what(n)).unwrap())
        .collect();
    let canceller = Canceller::new();
    let waits: Vec<_> = (0..NAMES)
        .map(|n| {
            let client = client.clone();
            let wait = match n / 4 % 3 {
                0 => Wait::forever(),
                1 => Wait::for_duration(Duration::from_millis(700)),
                _ => Wait::forever().cancelled_by(&canceller),
            };
            thread::spawn(move || {
                let name = format!("q{n}");
                let outcome = match n % 4 {
                    0 => client.fair_mutex(name).lock_with(wait).map(drop),
                    1 => client.rw_lock(name).read_with(wait).map(drop),
                    2 => client.semaphore(name, 1).acquire_with(wait).map(drop),
                    _ => client
                        .multi_mutex([name, format!("z{n}")])
                        .lock_with(wait)
                        .map(drop),
                };
                outcome.map_err(|error| error.kind())
            })
        })
        .collect();
    // Gate, table, inbox: of each that waits, what its kind has. Permits are not in the table.
    eventually(BOUND, "all of them wait", || {
        entries(&client) >= NAMES * 5 / 4
    });
    let mut raw = scene.raw();
    // They count as waiting a moment before the one of them that subscribes for all has done so.
    eventually(BOUND, "one channel for all", || {
        ask::<Vec<String>>(&mut raw, "PUBSUB CHANNELS *").len() == 1
    });
    canceller.cancel();
    let mut outcomes: Vec<Result<(), ErrorKind>> = Vec::new();
    let mut first = Vec::new();
    for (n, wait) in waits.into_iter().enumerate() {
        match n / 4 % 3 {
            0 => first.push(wait),
            _ => outcomes.push(joined(wait)),
        }
    }
    let ended = |kind| outcomes.iter().filter(|o| **o == Err(kind)).count();
    assert_eq!(ended(ErrorKind::Cancelled), NAMES / 3);
    // To so many waits at once, on a busy machine, the server may look silent.
    let in_time = ended(ErrorKind::TimedOut) + ended(ErrorKind::Unavailable);
    assert_eq!(in_time, NAMES / 3);
    drop(held);
    for wait in first {
        assert_eq!(joined(wait), Ok(()));
    }
    eventually(BOUND, "no entry is left", || entries(&client) == 0);
    for key in ask::<Vec<String>>(&mut raw, "KEYS *") {
        // A leave that did not fit into its wait's bound comes a little later.
        eventually(BOUND, "no ticket stays behind", || {
            let state: String = match key.ends_with(":lh:s") {
                true => ask(&mut raw, &format!("GET {key}")),
                false => ask(&mut raw, &format!("HGET {key} s")),
            };
            state.ends_with('\n')
        });
    }
    drop((client, holding));
    eventually(BOUND, "no channel is left", || {
        ask::<Vec<String>>(&mut raw, "PUBSUB CHANNELS *").is_empty()
    });
    eventually(BOUND, "no connection but ours is left", || {
        ask::<String>(&mut raw, "CLIENT LIST").lines().count() == 1
    });
}

/// redisson#763, #3891: no call reaches a waiter any more, and it can't subscribe again. It finds out by itself that it is its
/// turn, in each kind of queue, and does not wait behind its own place.
#[test]
fn a_waiter_that_nobody_can_call_finds_its_turn_by_itself() {
    let kinds = ["fair q", "write q", "read q", "permits q 2 2"];
    thread::scope(|scope| {
        for what in kinds {
            scope.spawn(move || finds_its_turn(what));
        }
    });
}

#[track_caller]
fn finds_its_turn(what: &str) {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let held = match what {
        "read q" => acquire(&outsider, "write q").unwrap(),
        _ => acquire(&outsider, what).unwrap(),
    };
    let waiting = turn(&scene.client(), &scene, "a", what);
    let is_look = |c: &Command| c.script().is_some_and(|s| s.starts_with("acquire_"));
    eventually(BOUND, "it is in the queue", || {
        scene.ask::<Vec<String>>("PUBSUB CHANNELS *").len() == 1 && scene.proxy.count(is_look) >= 2
    });
    scene.proxy.rule(
        |c| c.name() == "SUBSCRIBE",
        Action::DropRequest,
        Times::Always,
    );
    let killed: u64 = scene.ask("CLIENT KILL TYPE pubsub");
    assert_eq!(killed, 1, "{what}");
    let before = scene.proxy.count(is_look);
    eventually(BOUND, "it has looked since", || {
        scene.proxy.count(is_look) >= before + 2
    });
    let freed = Instant::now();
    drop(held);
    joined(waiting);
    within(Duration::from_millis(2500), freed, what);
}

/// What `FairMutex` says of users that have no rights on channels: those who wait behind such a holder can't be called, and find
/// their turns by themselves, in their order.
#[test]
fn a_holder_without_rights_on_channels_hands_over_all_the_same() {
    let scene = Scene::new();
    let client = scene.outsider();
    let user = "ACL SETUSER u reset on >pw ~* +@all resetchannels";
    scene.ask::<()>(user);
    let url = format!("redis://u:pw@127.0.0.1:{}/", scene.server.port());
    let mute = leasehold::Client::open(&url).unwrap();
    let held = mute.fair_mutex("q").lock().unwrap();
    let waits: Vec<_> = (0..3)
        .map(|n| {
            let wait = turn(&client, &scene, &n.to_string(), "fair q");
            queued(&client, "q", n + 1);
            wait
        })
        .collect();
    let freed = Instant::now();
    held.unlock().unwrap();
    // Given in the same breath, though it can't be said.
    assert!(client.fair_mutex("q").is_locked().unwrap());
    assert_eq!(notes(&scene, 6), one_by_one(0..3));
    within(Duration::from_secs(4), freed, "three turns");
    waits.into_iter().for_each(joined);
    // One that waits itself gets it when nobody else waits.
    let held = client.fair_mutex("q").lock().unwrap();
    let waiting = turn(&mute, &scene, "mute", "fair q");
    let next = turn(&client, &scene, "next", "fair q");
    queued(&client, "q", 1);
    let freed = Instant::now();
    held.unlock().unwrap();
    joined(next);
    joined(waiting);
    within(
        Duration::from_secs(5),
        freed,
        "the turn of one without rights",
    );
}
