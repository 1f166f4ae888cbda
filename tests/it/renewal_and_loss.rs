//! Renewal and loss: what went wrong in the watchdogs of other libraries.

mod bad_renewals;
mod knowing;
mod many;

use crate::Role;

pub(crate) const ROLES: &[Role] = &[
    (
        "renewal/panicking_logger",
        bad_renewals::hold_under_a_panicking_logger,
    ),
    ("renewal/quick_holds", many::quick_holds),
    ("renewal/two_thousand_holds", many::two_thousand_holds),
    ("renewal/hold_and_check", knowing::hold_and_check),
];
