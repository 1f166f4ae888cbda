//! The one place that builds keys.
//!
//! A lock's word is the key exactly as named (after the client's namespace), so that it excludes other libraries' locks of
//! that name. What else we keep of it stands in companion keys in the same hash slot.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Longest name in bytes.
pub(crate) const MAX_NAME: usize = 1024;
/// Most names that one lock of several has.
pub(crate) const MAX_NAMES: usize = 1000;
/// What separates a companion's suffix from the word: no word may hold it.
const COMPANION: &str = ":lh:";

/// The keys of one lock, in the order in which its scripts take them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// What the user called it, for messages.
    pub(crate) name: Arc<str>,
    /// The key that is the lock; of several, the first.
    pub(crate) word: Arc<str>,
    beside: Beside,
}

/// What belongs to a lock beside its word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Beside {
    /// All is in the word.
    Nothing,
    /// The companion with holder, mark, last token, dead tokens and waiters.
    State(Arc<str>),
    /// Several locks held as one: word and state of each.
    Pairs(Arc<[(Arc<str>, Arc<str>)]>),
}

/// Locks that keep all they have in one key, which is a companion itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    RwLock,
    Semaphore,
}

/// What keys are keys of.
pub(crate) enum Locks {
    /// One word.
    One,
    /// A table of leases.
    Table,
    /// Several words.
    Several(Vec<Keys>),
}

impl Keys {
    /// Of a lock whose word is the key as named, with its state beside it.
    pub(crate) fn new(namespace: &str, name: Arc<str>) -> Result<Keys> {
        let word = word(namespace, &name)?;
        let state = companion(&word, "s").into();
        Ok(Keys {
            name,
            word,
            beside: Beside::State(state),
        })
    }

    /// Of a lock that has one key for all.
    pub(crate) fn table(namespace: &str, name: Arc<str>, table: Table) -> Result<Keys> {
        let suffix = match table {
            Table::RwLock => "rw",
            Table::Semaphore => "sem",
        };
        let word = companion(&word(namespace, &name)?, suffix).into();
        Ok(Keys {
            name,
            word,
            beside: Beside::Nothing,
        })
    }

    /// Of several locks at once: sorted, so that all programs take them in one order, and each once.
    ///
    /// # Errors
    ///
    /// `InvalidName` for a name of them, `InvalidOptions` for none or too many.
    pub(crate) fn several(namespace: &str, name: &Arc<str>, names: &[Arc<str>]) -> Result<Keys> {
        if names.is_empty() || names.len() > MAX_NAMES {
            let n = names.len();
            let what = format!("{n} names were given; it must be 1 to {MAX_NAMES}");
            return Err(Error::new(ErrorKind::InvalidOptions, what).for_lock(name));
        }
        let mut words = names
            .iter()
            .map(|name| word(namespace, name))
            .collect::<Result<Vec<_>>>()?;
        words.sort_unstable();
        words.dedup();
        let pairs: Arc<[_]> = words
            .into_iter()
            .map(|word| {
                let state = companion(&word, "s").into();
                (word, state)
            })
            .collect();
        Ok(Keys {
            name: name.clone(),
            word: pairs[0].0.clone(),
            beside: Beside::Pairs(pairs),
        })
    }

    /// The keys of a word that came back from the server; `None` if it can't be one of ours. (Of a table they are not the keys
    /// that it has, but of no harm either: a table is not what a word's script looks for.)
    pub(crate) fn of_word(word: &str) -> Option<Keys> {
        if word.is_empty() {
            return None;
        }
        Some(Keys {
            name: word.into(),
            word: word.into(),
            beside: Beside::State(companion(word, "s").into()),
        })
    }

    /// What there is to be looked at, one by one.
    pub(crate) fn each_lock(&self) -> Locks {
        match &self.beside {
            Beside::Nothing => Locks::Table,
            Beside::State(_) => Locks::One,
            Beside::Pairs(pairs) => {
                let one = |(word, state): &(Arc<str>, Arc<str>)| Keys {
                    name: word.clone(),
                    word: word.clone(),
                    beside: Beside::State(state.clone()),
                };
                Locks::Several(pairs.iter().map(one).collect())
            }
        }
    }

    /// All keys, in the order of the scripts.
    pub(crate) fn each<'a>(&'a self, mut f: impl FnMut(&'a Arc<str>)) {
        match &self.beside {
            Beside::Nothing => f(&self.word),
            Beside::State(state) => {
                f(&self.word);
                f(state);
            }
            Beside::Pairs(pairs) => pairs.iter().for_each(|(word, state)| {
                f(word);
                f(state);
            }),
        }
    }

    /// Those keys that are the lock, or locks.
    pub(crate) fn each_word<'a>(&'a self, mut f: impl FnMut(&'a Arc<str>)) {
        match &self.beside {
            Beside::Pairs(pairs) => pairs.iter().for_each(|(word, _)| f(word)),
            _ => f(&self.word),
        }
    }

    /// How many keys [`each`](Keys::each) gives.
    pub(crate) fn count(&self) -> usize {
        match &self.beside {
            Beside::Nothing => 1,
            Beside::State(_) => 2,
            Beside::Pairs(pairs) => pairs.len() * 2,
        }
    }

    /// How many keys [`each_word`](Keys::each_word) gives.
    pub(crate) fn words(&self) -> usize {
        match &self.beside {
            Beside::Pairs(pairs) => pairs.len(),
            _ => 1,
        }
    }

    /// The state's key; where there is none beside the word, the word.
    pub(crate) fn state(&self) -> &Arc<str> {
        match &self.beside {
            Beside::Nothing => &self.word,
            Beside::State(state) => state,
            Beside::Pairs(pairs) => &pairs[0].1,
        }
    }
}

/// The key that a lock is, or that its companions are named after.
fn word(namespace: &str, name: &Arc<str>) -> Result<Arc<str>> {
    check(name).map_err(|e| e.for_lock(name))?;
    Ok(if namespace.is_empty() {
        name.clone()
    } else {
        format!("{}:{name}", escape(namespace)).into()
    })
}

/// Refuses what could not be told from a companion, or would put the companion in another slot.
fn check(name: &str) -> Result<()> {
    let bad = |what: &str| Err(Error::new(ErrorKind::InvalidName, what.to_owned()));
    if name.is_empty() {
        return bad("the name is empty");
    }
    if name.len() > MAX_NAME {
        return bad(&format!(
            "the name has {} bytes, more than {MAX_NAME}",
            name.len()
        ));
    }
    if name.contains(COMPANION) {
        return bad(
            "the name holds ':lh:', which marks the keys that leasehold keeps beside a lock",
        );
    }
    if name.contains('}') && hash_tag(name).is_none() {
        return bad("the name holds '}' without a valid hash tag '{…}'");
    }
    Ok(())
}

/// The hash tag of a key as Redis Cluster sees it: between the first `{` and the first `}` after it, if not empty.
fn hash_tag(key: &str) -> Option<&str> {
    let open = key.find('{')?;
    let rest = &key[open + 1..];
    let close = rest.find('}')?;
    (close > 0).then(|| &rest[..close])
}

/// A key in the same slot as `word`. The two forms differ, so that the companions of `a` and of `{a}` do, too.
fn companion(word: &str, suffix: &str) -> String {
    if hash_tag(word).is_some() {
        format!("{word}{COMPANION}t:{suffix}")
    } else {
        format!("{{{word}}}{COMPANION}{suffix}")
    }
}

/// A namespace without `:` and braces, so that `a` + `b:c` differs from `a:b` + `c` and no namespace makes a hash tag.
fn escape(namespace: &str) -> String {
    let mut out = String::with_capacity(namespace.len());
    for c in namespace.chars() {
        match c {
            ':' => out.push_str("%3A"),
            '{' => out.push_str("%7B"),
            '}' => out.push_str("%7D"),
            '%' => out.push_str("%25"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(namespace: &str, name: &str) -> Result<Keys> {
        Keys::new(namespace, name.into())
    }

    #[test]
    fn the_word_is_the_name_itself() {
        let k = keys("", "order:12345").unwrap();
        assert_eq!(&*k.word, "order:12345");
        assert_eq!(&**k.state(), "{order:12345}:lh:s");
    }

    #[test]
    fn a_name_and_the_same_name_in_braces_have_different_companions() {
        let (a, b) = (keys("", "a").unwrap(), keys("", "{a}").unwrap());
        assert_ne!(a.state(), b.state());
        assert_eq!(hash_tag(a.state()), Some("a"));
        assert_eq!(hash_tag(b.state()), Some("a"));
    }

    #[test]
    fn namespaces_do_not_run_into_names() {
        assert_ne!(
            keys("a", "b:c").unwrap().word,
            keys("a:b", "c").unwrap().word
        );
        assert_ne!(
            keys("a%3Ab", "c").unwrap().word,
            keys("a:b", "c").unwrap().word
        );
        // A tag in the namespace must not decide the slot of every lock in it.
        assert_eq!(&*keys("{x}", "n").unwrap().word, "%7Bx%7D:n");
    }

    #[test]
    fn names_that_would_leave_their_slot_or_pass_for_a_companion_are_refused() {
        for bad in [
            "",
            "a}b",
            "{}x",
            "{x}:lh:s",
            "a:lh:b",
            &"x".repeat(1025),
            "{}{x}",
        ] {
            let e = keys("", bad).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidName, "{bad:?}");
        }
        for good in [
            "a",
            "{x}y",
            "a{b",
            "ünïcode 名",
            &"x".repeat(1024),
            "a{b}c}d",
        ] {
            keys("", good).unwrap();
        }
    }
}
