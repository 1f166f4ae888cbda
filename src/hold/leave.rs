//! The end of a wait that came to nothing, as the server is told of it.

use std::time::Duration;

use crate::name::Keys;
use crate::redis_io::cleaner::Cleaner;
use crate::redis_io::script::{LEAVE, Request};

/// Takes `inbox` off the word's list of waiters, and undoes whatever an acquire with `token` did or may still do. Either may
/// be empty.
pub(crate) fn leave(keys: &Keys, token: &str, inbox: &str) -> Request {
    Request::new(&LEAVE, &[&keys.word, &keys.state])
        .arg(token)
        .arg(inbox)
}

/// What the inbox does with a wake for a word that nobody waits for any more: the next waiter gets it.
pub(crate) fn pass_stray_wakes_on(cleaner: &Cleaner) -> Box<dyn Fn(&str) + Send + Sync> {
    let cleaner = cleaner.handle();
    Box::new(move |word| {
        if let Some(keys) = Keys::of_word(word) {
            let request = leave(&keys, "", "");
            cleaner.push(request, Duration::from_secs(5), &keys.name);
        }
    })
}
