//! `RwLock`: `downgrade` and `upgrade`, with nobody in between.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, ErrorKind, Predecessor, RwLockUpgradableReadGuard};

use super::actor::Actor;
use super::read_write::waiting;
use super::{BOUND, joined, within};
use crate::support::ask::{elsewhere, timed};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const TTL: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(1200);

fn readers(client: &Client) -> u64 {
    client.rw_lock("rw").inspect().unwrap().readers
}

/// What a thread of this process that tries to read is told.
#[track_caller]
fn no_new_reader(client: &Client) {
    elsewhere(|| {
        let error = client.rw_lock("rw").try_read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

fn refused<T>(
    outcome: Result<T, leasehold::Rejected<RwLockUpgradableReadGuard>>,
) -> (RwLockUpgradableReadGuard, Error) {
    match outcome {
        Ok(_) => panic!("it was upgraded"),
        Err(rejected) => rejected.into_parts(),
    }
}

/// redisson#4217: a downgraded lock is not renewed. It is, in its new mode; the readers that wait enter with it, and a writer that
/// waits, longer than they, does not come in between.
#[test]
fn a_downgrade_lets_readers_in_and_no_writer_and_is_renewed() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.builder().ttl(SHORT).build().unwrap();
    let [mut writer, mut reader] = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    let writing = client.rw_lock("rw").write().unwrap();
    let (old, token) = (writing.lease(), writing.fencing_token());
    writer.tell("write rw");
    waiting(&outsider, 1);
    reader.tell("read rw");
    waiting(&outsider, 2);
    let before = scene.proxy.count(|c| !c.runs("renew_table"));
    let reading = writing.downgrade().unwrap();
    assert_eq!(scene.proxy.count(|c| !c.runs("renew_table")), before + 1);
    assert_eq!(reader.says(), "got it");
    assert_eq!(readers(&outsider), 2);
    assert!(reading.fencing_token() > token);
    assert!(!old.is_held());
    // For two of its ttls.
    let lost = reading.lost().recv_timeout(SHORT * 2);
    assert!(lost.is_err_and(|e| e.is_timeout()), "{:?}", reading.check());
    reading.verify().unwrap();
    assert_eq!(readers(&outsider), 2);
    no_new_reader(&outsider);
    assert!(writer.child.try_line(Duration::ZERO).is_none());
    reading.unlock().unwrap();
    reader.gets_rid();
    assert_eq!(writer.says(), "got it");
    assert_eq!(client.metrics().lost, 0);
}

/// A downgraded section ended well, whatever becomes of the reader that it has become.
#[test]
fn a_reader_that_wrote_before_leaves_no_mark_when_it_dies() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actor = Actor::new(&scene.server.url(), Duration::from_secs(1));
    actor.gets("write rw");
    actor.gets("downgrade");
    actor.child.kill();
    let writing = client.rw_lock("rw").write().unwrap();
    assert_eq!(writing.predecessor(), &Predecessor::Clean);
    writing.unlock().unwrap();
    // One that dies while it writes does leave one.
    let mut actor = Actor::new(&scene.server.url(), Duration::from_secs(1));
    actor.gets("upgradable rw");
    actor.gets("upgrade");
    actor.child.kill();
    let writing = client.rw_lock("rw").write().unwrap();
    let mark = writing.predecessor();
    assert!(matches!(mark, Predecessor::Abandoned { .. }), "{mark:?}");
}

/// An upgrade waits for the other readers; meanwhile the read is kept and renewed, no new reader enters, and no writer, though it
/// came before, gets in between.
#[test]
fn an_upgrade_waits_for_the_readers_and_keeps_its_read_meanwhile() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let [mut reader, mut writer, mut late] = [(); 3].map(|()| Actor::new(&scene.server.url(), TTL));
    let mut upgrader = Actor::with_witness(&scene.proxy.url(), &scene.server.url(), SHORT);
    upgrader.gets("upgradable rw");
    let token: u64 = upgrader.does("token").parse().unwrap();
    reader.gets("read rw");
    writer.tell("write rw");
    waiting(&outsider, 1);
    upgrader.tell("upgrade");
    waiting(&outsider, 2);
    no_new_reader(&outsider);
    late.tell("read rw");
    waiting(&outsider, 3);
    let renewals = || scene.proxy.count(|c| c.runs("renew_table"));
    let before = renewals();
    // Two of its ttls.
    eventually(BOUND, "the read is renewed", || renewals() >= before + 6);
    assert_eq!(readers(&outsider), 2);
    let freed = Instant::now();
    reader.gets_rid();
    assert_eq!(upgrader.says(), "got it");
    within(Duration::from_secs(4), freed, "the upgrade");
    let info = outsider.rw_lock("rw").inspect().unwrap();
    assert_eq!((info.readers, info.waiters), (0, 2), "{info:?}");
    assert_eq!(upgrader.does("check"), "held");
    assert!(upgrader.does("token").parse::<u64>().unwrap() > token);
    assert!(writer.child.try_line(Duration::ZERO).is_none());
    // The write is renewed, too.
    let before = renewals();
    eventually(BOUND, "the write is renewed", || renewals() >= before + 4);
    assert_eq!(upgrader.does("check"), "held");
    upgrader.gets_rid();
    // After a writer the readers.
    assert_eq!(late.says(), "got it");
    late.gets_rid();
    assert_eq!(writer.says(), "got it");
}

/// An upgrade that gives up leaves all as it was: the guard is held, and readers enter again, those first that waited.
#[test]
fn an_upgrade_that_times_out_gives_the_guard_back_and_lets_readers_in() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.builder().ttl(SHORT).build().unwrap();
    let [mut reader, mut late] = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    reader.gets("read rw");
    let reading = client.rw_lock("rw").upgradable_read().unwrap();
    let (lease, token) = (reading.lease(), reading.fencing_token());
    let (reading, error) = refused(reading.try_upgrade());
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let (took, (reading, error)) = thread::scope(|scope| {
        // It waits behind the upgrader, and enters when that gives up.
        let tell = scope.spawn(|| {
            waiting(&outsider, 1);
            late.tell("read rw");
            waiting(&outsider, 2);
        });
        let outcome = timed(|| refused(reading.try_upgrade_for(Duration::from_millis(1500))));
        tell.join().unwrap();
        outcome
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(took >= Duration::from_millis(1500), "{took:?}");
    let ended = Instant::now();
    assert_eq!(late.says(), "got it");
    within(Duration::from_secs(1), ended, "the reader's turn");
    // The same hold as before, and renewed as before.
    assert_eq!(reading.fencing_token(), token);
    reading.verify().unwrap();
    lease.check().unwrap();
    let lost = reading.lost().recv_timeout(SHORT * 2);
    assert!(lost.is_err_and(|e| e.is_timeout()), "{:?}", reading.check());
    elsewhere(|| client.rw_lock("rw").try_read().unwrap().unlock()).unwrap();
    assert_eq!(readers(&outsider), 3);
    late.gets_rid();
    reader.gets_rid();
    let writing = reading.try_upgrade().unwrap();
    writing.verify().unwrap();
    assert_eq!(client.metrics().lost, 0);
}

/// A thread that reads once more would wait for itself: refused, and the guard is as good as before.
#[test]
fn an_upgrade_of_a_thread_that_reads_once_more_is_refused() {
    let scene = Scene::new();
    let client = scene.outsider();
    let lock = client.rw_lock("rw");
    let reading = lock.upgradable_read().unwrap();
    let nested = lock.read().unwrap();
    assert_eq!(nested.fencing_token(), reading.fencing_token());
    let (reading, error) = refused(reading.upgrade());
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    reading.verify().unwrap();
    drop(nested);
    // A second one of its own is another hold, which it would wait for all the same.
    let second = lock.upgradable_read().unwrap();
    let (reading, error) = refused(reading.upgrade());
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    let (reading, error) = refused(reading.try_upgrade());
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(second);
    reading.upgrade().unwrap().unlock().unwrap();
}

/// Two upgraders would wait for each other: of two processes the second is refused at once, and the first goes on when the second
/// has dropped its guard.
#[test]
fn of_two_processes_that_upgrade_the_second_is_refused_at_once() {
    let scene = Scene::new();
    let client = scene.outsider();
    let [mut first, mut second] = [(); 2].map(|()| Actor::new(&scene.server.url(), TTL));
    first.gets("upgradable rw");
    second.gets("upgradable rw");
    first.tell("upgrade");
    waiting(&client, 1);
    let (took, said) = timed(|| second.does("upgrade"));
    assert_eq!(said, "Deadlock");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(second.does("check"), "held");
    assert!(first.child.try_line(Duration::from_millis(100)).is_none());
    second.gets_rid();
    assert_eq!(first.says(), "got it");
    assert_eq!(first.does("check"), "held");
}

/// The same of two threads of one process, through one client and through two.
#[test]
fn of_two_threads_that_upgrade_the_second_is_refused_at_once() {
    let scene = Scene::new();
    let watcher = scene.outsider();
    for clients in [[&watcher; 2], [&scene.outsider(), &scene.outsider()]] {
        let lock = clients[0].rw_lock("rw");
        let reading = clients[1].rw_lock("rw").upgradable_read().unwrap();
        let (ready, is_ready) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let first = thread::spawn(move || {
            let reading = lock.upgradable_read().unwrap();
            ready.send(()).unwrap();
            let writing = reading.upgrade().unwrap();
            done.send(()).unwrap();
            writing.unlock().unwrap();
        });
        is_ready.recv_timeout(BOUND).unwrap();
        waiting(&watcher, 1);
        let (took, (reading, error)) = timed(|| refused(reading.upgrade()));
        assert_eq!(error.kind(), ErrorKind::Deadlock);
        assert!(took < Duration::from_secs(2), "{took:?}");
        let (reading, error) = refused(reading.try_upgrade());
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        reading.verify().unwrap();
        assert!(is_done.try_recv().is_err());
        drop(reading);
        is_done.recv_timeout(BOUND).unwrap();
        joined(first);
    }
}

/// An upgrader that dies keeps neither its read nor its place for longer than its ttl.
#[test]
fn an_upgrader_that_dies_lets_others_go_on() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut dead = Actor::new(&scene.server.url(), SHORT);
    dead.gets("upgradable rw");
    let reading = client.rw_lock("rw").upgradable_read().unwrap();
    dead.tell("upgrade");
    waiting(&client, 1);
    let killed = Instant::now();
    dead.child.kill();
    // Its place, until it has been silent for 5 s: then another may upgrade. Its read goes with its ttl.
    let mut reading = Some(reading);
    eventually(BOUND, "another may upgrade", || {
        match reading.take().unwrap().try_upgrade() {
            Ok(writing) => {
                writing.verify().unwrap();
                true
            }
            Err(rejected) => {
                reading = Some(rejected.into_parts().0);
                false
            }
        }
    });
    within(Duration::from_secs(9), killed, "the upgrade of another");
}
