//! What three clients may do to words, and what each knows.

use proptest::prelude::*;

use super::world::token;

pub(super) const TTLS: [i64; 3] = [10_500, 28_500, 100_500];
/// Steps of time end more than the slop beside anything that ends.
pub(super) const STEPS: [i64; 6] = [3000, 6000, 12_000, 30_000, 3_606_000, 604_806_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Mutex,
    Fair,
    All,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Also the same call again, and the one that comes for what was given.
    Acquire {
        client: usize,
        how: How,
        words: u8,
        waits: bool,
        ttl: usize,
        floor: u64,
        block: bool,
    },
    AcquireDead {
        client: usize,
    },
    Renew {
        client: usize,
        ttl: usize,
    },
    Release {
        client: usize,
        mark: char,
        rest: bool,
        twice: bool,
        /// How many of its tokens it used beside the first, and whether the last one was somebody else.
        more: u64,
        handed: bool,
    },
    ReleaseAgain {
        client: usize,
    },
    Leave {
        client: usize,
        with_token: bool,
        sure: bool,
    },
    Force {
        word: usize,
    },
    Verify {
        client: usize,
    },
    Inspect {
        word: usize,
    },
    /// By hand.
    Delete {
        word: usize,
        state: bool,
    },
    /// Another type, or somebody's data.
    Spoil {
        word: usize,
        state: bool,
        how: u8,
    },
    /// Another library's lock.
    Foreign {
        word: usize,
    },
    Pass {
        step: usize,
    },
    Listen {
        client: usize,
        on: bool,
    },
}

pub(super) fn op<const N: usize>(hows: [How; N]) -> impl Strategy<Value = Op> {
    let client = 0..3_usize;
    let word = 0..3_usize;
    let floor = prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(2)];
    let acquire = (
        client.clone(),
        proptest::sample::select(hows.to_vec()),
        1..8_u8,
        prop::bool::weighted(0.7),
        0..3_usize,
        floor,
        prop::bool::weighted(0.3),
    );
    let release = (
        client.clone(),
        proptest::sample::select(&['C', 'C', 'P', 'A'][..]),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.3),
        0..40_u64,
        any::<bool>(),
    );
    prop_oneof![
        40 => acquire.prop_map(|(client, how, words, waits, ttl, floor, block)| Op::Acquire { client, how, words, waits, ttl, floor, block }),
        3 => client.clone().prop_map(|client| Op::AcquireDead { client }),
        5 => (client.clone(), 0..3_usize).prop_map(|(client, ttl)| Op::Renew { client, ttl }),
        20 => release.prop_map(|(client, mark, rest, twice, more, handed)| Op::Release { client, mark, rest, twice, more, handed }),
        3 => client.clone().prop_map(|client| Op::ReleaseAgain { client }),
        8 => (client.clone(), any::<bool>(), any::<bool>()).prop_map(|(client, with_token, sure)| Op::Leave { client, with_token, sure }),
        3 => word.clone().prop_map(|word| Op::Force { word }),
        2 => client.clone().prop_map(|client| Op::Verify { client }),
        2 => word.clone().prop_map(|word| Op::Inspect { word }),
        2 => (word.clone(), any::<bool>()).prop_map(|(word, state)| Op::Delete { word, state }),
        1 => (word.clone(), any::<bool>(), 0..3_u8).prop_map(|(word, state, how)| Op::Spoil { word, state, how }),
        1 => word.prop_map(|word| Op::Foreign { word }),
        6 => proptest::sample::select(&[0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 5][..]).prop_map(|step| Op::Pass { step }),
        4 => (client, prop::bool::weighted(0.7)).prop_map(|(client, on)| Op::Listen { client, on }),
    ]
}

/// What a token is used for.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) token: String,
    pub(super) words: Vec<usize>,
    pub(super) how: How,
}

/// One who follows the rules: a token until it is given back or given up, a ticket for each wait.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) n: u64,
    pub(super) inbox: String,
    pub(super) made: u64,
    pub(super) token: String,
    pub(super) ticket: String,
    pub(super) used: Option<Used>,
    pub(super) holds: bool,
    /// The first fencing token of a block.
    pub(super) block: Option<u64>,
    /// Highest fencing token so far.
    pub(super) seen: u64,
    pub(super) released: Option<Used>,
    pub(super) dead: Option<Used>,
}

impl Client {
    pub(super) fn new(n: u64) -> Client {
        let mut client = Client {
            n,
            inbox: token(n + 1),
            made: 0,
            token: String::new(),
            ticket: String::new(),
            used: None,
            holds: false,
            block: None,
            seen: 0,
            released: None,
            dead: None,
        };
        client.start_anew();
        client
    }

    pub(super) fn start_anew(&mut self) {
        self.made += 1;
        self.token = token((self.n + 1) * 1000 + self.made);
        self.ticket = format!("{}{:08x}", self.inbox, self.made);
        self.used = None;
        self.holds = false;
        self.block = None;
    }
}
