//! Invariant 1: a guard exists only while the lock is ours as far as can be known.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::suspend;
use leasehold::{ErrorKind, Predecessor};

use crate::support::locks::{
    BOUND, Scene, Script, any, await_end, delete, exists, get, is_signalled, ms, of, pttl, secs,
};
use crate::support::proxy::{Action, Times};
use crate::support::wait::eventually;

/// What the local deadline gives away for clocks that run at different speeds.
fn drift(ttl: Duration) -> Duration {
    ttl / 100 + ms(2)
}

/// Invariant 1: the deadline is counted from before the acquire was sent, not from its reply.
#[test]
fn a_grant_counts_from_before_its_acquire_was_sent() {
    let bench = Scene::new();
    let (ttl, delay) = (secs(6), ms(500));
    bench
        .proxy
        .rule(any(Script::Acquire), Action::DelayReply(delay), Times::Once);
    let start = Instant::now();
    let guard = bench.client_with(ttl).mutex("m").lock().unwrap();
    let left = guard.remaining();
    assert!(left <= ttl - drift(ttl) - delay, "{left:?} left");
    // And no more is given away than that.
    assert!(left + start.elapsed() >= ttl - drift(ttl), "{left:?} left");
}

/// Invariant 1: so is the deadline that a renewal brings.
#[test]
fn a_renewal_counts_from_before_it_was_sent() {
    let bench = Scene::new();
    let (ttl, delay) = (secs(4), ms(350));
    let client = bench.client_with(ttl);
    bench
        .proxy
        .rule(any(Script::Renew), Action::DelayReply(delay), Times::Always);
    let guard = client.mutex("m").lock().unwrap();
    for renewals in 1..=2 {
        eventually(BOUND, "a renewal", || client.metrics().renewals >= renewals);
        let left = guard.remaining();
        assert!(left <= ttl - drift(ttl) - delay, "{left:?} left");
        guard.check().unwrap();
    }
}

/// Invariant 1: so is the end that `extend` brings; and it is the new one, not the earlier.
#[test]
fn an_extension_counts_from_before_it_was_sent() {
    let bench = Scene::new();
    let delay = ms(300);
    let mutex = bench
        .client_with(secs(30))
        .mutex("m")
        .with_fixed_lease(secs(120));
    let guard = mutex.lock().unwrap();
    bench
        .proxy
        .rule(any(Script::Renew), Action::DelayReply(delay), Times::Once);
    guard.extend(secs(60)).unwrap();
    let left = guard.remaining();
    assert!(left <= secs(60) - drift(secs(60)) - delay, "{left:?} left");
    guard.extend(secs(90)).unwrap();
    assert!(guard.remaining() > secs(65));
}

/// Invariant 1: until an extension is answered the earlier of the two ends counts, and after one that was not answered, too.
#[test]
fn an_extension_of_unknown_outcome_does_not_move_the_end() {
    let bench = Scene::new();
    let client = bench.builder().io_timeout(ms(200)).build().unwrap();
    let guard = client.mutex("m").with_fixed_lease(secs(60)).lock().unwrap();
    bench
        .proxy
        .rule(any(Script::Renew), Action::DropReply, Times::N(2));
    let error = guard.extend(secs(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(guard.remaining() <= secs(60));
    let error = guard.extend(secs(30)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(guard.remaining() <= secs(30));
    guard.check().unwrap();
}

/// Invariant 1: a grant whose reply comes when the lease is over by the client's own clock is no guard, and is undone.
#[test]
fn a_grant_that_comes_after_its_lease_is_no_guard_and_leaves_no_key() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let rule = bench.proxy.rule(
        any(Script::Acquire),
        Action::DelayReply(ms(1000)),
        Times::Once,
    );
    thread::scope(|s| {
        s.spawn(|| {
            assert!(rule.wait_hit(BOUND));
            suspend(&client, secs(31));
        });
        let error = client.mutex("m").try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseExpired, "{error}");
    });
    let mut raw = bench.raw();
    eventually(BOUND, "the key is gone", || !exists(&mut raw, "m"));
    assert_eq!(leasehold::testing::entries(&client), 0);
}

/// Invariants 1 and 4: a wait that is given such a grant goes on, with another token.
#[test]
fn a_wait_goes_on_after_a_grant_that_came_too_late() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let rule = bench.proxy.rule(
        any(Script::Acquire),
        Action::DelayReply(ms(1000)),
        Times::Once,
    );
    let guard = thread::scope(|s| {
        s.spawn(|| {
            assert!(rule.wait_hit(BOUND));
            suspend(&client, secs(31));
        });
        client.mutex("m").lock().unwrap()
    });
    guard.verify().unwrap();
    assert!(guard.remaining() > secs(25));
    assert_eq!(*guard.predecessor(), Predecessor::None);
    assert_eq!(bench.proxy.count(of(Script::Leave, "m")), 1);
    assert_eq!(bench.proxy.count(any(Script::Acquire)), 2);
}

/// Invariant 1: a reply slower than the lease lasts gives no guard either.
#[test]
fn a_reply_that_takes_longer_than_the_lease_gives_no_guard_and_leaves_no_key() {
    let bench = Scene::new();
    let client = bench.client_with(ms(600));
    bench.proxy.rule(
        any(Script::Acquire),
        Action::DelayReply(ms(700)),
        Times::Once,
    );
    let left = bench.watch(any(Script::Leave));
    let error = client.mutex("m").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Undone in the background, whether or not the key has run out by then.
    assert!(left.wait_hit(BOUND));
    assert!(!exists(&mut bench.raw(), "m"));
}

/// Invariant 1: the boot clock counts, so a machine that slept past the lease has lost it at the first look, whatever the
/// server says.
#[test]
fn after_a_suspend_past_the_lease_the_first_check_says_lost_and_it_stays_so() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let guard = client.mutex("m").lock().unwrap();
    let lease = guard.lease();
    lease.check().unwrap();
    assert!(!is_signalled(&lease));
    suspend(&client, secs(30));
    assert!(lease.check().is_err());
    assert!(is_signalled(&lease));

    // The server's clock has not moved: it would say that the lock is ours.
    let mut raw = bench.raw();
    assert!(get(&mut raw, "m").is_some() && pttl(&mut raw, "m") > 25_000);
    for _ in 0..3 {
        assert!(!lease.is_held());
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert_eq!(guard.verify().unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(bench.renewals("m"), 0);
    assert_eq!(client.metrics().lost, 1);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Lost);

    // What the server still had is given back all the same, as abandoned.
    eventually(BOUND, "the key is gone", || !exists(&mut raw, "m"));
    let next = client.mutex("m").lock().unwrap();
    assert!(
        matches!(next.predecessor(), Predecessor::Abandoned { token, .. } if *token == lease.fencing_token())
    );
}

/// Invariant 1: the same where `unlock` is the first to look; and a lost lock is no deadlock.
#[test]
fn after_a_suspend_past_the_lease_unlock_says_lost() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let guard = client.mutex("m").lock().unwrap();
    suspend(&client, secs(30));
    // This thread holds it no more, but the server has not noticed yet.
    let error = client.mutex("m").try_lock_for(ms(200)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("no renewal was confirmed"));
}

/// Invariant 1: a renewal that succeeds after the deadline brings nothing back.
#[test]
fn a_renewal_that_is_confirmed_after_the_deadline_brings_nothing_back() {
    let bench = Scene::new();
    let client = bench.client_with(secs(6));
    let rule = bench
        .proxy
        .rule(any(Script::Renew), Action::DelayReply(ms(600)), Times::Once);
    let guard = client.mutex("m").lock().unwrap();
    assert!(rule.wait_hit(BOUND));
    suspend(&client, secs(6));
    // Nobody looks before the reply is here.
    eventually(BOUND, "the renewer has seen the loss", || {
        client.metrics().lost == 1
    });
    assert!(guard.check().is_err());
    assert_eq!(client.metrics().renewals, 0);
}

/// Invariant 1: the drop of a guard that has lost its lock does nothing to whoever has it now.
#[test]
fn a_drop_after_a_suspend_does_not_harm_the_successor() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let guard = client.mutex("m").lock().unwrap();
    suspend(&client, secs(30));
    let mut raw = bench.raw();
    // For the server the time has passed as well.
    assert!(delete(&mut raw, "m"));
    let successor = bench.direct(secs(30)).mutex("m").lock().unwrap();
    let released = bench.watch(of(Script::Release, "m"));
    drop(guard);
    assert!(released.wait_hit(BOUND));
    successor.verify().unwrap();
    assert!(pttl(&mut raw, "m") > 20_000);
    successor.unlock().unwrap();
}

/// Invariant 1: a fixed lease ends by the client's clock, too, and says so in time.
#[test]
fn a_fixed_lease_is_over_before_its_key_is() {
    let bench = Scene::new();
    let mutex = bench
        .client_with(secs(30))
        .mutex("m")
        .with_fixed_lease(secs(2));
    let mut raw = bench.raw();
    let mut in_time = 0;
    // A thread that is not given the processor can't speak in time: once is not always.
    for attempt in 1..=3 {
        let guard = mutex.lock().unwrap();
        let left = pttl(&mut raw, "m");
        await_end(&guard);
        let left_then = pttl(&mut raw, "m");
        assert!(!guard.is_held() && left > 0);
        in_time += usize::from(left_then > 0);
        if in_time > 0 {
            break;
        }
        assert!(attempt < 3, "the key was gone when the holder was told");
    }
    assert_eq!(bench.renewals("m"), 0);
}

/// Invariant 1: a lease that is cut short by `extend` ends when it was told to, not when it was first due.
#[test]
fn an_extension_may_shorten_a_lease_and_the_holder_is_told_in_time() {
    let bench = Scene::new();
    let client = bench.client_with(secs(30));
    let mutex = client.mutex("m").with_fixed_lease(secs(300));
    let guard = mutex.lock().unwrap();
    // Its thread needs a moment to start, and to fall asleep until the first end.
    thread::sleep(ms(200));
    guard.extend(secs(1)).unwrap();
    assert!(pttl(&mut bench.raw(), "m") <= 1000);
    await_end(&guard);
    eventually(BOUND, "it is counted", || {
        client.metrics().overrun_leases == 1
    });
}
