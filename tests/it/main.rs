//! One binary for all tests against a server, a module a promise.

mod support;
mod support_test;

/// What a child process of a test can be told to do.
type Role = (&'static str, fn());

/// What [`support::child::Child::role`] can start: each module lists its own.
pub(crate) fn roles() -> impl Iterator<Item = &'static Role> {
    let of_modules: [&[Role]; 1] = [support_test::ROLES];
    of_modules.into_iter().flatten()
}
