//! A process of the crowd: two threads that do one operation after the other, and write them down.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use leasehold::{
    Client, Error, ErrorKind, FairMutexGuard, Lease, MultiMutexGuard, MutexGuard,
    ReentrantMutexGuard, Result, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard,
    SemaphorePermit,
};

use crate::support::child::{args, hear, say};
use crate::support::history::generate::Random;
use crate::support::history::record::Recorder;
use crate::support::history::{Call, HoldId, Mode, Outcome};

pub(super) const TTL: Duration = Duration::from_secs(1);
pub(super) const NAME: &str = "a";
pub(super) const LIMIT: u32 = 4;
const BOUND: Duration = Duration::from_secs(60);

/// What the parent wants.
#[derive(Default)]
pub(super) struct Orders {
    /// To take it and keep it.
    hold: AtomicBool,
    pub(super) end: AtomicBool,
}

/// Arguments: url, kind of lock, file for the record, number of the process.
pub(crate) fn play() {
    let [url, kind, path, number] = &args()[..] else {
        panic!("a url, a kind, a file and a number")
    };
    let number: u32 = number.parse().expect("a number");
    let client = Client::builder()
        .url(url)
        .ttl(TTL)
        .build()
        .expect("a client");
    let recorder = Recorder::new(Path::new(path), number);
    let orders = Orders::default();
    thread::scope(|scope| {
        for thread in 0..2 {
            let mut session = Session {
                client: &client,
                recorder: &recorder,
                orders: &orders,
                thread,
                random: Random(u64::from(number * 10 + thread)),
                limit: AtomicU32::new(LIMIT),
            };
            scope.spawn(move || session.run(kind));
        }
        say("ready");
        loop {
            match hear(BOUND).as_str() {
                "hold" => orders.hold.store(true, Ordering::SeqCst),
                "on" => orders.hold.store(false, Ordering::SeqCst),
                "end" => break,
                order => panic!("no such order: {order}"),
            }
        }
        orders.hold.store(false, Ordering::SeqCst);
        orders.end.store(true, Ordering::SeqCst);
    });
}

pub(super) struct Session<'a> {
    pub(super) client: &'a Client,
    recorder: &'a Recorder,
    pub(super) orders: &'a Orders,
    thread: u32,
    pub(super) random: Random,
    /// The semaphore's, as last heard.
    pub(super) limit: AtomicU32,
}

pub(super) struct Held<G> {
    guard: G,
    hold: HoldId,
    lock: String,
}

pub(super) trait Guard {
    fn lease(&self) -> Lease;
    fn give_back(self) -> Result<()>;
}

macro_rules! guards {
    ($($guard:ident),*) => {$(
        impl Guard for $guard {
            fn lease(&self) -> Lease {
                $guard::lease(self)
            }

            fn give_back(self) -> Result<()> {
                self.unlock()
            }
        }
    )*};
}
guards!(
    MutexGuard,
    ReentrantMutexGuard,
    FairMutexGuard,
    MultiMutexGuard,
    RwLockReadGuard,
    RwLockWriteGuard,
    RwLockUpgradableReadGuard,
    SemaphorePermit
);

impl Session<'_> {
    pub(super) fn is_to_hold(&self) -> bool {
        self.thread == 0 && self.orders.hold.load(Ordering::SeqCst)
    }

    pub(super) fn take<G: Guard>(
        &self,
        lock: &str,
        mode: Mode,
        acquire: impl FnOnce() -> Result<G>,
    ) -> Option<Held<G>> {
        let hold = self.recorder.fresh_hold();
        let id = self
            .recorder
            .call(self.thread, lock, &Call::Take { hold, mode });
        match acquire() {
            Ok(guard) => {
                self.recorder.returned(id, &granted(&guard));
                let lock = lock.to_owned();
                let held = Held { guard, hold, lock };
                self.check(&held);
                Some(held)
            }
            Err(error) => {
                self.recorder.returned(id, &failed(&error));
                None
            }
        }
    }

    /// An upgrade or a downgrade.
    pub(super) fn swap<F: Guard, T: Guard>(
        &self,
        held: Held<F>,
        mode: Mode,
        convert: impl FnOnce(F) -> std::result::Result<T, (F, Error)>,
    ) -> std::result::Result<Held<T>, Held<F>> {
        let Held {
            guard,
            hold: from,
            lock,
        } = held;
        let hold = self.recorder.fresh_hold();
        let call = Call::Swap { from, hold, mode };
        let id = self.recorder.call(self.thread, &lock, &call);
        match convert(guard) {
            Ok(guard) => {
                self.recorder.returned(id, &granted(&guard));
                let held = Held { guard, hold, lock };
                self.check(&held);
                Ok(held)
            }
            Err((guard, error)) => {
                let outcome = match guard.lease().is_held() {
                    true => failed(&error),
                    false => Outcome::Over,
                };
                self.recorder.returned(id, &outcome);
                Err(Held {
                    guard,
                    hold: from,
                    lock,
                })
            }
        }
    }

    fn check<G: Guard>(&self, held: &Held<G>) -> bool {
        let call = Call::Check { hold: held.hold };
        let id = self.recorder.call(self.thread, &held.lock, &call);
        let lease = held.guard.lease();
        let outcome = match lease.check() {
            Ok(()) => {
                let left = u64::try_from(lease.remaining().as_nanos());
                let left = left.expect("a lease of this century");
                Outcome::Held { left }
            }
            Err(_) => Outcome::Over,
        };
        self.recorder.returned(id, &outcome);
        outcome != Outcome::Over
    }

    pub(super) fn give_back<G: Guard>(&self, held: Held<G>) {
        let call = Call::Give { hold: held.hold };
        let id = self.recorder.call(self.thread, &held.lock, &call);
        let outcome = match held.guard.give_back() {
            Ok(()) => Outcome::Done,
            Err(e) if e.is_lost() => Outcome::Over,
            Err(e) => failed(&e),
        };
        self.recorder.returned(id, &outcome);
    }

    /// A section: short, or as long as the parent wants.
    pub(super) fn work<G: Guard>(&mut self, held: &Held<G>) {
        if self.is_to_hold() {
            return self.keep(held);
        }
        self.pause(3);
        self.check(held);
    }

    /// Says so once it has been renewed, and that is written down.
    fn keep<G: Guard>(&self, held: &Held<G>) {
        let lease = held.guard.lease();
        let mut left = lease.remaining();
        let mut is_said = false;
        while self.is_to_hold() && self.check(held) {
            sleep(Duration::from_millis(20));
            let before = std::mem::replace(&mut left, lease.remaining());
            if left > before && !is_said {
                is_said = self.check(held);
                say("holding");
            }
        }
    }

    pub(super) fn pause(&mut self, ms: u64) {
        sleep(Duration::from_micros(self.random.below(1_000 * ms)));
    }
}

fn granted(guard: &impl Guard) -> Outcome {
    Outcome::Granted {
        token: guard.lease().fencing_token().get(),
    }
}

/// Whether the lock is surely as it was. Other errors than these would be faults of their own.
fn failed(error: &Error) -> Outcome {
    match error.kind() {
        ErrorKind::WouldBlock
        | ErrorKind::TimedOut
        | ErrorKind::Cancelled
        | ErrorKind::Deadlock
        | ErrorKind::InvalidOptions
        | ErrorKind::Lost => Outcome::Refused,
        ErrorKind::Unavailable | ErrorKind::LeaseExpired | ErrorKind::NotHeld => Outcome::Unsure,
        _ => panic!("{error}"),
    }
}
