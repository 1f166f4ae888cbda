//! What a lock costs against the bare commands that it can't do without: `cargo bench --bench speed`.
//!
//! Server and client are pinned to different cores where there are two, as on two hosts. Each round times the floor and the
//! lock in turn, so that a machine that drifts drifts for both; the ratio of the medians is what counts.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold::testing::Server;

const ROUNDS: usize = 9;
const PAIRS: usize = 3000;

fn main() -> ExitCode {
    match uncontended() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// A renewed `lock()` and its drop, against `SET NX PX` and the `EVALSHA` of a compare-and-delete on one plain connection.
fn uncontended() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let placement = pin_apart(server.pid());
    let client = server.client();
    let mutex = client.mutex("speed");
    let mut floor = Floor::connect(&server.url())?;
    let (mut bare, mut lock) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (mut b, mut l) = (Vec::with_capacity(PAIRS), Vec::with_capacity(PAIRS));
        for _ in 0..PAIRS {
            let start = Instant::now();
            floor.pair()?;
            b.push(start.elapsed());
            let start = Instant::now();
            drop(mutex.lock()?);
            l.push(start.elapsed());
        }
        // The first round warms up.
        if round > 0 {
            bare.extend(b);
            lock.extend(l);
        }
    }
    let (floor_us, value_us) = (quantile(&mut bare, 50), quantile(&mut lock, 50));
    let (floor_p99, value_p99) = (quantile(&mut bare, 99), quantile(&mut lock, 99));
    println!(
        "{{\"bench\":\"uncontended\",\"value_us\":{value_us:.1},\"floor_us\":{floor_us:.1},\"ratio\":{:.3},\
         \"value_p99_us\":{value_p99:.1},\"floor_p99_us\":{floor_p99:.1},\"placement\":\"{placement}\",\"rounds\":{ROUNDS}}}",
        value_us / floor_us
    );
    Ok(())
}

struct Floor {
    connection: redis::Connection,
    sha: String,
}

impl Floor {
    fn connect(url: &str) -> redis::RedisResult<Floor> {
        let info = redis::IntoConnectionInfo::into_connection_info(url)?;
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let mut connection = redis::Client::open(info.set_tcp_settings(tcp))?.get_connection()?;
        let source = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) else return 0 end";
        let sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(source)
            .query(&mut connection)?;
        Ok(Floor { connection, sha })
    }

    fn pair(&mut self) -> redis::RedisResult<()> {
        let set: Option<String> = redis::cmd("SET")
            .arg("speed:floor")
            .arg("6f1c9a2e-1c51-4a1d-9a53-7d1ff2a0c111")
            .arg("NX")
            .arg("PX")
            .arg(30_000)
            .query(&mut self.connection)?;
        assert!(set.is_some(), "the floor's own key is taken");
        let deleted: i32 = redis::cmd("EVALSHA")
            .arg(&self.sha)
            .arg(1)
            .arg("speed:floor")
            .arg("6f1c9a2e-1c51-4a1d-9a53-7d1ff2a0c111")
            .query(&mut self.connection)?;
        assert_eq!(deleted, 1);
        Ok(())
    }
}

fn quantile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len() - 1);
    times[at].as_secs_f64() * 1e6
}

/// Client on core 0, server on core 1; says so, or that it could not.
fn pin_apart(server: u32) -> &'static str {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_setaffinity};
    let on = |cpu: usize| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    };
    let server = Pid::from_raw(server as i32);
    if sched_setaffinity(None, &on(0)).is_ok() && sched_setaffinity(server, &on(1)).is_ok() {
        "client on core 0, server on core 1"
    } else {
        "not pinned"
    }
}
