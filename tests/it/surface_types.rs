//! What the types promise by themselves: auto traits, conversions, what `Debug` shows.

use std::collections::HashSet;
use std::fmt::{Debug, Display};
use std::hash::Hash;

use leasehold::testing::Server;
use leasehold::{
    Canceller, Client, ClientBuilder, Error, ErrorKind, FencingToken, Lease, LockInfo, Lost,
    ManagedConnection, Manager, Metrics, Mutex, MutexGuard, NodeError, OwnedMutexGuard,
    Predecessor, Quantiles, Wait,
};

fn shared<T: Send + Sync + 'static>() {}
fn cloned<T: Clone + Send + Sync + Debug + 'static>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

/// Compiles only if exactly one implementation applies, that is if `T` is not `Send`.
macro_rules! assert_not_send {
    ($t:ty) => {{
        trait Ambiguous<A> {
            fn is_not_send() {}
        }
        impl<T: ?Sized> Ambiguous<()> for T {}
        struct IfSend;
        impl<T: ?Sized + Send> Ambiguous<IfSend> for T {}
        <$t as Ambiguous<_>>::is_not_send();
    }};
}

/// Handles and leases go everywhere, a guard stays on its thread and may be shared into a scope. Checked by the compiler.
#[test]
fn auto_traits_are_as_documented() {
    cloned::<Client>();
    cloned::<ClientBuilder>();
    cloned::<Manager>();
    cloned::<Mutex>();
    cloned::<Lease>();
    cloned::<Wait>();
    cloned::<Canceller>();
    cloned::<FencingToken>();
    cloned::<Predecessor>();
    cloned::<LockInfo>();
    cloned::<Metrics>();
    cloned::<Quantiles>();
    cloned::<NodeError>();
    cloned::<ErrorKind>();
    cloned::<Lost>();
    error::<Error>();
    error::<Lost>();
    shared::<OwnedMutexGuard>();
    shared::<Server>();
    fn sync<T: Sync + Debug + 'static>() {}
    sync::<MutexGuard>();
    assert_not_send!(MutexGuard);
    fn sends<T: Send + 'static>() {}
    sends::<ManagedConnection>();
    fn is_static<T: 'static>() {}
    is_static::<MutexGuard>();
}

/// Every conversion that the docs name, and those that must not succeed.
#[test]
fn fencing_tokens_convert_both_ways() {
    fn value<T: Copy + Ord + Hash + Display + Debug>() {}
    value::<FencingToken>();
    let token = FencingToken::from(1_700_000_000_000_001_u64);
    assert_eq!(token.get(), 1_700_000_000_000_001);
    assert_eq!(u64::from(token), token.get());
    assert_eq!(i64::from(token), 1_700_000_000_000_001);
    assert_eq!(
        FencingToken::try_from(1_700_000_000_000_001_i64).unwrap(),
        token
    );
    assert_eq!(token.to_string(), "1700000000000001");
    assert_eq!("1700000000000001".parse::<FencingToken>().unwrap(), token);
    assert_eq!(format!("{token:>20}"), "    1700000000000001");
    assert!(token < FencingToken::from(1_700_000_000_000_002));
    assert_eq!(HashSet::from([token, token]).len(), 1);
    for bad in ["", "-1", "1.5", "x", "18446744073709551616"] {
        assert!(bad.parse::<FencingToken>().is_err(), "{bad:?}");
    }
    assert!(FencingToken::try_from(-1_i64).is_err());
    // Never negative in a database column, where it would be the lowest.
    assert_eq!(i64::from(FencingToken::from(u64::MAX)), i64::MAX);
    assert_eq!(i64::from(FencingToken::from(i64::MAX as u64 + 1)), i64::MAX);
    assert_eq!(
        FencingToken::try_from(i64::MAX).unwrap().get(),
        i64::MAX as u64
    );
}

/// Tokens that a server gives fit a signed column and a double, and are its microseconds.
#[test]
fn a_servers_tokens_are_microseconds_and_fit_everywhere() {
    let server = Server::start().unwrap();
    let guard = server.client().mutex("job").lock().unwrap();
    let token = guard.fencing_token();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let apart = u128::from(token.get()).abs_diff(now.as_micros());
    assert!(apart < 60_000_000, "{apart} µs apart");
    assert!(token.get() < 1 << 53);
    assert_eq!(FencingToken::try_from(i64::from(token)).unwrap(), token);
}

/// Nothing that can be printed shows a password; all of it says which server or lock it is.
#[test]
fn debug_shows_where_and_what_but_no_password() {
    let server = Server::start_with(["--requirepass", "s3cret"]).unwrap();
    let url = format!("redis://default:s3cret@127.0.0.1:{}/4", server.port());
    let builder = Client::builder().url(&url).namespace("billing");
    let client = builder.clone().build().unwrap();
    let mutex = client.mutex("order:1");
    let guard = mutex.lock().unwrap();
    let manager = Manager::open(&url).unwrap();
    let pool = r2d2::Pool::builder()
        .min_idle(Some(0))
        .build(manager.clone())
        .unwrap();
    let connection = pool.get().unwrap();
    let port = server.port().to_string();
    for (what, shown, says) in [
        ("builder", format!("{builder:#?}"), "billing"),
        ("client", format!("{client:#?}"), port.as_str()),
        ("mutex", format!("{mutex:#?}"), "order:1"),
        ("guard", format!("{guard:#?}"), "order:1"),
        ("lease", format!("{:#?}", guard.lease()), "order:1"),
        ("manager", format!("{manager:#?}"), port.as_str()),
        ("connection", format!("{:#?}", *connection), port.as_str()),
        ("pool", format!("{pool:#?}"), ""),
        (
            "pooled client",
            format!("{:#?}", Client::builder().pool(pool.clone())),
            "",
        ),
        (
            "info",
            format!("{:#?}", mutex.inspect().unwrap()),
            "order:1",
        ),
        ("metrics", format!("{:#?}", client.metrics()), "acquired: 1"),
    ] {
        assert!(!shown.contains("s3cret"), "{what}: {shown}");
        assert!(shown.contains(says), "{what}: {shown}");
    }
}

/// A guard's `Debug` says whether it is held now.
#[test]
fn a_leases_debug_says_whether_it_is_held() {
    let server = Server::start().unwrap();
    let guard = server.client().mutex("job").lock().unwrap();
    let token = guard.fencing_token().to_string();
    let shown = format!("{guard:?}");
    assert!(
        shown.contains("held: true") && shown.contains(&token),
        "{shown}"
    );
    leasehold::testing::lose(&guard);
    assert!(format!("{guard:?}").contains("held: false"));
}
