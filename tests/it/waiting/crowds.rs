//! Many waiters, many names, few connections.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{Server, entries};
use leasehold::{Canceller, Client, ErrorKind, OwnedMutexGuard, Wait};

use super::{BOUND, joined, registered, waiting};
use crate::support::child::{Child, args, hear, say};
use crate::support::proxy::Command;
use crate::support::scene::{Scene, ask};
use crate::support::wait::{eventually, raw, threads_of_this_process};

const LONG_BOUND: Duration = Duration::from_secs(60);

/// Ten clients that wait for one lock, and each give it back as soon as they have it.
pub(crate) fn ten_clients() {
    let [url, name] = &args()[..] else {
        panic!("a url and a name")
    };
    let clients: Vec<Client> = (0..10).map(|_| Client::open(url).unwrap()).collect();
    let waits: Vec<_> = clients.iter().map(|client| waiting(client, name)).collect();
    for wait in waits {
        joined(wait);
    }
    say("had it ten times");
    // The clients stay, so that none of what is counted is their end.
    hear(LONG_BOUND);
}

/// consul#7523; rueidis#602: everybody wakes at each release, and asks again at once.
#[test]
fn a_hundred_waiters_cost_two_attempts_a_release_and_two_commands_a_second_each() {
    const WAITERS: usize = 100;
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("crowd").lock().unwrap().into_owned();
    let children: Vec<Child> = (0..WAITERS / 10)
        .map(|_| {
            let child = Child::role("waiting/ten_clients");
            child.arg(scene.proxy.url()).arg("crowd").spawn()
        })
        .collect();
    eventually(LONG_BOUND, "all are registered", || {
        outsider.mutex("crowd").inspect().unwrap().waiters == WAITERS as u64
    });

    // Idle: nothing happens but that they look for themselves.
    scene.proxy.reset_counts();
    let start = Instant::now();
    thread::sleep(Duration::from_secs(2));
    let idle = scene.proxy.commands().len();
    let most = (2 * WAITERS) as f64 * start.elapsed().as_secs_f64();
    assert!(idle as f64 <= most, "{idle} commands of idle waiters");
    assert!(idle >= WAITERS, "{idle} commands: do they look at all?");

    scene.proxy.reset_counts();
    let start = Instant::now();
    holder.unlock().unwrap();
    for child in &children {
        child.wait_for("had it ten times", LONG_BOUND);
    }
    let took = start.elapsed();
    let releases = scene.proxy.count(|c| c.runs("release"));
    let attempts = scene.proxy.count(|c| c.runs("acquire"));
    assert_eq!(releases, WAITERS);
    // The holder's release is one more. While the lock goes round, half of them on average still wait, and look.
    let looks = (WAITERS / 2 * 2) as f64 * took.as_secs_f64();
    let most = 2 * (releases + 1) + looks as usize;
    assert!(
        attempts <= most,
        "{attempts} attempts, {releases} releases in {took:?}"
    );
    assert_eq!(outsider.mutex("crowd").inspect().unwrap().waiters, 0);
}

/// In a process of its own, where no other test's threads are counted.
pub(crate) fn thousand_names() {
    const ROUNDS: usize = 10;
    const NAMES: usize = 100;
    let url = &args()[0];
    let mut direct = raw(url);
    let threads = threads_of_this_process();
    let (holding, client) = (Client::open(url).unwrap(), Client::open(url).unwrap());
    for round in 0..ROUNDS {
        let name = |n: usize| format!("{round}:{n}");
        let held: Vec<OwnedMutexGuard> = (0..NAMES)
            .map(|n| holding.mutex(name(n)).lock().unwrap().into_owned())
            .collect();
        let canceller = Canceller::new();
        // A third each get it, give up, and are cancelled.
        let wait = |n: usize| match n % 3 {
            0 => Wait::forever(),
            1 => Wait::for_duration(Duration::from_millis(300)),
            _ => Wait::forever().cancelled_by(&canceller),
        };
        thread::scope(|scope| {
            let waits: Vec<_> = (0..NAMES)
                .map(|n| {
                    let (mutex, wait) = (client.mutex(name(n)), wait(n));
                    scope.spawn(move || mutex.lock_with(wait).map(drop).map_err(|e| e.kind()))
                })
                .collect();
            for n in (0..NAMES).filter(|n| n % 3 != 1) {
                registered(&holding, &name(n), 1);
            }
            let channels: Vec<String> = ask(&mut direct, "PUBSUB CHANNELS *");
            assert_eq!(channels.len(), 1, "one client waits, for {NAMES} names");
            canceller.cancel();
            let outcomes: Vec<_> = waits
                .into_iter()
                .enumerate()
                // Nobody gets it while it is held.
                .filter_map(|(n, wait)| (n % 3 > 0).then(|| wait.join().unwrap().unwrap_err()))
                .collect();
            drop(held);
            // To a hundred waits of 300 ms at once, on a busy machine, the server may look silent.
            let known = [
                ErrorKind::TimedOut,
                ErrorKind::Cancelled,
                ErrorKind::Unavailable,
            ];
            assert!(outcomes.iter().all(|k| known.contains(k)), "{outcomes:?}");
        });
    }
    assert_eq!(client.metrics().acquired, 34 * ROUNDS as u64);
    assert_eq!(entries(&client), 0);
    for n in 0..NAMES {
        // A leave that did not fit into its wait's bound comes a little later.
        eventually(BOUND, "no ticket stays behind", || {
            let state: String = ask(&mut direct, &format!("GET {{0:{n}}}:lh:s"));
            state.ends_with('\n')
        });
    }
    let channels: Vec<String> = ask(&mut direct, "PUBSUB CHANNELS *");
    assert!(channels.len() <= 1);
    let connections = ask::<String>(&mut direct, "CLIENT LIST").lines().count();
    // The pool's eight and three more for each client, and our own.
    assert!(connections <= 2 * (8 + 3) + 1, "{connections} connections");
    drop((client, holding));
    // Much sooner than a listener goes by itself when nobody waits.
    let soon = Duration::from_secs(5);
    eventually(soon, "no channel is left", || {
        ask::<Vec<String>>(&mut direct, "PUBSUB CHANNELS *").is_empty()
    });
    eventually(soon, "no connection but ours is left", || {
        ask::<String>(&mut direct, "CLIENT LIST").lines().count() == 1
    });
    eventually(soon, "all threads ended", || {
        threads_of_this_process() == threads
    });
    let words: Vec<String> = ask(&mut direct, "KEYS *");
    assert!(words.iter().all(|key| key.contains(":lh:")), "{words:?}");
    say("as before");
}

/// redisson#2575, #4064, #3577, #7264: channels, connections and permits of a listener leak. Invariant 10.
#[test]
fn a_thousand_contended_names_leave_no_channel_no_connection_and_no_entry() {
    let server = Server::start().unwrap();
    let child = Child::role("waiting/thousand_names")
        .arg(server.url())
        .spawn();
    child.wait_for("as before", LONG_BOUND);
}

/// go-redis#1798: blocked waiters eat the pool, so that nobody can release. Invariant 7.
#[test]
fn many_waiters_leave_a_pool_of_one_to_those_who_release() {
    const WAITERS: usize = 30;
    let scene = Scene::new();
    let outsider = scene.outsider();
    let client = scene.builder().pool_size(1).build().unwrap();
    let name = |n: usize| format!("pool:{n}");
    let theirs: Vec<OwnedMutexGuard> = (0..WAITERS)
        .map(|n| outsider.mutex(name(n)).lock().unwrap().into_owned())
        .collect();
    let ours = client
        .mutex("ours")
        .with_ttl(Duration::from_millis(1800))
        .lock()
        .unwrap()
        .into_owned();
    // Of one client: some wait at the server, each for a name of its own, some in the process.
    let at_server: Vec<_> = (0..WAITERS).map(|n| waiting(&client, &name(n))).collect();
    let in_process: Vec<_> = (0..WAITERS).map(|_| waiting(&client, "ours")).collect();
    for n in 0..WAITERS {
        registered(&outsider, &name(n), 1);
    }
    // All the time that a renewal needs, too.
    let renewed = ours.lost().recv_timeout(Duration::from_secs(2));
    assert!(renewed.is_err_and(|e| e.is_timeout()), "{:?}", ours.check());
    let start = Instant::now();
    ours.unlock().unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "the release took {took:?}");
    for wait in in_process {
        joined(wait);
    }
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "thirty hand-overs took {took:?}"
    );
    client
        .mutex("another")
        .try_lock()
        .unwrap()
        .unlock()
        .unwrap();
    assert!(at_server.iter().all(|wait| !wait.is_finished()));
    drop(theirs);
    for wait in at_server {
        joined(wait);
    }
    let connections = scene.proxy.connections_total();
    assert!(connections <= 1 + 3, "{connections} connections");
}

/// consul#7523; rueidis#602, within one process: of many threads that wait for one name, one asks for all.
#[test]
fn threads_that_wait_for_one_name_ask_as_one() {
    const THREADS: usize = 40;
    let scene = Scene::new();
    let outsider = scene.outsider();
    let holder = outsider.mutex("as-one").lock().unwrap().into_owned();
    let client = scene.client();
    let waits: Vec<_> = (0..THREADS).map(|_| waiting(&client, "as-one")).collect();
    // Gate, table and inbox for the one that asks, the table alone for the others.
    eventually(BOUND, "all of them wait", || {
        entries(&client) == THREADS + 2
    });
    registered(&outsider, "as-one", 1);
    scene.proxy.reset_counts();
    let start = Instant::now();
    thread::sleep(Duration::from_secs(2));
    let idle = scene.proxy.commands().len();
    let took = start.elapsed();
    assert!(
        idle as f64 <= 2.0 * took.as_secs_f64(),
        "{idle} commands in {took:?}"
    );
    holder.unlock().unwrap();
    for wait in waits {
        joined(wait);
    }
    let asked: HashSet<u64> = scene
        .proxy
        .commands()
        .iter()
        .filter(|c| Command::runs(c, "acquire"))
        .map(|c| c.connection)
        .collect();
    assert!(asked.len() <= 2, "over {} connections", asked.len());
}
