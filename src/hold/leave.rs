//! The end of a wait that came to nothing, as the server is told of it.

use std::time::Duration;

use crate::name::Keys;
use crate::redis_io::cleaner::Cleaner;
use crate::redis_io::script::Request;
use crate::redis_io::scripts::{Family, WORD};

/// Takes `ticket` off the list of waiters, and undoes whatever an acquire with `token` did or may still do, or a grant that came
/// by the queue. Either may be empty. `unsure`: an acquire of the token may be under way.
pub(crate) fn leave(
    family: &Family,
    keys: &Keys,
    token: &str,
    ticket: &str,
    unsure: bool,
) -> Request {
    let request = Request::new(family.leave, keys).arg(token).arg(ticket);
    if unsure { request } else { request.arg("1") }
}

/// What the inbox does with a wake for a word that nobody waits for any more: the next waiter gets it.
pub(crate) fn pass_stray_wakes_on(cleaner: &Cleaner) -> Box<dyn Fn(&str) + Send + Sync> {
    let cleaner = cleaner.handle();
    Box::new(move |word| {
        if let Some(keys) = Keys::of_word(word) {
            let request = leave(&WORD, &keys, "", "", true);
            cleaner.push(request, Duration::from_secs(5), &keys.name);
        }
    })
}
