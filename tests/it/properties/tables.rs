//! Tables: readers and writers, permits.

use proptest::prelude::*;

use super::state::MARKED;
use super::tables_model::{Acquire, Model, Slot, Want};
use super::words_model::Said;
use super::world::{SLOP, Seen, World, check, token};

const TTLS: [i64; 3] = [10_500, 28_500, 100_500];
/// Steps of time end more than [`SLOP`] beside anything that ends.
const STEPS: [i64; 5] = [6000, 12_000, 30_000, 3_606_000, 604_806_000];

#[derive(Clone, Debug)]
enum Op {
    /// Also the same call again, and the one that comes for what was given.
    Acquire {
        client: usize,
        writes: bool,
        n: u64,
        other_limit: bool,
        waits: bool,
        ttl: usize,
        floor: u8,
    },
    AcquireDead {
        client: usize,
    },
    Upgrade {
        client: usize,
        waits: bool,
    },
    /// Also the same call again.
    Downgrade {
        client: usize,
        ttl: usize,
    },
    SetPermits {
        n: u64,
    },
    Renew {
        client: usize,
        ttl: usize,
    },
    Release {
        client: usize,
        mark: char,
        twice: bool,
    },
    ReleaseAgain {
        client: usize,
    },
    Leave {
        client: usize,
        with_token: bool,
        sure: bool,
    },
    Force,
    Verify {
        client: usize,
    },
    Inspect,
    /// By hand.
    Delete,
    /// Another type, or somebody's data.
    Spoil {
        how: usize,
    },
    Pass {
        step: usize,
    },
    Listen {
        client: usize,
        on: bool,
    },
}

fn op(permits: bool) -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    let often = prop::bool::weighted(0.7);
    let floor = prop_oneof![8 => Just(0_u8), 1 => Just(1), 1 => Just(2)];
    let acquire = (
        client.clone(),
        any::<bool>(),
        1..4_u64,
        prop::bool::weighted(0.1),
        often.clone(),
        0..3_usize,
        floor,
    );
    let release = (
        client.clone(),
        proptest::sample::select(&['C', 'C', 'P', 'A'][..]),
        any::<bool>(),
    );
    let upgrade =
        (client.clone(), often.clone()).prop_map(|(client, waits)| Op::Upgrade { client, waits });
    let downgrade =
        (client.clone(), 0..3_usize).prop_map(|(client, ttl)| Op::Downgrade { client, ttl });
    let of_kind = if permits {
        (1..5_u64).prop_map(|n| Op::SetPermits { n }).boxed()
    } else {
        prop_oneof![upgrade, downgrade].boxed()
    };
    prop_oneof![
        40 => acquire.prop_map(|(client, writes, n, other_limit, waits, ttl, floor)| Op::Acquire { client, writes, n, other_limit, waits, ttl, floor }),
        2 => client.clone().prop_map(|client| Op::AcquireDead { client }),
        if permits { 4 } else { 16 } => of_kind,
        4 => (client.clone(), 0..3_usize).prop_map(|(client, ttl)| Op::Renew { client, ttl }),
        20 => release.prop_map(|(client, mark, twice)| Op::Release { client, mark, twice }),
        3 => client.clone().prop_map(|client| Op::ReleaseAgain { client }),
        6 => (client.clone(), any::<bool>(), any::<bool>()).prop_map(|(client, with_token, sure)| Op::Leave { client, with_token, sure }),
        2 => Just(Op::Force),
        2 => client.clone().prop_map(|client| Op::Verify { client }),
        1 => Just(Op::Inspect),
        1 => Just(Op::Delete),
        1 => (0..SPOILT.len()).prop_map(|how| Op::Spoil { how }),
        5 => proptest::sample::select(&[0, 0, 0, 1, 1, 2, 2, 3, 4][..]).prop_map(|step| Op::Pass { step }),
        3 => (client, often).prop_map(|(client, on)| Op::Listen { client, on }),
    ]
}

const CLIENTS: usize = 4;
const LIMIT: u64 = 3;

/// What somebody else may keep there, and the version that it then seems to have.
const SPOILT: [(&str, Option<&str>); 5] = [
    ("redis.call('RPUSH', KEYS[1], 'item')", None),
    ("redis.call('SET', KEYS[1], 'data')", None),
    ("redis.call('HSET', KEYS[1], 'field', 'data')", None),
    (
        "redis.call('HSET', KEYS[1], 's', 'data', 'x', 'data')",
        None,
    ),
    (
        "redis.call('HSET', KEYS[1], 's', '3NN0000000000000000 and more', 'x', '0,0,0,0,r')",
        Some("3"),
    ),
];

/// What a token is used for.
#[derive(Clone, Debug)]
struct Used {
    token: String,
    want: Want,
    /// The writer's token that a downgrade replaced.
    downgraded: Option<String>,
}

/// One who follows the rules: a token until it is given back or given up, a ticket for each wait.
#[derive(Debug)]
struct Client {
    n: u64,
    inbox: String,
    made: u64,
    token: String,
    ticket: String,
    used: Option<Used>,
    holds: bool,
    waits: bool,
    seen: u64,
    released: Option<Used>,
    dead: Option<Used>,
}

impl Client {
    fn new(n: u64) -> Client {
        let mut client = Client {
            n,
            inbox: token(n + 1),
            made: 0,
            token: String::new(),
            ticket: String::new(),
            used: None,
            holds: false,
            waits: false,
            seen: 0,
            released: None,
            dead: None,
        };
        client.start_anew();
        client
    }

    fn start_anew(&mut self) {
        self.made += 1;
        self.token = token((self.n + 1) * 1000 + self.made);
        self.ticket = format!("{}{:08x}", self.inbox, self.made);
        self.used = None;
        self.holds = false;
        self.waits = false;
    }

    /// The read lease is what it has, as before it wanted more.
    fn reads_on(&mut self) {
        let used = self.used.clone();
        self.start_anew();
        if let Some(Used {
            want: Want::Upgrade(old),
            ..
        }) = used
        {
            self.used = Some(Used {
                token: old,
                want: Want::Read,
                downgraded: None,
            });
            self.holds = true;
        }
    }
}

struct Case<'a, 'b> {
    world: &'a mut World<'b>,
    model: Model,
    clients: Vec<Client>,
    permits: bool,
}

/// `Ok(false)`: the machine was too slow for this case.
fn case(world: &mut World<'_>, ops: &[Op], permits: bool) -> Result<bool, String> {
    let began = world.now();
    let mut case = Case {
        model: Model::new(&world.keys[0]),
        clients: (0..CLIENTS as u64).map(Client::new).collect(),
        world,
        permits,
    };
    for client in 0..CLIENTS {
        case.listen(client, client > 0);
    }
    for (n, op) in ops.iter().enumerate() {
        let Some((said, seen)) = case.step(op) else {
            continue;
        };
        if seen.to / 1000 - began > SLOP {
            return Ok(false);
        }
        if let Some(said) = said.filter(|said| !Model::said_is(said, &seen.reply)) {
            return Err(format!("{n}, {op:?}: said {:?}, not {said:?}", seen.reply));
        }
        let compared = case.model.compare(&seen, matches!(op, Op::Force));
        compared.map_err(|what| format!("{n}, {op:?}: {what}"))?;
    }
    Ok(true)
}

impl Case<'_, '_> {
    fn listen(&mut self, client: usize, on: bool) {
        self.world.listen(&self.clients[client].inbox, on);
        self.model.listening.clone_from(&self.world.listening);
    }

    fn call(&mut self, script: &'static str, args: &[String]) -> Seen {
        let seen = self.world.call(script, &[&self.model.key], args);
        self.model.at(&seen);
        seen
    }

    fn by_hand(&mut self, lua: &str) -> Seen {
        let mut command = redis::cmd("EVAL");
        command.arg(lua).arg(1).arg(&self.model.key);
        let seen = self.world.run(&command);
        self.model.at(&seen);
        seen
    }

    /// What client `n` asks with its token.
    fn wish(&mut self, n: usize, used: &Used, waits: bool, ttl: usize, floor: u8) -> Acquire {
        let floor = match floor {
            0 => 0,
            1 => self.clients[n].seen,
            _ => u64::try_from(self.world.now()).unwrap() * 1000 + 3_600_000_000,
        };
        let want = match &used.want {
            Want::Read => "r".into(),
            Want::Write => "w".into(),
            Want::Upgrade(_) => "x".into(),
            Want::Permits(n, ..) => n.to_string(),
        };
        Acquire {
            token: used.token.clone(),
            ttl: TTLS[ttl],
            text: format!("client {n}\n{want}"),
            floor,
            keep: TTLS[ttl] + MARKED,
            ticket: waits.then(|| self.clients[n].ticket.clone()),
            entry: format!("{want},3000,{}", used.token),
            want: used.want.clone(),
        }
    }

    fn acquire(&mut self, call: &Acquire) -> (Said, Seen) {
        let (ticket, entry) = match &call.ticket {
            Some(ticket) => (ticket.clone(), call.entry.clone()),
            None => Default::default(),
        };
        let mut args = vec![
            call.token.clone(),
            call.ttl.to_string(),
            call.text.clone(),
            format!("{:016}", call.floor),
            call.keep.to_string(),
            ticket,
            entry,
        ];
        match &call.want {
            Want::Read => args.push("r".into()),
            Want::Write => args.push("w".into()),
            Want::Upgrade(old) => args.extend(["x".into(), old.clone()]),
            Want::Permits(n, limit, waits) => {
                args.extend([n.to_string(), limit.to_string()]);
                args.extend(waits.then(|| "1".into()));
            }
        }
        let script = if self.permits {
            "acquire_permits"
        } else {
            "acquire_rw"
        };
        let seen = self.call(script, &args);
        (self.model.acquire(call), seen)
    }

    /// What client `n` makes of a reply.
    fn learn(&mut self, n: usize, said: &Said, waits: bool) {
        let client = &mut self.clients[n];
        client.holds = matches!(said, Said::Granted(_));
        client.seen = client.seen.max(self.model.given.unwrap_or(0));
        match said {
            Said::Held(..) => client.waits |= waits,
            Said::Code(-5) => client.reads_on(),
            // A token that is refused, a lease that is gone, a limit that is another.
            Said::Code(_) | Said::CodeOf(-4, _) => client.start_anew(),
            _ => {}
        }
    }

    /// Some do not make sense now, and are left out.
    fn step(&mut self, op: &Op) -> Option<(Option<Said>, Seen)> {
        match *op {
            Op::Acquire {
                client: n,
                writes,
                n: permits,
                other_limit,
                waits,
                ttl,
                floor,
            } => {
                let client = &mut self.clients[n];
                let want = match (self.permits, writes) {
                    (true, _) => Want::Permits(permits, LIMIT + u64::from(other_limit), false),
                    (false, true) => Want::Write,
                    (false, false) => Want::Read,
                };
                let fresh = Used {
                    token: client.token.clone(),
                    want,
                    downgraded: None,
                };
                let mut used = client.used.get_or_insert(fresh).clone();
                if let Want::Permits(.., already) = &mut used.want {
                    *already = client.waits;
                }
                let wish = self.wish(n, &used, waits, ttl, floor);
                let (said, seen) = self.acquire(&wish);
                self.learn(n, &said, waits);
                Some((Some(said), seen))
            }
            Op::AcquireDead { client: n } => {
                let used = self.clients[n].dead.clone()?;
                if !matches!(&self.model.slot, Slot::Ours(t) if t.state.is_dead(&used.token)) {
                    return None;
                }
                let mut wish = self.wish(n, &used, false, 0, 0);
                wish.text = "late\nlate".into();
                let (said, seen) = self.acquire(&wish);
                assert!(said == Said::Code(-1), "a dead token was told {said:?}");
                Some((Some(said), seen))
            }
            Op::Upgrade { client: n, waits } => {
                let client = &mut self.clients[n];
                let used = client.used.clone()?;
                if !client.holds || used.want != Want::Read {
                    return None;
                }
                client.start_anew();
                let want = Want::Upgrade(used.token);
                let used = Used {
                    token: client.token.clone(),
                    want,
                    downgraded: None,
                };
                client.used = Some(used.clone());
                let wish = self.wish(n, &used, waits, 1, 0);
                let (said, seen) = self.acquire(&wish);
                self.learn(n, &said, waits);
                Some((Some(said), seen))
            }
            Op::Downgrade { client: n, ttl } => {
                let client = &mut self.clients[n];
                let used = client.used.clone()?;
                if !client.holds {
                    return None;
                }
                let used = match (&used.want, &used.downgraded) {
                    (Want::Write | Want::Upgrade(_), None) => {
                        client.start_anew();
                        client.released = Some(used.clone());
                        client.dead = Some(used.clone());
                        Used {
                            token: client.token.clone(),
                            want: Want::Read,
                            downgraded: Some(used.token),
                        }
                    }
                    (_, Some(_)) => used,
                    _ => return None,
                };
                client.used = Some(used.clone());
                let old = used.downgraded.clone().unwrap();
                let wish = self.wish(n, &used, false, ttl, 0);
                let args = [
                    wish.token.clone(),
                    wish.ttl.to_string(),
                    wish.text.clone(),
                    format!("{:016}", wish.floor),
                    old.clone(),
                ];
                let seen = self.call("downgrade", &args);
                let said = self.model.downgrade(&wish, &old);
                self.learn(n, &said, false);
                Some((Some(said), seen))
            }
            Op::SetPermits { n } => {
                let seen = self.call("set_permits", &[n.to_string()]);
                Some((Some(self.model.set_permits(n)), seen))
            }
            Op::Renew { client, ttl } => {
                let used = self.clients[client].used.clone()?;
                let seen = self.call("renew_table", &[used.token.clone(), TTLS[ttl].to_string()]);
                Some((Some(self.model.renew(&used.token, TTLS[ttl])), seen))
            }
            Op::Verify { client } => {
                let used = self.clients[client].used.clone()?;
                let seen = self.call("verify_table", &[used.token.clone()]);
                let ours = self.model.is_ours(&used.token);
                Some((Some(Said::Code(ours.into())), seen))
            }
            Op::Release {
                client,
                mark,
                twice,
            } => {
                let client = &mut self.clients[client];
                if !client.holds {
                    return None;
                }
                let used = client.used.clone()?;
                client.start_anew();
                client.released = Some(used.clone());
                client.dead = Some(used.clone());
                Some(self.release(&used.token, mark, twice))
            }
            Op::ReleaseAgain { client } => {
                let used = self.clients[client].released.clone()?;
                Some(self.release(&used.token, 'C', true))
            }
            Op::Leave {
                client,
                with_token,
                sure,
            } => {
                let client = &mut self.clients[client];
                let (token, ticket) = match &client.used {
                    Some(used) => (used.token.clone(), client.ticket.clone()),
                    None => <(String, String)>::default(),
                };
                let token = if with_token { token } else { String::new() };
                if with_token && !sure {
                    client.dead = client.used.clone();
                }
                if client.holds {
                    client.start_anew();
                } else {
                    client.reads_on();
                }
                let mut args = vec![token.clone(), ticket.clone()];
                if sure {
                    args.push("1".into());
                }
                let seen = self.call("leave_table", &args);
                Some((Some(self.model.leave(&token, &ticket, sure)), seen))
            }
            Op::Force => {
                let seen = self.call("force_unlock_table", &[]);
                Some((Some(self.model.force_unlock()), seen))
            }
            Op::Inspect => {
                let seen = self.call("inspect_table", &[]);
                assert!(Model::inspection_is(&seen), "{seen:?}");
                Some((None, seen))
            }
            Op::Delete => {
                let seen = self.by_hand("return redis.call('DEL', KEYS[1])");
                self.model.slot = Slot::Empty;
                Some((None, seen))
            }
            Op::Spoil { how } => {
                let (put, version) = SPOILT[how];
                let seen = self.by_hand(&format!("redis.call('DEL', KEYS[1]) {put}"));
                self.model.slot = Slot::Alien(seen.keys[0].clone(), version.map(Into::into));
                Some((None, seen))
            }
            Op::Pass { step } => {
                let seen = self.world.pass(STEPS[step]);
                self.model.at(&seen);
                self.model.pass(STEPS[step]);
                if let Slot::Alien(key, _) = &mut self.model.slot {
                    key.value.clone_from(&seen.keys[0].value);
                }
                Some((None, seen))
            }
            Op::Listen { client, on } => {
                self.listen(client, on);
                None
            }
        }
    }

    fn release(&mut self, token: &str, mark: char, twice: bool) -> (Option<Said>, Seen) {
        let mut args = vec![token.to_owned(), mark.into(), "0".into()];
        if twice {
            args.extend(["0".into(), "1".into()]);
        }
        let seen = self.call("release_table", &args);
        (Some(self.model.release(token, mark, twice)), seen)
    }
}

/// Readers and writers: a writer is alone, waits for all, and lets no new reader in; after him all readers enter that wait; one
/// upgrades at a time; no lease shortens another's, or the key's.
#[test]
fn readers_and_writers_are_what_their_model_says_after_any_calls() {
    check(200, op(false), &["{w}:lh:rw"], &["x"], |world, ops| {
        case(world, ops, false)
    });
}

/// Permits: never more than there are, in order of arrival, what a dead holder had comes back, and a limit that shrinks takes
/// nothing from anybody.
#[test]
fn permits_are_what_their_model_says_after_any_calls() {
    check(200, op(true), &["{w}:lh:sem"], &["x"], |world, ops| {
        case(world, ops, true)
    });
}
