//! `extend`: a fixed lease gets a new end. What is not known for sure counts for the worse.

use std::time::{Duration, Instant};

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, MutexGuard};

use crate::support::ask::{BOUND, ask, elsewhere, is_renewal, timed};
use crate::support::proxy::{Action, Proxy, Times};
use crate::support::wait::{eventually, raw};

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    server: Server,
    proxy: Proxy,
    client: Client,
}

impl Bench {
    fn new() -> Bench {
        let server = Server::start().unwrap();
        let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
        let builder = Client::builder().url(&proxy.url());
        let client = builder
            .io_timeout(SECOND / 2)
            .connect_timeout(SECOND / 2)
            .build()
            .unwrap();
        let bench = Bench {
            server,
            proxy,
            client,
        };
        // The server knows the script from here on, so that one extension is one command.
        bench.hold(SECOND).extend(SECOND).unwrap();
        bench
    }

    fn hold(&self, lease: Duration) -> MutexGuard {
        self.client
            .mutex("fixed")
            .with_fixed_lease(lease)
            .lock()
            .unwrap()
    }

    fn left_on_server(&self) -> Duration {
        let ms: i64 = ask(&mut raw(&self.server.url()), "PTTL fixed");
        Duration::from_millis(u64::try_from(ms).expect("it has a ttl"))
    }
}

/// Longer, in one round trip: it outlives what it was given first.
#[test]
fn extend_gives_a_fixed_lease_a_later_end() {
    let bench = Bench::new();
    let guard = bench.hold(SECOND);
    let start = Instant::now();
    bench.proxy.reset_counts();
    guard.extend(20 * SECOND).unwrap();
    let sent = (bench.proxy.count(is_renewal), bench.proxy.round_trips());
    assert_eq!(sent, (1, 1));
    for left in [guard.remaining(), bench.left_on_server()] {
        assert!(left > 15 * SECOND && left <= 20 * SECOND, "{left:?}");
    }
    eventually(BOUND, "the first end has passed", || {
        start.elapsed() > SECOND * 3 / 2
    });
    guard.check().unwrap();
    guard.verify().unwrap();
    assert_eq!(bench.client.metrics().lost, 0);
    guard.unlock().unwrap();
}

/// Shorter: here and on the server, and it ends then, as a loss, unless it is given back.
#[test]
fn extend_gives_a_fixed_lease_an_earlier_end() {
    let bench = Bench::new();
    let guard = bench.hold(600 * SECOND);
    guard.extend(SECOND / 2).unwrap();
    assert!(guard.remaining() <= SECOND / 2);
    let told = guard.lost().recv_timeout(BOUND);
    assert!(told.is_err_and(|e| e.is_disconnected()), "nobody was told");
    assert!(
        guard
            .check()
            .unwrap_err()
            .to_string()
            .contains("fixed lease")
    );
    eventually(BOUND, "the key is gone", || {
        !ask::<bool>(&mut raw(&bench.server.url()), "EXISTS fixed")
    });
    assert_eq!(guard.extend(SECOND).unwrap_err().kind(), ErrorKind::Lost);
}

/// Renewed holds renew themselves; limits are those of a lease. Refused before anything is sent, and nothing changes.
#[test]
fn extend_refuses_renewed_holds_and_leases_out_of_their_limits() {
    let bench = Bench::new();
    let year = Duration::from_secs(365 * 86_400);
    let fixed = bench.hold(10 * SECOND);
    let renewed = bench.client.mutex("renewed").lock().unwrap();
    bench.proxy.reset_counts();
    let bad = [
        Duration::ZERO,
        Duration::from_millis(49),
        year + SECOND,
        Duration::MAX,
    ];
    let refused = bad
        .iter()
        .map(|&lease| fixed.extend(lease))
        .chain([renewed.extend(SECOND)]);
    for (n, result) in refused.enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{n}: {error}");
        assert_eq!(
            error.name(),
            Some(if n < bad.len() { "fixed" } else { "renewed" })
        );
    }
    assert_eq!(bench.proxy.commands().len(), 0);
    assert!(fixed.is_held() && renewed.is_held());
    assert!(fixed.remaining() > 5 * SECOND);
    fixed.extend(year).unwrap();
    assert!(fixed.remaining() > year / 2);
}

/// The key was taken away: said so, over for good, and no key is made by asking.
#[test]
fn extend_of_a_lock_that_was_taken_away_is_lost() {
    let bench = Bench::new();
    let guard = bench.hold(60 * SECOND);
    ask::<()>(&mut raw(&bench.server.url()), "DEL fixed");
    let error = guard.extend(60 * SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_held());
    assert!(!ask::<bool>(&mut raw(&bench.server.url()), "EXISTS fixed"));
}

/// redsync#140: nobody knows whether the server did it. Asked for longer, the old end counts; it comes, and is kept to.
#[test]
fn an_extension_to_a_later_end_that_nobody_confirmed_does_not_count() {
    let bench = Bench::new();
    let guard = bench.hold(3 * SECOND);
    let rule = bench
        .proxy
        .rule(is_renewal, Action::DropReply, Times::Always);
    let (took, error) = timed(|| guard.extend(60 * SECOND).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took < 2 * SECOND, "{took:?}");
    assert!(rule.hits() >= 1);
    assert!(bench.left_on_server() > 50 * SECOND, "the server did it");
    assert!(guard.remaining() <= 3 * SECOND, "and we count on it");
    let told = guard.lost().recv_timeout(BOUND);
    assert!(told.is_err_and(|e| e.is_disconnected()), "nobody was told");
    drop(guard);
    // Ours to free still, long before the minute is over.
    let next = elsewhere(|| bench.client.mutex("fixed").try_lock_for(BOUND).map(drop));
    next.expect("freed in the background");
}

/// Asked for shorter, the new end counts: the server may have done it, and then let the next one in.
#[test]
fn an_extension_to_an_earlier_end_that_nobody_confirmed_counts() {
    for fault in [Action::DropReply, Action::DropRequest] {
        let bench = Bench::new();
        let guard = bench.hold(60 * SECOND);
        bench.proxy.rule(is_renewal, fault, Times::Always);
        let error = guard.extend(2 * SECOND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(guard.remaining() <= 2 * SECOND, "{:?}", guard.remaining());
    }
}

/// The same where the connection broke off after the server had done it, and nobody could be asked again: what the second
/// try says must not hide what the first one may have done.
#[test]
fn an_extension_that_was_cut_off_counts_if_it_ends_earlier() {
    let bench = Bench::new();
    let guard = bench.hold(60 * SECOND);
    let cut = bench
        .proxy
        .rule(is_renewal, Action::CutBeforeReply, Times::Always);
    bench.proxy.refuse(true);
    let error = guard.extend(5 * SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(cut.hits() >= 1);
    assert!(bench.left_on_server() <= 5 * SECOND, "the server did it");
    assert!(
        guard.remaining() <= 5 * SECOND,
        "we count on {:?}",
        guard.remaining()
    );
}

/// Never sent, nothing changed: the end stays where it was.
#[test]
fn an_extension_that_was_not_sent_changes_nothing() {
    let bench = Bench::new();
    let guard = bench.hold(60 * SECOND);
    bench.proxy.refuse(true);
    bench.proxy.cut();
    // Finds the pooled connection dead, so that the extension has none that it could send on.
    assert_eq!(guard.verify().unwrap_err().kind(), ErrorKind::Unavailable);
    let error = guard.extend(2 * SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(guard.remaining() > 30 * SECOND, "{:?}", guard.remaining());
    bench.proxy.refuse(false);
    guard.extend(100 * SECOND).unwrap();
    assert!(guard.remaining() > 60 * SECOND);
}

/// An extension that nobody confirmed may still be on its way: a later one that is confirmed counts no longer than it.
#[test]
fn an_extension_that_may_still_come_bounds_later_ones() {
    let bench = Bench::new();
    let guard = bench.hold(60 * SECOND);
    let rule = bench.proxy.rule(is_renewal, Action::DropReply, Times::Once);
    assert!(guard.extend(20 * SECOND).is_err());
    assert_eq!(rule.hits(), 1);
    guard.extend(100 * SECOND).unwrap();
    assert!(guard.remaining() <= 20 * SECOND, "{:?}", guard.remaining());
}
