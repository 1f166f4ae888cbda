//! What the tests stand on: a proxy that breaks things, processes that can be killed, waits with bounds.

// Each test module uses what it needs of these.
#![allow(dead_code)]

pub(crate) mod child;
pub(crate) mod proxy;
pub(crate) mod temp;
pub(crate) mod wait;
