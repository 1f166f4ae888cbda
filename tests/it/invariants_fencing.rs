//! Invariant 9: fencing tokens rise with each acquisition, whatever happens in between.

use std::thread;

use leasehold::testing::{Server, lose};
use leasehold::{Client, FencingToken};

use crate::support::child::{Child, args, say};
use crate::support::locks::{BOUND, Scene, delete, exists, get, ms, pttl, secs};
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[(&str, fn())] = &[("fencing/take_and_note", take_and_note)];

const STATE: &str = "{m}:lh:s";
/// Where the last token stands in a state.
const LAST: std::ops::Range<usize> = 3..19;

/// By a client that has seen no token yet: what it gets is the server's doing alone.
fn next_token(server: &Server) -> FencingToken {
    let guard = server.client().mutex("m").lock().unwrap();
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    token
}

/// Invariant 9: over releases, losses, expiry, force_unlock, keys that are deleted, all data, and the server itself.
#[test]
fn tokens_rise_over_all_that_may_happen_to_a_lock() {
    type Event = fn(&Server, &mut redis::Connection);
    let events: &[(&str, Event)] = &[
        ("nothing but the release", |_, _| {}),
        ("a loss", |server, _| {
            lose(&server.client().mutex("m").lock().unwrap());
        }),
        ("an expiry", |server, raw| {
            let mutex = server.client().mutex("m").with_fixed_lease(ms(50));
            let guard = mutex.lock().unwrap();
            eventually(BOUND, "it runs out", || !exists(raw, "m"));
            drop(guard);
        }),
        ("force_unlock", |server, _| {
            let mutex = server.client().mutex("m");
            let guard = mutex.lock().unwrap();
            assert!(mutex.force_unlock().unwrap());
            drop(guard);
        }),
        ("the word deleted", |server, raw| {
            let guard = server.client().mutex("m").lock().unwrap();
            assert!(delete(raw, "m"));
            drop(guard);
        }),
        ("the state deleted", |_, raw| assert!(delete(raw, STATE))),
        ("the state deleted under the holder", |server, raw| {
            let guard = server.client().mutex("m").lock().unwrap();
            assert!(delete(raw, STATE));
            guard.unlock().unwrap();
        }),
        ("FLUSHALL", |_, raw| {
            redis::cmd("FLUSHALL").exec(raw).unwrap();
        }),
        ("FLUSHALL under the holder", |server, raw| {
            let guard = server.client().mutex("m").lock().unwrap();
            redis::cmd("FLUSHALL").exec(raw).unwrap();
            drop(guard);
        }),
        ("SCRIPT FLUSH", |_, raw| {
            redis::cmd("SCRIPT").arg("FLUSH").exec(raw).unwrap();
        }),
        ("a restart without data", |server, conn| {
            server.restart().unwrap();
            *conn = raw(&server.url());
        }),
        ("a restart without data under the holder", |server, conn| {
            let guard = server.client().mutex("m").lock().unwrap();
            server.restart().unwrap();
            *conn = raw(&server.url());
            drop(guard);
        }),
    ];
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    let mut last = next_token(&server);
    for _ in 0..2 {
        for (what, event) in events {
            event(&server, &mut raw);
            let token = next_token(&server);
            assert!(token > last, "{what}: {token} after {last}");
            last = token;
        }
    }
}

/// Invariant 9: where they come faster than the clock's ticks, too, and over threads and clients.
#[test]
fn tokens_rise_from_holder_to_holder() {
    let bench = Scene::new();
    let seen = parking_lot::Mutex::new(Vec::new());
    let clients = [bench.direct(secs(30)), bench.direct(secs(30))];
    thread::scope(|s| {
        for t in 0..4 {
            let (mutex, seen) = (clients[t % 2].mutex("m"), &seen);
            s.spawn(move || {
                for _ in 0..50 {
                    let guard = mutex.lock().unwrap();
                    seen.lock().push(guard.fencing_token());
                    guard.unlock().unwrap();
                }
            });
        }
    });
    let seen = seen.into_inner();
    assert_eq!(seen.len(), 200);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

/// Takes the lock again and again, and notes the token while it has it.
fn take_and_note() {
    let [url, rounds] = &args()[..] else {
        panic!("two arguments")
    };
    let mut raw = raw(url);
    let client = Client::open(url).unwrap();
    for _ in 0..rounds.parse().unwrap() {
        let guard = client.mutex("m").lock().unwrap();
        let token = guard.fencing_token().get();
        let mut push = redis::cmd("RPUSH");
        push.arg("tokens").arg(token).exec(&mut raw).unwrap();
        guard.unlock().unwrap();
    }
    say("done");
}

/// Invariant 9: over processes.
#[test]
fn tokens_rise_over_processes() {
    let server = Server::start().unwrap();
    let children: Vec<Child> = (0..4)
        .map(|_| {
            let role = Child::role("fencing/take_and_note");
            role.arg(server.url()).arg(40).spawn()
        })
        .collect();
    for child in &children {
        child.wait_for("done", BOUND);
    }
    let mut range = redis::cmd("LRANGE");
    range.arg("tokens").arg(0).arg(-1);
    let tokens: Vec<u64> = range.query(&mut raw(&server.url())).unwrap();
    assert_eq!(tokens.len(), 4 * 40);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// Puts a last token into the state that is so much ahead of the server's clock: as if that had been set back since.
fn set_ahead(raw: &mut redis::Connection, micros: u64) -> FencingToken {
    let state = get(raw, STATE).unwrap();
    let last: u64 = state[LAST].parse().unwrap();
    let ahead = last + micros;
    let state = format!("{}{ahead:016}{}", &state[..LAST.start], &state[LAST.end..]);
    let mut set = redis::cmd("SET");
    set.arg(STATE).arg(state).arg("KEEPTTL").exec(raw).unwrap();
    ahead.into()
}

/// Invariant 9: a server's clock that was set back is no reason for lower tokens.
#[test]
fn tokens_rise_though_the_servers_clock_is_behind() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    next_token(&server);
    let ahead = set_ahead(&mut raw, 3_600_000_000);
    for n in 1..=3 {
        assert_eq!(next_token(&server).get(), ahead.get() + n);
    }
    assert!(pttl(&mut raw, STATE) > 0);
}

/// Invariant 9: a client takes no token below one that it has seen, from a server that has lost its state and whose clock is
/// behind.
#[test]
fn a_client_passes_the_highest_token_that_it_has_seen_as_a_floor() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    let client = server.client();
    let take = |client: &Client, name| {
        let guard = client.mutex(name).lock().unwrap();
        guard.fencing_token()
    };
    take(&client, "m");
    let ahead = set_ahead(&mut raw, 3_600_000_000);
    let seen = take(&client, "m");
    assert!(seen > ahead);
    redis::cmd("FLUSHALL").exec(&mut raw).unwrap();
    let next = take(&client, "m");
    assert!(next > seen, "{next} after {seen}");

    // A clone is the same client; and it was the floor that did it: without one the server would not have known.
    redis::cmd("FLUSHALL").exec(&mut raw).unwrap();
    assert!(take(&client.clone(), "m") > next);
    redis::cmd("FLUSHALL").exec(&mut raw).unwrap();
    assert!(take(&server.client(), "m") < seen);
}

/// Invariant 9: a hold has one token from its beginning to its end, though its acquire was repeated or its state deleted.
#[test]
fn a_hold_keeps_its_token() {
    let bench = Scene::new();
    let client = bench.client_with(secs(1));
    let guard = client.mutex("m").lock().unwrap();
    let token = guard.fencing_token();
    bench.pass_renewals(&guard, 2);
    assert!(delete(&mut bench.raw(), STATE));
    bench.pass_renewals(&guard, 1);
    assert_eq!(guard.fencing_token(), token);
    assert_eq!(guard.lease().fencing_token(), token);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(next_token(&bench.server) > token);
}
