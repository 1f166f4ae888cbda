//! Users with few rights: what a lock needs, and what is said when some of it is missing.

use std::time::Duration;

use leasehold::testing::{Server, entries};
use leasehold::{Client, ErrorKind};
use redis::Connection;

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::wait::{eventually, raw};

/// All that a user of locks needs besides its keys and channels.
const COMMANDS: [&str; 12] = [
    "evalsha",
    "eval",
    "get",
    "set",
    "del",
    "pttl",
    "pexpire",
    "time",
    "publish",
    "subscribe",
    "mget",
    "type",
];
const KEYS: &str = "~locks:* ~{locks:*";
const CHANNELS: &str = "&leasehold:inbox:*";

struct Bench {
    server: Server,
    raw: Connection,
}

impl Bench {
    fn start() -> Bench {
        let server = Server::start().unwrap();
        let raw = raw(&server.url());
        Bench { server, raw }
    }

    /// A user `u` with these rules and no others.
    fn user(&mut self, rules: &str) {
        ask::<()>(
            &mut self.raw,
            &format!("ACL SETUSER u reset on >pw {rules}"),
        );
    }

    /// With all that is needed but this.
    fn user_without(&mut self, missing: &str) {
        let all = COMMANDS.iter().filter(|&&command| command != missing);
        let commands: Vec<_> = all.map(|command| format!("+{command}")).collect();
        self.user(&format!("{KEYS} {CHANNELS} {}", commands.join(" ")));
    }

    fn client(&self) -> Client {
        let url = format!("redis://u:pw@127.0.0.1:{}/", self.server.port());
        let ttl = Duration::from_millis(1500);
        let io = Duration::from_millis(500);
        Client::builder()
            .url(&url)
            .ttl(ttl)
            .io_timeout(io)
            .build()
            .unwrap()
    }
}

/// Takes, renews, asks, waits, is woken, gives back and forces: all that a lock does.
fn use_all(one: &Client, two: &Client) {
    let mutex = one.mutex("locks:job");
    let guard = mutex.lock().unwrap();
    eventually(BOUND, "renewed", || one.metrics().renewals >= 1);
    assert_eq!(one.metrics().renewal_failures, 0);
    guard.verify().unwrap();
    assert_eq!(mutex.inspect().unwrap().kind, "mutex");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| two.mutex("locks:job").try_lock_for(6 * BOUND).map(drop));
        eventually(BOUND, "it waits", || mutex.inspect().unwrap().waiters == 1);
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    let fixed = mutex.clone().with_fixed_lease(BOUND).lock().unwrap();
    fixed.extend(2 * BOUND).unwrap();
    assert!(mutex.force_unlock().unwrap());
    assert_eq!(fixed.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
}

/// A user with just the rights on the list can do all that locks do.
#[test]
fn a_user_with_few_rights_can_lock() {
    let mut bench = Bench::start();
    bench.user_without("nothing");
    use_all(&bench.client(), &bench.client());
}

/// Without rights on channels nobody can be woken or woken by us, and everything else works: release and acquire, and
/// waiters find a release at their next poll.
#[test]
fn a_user_without_channels_can_lock_and_release() {
    let mut bench = Bench::start();
    bench.user("~* resetchannels +@all");
    let (one, two) = (bench.client(), bench.client());
    let guard = one.mutex("job").lock().unwrap();
    let before = entries(&two);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| two.mutex("job").try_lock_for(6 * BOUND).map(drop));
        eventually(BOUND, "it waits", || entries(&two) == before + 3);
        guard.unlock().unwrap();
        let (took, result) = timed(|| waiter.join().unwrap());
        result.unwrap();
        assert!(
            took < Duration::from_secs(4),
            "beyond the poll of 1.25 s: {took:?}"
        );
    });
    // A waiter that can be woken is there, and may not be told by us.
    let free = bench.server.client();
    let guard = one.mutex("job").lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| free.mutex("job").try_lock_for(6 * BOUND).map(drop));
        eventually(BOUND, "it waits", || {
            free.mutex("job").inspect().unwrap().waiters == 1
        });
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

/// One right less, and whatever needs it says `AccessDenied` at once: what is missing, for which lock, and what to do.
#[test]
fn one_right_less_is_access_denied_and_says_which() {
    let mut bench = Bench::start();
    for missing in ["evalsha", "eval", "get", "set", "time"] {
        bench.user_without(missing);
        ask::<()>(&mut bench.raw, "SCRIPT FLUSH");
        let client = bench.client();
        // Not a wait: it would last for ever otherwise.
        let (took, error) = timed(|| client.mutex("locks:job").lock().unwrap_err());
        assert!(took < Duration::from_secs(5), "{missing}: {took:?}");
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{missing}: {error}");
        assert!(!error.is_retryable());
        assert_eq!(error.name(), Some("locks:job"));
        let text = error.to_string().to_lowercase();
        assert!(text.contains("rights"), "{text}");
        // Redis 6.2 says of a command inside a script no more than that there was one.
        let named =
            text.contains(&format!("'{missing}'")) || text.contains("can't run this command");
        assert!(named, "{missing}: {text}");
        assert!(!text.contains("pw"), "{text}");
        // Of what was written before the right was missed nothing stays for long.
        eventually(BOUND, "no key stays", || {
            !ask::<bool>(&mut bench.raw, "EXISTS locks:job")
        });
    }
}

/// What is missing for a part only is said by that part.
#[test]
fn a_right_that_one_part_needs_is_missed_by_that_part() {
    let mut bench = Bench::start();
    let admin = bench.server.client();
    // The release can't free the key; the next renewal is not started all the same.
    bench.user_without("del");
    let client = bench.client();
    let guard = client.mutex("locks:job").lock().unwrap();
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.to_string().contains("rights"), "{error}");
    let freed = admin.mutex("locks:job").try_lock_for(BOUND);
    freed.expect("it has ended by its ttl").unlock().unwrap();
    // A renewal that is refused is no loss until the lease has ended.
    bench.user_without("pexpire");
    let client = bench.client();
    let guard = client.mutex("locks:job").lock().unwrap();
    eventually(BOUND, "a renewal was refused", || {
        client.metrics().renewal_failures >= 1
    });
    guard.check().unwrap();
    let told = guard.lost().recv_timeout(BOUND);
    assert!(told.is_err_and(|e| e.is_disconnected()));
    let lost = guard.check().unwrap_err().to_string();
    assert!(lost.contains("no renewal was confirmed"), "{lost}");
    drop(guard);
    // Looking is a right of its own.
    bench.user_without("mget");
    let error = bench.client().mutex("locks:job").inspect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
}

/// Invariant 2: rights that are taken away in mid-hold say nothing about the lock. If they come back in time, it is held on.
#[test]
fn a_hold_survives_rights_that_were_taken_away_for_a_while() {
    let mut bench = Bench::start();
    bench.user_without("nothing");
    let client = bench.client();
    let mutex = client.mutex("locks:job").with_ttl(Duration::from_secs(3));
    let guard = mutex.lock().unwrap();
    ask::<()>(&mut bench.raw, "ACL SETUSER u -get");
    eventually(BOUND, "a renewal was refused", || {
        guard.check().unwrap();
        client.metrics().renewal_failures >= 1
    });
    ask::<()>(&mut bench.raw, "ACL SETUSER u +get");
    let before = client.metrics().renewals;
    eventually(BOUND, "renewed", || client.metrics().renewals > before);
    guard.unlock().unwrap();
    // And a release that is refused for want of them is said to be that, not somebody's data.
    let guard = mutex.lock().unwrap();
    ask::<()>(&mut bench.raw, "ACL SETUSER u -get -mget");
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
}

/// Keys that the user may not touch: the same, whichever of a lock's keys it is.
#[test]
fn keys_out_of_bounds_are_access_denied() {
    let mut bench = Bench::start();
    for keys in ["~other:*", "~locks:*"] {
        bench.user(&format!("{keys} {CHANNELS} +@all"));
        let client = bench.client();
        let (took, error) = timed(|| elsewhere(|| client.mutex("locks:job").lock().map(drop)));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{keys}: {error}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(!ask::<bool>(&mut bench.raw, "EXISTS locks:job"), "{keys}");
    }
}
