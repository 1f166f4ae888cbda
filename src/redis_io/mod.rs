//! Our side of the wire. Knows servers, connections and scripts; knows no lock type.

pub(crate) mod cleaner;
pub(crate) mod connection;
pub(crate) mod failure;
pub(crate) mod inbox;
mod listener;
pub(crate) mod node;
pub(crate) mod renewal_line;
pub(crate) mod script;
pub(crate) mod scripts;
mod seat;

/// Stack of a thread of ours. Its own work needs little, but the package that reads replies goes a hundred levels deep
/// where a server nests them so, which takes ten times as much without optimisation; and a user's logger runs on it. Only
/// reserved, not used.
pub(crate) const STACK: usize = if cfg!(debug_assertions) {
    2 << 20
} else {
    512 << 10
};
