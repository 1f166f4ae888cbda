//! The same as a picture.

use std::fmt::Write;

use crate::build::OURS;
use crate::report::{Machine, number};
use crate::run::Measured;

const LEFT: f64 = 250.0;
const BAR: f64 = 360.0;
const ROW: f64 = 20.0;

/// What one panel shows.
struct Panel {
    title: &'static str,
    of: fn(&Measured) -> f64,
    /// The whole width; on a scale of powers of ten if it has a beginning.
    from: Option<f64>,
    to: f64,
}

pub(crate) fn draw(machine: &Machine, measured: &[Measured]) -> String {
    let shown: Vec<&Measured> = measured.iter().filter(|m| m.trouble.is_none()).collect();
    let most = shown.iter().map(|m| m.crowds[0].per_second);
    let panels = [
        Panel {
            title: "From one process to the next, µs (less is better; each line is ten times the last)",
            of: |m| m.handoff_us,
            from: Some(10.0),
            to: 1_000_000.0,
        },
        Panel {
            title: "8 processes, nothing to do inside: acquisitions a second",
            of: |m| m.crowds[0].per_second,
            from: None,
            to: most.fold(1.0, f64::max),
        },
        Panel {
            title: "8 processes, 10 ms inside: what the least of them had, to the mean",
            of: |m| m.crowds[2].least,
            from: None,
            to: 1.0,
        },
    ];
    let panel_height = 40.0 + ROW * shown.len() as f64;
    let height = panel_height * panels.len() as f64 + 50.0;
    let width = LEFT + BAR + 90.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (n, panel) in panels.iter().enumerate() {
        panel.draw(&mut out, 10.0 + panel_height * n as f64, &shown);
    }
    let Machine { date, what, server } = machine;
    let y = height - 15.0;
    let _ = writeln!(
        out,
        "<text x=\"10\" y=\"{y}\" fill=\"#666666\">{date}, {server}, {what}</text>\n</svg>"
    );
    out
}

impl Panel {
    fn draw(&self, out: &mut String, top: f64, shown: &[&Measured]) {
        let title = top + 16.0;
        let _ = writeln!(
            out,
            "<text x=\"10\" y=\"{title}\" font-weight=\"bold\" fill=\"#222222\">{}</text>",
            self.title
        );
        if let Some(from) = self.from {
            let mut mark = from;
            while mark <= self.to {
                let x = LEFT + self.width(mark);
                let (top, end) = (top + 24.0, top + 26.0 + ROW * shown.len() as f64);
                let _ = writeln!(
                    out,
                    "<line x1=\"{x:.0}\" x2=\"{x:.0}\" y1=\"{top}\" y2=\"{end}\" stroke=\"#dddddd\"/>"
                );
                mark *= 10.0;
            }
        }
        for (i, m) in shown.iter().enumerate() {
            let y = top + 26.0 + ROW * i as f64;
            let value = (self.of)(m);
            let width = self.width(value);
            let ours = m.library.language == OURS;
            let colour = if ours { "#c2410c" } else { "#94a3b8" };
            let said = if self.to <= 1.0 {
                format!("{value:.2}")
            } else {
                number(value)
            };
            let (text, label, value_x) = (y + 13.0, LEFT - 8.0, LEFT + width + 6.0);
            let name = m.library.shown;
            let _ = writeln!(
                out,
                "<text x=\"{label}\" y=\"{text}\" text-anchor=\"end\" fill=\"#222222\">{name}</text>\
                 <rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"15\" fill=\"{colour}\"/>\
                 <text x=\"{value_x:.1}\" y=\"{text}\" fill=\"#222222\">{said}</text>"
            );
        }
    }

    fn width(&self, value: f64) -> f64 {
        let share = match self.from {
            Some(from) => (value / from).ln() / (self.to / from).ln(),
            None => value / self.to,
        };
        BAR * share.clamp(0.0, 1.0)
    }
}
