//! What can be seen from outside: who holds a lock, and how it went.

pub(crate) mod inspect;
pub(crate) mod metrics;
mod table;
