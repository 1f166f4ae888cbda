//! A wait lasts as long as was asked, whatever the server does.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, Wait};

use super::{BOUND, joined, registered, waiting};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, one_of};

/// What is promised: 10 % and 20 ms over, and not a moment too soon.
fn kept(asked: Duration, took: Duration) -> Result<(), String> {
    let most = asked + asked / 10 + Duration::from_millis(20);
    match took >= asked && took <= most {
        true => Ok(()),
        false => Err(format!("asked for {asked:?}, took {took:?}")),
    }
}

/// What a server, or the way to it, may do to a waiter.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Killed,
    Refusing,
    Silent,
    BlackHole,
    /// Answers all but this.
    NoSubscribe,
    NoAcquire,
    NoRegistration,
    NoLeave,
    /// Its answer to each acquire takes longer than one wait.
    Slow,
    /// All is well but that somebody else has the lock.
    None,
}

const FAULTS: [Fault; 10] = [
    Fault::Killed,
    Fault::Refusing,
    Fault::Silent,
    Fault::BlackHole,
    Fault::NoSubscribe,
    Fault::NoAcquire,
    Fault::NoRegistration,
    Fault::NoLeave,
    Fault::Slow,
    Fault::None,
];

fn bring_about(scene: &Scene, fault: Fault) {
    let drop = |matches: fn(&Command) -> bool| {
        scene
            .proxy
            .rule(matches, Action::DropRequest, Times::Always);
    };
    match fault {
        Fault::Killed => scene.server.kill().unwrap(),
        Fault::Refusing => {
            scene.proxy.refuse(true);
            scene.proxy.cut();
        }
        Fault::Silent => scene.server.pause().unwrap(),
        Fault::BlackHole => scene.proxy.black_hole(true),
        Fault::NoSubscribe => drop(|c| c.name() == "SUBSCRIBE"),
        Fault::NoAcquire => drop(|c| c.runs("acquire")),
        Fault::NoRegistration => drop(Command::registers),
        Fault::NoLeave => drop(|c| c.runs("leave")),
        Fault::Slow => {
            let slow = Action::DelayReply(Duration::from_secs(30));
            scene.proxy.rule(|c| c.runs("acquire"), slow, Times::Always);
        }
        Fault::None => {}
    }
}

/// Several lengths: the limits of single steps (connecting, one answer, waiting for the subscription) lie between them.
const LENGTHS: [Duration; 5] = [
    Duration::from_millis(60),
    Duration::from_millis(400),
    Duration::from_millis(930),
    Duration::from_millis(1730),
    Duration::from_millis(2200),
];

/// redisson#2790, #2801, #543: a bounded try hangs when the server is down or the subscription stalls. Invariant 4.
#[test]
fn a_bounded_wait_keeps_its_bound_whatever_the_server_does() {
    thread::scope(|scope| {
        for fault in FAULTS {
            scope.spawn(move || {
                let scene = Scene::new();
                let _holder = scene.outsider().mutex("held").lock().unwrap().into_owned();
                bring_about(&scene, fault);
                let bounded = |asked| {
                    let client = scene.client();
                    let start = Instant::now();
                    let error = client.mutex("held").try_lock_for(asked).unwrap_err();
                    let took = start.elapsed();
                    let unreachable = !matches!(
                        fault,
                        Fault::NoSubscribe | Fault::NoRegistration | Fault::NoLeave | Fault::None
                    );
                    let kind = match unreachable {
                        true => ErrorKind::Unavailable,
                        false => ErrorKind::TimedOut,
                    };
                    // A registration that is not answered is trouble, or not yet, when the time is up.
                    if fault != Fault::NoRegistration && error.kind() != kind {
                        // A machine that is busy for longer than the shortest of these waits makes a server look silent.
                        return Err(format!("{fault:?}: {error}"));
                    }
                    kept(asked, took).map_err(|e| format!("{fault:?}: {e}"))
                };
                thread::scope(|scope| {
                    for asked in LENGTHS {
                        scope.spawn(move || one_of(3, || bounded(asked)));
                    }
                });
                // Before the holder, whose release would wait for a silent one.
                drop(scene);
            });
        }
    });
}

/// redisson#2790, #2801, #543: not even the connection comes about, and nobody says no. (The way to a host that is switched
/// off; here to a server that is stopped, with its queue of connections full.)
#[test]
fn a_bounded_wait_keeps_its_bound_when_its_connection_is_not_answered() {
    let server = Server::start_with(["--tcp-backlog", "1"]).unwrap();
    server.pause().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    let queue: Vec<TcpStream> = (0..100)
        .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
        .collect();
    assert!(queue.len() < 100, "the queue is not full");
    thread::scope(|scope| {
        for asked in LENGTHS {
            let client = server.client();
            scope.spawn(move || {
                one_of(3, || {
                    let start = Instant::now();
                    let error = client.mutex("held").try_lock_for(asked).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    kept(asked, start.elapsed())
                });
            });
        }
    });
}

/// redisson#2790, #2801, #543: the fault comes when the wait is well under way.
#[test]
fn a_bounded_wait_keeps_its_bound_when_the_server_fails_in_its_midst() {
    let asked = Duration::from_millis(1800);
    thread::scope(|scope| {
        for fault in FAULTS {
            scope.spawn(move || {
                one_of(3, || {
                    let scene = Scene::new();
                    let outsider = scene.outsider();
                    let _holder = outsider.mutex("held").lock().unwrap().into_owned();
                    let client = scene.client();
                    let outcome = thread::scope(|scope| {
                        // Two threads: one asks the server, the other waits behind it in the process.
                        let waits = || {
                            let start = Instant::now();
                            client.mutex("held").try_lock_for(asked).unwrap_err();
                            start.elapsed()
                        };
                        let (first, second) = (scope.spawn(waits), scope.spawn(waits));
                        registered(&outsider, "held", 1);
                        bring_about(&scene, fault);
                        kept(asked, first.join().unwrap())?;
                        kept(asked, second.join().unwrap())
                    });
                    drop(scene);
                    outcome.map_err(|e| format!("{fault:?}: {e}"))
                });
            });
        }
    });
}

/// python-redis-lock: each poll restarts the timeout.
#[test]
fn the_whole_wait_is_as_long_as_was_asked_however_often_it_is_woken() {
    let scene = Scene::new();
    let outsider = scene.outsider();
    let asked = Duration::from_millis(1500);
    let _holder = outsider.mutex("busy").lock().unwrap().into_owned();
    let capped = scene.builder().max_wait(asked).build().unwrap();
    let forms: [fn(&Client, Duration) -> ErrorKind; 4] = [
        |client, asked| client.mutex("busy").try_lock_for(asked).unwrap_err().kind(),
        |client, asked| {
            let until = Instant::now() + asked;
            client
                .mutex("busy")
                .try_lock_until(until)
                .unwrap_err()
                .kind()
        },
        |client, asked| {
            let wait = Wait::for_duration(asked);
            client.mutex("busy").lock_with(wait).unwrap_err().kind()
        },
        // By the client's `max_wait`.
        |client, _| client.mutex("busy").lock().unwrap_err().kind(),
    ];
    one_of(3, || {
        let waits = forms.into_iter().enumerate().map(|(n, form)| {
            // A client each, so that all of them ask and are woken for themselves.
            let client = if n == 3 {
                capped.clone()
            } else {
                scene.client()
            };
            thread::spawn(move || {
                let start = Instant::now();
                assert_eq!(form(&client, asked), ErrorKind::TimedOut);
                start.elapsed()
            })
        });
        let waits: Vec<_> = waits.collect();
        let mut direct = scene.raw();
        let mut woken = 0;
        while !waits.iter().all(thread::JoinHandle::is_finished) {
            for inbox in ask::<Vec<String>>(&mut direct, "PUBSUB CHANNELS leasehold:inbox:*") {
                // The first wait of its client has the number 0.
                woken += ask::<u64>(&mut direct, &format!("PUBLISH {inbox} 00000000=busy"));
            }
            thread::sleep(Duration::from_millis(25));
        }
        assert!(woken > 40, "woken {woken} times");
        waits
            .into_iter()
            .try_for_each(|wait| kept(asked, joined(wait)))
    });
}

/// redislock#21: a wait is capped at the ttl.
#[test]
fn a_wait_may_last_three_times_the_ttl() {
    let scene = Scene::new();
    let ttl = Duration::from_secs(1);
    let holding = scene.builder().ttl(ttl).build().unwrap();
    let client = scene.builder().ttl(ttl).build().unwrap();
    let holder = holding.mutex("long").lock().unwrap();
    let bounded = client.mutex("long");
    let bounded = thread::spawn(move || bounded.try_lock_for(ttl * 6).map(drop));
    let unbounded = waiting(&scene.builder().ttl(ttl).build().unwrap(), "long");
    registered(&scene.outsider(), "long", 2);
    let lost = holder.lost().recv_timeout(ttl * 3);
    assert!(lost.is_err_and(|e| e.is_timeout()), "{:?}", holder.check());
    assert!(!bounded.is_finished() && !unbounded.is_finished());
    holder.unlock().unwrap();
    joined(bounded).unwrap();
    joined(unbounded);
}

/// redisson#543, the other way round: a wait without a bound outlives an outage that is shorter than its patience, and ends
/// with an error after one that is longer.
#[test]
fn an_unbounded_wait_rides_out_an_outage_but_not_for_ever() {
    let scene = Scene::new();
    let client = scene.builder().ttl(Duration::from_secs(1)).build().unwrap();
    scene.server.kill().unwrap();
    let start = Instant::now();
    let hopeless = {
        let client = client.clone();
        thread::spawn(move || (client.mutex("gone").lock().map(drop), start.elapsed()))
    };
    let other = Scene::new();
    other.server.kill().unwrap();
    let patient = waiting(&other.client(), "back");
    eventually(BOUND, "it has tried twice", || {
        other.proxy.connections_total() >= 2
    });
    other.server.restart().unwrap();
    joined(patient);
    // At least 5 s, the ttl being shorter.
    let (outcome, took) = joined(hopeless);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    let patience = Duration::from_secs(5);
    assert!(took >= patience && took < patience * 2, "{took:?}");
}
