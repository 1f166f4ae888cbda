//! The proxy as a whole: cut, refusing, a black hole; and that nothing of it is left.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::Server;

use crate::support::child::{Child, say};
use crate::support::proxy::{Action, Proxy, Times};
use crate::support::wait::{eventually, raw, thread_names, threads_of_this_process};

const BOUND: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

fn before(server: &Server) -> Proxy {
    Proxy::start(format!("127.0.0.1:{}", server.port()))
}

fn dial(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream
}

fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"PING\r\n")?;
    pong(stream)
}

fn pong(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut reply = [0; 7];
    stream.read_exact(&mut reply)?;
    assert_eq!(&reply, b"+PONG\r\n");
    Ok(())
}

#[test]
fn a_cut_closes_what_is_open_and_nothing_that_comes_after() {
    let server = Server::start().unwrap();
    let proxy = before(&server);
    let mut streams: Vec<TcpStream> = (0..5).map(|_| dial(&proxy)).collect();
    for stream in &mut streams {
        ping(stream).unwrap();
    }
    assert_eq!((proxy.connections(), proxy.connections_total()), (5, 5));
    proxy.cut();
    for stream in &mut streams {
        assert!(ping(stream).is_err());
    }
    assert_eq!(proxy.connections(), 0);
    ping(&mut dial(&proxy)).unwrap();
    assert_eq!(proxy.connections_total(), 6);
    eventually(BOUND, "a client that hangs up is counted off", || {
        proxy.connections() == 0
    });
}

#[test]
fn a_refusing_proxy_has_nobody_at_its_port() {
    let server = Server::start().unwrap();
    let proxy = before(&server);
    let mut old = dial(&proxy);
    ping(&mut old).unwrap();
    for _ in 0..20 {
        proxy.refuse(true);
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        proxy.refuse(true);
        ping(&mut old).unwrap();
        proxy.refuse(false);
        proxy.refuse(false);
        ping(&mut dial(&proxy)).unwrap();
    }
    assert_eq!(proxy.connections_total(), 21);
}

#[test]
fn what_falls_into_a_black_hole_arrives_afterwards() {
    let server = Server::start().unwrap();
    let proxy = before(&server);
    let mut streams = vec![dial(&proxy)];
    ping(&mut streams[0]).unwrap();
    proxy.black_hole(true);
    streams.push(dial(&proxy));
    for stream in &mut streams {
        stream.set_read_timeout(Some(SHORT)).unwrap();
        let silent = ping(stream).unwrap_err();
        assert!(
            matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "{silent}"
        );
        stream.set_read_timeout(Some(BOUND)).unwrap();
    }
    proxy.black_hole(false);
    for stream in &mut streams {
        pong(stream).unwrap();
    }
}

#[test]
fn a_black_hole_swallows_the_way_back_too() {
    let server = Server::start().unwrap();
    let proxy = before(&server);
    let mut direct = raw(&server.url());
    let mut waiting = dial(&proxy);
    waiting.write_all(b"BLPOP list 0\r\n").unwrap();
    eventually(BOUND, "it waits", || {
        let info: String = redis::cmd("INFO")
            .arg("clients")
            .query(&mut direct)
            .unwrap();
        info.contains("blocked_clients:1")
    });
    proxy.black_hole(true);
    redis::cmd("RPUSH")
        .arg("list")
        .arg("x")
        .exec(&mut direct)
        .unwrap();
    waiting.set_read_timeout(Some(SHORT)).unwrap();
    assert!(waiting.read(&mut [0]).is_err());
    proxy.black_hole(false);
    waiting.set_read_timeout(Some(BOUND)).unwrap();
    waiting
        .read_exact(&mut [0; "*2\r\n$4\r\nlist\r\n$1\r\nx\r\n".len()])
        .unwrap();
}

#[test]
fn a_black_hole_can_be_cut() {
    let server = Server::start().unwrap();
    let proxy = before(&server);
    let mut stream = dial(&proxy);
    proxy.black_hole(true);
    stream.write_all(b"PING\r\n").unwrap();
    proxy.cut();
    proxy.black_hole(false);
    assert!(ping(&mut stream).is_err());
}

/// In a process of its own, where no other test's threads are counted.
pub(crate) fn drop_a_busy_proxy() {
    let server = Server::start().unwrap();
    let threads = threads_of_this_process();
    let proxy = before(&server);
    let faults = [
        ("reply", Action::DelayReply(Duration::from_secs(60))),
        ("request", Action::DelayRequest(Duration::from_secs(60))),
        ("held", Action::DeliverAfterClose),
        ("dropped", Action::DropRequest),
        ("unanswered", Action::DropReply),
    ];
    let mut streams: Vec<TcpStream> = (0..10).map(|_| dial(&proxy)).collect();
    for (n, (text, action)) in faults.into_iter().enumerate() {
        let rule = proxy.rule(move |command| command.contains(text), action, Times::Always);
        for stream in &mut streams[2 * n..2 * n + 2] {
            stream
                .write_all(format!("ECHO {text}\r\n").as_bytes())
                .unwrap();
        }
        assert!(rule.wait_hits(2, BOUND));
    }
    let mut subscriber = dial(&proxy);
    subscriber.write_all(b"SUBSCRIBE channel\r\n").unwrap();
    subscriber
        .read_exact(&mut [0; "*3\r\n$9\r\nsubscribe\r\n$7\r\nchannel\r\n:1\r\n".len()])
        .unwrap();
    // Half of the clients hang up, one writes more than anybody reads, and the server falls silent.
    streams.truncate(5);
    server.pause().unwrap();
    let mut flood = dial(&proxy);
    flood.set_write_timeout(Some(SHORT)).unwrap();
    let much = format!("ECHO {}\r\n", "x".repeat(60_000));
    while flood.write_all(much.as_bytes()).is_ok() {}
    proxy.black_hole(true);
    dial(&proxy).write_all(b"PING\r\n").unwrap();
    let (port, start) = (proxy.port(), Instant::now());
    drop(proxy);
    let took = start.elapsed();
    server.resume().unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
    // A joined thread may be listed for an instant.
    eventually(BOUND, "all threads ended", || {
        threads_of_this_process() == threads
    });
    assert!(!thread_names().iter().any(|name| name.starts_with("proxy")));
    assert_eq!(subscriber.read(&mut [0]).unwrap_or(0), 0);
    say("all gone");
}

#[test]
fn a_dropped_proxy_leaves_no_thread_and_no_connection() {
    let child = Child::role("support/drop_a_busy_proxy").spawn();
    child.wait_for("all gone", Duration::from_secs(60));
}

#[test]
fn many_connections_that_come_and_go_leave_nothing_behind() {
    let server = Server::start().unwrap();
    let proxy = before(&server);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    ping(&mut dial(&proxy)).unwrap();
                }
            });
        }
    });
    assert_eq!(proxy.connections_total(), 400);
    eventually(BOUND, "none is open", || proxy.connections() == 0);
    let clients = || -> String {
        redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut raw(&server.url()))
            .unwrap()
    };
    eventually(BOUND, "none is open at the server", || {
        clients().lines().count() == 1
    });
}
