//! What clients may do to a table, and what each knows.

use proptest::collection::vec;
use proptest::prelude::*;

use super::tables_model::Want;
use super::world::token;

pub(super) const TTLS: [i64; 3] = [10_500, 28_500, 100_500];
/// Steps of time end more than the slop beside anything that ends.
pub(super) const STEPS: [i64; 6] = [3000, 6000, 12_000, 30_000, 3_606_000, 604_806_000];

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Also the same call again, and the one that comes for what was given.
    Acquire {
        client: usize,
        writes: bool,
        n: u64,
        other_limit: bool,
        waits: bool,
        ttl: usize,
        floor: u8,
    },
    AcquireDead {
        client: usize,
    },
    Upgrade {
        client: usize,
        waits: bool,
    },
    /// Also the same call again.
    Downgrade {
        client: usize,
        ttl: usize,
    },
    SetPermits {
        n: u64,
    },
    Renew {
        client: usize,
        ttl: usize,
    },
    Release {
        client: usize,
        mark: char,
        twice: bool,
    },
    ReleaseAgain {
        client: usize,
    },
    Leave {
        client: usize,
        with_token: bool,
        sure: bool,
    },
    Force,
    Verify {
        client: usize,
    },
    Inspect,
    /// By hand.
    Delete,
    /// Another type, or somebody's data.
    Spoil {
        how: usize,
    },
    Pass {
        step: usize,
    },
    Listen {
        client: usize,
        on: bool,
    },
}

/// Half of the time all want it at once, and wait.
pub(super) fn ops(permits: bool) -> impl Strategy<Value = Vec<Op>> {
    let crowd = (any::<bool>(), vec((any::<bool>(), 1..4_u64), CLIENTS));
    (crowd, vec(op(permits), 1..70)).prop_map(|((crowded, crowd), ops)| {
        let crowd = crowd.into_iter().take(if crowded { CLIENTS } else { 0 });
        let acquire = |(client, (writes, n))| Op::Acquire {
            client,
            writes,
            n,
            other_limit: false,
            waits: true,
            ttl: 1,
            floor: 0,
        };
        crowd.enumerate().map(acquire).chain(ops).collect()
    })
}

fn op(permits: bool) -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    let often = prop::bool::weighted(0.7);
    let floor = prop_oneof![8 => Just(0_u8), 1 => Just(1), 1 => Just(2)];
    let acquire = (
        client.clone(),
        any::<bool>(),
        1..4_u64,
        prop::bool::weighted(0.1),
        often,
        0..3_usize,
        floor,
    );
    let release = (
        client.clone(),
        proptest::sample::select(&['C', 'C', 'P', 'A'][..]),
        any::<bool>(),
    );
    let upgrade = (client.clone(), often).prop_map(|(client, waits)| Op::Upgrade { client, waits });
    let downgrade =
        (client.clone(), 0..3_usize).prop_map(|(client, ttl)| Op::Downgrade { client, ttl });
    let of_kind = if permits {
        (1..5_u64).prop_map(|n| Op::SetPermits { n }).boxed()
    } else {
        prop_oneof![upgrade, downgrade].boxed()
    };
    prop_oneof![
        40 => acquire.prop_map(|(client, writes, n, other_limit, waits, ttl, floor)| Op::Acquire { client, writes, n, other_limit, waits, ttl, floor }),
        2 => client.clone().prop_map(|client| Op::AcquireDead { client }),
        if permits { 4 } else { 16 } => of_kind,
        4 => (client.clone(), 0..3_usize).prop_map(|(client, ttl)| Op::Renew { client, ttl }),
        20 => release.prop_map(|(client, mark, twice)| Op::Release { client, mark, twice }),
        3 => client.clone().prop_map(|client| Op::ReleaseAgain { client }),
        6 => (client.clone(), any::<bool>(), any::<bool>()).prop_map(|(client, with_token, sure)| Op::Leave { client, with_token, sure }),
        2 => Just(Op::Force),
        2 => client.clone().prop_map(|client| Op::Verify { client }),
        1 => Just(Op::Inspect),
        2 => Just(Op::Delete),
        1 => (0..SPOILT.len()).prop_map(|how| Op::Spoil { how }),
        5 => proptest::sample::select(&[0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 5][..]).prop_map(|step| Op::Pass { step }),
        3 => (client, often).prop_map(|(client, on)| Op::Listen { client, on }),
    ]
}

pub(super) const CLIENTS: usize = 4;
pub(super) const LIMIT: u64 = 3;

/// What somebody else may keep there, and the version that it then seems to have.
pub(super) const SPOILT: [(&str, Option<&str>); 5] = [
    ("redis.call('RPUSH', KEYS[1], 'item')", None),
    ("redis.call('SET', KEYS[1], 'data')", None),
    ("redis.call('HSET', KEYS[1], 'field', 'data')", None),
    (
        "redis.call('HSET', KEYS[1], 's', 'data', 'x', 'data')",
        None,
    ),
    (
        "redis.call('HSET', KEYS[1], 's', '3NN0000000000000000 and more', 'x', '0,0,0,0,r')",
        Some("3"),
    ),
];

/// What a token is used for.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) token: String,
    pub(super) want: Want,
    /// The writer's token that a downgrade replaced.
    pub(super) downgraded: Option<String>,
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
    pub(super) waits: bool,
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
            waits: false,
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
        self.waits = false;
    }

    /// The read lease is what it has, as before it wanted more.
    pub(super) fn reads_on(&mut self) {
        let used = self.used.clone();
        self.start_anew();
        if let Some(Used {
            want: Want::Upgrade(old),
            ..
        }) = used
        {
            self.used = Some(Used {
                token: old,
                want: Want::Read,
                downgraded: None,
            });
            self.holds = true;
        }
    }
}
