//! The least that a lock could cost: the bare commands that it can't do without, on one plain connection.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::report::Outcome;

pub(crate) const APART: &str = "clients on core 0, server on core 1";
pub(crate) const ONE_CORE: &str = "clients and server on core 0";
const FREE: &str = "not pinned";

/// Pins this process, its children to come, and the server.
pub(crate) fn pin(server: u32, together: bool) -> &'static str {
    let server_core = usize::from(!together);
    let pinned = pin_to(None, 0) && pin_to(Pid::from_raw(server as i32), server_core);
    match (pinned, together) {
        (false, _) => FREE,
        (true, true) => ONE_CORE,
        (true, false) => APART,
    }
}

fn pin_to(pid: Option<Pid>, core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(pid, &set).is_ok()
}

/// A plain connection, without delay.
pub(crate) fn connect(url: &str) -> redis::RedisResult<redis::Connection> {
    let info = redis::IntoConnectionInfo::into_connection_info(url)?;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    redis::Client::open(info.set_tcp_settings(tcp))?.get_connection()
}

const VALUE: &str = "6f1c9a2e1c514a1d9a537d1ff2a0c111";

/// `SET NX PX` and the `EVALSHA` of a compare-and-delete; of several keys, one script that sets them, and one that deletes them.
pub(crate) struct Floor {
    connection: redis::Connection,
    take: Option<String>,
    drop: String,
    keys: Vec<String>,
}

impl Floor {
    pub(crate) fn connect(url: &str) -> redis::RedisResult<Floor> {
        let source = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) else return 0 end";
        let mut connection = connect(url)?;
        Ok(Floor {
            drop: load(&mut connection, source)?,
            take: None,
            keys: vec!["speed:floor".into()],
            connection,
        })
    }

    /// For so many keys at once.
    pub(crate) fn of_several(url: &str, n: usize) -> redis::RedisResult<Floor> {
        let take = "for i=1,#KEYS do if not redis.call('SET',KEYS[i],ARGV[1],'NX','PX',ARGV[2]) then return 0 end end return 1";
        let drop = "for i=1,#KEYS do if redis.call('GET',KEYS[i])==ARGV[1] then redis.call('DEL',KEYS[i]) end end return 1";
        let mut connection = connect(url)?;
        Ok(Floor {
            take: Some(load(&mut connection, take)?),
            drop: load(&mut connection, drop)?,
            keys: (0..n).map(|i| format!("speed:floor:{i}")).collect(),
            connection,
        })
    }

    pub(crate) fn pair(&mut self) -> Outcome<()> {
        let taken = match &self.take {
            None => {
                let mut set = redis::cmd("SET");
                set.arg(&self.keys[0]).arg(VALUE).arg("NX");
                let set: Option<String> = set.arg("PX").arg(30_000).query(&mut self.connection)?;
                set.is_some()
            }
            Some(take) => {
                let mut call = redis::cmd("EVALSHA");
                call.arg(take).arg(self.keys.len()).arg(&self.keys);
                call.arg(VALUE)
                    .arg(30_000)
                    .query::<i32>(&mut self.connection)?
                    == 1
            }
        };
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.drop).arg(self.keys.len()).arg(&self.keys);
        let dropped: i32 = call.arg(VALUE).query(&mut self.connection)?;
        if taken && dropped == 1 {
            return Ok(());
        }
        Err("the floor's own keys were taken".into())
    }
}

fn load(connection: &mut redis::Connection, source: &str) -> redis::RedisResult<String> {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(source)
        .query(connection)
}
