//! `RwLock`: each reader has a lease of its own, and nobody's ends or lengthens another's.

use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind};

use super::actor::Actor;
use super::{BOUND, joined, turn, within};
use crate::support::ask::elsewhere;
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const KEY: &str = "{rw}:lh:rw";

fn readers(client: &Client) -> u64 {
    client.rw_lock("rw").inspect().unwrap().readers
}

/// redisson#1604, #5462, #7098: nobody's or everybody's holds are renewed. One reader is killed while another renews: the dead
/// one is gone after its ttl, and the living one's end lets a writer in.
#[test]
fn a_killed_reader_is_gone_after_its_ttl_while_another_renews() {
    let scene = Scene::new();
    let client = scene.outsider();
    let ttl = Duration::from_secs(2);
    let mut dead = Actor::new(&scene.server.url(), ttl);
    dead.gets("read rw");
    let living = client.rw_lock("rw").with_ttl(ttl).read().unwrap();
    assert_eq!(readers(&client), 2);
    let killed = Instant::now();
    dead.child.kill();
    // It counts until its lease has run out, and not much longer.
    eventually(BOUND, "the dead reader is gone", || readers(&client) == 1);
    assert!(killed.elapsed() > ttl / 2, "{:?}", killed.elapsed());
    within(ttl + Duration::from_secs(2), killed, "its end");
    // A writer waits for the living one, and for that one only.
    let writer = turn(&client, &scene, "w", "write rw");
    eventually(BOUND, "the writer waits", || {
        client.rw_lock("rw").inspect().unwrap().waiters == 1
    });
    // Two of its leases later it is still renewed.
    let lost = living.lost().recv_timeout(ttl * 2);
    assert!(lost.is_err_and(|e| e.is_timeout()), "{:?}", living.check());
    living.verify().unwrap();
    assert!(!writer.is_finished());
    let freed = Instant::now();
    living.unlock().unwrap();
    joined(writer);
    within(Duration::from_secs(2), freed, "the writer's turn");
}

/// redisson#1604: with all readers dead a writer that waits enters when the last lease has run out, though nobody releases.
#[test]
fn a_writer_enters_when_the_leases_of_dead_readers_have_run_out() {
    let scene = Scene::new();
    let client = scene.outsider();
    let ttl = Duration::from_millis(1500);
    let mut dead = [(); 2].map(|()| Actor::new(&scene.server.url(), ttl));
    for actor in &mut dead {
        actor.gets("read rw");
    }
    let writer = turn(&client, &scene, "w", "write rw");
    eventually(BOUND, "the writer waits", || {
        client.rw_lock("rw").inspect().unwrap().waiters == 1
    });
    let killed = Instant::now();
    for actor in &mut dead {
        actor.child.kill();
    }
    joined(writer);
    within(ttl + Duration::from_secs(3), killed, "the writer's turn");
}

/// Redisson's head, run: a write of 60 s and two reads of 2 s: when one of them goes, the whole lock has 2 s. Here no reader
/// shortens another's lease, nor a writer's, nor what the key needs for them.
#[test]
fn a_short_lease_does_not_shorten_a_long_one() {
    let scene = Scene::new();
    let client = scene.outsider();
    let (long, short) = (Duration::from_secs(60), Duration::from_secs(2));
    let lease = |d| client.rw_lock("rw").with_fixed_lease(d);
    let held = lease(long).write().unwrap();
    let held = held.downgrade().unwrap();
    let (one, two) = elsewhere(|| {
        let (a, b) = (
            lease(short).upgradable_read(),
            lease(short).upgradable_read(),
        );
        let (a, b) = (a.unwrap(), b.unwrap());
        let leases = (a.lease(), b.lease());
        a.unlock().unwrap();
        assert!(b.is_held());
        std::mem::forget(b);
        leases
    });
    assert!(!one.is_held());
    assert!(two.is_held());
    assert!(scene.left(KEY) > long - Duration::from_secs(5));
    assert!(held.remaining() > long - Duration::from_secs(5));
    // The other one's end, by its lease, changes nothing either.
    eventually(BOUND, "its lease runs out", || !two.is_held());
    eventually(BOUND, "the server forgets it", || readers(&client) == 1);
    held.verify().unwrap();
    assert!(scene.left(KEY) > long - Duration::from_secs(8));
    let error = elsewhere(|| client.rw_lock("rw").try_write().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// The same of the key that has them all: renewals, releases and the coming of others leave it to the longest lease.
#[test]
fn the_key_outlives_its_longest_lease_whatever_others_do() {
    let scene = Scene::new();
    let client = scene.outsider();
    let hours = Duration::from_secs(5 * 3600);
    let long = client.rw_lock("rw").with_fixed_lease(hours).read().unwrap();
    let almost = hours - Duration::from_secs(60);
    assert!(scene.left(KEY) > almost);
    let renewing = scene.client();
    let lock = renewing.rw_lock("rw").with_ttl(Duration::from_millis(1200));
    elsewhere(|| {
        let short = lock.read().unwrap();
        assert!(scene.left(KEY) > almost);
        eventually(BOUND, "it is renewed", || renewing.metrics().renewals >= 2);
        assert!(scene.left(KEY) > almost);
        short.unlock().unwrap();
        assert!(scene.left(KEY) > almost);
        let wait = Duration::from_millis(200);
        assert_eq!(
            lock.try_write_for(wait).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
    });
    assert!(scene.left(KEY) > almost);
    long.verify().unwrap();
    long.unlock().unwrap();
    // And no longer than an hour after the last one.
    assert!(scene.left(KEY) <= Duration::from_secs(3600));
}

/// The same with a writer who has the long lease, and readers who try.
#[test]
fn readers_that_come_to_nothing_leave_the_writers_lease_alone() {
    let scene = Scene::new();
    let client = scene.outsider();
    let long = Duration::from_secs(60);
    let held = client.rw_lock("rw").with_fixed_lease(long).write().unwrap();
    for n in 0..3 {
        let reader = client
            .rw_lock("rw")
            .with_fixed_lease(Duration::from_secs(2));
        let kind = elsewhere(|| match n {
            0 => reader.try_read().unwrap_err().kind(),
            _ => {
                let wait = Duration::from_millis(200);
                reader.try_read_for(wait).unwrap_err().kind()
            }
        });
        let expected = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
        assert_eq!(kind, expected[n.min(1)]);
    }
    assert!(scene.left(KEY) > long - Duration::from_secs(10));
    held.verify().unwrap();
}

/// .NET's reader set has one ttl for all: a reader's renewal keeps the dead ones in. Each has its own by the server's clock: here
/// three that are never renewed end one after the other, while a fourth one is renewed.
#[test]
fn each_readers_lease_ends_at_its_own_time() {
    let scene = Scene::new();
    let client = scene.outsider();
    let renewed = client
        .rw_lock("rw")
        .with_ttl(Duration::from_millis(1500))
        .read()
        .unwrap();
    let start = Instant::now();
    let ends: Vec<Duration> = [700, 1400, 2100].map(Duration::from_millis).into();
    for end in &ends {
        elsewhere(|| {
            let reader = client.rw_lock("rw").with_fixed_lease(*end);
            std::mem::forget(reader.read().unwrap());
        });
    }
    assert_eq!(readers(&client), 4);
    for (n, end) in ends.iter().enumerate() {
        eventually(BOUND, "one more has ended", || {
            readers(&client) == 3 - n as u64
        });
        // The server counts in whole milliseconds, from the last one on.
        let lasted = start.elapsed() + Duration::from_millis(2);
        assert!(lasted >= *end, "{end:?}: {lasted:?}");
    }
    renewed.verify().unwrap();
}

/// redisson#7251: a nested read leaves a renewal behind. Nested reads ask nobody, in any order of their ends, and after the last
/// of them not one renewal is sent.
#[test]
fn nested_reads_send_nothing_and_leave_no_renewal_behind() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(1)).build().unwrap();
    let witness = client.mutex("witness").lock().unwrap();
    let lock = client.rw_lock("rw");
    scene.proxy.reset_counts();
    let of = |script| scene.proxy.count(|c| c.runs_on(script, KEY));
    for round in 0..20 {
        let outer = lock.read().unwrap();
        let inner = [
            client.rw_lock("rw").read().unwrap(),
            lock.try_read().unwrap(),
            lock.try_read_for(Duration::ZERO).unwrap(),
        ];
        for guard in &inner {
            assert_eq!(guard.fencing_token(), outer.fencing_token());
        }
        if round % 2 == 0 {
            drop(outer);
            assert!(inner[0].is_held());
            drop(inner);
        } else {
            drop(inner);
            assert!(outer.is_held());
            outer.unlock().unwrap();
        }
    }
    assert_eq!(of("acquire_rw"), 20);
    assert_eq!(of("release_table"), 20);
    // While one is held it is renewed once a third of its ttl, as if it were not nested.
    let renewals = |word: &str| {
        let word = word.to_owned();
        scene
            .proxy
            .count(move |c| (c.runs_on("renew", &word)) || c.runs_on("renew_table", &word))
    };
    let outer = lock.read().unwrap();
    let inner = lock.read().unwrap();
    eventually(BOUND, "it is renewed", || renewals(KEY) >= 2);
    drop(outer);
    drop(inner);
    let (mine, others) = (renewals(KEY), renewals("witness"));
    eventually(BOUND, "others are renewed", || {
        renewals("witness") >= others + 4
    });
    assert_eq!(renewals(KEY), mine);
    assert!(witness.is_held());
}

/// A lost read is no ground for a nested one.
#[test]
fn after_a_loss_a_nested_read_is_an_error_until_all_guards_are_gone() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(1)).build().unwrap();
    let lock = client.rw_lock("rw");
    let (outer, inner) = (lock.read().unwrap(), lock.read().unwrap());
    assert!(lock.force_unlock().unwrap());
    let _ = inner.lost().recv_timeout(BOUND);
    assert_eq!((outer.is_held(), inner.is_held()), (false, false));
    assert_eq!(lock.read().unwrap_err().kind(), ErrorKind::Lost);
    drop(outer);
    assert_eq!(lock.try_read().unwrap_err().kind(), ErrorKind::Lost);
    drop(inner);
    let again = lock.read().unwrap();
    again.verify().unwrap();
}

/// The key is deleted by hand: its holders are told, and those who wait go on within seconds.
#[test]
fn a_table_that_is_deleted_is_made_anew() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(1)).build().unwrap();
    let writing = client.rw_lock("rw").write().unwrap();
    let token = writing.fencing_token();
    let outsider = scene.outsider();
    let waits = ["read rw", "write rw", "read rw"].map(|what| turn(&outsider, &scene, what, what));
    eventually(BOUND, "all of them wait", || {
        outsider.rw_lock("rw").inspect().unwrap().waiters == 3
    });
    let deleted = Instant::now();
    let _: u64 = scene.ask(&format!("DEL {KEY}"));
    let lost = writing.lost().recv_timeout(BOUND);
    assert!(lost.is_err_and(|e| e.is_disconnected()));
    waits.into_iter().for_each(joined);
    within(Duration::from_secs(6), deleted, "going on");
    assert_eq!(writing.unlock().unwrap_err().kind(), ErrorKind::Lost);
    let again = outsider.rw_lock("rw").write().unwrap();
    assert!(again.fencing_token() > token);
}
