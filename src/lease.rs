//! What a guard derefs to, and what worker threads get.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::crossbeam_channel::Receiver;
use crate::error::{Error, ErrorKind, LossReason, Lost, Result};
use crate::fencing::FencingToken;
use crate::hold::replies::{read_renew, read_verify};
use crate::hold::{Hold, local_deadline};
use crate::options::{HoldOptions, in_limits, invalid};
use crate::redis_io::connection::Budget;
use crate::redis_io::failure::{Failure, Reached};
use crate::redis_io::script::Request;

/// So long [`Lease::check_for`] waits for the renewal that makes a lease whole which came from hand to hand.
const LONGEST_MENDING: Duration = Duration::from_secs(2);

/// The lease of one hold: whether it still stands, for how long, and its fencing token.
///
/// Every guard derefs to it; [`guard.lease()`](crate::MutexGuard::lease) gives a clone that worker threads can keep. A clone
/// does not hold the lock: after the guard is gone its [`check`](Lease::check) says so.
///
/// Call [`check`](Lease::check) before each step that matters, and give [`fencing_token`](Lease::fencing_token) to whatever
/// you write to: between the check and the write there is always a gap that only the resource can close.
///
/// # Examples
///
/// ```no_run
/// use leasehold::{Lease, Result};
///
/// fn step(lease: &Lease) -> Result<()> {
///     lease.check()?;
///     // … write, with lease.fencing_token() …
///     Ok(())
/// }
///
/// # fn main() -> Result<()> {
/// let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let guard = client.mutex("order:12345").lock()?;
/// std::thread::scope(|s| {
///     let worker = s.spawn(|| step(&guard));
///     worker.join().expect("worker panicked")
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lease(Arc<Hold>);

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Lease {
    pub(crate) fn new(hold: Arc<Hold>) -> Lease {
        Lease(hold)
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.0
    }

    pub(crate) fn shared_hold(&self) -> &Arc<Hold> {
        &self.0
    }

    /// The lock's name, as it was given.
    pub fn name(&self) -> &str {
        &self.0.keys.name
    }

    /// The number that rises with every acquisition: see [`FencingToken`].
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing
    }

    /// How the hold before this one ended.
    pub fn predecessor(&self) -> &Predecessor {
        &self.0.predecessor
    }

    /// Whether the lock is ours as far as can be known here: no I/O. Once `false` it stays so.
    pub fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Like [`is_held`](Lease::is_held), with the reason. No I/O, a fraction of a microsecond.
    ///
    /// # Errors
    ///
    /// [`Lost`]: the hold is over. It stays over, whatever the server says later.
    pub fn check(&self) -> Result<(), Lost> {
        if self.is_forked() {
            return Err(self.0.lost(LossReason::Forked));
        }
        self.0.check()
    }

    /// [`check`](Lease::check), and that at least `at_least` is left of the lease. No I/O.
    ///
    /// A renewed hold has between two thirds of its ttl and all of it left while renewals go well; a fixed lease runs down.
    ///
    /// # Errors
    ///
    /// [`Lost`]: the hold is over, or has less left. The latter does not end the hold.
    pub fn check_for(&self, at_least: Duration) -> Result<(), Lost> {
        self.check()?;
        let mut left = self.remaining();
        if left < at_least && self.0.present_lease() < self.0.options.ttl {
            // It was handed to us a moment ago, with the first part of its lease only.
            self.0.make_whole(self.0.options.ttl.min(LONGEST_MENDING));
            self.check()?;
            left = self.remaining();
        }
        if left < at_least {
            let wanted = at_least;
            return Err(self.0.lost(LossReason::TooLittleLeft { left, wanted }));
        }
        Ok(())
    }

    /// Asks the server whether the lock is ours there: one round trip. For before a step that can't be fenced; it narrows
    /// the gap, it does not close it.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost): known here to be over. [`NotHeld`](ErrorKind::NotHeld): the server says that it is not ours;
    /// the hold is over then. [`Unavailable`](ErrorKind::Unavailable) and the like: the server could not be asked; the hold
    /// goes on until its deadline.
    pub fn verify(&self) -> Result<()> {
        self.check()?;
        let hold = &*self.0;
        let core = hold.core.upgrade().ok_or_else(client_gone)?;
        let script = hold.family.verify;
        let request = Request::of_words(script, &hold.keys).arg(&*hold.token);
        let limits = core.node.limits;
        let budget = Budget::new(limits.connect + limits.io);
        let named = |e: Failure| e.error.for_lock(&hold.keys.name);
        let answer = core.node.call(&request, limits, budget).map_err(named)?;
        let address = &core.node.target.address;
        if !read_verify(answer.value, script, address).map_err(named)? {
            // One that is being replaced by another is over as soon as the server has said so, and is no loss.
            if hold.is_converting() || hold.end(LossReason::TakenAway) {
                return Err(not_ours(hold));
            }
            self.check()?;
        }
        // The answer took its time.
        Ok(self.check()?)
    }

    /// What is left of the lease before it must be renewed or is over; zero once it is over. No I/O.
    pub fn remaining(&self) -> Duration {
        if self.is_forked() {
            return Duration::ZERO;
        }
        self.0.remaining()
    }

    /// Gives a fixed lease a new end, `lease` from now: longer or shorter than before. One round trip.
    ///
    /// `lease` is between 50 ms and 365 days. Only for [`with_fixed_lease`](crate::Mutex::with_fixed_lease): other holds are
    /// renewed by themselves.
    ///
    /// # Errors
    ///
    /// [`InvalidOptions`](ErrorKind::InvalidOptions): not a fixed lease, or `lease` out of its limits.
    /// [`Lost`](ErrorKind::Lost): it is over. [`Unavailable`](ErrorKind::Unavailable) and the like: not known whether the
    /// server did it; the earlier of the two ends counts.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        let hold = &*self.0;
        let named = |e: Error| e.for_lock(&hold.keys.name);
        if hold.options.renewed {
            let what = "extend is for fixed leases; this hold is renewed by itself";
            return Err(named(invalid(what)));
        }
        in_limits("lease", lease).map_err(named)?;
        self.check()?;
        let core = hold.core.upgrade().ok_or_else(client_gone)?;
        // One at a time: with two under way at once nobody knows which one the server did last.
        let mut doubtful = hold.extending.lock();
        self.check()?;
        // Until the server has answered, the earlier end counts.
        let before = hold.deadline();
        let now = hold.clock.now();
        hold.set_end(before.min(local_deadline(now, lease)));
        let request = hold.renewal(lease);
        let mut limits = core.node.limits;
        limits.io = HoldOptions::new(lease).command_timeout(limits.io);
        let budget = Budget::new(limits.connect + limits.io);
        let shortest = |doubtful: Option<Duration>| doubtful.map_or(lease, |d| d.min(lease));
        let answer = match core.node.call(&request, limits, budget) {
            Ok(answer) => answer,
            Err(failure) => {
                if failure.reached == Reached::No {
                    hold.set_end(before);
                } else {
                    *doubtful = Some(shortest(*doubtful));
                }
                return Err(named(failure.error));
            }
        };
        if answer.repeated {
            *doubtful = Some(shortest(*doubtful));
        }
        let address = &core.node.target.address;
        let renewed =
            read_renew(answer.value, hold.family.renew, address).map_err(|f| named(f.error))?;
        if renewed.is_none() {
            if hold.is_converting() {
                return Err(not_ours(hold));
            }
            hold.end(LossReason::TakenAway);
        }
        self.check()?;
        // An earlier extension whose answer was lost may still come true, and cut this one.
        hold.set_end(local_deadline(answer.sent_at, shortest(*doubtful)));
        Ok(self.check()?)
    }

    /// Disconnected when the hold is over, by release or by loss; never carries a message. For a `select!` beside the work;
    /// every clone sees it. [`check`](Lease::check) says why.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::crossbeam_channel::{select, unbounded};
    /// let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.mutex("feed").lock()?;
    /// let (_work, items) = unbounded::<String>();
    /// loop {
    ///     select! {
    ///         recv(items) -> item => match item { Ok(item) => println!("{item}"), Err(_) => break },
    ///         recv(guard.lost()) -> _ => { guard.check()?; break }
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> &Receiver<Infallible> {
        &self.0.over
    }

    /// Counts that the resource refused our token: not an error of the lock, but the fence at work. It shows in the metrics,
    /// and is logged.
    pub fn stale_write_rejected(&self) {
        self.0.metrics.stale_write_rejected();
        let (name, token) = (self.name(), self.0.fencing.get());
        log::warn!(target: "leasehold", name = name, token = token; "a resource refused a write with this token: it has seen a higher one");
    }

    fn is_forked(&self) -> bool {
        self.0.core.upgrade().is_some_and(|core| {
            let forked = core.is_forked();
            if forked {
                // Never the last one in a child: see the guard.
                std::mem::forget(core);
            }
            forked
        })
    }
}

fn not_ours(hold: &Hold) -> Error {
    let what = "the server says that it is not ours any more";
    Error::new(ErrorKind::NotHeld, what).for_lock(&hold.keys.name)
}

#[cold]
fn client_gone() -> Error {
    Error::new(
        ErrorKind::Lost,
        "its guard and its client are gone, so it is no longer held",
    )
}

/// How the hold before this one ended.
///
/// `Panicked` and `Abandoned` mean that the predecessor stopped in mid-section: what it worked on may be half done. (POSIX calls
/// it `EOWNERDEAD`, std poisoning; here it does not keep anybody out.)
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Predecessor {
    /// None that the server knows of: the first hold, or the last was over an hour ago.
    None,
    /// Gave the lock back.
    Clean,
    /// Its guard was dropped by a panic.
    #[non_exhaustive]
    Panicked {
        /// Its fencing token.
        token: FencingToken,
        /// Who it was: `label@host/pid/thread`.
        label: String,
    },
    /// Died, lost the lock, held a fixed lease past its end, or was cut off by `force_unlock`.
    #[non_exhaustive]
    Abandoned {
        /// Its fencing token.
        token: FencingToken,
        /// Who it was: `label@host/pid/thread`.
        label: String,
    },
}

impl Predecessor {
    /// From a state's mark.
    pub(crate) fn read(mark: &str, token: u64, label: String) -> Option<Predecessor> {
        let token = FencingToken::from(token);
        Some(match mark {
            "N" => Predecessor::None,
            "C" => Predecessor::Clean,
            "P" => Predecessor::Panicked { token, label },
            "A" => Predecessor::Abandoned { token, label },
            _ => return None,
        })
    }
}
