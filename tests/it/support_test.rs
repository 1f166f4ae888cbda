//! The tests' own tools are held to their word, too.

mod child;
mod fetch;
mod history;
mod history_runs;
mod proxy_faults;
mod proxy_modes;
mod python;
mod server;

pub(crate) const ROLES: &[(&str, fn())] = &[
    ("support/echo", child::echo),
    ("support/own_a_server", server::own_a_server),
    ("support/own_a_paused_server", server::own_a_paused_server),
    ("support/start_a_server", fetch::start_a_server),
    ("support/find_python", python::find_python),
    ("support/drop_a_busy_proxy", proxy_modes::drop_a_busy_proxy),
];
