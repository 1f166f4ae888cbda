//! Wakes that came to the wrong place, and how often a waiter looks.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Canceller, Client, ErrorKind, Wait};

use crate::support::proxy::{Action, Times};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(10);

/// A wake that finds nobody waiting any more is passed on to the next waiter. For a word that looked like one of our own
/// companion keys, which a namespace can make of a valid name, it was not.
#[test]
fn a_stray_wake_is_passed_on_whatever_the_word_looks_like() {
    for (namespace, name) in [("", "x"), ("a", "lh:x")] {
        let scene = Scene::new();
        let word = if namespace.is_empty() {
            name.into()
        } else {
            format!("{namespace}:{name}")
        };
        let builder = scene.builder().namespace(namespace);
        let gone = builder.build().unwrap();
        let builder = Client::builder()
            .url(&scene.server.url())
            .namespace(namespace);
        let other = builder.build().unwrap();
        let _: String = scene.ask(&format!("SET {word} a-foreign-lock PX 60000"));
        let waits = || {
            eventually(BOUND, "it waits", || {
                other.mutex(name).inspect().unwrap().waiters == 1
            })
        };
        thread::scope(|scope| {
            let stop = Canceller::new();
            let wait = Wait::forever().cancelled_by(&stop);
            let waiter = scope.spawn(|| gone.mutex(name).lock_with(wait).map(drop));
            waits();
            let inbox: Vec<String> = scene.ask("PUBSUB CHANNELS leasehold:inbox:*");
            assert_eq!(inbox.len(), 1);
            stop.cancel();
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            let passed_on = {
                let word = word.clone();
                scene.proxy.rule(
                    move |c| c.runs_on("leave", &word),
                    Action::DelayReply(Duration::ZERO),
                    Times::Always,
                )
            };
            let next = scope.spawn(|| other.mutex(name).lock().map(drop));
            waits();
            // As if its holder had let go while only the first one waited.
            let _: i64 = scene.ask(&format!("DEL {word}"));
            let heard_by: i64 = scene.ask(&format!("PUBLISH {} 00000000={word}", inbox[0]));
            assert_eq!(heard_by, 1);
            assert!(passed_on.wait_hit(BOUND), "{word}");
            next.join().unwrap().unwrap();
        });
    }
}

/// A waiter looked again at the end of the holder's ttl, and so the more often the shorter that was, for as long as it was
/// renewed: 20 times a second for 50 ms.
#[test]
fn a_waiter_looks_twice_a_second_at_most_however_short_the_holders_ttl_is() {
    let scene = Scene::new();
    let _held = scene.outsider().mutex("x").lock().unwrap();
    // The same holder each time, with 40 ms left.
    let held = b"*4\r\n:0\r\n:40\r\n$8\r\nsomebody\r\n:1\r\n".to_vec();
    let looks = scene.proxy.rule(
        |c| c.runs_on("acquire", "x"),
        Action::ReplaceReply(held),
        Times::Always,
    );
    let began = Instant::now();
    let result = thread::scope(|scope| {
        let wait = || {
            scene
                .client()
                .mutex("x")
                .try_lock_for(Duration::from_millis(2200))
        };
        scope.spawn(move || wait().map(drop)).join().unwrap()
    });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    // The first look, one with a ticket, one where the lease of a holder that does not renew would end.
    let most = 3 + 2 * began.elapsed().as_secs_f64().ceil() as usize;
    let looks = looks.hits();
    assert!((3..=most).contains(&looks), "{looks} looks");
}
