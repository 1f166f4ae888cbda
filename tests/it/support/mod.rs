//! What the tests stand on: a proxy that breaks things, processes that can be killed, waits with bounds.

// Each test module uses what it needs of these.
#![allow(dead_code)]

pub(crate) mod ask;
pub(crate) mod child;
pub(crate) mod full;
pub(crate) mod history;
pub(crate) mod late;
pub(crate) mod locks;
pub(crate) mod proxy;
pub(crate) mod python;
pub(crate) mod scene;
pub(crate) mod scripts;
pub(crate) mod temp;
pub(crate) mod wait;
