//! Children that talk, stop and die.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::child::{Child, args, hear, say};
use crate::support::wait::eventually;

const BOUND: Duration = Duration::from_secs(10);

/// Says its arguments, then whatever it hears; ends at "end", fails at "fail".
pub(crate) fn echo() {
    say(args().join("|"));
    loop {
        match hear(BOUND).as_str() {
            "end" => return,
            "fail" => panic!("as it was told"),
            line => say(line),
        }
    }
}

#[test]
fn a_child_hears_and_answers() {
    let mut child = Child::role("support/echo").arg("one two").arg(3).spawn();
    assert_eq!(child.expect_line(BOUND), "one two|3");
    child.send_line("ping");
    assert_eq!(child.expect_line(BOUND), "ping");
    child.send_line("a");
    child.send_line("b");
    child.wait_for("b", BOUND);
    child.send_line("end");
    assert!(child.wait(BOUND).expect("it ends").success());
}

#[test]
fn a_role_that_panics_fails_and_its_message_can_be_read() {
    let mut child = Child::role("support/echo").spawn();
    child.send_line("fail");
    assert!(!child.wait(BOUND).expect("it ends").success());
    eventually(BOUND, "its message", || {
        child.stderr().contains("as it was told")
    });
}

#[test]
fn a_stopped_child_is_silent_until_it_goes_on() {
    let mut child = Child::role("support/echo").spawn();
    child.wait_for("", BOUND);
    child.stop();
    child.send_line("ping");
    assert_eq!(child.try_line(Duration::from_millis(100)), None);
    child.cont();
    assert_eq!(child.expect_line(BOUND), "ping");
}

#[test]
fn a_killed_child_is_gone() {
    use std::os::unix::process::ExitStatusExt;
    let mut child = Child::role("support/echo").spawn();
    child.wait_for("", BOUND);
    child.stop();
    assert_eq!(child.kill().signal(), Some(Signal::KILL.as_raw()));
    assert!(child.wait(BOUND).is_some());
}
