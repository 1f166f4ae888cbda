//! Keys that are somebody's data: refused at once, whoever asks, and left as they are.

use leasehold::ErrorKind;
use redis::Connection;

use super::kind::{Kind, kind_of};
use super::topology::Topology;
use crate::support::ask::{BOUND, ask, elsewhere, timed};

cases! {
    all: [
        a_key_of_another_shape_is_somebodys_data,
        a_key_that_becomes_somebodys_data_under_a_hold_stays,
    ],
    marked: [],
}

/// What such a key may be: the command that makes it.
fn foreign(kind: Kind, key: &str) -> Vec<String> {
    let mut makes = vec![
        format!("RPUSH {key} 1 2 3"),
        format!("SADD {key} 1 2 3"),
        // A plain hash: not ours either where we keep a hash.
        format!("HSET {key} field value h1 2"),
        format!("HSET {key} s 1NN x 1,2,3,4,r"),
        format!("XADD {key} 1-1 field value"),
    ];
    // Without a ttl it is no lock of anybody's; where a table is wanted, nor is one with a ttl.
    makes.push(format!("SET {key} precious"));
    if kind.is_table() {
        makes.push(format!("SET {key} precious PX 60000"));
    }
    makes
}

fn dump(raw: &mut Connection, key: &str) -> Vec<u8> {
    ask(raw, &format!("DUMP {key}"))
}

/// Invariant 13: a key of another type, a plain hash where ours is a hash, a string without a ttl: `KeyConflict` from every
/// form of acquire, without waiting, and from `force_unlock`; a look does no harm; the key is as it was, and nothing is
/// beside it.
fn a_key_of_another_shape_is_somebodys_data<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let lock = kind.of(&client, "job");
    let key = kind.key("job");
    let mut raw = topology.raw(&key);
    for make in foreign(kind, &key) {
        ask::<redis::Value>(&mut raw, &make);
        let before = dump(&mut raw, &key);
        let (took, kinds) = timed(|| {
            [
                kind_of(lock.lock()),
                kind_of(lock.try_lock()),
                kind_of(lock.try_lock_for(BOUND)),
                kind_of(lock.force_unlock()),
            ]
        });
        assert_eq!(kinds, [Some(ErrorKind::KeyConflict); 4], "{make}");
        assert!(took < BOUND / 2, "{make}: {took:?}");
        let error = lock.lock().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&key) && !error.is_retryable(), "{text}");
        let look = lock.inspect();
        assert!(
            look.is_ok_and(|info| info.held && info.kind == "foreign"),
            "{make}"
        );
        assert_eq!(dump(&mut raw, &key), before, "{make}");
        for key in kind.keys("job").iter().filter(|other| **other != key) {
            assert!(
                !ask::<bool>(&mut raw, &format!("EXISTS {key}")),
                "{make}: {key}"
            );
        }
        ask::<()>(&mut raw, &format!("DEL {key}"));
    }
    lock.try_lock().unwrap().unlock().unwrap();
}

/// Invariant 13: somebody's data in the place of a lock that we hold: the hold is lost, and neither its renewals nor its
/// release touch the data.
fn a_key_that_becomes_somebodys_data_under_a_hold_stays<T: Topology>(kind: Kind) {
    let topology = T::start();
    let client = topology.builder().build().unwrap();
    let key = kind.key("job");
    let mut raw = topology.raw(&key);
    for make in foreign(kind, &key) {
        let lock = kind.of(&client, "job");
        let held = lock.try_lock_for(BOUND).unwrap();
        ask::<()>(&mut raw, &format!("DEL {key}"));
        ask::<redis::Value>(&mut raw, &make);
        let before = dump(&mut raw, &key);
        assert_eq!(kind_of(held.verify()), Some(ErrorKind::NotHeld), "{make}");
        drop(held);
        assert_eq!(dump(&mut raw, &key), before, "{make}");
        ask::<()>(&mut raw, &format!("DEL {key}"));

        let held = elsewhere(|| lock.try_lock_for(BOUND).map(drop));
        assert_eq!(kind_of(held), None, "{make}");
        let held = lock.try_lock_for(BOUND).unwrap();
        ask::<()>(&mut raw, &format!("DEL {key}"));
        ask::<redis::Value>(&mut raw, &make);
        assert_eq!(kind_of(held.unlock()), Some(ErrorKind::NotHeld), "{make}");
        assert_eq!(dump(&mut raw, &key), before, "{make}");
        ask::<()>(&mut raw, &format!("DEL {key}"));
    }
    assert_eq!(client.metrics().release_errors, 0);
}
