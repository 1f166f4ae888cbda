//! Servers that forget, restart, load, are busy, or belong to a cluster.

use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, Error, ErrorKind, Predecessor};
use redis::Connection;

use crate::support::ask::{
    BOUND, ask, elsewhere, is_acquire, is_leave, is_look, is_release, is_renewal, timed, try_ask,
};
use crate::support::proxy::{Action, Command, Proxy, Times};
use crate::support::temp::TempDir;
use crate::support::wait::{eventually, raw, raw_with_timeout};

const TTL: Duration = Duration::from_millis(1500);

fn behind(server: &Server) -> (Proxy, Client) {
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::builder()
        .url(&proxy.url())
        .ttl(TTL)
        .build()
        .unwrap();
    (proxy, client)
}

fn forget_scripts(raw: &mut Connection) {
    ask::<()>(raw, "SCRIPT FLUSH");
}

/// redlock-rb#148, symfony#59795: NOSCRIPT. Every script that the server has forgotten is sent again with its source, once,
/// and nobody notices.
#[test]
fn a_script_that_the_server_has_forgotten_is_sent_again() {
    let server = Server::start().unwrap();
    let (proxy, client) = behind(&server);
    let mut raw = raw(&server.url());
    let mutex = client.mutex("job");
    let expect_one = |what: &str, is_script: fn(&Command) -> bool| {
        let named = |name| proxy.count(|c| c.name() == name && is_script(c));
        // On a busy machine a second renewal may be due before the first is looked at.
        assert!(named("EVALSHA") >= 1, "{what}");
        assert_eq!(named("EVAL"), 1, "{what}");
        proxy.reset_counts();
    };
    forget_scripts(&mut raw);
    let guard = mutex.lock().unwrap();
    expect_one("acquire", is_acquire);
    forget_scripts(&mut raw);
    eventually(BOUND, "renewed", || client.metrics().renewals >= 1);
    expect_one("renewal", is_renewal);
    assert_eq!(client.metrics().renewal_failures, 0);
    forget_scripts(&mut raw);
    guard.verify().unwrap();
    expect_one("verify", is_look);
    forget_scripts(&mut raw);
    guard.unlock().unwrap();
    expect_one("release", is_release);
    forget_scripts(&mut raw);
    assert!(!mutex.force_unlock().unwrap());
    expect_one("force unlock", is_look);
    let fixed = client
        .mutex("fixed")
        .with_fixed_lease(BOUND)
        .lock()
        .unwrap();
    proxy.reset_counts();
    forget_scripts(&mut raw);
    fixed.extend(BOUND).unwrap();
    expect_one("extend", is_renewal);
    // A wait that comes to nothing takes itself off the list.
    elsewhere(|| {
        let other = server.client();
        let guard = other.mutex("job").lock().unwrap();
        proxy.reset_counts();
        thread::scope(|scope| {
            let wait = scope.spawn(|| mutex.try_lock_for(Duration::from_millis(400)).map(drop));
            let known = || other.mutex("job").inspect().unwrap().waiters == 1;
            eventually(BOUND, "it waits", known);
            forget_scripts(&mut raw);
            assert!(wait.join().unwrap().is_err());
        });
        expect_one("leave", is_leave);
        assert_eq!(other.mutex("job").inspect().unwrap().waiters, 0);
        drop(guard);
    });
}

/// The same while the server forgets all the time.
#[test]
fn a_server_that_keeps_forgetting_scripts_is_no_trouble() {
    let server = Server::start().unwrap();
    let client = server.client();
    let (stop, stopped) = leasehold::crossbeam_channel::bounded::<()>(0);
    thread::scope(|scope| {
        let mut raw = raw(&server.url());
        scope.spawn(move || {
            while stopped.try_recv().is_err_and(|e| e.is_empty()) {
                forget_scripts(&mut raw);
            }
        });
        // Dropped at the end, and by a failure in between.
        let _stop = stop;
        for _ in 0..200 {
            let guard = client.mutex("job").lock().unwrap();
            guard.verify().unwrap();
            guard.unlock().unwrap();
        }
    });
}

/// A restart without data: a new acquire works at its first call, over connections that had gone stale. The lock that was
/// held is gone, and its holder is told at its next renewal, or at its release.
#[test]
fn a_restart_without_data_costs_the_locks_and_nothing_else() {
    let server = Server::start().unwrap();
    let (_proxy, client) = behind(&server);
    let (renewed, released) = (
        client.mutex("renewed").lock().unwrap(),
        client.mutex("released"),
    );
    let released = released.with_ttl(6 * BOUND).lock().unwrap();
    server.restart().unwrap();
    let next = client.mutex("new").try_lock().unwrap();
    assert_eq!(*next.predecessor(), Predecessor::None);
    let told = renewed.lost().recv_timeout(BOUND);
    assert!(told.is_err_and(|e| e.is_disconnected()), "nobody was told");
    assert_eq!(released.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    next.unlock().unwrap();
}

/// Invariant 9: tokens go on rising over a restart that forgot the last one.
#[test]
fn tokens_rise_over_a_restart_without_data() {
    let server = Server::start().unwrap();
    let mut last = None;
    for _ in 0..3 {
        for client in [server.client(), server.client()] {
            let guard = client.mutex("job").lock().unwrap();
            assert!(Some(guard.fencing_token()) > last);
            last = Some(guard.fencing_token());
        }
        server.restart().unwrap();
    }
}

/// A restart with data: the hold goes on, renewed by a script that the server must be taught again.
#[test]
fn a_hold_outlives_a_restart_with_data() {
    let data = TempDir::new();
    let dir = data.path().to_str().unwrap();
    let server = Server::start_with(["--dir", dir]).unwrap();
    let client = server.client();
    let guard = client
        .mutex("job")
        .with_ttl(Duration::from_secs(6))
        .lock()
        .unwrap();
    ask::<()>(&mut raw(&server.url()), "SAVE");
    server.restart().unwrap();
    let before = client.metrics().renewals;
    eventually(BOUND, "renewed", || client.metrics().renewals > before);
    guard.check().unwrap();
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// ioredis#358: LOADING. A wait rides it out, a look says so at once, and a hold survives it.
#[test]
fn a_server_that_loads_its_data_is_waited_for() {
    let data = TempDir::new();
    let dir = data.path().to_str().unwrap();
    // 30 MB that take 1.5 s; it answers between two of them.
    let args = [
        "--dir",
        dir,
        "--rdbcompression",
        "no",
        "--key-load-delay",
        "10000",
    ];
    let server = Server::start_with(args).unwrap();
    let client = server.client();
    let mut connection = raw(&server.url());
    let fill = "for i = 1, 150 do redis.call('SET', 'filler' .. i, string.rep('x', 200000)) end";
    redis::cmd("EVAL")
        .arg(fill)
        .arg(0)
        .exec(&mut connection)
        .unwrap();
    let guard = client
        .mutex("held")
        .with_ttl(Duration::from_secs(9))
        .lock()
        .unwrap();
    ask::<()>(&mut connection, "SAVE");
    thread::scope(|scope| {
        let restart = scope.spawn(|| server.restart());
        eventually(BOUND, "it loads", || {
            let client = redis::Client::open(server.url()).unwrap();
            let connection = client.get_connection_with_timeout(Duration::from_secs(1));
            let ping = connection.and_then(|mut c| {
                c.set_read_timeout(Some(Duration::from_secs(1)))?;
                try_ask::<String>(&mut c, "PING")
            });
            ping.is_err_and(|e| e.code() == Some("LOADING"))
        });
        let look = elsewhere(|| client.mutex("new").try_lock().map(drop));
        let still_loading = !restart.is_finished();
        match look {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(error.is_retryable());
            }
            // It may have been through by then.
            Ok(()) => assert!(!still_loading || restart.join().unwrap().is_ok()),
        }
        let next = client.mutex("new").try_lock_for(BOUND).unwrap();
        next.verify().unwrap();
    });
    let before = client.metrics().renewals;
    eventually(BOUND, "renewed", || client.metrics().renewals > before);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// A script of somebody else's that does not end: a look says so at once, a wait rides it out.
#[test]
fn a_busy_server_is_waited_for() {
    let server = Server::start_with(["--lua-time-limit", "50"]).unwrap();
    let client = server.client();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut raw = raw_with_timeout(&server.url(), 3 * BOUND);
            let forever = redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .exec(&mut raw);
            assert!(forever.is_err(), "it was killed");
        });
        let mut raw = raw(&server.url());
        let is_busy = |raw: &mut Connection| {
            try_ask::<String>(raw, "PING").is_err_and(|e| e.code() == Some("BUSY"))
        };
        eventually(BOUND, "it is busy", || is_busy(&mut raw));
        let error = client.mutex("job").try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("BUSY"), "{error}");
        let wait = Duration::from_millis(300);
        let (took, error) = timed(|| client.mutex("job").try_lock_for(wait).unwrap_err());
        // The server's trouble, not another holder: the kind tells whom to look at.
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(took >= wait && took < Duration::from_secs(2), "{took:?}");
        let waiter = scope.spawn(|| client.mutex("job").try_lock_for(BOUND).map(drop));
        ask::<()>(&mut raw, "SCRIPT KILL");
        waiter.join().unwrap().unwrap();
    });
}

/// A server that takes no more connections says so, and is tried again.
#[test]
fn a_server_with_too_many_clients_is_unavailable() {
    let server = Server::start_with(["--maxclients", "3"]).unwrap();
    let mut taken: Vec<_> = (0..3).map(|_| raw(&server.url())).collect();
    let client = server.client();
    let error = client.mutex("job").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex("job").try_lock_for(BOUND).map(drop));
        taken.pop();
        waiter.join().unwrap().unwrap();
    });
}

/// spring-integration#10546, DistributedLock#254, sherlock#31: every script runs on a real cluster node, where all keys of a
/// call must be in one slot and be named; whatever braces the lock's name has.
#[test]
fn every_script_keeps_to_one_hash_slot() {
    let server = Server::start_with(["--cluster-enabled", "yes"]).unwrap();
    let (client, other) = (server.client(), server.client());
    let down = client.mutex("job").try_lock().unwrap_err();
    assert_eq!(down.kind(), ErrorKind::Unavailable, "{down}");
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("ADDSLOTS").arg((0..16_384).collect::<Vec<i32>>());
    slots.exec(&mut raw(&server.url())).unwrap();
    for name in [
        "job",
        "{tag}job",
        "job{tag}",
        "a{b",
        "{a{b}c",
        "a{b}c}d",
        "ünï 名",
        "{job}",
    ] {
        let mutex = client.mutex(name).with_ttl(Duration::from_millis(900));
        let guard = mutex
            .try_lock_for(BOUND)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let before = client.metrics().renewals;
        let busy = elsewhere(|| waits(&other, name, Duration::from_millis(200)));
        assert_eq!(busy, Some(ErrorKind::TimedOut), "{name}");
        eventually(BOUND, "renewed", || client.metrics().renewals > before);
        guard.verify().unwrap();
        assert_eq!(mutex.inspect().unwrap().kind, "mutex", "{name}");
        thread::scope(|scope| {
            let gets_it = scope.spawn(|| waits(&other, name, 6 * BOUND));
            eventually(BOUND, "it waits", || mutex.inspect().unwrap().waiters == 1);
            guard.unlock().unwrap();
            assert_eq!(gets_it.join().unwrap(), None, "{name}");
        });
        let guard = mutex.lock().unwrap();
        assert!(mutex.force_unlock().unwrap(), "{name}");
        assert_eq!(
            guard.unlock().unwrap_err().kind(),
            ErrorKind::NotHeld,
            "{name}"
        );
        let resting = mutex.clone().with_hold_at_least(BOUND);
        resting.lock().unwrap().unlock().unwrap();
        assert!(mutex.force_unlock().unwrap(), "{name}");
    }
}

fn waits(client: &Client, name: &str, wait: Duration) -> Option<ErrorKind> {
    client
        .mutex(name)
        .try_lock_for(wait)
        .err()
        .map(|e| e.kind())
}

/// Every error that a server can answer, over the wire: what kind it is, and whether waiting may cure it.
#[test]
fn what_a_server_answers_is_told_apart() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    // Held, so that what is answered in place of the truth hides no grant.
    let _guard = server.client().mutex("job").lock().unwrap();
    use ErrorKind::*;
    for (answer, kind) in [
        (
            "LOADING Redis is loading the dataset in memory",
            Unavailable,
        ),
        ("BUSY Redis is busy running a script.", Unavailable),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            Unavailable,
        ),
        ("CLUSTERDOWN The cluster is down", Unavailable),
        ("MASTERDOWN Link with MASTER is down", Unavailable),
        (
            "READONLY You can't write against a read only replica.",
            Unavailable,
        ),
        (
            "MISCONF Redis is configured to save RDB snapshots",
            Unavailable,
        ),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable),
        ("ERR max number of clients reached", Unavailable),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            OutOfMemory,
        ),
        ("NOAUTH Authentication required.", AccessDenied),
        ("WRONGPASS invalid username-password pair", AccessDenied),
        ("NOPERM no such right", AccessDenied),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            KeyConflict,
        ),
        ("MOVED 3999 127.0.0.1:6381", Unsupported),
        ("ERR unknown command 'EVALSHA'", Unsupported),
        ("ERR DB index is out of range", InvalidOptions),
        (
            "ERR Error running script: attempt to index a nil value",
            Script,
        ),
        // As Redis 6.2 wraps what a command in a script says.
        (
            "ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
            OutOfMemory,
        ),
        (
            "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write",
            Unavailable,
        ),
    ] {
        let client = Client::open(&proxy.url()).unwrap();
        let reply = format!("-{answer}\r\n").into_bytes();
        let rule = proxy.rule(is_acquire, Action::ReplaceReply(reply), Times::Always);
        let wait = Duration::from_millis(250);
        let ask = || elsewhere(|| timed(|| client.mutex("job").try_lock_for(wait).map(drop)));
        // On a busy machine the last look of a wait may be cut short, and then says that.
        let was_cut_short = |e: &Error| e.to_string().contains("in time");
        let (took, error) = (0..5)
            .map(|_| ask())
            .map(|(took, result)| (took, result.unwrap_err()))
            .find(|(_, error)| !was_cut_short(error))
            .expect("an answer that is not cut short");
        rule.remove();
        assert_eq!(error.kind(), kind, "{answer}: {error}");
        let curable = matches!(kind, Unavailable | OutOfMemory);
        assert_eq!(error.is_retryable(), curable, "{answer}");
        if curable {
            assert!(took >= wait, "{answer}: given up at once");
        }
        assert_eq!(error.name(), Some("job"));
        assert_eq!(error.nodes().len(), 1, "{answer}");
        let (code, text) = (answer.split(' ').next().unwrap(), error.to_string());
        let told = code == "ERR" || code == "MOVED" || text.contains(code);
        assert!(told && text.contains(&proxy.port().to_string()), "{text}");
    }
}
