//! Replies that no server of ours gives, in the place of every script's: an error, never a panic, and nothing left behind.
//!
//! In processes of their own, where a panic of any thread can be counted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, Mutex};

use crate::support::ask::{
    BOUND, ask, elsewhere, is_acquire, is_leave, is_look, is_release, is_renewal, timed,
};
use crate::support::child::{Child, args, say};
use crate::support::proxy::{Action, Command, Proxy, RuleHandle, Times};
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[(&str, fn())] = &[("bad_replies/play", play)];

const WAIT: Duration = Duration::from_millis(150);
const IO: Duration = Duration::from_millis(150);

/// Well-formed and wrong, and not even that.
fn wrong_replies() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        "$-1\r\n",
        "*-1\r\n",
        "_\r\n",
        ":7\r\n",
        ":-7\r\n",
        ":9223372036854775807\r\n",
        "*0\r\n",
        "*1\r\n:7\r\n",
        "*2\r\n$-1\r\n*0\r\n",
        "*2\r\n:1\r\n$3\r\nabc\r\n",
        "*2\r\n:0\r\n*0\r\n",
        "*2\r\n:-2\r\n:5\r\n",
        "*2\r\n:-3\r\n$0\r\n\r\n",
        "*5\r\n*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n",
        "*5\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n",
        "+OK\r\n",
        "$0\r\n\r\n",
        "$5\r\nhello\r\n",
        "$33\r\n1796000000000000X1796000000000000\r\n",
        "$33\r\n-79600000000000AA-796000000000000\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "%1\r\n$1\r\na\r\n:1\r\n",
        "~1\r\n:1\r\n",
        "-\r\n",
        "-ERR\r\n",
        "nonsense\r\n",
        "\r\n\r\n",
        "*x\r\n",
        ":\r\n",
        "$3\r\nabcdef\r\n",
    ]
    .map(|reply| reply.as_bytes().to_vec())
    .into();
    // Not UTF-8, cut in the middle of a letter; promises that are not kept; deeper than any stack.
    all.push(b"$34\r\n\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7\xf6\xf5\xf4\xf3\xf2\xf1\xf0\xc3A\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\r\n".to_vec());
    all.push(b"$100\r\nshort\r\n".to_vec());
    all.push([b"*1\r\n".repeat(100_000), b":1\r\n".to_vec()].concat());
    all.push(b"\0\xff\xfe\x80".to_vec());
    all
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn play() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(info);
    }));
    let server = Server::start().unwrap();
    let bench = Bench::before(&server);
    bench.teach();
    match args()[0].as_str() {
        "acquire" => acquires(&bench),
        "dead" => dead_tokens(&bench),
        "renew" => renewals(&bench),
        "release" => releases(&bench),
        "look" => looks(&bench),
        "leave" => leaves(&bench),
        "subscribe" => subscriptions(&bench),
        other => panic!("no part {other}"),
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a thread has panicked");
    say("played");
}

fn played(part: &str) {
    let mut child = Child::role("bad_replies/play").arg(part).spawn();
    child.wait_for("played", 6 * BOUND);
    assert!(child.wait(BOUND).expect("it ends").success());
}

struct Bench<'a> {
    server: &'a Server,
    proxy: Proxy,
}

impl Bench<'_> {
    fn before(server: &Server) -> Bench<'_> {
        let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
        Bench { server, proxy }
    }

    fn client(&self) -> Client {
        let builder = Client::builder().url(&self.proxy.url());
        builder
            .io_timeout(IO)
            .connect_timeout(2 * IO)
            .build()
            .unwrap()
    }

    /// Every script, so that what a server answers wrongly is what it has carried out.
    fn teach(&self) {
        let (one, two) = (self.client(), self.server.client());
        let fixed = one.mutex("job").with_fixed_lease(BOUND).lock().unwrap();
        fixed.extend(BOUND).unwrap();
        fixed.verify().unwrap();
        assert!(elsewhere(|| two.mutex("job").try_lock_for(WAIT).map(drop)).is_err());
        fixed.unlock().unwrap();
        assert!(!one.mutex("job").force_unlock().unwrap());
    }

    fn always(&self, matches: fn(&Command) -> bool, reply: &[u8]) -> RuleHandle {
        let action = Action::ReplaceReply(reply.to_vec());
        self.proxy.rule(matches, action, Times::Always)
    }

    fn exists(&self, key: &str) -> bool {
        ask(&mut raw(&self.server.url()), &format!("EXISTS {key}"))
    }
}

fn show(reply: &[u8]) -> String {
    String::from_utf8_lossy(&reply[..reply.len().min(60)])
        .escape_debug()
        .to_string()
}

#[track_caller]
fn assert_kind(reply: &[u8], kind: ErrorKind) {
    let known = matches!(kind, ErrorKind::Script | ErrorKind::Unavailable);
    assert!(known, "{} gave {kind:?}", show(reply));
}

fn acquires(bench: &Bench<'_>) {
    for reply in wrong_replies() {
        let client = bench.client();
        let mutex = client.mutex("job");
        drop(mutex.lock().unwrap());
        let rule = bench.always(is_acquire, &reply);
        for _ in 0..2 {
            let (took, error) = timed(|| mutex.try_lock_for(WAIT).unwrap_err());
            assert_kind(&reply, error.kind());
            assert_eq!(error.name(), Some("job"));
            assert!(took < Duration::from_secs(2), "{}: {took:?}", show(&reply));
        }
        let error = mutex.try_lock().unwrap_err();
        assert_kind(&reply, error.kind());
        rule.remove();
        eventually(BOUND, "no key stays of what was granted unseen", || {
            !bench.exists("job")
        });
        let guard = mutex.try_lock_for(BOUND);
        let guard = guard.unwrap_or_else(|e| panic!("after {}: {e}", show(&reply)));
        guard.unlock().unwrap();
        assert_eq!(client.metrics().renewals, 0);
    }
}

/// "That token is dead", to every token there is.
fn dead_tokens(bench: &Bench<'_>) {
    let client = bench.client();
    let mutex = client.mutex("job");
    // Held, so that what is answered in place of the truth hides no grant.
    let guard = bench
        .server
        .client()
        .mutex("job")
        .lock()
        .unwrap()
        .into_owned();
    for reply in [&b"*1\r\n:-1\r\n"[..], b":-1\r\n"] {
        let rule = bench.always(is_acquire, reply);
        for wait in [None, Some(Duration::ZERO), Some(WAIT)] {
            bench.proxy.reset_counts();
            let (took, error) = timed(|| match wait {
                None => mutex.try_lock().unwrap_err(),
                Some(wait) => mutex.try_lock_for(wait).unwrap_err(),
            });
            assert_kind(reply, error.kind());
            assert!(took < Duration::from_secs(2), "{took:?}");
            let asked = bench.proxy.count(is_acquire);
            assert!(asked <= 20, "asked {asked} times");
        }
        rule.remove();
    }
    guard.unlock().unwrap();
    mutex.try_lock().unwrap().unlock().unwrap();
}

fn renewals(bench: &Bench<'_>) {
    // At the same time, each with a client of its own: what breaks one connection must not be another's excuse.
    let ttl = Duration::from_secs(3);
    let one = |n: usize, reply: &[u8]| {
        let client = bench.client();
        let name = format!("job-{n}-");
        let guard = client.mutex(&*name).with_ttl(ttl).lock().unwrap();
        let of_it = name.clone();
        let rule = bench.proxy.rule(
            move |c| is_renewal(c) && c.contains(&of_it),
            Action::ReplaceReply(reply.to_vec()),
            Times::N(2),
        );
        assert!(rule.wait_hits(2, BOUND), "{}", show(reply));
        eventually(BOUND, "renewed all the same", || {
            client.metrics().renewals >= 1
        });
        assert!(client.metrics().renewal_failures >= 1, "{}", show(reply));
        guard
            .check()
            .unwrap_or_else(|e| panic!("{}: {e}", show(reply)));
        guard
            .unlock()
            .unwrap_or_else(|e| panic!("{}: {e}", show(reply)));
        let fixed = client
            .mutex(&*name)
            .with_fixed_lease(6 * BOUND)
            .lock()
            .unwrap();
        let of_it = name.clone();
        let rule = bench.proxy.rule(
            move |c| is_renewal(c) && c.contains(&of_it),
            Action::ReplaceReply(reply.to_vec()),
            Times::Always,
        );
        let error = fixed.extend(BOUND).unwrap_err();
        assert_kind(reply, error.kind());
        // The server has done it, for all we know.
        assert!(fixed.remaining() <= BOUND, "{}", show(reply));
        rule.remove();
    };
    let mut wrong = wrong_replies();
    // Whatever follows it, a zero says "not ours".
    wrong.retain(|reply| !reply.starts_with(b"*2\r\n:0\r\n"));
    thread::scope(|scope| {
        for (n, reply) in wrong.into_iter().enumerate() {
            scope.spawn(move || one(n, &reply));
        }
    });
}

fn releases(bench: &Bench<'_>) {
    for reply in wrong_replies() {
        let client = bench.client();
        for by_drop in [false, true] {
            let guard = client.mutex("job").lock().unwrap();
            let rule = bench.always(is_release, &reply);
            let start = Instant::now();
            if by_drop {
                drop(guard);
            } else {
                let error = guard.unlock().expect_err(&show(&reply));
                assert_kind(&reply, error.kind());
            }
            assert!(start.elapsed() < Duration::from_secs(2), "{}", show(&reply));
            rule.remove();
            eventually(BOUND, "released all the same", || !bench.exists("job"));
        }
        assert_eq!(client.metrics().release_errors, 2, "{}", show(&reply));
        assert_eq!(client.metrics().lost, 0);
    }
}

fn looks(bench: &Bench<'_>) {
    // Whatever follows it, a one or a zero is the answer to force unlock.
    let answers: [&[u8]; 2] = [b"*2\r\n:1\r\n", b"*2\r\n:0\r\n"];
    let mut wrong = wrong_replies();
    wrong.retain(|reply| !answers.iter().any(|answer| reply.starts_with(answer)));
    for reply in wrong {
        let client = bench.client();
        let mutex = client.mutex("job");
        let guard = mutex.lock().unwrap();
        let rule = bench.always(is_look, &reply);
        let calls: [fn(&Mutex) -> leasehold::Result<()>; 3] = [
            |m| m.inspect().map(drop),
            |m| m.is_locked().map(drop),
            |m| m.force_unlock().map(drop),
        ];
        assert_kind(&reply, guard.verify().unwrap_err().kind());
        guard
            .check()
            .unwrap_or_else(|e| panic!("{} ended the hold: {e}", show(&reply)));
        for call in calls {
            // The last of them is carried out, whatever is answered.
            let (took, error) = timed(|| call(&mutex).unwrap_err());
            assert_kind(&reply, error.kind());
            assert_eq!(error.name(), Some("job"));
            assert!(took < Duration::from_secs(2), "{}: {took:?}", show(&reply));
        }
        rule.remove();
        let error = guard.unlock().expect_err(&show(&reply));
        assert_eq!(error.kind(), ErrorKind::NotHeld);
    }
}

/// All at the same time, each with a proxy of its own.
fn each_reply(server: &Server, one: impl Fn(&Bench<'_>, &str, &[u8]) + Sync) {
    thread::scope(|scope| {
        for (n, reply) in wrong_replies().into_iter().enumerate() {
            let one = &one;
            scope.spawn(move || one(&Bench::before(server), &format!("job-{n}"), &reply));
        }
    });
}

fn leaves(bench: &Bench<'_>) {
    let holder = bench.server.client();
    each_reply(bench.server, |bench, name, reply| {
        let guard = holder.mutex(name).lock().unwrap();
        let rule = bench.always(is_leave, reply);
        let client = bench.client();
        let (took, error) = elsewhere(|| timed(|| client.mutex(name).try_lock_for(WAIT).map(drop)));
        // On a machine that is busy for all of so short a wait the server looks silent.
        let kind = error.unwrap_err().kind();
        let known = [ErrorKind::TimedOut, ErrorKind::Unavailable];
        assert!(known.contains(&kind), "{}: {kind:?}", show(reply));
        assert!(took < Duration::from_secs(5), "{}: {took:?}", show(reply));
        rule.remove();
        let gone = || holder.mutex(name).inspect().unwrap().waiters == 0;
        eventually(BOUND, "it has left", gone);
        guard.unlock().unwrap();
    });
}

fn subscriptions(bench: &Bench<'_>) {
    let holder = bench.server.client();
    each_reply(bench.server, |bench, name, reply| {
        bench.always(|c| c.name() == "SUBSCRIBE", reply);
        let client = bench.client();
        let guard = holder.mutex(name).lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.mutex(name).try_lock_for(3 * BOUND).map(drop));
            eventually(BOUND, "it waits", || bench.proxy.count(is_acquire) > 0);
            guard.unlock().unwrap();
            let (took, result) = timed(|| waiter.join().unwrap());
            result.unwrap_or_else(|e| panic!("{}: {e}", show(reply)));
            assert!(took < BOUND, "{}: {took:?}", show(reply));
        });
    });
}

#[test]
fn acquires_that_are_answered_wrongly_are_errors_and_leave_nothing() {
    played("acquire");
}

/// Its answer is to take another token, which must not go on for ever.
#[test]
fn a_server_that_calls_every_token_dead_is_an_error_soon() {
    played("dead");
}

/// Invariant 2: whatever a renewal is answered but "not ours", the hold goes on until its deadline.
#[test]
fn renewals_that_are_answered_wrongly_are_not_known_and_tried_again() {
    played("renew");
}

#[test]
fn releases_that_are_answered_wrongly_are_errors_and_done() {
    played("release");
}

#[test]
fn looks_that_are_answered_wrongly_are_errors_and_end_no_hold() {
    played("look");
}

#[test]
fn waits_whose_end_is_answered_wrongly_end_all_the_same() {
    played("leave");
}

/// Invariant 8: a wake may be lost. A subscription that is answered wrongly is none, and the poll finds the truth.
#[test]
fn subscriptions_that_are_answered_wrongly_cost_time_only() {
    played("subscribe");
}
