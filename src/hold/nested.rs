//! What the present thread holds and may take again without asking anybody.
//!
//! A guard that can be nested never leaves its thread, so this is kept by the thread itself. A guard that is leaked leaves one
//! small entry until the thread ends.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::hold::core::Core;
use crate::hold::release::HoldGuard;
use crate::lease::Lease;

struct Entry {
    core: *const Core,
    word: Arc<str>,
    hold: Weak<HoldGuard>,
}

thread_local! {
    static HELD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// One guard of a hold that may have several on its thread.
pub(crate) struct Nested {
    hold: Arc<HoldGuard>,
}

impl fmt::Debug for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

impl Deref for Nested {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.hold
    }
}

impl Nested {
    /// The first guard of a hold.
    pub(crate) fn enter(hold: HoldGuard) -> Nested {
        let hold = Arc::new(hold);
        let entry = Entry {
            core: Arc::as_ptr(hold.core()),
            word: hold.hold().keys.word.clone(),
            hold: Arc::downgrade(&hold),
        };
        // A thread that is ending keeps no entries: then a nested lock is an error, not a hang.
        let _ = HELD.try_with(|held| held.borrow_mut().push(entry));
        Nested { hold }
    }

    /// One more guard of what this thread holds of `word` through this client, lost or not.
    pub(crate) fn find(core: &Arc<Core>, word: &str) -> Option<Nested> {
        let found = HELD.try_with(|held| {
            let held = held.borrow();
            let same = |e: &&Entry| std::ptr::eq(e.core, Arc::as_ptr(core)) && &*e.word == word;
            // A client that is gone has no live hold, whatever is at its address now.
            held.iter().filter(same).find_map(|e| e.hold.upgrade())
        });
        Some(Nested {
            hold: found.ok().flatten()?,
        })
    }

    /// How many guards the hold has.
    pub(crate) fn depth(&self) -> usize {
        Arc::strong_count(&self.hold)
    }

    /// The hold, if this is its last guard: then it can't be entered any more.
    pub(crate) fn into_last(self) -> Result<HoldGuard, Nested> {
        if self.depth() > 1 {
            return Err(self);
        }
        self.forget();
        let hold = Arc::clone(&self.hold);
        drop(self);
        Arc::try_unwrap(hold).map_err(|hold| Nested { hold })
    }

    /// Gives this guard back, and says how that went; the last one gives the hold back.
    pub(crate) fn unlock(self) -> crate::Result<()> {
        match self.into_last() {
            Ok(hold) => hold.unlock(),
            Err(nested) => Ok(nested.check()?),
        }
    }

    /// No nested guard can be had any more.
    fn forget(&self) {
        let this = Arc::as_ptr(&self.hold);
        let forget = |held: &RefCell<Vec<Entry>>| {
            held.borrow_mut()
                .retain(|e| !std::ptr::eq(e.hold.as_ptr(), this));
        };
        let _ = HELD.try_with(forget);
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        if self.depth() == 1 {
            self.forget();
        }
    }
}
