//! What every type of lock promises alike, shown for each of them: the cases are written once, over a [`Kind`](kind::Kind) and a
//! [`Topology`](topology::Topology).
//!
//! [`cases!`] makes one test of each case and kind, so that both stand in its name:
//! `compat::waking::standalone::fair_mutex::who_waits_is_woken_at_once`. A new topology is one more module in that macro.

/// One test for each kind of lock and each case. A case is a function of the module in which this stands, over a topology and a
/// kind. Those that are `marked` make sense for kinds only whose holder leaves a mark for the next one.
macro_rules! cases {
    (all: [$($all:ident),* $(,)?], marked: [$($marked:ident),* $(,)?] $(,)?) => {
        mod standalone {
            use crate::compat::kind::Kind;
            use crate::compat::topology::Standalone as Topology;

            cases!(@kind mutex, Mutex, [$($all)* $($marked)*]);
            cases!(@kind reentrant_mutex, Reentrant, [$($all)* $($marked)*]);
            cases!(@kind fair_mutex, Fair, [$($all)* $($marked)*]);
            cases!(@kind rw_lock_write, Write, [$($all)* $($marked)*]);
            cases!(@kind rw_lock_read, Read, [$($all)*]);
            cases!(@kind rw_lock_upgradable_read, Upgradable, [$($all)*]);
            cases!(@kind semaphore, Permit, [$($all)*]);
            cases!(@kind semaphore_many, Permits, [$($all)*]);
            cases!(@kind multi_mutex, Several, [$($all)* $($marked)*]);
        }
    };
    (@kind $module:ident, $kind:ident, [$($case:ident)*]) => {
        mod $module {
            $(
                #[test]
                fn $case() {
                    super::super::$case::<super::Topology>(super::Kind::$kind);
                }
            )*
        }
    };
}

mod acquiring;
mod conflicts;
mod ending;
mod failing;
mod forking;
mod held;
mod holding;
mod input;
mod kind;
mod losing;
mod seeing;
mod servers;
mod sparing;
mod topology;
mod waking;

use crate::Role;

pub(crate) const ROLES: &[Role] = &[
    ("compat/fork_and_use", forking::fork_and_use),
    ("compat/hold", ending::hold),
    ("compat/use_and_drop", sparing::use_and_drop),
];
