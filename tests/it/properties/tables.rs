//! Tables: readers and writers, permits.

use super::state::MARKED;
use super::tables_model::{Acquire, Model, Slot, Want};
use super::tables_ops::{CLIENTS, Client, LIMIT, Op, SPOILT, STEPS, TTLS, Used, ops};
use super::words_model::Said;
use super::world::{SLOP, Seen, World, check};

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

    /// The client that is meant, or the next one that is so.
    fn one_that(&self, n: usize, is_so: impl Fn(&Client) -> bool) -> Option<usize> {
        let all = self.clients.len();
        (n..n + all)
            .map(|n| n % all)
            .find(|&n| is_so(&self.clients[n]))
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
                let n = self.one_that(n, |c| c.dead.is_some())?;
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
                let reads =
                    |c: &Client| c.used.as_ref().is_some_and(|used| used.want == Want::Read);
                let n = self.one_that(n, |c| c.holds && reads(c))?;
                let client = &mut self.clients[n];
                let used = client.used.clone()?;
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
                let writes = |c: &Client| {
                    c.used
                        .as_ref()
                        .is_some_and(|used| used.want != Want::Read || used.downgraded.is_some())
                };
                let n = self.one_that(n, |c| c.holds && writes(c))?;
                let client = &mut self.clients[n];
                let used = client.used.clone()?;
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
                let client = self.one_that(client, |c| c.used.is_some())?;
                let used = self.clients[client].used.clone()?;
                let seen = self.call("renew_table", &[used.token.clone(), TTLS[ttl].to_string()]);
                Some((Some(self.model.renew(&used.token, TTLS[ttl])), seen))
            }
            Op::Verify { client } => {
                let client = self.one_that(client, |c| c.used.is_some())?;
                let used = self.clients[client].used.clone()?;
                let seen = self.call("verify_table", std::slice::from_ref(&used.token));
                let ours = self.model.is_ours(&used.token);
                Some((Some(Said::Code(ours.into())), seen))
            }
            Op::Release {
                client,
                mark,
                twice,
            } => {
                let client = self.one_that(client, |c| c.holds)?;
                let client = &mut self.clients[client];
                let used = client.used.clone()?;
                client.start_anew();
                client.released = Some(used.clone());
                client.dead = Some(used.clone());
                Some(self.release(&used.token, mark, twice))
            }
            Op::ReleaseAgain { client } => {
                let client = self.one_that(client, |c| c.released.is_some())?;
                let used = self.clients[client].released.clone()?;
                Some(self.release(&used.token, 'C', true))
            }
            Op::Leave {
                client,
                with_token,
                sure,
            } => {
                let client = self
                    .one_that(client, |c| c.used.is_some())
                    .unwrap_or(client);
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
    let outcomes = [
        "acquire_rw -1",
        "acquire_rw -2",
        "acquire_rw 0",
        "acquire_rw granted",
        "acquire_rw messages: 1",
        "downgrade granted",
        "release_table 0",
        "release_table messages: 1",
        "leave_table 1",
        "renew_table 1",
        "renew_table 0",
        "force_unlock_table messages: 1",
        "verify_table 1",
        "inspect_table seen",
    ];
    check(150, ops(false), &["{w}:lh:rw"], &outcomes, |world, ops| {
        case(world, ops, false)
    });
}

/// Permits: never more than there are, in order of arrival, what a dead holder had comes back, and a limit that shrinks takes
/// nothing from anybody.
#[test]
fn permits_are_what_their_model_says_after_any_calls() {
    let outcomes = [
        "acquire_permits -1",
        "acquire_permits -4",
        "acquire_permits 0",
        "acquire_permits granted",
        "release_table 1",
        "release_table messages: 1",
        "set_permits 1",
        "renew_table 1",
        "verify_table 1",
    ];
    check(150, ops(true), &["{w}:lh:sem"], &outcomes, |world, ops| {
        case(world, ops, true)
    });
}
