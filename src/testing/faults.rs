//! Faults that a test can bring about from inside.

use std::time::Duration;

use super::Server;
use crate::{Client, Lease};

impl Server {
    /// A client of this server, all defaults.
    ///
    /// # Panics
    ///
    /// Never, as far as the URL goes: it is the server's own.
    pub fn client(&self) -> Client {
        Client::open(&self.url()).expect("the server's own URL is valid")
    }
}

/// Makes the hold lost, as if its lease had run out: its guards and leases say so, its key is gone from the server, and the
/// next holder finds that its predecessor abandoned the lock. Does nothing to a hold that is over.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> leasehold::Result<()> {
/// let server = leasehold::testing::Server::start()?;
/// let guard = server.client().mutex("job").lock()?;
/// leasehold::testing::lose(&guard);
/// assert!(guard.check().is_err());
/// # Ok(()) }
/// ```
pub fn lose(lease: &Lease) {
    if let Err(e) = crate::hold::release::lose(lease.hold()) {
        // The hold is lost here all the same; a server that is down has no successor to give it to either.
        log::debug!(target: "leasehold::testing", "the server was not told of the loss: {e}");
    }
}

/// For the holds of `client` it is as if the machine had been suspended for `d`: their leases are so much older. The server's
/// clock is not touched.
pub fn suspend(client: &Client, d: Duration) {
    client.core().node.clock.sleep_through(d);
}

/// How many entries `client`'s own tables have for locks that are held or waited for: 0 when there are none, whatever happened
/// before.
pub fn entries(client: &Client) -> usize {
    let core = client.core();
    core.gates.len() + crate::hold::deadlock::entries(&core.gates.server) + core.inbox.waiting()
}
