//! `Client` and its builder: where the server is, whose locks they are, and what is refused.

use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind, Manager};

use crate::support::ask::{BOUND, ask, elsewhere, timed};
use crate::support::wait::{eventually, raw};

/// Opening a client does no I/O, so that nothing is refused where nobody listens; the first acquire shows it.
#[test]
fn making_clients_and_handles_does_no_io() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", nobody.local_addr().unwrap());
    let (took, client) = timed(|| Client::open(&url).unwrap());
    let mutex = client.mutex("not}valid").with_ttl(Duration::ZERO);
    assert!(took < Duration::from_secs(2), "{took:?}");
    nobody.set_nonblocking(true).unwrap();
    assert!(nobody.accept().is_err(), "somebody connected");
    assert_eq!(mutex.name(), "not}valid");
}

/// Exactly one of `url` and `pool`; every setting within its limits, whose text names the setting.
#[test]
fn the_builder_refuses_what_makes_no_sense() {
    let url = "redis://127.0.0.1:1/";
    let pool = || {
        r2d2::Pool::builder()
            .min_idle(Some(0))
            .test_on_check_out(false)
            .build(Manager::open(url).unwrap())
            .unwrap()
    };
    let (ms, sec) = (Duration::from_millis, Duration::from_secs);
    let on = || Client::builder().url(url);
    let year = sec(365 * 86_400);
    for (setting, builder) in [
        ("neither", Client::builder()),
        ("both", on().pool(pool())),
        (
            "not a Redis URL",
            Client::builder().url("http://127.0.0.1/"),
        ),
        ("not a Redis URL", Client::builder().url("")),
        ("ttl", on().ttl(Duration::ZERO)),
        ("ttl", on().ttl(ms(49))),
        ("ttl", on().ttl(year + ms(1))),
        ("ttl", on().ttl(Duration::MAX)),
        ("io_timeout", on().io_timeout(Duration::ZERO)),
        ("io_timeout", on().io_timeout(sec(61))),
        ("connect_timeout", on().connect_timeout(Duration::ZERO)),
        ("connect_timeout", on().connect_timeout(Duration::MAX)),
        ("pool_size", on().pool_size(0)),
        ("pool_size", on().pool_size(1001)),
        ("namespace", on().namespace(&"n".repeat(257))),
        ("namespace", on().namespace("a\nb")),
        ("holder_label", on().holder_label(&"l".repeat(129))),
        ("holder_label", on().holder_label("a\0b")),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::InvalidOptions,
            "{setting}: {error}"
        );
        assert!(error.to_string().contains(setting), "{setting}: {error}");
        assert!(!error.is_retryable());
    }
    for builder in [
        on(),
        Client::builder().pool(pool()),
        on().ttl(ms(50)),
        on().ttl(year),
        on().io_timeout(ms(1)).connect_timeout(sec(60)),
        on().pool_size(1000)
            .namespace(&"n".repeat(256))
            .holder_label(&"l".repeat(128)),
    ] {
        builder.build().unwrap();
    }
}

#[test]
fn a_url_that_asks_for_tls_is_unsupported() {
    for url in ["rediss://127.0.0.1/", "valkeys://:pw@127.0.0.1/"] {
        let error = Client::open(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("TLS"), "{error}");
    }
}

/// Namespaces keep teams apart on one server; however they and the names are written, no two pairs are one lock.
#[test]
fn namespaces_do_not_share_locks() {
    let server = Server::start().unwrap();
    let mut raw = raw(&server.url());
    let in_namespace = |namespace: &str| {
        let builder = Client::builder().url(&server.url());
        builder.namespace(namespace).build().unwrap()
    };
    let pairs = [
        ("", "b:c"),
        ("a", "b:c"),
        ("a:b", "c"),
        ("a%3Ab", "c"),
        ("{a}", "c"),
        ("a", "{b}c"),
        ("ä b", "c"),
    ];
    let held: Vec<_> = pairs
        .iter()
        .map(|(namespace, name)| {
            let mutex = in_namespace(namespace).mutex(*name);
            let guard = mutex
                .try_lock()
                .unwrap_or_else(|e| panic!("{namespace} {name}: {e}"));
            assert_eq!(guard.name(), *name, "as it was given");
            guard
        })
        .collect();
    assert!(
        ask::<bool>(&mut raw, "EXISTS b:c"),
        "without a namespace the key is the name"
    );
    assert!(ask::<bool>(&mut raw, "EXISTS a:b:c"));
    let same = in_namespace("a:b").mutex("c");
    let busy = elsewhere(|| same.try_lock().map(drop)).unwrap_err();
    assert_eq!(
        (busy.kind(), busy.name()),
        (ErrorKind::WouldBlock, Some("c"))
    );
    drop(held);
    assert!(same.try_lock().is_ok());
}

/// Waiting and waking work in a namespace as they do without, also for a name that has a suffix like our own keys'.
#[test]
fn a_waiter_in_a_namespace_is_woken() {
    let server = Server::start().unwrap();
    let builder = || Client::builder().url(&server.url()).namespace("team: {1}");
    let (holder, waiter) = (builder().build().unwrap(), builder().build().unwrap());
    for name in ["job", "lh:s"] {
        let guard = holder.mutex(name).lock().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.mutex(name).try_lock_for(6 * BOUND).map(drop));
            let known = || holder.mutex(name).inspect().unwrap().waiters == 1;
            eventually(BOUND, "it waits", known);
            drop(guard);
            let (took, result) = timed(|| waits.join().unwrap());
            result.unwrap();
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
    }
}

/// Holders are called `label@host/pid/thread`, whatever is in label and thread name: one line, read back as written.
#[test]
fn odd_labels_and_thread_names_are_shown_and_break_nothing() {
    let server = Server::start().unwrap();
    let longest = "ü".repeat(64);
    for label in [
        "",
        "a@b/c,d;e:f",
        "{x}%d \\n \"q\" 'q'",
        "日本 🦀",
        "1AN000",
        &longest,
    ] {
        let builder = Client::builder().url(&server.url()).holder_label(label);
        let client = builder.build().unwrap();
        let mutex = client.mutex("job");
        let name = "two\nlines\t\u{7f}and;all,\u{85}";
        let thread = std::thread::Builder::new().name(name.into());
        let locks = {
            let mutex = mutex.clone();
            move || mutex.lock().unwrap().into_owned()
        };
        let guard = thread.spawn(locks).unwrap().join().unwrap();
        let info = mutex.inspect().unwrap();
        let holder = info.holder.expect("a holder");
        let pid = std::process::id();
        assert!(holder.starts_with(&format!("{label}@")), "{holder:?}");
        assert!(
            holder.ends_with(&format!("/{pid}/two lines  and;all, ")),
            "{holder:?}"
        );
        assert_eq!(info.token, Some(guard.fencing_token()));
        // Whoever comes next reads it from the state, in which it must not have moved anything.
        mutex.force_unlock().unwrap();
        let next = server.client().mutex("job").lock().unwrap();
        let found = format!("{:?}", next.predecessor());
        assert!(
            found.contains("Abandoned") && found.contains("two lines"),
            "{found}"
        );
        drop((guard, next));
    }
    // Without a label there is no `@`; a thread without a name is shown by its number.
    let client = server.client();
    let guard = std::thread::spawn({
        let mutex = client.mutex("job");
        move || mutex.lock().unwrap().into_owned()
    });
    let _guard = guard.join().unwrap();
    let holder = client.mutex("job").inspect().unwrap().holder.unwrap();
    assert!(
        !holder.contains('@') && holder.contains("/ThreadId("),
        "{holder}"
    );
}

/// The URL's database is where locks, renewals and waits are; another database has other locks.
#[test]
fn locks_live_in_the_database_of_the_url() {
    let server = Server::start().unwrap();
    let in_db = |db: u8| {
        let url = format!("{}{db}", server.url());
        Client::builder()
            .url(&url)
            .ttl(Duration::from_millis(1500))
            .build()
            .unwrap()
    };
    let (third, again, zero) = (in_db(3), in_db(3), in_db(0));
    let guard = third.mutex("job").lock().unwrap();
    assert!(!ask::<bool>(&mut raw(&server.url()), "EXISTS job"));
    assert!(ask::<bool>(
        &mut raw(&format!("{}3", server.url())),
        "EXISTS job"
    ));
    drop(
        zero.mutex("job")
            .try_lock()
            .expect("another database, another lock"),
    );
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| again.mutex("job").try_lock_for(6 * BOUND).map(drop));
        let known = || third.mutex("job").inspect().unwrap().waiters == 1;
        eventually(BOUND, "it waits", known);
        eventually(BOUND, "renewed", || third.metrics().renewals >= 2);
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
    let far = Client::open(&format!("{}9999", server.url())).unwrap();
    let (took, error) = timed(|| far.mutex("job").lock().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    assert!(error.to_string().contains("database"), "{error}");
    assert!(
        took < Duration::from_secs(5),
        "waiting does not cure it: {took:?}"
    );
}

/// Over a unix socket all is as over TCP: renewals, waits and wakes, and the database.
#[test]
fn a_unix_socket_will_do() {
    let server = Server::start().unwrap();
    let socket = server.unix_socket().unwrap();
    let open = || {
        let url = format!("redis+unix://{}?db=2", socket.display());
        Client::builder()
            .url(&url)
            .ttl(Duration::from_millis(1500))
            .build()
            .unwrap()
    };
    let (client, other) = (open(), open());
    let guard = client.mutex("job").lock().unwrap();
    assert!(ask::<bool>(
        &mut raw(&format!("{}2", server.url())),
        "EXISTS job"
    ));
    eventually(BOUND, "renewed", || client.metrics().renewals >= 2);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.mutex("job").try_lock_for(6 * BOUND).map(drop));
        let known = || client.mutex("job").inspect().unwrap().waiters == 1;
        eventually(BOUND, "it waits", known);
        guard.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
    server.kill().unwrap();
    let wait = Duration::from_millis(300);
    let error = client.mutex("job").try_lock_for(wait).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.nodes()[0].node.contains(socket.to_str().unwrap()),
        "{error:?}"
    );
}

/// A user and a password in the URL, with every character that a URL must escape, log in on every connection.
#[test]
fn user_and_password_of_the_url_log_in() {
    let server = Server::start_with(["--requirepass", "for-the-default-user"]).unwrap();
    let admin = format!("redis://:for-the-default-user@127.0.0.1:{}/", server.port());
    let mut raw = raw(&admin);
    ask::<()>(&mut raw, "ACL SETUSER ba:tch on >p@ss/w:rd?#% ~* &* +@all");
    let url = format!(
        "redis://ba%3Atch:p%40ss%2Fw%3Ard%3F%23%25@127.0.0.1:{}/",
        server.port()
    );
    for url in [admin, url] {
        let open = || {
            Client::builder()
                .url(&url)
                .ttl(Duration::from_millis(1500))
                .build()
                .unwrap()
        };
        let (client, other) = (open(), open());
        client.ping().unwrap();
        let guard = client.mutex("job").lock().unwrap();
        eventually(BOUND, "renewed", || client.metrics().renewals >= 1);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.mutex("job").try_lock_for(6 * BOUND).map(drop));
            let known = || client.mutex("job").inspect().unwrap().waiters == 1;
            eventually(BOUND, "it waits", known);
            guard.unlock().unwrap();
            waits.join().unwrap().unwrap();
        });
    }
}

/// A sign of life, how long it took; bounded where there is none; and over a connection that has gone stale.
#[test]
fn ping_is_answered_or_says_why_not() {
    let server = Server::start().unwrap();
    let io = Duration::from_millis(300);
    let builder = Client::builder().url(&server.url()).io_timeout(io);
    let client = builder.connect_timeout(io).build().unwrap();
    assert!(client.ping().unwrap() < io);
    server.restart().unwrap();
    assert!(client.ping().unwrap() < io);
    server.pause().unwrap();
    let (took, error) = timed(|| client.ping().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    server.kill().unwrap();
    let error = client.ping().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.nodes()[0].node.contains(&server.port().to_string()));
}
