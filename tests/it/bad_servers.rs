//! Servers that are not there, do not answer, are none, or do not want us: the right kind, in bounded time, in plain words.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, Error, ErrorKind};

use crate::support::ask::{BOUND, ask, best_of_three, bound_of, timed};
use crate::support::proxy::Proxy;
use crate::support::wait::{eventually, raw};

const SECRET: &str = "s3cret-Passw0rd";
const WAIT: Duration = Duration::from_millis(400);

/// All that a program could print of an error.
fn printed(error: &Error) -> String {
    let mut all = format!("{error} {error:?} {error:#?} {:?}", error.nodes());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let _ = write!(all, " {cause} {cause:?} {cause:#?}");
        source = cause.source();
    }
    all
}

#[track_caller]
fn assert_told(error: &Error, kind: ErrorKind, says: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.name(), Some("order:1"), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("lock \"order:1\": "), "{text}");
    assert!(text.contains("; "), "it does not say what to do: {text}");
    for word in says {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert!(!printed(error).contains(SECRET), "{}", printed(error));
}

/// With short limits, and the password in the URL.
fn client_at(port: u16) -> Client {
    let ms = Duration::from_millis(300);
    let url = format!("redis://:{SECRET}@127.0.0.1:{port}/");
    let builder = Client::builder().url(&url).ttl(Duration::from_secs(2));
    builder.io_timeout(ms).connect_timeout(ms).build().unwrap()
}

/// What every server of this file is asked: a look has an answer soon, a bounded wait keeps its bound, and both say the same.
#[track_caller]
fn assert_no_lock(client: &Client, kind: ErrorKind, says: &[&str]) {
    let mutex = client.mutex("order:1");
    let (took, look) = timed(|| mutex.try_lock().unwrap_err());
    assert_told(&look, kind, says);
    assert!(took < Duration::from_secs(3), "a look took {took:?}");
    let took = best_of_three(bound_of(WAIT), || {
        let (took, error) = timed(|| mutex.try_lock_for(WAIT).unwrap_err());
        assert_told(&error, kind, says);
        took
    });
    assert!(took <= bound_of(WAIT), "a wait of {WAIT:?} took {took:?}");
    let (took, ping) = timed(|| client.ping().unwrap_err());
    assert_eq!(ping.kind(), kind, "{ping}");
    assert!(!printed(&ping).contains(SECRET));
    assert!(took < Duration::from_secs(3), "a ping took {took:?}");
    let inspect = mutex.inspect().unwrap_err();
    assert_told(&inspect, kind, &[]);
}

/// Wrong password, wrong user, no password: `AccessDenied`, at once, also from a `lock()` that would wait for ever.
#[test]
fn wrong_credentials_are_access_denied_at_once() {
    let server = Server::start_with(["--requirepass", "another"]).unwrap();
    let port = server.port();
    for url in [
        format!("redis://:{SECRET}@127.0.0.1:{port}/"),
        format!("redis://default:{SECRET}@127.0.0.1:{port}/"),
        format!("redis://nobody:{SECRET}@127.0.0.1:{port}/3"),
        format!("redis://127.0.0.1:{port}/"),
    ] {
        let client = Client::open(&url).unwrap();
        for wait in [None, Some(BOUND)] {
            let mutex = client.mutex("order:1");
            let (took, error) = timed(|| match wait {
                None => mutex.lock().unwrap_err(),
                Some(wait) => mutex.try_lock_for(wait).unwrap_err(),
            });
            assert_told(
                &error,
                ErrorKind::AccessDenied,
                &["password", &port.to_string()],
            );
            assert!(!error.is_retryable());
            assert_eq!(error.nodes().len(), 1);
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
        assert_no_lock_denied(&client);
    }
}

#[track_caller]
fn assert_no_lock_denied(client: &Client) {
    for error in [
        client.mutex("order:1").try_lock().unwrap_err(),
        client.mutex("order:1").inspect().unwrap_err(),
        client.mutex("order:1").force_unlock().unwrap_err(),
    ] {
        assert_told(&error, ErrorKind::AccessDenied, &[]);
    }
    assert_eq!(client.ping().unwrap_err().kind(), ErrorKind::AccessDenied);
}

/// A server that takes no password from anybody is no reason to show it.
#[test]
fn a_password_that_the_server_has_none_for_is_not_shown() {
    let server = Server::start().unwrap();
    let error = client_at(server.port())
        .mutex("order:1")
        .try_lock()
        .unwrap_err();
    assert_told(&error, ErrorKind::AccessDenied, &[]);
}

/// A port where nobody listens, and that nobody else is given meanwhile.
fn nobody() -> Proxy {
    let proxy = Proxy::start("127.0.0.1:1");
    proxy.refuse(true);
    proxy
}

/// Nobody listens at that port.
#[test]
fn a_wrong_port_is_unavailable() {
    let nobody = nobody();
    let port = nobody.port();
    let address = format!("127.0.0.1:{port}");
    assert_no_lock(
        &client_at(port),
        ErrorKind::Unavailable,
        &["refused the connection", &address],
    );
}

/// A wait without a bound rides out an outage of max(ttl, 5 s), and no longer.
#[test]
fn a_wait_without_a_bound_ends_when_the_outage_lasts() {
    let nobody = nobody();
    let url = format!("redis://:{SECRET}@127.0.0.1:{}/", nobody.port());
    let builder = Client::builder().url(&url).ttl(Duration::from_secs(2));
    // So that a failure here ends the test.
    let client = builder.max_wait(2 * BOUND).build().unwrap();
    let (took, error) = timed(|| client.mutex("order:1").lock().unwrap_err());
    assert_told(&error, ErrorKind::Unavailable, &["refused the connection"]);
    assert!(
        took >= Duration::from_secs(5) && took < Duration::from_secs(8),
        "{took:?}"
    );
}

/// A server that accepts and never answers, as behind a broken network.
#[test]
fn a_server_that_never_answers_is_unavailable_in_time() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    // The system accepts for it.
    assert_no_lock(
        &client_at(port),
        ErrorKind::Unavailable,
        &["in time", &port.to_string()],
    );
    let ms = Duration::from_millis(300);
    let builder = Client::builder().url(&format!("redis://127.0.0.1:{port}/"));
    let no_login = builder.io_timeout(ms).connect_timeout(ms).build().unwrap();
    assert_no_lock(
        &no_login,
        ErrorKind::Unavailable,
        &["in time", &port.to_string()],
    );
}

/// One that falls silent when all was well, and one that dies: in mid-wait, for a lock that somebody holds.
#[test]
fn a_server_that_fails_in_mid_wait_is_unavailable_at_the_bound() {
    for dies in [true, false] {
        let server = Server::start().unwrap();
        let ms = Duration::from_millis(300);
        let builder = || Client::builder().url(&server.url()).io_timeout(ms);
        let (holder, client) = (builder().build().unwrap(), builder().build().unwrap());
        let _guard = holder.mutex("order:1").lock().unwrap();
        let wait = Duration::from_secs(2);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                timed(|| {
                    client
                        .mutex("order:1")
                        .try_lock_for(wait)
                        .map(drop)
                        .unwrap_err()
                })
            });
            let known = || holder.mutex("order:1").inspect().unwrap().waiters == 1;
            eventually(BOUND, "it waits", known);
            if dies {
                server.kill().unwrap();
            } else {
                server.pause().unwrap();
            }
            let (took, error) = waiter.join().unwrap();
            assert_told(
                &error,
                ErrorKind::Unavailable,
                &[&server.port().to_string()],
            );
            assert!(error.is_retryable());
            assert!(took >= wait && took < 2 * wait, "{took:?}");
        });
    }
}

/// It dies in mid-wait and comes back: the wait goes on, and ends well.
#[test]
fn a_wait_outlasts_a_restart() {
    let server = Server::start().unwrap();
    let (holder, client) = (server.client(), server.client());
    let _guard = holder.mutex("order:1").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex("order:1").try_lock_for(6 * BOUND).map(drop));
        let known = || holder.mutex("order:1").inspect().unwrap().waiters == 1;
        eventually(BOUND, "it waits", known);
        server.kill().unwrap();
        thread::sleep(Duration::from_millis(300));
        server.restart().unwrap();
        let (took, result) = timed(|| waiter.join().unwrap());
        result.unwrap();
        assert!(took < Duration::from_secs(6), "{took:?}");
    });
}

/// Answers every connection with the same, whatever it is asked, and closes it.
fn answering(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the process: no client of it outlives its test.
    thread::spawn(move || {
        let serve = |mut stream: TcpStream| {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        };
        listener.incoming().flatten().for_each(|stream| {
            thread::spawn(move || serve(stream));
        });
    });
    port
}

/// The port of something else: said so, and no panic.
#[test]
fn what_is_no_redis_server_is_unavailable_and_said_to_be_none() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nBad Request"[..],
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xfe\0\0\r\n\r\n",
        b"<html>\r\n",
    ] {
        let what = String::from_utf8_lossy(answer);
        let port = answering(answer);
        let open = || Client::open(&format!("redis://127.0.0.1:{port}/")).unwrap();
        for client in [open(), client_at(port)] {
            let mutex = client.mutex("order:1");
            let (took, error) = timed(|| mutex.try_lock().unwrap_err());
            let says = ["Redis protocol", "see that a Redis or Valkey server listens there"];
            assert_told(&error, ErrorKind::Unavailable, &says);
            assert!(took < Duration::from_secs(5), "{what:?}: {took:?}");
            let (took, error) = timed(|| mutex.try_lock_for(WAIT).unwrap_err());
            assert_told(&error, ErrorKind::Unavailable, &says);
            assert!(took < Duration::from_secs(3), "{what:?}: {took:?}");
            assert_eq!(client.ping().unwrap_err().kind(), ErrorKind::Unavailable);
        }
    }
}

/// One that closes every connection without a word.
#[test]
fn a_server_that_hangs_up_is_unavailable() {
    let port = answering(b"");
    assert_no_lock(
        &client_at(port),
        ErrorKind::Unavailable,
        &["connection", &port.to_string()],
    );
}

/// An acquire whose connection breaks off after the server has done it, with no way back to it: an error, and when the way
/// is there again the key is freed, long before its ttl.
#[test]
fn an_acquire_that_was_cut_off_leaves_no_key() {
    use crate::support::ask::is_acquire;
    use crate::support::proxy::{Action, Times};
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let mutex = client.mutex("order:1").with_ttl(Duration::from_secs(600));
    // Connected, and with the scripts known.
    drop(mutex.lock().unwrap());
    let cut = proxy.rule(is_acquire, Action::CutBeforeReply, Times::Once);
    proxy.refuse(true);
    let error = mutex.try_lock().unwrap_err();
    assert_told(&error, ErrorKind::Unavailable, &[]);
    assert_eq!(cut.hits(), 1);
    let mut raw = raw(&server.url());
    assert!(
        ask::<bool>(&mut raw, "EXISTS order:1"),
        "the server has done it"
    );
    proxy.refuse(false);
    eventually(BOUND, "the key is freed", || {
        !ask::<bool>(&mut raw, "EXISTS order:1")
    });
}
