//! Invariant 2: only what is ours is renewed, and one bad renewal never ends renewing.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::entries;
use leasehold::{Client, ErrorKind, MutexGuard};

use crate::support::child::{Child, args, say};
use crate::support::locks::{
    BOUND, Scene, Script, any, await_end, delete, exists, get, is_signalled, ms, of, pttl, secs,
    take_as_foreigner,
};
use crate::support::proxy::{Action, Command, RuleHandle, Times};
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[(&str, fn())] = &[("renewal/log_the_loss", log_the_loss)];

/// Everything that a server, or what passes for one, may say to a renewal instead of 1 or 0.
const STRANGE_REPLIES: &[&str] = &[
    "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "-LOADING Redis is loading the dataset in memory",
    "-READONLY You can't write against a read only replica.",
    "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
    "-OOM command not allowed when used memory > 'maxmemory'.",
    "-NOREPLICAS Not enough good replicas to write.",
    "-TRYAGAIN Multiple keys request during rehashing of slot",
    "-CLUSTERDOWN Hash slot not served",
    "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "-UNKILLABLE Sorry the script already executed write commands against the dataset.",
    "-NOSCRIPT No matching script. Please use EVAL.",
    "-MOVED 3999 127.0.0.1:1",
    "-NOAUTH Authentication required.",
    "-NOPERM this user has no permissions to run the 'evalsha' command",
    "-WRONGTYPE Operation against a key holding the wrong kind of value",
    "-ERR max number of clients reached",
    "-ERR something new",
    ":7",
    "$-1",
    "+OK",
    "*1\r\n:1",
    "*0",
    "this is not the protocol",
];

/// The hold got a whole lease, or nearly, after this was called.
fn is_renewed(guard: &MutexGuard, ttl: Duration) -> bool {
    guard.remaining() > ttl * 9 / 10
}

/// Each of the clients has one more renewal confirmed.
fn await_next_renewals<'a>(clients: impl Iterator<Item = &'a Client>) {
    let now: Vec<_> = clients.map(|c| (c, c.metrics().renewals)).collect();
    for (client, before) in now {
        eventually(BOUND, "the next renewal", || {
            client.metrics().renewals > before
        });
    }
}

/// Invariant 2, redisson PR#3334, #775, #2515: any error is "unknown": it is tried again, and the lock survives.
#[test]
fn whatever_the_server_says_to_a_renewal_it_is_tried_again_and_the_lock_survives() {
    let bench = Scene::new();
    let ttl = secs(3);
    // A client each, so that one's trouble is not the other's.
    let held: Vec<(&str, Client, MutexGuard, RuleHandle)> = STRANGE_REPLIES
        .iter()
        .enumerate()
        .map(|(i, reply)| {
            let name = format!("m{i}");
            let bytes = format!("{reply}\r\n").into_bytes();
            let action = Action::ReplaceReply(bytes);
            let matches = of(Script::Renew, &name);
            let rule = bench.proxy.rule(matches, action, Times::N(2));
            let client = bench.client_with(ttl);
            let guard = client.mutex(name).lock().unwrap();
            (*reply, client, guard, rule)
        })
        .collect();
    for (reply, client, guard, rule) in &held {
        assert!(rule.wait_hits(2, BOUND), "{reply}");
        // Only a renewal that was confirmed moves the deadline; the two before it have used up a third and more.
        let what = format!("renewed after {reply}");
        eventually(BOUND, &what, || is_renewed(guard, ttl));
        guard.verify().unwrap();
        let m = client.metrics();
        assert_eq!(m.lost, 0, "{reply}");
        // Some are worth a second command in the same renewal.
        assert!((1..=2).contains(&m.renewal_failures), "{reply}: {m:?}");
        assert!(!is_signalled(guard));
    }
    // And not only once.
    await_next_renewals(held.iter().map(|(_, client, ..)| client));
    for (reply, _, guard, _) in &held {
        guard
            .check()
            .unwrap_or_else(|lost| panic!("{reply}: {lost}"));
    }
    for (reply, _, guard, _) in held {
        guard.unlock().unwrap_or_else(|e| panic!("{reply}: {e}"));
    }
}

/// Invariant 2, redisson#775, #3194: renewals lost on the way, cut off or late are tried again, and the lock survives.
#[test]
fn renewals_that_are_lost_cut_or_late_are_tried_again_and_the_lock_survives() {
    let bench = Scene::new();
    let ttl = secs(4);
    let faults = [
        Action::DropRequest,
        Action::DropReply,
        Action::CutBeforeRequest,
        Action::CutBeforeReply,
        Action::DelayRequest(secs(20)),
        Action::DelayReply(secs(20)),
        Action::DeliverAfterClose,
    ];
    let held: Vec<(Client, MutexGuard, RuleHandle)> = faults
        .iter()
        .enumerate()
        .map(|(i, fault)| {
            let name = format!("m{i}");
            let matches = of(Script::Renew, &name);
            let rule = bench.proxy.rule(matches, fault.clone(), Times::N(2));
            let client = bench.client_with(ttl);
            let guard = client.mutex(name).lock().unwrap();
            (client, guard, rule)
        })
        .collect();
    for ((client, guard, rule), fault) in held.iter().zip(&faults) {
        assert!(rule.wait_hits(2, BOUND), "{fault:?}");
        let what = format!("renewed after {fault:?}");
        eventually(BOUND, &what, || is_renewed(guard, ttl));
        guard.verify().unwrap();
        assert_eq!(client.metrics().lost, 0, "{fault:?}");
    }
    await_next_renewals(held.iter().map(|(client, ..)| client));
    // The server has had its key all the time: nobody else ever got in.
    for (i, (_, guard, _)) in held.into_iter().enumerate() {
        assert!(exists(&mut bench.raw(), &format!("m{i}")));
        guard.unlock().unwrap();
    }
}

/// Invariant 2: each renewal that was not confirmed is counted, and each that was.
#[test]
fn the_metrics_count_renewals_and_failures() {
    let bench = Scene::new();
    let client = bench.client_with(secs(2));
    let busy = Action::ReplaceReply(b"-BUSY busy\r\n".to_vec());
    bench.proxy.rule(any(Script::Renew), busy, Times::N(3));
    let guard = client.mutex("m").lock().unwrap();
    eventually(BOUND, "a renewal", || client.metrics().renewals == 1);
    let m = client.metrics();
    assert_eq!(m.renewal_failures, 3);
    assert_eq!(bench.renewals("m"), 4);
    assert_eq!(m.renewal_lateness.count, 4);
    // The last of them was started when the others had failed.
    let least = m.least_remaining_at_renewal.unwrap();
    assert!(least < ms(1300) && least > Duration::ZERO, "{least:?}");
    guard.unlock().unwrap();
}

/// Invariant 2: tries come at a growing pace, not in a busy loop.
#[test]
fn renewals_that_fail_are_repeated_at_a_growing_pace() {
    let bench = Scene::new();
    let client = bench.client_with(ms(1500));
    let busy = Action::ReplaceReply(b"-BUSY busy\r\n".to_vec());
    bench.proxy.rule(any(Script::Renew), busy, Times::Always);
    let guard = client.mutex("m").lock().unwrap();
    await_end(&guard);
    // From a sixtieth of the ttl, doubling up to a sixth, and closer together towards the end: 25, 50, 100, 200, 150, …
    let tries = bench.renewals("m");
    assert!((3..=25).contains(&tries), "{tries} tries");
}

/// Invariant 2: 0 means that it is not ours: lost at once, told once, and for ever; and nothing is renewed any more.
#[test]
fn a_lock_that_somebody_else_has_is_lost_and_no_longer_renewed() {
    let bench = Scene::new();
    let client = bench.client_with(secs(1));
    let witness = client.mutex("witness").lock().unwrap();
    let mut raw = bench.raw();
    let guards = ["deleted", "retaken"].map(|name| client.mutex(name).lock().unwrap());
    for guard in &guards {
        assert!(delete(&mut raw, guard.name()));
    }
    take_as_foreigner(&mut raw, "retaken", secs(60));
    for guard in &guards {
        await_end(guard);
        let why = guard.check().unwrap_err().to_string();
        assert!(why.contains("not ours any more"), "{why}");
    }
    let renewals = || ["deleted", "retaken"].map(|name| bench.renewals(name));
    let before = renewals();
    bench.pass_renewals(&witness, 3);
    assert_eq!(renewals(), before);
    for guard in guards {
        assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
        assert_eq!(guard.verify().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(client.metrics().lost, 2);
    // Neither made anew nor taken from whoever has it.
    assert!(!exists(&mut raw, "deleted"));
    assert_eq!(get(&mut raw, "retaken").as_deref(), Some("foreign"));
    assert!(pttl(&mut raw, "retaken") > 40_000);
}

/// redisson#3712, #3194: after a loss the name is as good as any: locked again, renewed, released.
#[test]
fn a_name_that_was_lost_can_be_locked_again_and_is_renewed() {
    let bench = Scene::new();
    let client = bench.client_with(secs(1));
    let mutex = client.mutex("m");
    let lost = mutex.lock().unwrap();
    let mut raw = bench.raw();
    assert!(delete(&mut raw, "m"));
    await_end(&lost);
    // The lost guard still lives, in this very thread.
    let again = mutex.lock().unwrap();
    assert!(again.fencing_token() > lost.fencing_token());
    bench.pass_renewals(&again, 1);
    drop(lost);
    bench.pass_renewals(&again, 1);
    again.unlock().unwrap();
    assert!(!exists(&mut raw, "m"));
    assert_eq!(entries(&client), 0);
}

/// redisson#6962, #6483: one lost lock among many is one lost lock.
#[test]
fn the_loss_of_one_lock_is_not_the_loss_of_others() {
    let bench = Scene::new();
    let client = bench.client_with(secs(1));
    let lock = |i| client.mutex(format!("m{i}")).lock().unwrap();
    let guards: Vec<MutexGuard> = (0..50).map(lock).collect();
    assert!(delete(&mut bench.raw(), "m17"));
    await_end(&guards[17]);
    // All others in one go.
    let sent = |guard: &MutexGuard| (guard.name() == "m17", bench.renewals(guard.name()));
    let before: Vec<_> = guards.iter().map(sent).collect();
    for (guard, (is_lost, before)) in guards.iter().zip(before) {
        eventually(BOUND, "the next renewal", || {
            is_lost || bench.renewals(guard.name()) > before
        });
    }
    assert_eq!(client.metrics().lost, 1);
    assert!(guards.iter().all(|g| g.is_held() != (g.name() == "m17")));
}

/// redisson#4698, redis-semaphore#24: the holder learns of a silent server's loss before anybody else can have the lock.
#[test]
fn with_a_silent_server_the_hold_is_lost_before_its_key_expires() {
    let ttl = secs(3);
    let mut late = Vec::new();
    // The holder must be told within the 32 ms that the deadline gives away. A thread that is not given the processor is
    // late whatever it does, so the best of three counts for the signal; `is_held` must be right each time.
    while late.len() < 3 {
        let bench = Scene::new();
        let client = bench.client_with(ttl);
        let guard = client.mutex("m").lock().unwrap();
        let asked = Instant::now();
        let left = pttl(&mut bench.raw(), "m");
        bench.server.pause().unwrap();
        let expiry = asked + Duration::from_millis(left.unsigned_abs());
        assert_eq!(bench.renewals("m"), 0, "the pause came too late");
        let (last_held, signal) = thread::scope(|s| {
            let lease = guard.lease();
            let signal = s.spawn(move || {
                await_end(&lease);
                Instant::now()
            });
            let mut last_held = asked;
            loop {
                let now = Instant::now();
                if !guard.is_held() {
                    break;
                }
                last_held = now;
                thread::sleep(ms(1));
            }
            (last_held, signal.join().unwrap())
        });
        assert!(last_held < expiry, "held for too long");
        assert!(bench.renewals("m") >= 2, "it was tried again and again");
        assert_eq!(client.metrics().lost, 1);
        if signal < expiry {
            return;
        }
        late.push(signal - expiry);
    }
    panic!("told too late, by {late:?}");
}

/// Invariants 2 and 7: whenever a silence of half the ttl begins, at the worst moment, too, which is when a renewal is due:
/// tries are not so far apart that none falls between its end and the lease's.
#[test]
fn a_hold_outlives_a_silence_of_half_its_ttl_that_begins_when_it_is_due() {
    let bench = Scene::new();
    let ttl = secs(3);
    let began = OnceLock::new();
    let is_renewal = any(Script::Renew);
    let in_silence = move |command: &Command| {
        is_renewal(command) && began.get_or_init(Instant::now).elapsed() < ttl / 2
    };
    let silence = bench
        .proxy
        .rule(in_silence, Action::DropRequest, Times::Always);
    let client = bench.client_with(ttl);
    let guard = client.mutex("m").lock().unwrap();
    eventually(BOUND, "it is renewed, or lost", || {
        client.metrics().renewals > 0 || !guard.is_held()
    });
    assert_eq!(client.metrics().lost, 0);
    assert!(silence.hits() >= 3, "{}", silence.hits());
    guard.unlock().unwrap();
}

/// Says "held", waits for the loss, looks at it several times, and says what was logged as a warning.
fn log_the_loss() {
    let [url] = &args()[..] else {
        panic!("one argument")
    };
    log::set_logger(&WARNINGS).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let client = Client::builder().url(url).ttl(ms(1500)).build().unwrap();
    let guard = client.mutex("m").lock().unwrap();
    say("held");
    await_end(&guard);
    for _ in 0..3 {
        assert!(guard.check().is_err() && guard.verify().is_err());
    }
    drop(guard);
    drop(client);
    let warnings = WARNINGS.0.lock();
    say(warnings.len().to_string());
    for warning in &*warnings {
        say(warning);
    }
}

struct Warnings(parking_lot::Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(parking_lot::Mutex::new(Vec::new()));

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let field = |key: &str| {
            let value = record.key_values().get(key.into());
            value.map_or_else(|| "-".into(), |value| value.to_string())
        };
        let (name, token) = (field("name"), field("token"));
        let line = format!("{} {name} {token} {}", record.target(), record.args());
        self.0.lock().push(line);
    }

    fn flush(&self) {}
}

/// Invariant 2, redisson#3712: a failed renewal is logged, and the loss is, once, with the lock's name and token.
#[test]
fn a_loss_is_logged_once() {
    let bench = Scene::new();
    let busy = Action::ReplaceReply(b"-BUSY busy\r\n".to_vec());
    let failed = bench.proxy.rule(any(Script::Renew), busy, Times::Once);
    let child = Child::role("renewal/log_the_loss")
        .arg(bench.proxy.url())
        .spawn();
    child.wait_for("held", BOUND);
    let mut raw = raw(&bench.server.url());
    assert!(failed.wait_hit(BOUND));
    assert!(get(&mut raw, "m").is_some() && delete(&mut raw, "m"));
    assert_eq!(child.expect_line(BOUND), "2");
    let renewal = child.expect_line(BOUND);
    assert!(
        renewal.starts_with("leasehold m ") && renewal.contains("BUSY"),
        "{renewal}"
    );
    let loss = child.expect_line(BOUND);
    let token: u64 = loss.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(
        loss.starts_with("leasehold m ")
            && loss.contains(&format!("token {token}"))
            && loss.contains("is lost"),
        "{loss}"
    );
}
