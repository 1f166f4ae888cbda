//! One server as the locks see it: scripts go in, answers come out, each within its time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::clock::{BootTime, Clock};
use crate::error::{Error, ErrorKind, Result};
use crate::redis_io::connection::{Budget, Limits, ManagedConnection, Manager, Target};
use crate::redis_io::failure::{Failure, Reached};
use crate::redis_io::renewal_line::RenewalLine;
use crate::redis_io::script::Request;

/// A standalone server: the pool for acquiring and releasing, and the connection that is kept for renewals.
pub(crate) struct Node {
    pool: r2d2::Pool<Manager>,
    pub(crate) target: Arc<Target>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) limits: Limits,
    pub(crate) renewals: RenewalLine,
}

/// What a server answered, and when the command that it answers was sent: leases are counted from there.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) sent_at: BootTime,
    /// An earlier copy of the command was sent, too, and may still be on its way.
    pub(crate) repeated: bool,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.target.address).finish()
    }
}

impl Node {
    /// A node over a pool made here. No I/O: connections connect at first use.
    pub(crate) fn new(manager: Manager, pool_size: u32, limits: Limits) -> Result<Node> {
        let target = manager.target().clone();
        let pool = r2d2::Pool::builder()
            .max_size(pool_size)
            .min_idle(Some(0))
            // A round trip each time otherwise; a stale connection costs one retry instead.
            .test_on_check_out(false)
            // With either set, a dropped pool keeps its threads for half a minute.
            .idle_timeout(None)
            .max_lifetime(None)
            .connection_timeout(Duration::from_secs(1))
            .error_handler(Box::new(LogError))
            .build(manager)
            .map_err(|e| {
                Error::new(ErrorKind::Unavailable, "the pool could not start").because(e)
            })?;
        Ok(Node::over(pool, target, limits))
    }

    /// A node over a user's pool: where it leads to is read off a connection, which [`Manager`] makes without I/O.
    pub(crate) fn with_pool(pool: r2d2::Pool<Manager>, limits: Limits) -> Result<Node> {
        // A pool that tests what it gives out asks the server, and by default for half a minute.
        let patience = pool.connection_timeout().min(limits.connect + limits.io);
        let target = pool
            .get_timeout(patience)
            .map_err(|e| {
                Error::new(
                    ErrorKind::Unavailable,
                    "the given pool has no connection free",
                )
                .because(e)
            })?
            .target()
            .clone();
        Ok(Node::over(pool, target, limits))
    }

    fn over(pool: r2d2::Pool<Manager>, target: Arc<Target>, limits: Limits) -> Node {
        Node {
            pool,
            renewals: RenewalLine::new(target.clone()),
            target,
            clock: Arc::default(),
            limits,
        }
    }

    /// Runs one script over a pooled connection.
    ///
    /// All our scripts may be repeated, so a connection that turns out to have gone stale gets one more try.
    pub(crate) fn call(
        &self,
        request: &Request,
        limits: Limits,
        budget: Budget,
    ) -> Result<Answer, Failure> {
        let patience = budget.left().min(limits.connect + limits.io);
        let mut connection = self
            .pool
            .get_timeout(patience)
            .map_err(|e| Failure::unsent(self.exhausted(e)))?;
        call_over(&mut connection, request, limits, budget, &self.clock)
    }

    /// The same, if a pooled connection is free at this moment.
    pub(crate) fn call_if_idle(
        &self,
        request: &Request,
        limits: Limits,
        budget: Budget,
    ) -> Option<Result<Answer, Failure>> {
        let mut connection = self.pool.try_get()?;
        Some(call_over(
            &mut connection,
            request,
            limits,
            budget,
            &self.clock,
        ))
    }

    /// PING, and how long its answer took.
    pub(crate) fn ping(&self) -> Result<Duration> {
        let limits = self.limits;
        let mut connection = self
            .pool
            .get_timeout(limits.connect + limits.io)
            .map_err(|e| self.exhausted(e))?;
        let ping = redis::cmd("PING").get_packed_command();
        if connection.is_used() {
            // Only to find out whether it is still alive; the measured ping comes after.
            if connection.call(&ping, limits).is_err() {
                connection.reset();
            }
        }
        connection.connect(limits.connect)?;
        let start = std::time::Instant::now();
        connection.call(&ping, limits)?;
        Ok(start.elapsed())
    }

    fn exhausted(&self, e: r2d2::Error) -> Error {
        let max = self.pool.max_size();
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "none of the {max} pooled connections to {} became free in time",
                self.target.address
            ),
        )
        .advise("raise pool_size, or see why the server answers slowly")
        .because(e)
    }
}

/// One script over the given connection, with one retry where the connection had gone stale.
pub(crate) fn call_over(
    connection: &mut ManagedConnection,
    request: &Request,
    limits: Limits,
    budget: Budget,
    clock: &Clock,
) -> Result<Answer, Failure> {
    let packed = request.pack();
    let stale = connection.is_used();
    let mut sent_at = clock.now();
    let mut repeated = false;
    let mut result = exchange(connection, &packed, limits, budget, clock, &mut sent_at);
    if let Err(failure) = &result {
        if failure.is_noscript() {
            let whole = request.pack_with_source();
            result = exchange(connection, &whole, limits, budget, clock, &mut sent_at);
        } else if (stale || failure.was_interrupted())
            && is_dead_connection(failure)
            && !budget.left().is_zero()
        {
            repeated = failure.reached == Reached::Maybe;
            connection.reset();
            result = exchange(connection, &packed, limits, budget, clock, &mut sent_at);
            if result.as_ref().is_err_and(Failure::is_noscript) {
                let whole = request.pack_with_source();
                result = exchange(connection, &whole, limits, budget, clock, &mut sent_at);
            }
            if let Err(second) = &mut result
                && repeated
            {
                // The first try may have been carried out, whatever became of the second.
                second.reached = Reached::Maybe;
            }
        }
    }
    result.map(|value| Answer {
        value,
        sent_at,
        repeated,
    })
}

fn exchange(
    connection: &mut ManagedConnection,
    packed: &[u8],
    limits: Limits,
    budget: Budget,
    clock: &Clock,
    sent_at: &mut BootTime,
) -> Result<Value, Failure> {
    connection.connect(limits.connect.min(budget.left()))?;
    *sent_at = clock.now();
    connection.call(packed, limits.within(budget.left()))
}

/// A fault of the connection, not a server that takes its time: worth asking again over a new one.
fn is_dead_connection(failure: &Failure) -> bool {
    failure.reached != Reached::Answered && !failure.timed_out
}

/// Connecting can't fail in our manager, so what r2d2 reports is worth no more than a debug line.
#[derive(Debug)]
struct LogError;

impl r2d2::HandleError<Error> for LogError {
    fn handle_error(&self, error: Error) {
        log::debug!(target: "leasehold::pool", "{error}");
    }
}
