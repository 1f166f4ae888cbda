//! Invariant 4: a token is used once, and an acquire that ends in an error leaves no key and nothing that renews.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use leasehold::testing::{entries, lose};
use leasehold::{Client, ErrorKind, FencingToken, Predecessor};
use redis::Value;

use crate::support::locks::{
    BOUND, Scene, Script, any, delete, exists, get, ms, of, scripts_run, secs, timed, token,
};
use crate::support::proxy::{Action, Command, Times};
use crate::support::wait::eventually;

const IO: Duration = Duration::from_millis(300);

impl Scene {
    /// Its commands have little time, its leases much: no key goes because its ttl runs out.
    fn impatient(&self) -> Client {
        self.builder().io_timeout(IO).build().unwrap()
    }
}

/// Invariant 4: every grant by the server has a token that no other has.
#[test]
fn every_grant_has_a_token_of_its_own() {
    let bench = Scene::new();
    let clients = [bench.client_with(secs(30)), bench.client_with(secs(30))];
    let mut raw = bench.raw();
    let mut seen = HashSet::new();
    for _ in 0..10 {
        for client in &clients {
            let guard = client.mutex("m").lock().unwrap();
            assert!(seen.insert(get(&mut raw, "m").unwrap()));
            guard.unlock().unwrap();
        }
    }
    let sent = bench.proxy.commands();
    let sent = sent.iter().filter(|c| any(Script::Acquire)(c));
    assert_eq!(sent.map(|c| token(c)).collect::<HashSet<_>>(), seen);
}

/// Invariant 4, redisson#5358, #1966, #4109, redlock-rb#76: whatever becomes of an acquire on its way, it ends in a true
/// guard, or in an error and no key.
#[test]
fn an_acquire_ends_in_a_true_guard_or_in_no_key() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let faults = [
        Action::DropRequest,
        Action::DropReply,
        Action::CutBeforeRequest,
        Action::CutBeforeReply,
        Action::DelayReply(IO * 3),
        Action::DuplicateRequest,
        Action::ReplaceReply(b"-NOPERM no permissions to run 'time'\r\n".to_vec()),
        Action::ReplaceReply(b"-ERR something new\r\n".to_vec()),
        Action::ReplaceReply(b"*1\r\n+strange\r\n".to_vec()),
        Action::ReplaceReply(b":1\r\n".to_vec()),
        Action::ReplaceReply(b"$-1\r\n".to_vec()),
    ];
    let mut guards = 0;
    for (i, fault) in faults.iter().enumerate() {
        for warm in [false, true] {
            let name = format!("{i} {warm}");
            let client = bench.impatient();
            if warm {
                client.ping().unwrap();
            }
            let matches = of(Script::Acquire, &name);
            let rule = bench.proxy.rule(matches, fault.clone(), Times::Once);
            let result = client.mutex(&name).try_lock();
            assert!(rule.wait_hit(BOUND));
            match result {
                Ok(guard) => {
                    guards += 1;
                    guard.verify().unwrap();
                    guard.unlock().unwrap();
                }
                Err(e) => assert!(
                    matches!(
                        e.kind(),
                        ErrorKind::Unavailable | ErrorKind::Script | ErrorKind::AccessDenied
                    ),
                    "{fault:?}: {e}"
                ),
            }
            eventually(BOUND, &format!("no key after {fault:?}"), || {
                !exists(&mut raw, &name)
            });
            assert_eq!((bench.renewals(&name), entries(&client)), (0, 0));
            // And the name is as good as new.
            bench
                .client_with(secs(30))
                .mutex(&name)
                .try_lock()
                .unwrap()
                .unlock()
                .unwrap();
        }
    }
    // The double, and the two cuts of a connection that could have gone stale.
    assert_eq!(guards, 4);
}

/// Invariant 4: what a script has written before it failed is undone. Here a user may do all but ask for the time, which is
/// what an acquire does when it has taken the word.
#[test]
fn an_acquire_whose_script_fails_half_way_leaves_no_key() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    redis::cmd("ACL")
        .arg(&[
            "SETUSER", "batch", "on", ">pw", "~*", "&*", "+@all", "-time",
        ])
        .exec(&mut raw)
        .unwrap();
    let url = bench.proxy.url().replace("//", "//batch:pw@");
    let client = Client::open(&url).unwrap();
    let before = scripts_run(&mut raw);
    for _ in 0..2 {
        let error = client.mutex("m").lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
        assert!(!exists(&mut raw, "m"));
    }
    assert_eq!(scripts_run(&mut raw), before + 4);
    assert_eq!(entries(&client), 0);
}

/// Invariant 4: an acquire that reaches the server when its sender has given it up takes nothing.
#[test]
fn an_acquire_that_arrives_after_it_was_given_up_takes_nothing() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let late = Action::DelayRequest(ms(900));
    bench.proxy.rule(any(Script::Acquire), late, Times::Once);
    let given_up = bench.watch(any(Script::Leave));
    let before = scripts_run(&mut raw);
    let client = bench.impatient();
    let error = client.mutex("m").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The background was faster than the network.
    assert!(given_up.wait_hit(BOUND));
    assert_eq!(scripts_run(&mut raw), before + 1);
    eventually(BOUND, "the acquire arrives", || {
        scripts_run(&mut raw) == before + 2
    });
    assert!(!exists(&mut raw, "m"));
    assert_eq!(entries(&client), 0);
}

/// Invariant 4: so it is for one that is delivered only because its sender hangs up.
#[test]
fn an_acquire_that_is_delivered_when_its_sender_hangs_up_leaves_no_key() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let held = Action::DeliverAfterClose;
    bench.proxy.rule(any(Script::Acquire), held, Times::Once);
    let given_up = bench.watch(any(Script::Leave));
    let error = bench.impatient().mutex("m").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // In whichever order.
    assert!(bench.proxy.wait_delivered(BOUND) && given_up.wait_hit(BOUND));
    assert!(!exists(&mut raw, "m"));
}

/// Invariant 4: a first try that was overtaken by the second, and arrives when the lock has been given back, takes nothing.
#[test]
fn a_first_try_that_arrives_after_the_release_takes_nothing() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let late = Action::DelayRequest(ms(1200));
    let rule = bench.proxy.rule(any(Script::Acquire), late, Times::Once);
    let before = scripts_run(&mut raw);
    let guard = bench.impatient().mutex("m").lock().unwrap();
    guard.unlock().unwrap();
    assert_eq!(rule.hits(), 1);
    assert_eq!(scripts_run(&mut raw), before + 2);
    eventually(BOUND, "the first try arrives", || {
        scripts_run(&mut raw) == before + 3
    });
    assert!(!exists(&mut raw, "m"));
    let next = bench.client_with(secs(30)).mutex("m").try_lock().unwrap();
    assert_eq!(*next.predecessor(), Predecessor::Clean);
}

/// Invariant 4, redisson#7367, #4822: an acquire that is sent twice is one acquisition, with one fencing token, and not its
/// own predecessor.
#[test]
fn an_acquire_that_is_sent_twice_counts_once() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    for (i, fault) in [Action::CutBeforeReply, Action::DuplicateRequest]
        .into_iter()
        .enumerate()
    {
        client.ping().unwrap();
        let name = format!("m{i}");
        let mutex = client.mutex(&name);
        let matches = of(Script::Acquire, &name);
        let rule = bench.proxy.rule(matches, fault, Times::Once);
        let guard = mutex.lock().unwrap();
        assert_eq!(rule.hits(), 1);
        assert_eq!(*guard.predecessor(), Predecessor::None);
        let info = mutex.inspect().unwrap();
        assert_eq!(info.token, Some(guard.fencing_token()));
        guard.unlock().unwrap();
        assert!(!exists(&mut bench.raw(), &name));
        let next = mutex.lock().unwrap();
        assert_eq!(*next.predecessor(), Predecessor::Clean);
        next.unlock().unwrap();
    }
    assert_eq!(client.metrics().acquired, 4);
    assert_eq!(client.metrics().releases_refused, 0);
}

/// Invariant 4, DistributedLock#191: a release that must be repeated because its reply was lost is a release.
#[test]
fn a_release_that_is_repeated_is_released() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let guard = client.mutex("m").lock().unwrap();
    let cut = Action::CutBeforeReply;
    let rule = bench.proxy.rule(any(Script::Release), cut, Times::Once);
    guard.unlock().unwrap();
    assert_eq!(rule.hits(), 1);
    assert_eq!(bench.proxy.count(any(Script::Release)), 2);
    assert_eq!(client.metrics().releases_refused, 0);
    assert_eq!(client.metrics().release_errors, 0);
}

/// Invariant 4: a release repeated in the background does nothing to whoever has had the lock since.
#[test]
fn a_release_repeated_in_the_background_does_not_harm_the_successor() {
    let bench = Scene::new();
    let client = bench.impatient();
    let guard = client.mutex("m").lock().unwrap();
    let lost = Action::DelayReply(secs(5));
    bench.proxy.rule(any(Script::Release), lost, Times::Once);
    // The second one is held back until the successor has the lock, and is followed by a third.
    let late = Action::DelayRequest(ms(500));
    bench.proxy.rule(any(Script::Release), late, Times::Once);
    let mut raw = bench.raw();
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(client.metrics().release_errors, 1);
    let before = scripts_run(&mut raw);
    let successor = bench.direct(secs(30)).mutex("m").try_lock().unwrap();
    eventually(BOUND, "the second release arrives", || {
        scripts_run(&mut raw) >= before + 3
    });
    successor.verify().unwrap();
    assert_eq!(*successor.predecessor(), Predecessor::Clean);
    successor.unlock().unwrap();
}

/// Invariant 4: what has to be undone in the background is tried until the server has answered, not once.
#[test]
fn the_background_tries_until_the_server_has_answered() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.impatient();
    let (cut, lost) = (Action::CutBeforeRequest, Action::DropReply);
    let rules = [Script::Leave, Script::Release]
        .map(|wanted| bench.proxy.rule(any(wanted), cut.clone(), Times::N(5)));
    bench
        .proxy
        .rule(of(Script::Acquire, "lost"), lost, Times::Once);
    assert!(client.mutex("lost").try_lock().is_err());
    drop(client.mutex("dropped").lock().unwrap());
    for (rule, name) in rules.iter().zip(["lost", "dropped"]) {
        assert!(rule.wait_hits(5, BOUND), "{name}");
        eventually(BOUND, "its key is gone", || !exists(&mut raw, name));
    }
}

/// node-redlock#168, #313: the release of a lock that is not ours any more is one attempt, and says so.
#[test]
fn the_release_of_a_lock_that_was_taken_away_is_one_attempt() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let guard = client.mutex("m").lock().unwrap();
    assert!(delete(&mut bench.raw(), "m"));
    let (took, result) = timed(|| guard.unlock());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(took < secs(1), "{took:?}");
    assert_eq!(client.metrics().releases_refused, 1);
    assert_eq!(bench.proxy.count(any(Script::Release)), 1);
}

fn replay(raw: &mut redis::Connection, command: &Command) -> Value {
    let mut cmd = redis::cmd(command.name());
    for arg in &command.args[1..] {
        cmd.arg(arg);
    }
    cmd.query(raw).unwrap()
}

/// Invariant 4: the last 16 tokens are known to be dead: their acquires are refused, their releases are "released".
#[test]
fn the_last_16_tokens_are_dead() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let client = bench.client_with(secs(30));
    for _ in 0..17 {
        client.mutex("m").lock().unwrap().unlock().unwrap();
    }
    let sent = |wanted| -> Vec<Arc<Command>> {
        let commands = bench.proxy.commands().into_iter();
        commands.filter(|c| any(wanted)(c)).collect()
    };
    let (acquires, releases) = (sent(Script::Acquire), sent(Script::Release));
    assert_eq!((acquires.len(), releases.len()), (17, 17));
    let state = get(&mut raw, "{m}:lh:s").unwrap();
    for i in 1..17 {
        let refused = Value::Array(vec![Value::Int(-1)]);
        assert_eq!(replay(&mut raw, &acquires[i]), refused, "acquire {i}");
        let released = Value::Int(1);
        assert_eq!(replay(&mut raw, &releases[i]), released, "release {i}");
    }
    assert!(!exists(&mut raw, "m"));
    assert_eq!(get(&mut raw, "{m}:lh:s"), Some(state));
    // The one before them is forgotten, so 16 it is.
    let unknown = Value::Int(0);
    assert_eq!(replay(&mut raw, &releases[0]), unknown);
}

/// A hold of "m" that ends in this way.
fn end_as(client: &Client, how: &str) -> FencingToken {
    let guard = client.mutex("m").lock().unwrap();
    let token = guard.fencing_token();
    match how {
        "clean" => guard.unlock().unwrap(),
        "abandoned" => lose(&guard),
        _ => {
            let panics = AssertUnwindSafe(move || {
                let _guard = guard;
                // Unlike a panic of its own making, without a word on standard error.
                resume_unwind(Box::new(()));
            });
            assert!(catch_unwind(panics).is_err());
        }
    }
    token
}

/// Invariant 4: a grant that never reached its caller has not been: whoever comes next finds the predecessor that it found.
#[test]
fn a_grant_that_was_never_delivered_puts_the_predecessor_back() {
    for how in ["none", "clean", "panicked", "abandoned"] {
        let bench = Scene::new();
        let client = bench.builder().holder_label("first").build().unwrap();
        let ended = (how != "none").then(|| end_as(&client, how));
        let given_up = bench.watch(any(Script::Leave));
        for round in 1..=2 {
            bench
                .proxy
                .rule(any(Script::Acquire), Action::DropReply, Times::Once);
            let error = bench.impatient().mutex("m").try_lock().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(given_up.wait_hits(round, BOUND));
            // It was seen on its way, and may not be there yet.
            let mut raw = bench.raw();
            eventually(BOUND, "it is free", || !exists(&mut raw, "m"));
        }
        let next = client.mutex("m").try_lock().unwrap();
        match (how, next.predecessor()) {
            ("none", Predecessor::None) | ("clean", Predecessor::Clean) => {}
            ("panicked", Predecessor::Panicked { token, label, .. })
            | ("abandoned", Predecessor::Abandoned { token, label, .. }) => {
                assert_eq!(Some(*token), ended);
                assert!(label.starts_with("first@"), "{label}");
            }
            (_, found) => panic!("{how}: {found:?}"),
        }
        assert!(Some(next.fencing_token()) > ended);
    }
}
