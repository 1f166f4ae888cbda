//! One connection to one server: connects at first use, gives every command a time limit, and says when it is broken.

use std::fmt;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::redis_io::failure::{Failure, Reached, is_interrupted};

/// Longest we wait for one answer where nothing else is said.
pub(crate) const DEFAULT_IO_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest we wait for a connection where nothing else is said.
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Our `r2d2::ManageConnection`, for those who bring a pool of their own.
///
/// Connections connect at their first use, have `TCP_NODELAY`, keepalive and a user timeout, and every command on them has
/// a time limit; one that failed is dropped from the pool. The `redis` crate's own manager has none of that.
///
/// A pool made of it should be built with `test_on_check_out(false)` (else every acquire costs a round trip more) and
/// `min_idle(Some(0))`; [`ClientBuilder::url`](crate::ClientBuilder::url) makes one that way.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let manager = leasehold::Manager::open("redis://127.0.0.1:6379/")?;
/// let pool = r2d2::Pool::builder().max_size(4).test_on_check_out(false).min_idle(Some(0)).build(manager)?;
/// let client = leasehold::Client::builder().pool(pool).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Manager {
    target: Arc<Target>,
}

/// Where to connect to, and how. Debug shows no password.
pub(crate) struct Target {
    info: ConnectionInfo,
    /// `host:port/db`, without credentials: what messages call the server.
    pub(crate) address: Arc<str>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.address).finish()
    }
}

impl Target {
    /// # Errors
    ///
    /// `InvalidOptions` for what is no Redis URL; `Unsupported` for TLS without the feature. The text never repeats the URL.
    pub(crate) fn parse(url: &str) -> Result<Target> {
        // Before parsing: without its own feature the package takes TLS for a malformed URL.
        if url.starts_with("rediss:") || url.starts_with("valkeys:") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "TLS is not in this release of leasehold",
            ));
        }
        let info = url.into_connection_info().map_err(|_| {
            Error::new(ErrorKind::InvalidOptions, "not a Redis URL").advise(
                "write it as redis://[user:password@]host[:port][/db] or redis+unix:///path/to/socket[?db=0]",
            )
        })?;
        let db = info.redis_settings().db();
        let address = match info.addr() {
            ConnectionAddr::Unix(path) => format!("{}/{db}", path.display()),
            other => format!("{other}/{db}"),
        };
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(
            socket2::TcpKeepalive::new()
                .with_time(Duration::from_secs(15))
                .with_interval(Duration::from_secs(5)),
        );
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        let tcp = tcp.set_user_timeout(Duration::from_secs(20));
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Target {
            info: info.set_tcp_settings(tcp).set_redis_settings(settings),
            address: address.into(),
        })
    }
}

impl Target {
    /// Tries the addresses that the host name stands for, one after the other, all within `limit`: left to itself, the
    /// package gives each of them the whole.
    fn connect(&self, limit: Duration) -> redis::RedisResult<redis::Connection> {
        let budget = Budget::new(limit.max(Duration::from_millis(1)));
        let ConnectionAddr::Tcp(host, port) = self.info.addr() else {
            return connect_to(self.info.clone(), budget.left());
        };
        let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
        self.connect_to_one_of(&addresses, budget)
    }

    fn connect_to_one_of(
        &self,
        addresses: &[SocketAddr],
        budget: Budget,
    ) -> redis::RedisResult<redis::Connection> {
        let mut outcome = Err(std::io::Error::from(std::io::ErrorKind::AddrNotAvailable).into());
        for (i, address) in addresses.iter().enumerate() {
            let share = budget.left() / u32::try_from(addresses.len() - i).unwrap_or(1);
            let one = ConnectionAddr::Tcp(address.ip().to_string(), address.port());
            outcome = connect_to(self.info.clone().set_addr(one), share);
            match &outcome {
                Err(e) if e.is_io_error() => {}
                _ => break,
            }
        }
        outcome
    }
}

fn connect_to(info: ConnectionInfo, limit: Duration) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(info)?.get_connection_with_timeout(limit.max(Duration::from_millis(1)))
}

impl Manager {
    /// Parses `url`; no I/O.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) if `url` is no Redis URL, [`Unsupported`](ErrorKind::Unsupported) if
    /// it asks for TLS.
    pub fn open(url: &str) -> Result<Manager> {
        Target::parse(url).map(|target| Manager {
            target: Arc::new(target),
        })
    }

    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.target
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = ManagedConnection;
    type Error = Error;

    /// Makes an unconnected connection; it connects at its first use, where a failure can be told to whom it concerns.
    fn connect(&self) -> Result<ManagedConnection> {
        Ok(ManagedConnection::new(self.target.clone()))
    }

    fn is_valid(&self, connection: &mut ManagedConnection) -> Result<()> {
        let ping = redis::cmd("PING").get_packed_command();
        let limits = Limits::new(DEFAULT_CONNECT_TIMEOUT, DEFAULT_IO_TIMEOUT);
        connection
            .call(&ping, limits)
            .map(drop)
            .map_err(Error::from)
    }

    fn has_broken(&self, connection: &mut ManagedConnection) -> bool {
        connection.broken
    }
}

/// Time for one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// To connect, log in and select the database, if need be.
    pub(crate) connect: Duration,
    /// From sending the command to having its answer.
    pub(crate) io: Duration,
}

impl Limits {
    pub(crate) fn new(connect: Duration, io: Duration) -> Limits {
        Limits { connect, io }
    }

    /// No part longer than `most`.
    pub(crate) fn within(self, most: Duration) -> Limits {
        Limits {
            connect: self.connect.min(most),
            io: self.io.min(most),
        }
    }
}

/// A connection of a [`Manager`]. It has no methods of its own: leasehold uses it, a user's pool keeps it.
pub struct ManagedConnection {
    target: Arc<Target>,
    open: Option<redis::Connection>,
    /// Set at any I/O error and never taken back: a late answer to an earlier command could be taken for a later one's.
    broken: bool,
    /// What the socket's read and write timeouts are now, so that most commands need no system call to set them.
    timeout_set: Option<Duration>,
}

impl fmt::Debug for ManagedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedConnection")
            .field("address", &self.target.address)
            .field("open", &self.open.is_some())
            .field("broken", &self.broken)
            .finish()
    }
}

impl ManagedConnection {
    pub(crate) fn new(target: Arc<Target>) -> ManagedConnection {
        ManagedConnection {
            target,
            open: None,
            broken: false,
            timeout_set: None,
        }
    }

    pub(crate) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Was it used before? Then a failure may be that of a connection gone stale, worth one more try on a new one.
    pub(crate) fn is_used(&self) -> bool {
        self.open.is_some()
    }

    /// Throws the connection away; the next call connects anew.
    pub(crate) fn reset(&mut self) {
        self.open = None;
        self.broken = false;
        self.timeout_set = None;
    }

    /// Connects if need be.
    pub(crate) fn connect(&mut self, limit: Duration) -> Result<&mut redis::Connection, Failure> {
        if self.broken {
            self.reset();
        }
        if self.open.is_none() {
            let connection = self
                .target
                .connect(limit)
                .map_err(|e| self.failed(Reached::No, e))?;
            self.timeout_set = None;
            self.open = Some(connection);
        }
        self.open
            .as_mut()
            .ok_or_else(|| unreachable_state(&self.target))
    }

    /// Sends one command and waits for its answer. An error that the server answers is a [`Failure`] as well.
    pub(crate) fn call(&mut self, packed: &[u8], limits: Limits) -> Result<Value, Failure> {
        self.connect(limits.connect)?;
        self.send(packed, limits.io)?;
        self.receive()?.map_err(|e| self.answered(e))
    }

    /// Sends without waiting. [`receive`](Self::receive) must then be called once for each command, or the connection
    /// dropped.
    pub(crate) fn send(&mut self, packed: &[u8], io: Duration) -> Result<(), Failure> {
        self.set_timeout(io)?;
        let sent = self.exchange(|c| c.send_packed_command(packed));
        sent.map_err(|e| self.failed(Reached::Maybe, e))
    }

    /// The next answer: the server's own errors are in the inner result, the connection's in the outer one.
    pub(crate) fn receive(&mut self) -> Result<Result<Value, RedisError>, Failure> {
        match self.exchange(redis::Connection::recv_response) {
            Ok(Value::ServerError(e)) => Ok(Err(e.into())),
            Ok(value) => Ok(Ok(value)),
            Err(e) => Err(self.failed(Reached::Maybe, e)),
        }
    }

    /// Anything else on the raw connection, the inbox' subscription above all.
    pub(crate) fn exchange<T>(
        &mut self,
        f: impl FnOnce(&mut redis::Connection) -> redis::RedisResult<T>,
    ) -> redis::RedisResult<T> {
        let Some(connection) = self.open.as_mut() else {
            return Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into());
        };
        f(connection).inspect_err(|_| self.broken = true)
    }

    /// # Errors
    ///
    /// When the socket refuses, as one does that is closed already.
    pub(crate) fn set_timeout(&mut self, io: Duration) -> Result<(), Failure> {
        // Zero would mean "none" to the socket.
        let io = io.max(Duration::from_millis(1));
        // Two system calls are not worth a few microseconds less. A bounded wait has no room for more than a hundredth.
        let near = |set: Duration| set >= io && set - set / 100 <= io;
        if !self.timeout_set.is_some_and(near) {
            let set = self.exchange(|c| {
                c.set_read_timeout(Some(io))?;
                c.set_write_timeout(Some(io))
            });
            set.map_err(|e| self.failed(Reached::No, e))?;
            self.timeout_set = Some(io);
        }
        Ok(())
    }

    /// The next message of a subscription; `None` if there was none within `patience`.
    pub(crate) fn message(&mut self, patience: Duration) -> redis::RedisResult<Option<String>> {
        let is_set = self.timeout_set == Some(patience);
        let Some(connection) = self.open.as_mut() else {
            return Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into());
        };
        let mut read = || {
            if !is_set {
                connection.set_read_timeout(Some(patience))?;
            }
            // Dropped, it would end the subscription.
            ManuallyDrop::new(connection.as_pubsub()).get_message()
        };
        let read = read();
        self.timeout_set = Some(patience);
        match read {
            Ok(message) => Ok(Some(message.get_payload().unwrap_or_default())),
            // A signal, too, leaves the subscription as it was.
            Err(e) if e.is_timeout() || is_interrupted(&e) => Ok(None),
            Err(e) => {
                self.broken = true;
                Err(e)
            }
        }
    }

    pub(crate) fn failed(&mut self, reached: Reached, e: RedisError) -> Failure {
        self.broken = true;
        Failure::new(reached, &self.target.address, e)
    }

    /// What the server answered as an error. The connection itself is well, unless the server has stopped being the master
    /// that we want or has logged us out.
    pub(crate) fn answered(&mut self, e: RedisError) -> Failure {
        let failure = Failure::new(Reached::Answered, &self.target.address, e);
        if failure.needs_new_connection() {
            self.broken = true;
        }
        failure
    }
}

fn unreachable_state(target: &Target) -> Failure {
    let e = std::io::Error::from(std::io::ErrorKind::NotConnected);
    Failure::new(Reached::No, &target.address, e.into())
}

/// A point in time that several exchanges share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    until: Instant,
}

impl Budget {
    pub(crate) fn new(d: Duration) -> Budget {
        let now = Instant::now();
        // A day stands for "longer than anything here takes".
        let until = now + d.min(Duration::from_secs(86_400));
        Budget { until }
    }

    pub(crate) fn until(until: Instant) -> Budget {
        Budget { until }
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_shows_in_what_people_can_print() {
        let url = "redis://batch:s3cret@127.0.0.1:1/4";
        let manager = Manager::open(url).unwrap();
        let debug = format!("{manager:?}");
        assert!(
            !debug.contains("s3cret") && debug.contains("127.0.0.1:1/4"),
            "{debug}"
        );
        let e = Manager::open("redis://batch:s3cret@[nonsense/").unwrap_err();
        assert!(!format!("{e} {e:?}").contains("s3cret"), "{e:?}");
        let e = Manager::open("rediss://:s3cret@127.0.0.1/").unwrap_err();
        assert!(!format!("{e} {e:?}").contains("s3cret"), "{e:?}");
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }

    /// Each of a host name's addresses had the whole connect timeout, and a bounded wait that many times its bound.
    #[test]
    fn the_addresses_of_a_host_name_share_one_connect_timeout() {
        // They accept, and never answer SELECT.
        let silent: Vec<_> = (0..4)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses: Vec<_> = silent.iter().map(|s| s.local_addr().unwrap()).collect();
        let target = Target::parse("redis://some-name/1").unwrap();
        let limit = Duration::from_millis(500);
        let began = Instant::now();
        let outcome = target.connect_to_one_of(&addresses, Budget::new(limit));
        let took = began.elapsed();
        assert!(outcome.is_err_and(|e| e.is_timeout()));
        assert!(took >= limit / 2, "{took:?}");
        assert!(took < limit * 2, "{took:?}");
        for silent in silent {
            silent.set_nonblocking(true).unwrap();
            assert!(silent.accept().is_ok(), "each had its try");
        }
    }

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        use std::io::{Read, Write};
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [silent.local_addr().unwrap(), server.local_addr().unwrap()];
        let server = std::thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            assert!(client.read(&mut [0; 256]).unwrap() > 0);
            // What is left over of nothing would not do.
            std::thread::sleep(Duration::from_millis(50));
            client.write_all(b"+OK\r\n").unwrap();
        });
        let target = Target::parse("redis://some-name/1").unwrap();
        let budget = Budget::new(Duration::from_secs(1));
        target.connect_to_one_of(&addresses, budget).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_connection_that_could_not_connect_says_where_and_may_try_again() {
        let manager = Manager::open("redis://127.0.0.1:1/").unwrap();
        let mut c = r2d2::ManageConnection::connect(&manager).unwrap();
        let limits = Limits::new(Duration::from_secs(1), Duration::from_secs(1));
        let ping = redis::cmd("PING").get_packed_command();
        let failure = c.call(&ping, limits).unwrap_err();
        assert_eq!(failure.reached, Reached::No);
        let e = Error::from(failure);
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.to_string().contains("127.0.0.1:1"), "{e}");
        assert!(r2d2::ManageConnection::has_broken(&manager, &mut c));
    }
}
