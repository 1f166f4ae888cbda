//! Histories by the hundred, made up and spoiled, and the way from a process to the judge.

use std::fs::OpenOptions;
use std::io::Write;

use crate::support::history::check::check;
use crate::support::history::generate::{Spoil, good, spoiled};
use crate::support::history::record::{Recorder, read};
use crate::support::history::{
    Call, Mode, Model, Op, Outcome, Owner, by_lock, possession, verdict,
};
use crate::support::temp::TempDir;

const ALL: [Model; 5] = [
    Model::Mutex,
    Model::Fenced,
    Model::Reentrant,
    Model::RwLock,
    Model::Permits(3),
];

#[test]
fn good_histories_of_random_runs_are_accepted() {
    for model in ALL {
        for seed in 0..60 {
            if let Err(violation) = verdict(&good(model, seed, 300), model) {
                panic!("seed {seed}: {violation}");
            }
        }
    }
}

#[test]
fn the_same_histories_spoiled_are_refused() {
    let falls = [Spoil::FallingTokens, Spoil::TokenTwice];
    for model in ALL {
        for spoil in [
            Spoil::Intruder,
            Spoil::ForeignRelease,
            Spoil::CheckAfterRelease,
        ]
        .into_iter()
        .chain(falls)
        {
            if spoil == Spoil::ForeignRelease && matches!(model, Model::Permits(_)) {
                continue;
            }
            if falls.contains(&spoil) && !model.has_tokens() {
                continue;
            }
            let mut tried = 0;
            for seed in 0..20 {
                let Some(bad) = spoiled(&good(model, seed, 100), spoil, model, seed) else {
                    continue;
                };
                tried += 1;
                let refused = check(&bad, model);
                let violation = refused.expect_err(&format!("{model:?} {spoil:?} {seed}"));
                let shown = violation.excerpt.len();
                assert!(shown <= 12, "{spoil:?} {seed}: {violation}");
                if spoil == Spoil::Intruder {
                    possession::check(&bad, model).expect_err("two in possession");
                }
            }
            assert!(tried > 10, "{model:?} {spoil:?}: {tried}");
        }
    }
}

#[test]
fn a_long_history_is_looked_through_in_time() {
    let history = good(Model::Mutex, 1, 6_000);
    check(&history, Model::Mutex).expect("a good history");
    let history = good(Model::RwLock, 1, 6_000);
    check(&history, Model::RwLock).expect("a good history");
}

#[test]
fn an_operation_on_several_locks_is_one_of_each() {
    let mode = Mode::Exclusive;
    let ops = [Op {
        owner: Owner {
            process: 1,
            thread: 0,
        },
        lock: "b+a".to_owned(),
        call: Call::Take { hold: 1, mode },
        invoked: 10,
        returned: Some(20),
        outcome: Outcome::Granted { token: 5 },
    }];
    let all = by_lock(&ops);
    assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(all.values().all(|history| history.len() == 1));
}

#[test]
fn what_was_written_down_is_read_again_but_for_a_torn_end() {
    let folder = TempDir::new();
    let path = folder.path().join("record");
    let recorder = Recorder::new(&path, 7);
    let hold = recorder.fresh_hold();
    let mode = Mode::Permits(2);
    let take = recorder.call(3, "a", &Call::Take { hold, mode });
    let check = recorder.call(4, "a", &Call::Check { hold });
    recorder.returned(check, &Outcome::Held { left: 9 });
    recorder.returned(take, &Outcome::Granted { token: 5 });
    recorder.call(3, "a", &Call::Give { hold });
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"4 12").unwrap();
    let ops = read(&path, 7);
    assert_eq!(ops.len(), 3);
    assert_eq!(
        ops[0].owner,
        Owner {
            process: 7,
            thread: 3
        }
    );
    assert_eq!(ops[0].outcome, Outcome::Granted { token: 5 });
    assert_eq!(ops[1].outcome, Outcome::Held { left: 9 });
    assert_eq!((ops[2].returned, ops[2].outcome), (None, Outcome::Unsure));
    assert!(ops[0].invoked <= ops[1].invoked && ops[1].returned <= ops[0].returned);
}
