//! Hot paths, by Criterion: `cargo bench --bench paths`. For comparing a change with what was before it
//! (`-- --save-baseline before`, `-- --baseline before`); what things cost beside their floor, `--bench speed` says.

use std::hint::black_box;

use criterion::Criterion;
use leasehold::FencingToken;
use leasehold::testing::Server;

fn paths(c: &mut Criterion) {
    let server = Server::start().expect("a server");
    let client = server.client();
    let mutex = client.mutex("paths");
    c.bench_function("mutex: lock and drop", |b| {
        b.iter(|| drop(mutex.lock().expect("the lock")));
    });
    let permits = client.semaphore("paths", 5);
    c.bench_function("semaphore: acquire and drop", |b| {
        b.iter(|| drop(permits.acquire().expect("a permit")));
    });
    let reentrant = client.reentrant_mutex("paths:nested");
    let outer = reentrant.lock().expect("the lock");
    c.bench_function("reentrant mutex: nested", |b| {
        b.iter(|| drop(reentrant.lock().expect("the lock")));
    });
    c.bench_function("lease: check", |b| b.iter(|| black_box(outer.check())));
    let lease = outer.lease();
    c.bench_function("lease: is_held", |b| b.iter(|| black_box(lease.is_held())));
    c.bench_function("a handle", |b| {
        b.iter(|| client.mutex(black_box("order:12345")));
    });
    let token = outer.fencing_token();
    let text = token.to_string();
    c.bench_function("fencing token: to text and back", |b| {
        b.iter(|| black_box(token).to_string().parse::<FencingToken>());
    });
    assert_eq!(text.parse::<FencingToken>().ok(), Some(token));
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    paths(&mut criterion);
    criterion.final_summary();
}
