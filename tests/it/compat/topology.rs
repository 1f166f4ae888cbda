//! Where the servers are that a case runs on.

use leasehold::{Client, ClientBuilder};
use redis::Connection;

use crate::support::proxy::Proxy;
use crate::support::scene::Scene;

/// Servers, with a proxy between them and the clients under test. They know leasehold's scripts already.
pub(crate) trait Topology: Sync {
    fn start() -> Self;

    /// The servers with these arguments.
    fn with_args<const N: usize>(args: [&str; N]) -> Self;

    /// Of a client that sees the servers through the proxy.
    fn builder(&self) -> ClientBuilder {
        Self::builder_at(&self.place())
    }

    /// The same, logged in as a user of the servers.
    fn builder_as(&self, user: &str, password: &str) -> ClientBuilder;

    /// What another process needs to know to make such a client.
    fn place(&self) -> String;

    /// A client of the place, in another process.
    fn builder_at(place: &str) -> ClientBuilder;

    /// A client that the proxy's faults don't touch.
    fn outsider(&self) -> Client;

    fn proxy(&self) -> &Proxy;

    /// A connection of the test's own, around the proxy, to the server that has `key`.
    fn raw(&self, key: &str) -> Connection;
}

/// One server.
pub(crate) type Standalone = Scene;

impl Topology for Standalone {
    fn start() -> Scene {
        Scene::new()
    }

    fn with_args<const N: usize>(args: [&str; N]) -> Scene {
        Scene::with_args(args)
    }

    fn builder_as(&self, user: &str, password: &str) -> ClientBuilder {
        let port = self.proxy.port();
        Client::builder().url(&format!("redis://{user}:{password}@127.0.0.1:{port}/"))
    }

    fn place(&self) -> String {
        self.proxy.url()
    }

    fn builder_at(place: &str) -> ClientBuilder {
        Client::builder().url(place)
    }

    fn outsider(&self) -> Client {
        Scene::outsider(self)
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn raw(&self, _: &str) -> Connection {
        Scene::raw(self)
    }
}
