//! Our side of the wire. Knows servers, connections and scripts; knows no lock type.

pub(crate) mod cleaner;
pub(crate) mod connection;
pub(crate) mod failure;
pub(crate) mod inbox;
pub(crate) mod node;
pub(crate) mod renewal_line;
pub(crate) mod script;
