//! Promised times are kept at the edges, too. A busy machine may break one once, a fault breaks it each time.

use std::time::{Duration, Instant};

use leasehold::ErrorKind;

use crate::support::late::warm;
use crate::support::proxy::{Action, Times};
use crate::support::scene::Scene;
use crate::support::wait::{eventually, one_of};

const BOUND: Duration = Duration::from_secs(10);

/// A bounded wait of a little less than the I/O timeout had all of the I/O timeout: setting the socket's timeout anew was
/// spared where the one that was set was near enough, and "near" was a tenth.
#[test]
fn a_wait_of_a_little_less_than_the_io_timeout_keeps_its_bound() {
    let asked = Duration::from_millis(1725);
    let promised = asked + asked / 10 + Duration::from_millis(20);
    let scene = Scene::new();
    one_of(3, || {
        let client = scene.client();
        // The connection has the I/O timeout of 2 s set now.
        warm(&client);
        scene.proxy.black_hole(true);
        let began = Instant::now();
        let error = client.mutex("x").try_lock_for(asked).unwrap_err();
        let took = began.elapsed();
        scene.proxy.black_hole(false);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        if took > promised {
            return Err(format!("{took:?}, not {promised:?}"));
        }
        Ok(())
    });
}

/// A renewal that was slow to be sent (the connection had to be made) gave a hold a whole ttl from then on, and so more than
/// `with_max_hold` allows.
#[test]
fn max_hold_is_kept_though_a_renewal_was_slow_to_be_sent() {
    let scene = Scene::new();
    // A database to be selected: something to be slow at when a connection is made.
    let url = format!("{}1", scene.proxy.url());
    let client = scene.builder().url(&url).build().unwrap();
    let max = Duration::from_millis(4050);
    let mutex = client.mutex("x").with_ttl(Duration::from_secs(3));
    let guard = mutex.with_max_hold(max).lock().unwrap();
    let granted = Instant::now();
    let slow = scene.proxy.rule(
        |c| c.name() == "SELECT",
        Action::DelayReply(Duration::from_millis(250)),
        Times::Once,
    );
    eventually(BOUND, "renewed", || client.metrics().renewals == 1);
    assert_eq!(slow.hits(), 1);
    let ends_after = guard.remaining() + granted.elapsed();
    assert!(ends_after <= max, "{ends_after:?}");
}

/// A renewal whose script the server had forgotten was sent again with its source, each time with all of the I/O timeout; and
/// the drop waited for both.
#[test]
fn a_drop_keeps_to_the_io_timeout_though_a_renewal_is_sent_twice() {
    let io = Duration::from_millis(800);
    one_of(3, || {
        let scene = Scene::new();
        let builder = scene.builder().io_timeout(io);
        let client = builder.ttl(io * 6).build().unwrap();
        let guard = client.mutex("x").lock().unwrap();
        let _: String = scene.ask("SCRIPT FLUSH");
        let forgotten = scene.proxy.rule(
            |c| c.runs_on("renew", "x") && c.name() == "EVALSHA",
            Action::DelayReply(io * 7 / 8),
            Times::Once,
        );
        scene.proxy.rule(
            |c| c.runs_on("renew", "x"),
            Action::DropReply,
            Times::Always,
        );
        assert!(forgotten.wait_hit(BOUND));
        let began = Instant::now();
        drop(guard);
        let took = began.elapsed();
        // The release has its own try in any case.
        if took > io * 5 / 4 + Duration::from_millis(50) {
            return Err(format!("{took:?}, where the I/O timeout is {io:?}"));
        }
        Ok(())
    });
}
