//! From thread to thread of one process, without a word to the server.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{entries, lose, suspend};
use leasehold::{Client, ErrorKind, FencingToken, Lease, Mutex, MutexGuard, Predecessor};
use parking_lot::Mutex as Local;

use super::{BOUND, joined, registered};
use crate::support::child::{Child, args, say};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

/// One thread holds it through `holder`, while another waits through `waiter`; it gives it back in the way that `end` does.
/// What the other one found.
fn handed<T: Send>(
    client: &Client,
    holder: &Mutex,
    waiter: &Mutex,
    end: impl FnOnce(MutexGuard) + Send,
    found: impl FnOnce(&Lease) -> T + Send,
) -> T {
    // Whoever finds nobody waiting reserves no tokens for others: so both wait for a third one.
    let first = holder.lock().unwrap();
    thread::scope(|scope| {
        let waits = |before: usize| {
            eventually(BOUND, "it waits", || entries(client) > before);
            // Its entry among those who wait comes just before its place at the gate.
            thread::sleep(Duration::from_millis(10));
        };
        let before = entries(client);
        let second = scope.spawn(|| end(holder.lock().unwrap()));
        waits(before);
        let before = entries(client);
        let third = scope.spawn(|| found(&waiter.lock().unwrap()));
        waits(before);
        // Nobody was there when it was granted: so it is not handed on, but what comes of it is.
        drop(first);
        second.join().unwrap();
        third.join().unwrap()
    })
}

fn is_gone(scene: &Scene, name: &str) -> bool {
    scene.ask::<u64>(&format!("EXISTS {name}")) == 0
}

/// The last fencing token that the server knows of.
fn last_token(scene: &Scene, name: &str) -> u64 {
    let state: String = scene.ask(&format!("GET {{{name}}}:lh:s"));
    state[3..19].parse().unwrap()
}

/// One at a time, each with a higher token, and nearly all of them without a command. When the last one is back its key is gone,
/// and what was not used of the tokens is free again. Invariant 9.
#[test]
fn threads_hand_it_on_with_rising_tokens_and_hardly_a_command() {
    const THREADS: usize = 8;
    const EACH: usize = 2000;
    let scene = Scene::new();
    let client = scene.client();
    let inside = AtomicU32::new(0);
    let tokens = Local::new(Vec::<FencingToken>::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mutex = client.mutex("hot");
                for _ in 0..EACH {
                    let guard = mutex.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokens.lock().push(guard.fencing_token());
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                }
            });
        }
    });
    let tokens = tokens.into_inner();
    assert_eq!(tokens.len(), THREADS * EACH);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise");
    let sent = scene
        .proxy
        .count(|c| c.runs("acquire") || c.runs("release"));
    assert!(sent * 4 < tokens.len(), "{sent} commands");
    assert!(is_gone(&scene, "hot"));
    assert_eq!(last_token(&scene, "hot"), tokens[tokens.len() - 1].get());
    assert_eq!(entries(&client), 0);
    let next = scene.outsider().mutex("hot").lock().unwrap();
    assert!(next.fencing_token() > tokens[tokens.len() - 1]);
    assert_eq!(next.predecessor(), &Predecessor::Clean);
}

/// Another process is not kept waiting, however busy the threads of this one are, and whether or not it can be told of.
#[test]
fn other_processes_are_not_overlooked() {
    let scene = Scene::new();
    scene.ask::<()>("ACL SETUSER deaf on >secret ~* +@all resetchannels");
    let deaf = format!("redis://deaf:secret@127.0.0.1:{}/", scene.proxy.port());
    let (hears, deaf) = (scene.client(), Client::open(&deaf).unwrap());
    // A block of tokens lasts for a moment, or for eight seconds: nothing but the bound ends it in time then.
    let long = Duration::from_millis(8);
    for (who, busy, section, times) in [
        ("one that hears", &hears, Duration::ZERO, 8),
        ("a deaf one", &deaf, Duration::ZERO, 6),
        ("one that hears, for long", &hears, long, 4),
        ("a deaf one, for long", &deaf, long, 3),
    ] {
        let (stop, had) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mutex = busy.mutex("hot");
                    while !stop.load(Ordering::Relaxed) {
                        let _guard = mutex.lock().unwrap();
                        if !section.is_zero() {
                            thread::sleep(section);
                        }
                        had.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let other = scene.outsider().mutex("hot");
            let waited: Vec<_> = (0..times)
                .map(|_| {
                    let before = had.load(Ordering::Relaxed);
                    eventually(BOUND, "they are at it", || {
                        had.load(Ordering::Relaxed) > before + 12
                    });
                    let start = Instant::now();
                    drop(other.lock().unwrap());
                    start.elapsed()
                })
                .collect();
            stop.store(true, Ordering::Relaxed);
            // It is about ten milliseconds; where nobody may tell it that it is free, up to a poll.
            let late = waited.iter().filter(|w| **w > Duration::from_secs(2));
            assert_eq!(late.count(), 0, "{who}: {waited:?}");
        });
    }
}

/// Whoever does not want it has it off.
#[test]
fn with_a_bound_of_nothing_nothing_is_handed_on() {
    let scene = Scene::new();
    let client = scene
        .builder()
        .local_hand_over(Duration::ZERO)
        .build()
        .unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mutex = client.mutex("off");
            thread::spawn(move || (0..50).for_each(|_| drop(mutex.lock().unwrap())))
        })
        .collect();
    threads.into_iter().for_each(joined);
    assert_eq!(scene.proxy.count(|c| c.runs("release")), 200);
}

/// It belongs to the hold how it is held: who wants another kind of hold gets one of his own.
#[test]
fn only_the_same_kind_of_hold_is_handed_on() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.mutex("same");
    let long = Duration::from_secs(60);
    type Other = fn(Mutex, Duration) -> Mutex;
    let others: [(Other, bool); 5] = [
        (|m, _| m, true),
        (Mutex::with_ttl, false),
        (Mutex::with_fixed_lease, false),
        (Mutex::with_max_hold, false),
        (Mutex::with_hold_at_least, false),
    ];
    for (n, (other, same)) in others.into_iter().enumerate() {
        let other = match n {
            4 => other(mutex.clone(), Duration::from_millis(1)),
            _ => other(mutex.clone(), long),
        };
        let acquires = || scene.proxy.count(|c| c.runs("acquire"));
        for (holder, waiter) in [(&mutex, &other), (&other, &mutex)] {
            scene.proxy.reset_counts();
            let left = handed(&client, holder, waiter, drop, |_| {
                scene.ask::<u64>("PTTL same")
            });
            let asked = acquires();
            eventually(BOUND, "its key is gone", || is_gone(&scene, "same"));
            // The first two are never handed on.
            assert_eq!(asked == 2, same, "case {n}: {asked} acquires");
            let wants_long = std::ptr::eq(waiter, &other) && (n == 1 || n == 2);
            assert_eq!(left > 40_000, wants_long, "case {n}: {left} ms");
        }
    }
    // Two handles with the same options of their own are the same; two that never are handed on are not.
    let fixed = mutex.with_fixed_lease(long);
    scene.proxy.reset_counts();
    handed(&client, &fixed, &fixed.clone(), drop, |_| ());
    assert_eq!(scene.proxy.count(|c| c.runs("acquire")), 3);
}

/// As from process to process: the next one learns how the last one ended, and whose it was.
#[test]
fn a_panic_is_told_to_the_next_thread_and_after_it_to_the_next_process() {
    let scene = Scene::new();
    let client = scene.builder().holder_label("who").build().unwrap();
    let mutex = client.mutex("panic");
    let token = Local::new(None);
    let panics = |guard: MutexGuard| {
        *token.lock() = Some((guard.fencing_token(), thread::current().id()));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(caught.is_err());
    };
    let (own, found) = handed(&client, &mutex, &mutex, panics, |lease| {
        (lease.fencing_token(), lease.predecessor().clone())
    });
    let (panicked, thread) = token.lock().take().unwrap();
    assert!(own > panicked);
    let Predecessor::Panicked { token, label, .. } = &found else {
        panic!("{found:?}");
    };
    assert_eq!(*token, panicked);
    assert!(
        label.starts_with("who@") && label.ends_with(&format!("/{thread:?}")),
        "{label}"
    );
    // Clean again after that, also for others.
    let next = scene.outsider().mutex("panic").lock().unwrap();
    assert_eq!(next.predecessor(), &Predecessor::Clean);
    drop(next);

    // The last of several threads panics: that is what the next process learns, not who began.
    let last = Local::new(None);
    let dies = |lease: &Lease| {
        *last.lock() = Some((lease.fencing_token(), thread::current().id()));
        std::panic::resume_unwind(Box::new("on purpose"));
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        handed(&client, &mutex, &mutex, drop, dies);
    }));
    assert!(caught.is_err());
    let (panicked, thread) = last.lock().take().unwrap();
    let next = scene.outsider().mutex("panic").lock().unwrap();
    assert!(next.fencing_token() > panicked);
    let Predecessor::Panicked { token, label, .. } = next.predecessor() else {
        panic!("{:?}", next.predecessor());
    };
    assert_eq!(*token, panicked);
    assert!(label.ends_with(&format!("/{thread:?}")), "{label}");
}

/// Who gives up when it is being handed to him leaves it to the next, or takes it back to the server.
#[test]
fn one_that_gives_up_in_that_moment_leaves_nothing_behind() {
    let scene = Scene::new();
    let client = scene.outsider();
    let until = Instant::now() + Duration::from_secs(2);
    let inside = AtomicU32::new(0);
    let (had, gave_up) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for t in 0..8_u64 {
            let (client, inside, had, gave_up) = (&client, &inside, &had, &gave_up);
            scope.spawn(move || {
                let mutex = client.mutex("brief");
                for round in 0.. {
                    if Instant::now() >= until {
                        break;
                    }
                    // Two hold it for a while, the others come and go.
                    let patience = Duration::from_micros(20 + (t * 211 + round * 37) % 900);
                    match mutex.try_lock_for(patience) {
                        Ok(guard) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            if t < 2 {
                                thread::sleep(Duration::from_micros(100));
                            }
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                            drop(guard);
                            had.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(e) => {
                            assert!(e.is_busy() || e.kind() == ErrorKind::Unavailable, "{e}");
                            gave_up.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (had, gave_up) = (had.into_inner(), gave_up.into_inner());
    assert!(
        had > 200 && gave_up > 200,
        "{had} had it, {gave_up} gave up"
    );
    assert_eq!(entries(&client), 0);
    eventually(BOUND, "its key is gone", || is_gone(&scene, "brief"));
}

/// What is lost is not handed on.
#[test]
fn a_lost_hold_is_not_handed_on() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.mutex("lost");
    let loses = |guard: MutexGuard| {
        lose(&guard);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
    };
    let found = handed(&client, &mutex, &mutex, loses, |lease| {
        lease.verify().unwrap();
        lease.predecessor().clone()
    });
    assert!(matches!(found, Predecessor::Abandoned { .. }), "{found:?}");
    assert_eq!(scene.proxy.count(|c| c.runs("acquire")), 3);
}

/// With less than half of its lease left it goes back to the server.
#[test]
fn little_of_a_lease_is_not_handed_on() {
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.mutex("little");
    let waits = |guard: MutexGuard| {
        suspend(&client, Duration::from_secs(16));
        // The renewer may be quicker than we are.
        drop(guard);
    };
    one_of(5, || {
        scene.proxy.reset_counts();
        handed(&client, &mutex, &mutex, waits, |lease| {
            assert!(lease.remaining() > Duration::from_secs(15));
        });
        match scene.proxy.count(|c| c.runs("acquire")) {
            3 => Ok(()),
            n => Err(format!("{n} acquires")),
        }
    });
}

/// For as long as it goes round it is renewed, whoever has it.
#[test]
fn what_goes_round_for_longer_than_its_ttl_is_renewed() {
    let scene = Scene::new();
    let client = scene
        .builder()
        .ttl(Duration::from_millis(600))
        .build()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    let inside = AtomicU32::new(0);
    let had = thread::scope(|scope| {
        let work = || {
            let mutex = client.mutex("round");
            let mut had = 0;
            while Instant::now() < until {
                let guard = mutex.lock().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                thread::sleep(Duration::from_millis(70));
                guard.check().unwrap();
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                drop(guard);
                had += 1;
            }
            had
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .sum::<usize>()
    });
    let asked = scene.proxy.count(|c| c.runs("acquire"));
    assert!(asked < had / 2, "{asked} acquires for {had} holds");
    assert!(client.metrics().renewals > 3, "{:?}", client.metrics());
    assert_eq!(client.metrics().lost, 0);
}

/// The re-entrant one likewise, with all of its nested guards.
#[test]
fn a_reentrant_mutex_is_handed_on_when_its_last_guard_goes() {
    let scene = Scene::new();
    let client = scene.client();
    let inside = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mutex = client.reentrant_mutex("again");
                for _ in 0..500 {
                    let outer = mutex.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    let inner = mutex.lock().unwrap();
                    assert_eq!(inner.fencing_token(), outer.fencing_token());
                    drop(outer);
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    drop(inner);
                }
            });
        }
    });
    let sent = scene.proxy.count(|c| c.runs("acquire"));
    assert!(sent < 1000, "{sent} acquires for 2000 holds");
    assert!(is_gone(&scene, "again"));
    // A plain Mutex of that name is another kind of hold.
    assert_eq!(entries(&client), 0);
}

/// Nobody starves.
#[test]
fn every_thread_has_its_turn() {
    let scene = Scene::new();
    let client = scene.outsider();
    one_of(3, || {
        let until = Instant::now() + Duration::from_millis(500);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mutex = client.mutex("fair enough");
                thread::spawn(move || {
                    let mut had = 0_u32;
                    while Instant::now() < until {
                        drop(mutex.lock().unwrap());
                        had += 1;
                    }
                    had
                })
            })
            .collect();
        let had: Vec<u32> = threads.into_iter().map(joined).collect();
        let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
        match least * 3 >= *most {
            true => Ok(()),
            false => Err(format!("{had:?}")),
        }
    });
}

/// A process whose threads hand a lock on, until it is killed; it says each token that it has seen.
pub(crate) fn hand_on() {
    let [url] = &args()[..] else { panic!("a url") };
    let client = Client::builder()
        .url(url)
        .ttl(Duration::from_secs(1))
        .build()
        .unwrap();
    let highest = Local::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mutex = client.mutex("killed");
                loop {
                    let guard = mutex.lock().unwrap();
                    let mut highest = highest.lock();
                    *highest = guard.fencing_token().get();
                    if *highest % 16 == 0 {
                        say(highest.to_string());
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
}

/// Killed in the midst of it: the next process learns that somebody died, and has a token above all of them.
#[test]
fn a_process_that_is_killed_while_it_hands_it_on_is_found_to_have_abandoned_it() {
    let scene = Scene::new();
    let mut child = Child::role("waiting/hand_on");
    child = child.arg(scene.server.url());
    let mut child = child.spawn();
    let mut seen: u64 = child.expect_line(BOUND).parse().unwrap();
    for _ in 0..5 {
        seen = seen.max(child.expect_line(BOUND).parse().unwrap());
    }
    let mut raw = scene.raw();
    // In the midst of a section, which is nearly always.
    one_of(20, || {
        child.stop();
        match ask::<u64>(&mut raw, "EXISTS killed") {
            1 => Ok(()),
            _ => {
                child.cont();
                Err("it was free".into())
            }
        }
    });
    child.kill();
    while let Some(line) = child.try_line(Duration::from_millis(100)) {
        seen = seen.max(line.parse().unwrap());
    }
    let client = scene.client();
    let next = client.mutex("killed").try_lock_for(BOUND).unwrap();
    assert!(next.fencing_token().get() > seen);
    assert!(
        matches!(next.predecessor(), Predecessor::Abandoned { .. }),
        "{:?}",
        next.predecessor()
    );
}

/// What it is while it is handed on can be seen by others as ever.
#[test]
fn others_see_who_holds_it() {
    let scene = Scene::new();
    let client = scene.builder().holder_label("inside").build().unwrap();
    let mutex = client.mutex("seen");
    let info = handed(&client, &mutex, &mutex, drop, |_| {
        scene.outsider().mutex("seen").inspect().unwrap()
    });
    assert!(info.held);
    assert_eq!(info.kind, "mutex");
    assert!(info.holder.unwrap().starts_with("inside@"));
    // One who begins to wait is told of, and gets it.
    let guard = mutex.lock().unwrap().into_owned();
    let other = scene.outsider();
    let waits = super::waiting(&other, "seen");
    registered(&other, "seen", 1);
    guard.unlock().unwrap();
    joined(waits);
}
