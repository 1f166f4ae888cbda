//! A hold that goes from one thread of a process to the next without a word to the server.
//!
//! The server's grant came with a block of fencing tokens, so that each thread has one of its own, above the last. The word's
//! value stays what it is: for the server it is one hold, which ends when the last of them gives it back, with the last token
//! that was used.

use std::fmt;
use std::sync::Arc;

use crate::hold::Hold;
use crate::hold::gate::Pass;
use crate::hold::release;
use crate::hold::renewer::Renewer;
use crate::options::HoldOptions;

/// How many fencing tokens a grant reserves that may be handed over.
pub(crate) const BLOCK: u64 = 1000;

/// What a thread that waits wants: only a hold of just this kind can be handed to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) kind: &'static str,
    pub(crate) options: HoldOptions,
}

/// What was given back, and has not been taken yet. It is past its renewer's join, so nobody renews it.
pub(crate) struct Handed {
    /// Over.
    hold: Arc<Hold>,
    renewer: Renewer,
    /// Who had it, if it ended by a panic.
    panicked: Option<String>,
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handed").field(&self.hold).finish()
    }
}

impl Handed {
    /// What has just been given back, if the next thread can still do something with it.
    ///
    /// # Errors
    ///
    /// The renewer again, if it must go back to the server.
    pub(crate) fn new(
        hold: &Arc<Hold>,
        renewer: Renewer,
        panicked: Option<String>,
    ) -> Result<Handed, Renewer> {
        if !hold.can_be_handed_over() {
            return Err(renewer);
        }
        Ok(Handed {
            hold: hold.clone(),
            renewer,
            panicked,
        })
    }

    pub(crate) fn suits(&self, wish: &Wish) -> bool {
        self.hold.kind == wish.kind && self.hold.options == wish.options
    }

    /// The next hold, and its renewer; or nothing, if it has lain here for too long: then it goes back to the server.
    pub(crate) fn take(self) -> Option<(Hold, Renewer)> {
        if !self.hold.can_be_handed_over() {
            self.give_back();
            return None;
        }
        Some((self.hold.successor(self.panicked), self.renewer))
    }

    /// For the next thread in line, or back to the server.
    pub(crate) fn pass_on(self, pass: Pass) {
        if let Err((pass, handed)) = pass.hand_over(self) {
            handed.give_back();
            drop(pass);
        }
    }

    pub(crate) fn into_renewer(self) -> Renewer {
        self.renewer
    }

    /// In the background, as whoever finds that nobody wants it any more has a wait of his own to end.
    fn give_back(self) {
        let Some(core) = self.hold.core.upgrade() else {
            return self.renewer.abandon();
        };
        release::in_background(&core, &self.hold, self.panicked);
        core.renewers.give_back(self.renewer);
    }
}
