//! All scripts, and which of them make up one kind of lock.

use crate::redis_io::script::{Script, body};

macro_rules! script {
    ($(#[$doc:meta])* $ident:ident, $name:literal) => {
        $(#[$doc])*
        pub(crate) static $ident: Script =
            Script::new($name, || body(include_str!(concat!("scripts/", $name, ".lua"))));
    };
}

script!(
    /// Takes the word, or registers a waiter.
    ACQUIRE, "acquire"
);
script!(
    /// The same, but not before those who queue for it.
    ACQUIRE_FAIR, "acquire_fair"
);
script!(
    /// Takes all words or none.
    ACQUIRE_ALL, "acquire_all"
);
script!(
    /// Enters a read-write lock as a reader or writer, or turns a read into a write.
    ACQUIRE_RW, "acquire_rw"
);
script!(
    /// Takes permits.
    ACQUIRE_PERMITS, "acquire_permits"
);
script!(
    /// Re-arms the ttl of the word, or words, if ours.
    RENEW, "renew"
);
script!(
    /// Re-arms one lease of a table.
    RENEW_TABLE, "renew_table"
);
script!(
    /// Gives the word back and wakes one waiter.
    RELEASE, "release"
);
script!(
    /// Gives several words back.
    RELEASE_ALL, "release_all"
);
script!(
    /// Gives one lease of a table back, and grants what has become possible.
    RELEASE_TABLE, "release_table"
);
script!(
    /// Ends a wait: takes the ticket out, and undoes a grant that was never delivered.
    LEAVE, "leave"
);
script!(
    /// The same for a table.
    LEAVE_TABLE, "leave_table"
);
script!(
    /// Whether the word, or all words, are ours.
    VERIFY, "verify"
);
script!(
    /// Whether a lease of a table is ours.
    VERIFY_TABLE, "verify_table"
);
script!(
    /// Reads all there is to know of a lock.
    INSPECT, "inspect"
);
script!(
    /// The same of a table.
    INSPECT_TABLE, "inspect_table"
);
script!(
    /// Takes the word away from whoever holds it.
    FORCE_UNLOCK, "force_unlock"
);
script!(
    /// Takes all leases of a table away.
    FORCE_UNLOCK_TABLE, "force_unlock_table"
);
script!(
    /// Turns a write into a read.
    DOWNGRADE, "downgrade"
);
script!(
    /// Stores a semaphore's limit.
    SET_PERMITS, "set_permits"
);

/// The scripts of one kind of lock: all kinds of holds are acquired, renewed and released by the same steps, and differ in
/// what the server does at each.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) acquire: &'static Script,
    pub(crate) renew: &'static Script,
    pub(crate) release: &'static Script,
    pub(crate) leave: &'static Script,
    pub(crate) verify: &'static Script,
}

/// One word, with its state beside it.
pub(crate) static WORD: Family = Family {
    acquire: &ACQUIRE,
    renew: &RENEW,
    release: &RELEASE,
    leave: &LEAVE,
    verify: &VERIFY,
};

/// The same word, by those who queue for it.
pub(crate) static FAIR: Family = Family {
    acquire: &ACQUIRE_FAIR,
    ..WORD
};

/// Several words, all or none.
pub(crate) static SEVERAL: Family = Family {
    acquire: &ACQUIRE_ALL,
    release: &RELEASE_ALL,
    ..WORD
};

/// A table of leases in one key, for readers and writers.
pub(crate) static RW: Family = Family {
    acquire: &ACQUIRE_RW,
    renew: &RENEW_TABLE,
    release: &RELEASE_TABLE,
    leave: &LEAVE_TABLE,
    verify: &VERIFY_TABLE,
};

/// A table of leases in one key, for permits.
pub(crate) static PERMITS: Family = Family {
    acquire: &ACQUIRE_PERMITS,
    ..RW
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_the_shared_functions_where_it_wants_them() {
        let families = [&WORD, &FAIR, &SEVERAL, &RW, &PERMITS];
        let others = [
            &INSPECT,
            &INSPECT_TABLE,
            &FORCE_UNLOCK,
            &FORCE_UNLOCK_TABLE,
            &DOWNGRADE,
            &SET_PERMITS,
        ];
        let of_family = |f: &&Family| [f.acquire, f.renew, f.release, f.leave, f.verify];
        let all = families.iter().flat_map(of_family).chain(others);
        for script in all {
            assert!(!script.source().contains("#include"), "{script:?}");
        }
    }
}
