//! Invariant 10: no entry, thread, channel, connection or key outlives its use.

use std::thread;

use crossbeam_channel::bounded;
use leasehold::testing::{Server, entries, suspend};
use leasehold::{Canceller, Client, ErrorKind, Wait};

use crate::support::child::{Child, args, say};
use crate::support::locks::{
    BOUND, Scene, Script, any, delete, exists, keys_without_ttl, ms, secs, take_as_foreigner,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::{eventually, raw, threads_of_this_process};

pub(crate) const ROLES: &[(&str, fn())] = &[("growth/thousand_names", thousand_names)];

const NAMES: usize = 1000;
const WORKERS: usize = 10;

/// Two clients fight for each of many names, in threads and between the clients; says how many threads there are in the end.
fn thousand_names() {
    let [url] = &args()[..] else {
        panic!("one argument")
    };
    let threads_before = threads_of_this_process();
    let build = || Client::builder().url(url).ttl(secs(5)).build().unwrap();
    let clients = [build(), build()];
    let use_names = || {
        thread::scope(|s| {
            for worker in 0..WORKERS {
                let [a, b] = &clients;
                s.spawn(move || {
                    for i in (worker..NAMES).step_by(WORKERS) {
                        let [a, b] = [a, b].map(|client| client.mutex(format!("m{i}")));
                        let guard = a.lock().unwrap();
                        let (tell, over) = bounded(1);
                        thread::scope(|s| {
                            // One waits in the process, two for the server, one of these in vain.
                            let in_process = s.spawn(|| a.lock().map(drop));
                            let b = &b;
                            let other = s.spawn(move || {
                                let in_vain = b.try_lock_for(ms(5)).unwrap_err();
                                tell.send(in_vain.kind()).unwrap();
                                b.lock().map(drop)
                            });
                            // Where the machine is busy the server may have been too slow to say who has it.
                            let kinds = [ErrorKind::TimedOut, ErrorKind::Unavailable];
                            assert!(kinds.contains(&over.recv().unwrap()));
                            guard.unlock().unwrap();
                            in_process.join().unwrap().unwrap();
                            other.join().unwrap().unwrap();
                        });
                        assert_eq!(b.try_lock().map(drop).map_err(|e| e.kind()), Ok(()));
                    }
                });
            }
        });
    };
    for _ in 0..2 {
        use_names();
        eventually(BOUND, "nothing is left in the tables", || {
            clients.each_ref().map(entries) == [0, 0]
        });
    }
    say("used");
    // Each client: the pool's three, the listener, and renewers that are kept. The cleaner goes when it has nothing to do.
    eventually(BOUND, "threads are few", || {
        threads_of_this_process() <= threads_before.map(|n| n + 2 * (3 + 1 + 8))
    });
    drop(clients);
    eventually(BOUND, "all threads have ended", || {
        threads_of_this_process() <= threads_before
    });
    say("dropped");
    // Its connections must be closed while it lives, not because it ends.
    crate::support::child::hear(BOUND);
}

/// Invariant 10, redisson#2575, #4064, #3577, #7264: a thousand contended names leave nothing but their states, which have
/// a ttl.
#[test]
fn a_thousand_contended_names_leave_nothing_behind() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    let mut child = Child::role("growth/thousand_names")
        .arg(server.url())
        .spawn();
    child.wait_for("used", BOUND * 2);
    let mut connections = || -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut raw).unwrap();
        list.lines().count() - 1
    };
    assert!((1..=2 * (8 + 3)).contains(&connections()));
    child.wait_for("dropped", BOUND);
    eventually(BOUND, "its connections are closed", || connections() == 0);
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .query(&mut raw)
        .unwrap();
    assert_eq!(channels, [""; 0]);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut raw).unwrap();
    assert_eq!(keys.len(), NAMES, "one state each");
    assert!(keys.iter().all(|key| key.ends_with(":lh:s")));
    assert_eq!(keys_without_ttl(&mut raw), [""; 0]);
    let size: Vec<usize> = keys[..20]
        .iter()
        .map(|key| redis::cmd("STRLEN").arg(key).query(&mut raw).unwrap())
        .collect();
    // No waiters stay on the list.
    assert!(size.iter().all(|n| *n < 500), "{size:?}");
    child.send_line("end");
}

/// Invariant 10: however an acquire or a hold ends, the client's tables are empty afterwards.
#[test]
fn no_end_of_a_wait_or_a_hold_leaves_an_entry() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.builder().io_timeout(ms(300)).build().unwrap();
    let kind = |result: leasehold::Result<_>| result.map(drop).map_err(|e| e.kind());
    let empty = || assert_eq!(entries(&client), 0);
    empty();

    // Waits that come to nothing.
    take_as_foreigner(&mut raw, "foreign", secs(60));
    let foreign = client.mutex("foreign");
    assert_eq!(kind(foreign.try_lock()), Err(ErrorKind::WouldBlock));
    empty();
    assert_eq!(kind(foreign.try_lock_for(ms(50))), Err(ErrorKind::TimedOut));
    empty();
    let over = Canceller::new();
    thread::scope(|s| {
        let wait = || kind(foreign.lock_with(Wait::forever().cancelled_by(&over)));
        let waits = [s.spawn(wait), s.spawn(wait)];
        eventually(BOUND, "they wait", || entries(&client) >= 4);
        over.cancel();
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Err(ErrorKind::Cancelled));
        }
    });
    empty();
    assert_eq!(kind(client.mutex("").lock()), Err(ErrorKind::InvalidName));
    let too_short = client.mutex("m").with_ttl(ms(1));
    assert_eq!(kind(too_short.lock()), Err(ErrorKind::InvalidOptions));
    redis::cmd("RPUSH")
        .arg("list")
        .arg(1)
        .exec(&mut raw)
        .unwrap();
    assert_eq!(
        kind(client.mutex("list").lock()),
        Err(ErrorKind::KeyConflict)
    );
    empty();
    bench
        .proxy
        .rule(any(Script::Acquire), Action::DropRequest, Times::Once);
    assert_eq!(
        kind(client.mutex("m").try_lock()),
        Err(ErrorKind::Unavailable)
    );
    empty();

    // A lock that this process holds under another name of the server.
    let alias = bench.direct(secs(30));
    let held = alias.mutex("m").lock().unwrap();
    thread::scope(|s| {
        let wait = s.spawn(|| kind(client.mutex("m").try_lock_for(ms(300))));
        assert_eq!(wait.join().unwrap(), Err(ErrorKind::TimedOut));
    });
    empty();
    drop(held);
    assert_eq!(entries(&alias), 0);

    // Holds, whose entries go when they end and not when their guards do.
    let mutex = client.mutex("m");
    let guard = mutex.lock().unwrap();
    assert!(entries(&client) > 0);
    assert_eq!(kind(mutex.lock()), Err(ErrorKind::Deadlock));
    let owned = guard.into_owned();
    assert!(entries(&client) > 0);
    drop(owned);
    empty();
    let lost = mutex.lock().unwrap();
    assert!(delete(&mut raw, "m"));
    assert!(lost.verify().is_err());
    empty();
    let again = mutex.lock().unwrap();
    suspend(&client, secs(31));
    assert!(!again.is_held());
    empty();
    drop((lost, again));
    empty();
    let kept = client.mutex("kept").with_hold_at_least(secs(60));
    drop(kept.lock().unwrap());
    assert!(exists(&mut raw, "kept"));
    empty();
}
