//! Invariant 6: the server's clock inside the server, the boot clock inside the client, and nobody's wall clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use leasehold::FencingToken;

use crate::support::locks::{Scene, ms, script, secs, take_as_foreigner};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Invariant 6: nothing in the client reads the wall clock, so however wrong it is, it decides nothing.
#[test]
fn no_source_file_reads_the_wall_clock() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 30, "{}", files.len());
    let mut boot_clock = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for reading in [
            "SystemTime::now",
            "UNIX_EPOCH.elapsed",
            "ClockId::Realtime",
            "gettimeofday",
            "Utc::now",
            "Local::now",
        ] {
            assert!(!text.contains(reading), "{}: {reading}", file.display());
        }
        // What there is of `SystemTime` is the server's, for people to read.
        let may_show = ["src/observe/inspect.rs", "src/observe/table.rs"]
            .iter()
            .any(|shows| file.ends_with(shows));
        let shows = text.contains("SystemTime");
        assert!(may_show || !shows, "{}", file.display());
        boot_clock += text.matches("ClockId::Boottime").count();
    }
    assert_eq!(boot_clock, 1);
}

/// The server's clock in microseconds.
fn server_time(raw: &mut redis::Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(raw).unwrap();
    seconds * 1_000_000 + micros
}

/// Invariant 6: a fencing token, and since when a lock is held, are the server's time.
#[test]
fn tokens_and_times_are_the_servers() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    let mutex = bench.client_with(secs(30)).mutex("m");
    let before = server_time(&mut raw);
    let guard = mutex.lock().unwrap();
    let after = server_time(&mut raw);
    let token = guard.fencing_token();
    assert!(FencingToken::from(before) < token && token < FencingToken::from(after));
    let since = mutex.inspect().unwrap().since.unwrap();
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let whole_ms = Duration::from_millis(token.get() / 1000);
    assert_eq!(since, whole_ms);
}

/// Invariant 6: no number that a client sends is a time of day, in whatever unit; but for the lowest token that it will
/// take, which is one that the server gave it.
#[test]
fn a_client_sends_no_time_of_day() {
    let bench = Scene::new();
    let mut raw = bench.raw();
    take_as_foreigner(&mut raw, "foreign", secs(60));
    let client = bench.client_with(ms(1500));
    let guard = client.mutex("m").lock().unwrap();
    let last = guard.fencing_token().get();
    // A waiter registers, leaves; a lock is looked at, renewed, given back, kept, and taken away.
    let other = bench.client_with(secs(30)).mutex("m");
    assert!(other.try_lock_for(ms(200)).is_err());
    assert!(client.mutex("foreign").try_lock_for(ms(200)).is_err());
    guard.verify().unwrap();
    bench.pass_renewals(&guard, 1);
    guard.unlock().unwrap();
    let kept = other.with_hold_at_least(secs(30));
    kept.lock().unwrap().unlock().unwrap();
    kept.force_unlock().unwrap();

    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let day = Duration::from_secs(24 * 3600);
    let (from, to) = (now - day, now + day);
    let units = [1, 1_000, 1_000_000, 1_000_000_000_u128];
    let is_time = |n: u128| {
        let within =
            |unit: u128| n >= from.as_secs() as u128 * unit && n <= to.as_secs() as u128 * unit;
        units.into_iter().any(within)
    };
    let (mut calls, mut numbers) = (0, 0);
    for command in bench.proxy.commands() {
        calls += usize::from(script(&command).is_some());
        for arg in &command.args {
            let number = str::from_utf8(arg)
                .ok()
                .and_then(|s| s.parse::<u128>().ok());
            let Some(n) = number else { continue };
            numbers += 1;
            assert!(n == u128::from(last) + 1 || !is_time(n), "{command:?}");
        }
    }
    assert!(calls >= 10 && numbers >= 20, "{calls} {numbers}");
}
