//! The user's logger runs on our threads: whatever it does harms no lock. A logger is for the whole process, so each of these
//! runs in one of its own.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::suspend;
use leasehold::{Canceller, Client, MutexGuard, Wait};
use parking_lot::Mutex;

use crate::support::child::{Child, say};
use crate::support::proxy::{Action, Command, Times};
use crate::support::scene::Scene;
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(3);

pub(crate) const ROLES: &[(&str, fn())] = &[
    ("review/panics_at_renewals", panics_at_renewals),
    ("review/blocks_at_renewals", blocks_at_renewals),
    ("review/panics_at_acquired", panics_at_acquired),
    ("review/panics_at_released", panics_at_released),
    ("review/panics_in_the_cleaner", panics_in_the_cleaner),
    ("review/panics_in_the_inbox", panics_in_the_inbox),
    ("review/needs_stack", needs_stack),
];

#[track_caller]
fn play(role: &str) {
    // On a busy machine a backtrace takes the renewer's thread longer to print than its lease has left.
    let mut child = Child::role(role).env("RUST_BACKTRACE", "0").spawn();
    child.wait_for("well", BOUND * 3);
    assert!(child.wait(BOUND).is_some_and(|status| status.success()));
}

struct Logger(fn(&str));

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        (self.0)(&record.args().to_string());
    }

    fn flush(&self) {}
}

/// From now on, for this process.
fn log_with(logger: fn(&str)) {
    log::set_logger(Box::leak(Box::new(Logger(logger)))).expect("the first logger");
    log::set_max_level(log::LevelFilter::Trace);
}

fn is_renewal(command: &Command) -> bool {
    command.runs_on("renew", "x")
}

/// Sees that a thread of ours has something to log: `x` is renewed in vain, once.
fn break_a_renewal(scene: &Scene) {
    let broken = scene
        .proxy
        .rule(is_renewal, Action::CutBeforeReply, Times::Once);
    assert!(broken.wait_hit(BOUND));
}

static LOGGED: AtomicUsize = AtomicUsize::new(0);

/// As `eprintln!` does where standard error is closed.
fn panic_at(said: &str, text: &str) {
    if said.contains(text) {
        LOGGED.fetch_add(1, Ordering::SeqCst);
        panic!("a logger that panics");
    }
}

/// The panic ended the renewer's thread: renewing ended with it, and the drop waited for its answer for ever.
#[test]
fn a_logger_that_panics_ends_no_renewing() {
    play("review/panics_at_renewals");
}

fn panics_at_renewals() {
    log_with(|said| panic_at(said, "renewal of lock"));
    let scene = Scene::new();
    let client = scene.builder().ttl(TTL).build().unwrap();
    let guard = client.mutex("x").lock().unwrap();
    break_a_renewal(&scene);
    eventually(BOUND, "renewed all the same", || {
        client.metrics().renewals >= 2 || !guard.is_held()
    });
    assert!(guard.is_held());
    assert!(LOGGED.load(Ordering::SeqCst) >= 1);
    let began = Instant::now();
    guard.unlock().unwrap();
    assert!(began.elapsed() < BOUND);
    say("well");
}

/// A drop waited for a renewer that stood in the user's logger, for as long as that took; and the next hold was given to the
/// same thread, which did not renew it.
#[test]
fn a_logger_that_blocks_holds_up_no_drop_and_no_other_lock() {
    play("review/blocks_at_renewals");
}

fn blocks_at_renewals() {
    static BLOCKED: AtomicBool = AtomicBool::new(false);
    static GO_ON: AtomicBool = AtomicBool::new(false);
    log_with(|said| {
        if said.contains("renewal of lock \"x\"") {
            BLOCKED.store(true, Ordering::SeqCst);
            while !GO_ON.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let scene = Scene::new();
    let builder = scene.builder().ttl(TTL);
    let client = builder.io_timeout(TTL / 6).build().unwrap();
    let guard = client.mutex("x").lock().unwrap();
    break_a_renewal(&scene);
    eventually(BOUND, "it blocks", || BLOCKED.load(Ordering::SeqCst));
    let began = Instant::now();
    drop(guard);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!scene.exists("x"), "released");
    let renewals = client.metrics().renewals;
    let other = client.mutex("y").lock().unwrap();
    eventually(BOUND, "another hold is renewed", || {
        client.metrics().renewals >= renewals + 2 || !other.is_held()
    });
    other.unlock().unwrap();
    // Ends the threads that it can end, without a wait for the one that can't hear.
    let began = Instant::now();
    drop(client);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    GO_ON.store(true, Ordering::SeqCst);
    say("well");
}

/// The panic came between the grant and the guard: nobody could release the lock, and its thread renewed it for ever.
#[test]
fn a_logger_that_panics_at_an_acquire_leaves_nothing_held_and_nothing_renewed() {
    play("review/panics_at_acquired");
}

fn panics_at_acquired() {
    log_with(|said| panic_at(said, "acquired"));
    let scene = Scene::new();
    let client = scene.builder().ttl(TTL).build().unwrap();
    let locked = catch_unwind(AssertUnwindSafe(|| client.mutex("x").lock().map(drop)));
    assert!(locked.is_err());
    assert!(!scene.exists("x"), "released while the panic unwound");
    assert_eq!(leasehold::testing::entries(&client), 0);
    say("well");
}

/// A panic in a drop is the end of the process if the drop belongs to a panic already.
#[test]
fn a_logger_that_panics_makes_no_drop_panic() {
    play("review/panics_at_released");
}

fn panics_at_released() {
    log_with(|said| panic_at(said, "released"));
    let scene = Scene::new();
    let client = scene.client();
    let mutex = client.mutex("x");
    drop(mutex.lock().unwrap());
    assert!(!scene.exists("x"));
    let guard = mutex.lock().unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("the user's own");
    }));
    assert!(unwound.is_err());
    assert!(!scene.exists("x"));
    assert_eq!(LOGGED.load(Ordering::SeqCst), 2);
    say("well");
}

/// The release that goes on in the background of a hold that was lost: answered with an error, which is logged there.
fn break_the_cleaner(scene: &Scene, client: &Client) {
    let error = Action::ReplaceReply(b"-ERR out of order\r\n".to_vec());
    let is_release = |c: &Command| c.runs_on("release", "lost");
    let broken = scene.proxy.rule(is_release, error, Times::Once);
    let guard = client.mutex("lost").lock().unwrap();
    suspend(client, Duration::from_secs(31));
    drop(guard);
    assert!(broken.wait_hit(BOUND));
}

/// The panic ended the thread that undoes things in the background, which counted as running from then on: no other clean-up
/// was ever done.
#[test]
fn a_logger_that_panics_ends_no_cleaning_up() {
    play("review/panics_in_the_cleaner");
}

fn panics_in_the_cleaner() {
    log_with(|said| panic_at(said, "could not clean up"));
    let scene = Scene::new();
    let client = scene.client();
    break_the_cleaner(&scene, &client);
    eventually(BOUND, "it panics", || LOGGED.load(Ordering::SeqCst) == 1);
    // One that is told while the thread comes down is left to its ttl; those after it are not.
    eventually(BOUND, "the next key is cleaned up", || {
        let guard = client.mutex("x").lock().unwrap();
        suspend(&client, Duration::from_secs(31));
        drop(guard);
        let until = Instant::now() + Duration::from_secs(2);
        while scene.exists("x") && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        let gone = !scene.exists("x");
        let _: i64 = scene.ask("DEL x");
        gone
    });
    say("well");
}

/// The panic ended the thread that hears wakes, which counted as running from then on: all waits of the client polled.
#[test]
fn a_logger_that_panics_ends_no_listening_for_wakes() {
    play("review/panics_in_the_inbox");
}

/// Cuts the connection on which wakes come, while somebody waits, after `before`. What breaks is logged there.
fn break_the_inbox(scene: &Scene, client: &Client, before: impl FnOnce()) {
    let held = scene.outsider().mutex("held");
    let _held = held.lock().map(MutexGuard::into_owned).unwrap();
    let subscribed = || scene.proxy.count(|c| c.name() == "SUBSCRIBE");
    let stop = Canceller::new();
    thread::scope(|scope| {
        let wait = Wait::forever().cancelled_by(&stop);
        scope.spawn(|| client.mutex("held").lock_with(wait).map(drop));
        eventually(BOUND, "it waits", || held.inspect().unwrap().waiters == 1);
        before();
        let times = subscribed();
        scene.proxy.cut();
        eventually(BOUND, "subscribed again", || subscribed() > times);
        stop.cancel();
    });
}

fn panics_in_the_inbox() {
    log_with(|said| {
        if thread::current().name() == Some("leasehold-inbox") {
            panic_at(said, "connection");
        }
    });
    let scene = Scene::new();
    let client = scene.client();
    break_the_inbox(&scene, &client, || ());
    assert!(LOGGED.load(Ordering::SeqCst) >= 1);
    say("well");
}

/// 128 KiB of stack were enough for our own work, and not for a logger that formats on the stack: the process died.
#[test]
fn a_logger_may_use_a_quarter_of_a_mebibyte_of_stack_on_each_of_our_threads() {
    play("review/needs_stack");
}

fn needs_stack() {
    static ON: Mutex<Vec<String>> = Mutex::new(Vec::new());
    log_with(|_| {
        let thread = thread::current();
        if let Some(name) = thread.name().filter(|name| name.starts_with("leasehold-")) {
            let much = [1_u8; 256 << 10];
            black_box(&much);
            ON.lock().push(name.to_owned());
        }
    });
    let scene = Scene::new();
    let client = scene.client();
    // All are started before any thread ends: the stack of one that has ended, which may be larger, is used again.
    break_the_inbox(&scene, &client, || {
        let guard = client.mutex("x").with_ttl(TTL).lock().unwrap();
        break_the_cleaner(&scene, &scene.client());
        break_a_renewal(&scene);
        eventually(BOUND, "renewed", || client.metrics().renewals >= 1);
        drop(guard);
    });
    let on = |thread: &str| ON.lock().iter().any(|name| name == thread);
    eventually(BOUND, "logged on all of them", || {
        on("leasehold-renew") && on("leasehold-inbox") && on("leasehold-cleaner")
    });
    say("well");
}
