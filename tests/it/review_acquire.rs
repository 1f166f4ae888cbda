//! An acquire that fails half way inside the server leaves no key.

use leasehold::{Client, ErrorKind};

use crate::support::proxy::{Action, Times};
use crate::support::scene::Scene;

/// The script set the key, then stumbled over a state that was not ours to read, or was damaged: an error, and a key that
/// nobody held, until its ttl.
#[test]
fn an_acquire_that_meets_a_damaged_state_leaves_no_key_and_the_state_as_it_was() {
    let scene = Scene::new();
    let damaged = [
        ("1".repeat(400), ErrorKind::KeyConflict),
        ("1".into(), ErrorKind::KeyConflict),
        (
            "somebody's data, whatever it may be".repeat(20),
            ErrorKind::KeyConflict,
        ),
        // The head is ours, but no text follows.
        (format!("1NN00{}", "0".repeat(400)), ErrorKind::KeyConflict),
        (format!("9NN00{}", "0".repeat(400)), ErrorKind::Unsupported),
    ];
    for (i, (state, kind)) in damaged.iter().enumerate() {
        let key = format!("{{x{i}}}:lh:s");
        let _: String = scene.ask(&format!("SET {key} {}", state.replace(' ', "_")));
        let before: String = scene.ask(&format!("GET {key}"));
        let mutex = scene.client().mutex(format!("x{i}"));
        let error = mutex.try_lock().unwrap_err();
        assert_eq!(error.kind(), *kind, "{i}: {error}");
        assert!(!scene.exists(&format!("x{i}")), "{i}");
        let after: String = scene.ask(&format!("GET {key}"));
        assert_eq!(before, after, "{i}");
    }
    let _: i64 = scene.ask("HSET {h}:lh:s a b");
    let error = scene.client().mutex("h").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyConflict, "{error}");
    assert!(!scene.exists("h"));
}

/// A user who may not run one of the script's commands (TIME, for instance, came after SET) got an error, and the key stayed.
#[test]
fn an_acquire_that_lacks_a_right_leaves_no_key() {
    let scene = Scene::new();
    for (i, lacking) in ["get", "time", "set"].iter().enumerate() {
        let user = format!("ACL SETUSER u{i} on >p ~* &* +@all -{lacking}");
        let _: String = scene.ask(&user);
        let url = scene
            .proxy
            .url()
            .replace("redis://", &format!("redis://u{i}:p@"));
        let client = Client::open(&url).unwrap();
        let error = client.mutex(format!("x{i}")).try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{lacking}: {error}");
        assert!(!scene.exists(&format!("x{i}")), "without {lacking}");
    }
}

/// Whatever the server had done when it answered with an error: it was taken for nothing, and the key stayed.
#[test]
fn an_acquire_answered_with_an_error_is_undone() {
    let scene = Scene::new();
    let said = Action::ReplaceReply(b"-ERR half way\r\n".to_vec());
    let carried_out = scene
        .proxy
        .rule(|c| c.runs_on("acquire", "x"), said, Times::Once);
    let error = scene.client().mutex("x").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Script);
    assert_eq!(carried_out.hits(), 1);
    assert!(!scene.exists("x"));
}
