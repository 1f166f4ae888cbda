//! A process that does with locks what it is told, and can be stopped and killed.

use std::thread;
use std::time::Duration;

use leasehold::{
    Client, Error, FairMutexGuard, Lease, MultiMutexGuard, MutexGuard, RwLockReadGuard,
    RwLockUpgradableReadGuard, RwLockWriteGuard, SemaphorePermit,
};

use super::BOUND;
use crate::support::child::{Child, args, hear, say};
use crate::support::scene::ask;
use crate::support::wait::raw;

/// How long a turn lasts.
const TURN: Duration = Duration::from_millis(10);

/// A guard of any type.
pub(crate) enum Held {
    Mutex(MutexGuard),
    Fair(FairMutexGuard),
    Read(RwLockReadGuard),
    Write(RwLockWriteGuard),
    Upgradable(RwLockUpgradableReadGuard),
    Permit(SemaphorePermit),
    Several(MultiMutexGuard),
}

impl Held {
    pub(crate) fn lease(&self) -> &Lease {
        match self {
            Held::Mutex(guard) => guard,
            Held::Fair(guard) => guard,
            Held::Read(guard) => guard,
            Held::Write(guard) => guard,
            Held::Upgradable(guard) => guard,
            Held::Permit(guard) => guard,
            Held::Several(guard) => guard,
        }
    }
}

/// Acquires what the words say, waiting as long as it takes: `fair NAME`, `permits NAME N LIMIT`.
pub(crate) fn acquire(client: &Client, what: &str) -> Result<Held, Error> {
    let words: Vec<&str> = what.split(' ').collect();
    let number = |text: &str| text.parse::<u32>().expect("a number");
    Ok(match words[..] {
        ["mutex", name] => Held::Mutex(client.mutex(name).lock()?),
        ["fair", name] => Held::Fair(client.fair_mutex(name).lock()?),
        ["read", name] => Held::Read(client.rw_lock(name).read()?),
        ["write", name] => Held::Write(client.rw_lock(name).write()?),
        ["upgradable", name] => Held::Upgradable(client.rw_lock(name).upgradable_read()?),
        ["permits", name, n, limit] => {
            let semaphore = client.semaphore(name, number(limit));
            Held::Permit(semaphore.acquire_many(number(n))?)
        }
        ["several", ref names @ ..] => {
            Held::Several(client.multi_mutex(names.iter().copied()).lock()?)
        }
        _ => panic!("not understood: {what}"),
    })
}

/// Acquires it, notes on the server that it is in, and after a moment that it is out again, while it still is in.
pub(crate) fn turn(client: &Client, url: &str, label: &str, what: &str) {
    let held = acquire(client, what).unwrap();
    let mut connection = raw(url);
    let mut note = |what: &str| {
        let mut push = redis::cmd("RPUSH");
        push.arg("turns").arg(format!("{what} {label}"));
        push.exec(&mut connection).unwrap();
    };
    note("in");
    thread::sleep(TURN);
    note("out");
    drop(held);
}

/// In the parent: the process, and what is said to it.
pub(crate) struct Actor {
    pub(crate) child: Child,
}

impl Actor {
    /// A client of its own of the server at `url`, with this ttl.
    pub(crate) fn new(url: &str, ttl: Duration) -> Actor {
        Actor::with_witness(url, url, ttl)
    }

    /// The same; its turns are noted at the server `witness`, which is the same by another way.
    pub(crate) fn with_witness(url: &str, witness: &str, ttl: Duration) -> Actor {
        let child = Child::role("family/actor")
            .arg(url)
            .arg(witness)
            .arg(ttl.as_millis())
            .spawn();
        child.wait_for("ready", BOUND);
        Actor { child }
    }

    #[track_caller]
    pub(crate) fn tell(&mut self, what: &str) {
        self.child.send_line(what);
    }

    /// What it says next.
    #[track_caller]
    pub(crate) fn says(&self) -> String {
        self.child.expect_line(BOUND)
    }

    /// Does it, and says what came of it: `got it`, or the kind of the error.
    #[track_caller]
    pub(crate) fn does(&mut self, what: &str) -> String {
        self.tell(what);
        self.says()
    }

    #[track_caller]
    pub(crate) fn gets(&mut self, what: &str) {
        assert_eq!(self.does(what), "got it");
    }
}

/// In the child.
pub(crate) fn act() {
    let [url, witness, ttl] = &args()[..] else {
        panic!("two urls and a ttl")
    };
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    let client = Client::builder().url(url).ttl(ttl).build().unwrap();
    let mut held: Vec<Held> = Vec::new();
    say("ready");
    loop {
        let line = hear(Duration::from_secs(120));
        let (head, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let said = match head {
            // A turn on a thread of its own, so that the process can wait for several.
            "turn" => {
                let (label, what) = rest.split_once(' ').unwrap();
                let (client, witness) = (client.clone(), witness.clone());
                let (label, what) = (label.to_owned(), what.to_owned());
                thread::spawn(move || turn(&client, &witness, &label, &what));
                continue;
            }
            "hang" => {
                let (n, what) = rest.split_once(' ').unwrap();
                for _ in 0..n.parse::<u32>().unwrap() {
                    let (client, what) = (client.clone(), what.to_owned());
                    thread::spawn(move || std::mem::forget(acquire(&client, &what)));
                }
                continue;
            }
            "drop" => {
                drop(held.pop().expect("a guard"));
                "dropped".into()
            }
            "check" => match held.last().expect("a guard").lease().check() {
                Ok(()) => "held".into(),
                Err(_) => "lost".into(),
            },
            "token" => held.last().unwrap().lease().fencing_token().to_string(),
            "upgrade" | "downgrade" => match (head, held.pop().expect("a guard")) {
                ("upgrade", Held::Upgradable(guard)) => match guard.upgrade() {
                    Ok(guard) => {
                        held.push(Held::Write(guard));
                        "got it".into()
                    }
                    Err(rejected) => {
                        let (guard, error) = rejected.into_parts();
                        held.push(Held::Upgradable(guard));
                        format!("{:?}", error.kind())
                    }
                },
                ("downgrade", Held::Write(guard)) => {
                    held.push(Held::Read(guard.downgrade().unwrap()));
                    "got it".into()
                }
                _ => panic!("not held so: {line}"),
            },
            // So many rounds with a count of those who are in, kept by the server: `most` is what it reached.
            "rounds" => {
                let (n, what) = rest.split_once(' ').unwrap();
                let mut connection = raw(witness);
                for _ in 0..n.parse::<u32>().unwrap() {
                    let held = acquire(&client, what).unwrap();
                    let now: u64 = ask(&mut connection, "INCR within");
                    let _: u64 = ask(&mut connection, &format!("SADD seen {now}"));
                    let _: i64 = ask(&mut connection, "DECR within");
                    drop(held);
                }
                "done".into()
            }
            // For ever, with a count of who is in for each process, so that the count of one that was killed can be put right.
            "churn" => {
                let (id, what) = rest.split_once(' ').unwrap();
                let mut connection = raw(witness);
                let _: String = ask(&mut connection, &format!("CLIENT SETNAME churn-{id}"));
                let count = "local now = redis.call('INCRBY', KEYS[1], ARGV[1]) \
                    redis.call('INCRBY', KEYS[2], ARGV[1]) \
                    redis.call('SADD', KEYS[3], now) \
                    redis.call('INCR', KEYS[4])";
                let mut count = |by: i64| {
                    let keys = ["within", &format!("within:{id}"), "seen", "rounds"];
                    let mut eval = redis::cmd("EVAL");
                    eval.arg(count).arg(4).arg(&keys).arg(by);
                    eval.exec(&mut connection).unwrap();
                };
                loop {
                    let held = acquire(&client, what).unwrap();
                    count(1);
                    thread::sleep(Duration::from_millis(3));
                    count(-1);
                    drop(held);
                }
            }
            _ => match acquire(&client, &line) {
                Ok(guard) => {
                    held.push(guard);
                    "got it".into()
                }
                Err(error) => format!("{:?}", error.kind()),
            },
        };
        say(said);
    }
}
