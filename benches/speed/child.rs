//! Other processes: this program once more, with a part to play. They end when their standard input does.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::report::Outcome;
use crate::{crowds, handoff, many};

pub(crate) const FLAG: &str = "--child";

pub(crate) fn play(args: &[String]) -> Outcome<()> {
    let (part, args) = args.split_first().ok_or("no part")?;
    match &**part {
        "handoff" => handoff::side(args),
        "worker" => crowds::worker(args),
        "waiters" => many::waiters(args),
        part => Err(format!("no part {part:?}").into()),
    }
}

/// Ready; returns when the parent says go on.
pub(crate) fn ready() -> Outcome<()> {
    say("ready")?;
    hear()
}

pub(crate) fn hear() -> Outcome<()> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line)? {
        0 => Err("the parent is gone".into()),
        _ => Ok(()),
    }
}

pub(crate) fn say(line: impl AsRef<str>) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", line.as_ref())?;
    Ok(out.flush()?)
}

/// A child that is ready.
pub(crate) struct Kid {
    child: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl Kid {
    pub(crate) fn spawn(part: &str, args: &[&str]) -> Outcome<Kid> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(FLAG)
            .arg(part)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take().ok_or("no output")?;
        let mut kid = Kid {
            child,
            to,
            from: BufReader::new(from).lines(),
        };
        match kid.line()?.as_str() {
            "ready" => Ok(kid),
            other => Err(format!("not ready: {other}").into()),
        }
    }

    pub(crate) fn go(&mut self) -> Outcome<()> {
        let to = self.to.as_mut().ok_or("it has ended")?;
        Ok(writeln!(to, "go")?)
    }

    pub(crate) fn line(&mut self) -> Outcome<String> {
        Ok(self.from.next().ok_or("a child ended early")??)
    }
}

impl Drop for Kid {
    fn drop(&mut self) {
        self.to.take();
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
