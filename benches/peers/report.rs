//! What was measured, for people and for programs.

use std::fmt::Write;

use crate::Outcome;
use crate::build::OURS;
use crate::run::{HOLDS, Measured};

/// Where and when.
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) what: String,
    pub(crate) server: String,
}

impl Machine {
    pub(crate) fn of(url: &str) -> Outcome<Machine> {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
        let field = |name: &str| {
            let line = info.lines().find_map(|l| l.strip_prefix(name));
            line.map(|v| v.trim_start_matches(':').trim().to_owned())
        };
        let server = match field("valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field("redis_version").unwrap_or_default()),
        };
        let seconds: Vec<i64> = redis::cmd("TIME").query(&mut connection)?;
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|l| l.strip_prefix("model name"));
        let model = model.map_or("a machine", |m| m.trim_start_matches([' ', '\t', ':']));
        let cores = std::thread::available_parallelism()?;
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = memory
            .split_whitespace()
            .nth(1)
            .and_then(|k| k.parse::<f64>().ok());
        let gib = kib.map_or(0.0, |k| k / 1024.0 / 1024.0);
        Ok(Machine {
            date: date(seconds.first().copied().unwrap_or(0)),
            what: format!("{model}, {cores} cores, {gib:.0} GiB"),
            server,
        })
    }
}

/// Of seconds since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn date(seconds: i64) -> String {
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// With thousands parted, and no more digits than mean something.
pub(crate) fn number(x: f64) -> String {
    if !x.is_finite() {
        return "–".into();
    }
    if x < 10.0 {
        return format!("{x:.1}");
    }
    let digits = format!("{x:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

pub(crate) fn table(machine: &Machine, measured: &[Measured]) -> String {
    let mut out = String::new();
    let Machine { date, what, server } = machine;
    let _ = writeln!(out, "{date}, {server}, {what}; nothing is pinned.\n");
    out.push_str("| library | version | hand-over, µs (p99) |");
    for hold in HOLDS {
        let _ = write!(out, " 8 processes, {hold} ms: a second (least) |");
    }
    out.push_str(" alone, µs |\n|---|---|---|---|---|---|---|\n");
    for m in measured {
        let name = match m.library.language {
            OURS => format!("**{}**", m.library.shown),
            language => format!("{} ({language})", m.library.shown),
        };
        if let Some(trouble) = &m.trouble {
            let _ = writeln!(
                out,
                "| {name} | {} | not available: {trouble} | | | | |",
                m.version
            );
            continue;
        }
        let (p50, p99) = (number(m.handoff_us), number(m.handoff_p99_us));
        let _ = write!(out, "| {name} | {} | {p50} ({p99}) |", m.version);
        for (crowd, stuck) in m.crowds.iter().zip(&m.stuck[2..]) {
            if *stuck {
                out.push_str(" a waiter hung for 20 s |");
                continue;
            }
            let rate = if crowd.per_second < 100.0 {
                format!("{:.1}", crowd.per_second)
            } else {
                number(crowd.per_second)
            };
            let _ = write!(out, " {rate} ({:.2}) |", crowd.least);
        }
        let _ = writeln!(out, " {} |", number(m.pair_us));
    }
    out
}

impl Measured {
    pub(crate) fn json(&self) -> String {
        let number = |x: f64| {
            if x.is_finite() {
                format!("{x:.3}")
            } else {
                "null".into()
            }
        };
        let mut out = format!(
            "{{\"library\":\"{}\",\"language\":\"{}\",\"version\":\"{}\"",
            self.library.shown, self.library.language, self.version
        );
        if let Some(trouble) = &self.trouble {
            let text = trouble.replace(['"', '\\', '\n'], " ");
            let _ = write!(out, ",\"not_available\":\"{text}\"");
        }
        let _ = write!(
            out,
            ",\"pair_us\":{},\"handoff_us\":{},\"handoff_p99_us\":{}",
            number(self.pair_us),
            number(self.handoff_us),
            number(self.handoff_p99_us)
        );
        for (hold, crowd) in HOLDS.iter().zip(&self.crowds) {
            // Null: a waiter hung.
            let (rate, least) = (number(crowd.per_second), number(crowd.least));
            let _ = write!(
                out,
                ",\"hold_{hold}ms_per_second\":{rate},\"hold_{hold}ms_least\":{least}"
            );
        }
        out.push('}');
        out
    }
}
