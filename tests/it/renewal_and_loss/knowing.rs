//! A holder learns of its loss, in time and once.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{Client, ErrorKind};

use crate::support::child::{Child, args, hear, say};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

const BOUND: Duration = Duration::from_secs(20);

/// redisson#3712; redis-semaphore#175: the key is deleted under the holder, or expires and is taken by another, and the
/// holder is never told, or has silently acquired it again.
#[test]
fn a_holder_whose_key_was_taken_away_is_told_once_and_for_good() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(3);
    // What happens to the key: the commands, and what must be left of it when all is over.
    let cases = [
        ("deleted", vec!["DEL deleted"], None),
        (
            "retaken",
            vec!["SET retaken another PX 60000"],
            Some("another"),
        ),
        ("renamed", vec!["RENAME renamed elsewhere"], None),
        (
            "replaced",
            vec!["DEL replaced", "RPUSH replaced data"],
            Some("data"),
        ),
    ];
    thread::scope(|scope| {
        for (name, commands, left) in cases {
            let scene = &scene;
            scope.spawn(move || {
                let mut direct = scene.raw();
                let client = scene.builder().ttl(ttl).max_wait(BOUND).build().unwrap();
                let mutex = client.mutex(name);
                let guard = mutex.lock().unwrap();
                let word: String = ask(&mut direct, &format!("GET {name}"));
                for command in commands {
                    ask::<redis::Value>(&mut direct, command);
                }
                let lease = guard.lease();
                let told = lease.lost().recv_timeout(ttl / 3 + Duration::from_secs(2));
                assert!(told.is_err_and(|e| e.is_disconnected()), "{name}");
                let said = lease.check().unwrap_err().to_string();
                assert!(said.contains("not ours"), "{name}: {said}");
                let kept = match left {
                    Some("data") => ask(&mut direct, &format!("LINDEX {name} 0")),
                    _ => ask::<Option<String>>(&mut direct, &format!("GET {name}")),
                };
                assert_eq!(kept.as_deref(), left, "{name}: taken back");

                // Sticky: our own word put back does not make it ours again.
                ask::<()>(&mut direct, &format!("COPY {name} aside:{name}"));
                ask::<()>(&mut direct, &format!("SET {name} {word} PX 60000"));
                assert!(!guard.is_held() && guard.verify().is_err());
                let aside: i64 = ask(&mut direct, &format!("COPY aside:{name} {name} REPLACE"));
                if aside == 0 {
                    ask::<()>(&mut direct, &format!("DEL {name}"));
                }
                assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
                assert_eq!(client.metrics().lost, 1, "{name}: counted once");
                if left.is_some() {
                    // The drop has freed nobody else's key.
                    assert!(ask::<bool>(&mut direct, &format!("EXISTS {name}")));
                    ask::<()>(&mut direct, &format!("DEL {name}"));
                }

                // And a new hold of that name is watched as the first one was.
                let renewed = client.metrics().renewals;
                let again = mutex.lock().unwrap();
                eventually(BOUND, "the new hold is renewed", || {
                    client.metrics().renewals > renewed
                });
                again.unlock().unwrap();
            });
        }
    });
    assert_eq!(entries(&scene.client()), 0);
}

/// redisson#4698; RedLock.net#93; redis-semaphore#24: the loss shows at the unlock, and not before.
///
/// The server gives the lock away when its ttl is over, counted from when it ran the acquire. Before that the holder must
/// know, though nobody tells it.
#[test]
fn a_holder_knows_of_its_loss_before_a_silent_server_gives_the_lock_away() {
    let ttl = Duration::from_secs(2);
    // The warning is 22 ms ahead; a busy machine may take as long to run the thread that gives it.
    one_of(3, || {
        let scene = Scene::new();
        let client = scene.builder().ttl(ttl).build().unwrap();
        let before = Instant::now();
        let guard = client.mutex("silent").lock().unwrap();
        scene.server.pause().unwrap();
        let signal = guard.lease();
        let signalled = thread::spawn(move || {
            signal.lost().recv_timeout(BOUND).unwrap_err();
            Instant::now()
        });
        eventually(BOUND, "it is not held", || !guard.is_held());
        let seen = before.elapsed();
        let signalled = signalled.join().unwrap() - before;
        let metrics = client.metrics();
        assert!(metrics.renewal_failures > 0, "{metrics:?}");
        assert!(seen > ttl / 2, "lost too soon, after {seen:?}");
        let said = guard.check().unwrap_err().to_string();
        assert!(said.contains("no renewal was confirmed"), "{said}");
        scene.server.resume().unwrap();
        match seen.max(signalled) < ttl {
            true => Ok(()),
            false => Err(format!(
                "not held from {seen:?}, signal after {signalled:?}"
            )),
        }
    });
}

/// Holds a lock, and says how it is when asked.
pub(crate) fn hold_and_check() {
    let [url, ttl] = &args()[..] else {
        panic!("a url and a ttl")
    };
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    let client = Client::builder().url(url).ttl(ttl).build().unwrap();
    let guard = client.mutex("stopped").lock().unwrap();
    say("held");
    loop {
        match hear(BOUND).as_str() {
            "check" => match guard.check() {
                Ok(()) => say("held"),
                Err(lost) => say(lost.to_string()),
            },
            _ => return say(guard.unlock().unwrap_err().to_string()),
        }
    }
}

/// redisson#4698; RedLock.net#93; redis-semaphore#24, with the holder stopped instead of the server: it wakes up and goes
/// on with its work, while the lock is another's.
#[test]
fn a_process_stopped_past_its_ttl_is_told_by_its_first_check() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(1);
    let mut child = Child::role("renewal/hold_and_check")
        .arg(scene.server.url())
        .arg(ttl.as_millis())
        .spawn();
    child.wait_for("held", BOUND);
    let mut direct = scene.raw();
    let word: String = ask(&mut direct, "GET stopped");
    child.stop();
    eventually(BOUND, "the ttl has run out", || {
        !ask::<bool>(&mut direct, "EXISTS stopped")
    });
    // Its word comes back, as from a restored backup: past its deadline that must not count, renewal or not.
    ask::<()>(&mut direct, &format!("SET stopped {word} PX 60000"));
    child.send_line("check");
    child.cont();
    let first = child.expect_line(BOUND);
    assert!(first.contains("is lost"), "{first}");
    child.send_line("check");
    let second = child.expect_line(BOUND);
    assert!(second.contains("is lost"), "{second}");
    child.send_line("end");
    let end = child.expect_line(BOUND);
    assert!(end.contains("is lost"), "{end}");
}
