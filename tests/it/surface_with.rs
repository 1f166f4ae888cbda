//! `with`: a closure under the lock, and its result only if the lock lasted to the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use leasehold::testing::{Server, lose, suspend};
use leasehold::{Client, ErrorKind, Predecessor};

use crate::support::ask::{ask, elsewhere, timed};
use crate::support::wait::raw;

#[test]
fn with_runs_under_the_lock_and_gives_the_result() {
    let server = Server::start().unwrap();
    let (client, other) = (server.client(), server.client());
    let (token, busy) = client
        .mutex("job")
        .with(|lease| {
            lease.check().unwrap();
            let busy = elsewhere(|| other.mutex("job").try_lock().map(drop));
            (lease.fencing_token(), busy)
        })
        .unwrap();
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(token.get() > 0);
    drop(other.mutex("job").try_lock().expect("given back"));
}

/// The closure's own error is its result, and no matter of the lock.
#[test]
fn with_passes_the_closures_own_error_through() {
    let server = Server::start().unwrap();
    let failed: Result<(), &str> = server
        .client()
        .mutex("job")
        .with(|_| Err("no funds"))
        .unwrap();
    assert_eq!(failed, Err("no funds"));
    let guard = server.client().mutex("job").lock().unwrap();
    assert_eq!(*guard.predecessor(), Predecessor::Clean);
}

#[test]
fn with_does_not_run_the_closure_without_the_lock() {
    let server = Server::start().unwrap();
    let (client, holder) = (server.client(), server.client());
    let bounded = Client::builder()
        .url(&server.url())
        .max_wait(Duration::from_millis(100))
        .build()
        .unwrap();
    let _guard = holder.mutex("job").lock().unwrap();
    let mut runs = 0;
    let again = client.mutex("job").with(|_| runs += 1).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Deadlock);
    let busy = elsewhere(|| bounded.mutex("job").with(|_| runs += 1)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::TimedOut);
    assert_eq!(runs, 0);
}

/// A panic inside goes on its way; the lock is given back at once, and the next holder learns of it.
#[test]
fn a_panic_inside_releases_the_lock_and_tells_the_next_holder() {
    let server = Server::start().unwrap();
    let client = server.client();
    let mut token = None;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        client.mutex("job").with(|lease| {
            token = Some(lease.fencing_token());
            panic!("in mid-section");
        })
    }));
    let panicked: Result<Result<(), _>, _> = panicked;
    assert_eq!(
        panicked.unwrap_err().downcast_ref(),
        Some(&"in mid-section")
    );
    let (took, guard) = timed(|| client.mutex("job").lock().unwrap());
    assert!(took < Duration::from_secs(5), "{took:?}");
    match guard.predecessor() {
        Predecessor::Panicked { token: of, .. } => assert_eq!(Some(*of), token),
        other => panic!("{other:?}"),
    }
}

/// redisson#4698: a loss must not stay unseen. However it came about, the result is dropped and `Lost` is the answer.
#[test]
fn with_is_lost_when_the_lock_did_not_last_to_the_end() {
    let server = Server::start().unwrap();
    let client = server.client();
    let other = server.client();
    let mut raw = raw(&server.url());
    // Known here; known here by the clock; known to the server only, in three ways.
    type Fault<'a> = (&'a str, Box<dyn FnMut(&leasehold::Lease) + 'a>);
    let forced = |lease: &leasehold::Lease| {
        let mutex = other.mutex(lease.name());
        assert!(mutex.force_unlock().unwrap());
        mutex
    };
    let faults: [Fault<'_>; 5] = [
        ("lost here", Box::new(lose)),
        (
            "suspended",
            Box::new(|_| suspend(&client, Duration::from_secs(60))),
        ),
        (
            "deleted",
            Box::new(|lease| ask(&mut raw, &format!("DEL {}", lease.name()))),
        ),
        ("forced", Box::new(|lease| drop(forced(lease)))),
        (
            "retaken",
            Box::new(|lease| elsewhere(|| drop(forced(lease).lock().unwrap()))),
        ),
    ];
    for (fault, mut strike) in faults {
        // A name each: for the server nobody was suspended, so that key stays for its ttl.
        let name = fault.replace(' ', "-");
        let mut ran = false;
        let result = client.mutex(&*name).with(|lease| {
            strike(lease);
            ran = true;
            "a result that two may have worked on"
        });
        assert!(ran);
        let error = result.expect_err(fault);
        assert_eq!(error.kind(), ErrorKind::Lost, "{fault}: {error}");
        assert!(error.is_lost() && !error.is_retryable());
        assert_eq!(error.name(), Some(&*name));
    }
}

/// Even if the rest of what stood beside the lock has become somebody's data: the word was not ours any more.
#[test]
fn with_is_lost_when_all_of_the_lock_was_replaced() {
    let server = Server::start().unwrap();
    let client = server.client();
    let mut raw = raw(&server.url());
    let result = client.mutex("job").with(|_| {
        ask::<()>(&mut raw, "FLUSHALL");
        ask::<()>(&mut raw, "RPUSH {job}:lh:s somebody's");
    });
    let error = result.expect_err("it was taken away");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(ask::<String>(&mut raw, "TYPE {job}:lh:s"), "list");
}

/// A release that the server did not answer is no error: the lock lasted. And it is bounded.
#[test]
fn with_gives_the_result_when_only_the_release_went_unanswered() {
    let server = Server::start().unwrap();
    let client = Client::builder()
        .url(&server.url())
        .io_timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let (took, result) = timed(|| {
        client.mutex("job").with(|_| {
            server.pause().unwrap();
            7
        })
    });
    assert_eq!(result.unwrap(), 7);
    assert!(took < Duration::from_secs(5), "{took:?}");
    server.resume().unwrap();
    // The release goes on in the background, so that nobody waits for the ttl of 30 s.
    let next = thread::spawn(move || {
        server
            .client()
            .mutex("job")
            .try_lock_for(Duration::from_secs(10))
            .map(drop)
    });
    next.join().unwrap().unwrap();
}
