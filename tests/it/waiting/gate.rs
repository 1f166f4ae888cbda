//! Threads of one process: their order, and circles among them.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::testing::{entries, lose};
use leasehold::{BusyAsNone, Client, ErrorKind, Mutex};

use super::{BOUND, joined, registered, waiting};
use crate::support::scene::Scene;
use crate::support::wait::{eventually, one_of};

/// Far longer than anything here should take: a wait of this length was none that was refused.
const REFUSED: Duration = Duration::from_secs(5);

/// One server by three names.
fn three_ways(scene: &Scene) -> [Client; 3] {
    let port = scene.server.port();
    let socket = scene.server.unix_socket().unwrap();
    [
        format!("redis://127.0.0.1:{port}/"),
        format!("redis://localhost:{port}/"),
        format!("redis+unix://{}", socket.display()),
    ]
    // A circle that is not found must not keep the test for ever.
    .map(|url| {
        Client::builder()
            .url(&url)
            .max_wait(REFUSED * 2)
            .build()
            .unwrap()
    })
}

/// Within one process, threads get their turn in the order of their arrival.
#[test]
fn threads_of_one_client_get_the_lock_in_order_of_arrival() {
    const THREADS: usize = 12;
    let scene = Scene::new();
    let client = scene.client();
    // An entry in the table comes just before the place in the queue: a thread may be overtaken between the two.
    one_of(3, || {
        let first = client.mutex("order").lock().unwrap();
        let (got, order) = unbounded();
        let mut waits = Vec::new();
        for n in 0..THREADS {
            let before = entries(&client);
            let (mutex, got) = (client.mutex("order"), got.clone());
            waits.push(thread::spawn(move || {
                let _guard = mutex.lock().unwrap();
                got.send(n).unwrap();
            }));
            eventually(BOUND, "it waits", || entries(&client) > before);
        }
        first.unlock().unwrap();
        for wait in waits {
            joined(wait);
        }
        let order: Vec<usize> = order.try_iter().collect();
        match order.is_sorted() && order.len() == THREADS {
            true => Ok(()),
            false => Err(format!("{order:?}")),
        }
    });
    assert_eq!(entries(&client), 0);
}

/// A thread's turn comes at the very moment when it gives up waiting: the turn must not be lost, or nobody passes any more.
#[test]
fn a_turn_that_meets_a_thread_on_its_way_out_goes_to_the_next() {
    let scene = Scene::new();
    // No proxy: the turns must come as fast as they can.
    let client = scene.outsider();
    let until = Instant::now() + Duration::from_secs(2);
    let threads: Vec<_> = (0..8_u64)
        .map(|t| {
            let mutex = client.mutex("turns");
            thread::spawn(move || {
                let (mut had, mut gave_up) = (0_u32, 0_u32);
                for round in 0.. {
                    if Instant::now() >= until {
                        break;
                    }
                    // About as long as one turn takes, or a few.
                    let patience = Duration::from_micros(100 + (t * 211 + round * 37) % 2000);
                    match mutex.try_lock_for(patience) {
                        Ok(_guard) => had += 1,
                        Err(e) => {
                            // So little time may be over before the server has answered.
                            assert!(e.is_busy() || e.kind() == ErrorKind::Unavailable, "{e}");
                            gave_up += 1;
                        }
                    }
                }
                (had, gave_up)
            })
        })
        .collect();
    let (had, gave_up) = threads
        .into_iter()
        .map(joined)
        .fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    assert!(
        had > 100 && gave_up > 100,
        "{had} had it, {gave_up} gave up"
    );
    assert_eq!(entries(&client), 0);
    client
        .mutex("turns")
        .try_lock_for(REFUSED)
        .unwrap()
        .unlock()
        .unwrap();
}

/// A thread that locks twice is told so, through whichever client of the server.
#[test]
fn a_thread_that_would_wait_for_itself_is_told_at_once() {
    let scene = Scene::new();
    for holding in three_ways(&scene) {
        let guard = holding.mutex("twice").lock().unwrap();
        for client in three_ways(&scene) {
            let mutex = client.mutex("twice");
            let start = Instant::now();
            let forms: [&dyn Fn(&Mutex) -> ErrorKind; 3] = [
                &|m| m.lock().unwrap_err().kind(),
                &|m| m.try_lock_for(Duration::from_secs(60)).unwrap_err().kind(),
                &|m| m.with(|_| ()).unwrap_err().kind(),
            ];
            for form in forms {
                assert_eq!(form(&mutex), ErrorKind::Deadlock);
            }
            assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(mutex.try_lock().busy_as_none().unwrap().is_none());
            assert!(start.elapsed() < REFUSED);
        }
        guard.verify().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    }
    for client in three_ways(&scene) {
        assert_eq!(entries(&client), 0);
        client.mutex("twice").try_lock().unwrap().unlock().unwrap();
    }
}

/// Each of so many threads holds a lock and wants the next one's: one is refused, the others get theirs.
fn circle(clients: &[(Client, Client)]) {
    let all = clients.len();
    let held = Barrier::new(all);
    let start = Instant::now();
    let outcomes: Vec<Result<(), ErrorKind>> = thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, (mine, theirs))| {
                let held = &held;
                scope.spawn(move || {
                    let own = mine.mutex(format!("circle:{n}")).lock().unwrap();
                    held.wait();
                    let next = theirs.mutex(format!("circle:{}", (n + 1) % all)).lock();
                    own.verify().unwrap();
                    next.map(drop).map_err(|e| e.kind())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let refused: Vec<_> = outcomes.iter().filter_map(|o| o.err()).collect();
    assert!(start.elapsed() < REFUSED, "{:?}", start.elapsed());
    assert!(!refused.is_empty() && refused.len() < all, "{outcomes:?}");
    assert!(
        refused.iter().all(|&kind| kind == ErrorKind::Deadlock),
        "{outcomes:?}"
    );
}

/// Two mutexes, two threads, in opposite order: one gets Deadlock, the other goes on. With three threads as well, and
/// through clients that call the server by different names.
#[test]
fn threads_that_wait_in_a_circle_are_told_and_all_but_one_go_on() {
    let scene = Scene::new();
    let [tcp, host, unix] = three_ways(&scene);
    let same = |client: &Client| (client.clone(), client.clone());
    for threads in [2, 3] {
        circle(&vec![same(&tcp); threads]);
        circle(&vec![(tcp.clone(), host.clone()); threads]);
        circle(&vec![(host.clone(), unix.clone()); threads]);
    }
    circle(&[same(&tcp), same(&host), same(&unix)]);
    circle(&[same(&unix), same(&tcp)]);
    circle(&[
        (tcp.clone(), host.clone()),
        (unix.clone(), tcp.clone()),
        (host, unix),
    ]);
    assert_eq!(entries(&tcp), 0);
}

/// The circle leads through a thread that waits in the process only, behind another that asks the server for it.
#[test]
fn a_circle_is_found_behind_a_thread_that_asks_for_others() {
    let scene = Scene::new();
    let ways = three_ways(&scene);
    let twin = scene.outsider();
    // Within one client, from one to another, and to one that calls the server by another name.
    for (here, there) in [
        (&ways[0], &ways[0]),
        (&ways[0], &twin),
        (&ways[0], &ways[1]),
    ] {
        let (mine, theirs) = (here.mutex("mine"), there.mutex("theirs"));
        let first = mine.lock().unwrap();
        let before = entries(there);
        // It asks the server for what this thread holds.
        let asks = waiting(there, "mine");
        if std::ptr::eq(here, there) {
            eventually(BOUND, "it waits", || entries(there) > before);
        } else {
            registered(&ways[2], "mine", 1);
        }
        let (says, holds) = unbounded();
        let behind = thread::spawn({
            let (theirs, mine) = (theirs.clone(), there.mutex("mine"));
            move || {
                let own = theirs.lock().unwrap();
                says.send(()).unwrap();
                let outcome = mine.lock().map(drop).map_err(|e| e.kind());
                own.unlock().unwrap();
                outcome
            }
        });
        holds.recv_timeout(BOUND).unwrap();
        // Whichever of the two comes last is refused: the thread behind, or this one.
        let start = Instant::now();
        let outcome = here.mutex("theirs").try_lock_for(REFUSED * 2).map(drop);
        assert!(
            start.elapsed() < REFUSED,
            "{outcome:?} after {:?}",
            start.elapsed()
        );
        first.unlock().unwrap();
        let behind = joined(behind);
        let refused = [outcome.map_err(|e| e.kind()), behind];
        assert!(refused.contains(&Err(ErrorKind::Deadlock)), "{refused:?}");
        assert!(refused.contains(&Ok(())), "{refused:?}");
        joined(asks);
    }
    for client in &ways {
        assert_eq!(entries(client), 0);
    }
}

/// An owned guard may be given back by any thread: whoever locks it again waits, and is told of no circle.
#[test]
fn an_owned_guard_is_no_threads_own() {
    let scene = Scene::new();
    for client in three_ways(&scene) {
        let mutex = client.mutex("owned");
        let owned = mutex.lock().unwrap().into_owned();
        for other in three_ways(&scene) {
            let waited = other.mutex("owned").try_lock_for(Duration::from_millis(50));
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        let (says, waits) = unbounded();
        let giver = thread::spawn(move || {
            waits.recv_timeout(BOUND).unwrap();
            owned.unlock().unwrap();
        });
        says.send(()).unwrap();
        mutex.lock().unwrap().unlock().unwrap();
        joined(giver);
        assert_eq!(entries(&client), 0);
    }
}

/// A lost hold keeps nobody out of its own process: gate and table forget it at once, while its guard lives.
#[test]
fn a_lost_hold_makes_room_in_its_process_at_once() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.mutex("lost");
    // By a test, by the server's word, and by the clock alone.
    let losses: [&dyn Fn(&leasehold::Lease); 3] = [
        &lose,
        &|lease| {
            scene.ask::<()>("DEL lost");
            lease.verify().unwrap_err();
        },
        &|lease| {
            leasehold::testing::suspend(&client, Duration::from_secs(31));
            assert!(!lease.is_held());
            scene.ask::<()>("DEL lost");
        },
    ];
    for lose in losses {
        let guard = mutex.lock().unwrap();
        let other = waiting(&client, "lost");
        eventually(BOUND, "it waits", || entries(&client) == 3);
        lose(&guard);
        // The thread that waited gets it, and then this one, which still has the old guard.
        joined(other);
        let again = mutex.lock().unwrap();
        assert!(again.fencing_token() > guard.fencing_token());
        // The old one's end takes nothing from the new one.
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
        again.verify().unwrap();
        assert_eq!(mutex.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(mutex.lock().unwrap_err().kind(), ErrorKind::Deadlock);
        again.unlock().unwrap();
        assert_eq!(entries(&client), 0);
    }
}
