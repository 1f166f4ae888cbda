//! Each fault of the proxy, against a real server: what the client sees, and what the server has done.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::Server;
use redis::{Connection, RedisResult};

use crate::support::proxy::{Action, Command, Proxy, Times};
use crate::support::wait::{eventually, raw, raw_with_timeout};

const BOUND: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(200);
/// Long enough to be told from none, short enough to wait for.
const DELAY: Duration = Duration::from_millis(150);

/// A server, a proxy before it, and a connection around the proxy that sees the truth.
struct Bench {
    proxy: Proxy,
    direct: Connection,
    server: Server,
}

impl Bench {
    fn new() -> Bench {
        let server = Server::start().unwrap();
        let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
        Bench {
            proxy,
            direct: raw(&server.url()),
            server,
        }
    }

    fn value(&mut self) -> Option<i64> {
        redis::cmd("GET").arg("n").query(&mut self.direct).unwrap()
    }

    fn impatient(&self) -> Connection {
        raw_with_timeout(&self.proxy.url(), SHORT)
    }
}

fn is_incr(command: &Command) -> bool {
    command.name() == "INCR"
}

fn incr(connection: &mut Connection) -> RedisResult<i64> {
    redis::cmd("incr").arg("n").query(connection)
}

fn ping(connection: &mut Connection) -> RedisResult<String> {
    redis::cmd("PING").query(connection)
}

#[test]
fn without_rules_every_reply_comes_through() {
    let mut bench = Bench::new();
    let mut connection = raw(&bench.proxy.url());
    let big = vec![b'\r'; 1 << 20];
    redis::cmd("SET")
        .arg("big")
        .arg(&big)
        .exec(&mut connection)
        .unwrap();
    let got: Vec<u8> = redis::cmd("GET").arg("big").query(&mut connection).unwrap();
    assert!(got == big);
    let mut eval = redis::cmd("EVAL");
    eval.arg("return {1, {'two', {3, false}}, {}, redis.status_reply('ok'), ''}")
        .arg(0);
    let through: redis::Value = eval.query(&mut connection).unwrap();
    assert_eq!(through, eval.query(&mut bench.direct).unwrap());
    let error = redis::cmd("NOSUCH").exec(&mut connection).unwrap_err();
    assert_eq!(
        error.to_string(),
        redis::cmd("NOSUCH")
            .exec(&mut bench.direct)
            .unwrap_err()
            .to_string()
    );
}

#[test]
fn a_pipeline_is_one_round_trip_and_every_command_is_logged() {
    let bench = Bench::new();
    let mut connection = raw(&bench.proxy.url());
    bench.proxy.reset_counts();
    let mut pipeline = redis::pipe();
    for _ in 0..50 {
        pipeline.cmd("INCR").arg("n").ignore();
    }
    pipeline.exec(&mut connection).unwrap();
    ping(&mut connection).unwrap();
    ping(&mut connection).unwrap();
    assert_eq!(bench.proxy.round_trips(), 3);
    assert_eq!(bench.proxy.count(is_incr), 50);
    assert_eq!(bench.proxy.commands().len(), 52);
    assert!(bench.proxy.commands()[0].contains("n") && !bench.proxy.commands()[0].contains("m"));
    bench.proxy.reset_counts();
    assert_eq!(
        (bench.proxy.round_trips(), bench.proxy.commands().len()),
        (0, 0)
    );
}

/// Sends the text and reads as much as is expected.
fn exchange(stream: &mut TcpStream, send: &str, expect: &str) {
    stream.write_all(send.as_bytes()).unwrap();
    let mut got = vec![0; expect.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), expect);
}

#[test]
fn messages_to_subscribers_are_not_taken_for_replies() {
    let mut bench = Bench::new();
    let dropped = bench.proxy.rule(
        |command| command.name() == "GET",
        Action::DropReply,
        Times::Once,
    );
    let mut stream = TcpStream::connect(("127.0.0.1", bench.proxy.port())).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    exchange(
        &mut stream,
        "SUBSCRIBE a b\r\nPSUBSCRIBE c*\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n\
         *3\r\n$10\r\npsubscribe\r\n$2\r\nc*\r\n:3\r\n",
    );
    let mut publish = |channel: &str, text: &str| {
        redis::cmd("PUBLISH")
            .arg(channel)
            .arg(text)
            .exec(&mut bench.direct)
            .unwrap();
    };
    publish("a", "one");
    publish("cc", "two");
    exchange(
        &mut stream,
        "",
        "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\none\r\n*4\r\n$8\r\npmessage\r\n$2\r\nc*\r\n$2\r\ncc\r\n$3\r\ntwo\r\n",
    );
    exchange(&mut stream, "PING\r\n", "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    exchange(
        &mut stream,
        "PUNSUBSCRIBE\r\n",
        "*3\r\n$12\r\npunsubscribe\r\n$2\r\nc*\r\n:2\r\n",
    );
    stream.write_all(b"UNSUBSCRIBE\r\n").unwrap();
    // In whichever order.
    stream
        .read_exact(&mut [0; 2 * "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n".len()])
        .unwrap();
    exchange(
        &mut stream,
        "UNSUBSCRIBE\r\n",
        "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n",
    );
    // Had one been miscounted, the wrong reply would be dropped here.
    exchange(
        &mut stream,
        "RPUSH l message x\r\nGET n\r\nLRANGE l 0 -1\r\n",
        ":2\r\n*2\r\n$7\r\nmessage\r\n$1\r\nx\r\n",
    );
    assert_eq!(dropped.hits(), 1);
}

#[test]
fn a_dropped_request_is_never_carried_out_nor_answered() {
    let mut bench = Bench::new();
    let rule = bench.proxy.rule(is_incr, Action::DropRequest, Times::Once);
    assert!(incr(&mut bench.impatient()).unwrap_err().is_timeout());
    assert_eq!((rule.hits(), bench.value()), (1, None));
    assert_eq!(incr(&mut bench.impatient()).unwrap(), 1);
}

#[test]
fn a_dropped_reply_leaves_the_command_carried_out() {
    let mut bench = Bench::new();
    let rule = bench.proxy.rule(is_incr, Action::DropReply, Times::Once);
    assert!(incr(&mut bench.impatient()).unwrap_err().is_timeout());
    assert_eq!((rule.hits(), bench.value()), (1, Some(1)));
}

#[test]
fn a_cut_before_the_request_closes_the_connection_with_nothing_done() {
    let mut bench = Bench::new();
    let rule = bench
        .proxy
        .rule(is_incr, Action::CutBeforeRequest, Times::Once);
    let error = incr(&mut raw(&bench.proxy.url())).unwrap_err();
    assert!(
        error.is_connection_dropped() && !error.is_timeout(),
        "{error}"
    );
    assert_eq!((rule.hits(), bench.value()), (1, None));
    eventually(BOUND, "no connection", || bench.proxy.connections() == 0);
}

#[test]
fn a_cut_before_the_reply_closes_the_connection_with_the_command_carried_out() {
    let mut bench = Bench::new();
    let rule = bench
        .proxy
        .rule(is_incr, Action::CutBeforeReply, Times::Once);
    let error = incr(&mut raw(&bench.proxy.url())).unwrap_err();
    assert!(
        error.is_connection_dropped() && !error.is_timeout(),
        "{error}"
    );
    assert_eq!((rule.hits(), bench.value()), (1, Some(1)));
}

#[test]
fn a_delayed_request_is_carried_out_late_even_for_a_client_that_hung_up() {
    let mut bench = Bench::new();
    let rule = bench
        .proxy
        .rule(is_incr, Action::DelayRequest(2 * SHORT), Times::Once);
    assert!(incr(&mut bench.impatient()).unwrap_err().is_timeout());
    assert_eq!((rule.hits(), bench.value()), (1, None));
    eventually(BOUND, "it arrives", || bench.value() == Some(1));
}

#[test]
fn a_delayed_reply_comes_late_from_a_command_carried_out_at_once() {
    let mut bench = Bench::new();
    let rule = bench
        .proxy
        .rule(is_incr, Action::DelayReply(DELAY), Times::Once);
    let mut connection = raw(&bench.proxy.url());
    thread::scope(|scope| {
        let start = Instant::now();
        let late = scope.spawn(move || (incr(&mut connection).unwrap(), start.elapsed()));
        assert!(rule.wait_hit(BOUND));
        assert_eq!(bench.value(), Some(1));
        let (n, took) = late.join().unwrap();
        assert!(n == 1 && took >= DELAY, "{took:?}");
    });
}

#[test]
fn a_delay_holds_up_no_other_connection() {
    let bench = Bench::new();
    for action in [Action::DelayRequest(BOUND), Action::DelayReply(BOUND)] {
        let rule = bench.proxy.rule(is_incr, action, Times::Once);
        let mut delayed = raw_with_timeout(&bench.proxy.url(), BOUND);
        thread::scope(|scope| {
            scope.spawn(move || incr(&mut delayed).unwrap_err());
            assert!(rule.wait_hit(BOUND));
            let start = Instant::now();
            assert_eq!(ping(&mut raw(&bench.proxy.url())).unwrap(), "PONG");
            assert!(start.elapsed() < BOUND / 2);
            // Nor is a cut held up by a delay.
            bench.proxy.cut();
        });
    }
}

#[test]
fn a_doubled_request_is_carried_out_twice_and_answered_once() {
    let mut bench = Bench::new();
    let rule = bench
        .proxy
        .rule(is_incr, Action::DuplicateRequest, Times::Once);
    let mut connection = raw(&bench.proxy.url());
    assert_eq!(incr(&mut connection).unwrap(), 1);
    assert_eq!((rule.hits(), bench.value()), (1, Some(2)));
    assert_eq!(ping(&mut connection).unwrap(), "PONG");
    assert_eq!(incr(&mut connection).unwrap(), 3);
}

#[test]
fn a_held_request_is_delivered_when_its_client_has_hung_up() {
    let mut bench = Bench::new();
    let rule = bench
        .proxy
        .rule(is_incr, Action::DeliverAfterClose, Times::Once);
    let mut connection = bench.impatient();
    assert!(incr(&mut connection).unwrap_err().is_timeout());
    assert_eq!((rule.hits(), bench.value()), (1, None));
    assert!(!bench.proxy.wait_delivered(Duration::from_millis(20)));
    drop(connection);
    assert!(bench.proxy.wait_delivered(BOUND));
    assert_eq!(bench.value(), Some(1));
}

#[test]
fn a_replaced_reply_is_what_the_client_gets_from_a_command_carried_out() {
    let mut bench = Bench::new();
    let reply = b"-READONLY You can't write against a read only replica.\r\n".to_vec();
    bench
        .proxy
        .rule(is_incr, Action::ReplaceReply(reply), Times::Once);
    let mut connection = raw(&bench.proxy.url());
    let error = incr(&mut connection).unwrap_err();
    assert_eq!(error.code(), Some("READONLY"));
    assert_eq!(bench.value(), Some(1));
    assert_eq!(incr(&mut connection).unwrap(), 2);
}

#[test]
fn a_rule_applies_as_often_as_it_says() {
    let bench = Bench::new();
    let replace = |text: &str| Action::ReplaceReply(format!("+{text}\r\n").into_bytes());
    let twice = bench.proxy.rule(is_incr, replace("twice"), Times::N(2));
    let always = bench.proxy.rule(is_incr, replace("always"), Times::Always);
    let never = bench.proxy.rule(
        |command| command.contains("nowhere"),
        replace("never"),
        Times::Always,
    );
    let mut connection = raw(&bench.proxy.url());
    let mut ask = || {
        redis::cmd("INCR")
            .arg("n")
            .query::<String>(&mut connection)
            .unwrap()
    };
    let got: Vec<String> = (0..5).map(|_| ask()).collect();
    assert_eq!(got, ["twice", "twice", "always", "always", "always"]);
    assert_eq!((twice.hits(), always.hits(), never.hits()), (2, 3, 0));
    assert!(always.wait_hits(3, BOUND) && !never.wait_hit(Duration::from_millis(10)));
    always.remove();
    assert_eq!(ask(), "6");
}

#[test]
fn a_fault_in_a_pipeline_meets_its_command_alone() {
    let bench = Bench::new();
    let reply = b"$5\r\nother\r\n".to_vec();
    bench.proxy.rule(
        |command| command.contains("b"),
        Action::ReplaceReply(reply),
        Times::Always,
    );
    let mut pipeline = redis::pipe();
    for text in ["a", "b", "c"] {
        pipeline.cmd("ECHO").arg(text);
    }
    let got: Vec<String> = pipeline.query(&mut raw(&bench.proxy.url())).unwrap();
    assert_eq!(got, ["a", "other", "c"]);
}

#[test]
fn a_client_of_a_server_that_dies_is_cut_off_and_served_again_after_a_restart() {
    let bench = Bench::new();
    let mut connection = raw(&bench.proxy.url());
    assert_eq!(incr(&mut connection).unwrap(), 1);
    bench.server.kill().unwrap();
    assert!(incr(&mut connection).unwrap_err().is_connection_dropped());
    bench.server.restart().unwrap();
    assert_eq!(incr(&mut raw(&bench.proxy.url())).unwrap(), 1);
}
