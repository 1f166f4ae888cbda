//! Which of leasehold's scripts a command on the wire runs, and on which lock.

use std::sync::LazyLock;

use super::proxy::Command;

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("../../../src/redis_io/scripts/", $name, ".lua"))
    };
}

struct Script {
    name: &'static str,
    source: String,
    sha: String,
}

/// Put together as the crate does it. If that changes, no command is recognised any more, and every test that waits for
/// one fails.
static SCRIPTS: LazyLock<Vec<Script>> = LazyLock::new(|| {
    let named = |name, source: &str| {
        let include = |source: String, (mark, shared): &(&str, &str)| source.replace(mark, shared);
        let source = SHARED.iter().fold(source.to_owned(), include);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Script { name, source, sha }
    };
    NAMED.map(|(name, source)| named(name, source)).into()
});

const NAMED: [(&str, &str); 20] = [
    ("acquire", source!("acquire")),
    ("acquire_fair", source!("acquire_fair")),
    ("acquire_all", source!("acquire_all")),
    ("acquire_rw", source!("acquire_rw")),
    ("acquire_permits", source!("acquire_permits")),
    ("renew", source!("renew")),
    ("renew_table", source!("renew_table")),
    ("release", source!("release")),
    ("release_all", source!("release_all")),
    ("release_table", source!("release_table")),
    ("leave", source!("leave")),
    ("leave_table", source!("leave_table")),
    ("verify", source!("verify")),
    ("verify_table", source!("verify_table")),
    ("inspect", source!("inspect")),
    ("inspect_table", source!("inspect_table")),
    ("force_unlock", source!("force_unlock")),
    ("force_unlock_table", source!("force_unlock_table")),
    ("downgrade", source!("downgrade")),
    ("set_permits", source!("set_permits")),
];

const SHARED: [(&str, &str); 5] = [
    ("--#include acquire.lua", source!("acquire")),
    ("--#include enter.lua", source!("enter")),
    ("--#include table.lua", source!("table")),
    ("--#include layout.lua", source!("layout")),
    ("--#include grant.lua", source!("grant")),
];

/// The sources, to be loaded into a server beforehand: a first call then is one command, as all later ones are.
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|s| s.source.as_str())
}

/// The source of one, by its name.
#[track_caller]
pub(crate) fn source(name: &str) -> &'static str {
    let script = SCRIPTS.iter().find(|s| s.name == name);
    script.map_or_else(|| panic!("no script {name}"), |s| &s.source)
}

pub(crate) fn names_of_scripts() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|s| s.name)
}

impl Command {
    /// `acquire` and so on, whether it was sent whole or by its hash.
    pub(crate) fn script(&self) -> Option<&'static str> {
        let body = self.args.get(1)?.as_slice();
        let is_it = |s: &&Script| match self.name() {
            "EVALSHA" => body == s.sha.as_bytes(),
            "EVAL" => body == s.source.as_bytes(),
            _ => false,
        };
        SCRIPTS.iter().find(is_it).map(|s| s.name)
    }

    pub(crate) fn runs(&self, script: &str) -> bool {
        self.script() == Some(script)
    }

    /// Of this lock alone.
    pub(crate) fn runs_on(&self, script: &str, word: &str) -> bool {
        self.args.get(3).is_some_and(|key| key == word.as_bytes()) && self.runs(script)
    }

    /// An acquire that names an inbox: its sender is woken when the lock comes free.
    pub(crate) fn registers(&self) -> bool {
        self.runs("acquire") && self.args.get(10).is_some_and(|inbox| !inbox.is_empty())
    }
}
