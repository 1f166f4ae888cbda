//! Whether words are seen to be what their model says.

use redis::Value;

use super::state::{State, adopt, near};
use super::words_model::{DATA, LATER, Lock, Model, Said, Slot};
use super::world::{Key, Seen, number, parts, text};

impl Said {
    /// Takes over what time was seen, where it may be.
    pub(super) fn is(&self, seen: &Value) -> bool {
        let list = || match seen {
            Value::Array(parts) => parts.clone(),
            _ => Vec::new(),
        };
        match self {
            Said::Granted(what) => matches!(seen, Value::BulkString(_)) && text(seen) == *what,
            Said::Held(left, by, waiters, word, last) => {
                let list = list();
                list.len() == 4 + usize::from(word.is_some()) + 2 * usize::from(last.is_some())
                    && list[0] == Value::Int(0)
                    && near(number(&list[1]), *left)
                    && text(&list[2]) == *by
                    && number(&list[3]) == *waiters
                    && word.as_ref().is_none_or(|word| text(&list[4]) == *word)
                    && last.is_none_or(|last| text(&list[5]) == format!("{last:016}"))
            }
            Said::Renewed(left) => {
                matches!(&*list(), [Value::Int(1), Value::Int(l)] if near(*l, *left))
            }
            Said::Code(code) => list() == [Value::Int(*code)],
            Said::CodeOf(code, what) => {
                matches!(&*list(), [Value::Int(c), w] if c == code && text(w) == *what)
            }
            Said::Int(n) => *seen == Value::Int(*n),
            Said::WrongType => format!("{seen:?}").contains("WRONGTYPE"),
        }
    }
}

impl Model {
    /// Whether the keys and the messages are as they should be.
    pub(super) fn compare(&mut self, seen: &Seen) -> Result<(), String> {
        let mut size = 0;
        for (i, word) in self.words.iter_mut().enumerate() {
            let (lock, state) = (&seen.keys[2 * i], &seen.keys[2 * i + 1]);
            let now = seen.from / 1000;
            let there = match (&mut word.lock, &*lock.kind) {
                (Lock::Held(_, ends), "string") if lock.left > 0 => {
                    adopt(ends, now + lock.left);
                    Lock::Held(lock.value.clone(), now + lock.left)
                }
                (_, "none") => Lock::Free,
                (_, "list") if lock.value == "item" => Lock::List,
                (_, "string") if lock.value == DATA && lock.left == -1 => Lock::Data,
                _ => return Err(format!("instead of {:?} there is {lock:?}", word.lock)),
            };
            let kept = match (&mut word.slot, &*state.kind) {
                (_, "none") => Slot::Empty,
                (_, "list") if state.value == "item" => Slot::List,
                (_, "string") if state.value == DATA && state.left == -1 => Slot::Data,
                (_, "string") if state.value == LATER && state.left == -1 => Slot::Later,
                (Slot::Ours(ours, ends), "string") if state.left > 0 => {
                    let read = State::read(&state.value).ok_or("an unreadable state")?;
                    ours.adopt_times(&read);
                    adopt(ends, now + state.left);
                    Slot::Ours(Box::new(read), now + state.left)
                }
                _ => return Err(format!("instead of {:?} there is {state:?}", word.slot)),
            };
            if there != word.lock {
                return Err(format!("instead of {:?} there is {there:?}", word.lock));
            }
            if kept != word.slot {
                return Err(format!("instead of {:#?} there is {kept:#?}", word.slot));
            }
            if let (Lock::Held(by, _), Slot::Ours(state, _)) = (&there, &kept)
                && !by.starts_with("lh:rest:")
                && state.is_dead(by)
            {
                return Err(format!("{by} has it, which is dead: {state:?}"));
            }
            size += i64::from(there != Lock::Free) + i64::from(kept != Slot::Empty);
        }
        if size != seen.size {
            return Err(format!("{} keys instead of {size}", seen.size));
        }
        if self.messages != seen.messages {
            let (ours, theirs) = (&self.messages, &seen.messages);
            return Err(format!("messages {theirs:?} instead of {ours:?}"));
        }
        Ok(())
    }

    /// What an inspection reads.
    pub(super) fn inspection_is(&self, seen: &Seen, i: usize) -> bool {
        let said = parts(seen.reply.clone());
        let (lock, state) = (&seen.keys[2 * i], &seen.keys[2 * i + 1]);
        let shown = |value: &Value, key: &Key| match value {
            Value::Nil => key.kind != "string",
            value => key.kind == "string" && text(value) == key.value,
        };
        let at: i64 = text(&said[3]).parse().unwrap();
        shown(&said[0], lock)
            && near(number(&said[1]), lock.left)
            && shown(&said[2], state)
            && (seen.from / 1000..=seen.to / 1000).contains(&at)
            && text(&said[4]) == lock.kind
    }
}
