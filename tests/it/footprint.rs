//! What a lock costs: round trips, and what the crate brings along.

use std::process::Command;
use std::time::Duration;

use leasehold::Client;
use leasehold::testing::Server;

use crate::support::ask::{is_acquire, is_release};
use crate::support::proxy::Proxy;

/// Uncontended, with the connection and the scripts known: one round trip to acquire, one to release, and no other traffic.
#[test]
fn lock_and_drop_are_one_round_trip_each() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let mutex = client.mutex("job");
    drop(mutex.lock().unwrap());
    for round in 0..3 {
        for by_unlock in [false, true] {
            proxy.reset_counts();
            let guard = mutex.lock().unwrap();
            assert_eq!(
                (proxy.round_trips(), proxy.count(is_acquire)),
                (1, 1),
                "{round}"
            );
            let _ = (guard.check(), guard.remaining(), guard.fencing_token());
            if by_unlock {
                guard.unlock().unwrap();
            } else {
                drop(guard);
            }
            assert_eq!(
                (proxy.round_trips(), proxy.count(is_release)),
                (2, 1),
                "{round}"
            );
            assert_eq!((proxy.commands().len(), proxy.connections_total()), (2, 0));
        }
    }
    // The other forms as well; a hold that rests, and one that was never renewed, cost the same.
    for mutex in [
        mutex.clone().with_fixed_lease(Duration::from_secs(60)),
        client
            .mutex("other")
            .with_hold_at_least(Duration::from_nanos(1)),
        client
            .mutex("third")
            .with_max_hold(Duration::from_secs(600)),
    ] {
        proxy.reset_counts();
        mutex
            .try_lock_for(Duration::from_secs(10))
            .unwrap()
            .unlock()
            .unwrap();
        assert_eq!(proxy.round_trips(), 2);
    }
}

/// No async runtime anywhere in what users build, with whatever features.
#[test]
fn there_is_no_async_runtime_among_the_dependencies() {
    let tree = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "tree",
            "--edges",
            "normal",
            "--all-features",
            "--prefix",
            "none",
        ])
        .args(["--format", "{p}", "--offline"])
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&tree.stdout);
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    // It does show what is there.
    for used in ["leasehold", "redis", "r2d2", "crossbeam-channel", "rustix"] {
        assert!(names.contains(&used), "no {used} in {text}");
    }
    let runtimes = [
        "tokio",
        "async-std",
        "smol",
        "async-executor",
        "async-io",
        "async-global-executor",
        "futures-executor",
        "mio",
        "monoio",
        "glommio",
        "compio",
    ];
    let found: Vec<_> = names
        .iter()
        .filter(|name| runtimes.contains(name))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
