//! Two crates as workers: see ../work.rs for what is said on standard input and output.

use std::time::Duration;

use redis_lock::sync::MultiResourceLock;
use redlock::RedLock;

include!("../../work.rs");

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let url = args[1].clone();
    if args[0] == "redlock" {
        let locks = RedLock::new(vec![url.as_str()]);
        let locked = |name: &str, section: &mut dyn FnMut()| {
            // As its README does it: again and again, each with its own three tries.
            let lock = loop {
                if let Ok(Some(lock)) = locks.lock(name.as_bytes(), 30_000) {
                    break lock;
                }
            };
            section();
            locks.unlock(&lock);
        };
        return work(&args, locked);
    }
    let client = redis_0_27::Client::open(url).expect("a url");
    redis_lock::sync::setup(&client).expect("its functions");
    let mut locks = MultiResourceLock::new(&client).expect("a connection");
    let expiration = Duration::from_secs(30);
    work(&args, move |name, section| {
        let names = [name.to_owned()];
        let id = loop {
            let (timeout, sleep) = (redis_lock::DEFAULT_TIMEOUT, redis_lock::DEFAULT_SLEEP);
            let id = locks.acquire(&names, expiration, timeout, sleep);
            if let Some(id) = id.expect("an answer") {
                break id;
            }
        };
        section();
        locks.release(&id).expect("a release");
    });
}
