//! What a bench says.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One figure, its floor, and the bar for it.
pub(crate) struct Row {
    bench: String,
    value: f64,
    floor: f64,
    bar: String,
    met: bool,
    placement: String,
    more: Vec<(&'static str, f64)>,
}

impl Row {
    /// A time (µs) that may be at most so many times its floor.
    pub(crate) fn of_times(
        bench: impl Into<String>,
        value: f64,
        floor: f64,
        most: f64,
        placement: &str,
    ) -> Row {
        Row {
            bench: bench.into(),
            value,
            floor,
            bar: format!("ratio <= {most}"),
            met: value <= floor * most,
            placement: placement.into(),
            more: Vec::new(),
        }
    }

    /// Something else: the caller says whether it is met.
    pub(crate) fn of(
        bench: impl Into<String>,
        value: f64,
        floor: f64,
        bar: impl Into<String>,
        met: bool,
        placement: &str,
    ) -> Row {
        Row {
            bench: bench.into(),
            value,
            floor,
            bar: bar.into(),
            met,
            placement: placement.into(),
            more: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, what: &'static str, value: f64) -> Row {
        self.more.push((what, value));
        self
    }

    /// One more condition of the bar.
    pub(crate) fn and(mut self, bar: &str, met: bool) -> Row {
        self.bar = format!("{}, {bar}", self.bar);
        self.met &= met;
        self
    }

    pub(crate) fn print(&self, json: bool) {
        let ratio = self.value / self.floor;
        if json {
            let more: String = self
                .more
                .iter()
                .map(|(what, value)| format!(",\"{what}\":{}", short(*value)))
                .collect();
            println!(
                "{{\"bench\":\"{}\",\"value_us\":{},\"floor_us\":{},\"ratio\":{},\"bar\":\"{}\",\"met\":{}{more},\"placement\":\"{}\"}}",
                self.bench,
                short(self.value),
                short(self.floor),
                short(ratio),
                self.bar,
                self.met,
                self.placement
            );
            return;
        }
        let met = if self.met { "met" } else { "MISSED" };
        let more: String = self
            .more
            .iter()
            .map(|(what, value)| format!("  {what} {}", short(*value)))
            .collect();
        println!(
            "{:26} {:>9} us  floor {:>9} us  ratio {:>7}  {met}: {}{more}  [{}]",
            self.bench,
            short(self.value),
            short(self.floor),
            short(ratio),
            self.bar,
            self.placement
        );
    }
}

/// With as many digits as mean something; JSON knows no infinity.
fn short(x: f64) -> String {
    match x {
        x if !x.is_finite() => "null".into(),
        x if x.abs() >= 1000.0 => format!("{x:.0}"),
        x if x.abs() >= 100.0 => format!("{x:.1}"),
        x => format!("{x:.3}"),
    }
}

/// So many percent of the times are at most this (µs).
pub(crate) fn quantile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len() - 1);
    times[at].as_secs_f64() * 1e6
}

pub(crate) fn code(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(e),
    }
}

fn fail(e: impl Display) -> ExitCode {
    eprintln!("{e}");
    ExitCode::FAILURE
}
