//! What is logged: a record with fields for every acquire and release, and for whatever goes wrong.
//!
//! A logger is one for a whole process, so each test plays its part in a process of its own.

use std::time::Duration;

use leasehold::Client;
use leasehold::testing::Server;
use log::kv::{Error, Key, Value, VisitSource};
use parking_lot::Mutex;

use crate::support::ask::{BOUND, ask, is_renewal};
use crate::support::child::{Child, args, say};
use crate::support::proxy::{Action, Proxy, Times};
use crate::support::wait::{eventually, raw};

pub(crate) const ROLES: &[(&str, fn())] = &[("log/play", play)];

#[derive(Clone, Debug)]
struct Entry {
    level: log::Level,
    target: String,
    text: String,
    fields: Vec<(String, String)>,
}

impl Entry {
    fn field(&self, name: &str) -> &str {
        let field = self.fields.iter().find(|(key, _)| key == name);
        field.map_or_else(|| panic!("no {name} in {self:?}"), |(_, value)| value)
    }
}

struct Logger(Mutex<Vec<Entry>>);

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        struct Fields(Vec<(String, String)>);
        impl<'kvs> VisitSource<'kvs> for Fields {
            fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
                self.0.push((key.to_string(), value.to_string()));
                Ok(())
            }
        }
        let mut fields = Fields(Vec::new());
        record
            .key_values()
            .visit(&mut fields)
            .expect("fields can be read");
        self.0.lock().push(Entry {
            level: record.level(),
            target: record.target().to_owned(),
            text: record.args().to_string(),
            fields: fields.0,
        });
    }

    fn flush(&self) {}
}

static LOGGER: Logger = Logger(Mutex::new(Vec::new()));

fn entries(level: log::Level, text: &str) -> Vec<Entry> {
    let all = LOGGER.0.lock();
    let wanted = |entry: &&Entry| entry.level == level && entry.text.contains(text);
    all.iter().filter(wanted).cloned().collect()
}

/// The one that there must be.
fn entry(level: log::Level, text: &str) -> Entry {
    let found = entries(level, text);
    assert_eq!(found.len(), 1, "{level} {text:?} in {:#?}", LOGGER.0.lock());
    found[0].clone()
}

fn forget() {
    LOGGER.0.lock().clear();
}

/// Durations are written as Rust writes them.
fn is_duration(text: &str) -> bool {
    text.ends_with('s') && text.starts_with(|c: char| c.is_ascii_digit())
}

fn play() {
    log::set_logger(&LOGGER).expect("no other logger");
    log::set_max_level(log::LevelFilter::Trace);
    match args()[0].as_str() {
        "clean" => acquire_and_release(),
        "loss" => losses(),
        "failures" => failures(),
        other => panic!("no part {other}"),
    }
    say("played");
}

fn acquire_and_release() {
    let server = Server::start_with(["--requirepass", "s3cret"]).unwrap();
    let url = format!("redis://:s3cret@127.0.0.1:{}/", server.port());
    let client = Client::open(&url).unwrap();
    let guard = client.mutex("order:1").lock().unwrap();
    let token = guard.fencing_token().to_string();
    let acquired = entry(log::Level::Debug, "acquired");
    assert_eq!(acquired.target, "leasehold");
    assert_eq!(
        (acquired.field("name"), acquired.field("token")),
        ("order:1", &*token)
    );
    assert!(is_duration(acquired.field("waited")), "{acquired:?}");
    guard.unlock().unwrap();
    let released = entry(log::Level::Debug, "released");
    assert_eq!(
        (released.field("name"), released.field("token")),
        ("order:1", &*token)
    );
    assert!(is_duration(released.field("held")), "{released:?}");
    // An acquire that comes to nothing is its caller's business, and told to him alone.
    forget();
    assert!(client.mutex("").lock().is_err());
    assert!(LOGGER.0.lock().is_empty(), "{:?}", LOGGER.0.lock());
    client
        .mutex("order:1")
        .lock()
        .unwrap()
        .stale_write_rejected();
    let refused = entry(log::Level::Warn, "refused a write");
    assert_eq!(refused.field("name"), "order:1");
    assert!(refused.field("token").parse::<u64>().unwrap() > token.parse().unwrap());
    let wrong = Client::open(&url.replace("s3cret", "wr0ng")).unwrap();
    assert!(wrong.mutex("order:1").lock().is_err());
    for entry in LOGGER.0.lock().iter() {
        let all = format!("{entry:?}");
        assert!(!all.contains("s3cret") && !all.contains("wr0ng"), "{all}");
    }
}

fn losses() {
    let server = Server::start().unwrap();
    let (client, mut raw) = (server.client(), raw(&server.url()));
    // Held past its end, by a job that does not look.
    let fixed = Duration::from_millis(300);
    let guard = client
        .mutex("fixed")
        .with_fixed_lease(fixed)
        .lock()
        .unwrap();
    let token = guard.fencing_token().to_string();
    let overrun = || entries(log::Level::Warn, "fixed lease");
    eventually(BOUND, "the overrun is logged by itself", || {
        overrun().len() == 1
    });
    assert_eq!(
        (overrun()[0].field("name"), overrun()[0].field("token")),
        ("fixed", &*token)
    );
    // Once, however often it is asked for and dropped.
    assert!(guard.check().is_err() && guard.verify().is_err());
    drop(guard);
    assert_eq!(entries(log::Level::Warn, "fixed").len(), 1);
    // Taken away, and found by the renewal.
    let ttl = Duration::from_millis(600);
    let guard = client.mutex("taken").with_ttl(ttl).lock().unwrap();
    ask::<()>(&mut raw, "DEL taken");
    let lost = || entries(log::Level::Warn, "not ours any more");
    eventually(BOUND, "the loss is logged", || lost().len() == 1);
    assert_eq!(lost()[0].field("name"), "taken");
    drop(guard);
    // Taken away, and found by the drop, which has no other way to say so.
    forget();
    let guard = client.mutex("dropped").lock().unwrap();
    ask::<()>(&mut raw, "DEL dropped");
    drop(guard);
    let refused = entry(log::Level::Warn, "release failed");
    assert_eq!(refused.field("name"), "dropped");
    assert!(is_duration(refused.field("held")), "{refused:?}");
}

fn failures() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(format!("127.0.0.1:{}", server.port()));
    let client = Client::open(&proxy.url()).unwrap();
    let ttl = Duration::from_millis(1500);
    let guard = client.mutex("job").with_ttl(ttl).lock().unwrap();
    proxy.rule(
        is_renewal,
        Action::ReplaceReply(b"-LOADING soon\r\n".to_vec()),
        Times::Once,
    );
    let failed = || entries(log::Level::Warn, "renewal of lock \"job\" failed");
    eventually(BOUND, "a renewal that failed is logged", || {
        failed().len() == 1
    });
    assert_eq!(failed()[0].field("name"), "job");
    assert!(failed()[0].text.contains("LOADING"), "{:?}", failed());
    eventually(BOUND, "renewed", || client.metrics().renewals >= 1);
    server.kill().unwrap();
    drop(guard);
    let unanswered = entry(log::Level::Warn, "release failed");
    assert_eq!(unanswered.field("name"), "job");
    // Whatever is said, it is said under our name.
    let ours =
        |entry: &Entry| entry.target == "leasehold" || entry.target.starts_with("leasehold::");
    let all = LOGGER.0.lock();
    let of_packages: Vec<_> = all.iter().filter(|entry| !ours(entry)).collect();
    assert!(
        of_packages
            .iter()
            .all(|entry| entry.level > log::Level::Warn),
        "{of_packages:?}"
    );
}

fn played(part: &str) {
    let mut child = Child::role("log/play").arg(part).spawn();
    child.wait_for("played", 6 * BOUND);
    assert!(child.wait(BOUND).expect("it ends").success());
}

/// Name, token, and how long it was waited for or held, for whatever reads logs by fields.
#[test]
fn acquire_and_release_are_logged_with_their_fields() {
    played("clean");
}

/// Every loss is logged once, with the lock's name, also where the only one to hear of it is a drop.
#[test]
fn every_loss_is_logged_once() {
    played("loss");
}

#[test]
fn failed_renewals_and_releases_are_logged() {
    played("failures");
}
