//! Invariant 12: one hash slot per call, all keys in KEYS, and no two locks share a key.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::thread;
use std::time::Duration;

use leasehold::testing::Server;
use leasehold::{Client, ErrorKind};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::ask::elsewhere;
use crate::support::locks::{BOUND, Scene, Script, exists, keys, ms, of, secs};
use crate::support::proxy::Command;
use crate::support::scripts::names_of_scripts;
use crate::support::wait::{eventually, raw};

/// Names that are likely to be trouble: braces, colons, what separates companions, and any other character.
fn names() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => Just("{".to_owned()),
        3 => Just("}".to_owned()),
        2 => Just(":".to_owned()),
        1 => Just("%".to_owned()),
        1 => Just("%3A".to_owned()),
        1 => Just(":lh:".to_owned()),
        1 => Just("t".to_owned()),
        4 => "[a-c]{1,3}",
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 1..7).prop_map(|parts| parts.concat())
}

fn namespaces() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => Just(String::new()),
        3 => names().prop_filter("no control characters", |n| !n.chars().any(char::is_control)),
    ]
}

fn slot(raw: &mut redis::Connection, key: &[u8]) -> u16 {
    let mut keyslot = redis::cmd("CLUSTER");
    keyslot.arg("KEYSLOT").arg(key).query(raw).unwrap()
}

/// A single node of a cluster, to which these slots belong.
fn cluster_node(slots: &[u16]) -> Server {
    let server = Server::start_with([
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
    ])
    .unwrap();
    for slot in slots {
        let mut add = redis::cmd("CLUSTER");
        add.arg("ADDSLOTS").arg(slot);
        add.exec(&mut raw(&server.url())).unwrap();
    }
    let mut raw = raw(&server.url());
    let mut info = redis::cmd("CLUSTER");
    info.arg("INFO");
    // A node that has just been given a slot takes two seconds to believe that all is well.
    eventually(BOUND, "the cluster is up", || {
        let info: String = info.query(&mut raw).unwrap();
        slots.is_empty() || info.contains("cluster_state:ok")
    });
    server
}

/// A script's call as the server sees it, whichever script it is.
fn is_script(command: &Command) -> bool {
    command.script().is_some()
}

/// The other types' scripts, of locks of this name: with the words' those are all.
fn use_the_family(client: &Client, name: &str, wait: Duration) -> leasehold::Result<()> {
    let (fair, rw, permits) = (
        client.fair_mutex(name),
        client.rw_lock(name),
        client.semaphore(name, 3),
    );
    drop(client.reentrant_mutex(name).try_lock()?);
    let guard = fair.try_lock()?;
    assert!(elsewhere(|| fair.try_lock_for(wait).map(drop)).is_err());
    guard.unlock()?;
    let writing = rw.try_write()?;
    writing.verify()?;
    assert!(elsewhere(|| rw.try_read_for(wait).map(drop)).is_err());
    let reading = writing.downgrade()?;
    reading.unlock()?;
    let upgradable = rw.try_upgradable_read()?;
    drop(upgradable.try_upgrade()?);
    let fixed = rw.clone().with_fixed_lease(secs(30)).try_read()?;
    fixed.extend(secs(20))?;
    assert_eq!(rw.inspect()?.kind, "rw lock");
    assert!(rw.force_unlock()?);
    drop(fixed);
    let three = permits.try_acquire_many(3)?;
    assert!(permits.try_acquire_for(wait).is_err());
    assert_eq!(permits.available_permits()?, 0);
    permits.set_permits(2)?;
    // As the next one of this name will have it.
    permits.set_permits(3)?;
    three.verify()?;
    three.unlock()?;
    let several = client.multi_mutex([name, name]);
    let guard = several.try_lock()?;
    guard.verify()?;
    assert!(elsewhere(|| several.try_lock_for(wait).map(drop)).is_err());
    guard.unlock()?;
    Ok(())
}

/// Everything that calls a script; one wait takes so long, and if that is enough it registers, and leaves.
fn use_all(client: &Client, name: &str, wait: Duration) -> leasehold::Result<()> {
    let mutex = client.mutex(name);
    let guard = mutex.try_lock()?;
    guard.verify()?;
    assert_eq!(mutex.inspect()?.kind, "mutex");
    guard.unlock()?;
    let fixed = mutex.clone().with_fixed_lease(secs(30)).try_lock()?;
    fixed.extend(secs(20))?;
    drop(fixed);
    drop(mutex.clone().with_hold_at_least(secs(20)).try_lock()?);
    assert!(mutex.try_lock_for(wait).is_err());
    assert!(mutex.force_unlock()?);
    Ok(())
}

/// Invariant 12: whatever the name and the namespace, all keys of a call have one slot, and they are this lock's alone.
#[test]
fn all_keys_of_a_call_have_one_slot() {
    let bench = Scene::new();
    let cluster = cluster_node(&[]);
    let oracle = RefCell::new(raw(&cluster.url()));
    // Key → whose it is. Without a namespace the key is the name, so that it may be any other client's, too.
    let owners = RefCell::new(HashMap::<(bool, Vec<u8>), (String, String)>::new());
    let (used, refused) = (Cell::new(0), Cell::new(0));
    let called = RefCell::new(BTreeSet::new());
    let config = Config {
        cases: 80,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&(namespaces(), names()), |(namespace, name)| {
        bench.proxy.reset_counts();
        let builder = bench.builder().namespace(&namespace);
        let client = builder.pool_size(1).build().unwrap();
        if let Err(error) = use_all(&client, &name, ms(3)) {
            prop_assert_eq!(error.kind(), ErrorKind::InvalidName, "{}", error);
            let error = use_the_family(&client, &name, ms(3)).unwrap_err();
            prop_assert_eq!(error.kind(), ErrorKind::InvalidName, "{}", error);
            prop_assert_eq!(bench.proxy.count(is_script), 0);
            refused.set(refused.get() + 1);
            return Ok(());
        }
        if let Err(error) = use_the_family(&client, &name, ms(3)) {
            return Err(TestCaseError::fail(format!("{name:?}: {error}")));
        }
        used.set(used.get() + 1);
        for command in bench.proxy.commands() {
            let Some(script) = command.script() else {
                continue;
            };
            called.borrow_mut().insert(script);
            let keys = keys(&command);
            let slots: Vec<u16> = keys
                .iter()
                .map(|key| slot(&mut oracle.borrow_mut(), key))
                .collect();
            prop_assert!(slots.iter().all(|s| *s == slots[0]), "{:?}", command);
            for key in keys {
                let me = (namespace.clone(), name.clone());
                let mut owners = owners.borrow_mut();
                let key_of = (namespace.is_empty(), key.clone());
                let owner = owners.entry(key_of).or_insert_with(|| me.clone());
                prop_assert_eq!(&*owner, &me, "{:?}", String::from_utf8_lossy(key));
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    assert!(used.get() > 20 && refused.get() > 5, "{used:?} {refused:?}");
    let called = called.into_inner();
    let missing: Vec<_> = names_of_scripts()
        .filter(|name| !called.contains(name))
        .collect();
    assert!(missing.is_empty(), "never called: {missing:?}");
}

/// Invariant 12: names and namespaces that are easily taken for one another are not.
#[test]
fn names_that_look_alike_are_different_locks() {
    let server = Server::start().unwrap();
    let client = |namespace: &str| {
        let builder = Client::builder().url(&server.url()).namespace(namespace);
        builder.build().unwrap()
    };
    let alike = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a%3Ab", "c"),
        ("", "{a}"),
        ("", "a"),
        ("{a}", "a"),
        ("a", "a"),
        ("a", "{a}"),
        ("", "t"),
        ("", "{t}"),
        ("", "a{b"),
        ("", "{a}b"),
    ];
    // All at once: each would be in another's way if they shared a word; a state that is shared would be another's.
    let held: Vec<_> = alike
        .iter()
        .map(|(namespace, name)| {
            let guard = client(namespace).mutex(*name).try_lock();
            guard.unwrap_or_else(|e| panic!("{namespace} {name}: {e}"))
        })
        .collect();
    let count: usize = redis::cmd("DBSIZE").query(&mut raw(&server.url())).unwrap();
    assert_eq!(count, 2 * held.len());
    for ((namespace, name), guard) in alike.iter().zip(&held) {
        let info = client(namespace).mutex(*name).inspect().unwrap();
        assert_eq!(info.token, Some(guard.fencing_token()));
    }
}

/// Invariant 12, spring-integration#10546, DistributedLock#254, sherlock#31: a node of a cluster that has the names' slots
/// only refuses every key elsewhere, be it in KEYS or built in a script: all of it works there.
#[test]
fn all_of_it_works_on_a_node_that_has_the_names_slots_only() {
    let names = ["stock", "{stock}:eu", "a{stock}b}c", "stock:{", "名{前}"];
    let slots: BTreeSet<u16> = {
        let anywhere = cluster_node(&[]);
        let mut raw = raw(&anywhere.url());
        let slot = |name: &&str| slot(&mut raw, name.as_bytes());
        names.iter().map(slot).collect()
    };
    assert_eq!(slots.len(), 3);
    let slots: Vec<u16> = slots.into_iter().collect();
    let bench = Scene::before(cluster_node(&slots));
    let mut raw = bench.raw();
    // It does refuse.
    let elsewhere = redis::cmd("GET").arg("elsewhere").exec(&mut raw);
    assert_eq!(elsewhere.unwrap_err().code(), Some("CLUSTERDOWN"));
    let (client, other) = (bench.client_with(secs(30)), bench.client_with(secs(30)));
    for name in names {
        use_all(&client, name, ms(300)).unwrap_or_else(|e| panic!("{name}: {e}"));
        use_the_family(&client, name, ms(300)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for wanted in [
            Script::Acquire,
            Script::Renew,
            Script::Release,
            Script::Leave,
            Script::Inspect,
            Script::ForceUnlock,
        ] {
            assert!(
                bench.proxy.count(of(wanted, name)) > 0,
                "{name}: {wanted:?}"
            );
        }
        // A waiter that is woken by the release.
        let guard = client.mutex(name).lock().unwrap();
        thread::scope(|s| {
            let wait = s.spawn(|| other.mutex(name).lock().map(drop));
            let mutex = client.mutex(name);
            eventually(BOUND, "it waits", || mutex.inspect().unwrap().waiters == 1);
            guard.unlock().unwrap();
            wait.join().unwrap().unwrap();
        });
        assert!(!exists(&mut raw, name));
    }
}
