//! What many processes did to one lock, some of them killed, stopped, or with a bad wire, is what such a lock may do: in some
//! order of all operations each type behaves as its model says, and no two that exclude each other ever knew themselves in
//! possession at once.

mod crowd;
mod moves;
mod session;

use crate::Role;
use crate::support::history::{Call, Mode, Model, Op, Outcome};
use crowd::Crowd;

pub(crate) const ROLES: &[Role] = &[("histories/play", session::play)];

/// How often this was done with success.
fn count(ops: &[Op], wanted: impl Fn(&Call) -> bool) -> usize {
    let done = |op: &&Op| op.is_granted() && wanted(&op.call);
    ops.iter().filter(done).count()
}

fn took(mode: Mode) -> impl Fn(&Call) -> bool {
    move |call| matches!(call, Call::Take { mode: m, .. } if *m == mode)
}

fn became(mode: Mode) -> impl Fn(&Call) -> bool {
    move |call| matches!(call, Call::Swap { mode: m, .. } if *m == mode)
}

/// One more guard of a hold, by its token.
fn nested(ops: &[Op]) -> usize {
    let tokens = ops.iter().filter_map(|op| match op.outcome {
        Outcome::Granted { token } => Some(token),
        _ => None,
    });
    let mut tokens: Vec<u64> = tokens.collect();
    let all = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    all - tokens.len()
}

/// Invariants 1, 4 and 9.
#[test]
fn a_mutex_has_one_holder_at_a_time_who_alone_gives_it_back_and_its_tokens_rise() {
    let ops = Crowd::new("mutex").run();
    crowd::judge(&ops, Model::Fenced);
}

/// redisson#7251, #3712: a nested hold is the outer one once more, with its token, and is lost with it.
#[test]
fn a_reentrant_mutex_has_one_thread_in_it_at_a_time_and_one_token_a_hold() {
    let ops = Crowd::new("reentrant").run();
    assert!(nested(&ops) > 5, "{} nested", nested(&ops));
    crowd::judge(&ops, Model::Reentrant);
}

/// redisson#1104 and the like: dead, stopped and cancelled waiters let nobody in who should wait, and don't stop the rest.
#[test]
fn a_fair_mutex_has_one_holder_at_a_time_whoever_leaves_its_queue() {
    let ops = Crowd::new("fair").run();
    crowd::judge(&ops, Model::Fenced);
}

/// redisson#891, #4217, #1604: a read that ends takes no write with it, nobody writes beside a reader or in the middle of a
/// conversion.
#[test]
fn a_rw_lock_has_readers_or_a_writer_and_nobody_in_between_a_conversion() {
    let ops = Crowd::new("rw").run();
    for (what, n) in [
        ("reads", count(&ops, took(Mode::Shared))),
        ("writes", count(&ops, took(Mode::Exclusive))),
        ("upgrades", count(&ops, became(Mode::Exclusive))),
        ("downgrades", count(&ops, became(Mode::Shared))),
        ("nested reads", nested(&ops)),
    ] {
        assert!(n > 0, "no {what}");
    }
    crowd::judge(&ops, Model::RwLock);
}

/// redisson#5066, #2045: the permits that are out are never more than the limit, whoever dies, and whenever it is changed.
#[test]
fn a_semaphore_never_gives_more_permits_than_its_limit_was_at_the_time() {
    let ops = Crowd::new("permits").run();
    let limits = ops.iter().filter(|op| matches!(op.call, Call::Limit(_)));
    assert!(limits.count() > 3);
    crowd::judge(&ops, Model::Permits(session::LIMIT));
}

/// The four kinds that share a word exclude each other, and a token is above those of all its names.
#[test]
fn mutexes_of_all_kinds_and_locks_of_several_names_exclude_each_other() {
    let ops = Crowd::new("mixed").run();
    let several = |op: &&Op| op.is_granted() && op.lock.contains('+');
    assert!(ops.iter().filter(several).count() > 5);
    crowd::judge(&ops, Model::Reentrant);
}
