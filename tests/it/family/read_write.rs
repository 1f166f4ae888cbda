//! `RwLock`: phases of readers and writers, over processes.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use leasehold::testing::entries;
use leasehold::{Client, ErrorKind};

use super::actor::Actor;
use super::{BOUND, joined, noted, notes, turn, within};
use crate::support::ask::elsewhere;
use crate::support::scene::{Scene, ask};
use crate::support::wait::eventually;

const TTL: Duration = Duration::from_secs(30);

#[track_caller]
pub(super) fn waiting(client: &Client, n: u64) {
    eventually(BOUND, "all of them wait", || {
        client.rw_lock("rw").inspect().unwrap().waiters == n
    });
}

/// redisson#891, #4217: the end of a read ends the write. Neither ends the other, whoever has had what before.
#[test]
fn the_end_of_a_read_does_not_end_a_write() {
    let scene = Scene::new();
    let client = scene.outsider();
    let lock = client.rw_lock("rw");
    let reading = lock.read().unwrap();
    let late = reading.lease();
    reading.unlock().unwrap();
    let writing = lock.write().unwrap();
    // All that an ended read can still do.
    assert!(late.verify().is_err());
    for _ in 0..3 {
        assert_eq!(
            elsewhere(|| lock.try_read().unwrap_err().kind()),
            ErrorKind::WouldBlock
        );
        assert_eq!(
            elsewhere(|| lock.try_write().unwrap_err().kind()),
            ErrorKind::WouldBlock
        );
        writing.verify().unwrap();
    }
    // Readers of another process that gave up waiting.
    let wait = Duration::from_millis(300);
    let kind = elsewhere(|| lock.try_read_for(wait).unwrap_err().kind());
    assert_eq!(kind, ErrorKind::TimedOut);
    writing.verify().unwrap();
    writing.unlock().unwrap();
}

/// redisson#891: a release of a read that reaches the server again, late, takes nothing from the writer that came after it.
#[test]
fn a_late_copy_of_a_readers_release_takes_nothing_from_a_writer() {
    let scene = Scene::new();
    let client = scene.client();
    let lock = client.rw_lock("rw");
    lock.read().unwrap().unlock().unwrap();
    let release = scene.first_sent("release_table", "{rw}:lh:rw");
    let acquire = scene.first_sent("acquire_rw", "{rw}:lh:rw");
    let writing = lock.write().unwrap();
    assert_eq!(scene.deliver(&release), redis::Value::Int(1));
    let dead = redis::Value::Array(vec![redis::Value::Int(-1)]);
    assert_eq!(scene.deliver(&acquire), dead);
    writing.verify().unwrap();
    let info = lock.inspect().unwrap();
    assert_eq!((info.readers, info.waiters), (0, 0), "{info:?}");
}

/// Phase-fair over processes: a writer that waits stops new readers; after it all readers that wait enter together, before the
/// next writer, though that one came before most of them.
#[test]
fn writers_and_readers_take_turns_over_processes() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actors = [(); 4].map(|()| Actor::new(&scene.server.url(), TTL));
    let first = client.rw_lock("rw").read().unwrap();
    let [w1, w2, r1, r2] = &mut actors;
    w1.tell("write rw");
    waiting(&client, 1);
    // No new reader passes it, nor a try, nor one that could be upgraded.
    r1.tell("read rw");
    waiting(&client, 2);
    elsewhere(|| {
        let lock = client.rw_lock("rw");
        let tries = [
            lock.try_read().map(drop).unwrap_err().kind(),
            lock.try_upgradable_read().map(drop).unwrap_err().kind(),
            lock.try_write().map(drop).unwrap_err().kind(),
        ];
        assert_eq!(tries, [ErrorKind::WouldBlock; 3]);
    });
    w2.tell("write rw");
    waiting(&client, 3);
    r2.tell("upgradable rw");
    waiting(&client, 4);
    assert_eq!(client.rw_lock("rw").inspect().unwrap().readers, 1);
    drop(first);
    assert_eq!(w1.says(), "got it");
    waiting(&client, 3);
    w1.gets_rid();
    assert_eq!(r1.says(), "got it");
    assert_eq!(r2.says(), "got it");
    let info = client.rw_lock("rw").inspect().unwrap();
    assert_eq!((info.readers, info.waiters), (2, 1), "{info:?}");
    r1.gets_rid();
    assert!(w2.child.try_line(Duration::from_millis(100)).is_none());
    r2.gets_rid();
    assert_eq!(w2.says(), "got it");
    w2.gets_rid();
}

/// The promise in numbers: of a crowd of readers and writers that never ends, nobody waits for more than one round of the others.
#[test]
fn neither_readers_nor_writers_starve_each_other() {
    let scene = Scene::new();
    let client = scene.outsider();
    let (stop, stopped) = bounded::<()>(0);
    let crowd = |what: &'static str| {
        let (client, stopped) = (client.clone(), stopped.clone());
        thread::spawn(move || {
            while stopped.try_recv().is_err_and(|e| e.is_empty()) {
                let held = super::actor::acquire(&client, what).unwrap();
                thread::sleep(Duration::from_millis(5));
                drop(held);
            }
        })
    };
    let readers = [(); 4].map(|()| crowd("read rw"));
    let start = Instant::now();
    for n in 0..5 {
        joined(turn(&client, &scene, &format!("w{n}"), "write rw"));
    }
    within(Duration::from_secs(8), start, "five writes among readers");
    let writers = [(); 3].map(|()| crowd("write rw"));
    for n in 0..5 {
        joined(turn(&client, &scene, &format!("r{n}"), "read rw"));
    }
    within(Duration::from_secs(16), start, "five reads among writers");
    drop(stop);
    readers.into_iter().chain(writers).for_each(joined);
    assert_eq!(noted(&scene).len(), 20);
}

/// Never a writer beside anybody, whatever comes when: seen by a count at the server.
#[test]
fn a_writer_is_alone_and_readers_are_not() {
    let scene = Scene::new();
    let mut actors = [(); 4].map(|()| Actor::new(&scene.server.url(), TTL));
    let client = scene.outsider();
    let gate = client.rw_lock("rw").write().unwrap();
    for (n, actor) in actors.iter_mut().enumerate() {
        for m in 0..6 {
            let what = if m % 3 == 0 { "write" } else { "read" };
            actor.tell(&format!("turn {what}-{n}-{m} {what} rw"));
        }
    }
    waiting(&client, 24);
    drop(gate);
    let notes = notes(&scene, 48);
    let mut inside: Vec<&str> = Vec::new();
    let mut most = 0;
    for note in &notes {
        match note.split_once(' ').unwrap() {
            ("in", who) => {
                inside.push(who);
                let writers = inside.iter().filter(|w| w.starts_with("write")).count();
                assert!(writers == 0 || inside.len() == 1, "{inside:?} in {notes:?}");
                most = most.max(inside.len());
            }
            (_, who) => inside.retain(|w| *w != who),
        }
    }
    assert!(most > 1, "{notes:?}");
}

/// Pending-writer marks expire with their waiter: a writer that was killed, or stopped, keeps readers out for seconds only.
#[test]
fn a_dead_waiting_writer_keeps_readers_out_for_seconds() {
    let scene = Scene::new();
    let client = scene.outsider();
    let lock = client.rw_lock("rw");
    let first = lock.read().unwrap();
    let mut dead = Actor::new(&scene.server.url(), TTL);
    dead.tell("write rw");
    waiting(&client, 1);
    let reader = turn(&client, &scene, "r", "read rw");
    waiting(&client, 2);
    let killed = Instant::now();
    dead.child.kill();
    // Nobody releases: the reader finds out that the writer has been silent.
    joined(reader);
    within(Duration::from_secs(8), killed, "the reader's turn");
    assert!(first.is_held());
}

/// A writer that is stopped when its turn comes costs the readers behind it its claim.
#[test]
fn a_stopped_writer_whose_turn_comes_costs_readers_the_claim() {
    let scene = Scene::new();
    let client = scene.outsider();
    let first = client.rw_lock("rw").read().unwrap();
    let mut stopped = Actor::new(&scene.server.url(), Duration::from_millis(1500));
    stopped.tell("write rw");
    waiting(&client, 1);
    let reader = turn(&client, &scene, "r", "read rw");
    waiting(&client, 2);
    stopped.child.stop();
    let freed = Instant::now();
    drop(first);
    joined(reader);
    within(Duration::from_secs(5), freed, "the reader's turn");
    stopped.child.cont();
    assert_eq!(stopped.says(), "got it");
    assert_eq!(stopped.does("check"), "held");
}

/// redisson#763: no call is heard, and the lock goes round all the same.
#[test]
fn cut_subscriptions_cost_readers_and_writers_a_look() {
    let scene = Scene::new();
    let client = scene.outsider();
    let mut actor = Actor::new(&scene.server.url(), TTL);
    let held = client.rw_lock("rw").write().unwrap();
    for (n, what) in ["read", "write", "read"].iter().enumerate() {
        actor.tell(&format!("turn {n} {what} rw"));
        waiting(&client, n as u64 + 1);
    }
    let mut raw = scene.raw();
    let killed: u64 = ask(&mut raw, "CLIENT KILL TYPE pubsub");
    assert!(killed >= 1);
    let cut = Instant::now();
    drop(held);
    notes(&scene, 6);
    within(Duration::from_secs(8), cut, "three turns");
}

/// Returns when this process knows of a thread that holds one more mutex and waits: the server is told before.
#[track_caller]
fn knows(client: &Client, before: usize) {
    eventually(BOUND, "it is known here that it waits", || {
        // The gate and the hold of the mutex; the wait, and where it hears of its turn.
        entries(client) >= before + 4
    });
}

/// Threads of one process that wait for each other: a reader in a circle with a writer is told.
#[test]
fn a_circle_of_readers_and_writers_of_this_process_is_a_deadlock() {
    let scene = Scene::new();
    let client = scene.outsider();
    let (rw, m) = (client.rw_lock("rw"), client.mutex("m"));
    // This thread reads, another has the mutex and waits to write, and this one wants the mutex.
    let reading = rw.read().unwrap();
    let before = entries(&client);
    let (has_it, had) = bounded(1);
    let other = thread::spawn({
        let (rw, m) = (rw.clone(), m.clone());
        move || {
            let held = m.lock().unwrap();
            has_it.send(()).unwrap();
            let writing = rw.write().unwrap();
            drop((writing, held));
        }
    });
    had.recv_timeout(BOUND).unwrap();
    waiting(&client, 1);
    knows(&client, before);
    let outcome = m.try_lock_for(Duration::from_secs(5));
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock);
    drop(reading);
    joined(other);
}

/// The other way round: the one that waits is a reader, behind a writer of this process, or behind one of another process that
/// waits for this thread to go.
#[test]
fn a_reader_that_closes_a_circle_is_seen_too() {
    let scene = Scene::new();
    let client = scene.outsider();
    let (rw, m) = (client.rw_lock("rw"), client.mutex("m"));
    let mut writer = Actor::new(&scene.server.url(), TTL);
    for writes in [true, false] {
        let (mut writing, mut reading) = (None, None);
        if writes {
            writing = Some(rw.write().unwrap());
        } else {
            reading = Some(rw.read().unwrap());
            writer.tell("write rw");
            waiting(&client, 1);
        }
        let before = entries(&client);
        let (has_it, had) = bounded(1);
        let other = thread::spawn({
            let (rw, m) = (rw.clone(), m.clone());
            move || {
                let held = m.lock().unwrap();
                has_it.send(()).unwrap();
                let reading = rw.read().unwrap();
                drop((reading, held));
            }
        });
        had.recv_timeout(BOUND).unwrap();
        waiting(&client, if writes { 1 } else { 2 });
        knows(&client, before);
        let outcome = m.try_lock_for(Duration::from_secs(5));
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock, "{writes}");
        drop((writing.take(), reading.take()));
        if !writes {
            assert_eq!(writer.says(), "got it");
            writer.gets_rid();
        }
        joined(other);
    }
}

/// A thread that reads can't write, and the other way round: it would wait for itself.
#[test]
fn a_thread_that_reads_or_writes_is_told_that_it_would_wait_for_itself() {
    let scene = Scene::new();
    let rw = scene.outsider().rw_lock("rw");
    let reading = rw.read().unwrap();
    assert_eq!(rw.write().unwrap_err().kind(), ErrorKind::Deadlock);
    assert_eq!(rw.try_write().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(reading);
    let writing = rw.write().unwrap();
    assert_eq!(rw.read().unwrap_err().kind(), ErrorKind::Deadlock);
    assert_eq!(rw.write().unwrap_err().kind(), ErrorKind::Deadlock);
    assert_eq!(
        rw.upgradable_read().unwrap_err().kind(),
        ErrorKind::Deadlock
    );
    assert_eq!(rw.try_read().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(writing);
}
