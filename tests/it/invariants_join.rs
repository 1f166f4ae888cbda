//! Invariant 3: the renewer is joined before the release is sent, and its threads are few and end.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use leasehold::Client;
use parking_lot::Mutex;

use crate::support::locks::{
    BOUND, Scene, Script, any, exists, get, ms, of, pttl, script, scripts_run, secs, timed, token,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::eventually;

/// Invariant 3: a renewal that is under way is waited for, and only then the release is sent.
#[test]
fn a_drop_waits_for_the_renewal_that_is_under_way() {
    let bench = Scene::new();
    let delay = ms(300);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let note = |wanted: Script| {
        let arrivals = arrivals.clone();
        let is_it = any(wanted);
        move |command: &_| {
            let is_it = is_it(command);
            if is_it {
                arrivals.lock().push((wanted, Instant::now()));
            }
            is_it
        }
    };
    let action = Action::DelayReply(delay);
    let renewal = bench.proxy.rule(note(Script::Renew), action, Times::Once);
    bench.watch(note(Script::Release));
    let client = bench.client_with(secs(3));
    let guard = client.mutex("m").lock().unwrap();
    assert!(renewal.wait_hit(BOUND));
    // The reply is held back from now on.
    guard.unlock().unwrap();
    let arrivals = arrivals.lock();
    let [(Script::Renew, renewal), (Script::Release, release)] = arrivals[..] else {
        panic!("{arrivals:?}");
    };
    assert!(release - renewal >= delay, "{:?}", release - renewal);
    assert_eq!(client.metrics().renewals, 1);
}

/// Invariant 3: a renewal that is never answered is waited for no longer than it would wait itself, and not started again.
#[test]
fn a_drop_does_not_wait_for_ever_for_a_renewal() {
    let bench = Scene::new();
    let client = bench.client_with(secs(3));
    let witness = client.mutex("witness").lock().unwrap();
    let renewal = bench
        .proxy
        .rule(of(Script::Renew, "m"), Action::DropReply, Times::Always);
    let guard = client.mutex("m").lock().unwrap();
    assert!(renewal.wait_hit(BOUND));
    let (took, ()) = timed(|| drop(guard));
    // A command has a sixth of the ttl, half a second; one try of each kind.
    assert!(took < secs(2), "{took:?}");
    assert!(!exists(&mut bench.raw(), "m"));
    let renewals = bench.renewals("m");
    bench.pass_renewals(&witness, 2);
    assert_eq!(bench.renewals("m"), renewals);
}

/// Invariant 3, redisson#7272, #6844, #1626: dropped just when it is due, again and again: no renewal of a token comes
/// after its release.
#[test]
fn no_renewal_is_sent_after_the_release() {
    // A renewal that timed out may still be on its way at the release, and arrive later: on a machine as busy as that the
    // order at the proxy says nothing, and the rounds are run again.
    let says_something = (0..5).any(|_| rounds_of_drops_when_due());
    assert!(says_something, "renewals timed out each time");
}

/// `false` if renewals timed out, so that the order of arrival is not that of sending.
fn rounds_of_drops_when_due() -> bool {
    let bench = Scene::new();
    let ttl = ms(900);
    let client = bench.client_with(ttl);
    thread::scope(|s| {
        for t in 0..4 {
            let mutex = client.mutex(format!("m{t}"));
            s.spawn(move || {
                for round in 0..6_u64 {
                    let guard = mutex.lock().unwrap();
                    // Due when two thirds are left; a millisecond to either side.
                    let due = ttl * 2 / 3 - (ttl / 100 + ms(2)) + ms(1) - ms(round % 4) / 2;
                    thread::sleep(guard.remaining().saturating_sub(due + ms(2)));
                    while guard.remaining() > due {
                        thread::yield_now();
                    }
                    drop(guard);
                }
            });
        }
    });
    if client.metrics().renewal_failures > 0 {
        return false;
    }
    let mut released: HashMap<String, usize> = HashMap::new();
    let commands = bench.proxy.commands();
    for (at, command) in commands.iter().enumerate() {
        match script(command) {
            Some(Script::Release) => {
                released.entry(token(command)).or_insert(at);
            }
            Some(Script::Renew) => {
                let release = released.get(&token(command));
                assert_eq!(release, None, "renewed at {at}");
            }
            _ => {}
        }
    }
    assert_eq!(released.len(), 24);
    assert_eq!(leasehold::testing::entries(&client), 0);
    true
}

/// Invariant 3: a renewal that was still on its way when its sender gave up makes no key, and touches no successor's.
#[test]
fn a_renewal_that_arrives_after_the_release_does_nothing() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let names = ["free", "retaken"];
    let clients = names.map(|_| bench.client_with(secs(3)));
    let late = bench.proxy.rule(
        any(Script::Renew),
        Action::DelayRequest(ms(1500)),
        Times::N(2),
    );
    let mut guards = Vec::new();
    for (client, name) in clients.iter().zip(names) {
        guards.push(client.mutex(name).lock().unwrap());
    }
    assert!(late.wait_hits(2, BOUND));
    thread::scope(|s| {
        for guard in guards.drain(..) {
            let owned = guard.into_owned();
            s.spawn(move || owned.unlock().unwrap());
        }
    });
    let successor = bench.direct(secs(60)).mutex("retaken").lock().unwrap();
    let token = get(&mut raw, "retaken");
    let before = scripts_run(&mut raw);
    eventually(BOUND, "both renewals arrive", || {
        scripts_run(&mut raw) >= before + 2
    });
    assert!(!exists(&mut raw, "free"));
    assert_eq!(get(&mut raw, "retaken"), token);
    assert!(pttl(&mut raw, "retaken") > 30_000);
    successor.unlock().unwrap();
}

/// Invariant 3: a thread that is parked, or waits for something far off, is woken for a hold that is due sooner.
#[test]
fn a_short_hold_is_renewed_in_time_by_a_thread_that_served_a_long_one() {
    let bench = Scene::new();
    let client = bench.client_with(secs(60));
    let mutex = client.mutex("m");
    let long = mutex.lock().unwrap();
    // Its thread needs a moment to start, and to fall asleep until the hold is due in 20 s.
    thread::sleep(ms(200));
    drop(long);
    let short = mutex.clone().with_ttl(secs(1)).lock().unwrap();
    bench.pass_renewals(&short, 2);
    short.unlock().unwrap();
    // And now it has found out that there is nothing to do.
    thread::sleep(ms(500));
    let short = mutex.with_ttl(secs(1)).lock().unwrap();
    bench.pass_renewals(&short, 2);
    short.unlock().unwrap();
}

/// Invariant 3: a guard keeps what it needs to be renewed and released, though its client and its handle are gone.
#[test]
fn a_guard_that_outlives_its_client_is_renewed_and_released() {
    let bench = Scene::new();
    let client = bench.client_with(secs(1));
    let guard = client.mutex("m").lock().unwrap();
    let lease = guard.lease();
    drop(client);
    bench.pass_renewals(&guard, 2);
    guard.unlock().unwrap();
    assert!(!exists(&mut bench.raw(), "m"));
    eventually(BOUND, "its connections are closed", || {
        bench.proxy.connections() == 0
    });
    // A lease that somebody kept keeps nothing else.
    assert!(lease.check().is_err());
}

#[cfg(target_os = "linux")]
pub(crate) use threads::ROLES;
#[cfg(not(target_os = "linux"))]
pub(crate) const ROLES: &[(&str, fn())] = &[];

/// Exact counts of threads, so in processes of their own; by what Linux says of a process.
#[cfg(target_os = "linux")]
mod threads {
    use std::collections::BTreeSet;
    use std::fs;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::support::child::{Child, args, hear, say};
    use crate::support::wait::thread_names;

    pub(crate) const ROLES: &[(&str, fn())] = &[
        ("join/temporary_handles", temporary_handles),
        ("join/many_holds", many_holds),
        ("join/no_thread", no_thread),
    ];

    /// How many parked threads a client keeps.
    const IDLE: usize = 8;

    fn thread_ids() -> BTreeSet<String> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<fs::DirEntry>| task.unwrap().file_name();
        tasks
            .map(|task| name(task).to_string_lossy().into_owned())
            .collect()
    }

    /// A thread takes its name a moment after it was started.
    fn await_renewers(n: usize) {
        let is_one = |name: &&String| name.as_str() == "leasehold-renew";
        let count = || thread_names().iter().filter(is_one).count();
        eventually(BOUND, &format!("{n} renewers"), || count() == n);
    }

    fn client_of_role() -> Client {
        let [url] = &args()[..] else {
            panic!("one argument")
        };
        Client::builder().url(url).ttl(secs(30)).build().unwrap()
    }

    fn play(role: &str, bench: &Scene) -> Child {
        Child::role(role).arg(bench.proxy.url()).spawn()
    }

    fn temporary_handles() {
        let client = client_of_role();
        drop(client.mutex("warm").lock().unwrap());
        let warm = thread_ids();
        await_renewers(1);
        for i in 0..300 {
            let guard = client.mutex(format!("m{i}")).lock().unwrap();
            assert_eq!(thread_ids(), warm);
            drop(guard);
        }
        assert_eq!(thread_ids(), warm);
        say("done");
    }

    /// Invariant 3: `client.mutex(n).lock()?` with a handle made for the occasion starts no thread.
    #[test]
    fn temporary_handles_start_no_threads() {
        play("join/temporary_handles", &Scene::new()).wait_for("done", BOUND);
    }

    fn many_holds() {
        let before = thread_ids();
        let client = client_of_role();
        client.ping().unwrap();
        let with_client = thread_ids().len();
        for _ in 0..2 {
            let lock = |i| client.mutex(format!("m{i}")).lock().unwrap();
            let guards: Vec<_> = (0..60).map(lock).collect();
            assert_eq!(thread_ids().len(), with_client + 60);
            await_renewers(60);
            drop(guards);
            await_renewers(IDLE);
            eventually(BOUND, "only the idle ones are left", || {
                thread_ids().len() == with_client + IDLE
            });
        }
        // Some contention, so that there is a listener as well, and something to clean up.
        let guard = client.mutex("m").lock().unwrap();
        let other = client_of_role();
        assert!(other.mutex("m").try_lock_for(ms(50)).is_err());
        drop((client, other));
        // The guard keeps what it needs.
        let lease = guard.lease();
        await_renewers(IDLE);
        guard.unlock().unwrap();
        eventually(BOUND, "no thread is left", || thread_ids() == before);
        drop(lease);
        say("done");
    }

    /// Invariants 3 and 10: one thread to a hold, a handful kept in between, none when the client is gone.
    #[test]
    fn threads_are_as_many_as_holds_and_end_with_the_client() {
        let bench = Scene::new();
        play("join/many_holds", &bench).wait_for("done", BOUND);
    }

    fn no_thread() {
        let client = client_of_role();
        client.ping().unwrap();
        let mutex = client.mutex("m");
        let before = getrlimit(Resource::As);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|l| l.strip_prefix("VmSize:"));
        let kib: u64 = size
            .and_then(|s| s.trim().strip_suffix(" kB")?.parse().ok())
            .unwrap();
        // Enough for what is small; a stack is not.
        let tight = Rlimit {
            current: Some(kib * 1024 + 64 * 1024),
            ..before
        };
        setrlimit(Resource::As, tight).unwrap();
        let results = [(); 3].map(|()| mutex.lock());
        setrlimit(Resource::As, before).unwrap();
        for result in results {
            let error = result.unwrap_err();
            say(format!("{:?} {error}", error.kind()));
        }
        assert_eq!(leasehold::testing::entries(&client), 0);
        hear(BOUND);
        mutex.lock().unwrap().unlock().unwrap();
        say("done");
    }

    /// Invariant 3: a lock that nobody can watch is given back, with an error that says why.
    #[test]
    fn a_renewer_that_cannot_be_started_is_an_error_and_the_lock_is_given_back() {
        let bench = Scene::new();
        let mut child = play("join/no_thread", &bench);
        for _ in 0..3 {
            let line = child.expect_line(BOUND);
            assert!(line.starts_with("Unavailable lock \"m\": "), "{line}");
            assert!(line.contains("no renewer thread"), "{line}");
        }
        let granted = bench.proxy.count(any(Script::Acquire));
        assert_eq!(granted, 3);
        assert!(!exists(&mut bench.raw(), "m"));
        assert_eq!(bench.proxy.count(any(Script::Leave)), 3);
        child.send_line("go on");
        child.wait_for("done", BOUND);
        assert_eq!(bench.renewals("m"), 0);
    }
}
