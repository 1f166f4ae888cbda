//! Long texts: limits, errors, patterns, speed, and why the protocol is as it is. Nothing here is code.

#[doc = include_str!("limits.md")]
pub mod limits {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("patterns.md")]
pub mod patterns {}

#[doc = include_str!("speed.md")]
pub mod speed {}

#[doc = include_str!("design.md")]
pub mod design {}
