//! The one place that builds keys.
//!
//! A lock's word is the key exactly as named (after the client's namespace), so that it excludes other libraries' locks of
//! that name. What else we keep of it stands in companion keys in the same hash slot.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Longest name in bytes.
pub(crate) const MAX_NAME: usize = 1024;
/// What separates a companion's suffix from the word: no word may hold it.
const COMPANION: &str = ":lh:";

/// The keys of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// What the user called it, for messages.
    pub(crate) name: Arc<str>,
    /// The key that is the lock.
    pub(crate) word: Arc<str>,
    /// The companion with holder, mark, last token, dead tokens and waiters.
    pub(crate) state: Arc<str>,
}

impl Keys {
    pub(crate) fn new(namespace: &str, name: Arc<str>) -> Result<Keys> {
        check(&name).map_err(|e| e.for_lock(&name))?;
        let word: Arc<str> = if namespace.is_empty() {
            name.clone()
        } else {
            format!("{}:{name}", escape(namespace)).into()
        };
        let state = companion(&word, "s").into();
        Ok(Keys { name, word, state })
    }

    /// The keys of a word that came back from the server; `None` if it can't be one of ours.
    pub(crate) fn of_word(word: &str) -> Option<Keys> {
        if word.is_empty() {
            return None;
        }
        Some(Keys {
            name: word.into(),
            word: word.into(),
            state: companion(word, "s").into(),
        })
    }
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
        assert_eq!(&*k.state, "{order:12345}:lh:s");
    }

    #[test]
    fn a_name_and_the_same_name_in_braces_have_different_companions() {
        let (a, b) = (keys("", "a").unwrap(), keys("", "{a}").unwrap());
        assert_ne!(a.state, b.state);
        assert_eq!(hash_tag(&a.state), Some("a"));
        assert_eq!(hash_tag(&b.state), Some("a"));
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
