//! The ways out: `unlock` says how the release went, a drop does the same and never panics.

use std::time::Duration;

use leasehold::testing::{Server, lose};
use leasehold::{Client, ErrorKind, MutexGuard};

use crate::support::ask::{BOUND, ask, elsewhere, is_release, timed};
use crate::support::proxy::{Action, Proxy, Times};
use crate::support::wait::{eventually, raw};

const IO: Duration = Duration::from_millis(300);

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
        let client = builder.io_timeout(IO).connect_timeout(IO).build().unwrap();
        // The server knows the scripts from here on.
        drop(client.mutex("job").lock().unwrap());
        Bench {
            server,
            proxy,
            client,
        }
    }

    fn hold(&self) -> MutexGuard {
        self.client.mutex("job").lock().unwrap()
    }

    fn is_free(&self) -> bool {
        !ask::<bool>(&mut raw(&self.server.url()), "EXISTS job")
    }
}

/// When `unlock` or the drop returns, the lock is free.
#[test]
fn a_release_is_done_when_it_returns() {
    let bench = Bench::new();
    bench.hold().unlock().unwrap();
    assert!(bench.is_free());
    drop(bench.hold());
    assert!(bench.is_free());
    bench.hold().into_owned().unlock().unwrap();
    assert!(bench.is_free());
    drop(bench.hold().into_owned());
    assert!(bench.is_free());
    let metrics = bench.client.metrics();
    assert_eq!((metrics.acquired, metrics.hold.count), (5, 5));
    assert_eq!((metrics.releases_refused, metrics.release_errors), (0, 0));
}

/// The hold had ended before, and we knew: `Lost`, with the reason. What a successor holds stays.
#[test]
fn unlock_of_a_lost_hold_is_lost() {
    let bench = Bench::new();
    let guard = bench.hold();
    lose(&guard);
    let next = elsewhere(|| bench.hold().into_owned());
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.is_lost());
    next.verify().unwrap();
    assert_eq!(bench.client.metrics().releases_refused, 0);
}

/// "unlock failed: lock not owned": only the server knew. Counted, as every drop that meets it is.
#[test]
fn unlock_of_a_lock_that_was_taken_away_is_not_held() {
    let bench = Bench::new();
    let mut raw = raw(&bench.server.url());
    let faults: [&dyn Fn(&mut redis::Connection); 4] = [
        &|raw| ask(raw, "DEL job"),
        &|raw| ask(raw, "SET job another's PX 60000"),
        &|raw| {
            ask::<()>(raw, "DEL job");
            ask::<()>(raw, "SADD job a-set");
        },
        &|_| assert!(bench.client.mutex("job").force_unlock().unwrap()),
    ];
    for (n, fault) in faults.iter().enumerate() {
        for by_drop in [false, true] {
            let guard = bench.hold();
            fault(&mut raw);
            let theirs: String = ask(&mut raw, "TYPE job");
            if by_drop {
                drop(guard);
            } else {
                let error = guard.unlock().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotHeld, "{n}: {error}");
                assert!(error.is_lost() && !error.is_retryable());
                assert_eq!(error.name(), Some("job"));
            }
            assert_eq!(
                ask::<String>(&mut raw, "TYPE job"),
                theirs,
                "{n}: somebody else's is gone"
            );
            ask::<()>(&mut raw, "DEL job");
        }
        let refused = 2 * (n as u64 + 1);
        assert_eq!(bench.client.metrics().releases_refused, refused, "{n}");
    }
}

/// Invariant 4: a release whose reply was lost is repeated, and is one release.
#[test]
fn a_release_whose_reply_was_lost_is_repeated_and_counts_once() {
    let bench = Bench::new();
    let guard = bench.hold();
    let cut = bench
        .proxy
        .rule(is_release, Action::CutBeforeReply, Times::Once);
    guard.unlock().unwrap();
    assert_eq!(cut.hits(), 1);
    assert!(bench.is_free());
    assert_eq!(bench.client.metrics().releases_refused, 0);
}

/// And one that was refused is not "released" when it is repeated: the first answer, which was lost, was "not ours".
#[test]
fn a_refused_release_whose_reply_was_lost_is_still_refused() {
    let bench = Bench::new();
    let guard = bench.hold();
    ask::<()>(&mut raw(&bench.server.url()), "DEL job");
    let cut = bench
        .proxy
        .rule(is_release, Action::CutBeforeReply, Times::Once);
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert_eq!(cut.hits(), 1);
}

/// DistributedLock#191: a release that meets a silent server is bounded by the I/O timeout, counted, and made up for later.
#[test]
fn a_release_that_is_not_answered_is_bounded_and_made_up_for() {
    for by_drop in [false, true] {
        let bench = Bench::new();
        let guard = bench.hold();
        bench.server.pause().unwrap();
        let (took, result) = timed(|| match by_drop {
            true => {
                drop(guard);
                Ok(())
            }
            false => guard.unlock(),
        });
        assert!(took < 3 * IO, "{took:?}");
        if !by_drop {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.is_retryable() && !error.is_lost());
            assert!(error.to_string().contains("in the background"), "{error}");
            assert_eq!(error.name(), Some("job"));
        }
        assert_eq!(bench.client.metrics().release_errors, 1);
        bench.server.resume().unwrap();
        eventually(BOUND, "freed long before its ttl", || bench.is_free());
    }
}

/// A server that is gone: the same, at once, and no panic, also where the client goes before its guard.
#[test]
fn a_release_without_a_server_ends_at_once() {
    let bench = Bench::new();
    let (first, second) = (bench.hold(), bench.client.mutex("other").lock().unwrap());
    bench.server.kill().unwrap();
    let (took, error) = timed(|| first.unlock().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(bench.client);
    let (took, ()) = timed(|| drop(second));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A guard outlives its client and still gives its lock back.
#[test]
fn a_guard_outlives_its_client() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client.mutex("job").lock().unwrap();
    drop(client);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(!ask::<bool>(&mut raw(&server.url()), "EXISTS job"));
}
