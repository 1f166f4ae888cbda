//! One binary for all tests against a server, a module a promise.

mod bad_input;
mod bad_replies;
mod bad_servers;
mod compat;
mod family;
mod footprint;
mod full_server;
mod histories;
mod interop;
mod invariants_bounds;
mod invariants_clock;
mod invariants_conflict;
mod invariants_connections;
mod invariants_deadline;
mod invariants_drop;
mod invariants_fencing;
mod invariants_fork;
mod invariants_growth;
mod invariants_join;
mod invariants_renewal;
mod invariants_slot;
mod invariants_token;
mod invariants_traits;
mod invariants_ttl;
mod lost_replies;
mod properties;
mod renewal_and_loss;
mod replicas;
mod review_acquire;
mod review_bounds;
mod review_extend;
mod review_family;
mod review_logger;
mod review_release;
mod review_tokens;
mod review_waiting;
mod rights;
mod servers;
mod support;
mod support_test;
mod surface_acquire;
mod surface_cancel;
mod surface_client;
mod surface_extend;
mod surface_hold;
mod surface_inspect;
mod surface_lease;
mod surface_log;
mod surface_pool;
mod surface_predecessor;
mod surface_types;
mod surface_unlock;
mod surface_with;
mod waiting;

/// What a child process of a test can be told to do.
type Role = (&'static str, fn());

/// What [`support::child::Child::role`] can start: each module lists its own.
pub(crate) fn roles() -> impl Iterator<Item = &'static Role> {
    let of_modules: [&[Role]; 18] = [
        bad_replies::ROLES,
        compat::ROLES,
        family::ROLES,
        histories::ROLES,
        interop::ROLES,
        invariants_fencing::ROLES,
        invariants_fork::ROLES,
        invariants_growth::ROLES,
        invariants_join::ROLES,
        invariants_renewal::ROLES,
        invariants_ttl::ROLES,
        lost_replies::ROLES,
        renewal_and_loss::ROLES,
        review_logger::ROLES,
        support_test::ROLES,
        surface_log::ROLES,
        surface_predecessor::ROLES,
        waiting::ROLES,
    ];
    of_modules.into_iter().flatten()
}
