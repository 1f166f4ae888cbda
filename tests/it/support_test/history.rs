//! The judge of histories is judged: it refuses the bad ones and lets the good ones be.

use crate::support::history::check::check;
use crate::support::history::record::{read_call, read_outcome};
use crate::support::history::{History, Model, Op, Owner, possession, verdict};

/// One operation a line: `process called-returned call -> outcome`, a hold's number in hexadecimal digits.
fn history(text: &str) -> History {
    let op = |line: &str| {
        let (call, outcome) = line.split_once(" -> ")?;
        let words: Vec<&str> = call.split_whitespace().collect();
        let (invoked, returned) = words.get(1)?.split_once('-')?;
        let outcome: Vec<&str> = outcome.split_whitespace().collect();
        Some(Op {
            owner: Owner {
                process: words[0].parse().ok()?,
                thread: 0,
            },
            lock: "seeded".to_owned(),
            call: read_call(&words[2..])?,
            invoked: invoked.parse().ok()?,
            returned: returned.parse().ok(),
            outcome: read_outcome(&outcome)?,
        })
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| op(line).unwrap_or_else(|| panic!("no operation: {line}")))
        .collect()
}

#[track_caller]
fn accepts(model: Model, text: &str) {
    if let Err(violation) = verdict(&history(text), model) {
        panic!("{violation}");
    }
}

/// The search refuses it, and says of which operation it can't be; so many of them show it.
#[track_caller]
fn refuses(model: Model, culprit: &str, shown: usize, text: &str) {
    let violation = check(&history(text), model).expect_err("a bad history");
    assert!(violation.what.ends_with(culprit), "{violation}");
    assert_eq!(violation.excerpt.len(), shown, "{violation}");
}

#[test]
fn the_checker_accepts_what_a_mutex_does() {
    for model in [Model::Mutex, Model::Fenced, Model::Reentrant, Model::RwLock] {
        accepts(
            model,
            "1 10-20 take 1 exclusive -> granted 5
             2 12-70 take 2 exclusive -> granted 7
             3 13-30 take 3 exclusive -> refused
             1 40-41 check 1 -> held 10
             1 50-60 give 1 -> done
             2 80-90 give 2 -> done",
        );
    }
}

#[test]
fn the_checker_finds_the_order_of_operations_that_overlap() {
    // All three at once: only the tokens and the results say who was first.
    accepts(
        Model::Fenced,
        "1 10-90 take 1 exclusive -> granted 9
         2 10-40 take 2 exclusive -> granted 7
         2 41-95 give 2 -> done
         3 10-30 take 3 exclusive -> granted 5
         3 31-95 give 3 -> done",
    );
}

#[test]
fn the_checker_refuses_two_holders_at_once() {
    for model in [Model::Mutex, Model::Fenced, Model::Reentrant, Model::RwLock] {
        refuses(
            model,
            "p2/t0 take 2 exclusive -> granted 7",
            4,
            "3 1-2 take 3 exclusive -> granted 3
             3 3-4 give 3 -> done
             1 10-20 take 1 exclusive -> granted 5
             2 12-70 take 2 exclusive -> granted 7
             1 80-90 give 1 -> done
             2 85-90 give 2 -> done
             3 95-96 take 4 exclusive -> granted 9
             3 97-98 give 4 -> done",
        );
    }
}

#[test]
fn two_in_possession_at_once_are_found_without_an_order() {
    let bad = history(
        "1 10-20 take 1 exclusive -> granted 5
         2 12-70 take 2 exclusive -> granted 7
         1 80-80 check 1 -> held 0
         2 90-90 check 2 -> held 0",
    );
    let violation = possession::check(&bad, Model::Mutex).expect_err("a bad history");
    assert!(
        violation
            .what
            .contains("p1/t0 with 1 and p2/t0 with 2, for 10 ns"),
        "{violation}"
    );
    assert_eq!(violation.excerpt.len(), 4);
}

#[test]
fn the_checker_refuses_a_token_that_falls() {
    let falling = "1 10-20 take 1 exclusive -> granted 7
         1 30-40 give 1 -> done
         2 50-60 take 2 exclusive -> granted 5
         2 70-80 give 2 -> done";
    for model in [Model::Fenced, Model::Reentrant, Model::RwLock] {
        refuses(model, "p1/t0 take 1 exclusive -> granted 7", 4, falling);
    }
    accepts(Model::Mutex, falling);
    // Nor may it be the same once more.
    refuses(
        Model::Fenced,
        "p2/t0 take 2 exclusive -> granted 7",
        3,
        "1 10-20 take 1 exclusive -> granted 7
         1 30-40 give 1 -> done
         2 50-60 take 2 exclusive -> granted 7",
    );
}

#[test]
fn the_checker_refuses_a_release_by_somebody_else() {
    for model in [Model::Mutex, Model::Fenced, Model::Reentrant, Model::RwLock] {
        refuses(
            model,
            "p2/t0 give 1 -> done",
            2,
            "1 10-20 take 1 exclusive -> granted 7
             2 30-40 give 1 -> done",
        );
    }
    accepts(
        Model::Permits(1),
        "1 10-20 take 1 1 -> granted 7
         2 30-40 give 1 -> done",
    );
}

#[test]
fn the_checker_refuses_a_release_that_works_twice() {
    for (model, mode) in [(Model::Mutex, "exclusive"), (Model::Permits(3), "2")] {
        let text = format!(
            "1 10-20 take 1 {mode} -> granted 7
             1 30-40 give 1 -> done
             1 50-60 give 1 -> done"
        );
        refuses(model, "p1/t0 give 1 -> done", 3, &text);
    }
}

#[test]
fn the_checker_knows_nesting() {
    let nested = |token: u64| {
        format!(
            "1 10-20 take 1 exclusive -> granted 5
             1 21-22 take 2 exclusive -> granted {token}
             1 23-24 give 1 -> done
             1 25-26 check 2 -> held 5
             1 27-28 give 2 -> done
             2 15-40 take 3 exclusive -> granted 9"
        )
    };
    accepts(Model::Reentrant, &nested(5));
    refuses(
        Model::Reentrant,
        "p1/t0 take 2 exclusive -> granted 6",
        4,
        &nested(6),
    );
    refuses(
        Model::Fenced,
        "p1/t0 take 2 exclusive -> granted 5",
        4,
        &nested(5),
    );
    // Free only when the last of them is given back.
    refuses(
        Model::Reentrant,
        "p2/t0 take 3 exclusive -> granted 9",
        3,
        "1 10-20 take 1 exclusive -> granted 5
         1 21-22 take 2 exclusive -> granted 5
         1 23-24 give 2 -> done
         2 30-40 take 3 exclusive -> granted 9
         1 50-60 give 1 -> done",
    );
}

#[test]
fn the_checker_refuses_a_writer_beside_a_reader() {
    accepts(
        Model::RwLock,
        "1 10-20 take 1 shared -> granted 5
         2 10-20 take 2 shared -> granted 6
         2 21-22 take 3 shared -> granted 6
         2 23-24 give 3 -> done
         1 30-40 give 1 -> done
         2 30-40 give 2 -> done
         3 15-50 take 4 exclusive -> granted 7",
    );
    refuses(
        Model::RwLock,
        "p3/t0 take 4 exclusive -> granted 7",
        3,
        "1 10-20 take 1 shared -> granted 5
         2 10-20 take 2 shared -> granted 6
         1 30-40 give 1 -> done
         3 45-50 take 4 exclusive -> granted 7
         2 60-70 give 2 -> done",
    );
    refuses(
        Model::RwLock,
        "p2/t0 take 2 shared -> granted 6",
        3,
        "1 10-20 take 1 exclusive -> granted 5
         2 30-40 take 2 shared -> granted 6
         1 50-60 give 1 -> done",
    );
}

#[test]
fn the_checker_refuses_a_writer_in_between_a_conversion() {
    let upgrade = |from: &str, to: &str| {
        format!(
            "1 10-20 take 1 {from} -> granted 5
             1 30-60 swap 1 2 {to} -> granted 9
             2 25-40 take 3 exclusive -> granted 7
             2 45-50 give 3 -> done
             1 70-80 give 2 -> done"
        )
    };
    for (from, to) in [("shared", "exclusive"), ("exclusive", "shared")] {
        let text = upgrade(from, to);
        refuses(
            Model::RwLock,
            "p2/t0 take 3 exclusive -> granted 7",
            5,
            &text,
        );
        accepts(
            Model::RwLock,
            &text
                .replace("granted 7", "refused")
                .replace("2 45-50 give 3 -> done", ""),
        );
    }
}

#[test]
fn the_checker_refuses_an_upgrade_beside_another_reader() {
    refuses(
        Model::RwLock,
        "p1/t0 swap 1 3 exclusive -> granted 9",
        4,
        "1 10-20 take 1 shared -> granted 5
         2 10-20 take 2 shared -> granted 6
         1 30-60 swap 1 3 exclusive -> granted 9
         2 70-80 give 2 -> done",
    );
}

#[test]
fn the_checker_refuses_a_permit_over_the_limit() {
    let third = |weight: u32| {
        format!(
            "1 10-20 take 1 2 -> granted 5
             2 10-20 take 2 {weight} -> granted 6
             1 30-40 give 1 -> done
             2 30-40 give 2 -> done"
        )
    };
    accepts(Model::Permits(3), &third(1));
    refuses(
        Model::Permits(3),
        "p2/t0 take 2 2 -> granted 6",
        4,
        &third(2),
    );
    let held = "1 25-25 check 1 -> held 1
                2 25-25 check 2 -> held 1";
    let text = third(2) + "\n" + held;
    possession::check(&history(&text), Model::Permits(3)).expect_err("4 of 3");
    possession::check(&history(&text), Model::Permits(4)).expect("4 of 4");
}

#[test]
fn the_checker_knows_a_changed_limit() {
    accepts(
        Model::Permits(3),
        "1 10-20 take 1 3 -> granted 5
         9 22-28 limit 4 -> done
         2 10-30 take 2 1 -> granted 6
         9 32-38 limit 1 -> done
         1 40-50 give 1 -> done",
    );
    refuses(
        Model::Permits(3),
        "p2/t0 take 2 1 -> granted 6",
        5,
        "1 10-20 take 1 1 -> granted 5
         9 22-28 limit 1 -> done
         2 30-40 take 2 1 -> granted 6
         1 50-60 give 1 -> done
         2 50-60 give 2 -> done",
    );
}

#[test]
fn a_holder_of_whom_nothing_is_heard_ends_with_its_lease_and_not_sooner() {
    // Killed after its check at 30, with a lease until 80; the other is let in at some time before this returns.
    let next = |returned: u64| {
        format!(
            "1 10-20 take 1 exclusive -> granted 5
             1 30-31 check 1 -> held 50
             2 40-{returned} take 2 exclusive -> granted 7
             2 90-91 check 2 -> held 10"
        )
    };
    for model in [Model::Mutex, Model::Fenced, Model::Reentrant, Model::RwLock] {
        accepts(model, &next(80));
        let text = next(79);
        refuses(model, "p2/t0 take 2 exclusive -> granted 7", 3, &text);
        possession::check(&history(&text), model).expect_err("before the lease is over");
    }
}

#[test]
fn a_hold_that_is_reported_lost_is_over_by_then() {
    let text = "1 10-20 take 1 exclusive -> granted 5
         1 30-31 check 1 -> held 20
         1 90-91 check 1 -> over
         2 40-60 take 2 exclusive -> granted 7
         1 92-93 give 1 -> over";
    accepts(Model::Fenced, text);
    let text = format!("{text}\n1 94-95 check 1 -> held 5");
    refuses(
        Model::Fenced,
        "p1/t0 check 1 -> held 5",
        3,
        &text.replace("2 40-60 take 2 exclusive -> granted 7\n", ""),
    );
}

#[test]
fn one_that_learns_of_its_loss_late_was_over_when_its_lease_was() {
    for end in ["give 1", "swap 1 9 shared"] {
        let next = |left: u64| {
            format!(
                "1 10-20 take 1 exclusive -> granted 5
                 1 30-31 check 1 -> held {left}
                 2 40-60 take 2 exclusive -> granted 7
                 2 61-62 give 2 -> done
                 1 90-91 {end} -> over"
            )
        };
        accepts(Model::RwLock, &next(30));
        refuses(
            Model::RwLock,
            "p2/t0 take 2 exclusive -> granted 7",
            5,
            &next(31),
        );
    }
}

#[test]
fn a_release_that_never_returned_may_have_worked_and_may_not() {
    let next = |called: u64, returned: u64| {
        format!(
            "1 10-20 take 1 exclusive -> granted 5
             1 30-31 check 1 -> held 500
             1 50-never give 1 -> unsure
             2 {called}-{returned} take 2 exclusive -> granted 7"
        )
    };
    accepts(Model::Fenced, &next(40, 60));
    accepts(Model::Fenced, &next(700, 800));
    refuses(
        Model::Fenced,
        "p2/t0 take 2 exclusive -> granted 7",
        4,
        &next(40, 49),
    );
}

#[test]
fn an_acquire_that_never_returned_explains_nothing_and_hinders_nothing() {
    accepts(
        Model::Fenced,
        "1 10-never take 1 exclusive -> unsure
         2 40-50 take 2 exclusive -> granted 7",
    );
    refuses(
        Model::Fenced,
        "p2/t0 give 1 -> done",
        2,
        "1 10-never take 1 exclusive -> unsure
         2 40-50 give 1 -> done",
    );
}
