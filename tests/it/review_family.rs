//! Waits and leases of the family in corners where one of them was forgotten, shortened or refused.

use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded as channel;
use leasehold::testing::{Server, entries};
use leasehold::{Client, ErrorKind};

use crate::support::ask::{BOUND, ask, elsewhere};
use crate::support::locks::{await_end, ms, secs};
use crate::support::proxy::{Action, Times};
use crate::support::scene::Scene;
use crate::support::wait::{eventually, one_of, raw};

/// A waiter's token stands on the list of those who wait, where its own polls took it for a dead one: the fourth ended the
/// wait with an error, and each before that cost it its place.
#[test]
fn who_queues_for_a_fair_mutex_keeps_its_place_for_as_long_as_it_waits() {
    let scene = Scene::new();
    let client = |_| scene.builder().ttl(secs(1)).build().unwrap();
    let [holder, first] = [0, 1].map(client);
    let held = holder.fair_mutex("x").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| first.fair_mutex("x").try_lock_for(BOUND).map(drop));
        let polls = || scene.proxy.count(|c| c.runs_on("acquire_fair", "x"));
        let ended = || waiter.is_finished();
        eventually(BOUND, "it polls", || polls() >= 9 || ended());
        let waiting = holder.fair_mutex("x").waiters().unwrap();
        drop(held);
        waiter.join().unwrap().unwrap();
        assert_eq!(waiting, 1);
        let tokens = scene.proxy.commands();
        let mut tokens: Vec<_> = tokens
            .iter()
            .filter(|c| c.runs_on("acquire_fair", "x"))
            .map(|c| c.args[5].clone())
            .collect();
        tokens.dedup();
        assert_eq!(tokens.len(), 2, "the holder's and the waiter's");
    });
}

/// The key of a table must outlive its longest lease. A waiter that left re-armed it for an hour, whatever the others had.
#[test]
fn a_waiter_that_leaves_does_not_shorten_the_life_of_others_leases() {
    let server = Server::start().unwrap();
    let (holder, other) = (server.client(), server.client());
    let lease = secs(5 * 3600);
    let permit = holder.semaphore("s", 1).with_fixed_lease(lease);
    let permit = permit.acquire().unwrap();
    let read = holder.rw_lock("r").with_fixed_lease(lease).read().unwrap();
    let mut raw = raw(&server.url());
    let waited = other.semaphore("s", 1).try_acquire_for(ms(300));
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
    let waited = elsewhere(|| other.rw_lock("r").try_write_for(ms(300)).map(drop));
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
    for key in ["{s}:lh:sem", "{r}:lh:rw"] {
        // Each leave is seen by then: who waits is on the list until it has been carried out.
        eventually(BOUND, "left", || {
            other.semaphore("s", 1).inspect().unwrap().waiters
                + other.rw_lock("r").inspect().unwrap().waiters
                == 0
        });
        let left: i64 = ask(&mut raw, &format!("PTTL {key}"));
        assert!(left > 4 * 3600 * 1000, "{key}: {left}");
    }
    permit.check().unwrap();
    read.check().unwrap();
}

/// "If one of the keys is lost, the hold is lost as a whole, and what is left of it is given back": it was left to its ttl.
#[test]
fn what_is_left_of_a_lost_multi_mutex_is_given_back() {
    let server = Server::start().unwrap();
    let client = Client::builder().url(&server.url()).ttl(secs(60));
    let client = client.build().unwrap();
    let mut raw = raw(&server.url());
    let guard = client.multi_mutex(["a", "b", "c"]).lock().unwrap();
    ask::<()>(&mut raw, "DEL b");
    assert_eq!(guard.verify().unwrap_err().kind(), ErrorKind::NotHeld);
    await_end(&guard);
    drop(guard);
    eventually(BOUND, "given back", || {
        ask::<i64>(&mut raw, "EXISTS a b c") == 0
    });
}

/// A lock of several that was told of one of them, and found another one held, kept the news to itself: who waited behind it
/// for the free one slept on till its next poll.
#[test]
fn a_wake_that_is_of_no_use_to_a_multi_mutex_goes_to_the_next_waiter() {
    one_of(3, || {
        let server = Server::start().unwrap();
        let [holder, several, single] = [0, 1, 2].map(|_| server.client());
        let (a, b) = (holder.mutex("a").lock().unwrap(), holder.mutex("b").lock());
        let (got, when) = channel();
        let waiters = || holder.mutex("a").inspect().unwrap().waiters;
        let took = thread::scope(|scope| {
            scope.spawn(|| drop(several.multi_mutex(["a", "b"]).lock().unwrap()));
            eventually(BOUND, "both waits", || waiters() == 1);
            scope.spawn(|| {
                let guard = single.mutex("a").lock().unwrap();
                got.send(Instant::now()).unwrap();
                drop(guard);
            });
            eventually(BOUND, "both waits", || waiters() == 2);
            let released = Instant::now();
            drop(a);
            let got = when.recv_timeout(BOUND).unwrap();
            drop(b);
            got - released
        });
        if took < ms(400) {
            return Ok(());
        }
        Err(format!("{took:?}"))
    });
}

/// A reader whose inbox was away for a moment asked without its ticket, and was let in; the place that it left on the list was
/// given the lease anew, for the time of a claim: a writer came in while it read.
#[test]
fn a_reader_that_gets_in_while_its_inbox_is_away_keeps_its_lease() {
    let scene = Scene::new();
    let (reader, writer) = (scene.client(), scene.outsider());
    let writing = writer.rw_lock("x").write().unwrap();
    let (got, lease) = channel();
    let (done, stop) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            let reading = reader.rw_lock("x").read().unwrap();
            got.send(reading.lease()).unwrap();
            let _ = stop.recv();
        });
        let waits = || writer.rw_lock("x").inspect().unwrap().waiters == 1;
        eventually(BOUND, "it waits", waits);
        let no_inbox = scene.proxy.rule(
            |c| c.name() == "SUBSCRIBE",
            Action::CutBeforeRequest,
            Times::Always,
        );
        let _: i64 = scene.ask("CLIENT KILL TYPE pubsub");
        assert!(no_inbox.wait_hit(BOUND));
        drop(writing);
        let reading = lease.recv_timeout(BOUND).unwrap();
        no_inbox.remove();
        eventually(BOUND, "the inbox is back", || {
            let open: Vec<String> = scene.ask("PUBSUB CHANNELS leasehold:inbox:*");
            open.len() == 1
        });
        // Whoever looks serves the list.
        elsewhere(|| writer.rw_lock("x").read().map(drop)).unwrap();
        let left = writer.rw_lock("x").inspect().unwrap().ttl_left.unwrap();
        let second = elsewhere(|| writer.rw_lock("x").try_write_for(secs(5)).map(drop));
        assert!(reading.check().is_ok());
        drop(done);
        assert!(left > secs(15), "{left:?}");
        assert_eq!(second.unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// Readers enter together. One that has not noticed yet that it may was taken for one that waits for those who have.
#[test]
fn a_reader_whose_turn_has_come_is_in_nobodys_way() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    // It has no inbox, so it looks about once a second.
    ask::<()>(&mut raw, "ACL SETUSER late on >p ~* resetchannels +@all");
    let url = server.url().replace("redis://", "redis://late:p@");
    let late = Client::open(&url).unwrap();
    let (early, writer) = (server.client(), server.client());
    one_of(3, || {
        let writing = writer.rw_lock("x").write().unwrap();
        let (holds, held) = channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let guard = late.mutex("m").lock().unwrap();
                holds.send(()).unwrap();
                let read = late.rw_lock("x").read().map(drop);
                drop(guard);
                read
            });
            held.recv_timeout(BOUND).unwrap();
            let first = scope.spawn(|| {
                let read = early.rw_lock("x").read().unwrap();
                let both = early.mutex("m").try_lock_for(BOUND).map(drop);
                drop(read);
                both
            });
            let waits = || writer.rw_lock("x").inspect().unwrap().waiters == 1;
            eventually(BOUND, "it waits", waits);
            // The writer's hold, the mutex, and both that wait: the late one has been refused, too.
            eventually(BOUND, "both wait", || entries(&writer) == 4);
            drop(writing);
            first.join().unwrap().unwrap();
            second.join().unwrap().unwrap();
        });
        Ok(())
    });
}

/// That somebody holds it is the news also where the server has no memory to put a waiter on its list: the wait ended as one
/// for memory does, after five seconds. And who was given the lock could not come for it until its claim had run out.
#[test]
fn who_waits_for_a_table_of_leases_on_a_full_server_gets_its_turn() {
    let server = Server::start().unwrap();
    let client = |_| Client::builder().url(&server.url()).ttl(secs(1)).build();
    let [holder, other] = [0, 1].map(client).map(Result::unwrap);
    let mut raw = raw(&server.url());
    let take = |name| holder.semaphore(name, 1).acquire().unwrap();
    let [short, long] = ["short", "long"].map(take);
    thread::scope(|scope| {
        let wait = |name| {
            let waiter = other.semaphore(name, 1);
            scope.spawn(move || waiter.try_acquire_for(2 * BOUND).map(drop))
        };
        let [first, second] = ["short", "long"].map(wait);
        let waiters = |name| holder.semaphore(name, 1).inspect().unwrap().waiters;
        eventually(BOUND, "both wait", || {
            waiters("short") + waiters("long") == 2
        });
        ask::<()>(&mut raw, "CONFIG SET maxmemory 1");
        let full = Instant::now();
        drop(short);
        let given = first.join().unwrap();
        let took = full.elapsed();
        let waited = || full.elapsed() > secs(7) || second.is_finished();
        eventually(BOUND, "past the bound of an outage", waited);
        let still = !second.is_finished();
        ask::<()>(&mut raw, "CONFIG SET maxmemory 0");
        drop(long);
        let got = second.join().unwrap();
        given.unwrap();
        assert!(took < secs(1), "{took:?}");
        assert!(still, "{got:?}");
        got.unwrap();
    });
}

/// An acquire that was sent twice is remembered for longer when its hold is given back. Given up for a read, it was not.
#[test]
fn a_late_copy_of_a_write_that_was_downgraded_comes_to_nothing() {
    let scene = Scene::new();
    let (client, others) = (scene.client(), scene.outsider());
    crate::support::late::warm(&client);
    scene.proxy.rule(
        |c| c.runs_on("acquire_rw", "{x}:lh:rw"),
        Action::CutBeforeRequest,
        Times::Once,
    );
    let write = client.rw_lock("x").write().unwrap();
    let late = scene.first_sent("acquire_rw", "{x}:lh:rw");
    let read = write.downgrade().unwrap();
    for _ in 0..20 {
        elsewhere(|| others.rw_lock("x").read().map(drop)).unwrap();
    }
    read.unlock().unwrap();
    scene.deliver(&late);
    let info = others.rw_lock("x").inspect().unwrap();
    assert!(!info.held, "{info:?}");
}

/// Two that upgrade wait for each other, so the second is refused; also where neither can have an inbox, and so had no place on
/// the list: they waited for ever.
#[test]
fn the_second_of_two_upgraders_is_refused_where_nobody_has_an_inbox() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    ask::<()>(&mut raw, "ACL SETUSER mute on >p ~* resetchannels +@all");
    // Two names of one server, so that this process does not see the circle.
    let client = |host: &str| {
        let url = server.url().replace("redis://", "redis://mute:p@");
        Client::open(&url.replace("127.0.0.1", host)).unwrap()
    };
    let (one, other) = (client("127.0.0.1"), client("localhost"));
    let (ready, both) = channel();
    let (go, gone) = channel::<()>();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let read = one.rw_lock("x").upgradable_read().unwrap();
            ready.send(()).unwrap();
            let _ = gone.recv();
            read.try_upgrade_for(BOUND)
                .map(drop)
                .map_err(|r| r.into_parts().1)
        });
        let second = scope.spawn(|| {
            let read = other.rw_lock("x").upgradable_read().unwrap();
            ready.send(()).unwrap();
            let _ = gone.recv();
            read.try_upgrade_for(BOUND)
                .map(drop)
                .map_err(|r| r.into_parts().1)
        });
        for _ in 0..2 {
            both.recv_timeout(BOUND).unwrap();
        }
        drop(go);
        let ends = [first, second].map(|t| t.join().unwrap());
        let refused = ends
            .iter()
            .filter_map(|e| e.as_ref().err())
            .collect::<Vec<_>>();
        assert_eq!(refused.len(), 1, "{ends:?}");
        assert_eq!(refused[0].kind(), ErrorKind::Deadlock, "{ends:?}");
    });
}

/// While a read becomes a write the server does not know its old lease any more, and the answer is on its way. Whoever verified
/// the old one then ended it as one that was taken away: a loss, logged and counted, of a lock that was never lost.
#[test]
fn a_lease_that_is_verified_while_it_is_replaced_is_not_counted_as_lost() {
    let scene = Scene::new();
    let client = scene.client();
    let read = client.rw_lock("x").upgradable_read().unwrap();
    let old = read.lease();
    let upgrade = scene.proxy.rule(
        |c| c.runs_on("acquire_rw", "{x}:lh:rw"),
        Action::DelayReply(ms(700)),
        Times::Once,
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(upgrade.wait_hit(BOUND), "carried out");
            let error = old.verify().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::NotHeld | ErrorKind::Lost),
                "{error}"
            );
        });
        let write = read.upgrade().unwrap();
        write.verify().unwrap();
    });
    assert_eq!(client.metrics().lost, 0);
    assert!(old.check().is_err());
}
