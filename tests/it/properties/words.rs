//! Words: mutex, queue, and several at once.

use proptest::collection::vec;

use super::state::{CLEAN, MARKED, escaped};
use super::words_model::{Acquire, DATA, LATER, Lock, Model, Said, Slot};
use super::words_ops::{Client, How, Op, STEPS, TTLS, Used, op};
use super::world::{SLOP, Seen, World, check};

struct Case<'a, 'b> {
    world: &'a mut World<'b>,
    model: Model,
    clients: Vec<Client>,
}

/// `Ok(false)`: the machine was too slow for this case.
fn case(world: &mut World<'_>, ops: &[Op]) -> Result<bool, String> {
    let began = world.now();
    let mut case = Case {
        model: Model::new(&world.keys),
        clients: (0..3).map(Client::new).collect(),
        world,
    };
    for client in 0..3 {
        case.listen(client, client < 2);
    }
    for (n, op) in ops.iter().enumerate() {
        let Some((said, seen)) = case.step(op) else {
            continue;
        };
        if seen.to / 1000 - began > SLOP {
            return Ok(false);
        }
        if let Some(said) = said.filter(|said| !said.is(&seen.reply)) {
            return Err(format!("{n}, {op:?}: said {:?}, not {said:?}", seen.reply));
        }
        let compared = case.model.compare(&seen);
        compared.map_err(|what| format!("{n}, {op:?}: {what}"))?;
    }
    Ok(true)
}

impl Case<'_, '_> {
    fn listen(&mut self, client: usize, on: bool) {
        self.world.listen(&self.clients[client].inbox, on);
        self.model.listening.clone_from(&self.world.listening);
    }

    fn call(&mut self, script: &'static str, words: &[usize], args: &[String]) -> Seen {
        let keys = words
            .iter()
            .flat_map(|&i| [&*self.model.keys[2 * i], &*self.model.keys[2 * i + 1]]);
        let seen = self.world.call(script, &keys.collect::<Vec<_>>(), args);
        self.model.at(&seen);
        seen
    }

    /// With the words only.
    fn call_words(&mut self, script: &'static str, words: &[usize], args: &[String]) -> Seen {
        let keys = words.iter().map(|&i| &*self.model.keys[2 * i]);
        let seen = self.world.call(script, &keys.collect::<Vec<_>>(), args);
        self.model.at(&seen);
        seen
    }

    fn by_hand(&mut self, key: usize, lua: &str) -> Seen {
        let mut command = redis::cmd("EVAL");
        command.arg(lua).arg(1).arg(&self.model.keys[key]);
        let seen = self.world.run(&command);
        self.model.at(&seen);
        seen
    }

    fn acquire(&mut self, how: How, words: &[usize], acquire: &Acquire) -> (Said, Seen) {
        let mut args = vec![
            acquire.token.clone(),
            acquire.ttl.to_string(),
            acquire.text.clone(),
            format!("{:016}", acquire.floor),
            acquire.keep.to_string(),
        ];
        match &acquire.ticket {
            Some(ticket) => args.extend([ticket.clone(), acquire.entry.clone()]),
            None if acquire.block > 0 => args.extend([String::new(), String::new()]),
            None => {}
        }
        if acquire.block > 0 {
            args.push(acquire.block.to_string());
        }
        match how {
            How::Mutex => {
                let seen = self.call("acquire", words, &args);
                (self.model.acquire(words[0], acquire, false), seen)
            }
            How::Fair => {
                let seen = self.call("acquire_fair", words, &args);
                (self.model.acquire(words[0], acquire, true), seen)
            }
            How::All => {
                let seen = self.call("acquire_all", words, &args);
                (self.model.acquire_all(words, acquire), seen)
            }
        }
    }

    fn release(
        &mut self,
        used: &Used,
        mark: char,
        last: Option<(u64, String)>,
        rest: bool,
        twice: bool,
    ) -> (Said, Seen) {
        let keep = if mark == 'C' { CLEAN } else { MARKED };
        let rest = if rest && used.how == How::Mutex && last.is_none() {
            TTLS[0]
        } else {
            0
        };
        let how = last.as_ref().map_or(mark.into(), |(last, label)| {
            format!("{mark}{last:016}{label}")
        });
        let mut args = vec![used.token.clone(), how, keep.to_string()];
        if rest > 0 || twice {
            args.push(rest.to_string());
        }
        if twice {
            args.push("1".into());
        }
        let script = if used.how == How::All {
            "release_all"
        } else {
            "release"
        };
        let seen = self.call(script, &used.words, &args);
        let mut all = true;
        for &i in &used.words {
            let last = last.as_ref();
            all &= self
                .model
                .release(i, &used.token, (mark, last), keep, rest, twice);
        }
        (Said::Int(all.into()), seen)
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
        let words = self.model.words.len();
        match *op {
            Op::Acquire {
                client: n,
                how,
                words: which,
                waits,
                ttl,
                floor,
                block,
            } => {
                let floor = match floor {
                    0 => 0,
                    1 => self.clients[n].seen,
                    _ => u64::try_from(self.world.now()).unwrap() * 1000 + 3_600_000_000,
                };
                let client = &mut self.clients[n];
                let chosen = match how {
                    How::All => (0..words).filter(|i| which & (1 << i) != 0).collect(),
                    _ => vec![usize::from(which) % words],
                };
                if chosen.is_empty() {
                    return None;
                }
                let fresh = Used {
                    token: client.token.clone(),
                    words: chosen,
                    how,
                };
                let used = client.used.get_or_insert(fresh).clone();
                let block = if block && used.how == How::Mutex {
                    50
                } else {
                    0
                };
                let mut text = format!("client {n}, of; 100%\n{:?}", used.how);
                if block > 0 {
                    text = format!("{text}\t{}", client.inbox);
                }
                let word_entry = |want: &str| {
                    let text = escaped(&text);
                    format!("{want},{},{block},{floor:016},{text}", used.token)
                };
                let entry = match used.how {
                    How::Fair => word_entry("f,3000"),
                    How::Mutex => word_entry("m,2000"),
                    How::All => ",,".into(),
                };
                let acquire = Acquire {
                    token: used.token.clone(),
                    ttl: TTLS[ttl],
                    text,
                    floor,
                    keep: TTLS[ttl] + MARKED,
                    ticket: waits.then(|| client.ticket.clone()),
                    entry,
                    block,
                };
                let (said, seen) = self.acquire(used.how, &used.words, &acquire);
                let client = &mut self.clients[n];
                client.holds = matches!(said, Said::Granted(_));
                client.block = match &said {
                    Said::Granted(reply) if reply.contains('\n') => self.model.given,
                    _ => None,
                };
                client.seen = client.seen.max(self.model.given.unwrap_or(0));
                if said == Said::Code(-1) {
                    client.start_anew();
                }
                Some((Some(said), seen))
            }
            Op::AcquireDead { client: n } => {
                let n = self.one_that(n, |c| c.dead.is_some())?;
                let used = self.clients[n].dead.clone()?;
                let remembered = |&i: &usize| matches!(&self.model.words[i].slot, Slot::Ours(s, _) if s.is_dead(&used.token));
                if !used.words.iter().any(remembered) {
                    return None;
                }
                let acquire = Acquire {
                    token: used.token.clone(),
                    ttl: TTLS[0],
                    text: "late\nlate".into(),
                    floor: 0,
                    keep: TTLS[0] + MARKED,
                    ticket: None,
                    entry: String::new(),
                    block: 0,
                };
                let (said, seen) = self.acquire(used.how, &used.words, &acquire);
                assert!(!matches!(said, Said::Granted(_)), "granted to a dead token");
                Some((Some(said), seen))
            }
            Op::Renew { client, ttl } => {
                let client = self.one_that(client, |c| c.used.is_some())?;
                let used = self.clients[client].used.clone()?;
                let args = [used.token.clone(), TTLS[ttl].to_string()];
                let seen = self.call_words("renew", &used.words, &args);
                let said = self.model.renew(&used.words, &used.token, TTLS[ttl]);
                Some((Some(said), seen))
            }
            Op::Verify { client } => {
                let client = self.one_that(client, |c| c.used.is_some())?;
                let used = self.clients[client].used.clone()?;
                let seen =
                    self.call_words("verify", &used.words, std::slice::from_ref(&used.token));
                let said = self.model.verify(&used.words, &used.token);
                Some((Some(said), seen))
            }
            Op::Release {
                client,
                mark,
                rest,
                twice,
                more,
                handed,
            } => {
                let client = self.one_that(client, |c| c.holds)?;
                let client = &mut self.clients[client];
                let used = client.used.clone()?;
                let last = client.block.map(|first| {
                    let label = if handed && mark != 'C' {
                        "the last, 1%"
                    } else {
                        ""
                    };
                    (first + more, label.to_owned())
                });
                client.start_anew();
                client.released = Some(used.clone());
                client.dead = Some(used.clone());
                let (said, seen) = self.release(&used, mark, last, rest, twice);
                Some((Some(said), seen))
            }
            Op::ReleaseAgain { client } => {
                let client = self.one_that(client, |c| c.released.is_some())?;
                let used = self.clients[client].released.clone()?;
                let (said, seen) = self.release(&used, 'C', None, false, true);
                Some((Some(said), seen))
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
                // Without a wait of its own it passes a stray wake on.
                let (token, ticket, words) = match &client.used {
                    Some(used) => (
                        used.token.clone(),
                        client.ticket.clone(),
                        used.words.clone(),
                    ),
                    None => (String::new(), String::new(), vec![0]),
                };
                let token = if with_token { token } else { String::new() };
                if with_token && !sure {
                    client.dead = client.used.clone();
                }
                client.start_anew();
                let mut args = vec![token.clone(), ticket.clone()];
                if sure {
                    args.push("1".into());
                }
                let seen = self.call("leave", &words, &args);
                Some((Some(self.model.leave(&words, &token, &ticket, sure)), seen))
            }
            Op::Force { word } => {
                let word = word % words;
                let seen = self.call("force_unlock", &[word], &[]);
                Some((Some(self.model.force_unlock(word)), seen))
            }
            Op::Inspect { word } => {
                let word = word % words;
                let seen = self.call("inspect", &[word], &[]);
                assert!(self.model.inspection_is(&seen, word), "{seen:?}");
                Some((None, seen))
            }
            Op::Delete { word, state } => {
                let word = word % words;
                let seen = self.by_hand(
                    2 * word + usize::from(state),
                    "return redis.call('DEL', KEYS[1])",
                );
                if state {
                    self.model.words[word].slot = Slot::Empty;
                } else {
                    self.model.words[word].lock = Lock::Free;
                }
                Some((None, seen))
            }
            Op::Spoil { word, state, how } => {
                let word = word % words;
                let (value, lock, slot) = match how {
                    0 => ("", Lock::List, Slot::List),
                    1 if state => (LATER, Lock::Data, Slot::Later),
                    _ => (DATA, Lock::Data, Slot::Data),
                };
                let put = match value {
                    "" => "redis.call('RPUSH', KEYS[1], 'item')".to_owned(),
                    value => format!("redis.call('SET', KEYS[1], \"{value}\")"),
                };
                let lua = format!("redis.call('DEL', KEYS[1]) {put}");
                let seen = self.by_hand(2 * word + usize::from(state), &lua);
                if state {
                    self.model.words[word].slot = slot;
                } else {
                    self.model.words[word].lock = lock;
                }
                Some((None, seen))
            }
            Op::Foreign { word } => {
                let word = word % words;
                let lua = "redis.call('SET', KEYS[1], 'other-library', 'PX', 28500)";
                let seen = self.by_hand(2 * word, lua);
                self.model.words[word].lock =
                    Lock::Held("other-library".into(), seen.from / 1000 + TTLS[1]);
                Some((None, seen))
            }
            Op::Pass { step } => {
                let seen = self.world.pass(STEPS[step]);
                self.model.at(&seen);
                self.model.pass(STEPS[step]);
                Some((None, seen))
            }
            Op::Listen { client, on } => {
                self.listen(client, on);
                None
            }
        }
    }
}

/// Mutex and queue on one word: a queue is served in order, each grant has a higher fencing token, a call that is repeated is
/// the same, a dead token gets nothing, and what is somebody's data stays as it is.
#[test]
fn one_word_is_what_its_model_says_after_any_calls() {
    let keys = ["w", "{w}:lh:s"];
    let outcomes = [
        "acquire -1",
        "acquire_fair granted",
        "acquire_fair 0",
        "renew 1",
        "renew 0",
        "release 1",
        "release 0",
        "release messages: 1",
        "leave 1",
        "force_unlock 1",
        "verify 1",
        "verify 0",
        "inspect seen",
    ];
    let hows = [How::Mutex, How::Fair, How::Fair];
    check(150, vec(op(hows), 1..70), &keys, &outcomes, case);
}

/// Several words at once, between others that want one of them: all or none, one fencing token above all.
#[test]
fn three_words_are_what_their_model_says_after_any_calls() {
    let keys = ["a", "{a}:lh:s", "b", "{b}:lh:s", "c", "{c}:lh:s"];
    let outcomes = [
        "acquire_all -1",
        "acquire_all -2",
        "acquire_all 0",
        "acquire_all granted",
        "release_all 1",
        "release_all 0",
        "release_all messages: 1",
        "leave 1",
        "renew 1",
        "renew 0",
        "verify 1",
    ];
    let hows = [How::All, How::All, How::Mutex, How::Fair];
    check(150, vec(op(hows), 1..70), &keys, &outcomes, case);
}
