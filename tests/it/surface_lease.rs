//! What a `Lease` can be asked: how it stands, here and on the server, and who is told of its end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, never, select, unbounded};
use leasehold::testing::{Server, lose};
use leasehold::{Client, Error, ErrorKind, Lease, Lost};

use crate::support::ask::{BOUND, ask, elsewhere, is_look, timed};
use crate::support::proxy::{Action, Proxy, Times};
use crate::support::wait::raw;

/// `check`, `is_held`, `remaining`, `check_for`: no I/O, so that they can stand before every step.
#[test]
fn asking_how_a_lease_stands_costs_no_io() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let guard = client.mutex("job").lock().unwrap();
    proxy.reset_counts();
    for _ in 0..1000 {
        guard.check().unwrap();
        guard.check_for(Duration::from_secs(10)).unwrap();
        assert!(guard.is_held());
        let left = guard.remaining();
        assert!(
            left > Duration::from_secs(15) && left < Duration::from_secs(30),
            "{left:?}"
        );
    }
    assert_eq!(proxy.commands().len(), 0);
}

/// `check_for` wants so much left; too little does not end the hold.
#[test]
fn check_for_says_when_too_little_is_left_and_ends_nothing() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client
        .mutex("job")
        .with_fixed_lease(Duration::from_secs(10))
        .lock()
        .unwrap();
    guard.check_for(Duration::ZERO).unwrap();
    guard.check_for(Duration::from_secs(5)).unwrap();
    let lost = guard.check_for(Duration::from_secs(11)).unwrap_err();
    let text = lost.to_string();
    assert!(text.contains("\"job\"") && text.contains("11s"), "{text}");
    assert!(text.contains(&guard.fencing_token().to_string()), "{text}");
    assert!(guard.is_held(), "asking has ended it");
    assert_eq!(client.metrics().lost, 0);
    lose(&guard);
    assert!(guard.check_for(Duration::ZERO).is_err());
}

/// A clone of a lease is for threads that outlive the scope. It does not hold the lock, and says so after the release.
#[test]
fn a_lease_can_be_shared_and_kept_and_does_not_hold_the_lock() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let guard = client.mutex("job").lock().unwrap();
    fn step(lease: &Lease) -> leasehold::Result<u64> {
        lease.check()?;
        Ok(lease.fencing_token().get())
    }
    let token = guard.fencing_token().get();
    let steps = thread::scope(|scope| {
        let steps = [scope.spawn(|| step(&guard)), scope.spawn(|| step(&guard))];
        steps.map(|step| step.join().unwrap().unwrap())
    });
    assert_eq!(steps, [token, token]);
    let kept = guard.lease();
    let worker = thread::spawn(move || {
        assert!(
            kept.lost()
                .recv_timeout(BOUND)
                .is_err_and(|e| e.is_disconnected())
        );
        kept
    });
    guard.unlock().unwrap();
    let kept = worker.join().unwrap();
    elsewhere(|| other.mutex("job").try_lock().map(drop)).expect("it is free");
    assert!(!kept.is_held());
    assert_eq!((kept.remaining(), kept.name()), (Duration::ZERO, "job"));
    assert_eq!(kept.fencing_token().get(), token);
    let over = kept.check().unwrap_err();
    assert!(over.to_string().contains("no longer held"), "{over}");
    assert_eq!(client.metrics().lost, 0, "a clean release is no loss");
}

/// A lease that outlives its client and guard answers, too, and keeps nothing alive.
#[test]
fn a_lease_outlives_guard_and_client() {
    let server = Server::start().unwrap();
    let client = server.client();
    let lease = client
        .mutex("job")
        .with_fixed_lease(BOUND)
        .lock()
        .unwrap()
        .lease();
    drop(client);
    for result in [lease.verify(), lease.extend(BOUND)] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    lease.stale_write_rejected();
    assert!(format!("{lease:?}").contains("job"));
    let mut raw = raw(&server.url());
    crate::support::wait::eventually(BOUND, "no connection stays", || {
        ask::<String>(&mut raw, "CLIENT LIST").lines().count() == 1
    });
}

/// redisson#4698: the work is told of the loss while it waits for something else; every clone is, and `check` says why.
#[test]
fn lost_wakes_every_select_beside_the_work() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client.mutex("feed").lock().unwrap();
    fn work(lease: &Lease, items: &Receiver<u32>) -> Result<u32, Lost> {
        let mut sum = 0;
        loop {
            select! {
                recv(items) -> item => sum += item.expect("an item"),
                recv(lease.lost()) -> message => {
                    assert!(message.is_err(), "it carries no messages");
                    lease.check()?;
                }
                recv(leasehold::crossbeam_channel::after(BOUND)) -> _ => return Ok(sum),
            }
        }
    }
    let (send, items) = unbounded();
    let never = never();
    thread::scope(|scope| {
        let lease = guard.lease();
        let workers = [
            scope.spawn(|| work(&guard, &items)),
            scope.spawn(|| work(&guard, &never)),
            scope.spawn(move || work(&lease, &Receiver::clone(&never_of()))),
        ];
        send.send(1).unwrap();
        let start = Instant::now();
        lose(&guard);
        for worker in workers {
            let lost = worker.join().unwrap().unwrap_err();
            assert!(lost.to_string().contains("feed"), "{lost}");
        }
        assert!(start.elapsed() < BOUND / 2);
    });
    assert!(
        guard.lost().try_recv().is_err_and(|e| e.is_disconnected()),
        "it stays so"
    );
}

fn never_of() -> Receiver<u32> {
    never()
}

/// One round trip: ours on the server, or `NotHeld`; then the hold is over, and from then on it is `Lost`.
#[test]
fn verify_asks_the_server_and_believes_it() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let mut raw = raw(&server.url());
    // Gone; another's; no lock at all.
    for (n, fault) in ["DEL", "SET XX another's PX 60000", "LPUSH"]
        .iter()
        .enumerate()
    {
        let name = format!("job-{n}");
        let guard = client.mutex(&*name).lock().unwrap();
        guard.verify().unwrap();
        proxy.reset_counts();
        guard.verify().unwrap();
        assert_eq!((proxy.round_trips(), proxy.count(is_look)), (1, 1));
        match *fault {
            "DEL" => ask::<()>(&mut raw, &format!("DEL {name}")),
            "LPUSH" => {
                ask::<()>(&mut raw, &format!("DEL {name}"));
                ask::<()>(&mut raw, &format!("LPUSH {name} x"));
            }
            _ => ask::<()>(&mut raw, &format!("SET {name} another's PX 60000")),
        }
        guard.check().unwrap();
        let error = guard.verify().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld, "{fault}: {error}");
        assert!(error.is_lost() && !error.is_retryable());
        assert_eq!(error.name(), Some(&*name));
        assert!(!guard.is_held());
        assert!(guard.lost().try_recv().is_err_and(|e| e.is_disconnected()));
        proxy.reset_counts();
        assert_eq!(guard.verify().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(
            proxy.commands().len(),
            0,
            "what is known is not asked again"
        );
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(client.metrics().lost, n as u64 + 1);
    }
}

/// A server that can't be asked says nothing about the lock: `Unavailable`, in bounded time, and the hold goes on.
#[test]
fn verify_without_an_answer_leaves_the_hold_as_it_is() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let io = Duration::from_millis(300);
    let builder = Client::builder().url(&proxy.url()).io_timeout(io);
    let client = builder.connect_timeout(io).build().unwrap();
    let guard = client.mutex("job").lock().unwrap();
    let rule = proxy.rule(is_look, Action::DropReply, Times::Always);
    let (took, error) = timed(|| guard.verify().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && !error.is_lost());
    assert_eq!(error.nodes().len(), 1);
    assert!(took >= io && took < Duration::from_secs(3), "{took:?}");
    guard.check().unwrap();
    rule.remove();
    guard.verify().unwrap();
}

/// The resource refused the token: counted. No error of the lock.
#[test]
fn stale_writes_are_counted() {
    let server = Server::start().unwrap();
    let client = server.client();
    let guard = client.mutex("job").lock().unwrap();
    guard.stale_write_rejected();
    guard.lease().stale_write_rejected();
    assert_eq!(client.metrics().stale_writes_rejected, 2);
    assert_eq!(client.metrics().lost, 0);
    guard.unlock().unwrap();
}

/// A guard that goes to another thread is released there; its thread is not taken for its holder any more.
#[test]
fn an_owned_guard_moves_to_another_thread() {
    let server = Server::start().unwrap();
    let (client, other, mut raw) = (server.client(), server.client(), raw(&server.url()));
    let owned = client.mutex("job").lock().unwrap().into_owned();
    let token = owned.fencing_token();
    assert_eq!(owned.lease().fencing_token(), token);
    // Not known to be this thread's: a wait like any other.
    let wait = Duration::from_millis(100);
    for client in [&client, &other] {
        let error = client.mutex("job").try_lock_for(wait).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(
            client.mutex("job").try_lock().unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }
    elsewhere(move || {
        owned.check().unwrap();
        owned.unlock().unwrap();
    });
    assert!(!ask::<bool>(&mut raw, "EXISTS job"));
    let shared = Arc::new(client.mutex("job").lock().unwrap().into_owned());
    let theirs = shared.clone();
    drop(shared);
    thread::spawn(move || drop(theirs)).join().unwrap();
    assert!(!ask::<bool>(&mut raw, "EXISTS job"));
}

/// `Lost` is an error of its own, and becomes an `Error` by `?`, with its text once and itself as the source.
#[test]
fn lost_is_an_error_that_names_the_lock_and_its_token() {
    let server = Server::start().unwrap();
    let guard = server.client().mutex("stock").lock().unwrap();
    lose(&guard);
    let lost = guard.check().unwrap_err();
    let token = guard.fencing_token().to_string();
    assert!(lost.to_string().contains("\"stock\"") && lost.to_string().contains(&token));
    let error = Error::from(lost.clone());
    assert_eq!(
        (error.kind(), error.name()),
        (ErrorKind::Lost, Some("stock"))
    );
    let text = error.to_string();
    assert_eq!(text.matches("stock").count(), 1, "{text}");
    assert!(text.contains(&token), "{text}");
    assert!(
        text.contains("stop the work"),
        "it does not say what to do: {text}"
    );
    let source = std::error::Error::source(&error).expect("a source");
    assert_eq!(source.to_string(), lost.to_string());
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(lost);
    assert!(boxed.source().is_none());
}
