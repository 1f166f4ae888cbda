//! Lost replies and retries: the server did it, and nobody heard; or will do it, when nobody waits any more.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{Server, entries};
use leasehold::{Client, ErrorKind, Predecessor};

use crate::Role;
use crate::support::child::{Child, args, say};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask, calls};
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[Role] = &[
    ("lost_replies/lock_and_drop", lock_and_drop),
    ("lost_replies/lock_once", lock_once),
];

const BOUND: Duration = Duration::from_secs(20);
/// Well above what these tests wait for: nothing here may be healed by an expiry.
const LONG: Duration = Duration::from_secs(60);

/// Later than anybody waits for an answer here.
const LATE: Duration = Duration::from_millis(900);

fn acquires(word: &'static str) -> impl Fn(&Command) -> bool + Send + Sync {
    move |c| c.runs_on("acquire", word)
}

fn exists(scene: &Scene, key: &str) -> bool {
    scene.ask(&format!("EXISTS {key}"))
}

/// What may become of an acquire: lost on the way there or back, late, or doubled.
fn faults() -> Vec<(&'static str, Action)> {
    vec![
        ("request-lost", Action::DropRequest),
        ("reply-lost", Action::DropReply),
        ("cut-before", Action::CutBeforeRequest),
        ("cut-after", Action::CutBeforeReply),
        ("late-request", Action::DelayRequest(LATE)),
        ("late-reply", Action::DelayReply(LATE)),
        ("after-close", Action::DeliverAfterClose),
        ("twice", Action::DuplicateRequest),
        ("nonsense", Action::ReplaceReply(b"$4\r\nwhat\r\n".to_vec())),
        (
            "no-number",
            Action::ReplaceReply(b"*2\r\n:1\r\n$1\r\nx\r\n".to_vec()),
        ),
    ]
}

/// redisson#5358, #1966, #4109; redlock-rb#76: the acquire's reply is lost: the caller gets an error, yet the lock is held
/// and renewed. Invariant 4.
#[test]
fn an_acquire_whose_reply_is_lost_gives_a_true_guard_or_leaves_nothing() {
    let scene = Scene::new();
    let start = Instant::now();
    thread::scope(|scope| {
        for (name, action) in faults() {
            let scene = &scene;
            scope.spawn(move || {
                let met = scene.proxy.rule(acquires(name), action, Times::Once);
                let client = scene
                    .builder()
                    .ttl(LONG)
                    .io_timeout(Duration::from_millis(400));
                let client = client.build().unwrap();
                let outcome = client.mutex(name).try_lock();
                assert_eq!(met.hits(), 1, "{name}");
                match outcome {
                    Ok(guard) => {
                        guard.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
                        // Counted once: one release frees it.
                        guard.unlock().unwrap();
                        assert!(!exists(scene, name), "{name}");
                    }
                    Err(error) => {
                        let kind = error.kind();
                        let known = [ErrorKind::Unavailable, ErrorKind::Script];
                        assert!(known.contains(&kind), "{name}: {error}");
                    }
                }
                // An acquire that came late, or that is still to come, has given it to nobody for longer than it takes to
                // undo it.
                let soon = LONG / 4;
                let guard = client.mutex(name).try_lock_for(soon).unwrap();
                assert!(
                    matches!(guard.predecessor(), Predecessor::None | Predecessor::Clean),
                    "{name}: nobody was ever cut off, but {:?}",
                    guard.predecessor()
                );
                guard.unlock().unwrap();
                assert_eq!(scene.proxy.count(|c| c.runs_on("renew", name)), 0);
            });
        }
    });
    assert_eq!(entries(&scene.client()), 0);
    // The last of them arrives, and is for nobody.
    thread::sleep((LATE * 3 / 2).saturating_sub(start.elapsed()));
    for (name, _) in faults() {
        assert!(!exists(&scene, name), "{name}");
    }
}

/// redisson#7367, #4822: an acquire that is sent again counts twice.
#[test]
fn an_acquire_that_is_repeated_counts_once() {
    let scene = Scene::new();
    for (name, action) in [
        ("cut-after", Action::CutBeforeReply),
        ("reply-lost", Action::DropReply),
        ("twice", Action::DuplicateRequest),
    ] {
        // Used before: a fault of a connection that had stood for a while is what is retried at once.
        let client = scene
            .builder()
            .ttl(LONG)
            .io_timeout(Duration::from_millis(400));
        let client = client.build().unwrap();
        let mutex = client.mutex(name);
        let first = mutex.lock().unwrap();
        let before = first.fencing_token();
        first.unlock().unwrap();
        let sent = scene.proxy.count(acquires(name));
        scene.proxy.rule(acquires(name), action, Times::Once);
        let start = Instant::now();
        // A connection that had gone stale is no reason for an error; a reply that doesn't come is, to one look.
        let guard = match name {
            "reply-lost" => mutex.lock().unwrap(),
            _ => mutex.try_lock().unwrap(),
        };
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "it waited for itself"
        );
        let again = scene.proxy.count(acquires(name)) - sent;
        assert_eq!(again, if name == "twice" { 1 } else { 2 }, "{name}");
        // Had the second been a grant of its own, the first would have been its predecessor, cut off.
        assert_eq!(guard.predecessor(), &Predecessor::Clean, "{name}");
        assert!(guard.fencing_token() > before);
        let info = mutex.inspect().unwrap();
        assert_eq!(info.token, Some(guard.fencing_token()), "{name}");
        guard.verify().unwrap();
        guard.unlock().unwrap();
        assert!(!exists(&scene, name), "{name}: one release was not enough");
    }
}

/// redisson#7367, #4822: a release that is sent again counts twice, or is told that it holds nothing.
#[test]
fn a_release_that_is_repeated_counts_once() {
    let scene = Scene::new();
    let mut direct = scene.raw();
    for (name, action) in [
        ("cut-after", Action::CutBeforeReply),
        ("twice", Action::DuplicateRequest),
        ("reply-lost", Action::DropReply),
    ] {
        let client = scene
            .builder()
            .ttl(LONG)
            .io_timeout(Duration::from_millis(400));
        let client = client.build().unwrap();
        let mutex = client.mutex(name);
        let releases = move |c: &Command| c.runs_on("release", name);
        let met = scene.proxy.rule(releases, action, Times::Once);
        let before = calls(&mut direct, "evalsha");
        let released = mutex.lock().unwrap().unlock();
        assert_eq!(met.hits(), 1);
        if name == "reply-lost" {
            let unknown = released.unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::Unavailable, "{unknown}");
        } else {
            released.unwrap();
        }
        // The next holder is there before the release comes for the second time.
        let next = scene.outsider().mutex(name).try_lock().unwrap();
        assert_eq!(next.predecessor(), &Predecessor::Clean, "{name}");
        // Two acquires, and the release twice.
        eventually(BOUND, "it is repeated", || {
            calls(&mut direct, "evalsha") - before == 4
        });
        next.verify().unwrap();
        assert_eq!(client.metrics().releases_refused, 0);
    }
}

/// redisson#5358: the acquire is held up in the network until its caller has given up, and long after. Invariant 4.
#[test]
fn an_acquire_that_arrives_after_its_caller_has_left_is_refused() {
    const DELAY: Duration = Duration::from_secs(2);
    let scene = Scene::new();
    let late = scene
        .proxy
        .rule(acquires("late"), Action::DelayRequest(DELAY), Times::Once);
    let client = scene.builder().ttl(LONG).build().unwrap();
    let error = client
        .mutex("late")
        .try_lock_for(Duration::from_millis(200))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(late.hits(), 1);
    let mut direct = scene.raw();
    // Whoever leaves says so before, in the background.
    eventually(
        DELAY - Duration::from_millis(500),
        "the caller has left",
        || scene.proxy.count(|c| c.runs_on("leave", "late")) > 0,
    );
    // After the leave it is the second script.
    eventually(BOUND, "the acquire has arrived", || {
        assert!(!exists(&scene, "late"), "it was granted to nobody");
        calls(&mut direct, "evalsha") == 2
    });
    assert!(!exists(&scene, "late"));
    let guard = client.mutex("late").try_lock().unwrap();
    assert_eq!(guard.predecessor(), &Predecessor::None);
}

/// Locks and drops, as fast as it can, until it is killed.
pub(crate) fn lock_and_drop() {
    let url = &args()[0];
    // Connected anew now and then: so the first commands of a connection are met by a kill as well.
    say("at it");
    thread::scope(|scope| {
        for t in 0..4 {
            scope.spawn(move || {
                for round in 0.. {
                    let client = Client::builder().url(url).ttl(LONG).build().unwrap();
                    for n in 0..20 {
                        drop(
                            client
                                .mutex(format!("killed:{t}:{round}:{n}"))
                                .lock()
                                .unwrap(),
                        );
                    }
                }
            });
        }
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// redis-py#818, #554: a crash between SETNX and EXPIRE leaves a lock for ever. Invariant 5.
#[test]
fn a_holder_killed_at_any_point_leaves_no_key_without_a_ttl() {
    const KILLS: u32 = 30;
    let server = Server::start().unwrap();
    let over = AtomicBool::new(false);
    // A word has no part of the state's name in it.
    let words = |connection: &mut redis::Connection| -> Vec<String> {
        let keys: Vec<String> = ask(connection, "KEYS killed:*");
        keys.into_iter()
            .filter(|key| !key.contains(":lh:"))
            .collect()
    };
    thread::scope(|scope| {
        // Also if something fails here: the watch would go on for ever.
        let ended = SetOnDrop(&over);
        let watch = scope.spawn(|| {
            let mut direct = raw(&server.url());
            let mut seen = HashSet::new();
            while !over.load(Ordering::Relaxed) {
                for word in words(&mut direct) {
                    let left: i64 = ask(&mut direct, &format!("PTTL {word}"));
                    // -2: gone again.
                    assert!(left != -1, "{word} has no ttl");
                    seen.insert(word);
                }
            }
            seen.len()
        });
        for n in 0..KILLS {
            let mut child = Child::role("lost_replies/lock_and_drop")
                .arg(server.url())
                .spawn();
            child.wait_for("at it", BOUND);
            // A different point each time; which one, the scheduler says.
            thread::sleep(Duration::from_micros(1000 + 1111 * u64::from(n)));
            child.kill();
        }
        drop(ended);
        assert!(watch.join().unwrap() > 0, "not one word was ever seen");
    });
    let mut direct = raw(&server.url());
    let left = words(&mut direct);
    assert!(!left.is_empty(), "no kill fell into a hold");
    for key in ask::<Vec<String>>(&mut direct, "KEYS *") {
        let left: i64 = ask(&mut direct, &format!("PTTL {key}"));
        assert!(left > 0, "{key}: {left}");
    }
}

/// redis-py#416, #621: two threads share a handle, and one's release gives back the other's lock.
#[test]
fn a_guard_gives_back_its_own_hold_and_no_other_of_the_same_handle() {
    let scene = Scene::new();
    let client = scene.builder().ttl(LONG).build().unwrap();
    let mutex = client.mutex("shared");
    let first = mutex.lock().unwrap();
    // As if its lease had run out.
    scene.ask::<()>("DEL shared");
    first.verify().unwrap_err();
    let other = mutex.clone();
    let second = thread::spawn(move || other.try_lock().unwrap().into_owned());
    let second = second.join().unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    drop(first);
    second.verify().unwrap();
    second.unlock().unwrap();
    // The same between processes, of which the first doesn't know yet that it lost.
    let first = mutex.lock().unwrap();
    scene.ask::<()>("DEL shared");
    let second = scene.outsider().mutex("shared").try_lock().unwrap();
    let refused = first.unlock().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotHeld, "{refused}");
    second.verify().unwrap();
    second.unlock().unwrap();
}

/// redis-py#416, #621: the body runs unlocked after the wait timed out.
#[test]
fn without_the_lock_no_body_runs_and_there_is_no_guard() {
    let scene = Scene::new();
    let holder = scene.outsider().mutex("body").lock().unwrap().into_owned();
    let bounded = scene
        .builder()
        .max_wait(Duration::from_millis(100))
        .build()
        .unwrap();
    let mut ran = false;
    let error = bounded.mutex("body").with(|_| ran = true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(!ran);
    let error = bounded.mutex("body").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    holder.verify().unwrap();
    holder.unlock().unwrap();
    bounded
        .mutex("body")
        .with(|lease| assert!(lease.is_held()))
        .unwrap();
}

/// redisson#5358, #4109, with the caller gone at once: what undoes the acquire outlives the client that sent it.
#[test]
fn a_client_dropped_right_after_a_lost_reply_leaves_nothing() {
    let scene = Scene::new();
    scene
        .proxy
        .rule(acquires("left"), Action::DropReply, Times::Always);
    let client = scene
        .builder()
        .ttl(LONG)
        .io_timeout(Duration::from_millis(200));
    let client = client.build().unwrap();
    let error = client.mutex("left").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(exists(&scene, "left") || scene.proxy.count(|c| c.runs("leave")) > 0);
    drop(client);
    eventually(BOUND, "the key is gone", || !exists(&scene, "left"));
    eventually(BOUND, "the connections are gone", || {
        scene.proxy.connections() == 0
    });
}

/// One look, and what came of it.
pub(crate) fn lock_once() {
    let client = Client::builder().url(&args()[0]).ttl(LONG).build().unwrap();
    match client.mutex("stopped").try_lock() {
        Ok(guard) => {
            guard.verify().unwrap();
            say("got it");
        }
        Err(error) => say(error.to_string()),
    }
}

/// A signal in the midst of a read (the process is stopped and goes on, or a handler runs) ends the read of a socket that
/// has a timeout. That is no fault of the server's, and no reason for an error.
#[test]
fn a_process_that_is_stopped_while_it_reads_an_answer_goes_on_where_it_was() {
    let scene = Scene::new();
    let slow = Action::DelayReply(Duration::from_millis(700));
    let read = scene.proxy.rule(acquires("stopped"), slow, Times::Once);
    let child = Child::role("lost_replies/lock_once")
        .arg(scene.proxy.url())
        .spawn();
    assert!(read.wait_hit(BOUND));
    child.stop();
    child.cont();
    assert_eq!(child.expect_line(BOUND), "got it");
}
