//! What the examples share: a server to run against, a namespace of their own on it, and tidying up.

use leasehold::testing::Server;

/// A server and a namespace that only this run uses; its keys are removed on drop.
pub(crate) struct Setup {
    pub(crate) url: String,
    pub(crate) namespace: String,
    _server: Option<Server>,
}

impl Setup {
    /// The server at `$REDIS_URL` if that is set, else one of our own.
    pub(crate) fn new(example: &str) -> leasehold::Result<Setup> {
        let (url, server) = match std::env::var("REDIS_URL") {
            Ok(url) => (url, None),
            Err(_) => {
                let server = Server::start()?;
                (server.url(), Some(server))
            }
        };
        let namespace = format!("{example}-{}", uuid::Uuid::new_v4().simple());
        Ok(Setup {
            url,
            namespace,
            _server: server,
        })
    }

    fn remove_keys(&self) -> redis::RedisResult<()> {
        let mut connection = redis::Client::open(self.url.as_str())?.get_connection()?;
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("*{}*", self.namespace))
                .query(&mut connection)?;
            for key in keys {
                redis::cmd("DEL").arg(key).exec(&mut connection)?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if let Err(error) = self.remove_keys() {
            eprintln!("could not remove the keys of {}: {error}", self.namespace);
        }
    }
}
