// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two pictures of a load, as inline SVG: the distribution, and its tail.
//!
//! Both have the round trip on a logarithmic axis. The tail has the share of *slower*
//! round trips on a logarithmic axis too, so that one in a thousand is as easy to see
//! as one in two. Colours and dashes come from the page's style sheet by class.
//! Not here: which rows are drawn together.

use std::fmt::Write;

use super::text::{escape, time};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 68.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// One line of a chart.
pub struct Line<'a> {
    /// What it shows, for the pop-up text.
    pub name: String,
    /// Classes of the style sheet: colour and dashes.
    pub class: String,
    /// Filled histogram cells: `[upper end in ns, count]`, ascending.
    pub cells: &'a [[u64; 2]],
}

/// What the vertical axis shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Share of round trips that are not slower, linear.
    Cdf,
    /// Share of round trips that are slower, logarithmic.
    Tail,
}

struct Axes {
    kind: Kind,
    /// Ends of the horizontal axis, nanoseconds.
    ends_ns: (f64, f64),
    /// Smallest share on the tail's axis, as a power of ten.
    floor: i32,
}

impl Axes {
    fn of(kind: Kind, lines: &[Line]) -> Self {
        let cells = || {
            lines
                .iter()
                .flat_map(|line| line.cells)
                .map(|cell| cell[0].max(1) as f64)
        };
        let low = cells().fold(f64::INFINITY, f64::min);
        let high = cells().fold(0.0, f64::max);
        let low = if low.is_finite() {
            one_digit(low, f64::floor)
        } else {
            1e3
        };
        let high = if high > 0.0 {
            one_digit(high, f64::ceil)
        } else {
            1e4
        };
        // Lines of one value only still need an axis with two ends.
        let high = if high > low { high } else { low * 2.0 };
        let samples = lines
            .iter()
            .map(|line| total(line.cells))
            .max()
            .unwrap_or(0)
            .max(10);
        let floor = -((samples as f64).log10().ceil() as i32);
        Self {
            kind,
            ends_ns: (low, high),
            floor,
        }
    }

    /// Every value of one digit on the horizontal axis, and whether it has a label: all
    /// on a short axis, 1, 2 and 5 on a longer one, powers of ten beyond that.
    fn time_ticks(&self) -> Vec<(f64, bool)> {
        let (low, high) = self.ends_ns;
        let span = (high / low).log10();
        let mut ticks = Vec::new();
        for decade in low.log10().floor() as i32..=high.log10().ceil() as i32 {
            for digit in 1..10 {
                let ns = f64::from(digit) * 10f64.powi(decade);
                let labelled =
                    span < 0.5 || digit == 1 || (span < 1.5 && (digit == 2 || digit == 5));
                if ns > low * 0.999 && ns < high * 1.001 {
                    ticks.push((ns, labelled));
                }
            }
        }
        ticks
    }

    fn x(&self, ns: f64) -> f64 {
        let (low, high) = self.ends_ns;
        let share = (ns.max(1.0) / low).log10() / (high / low).log10();
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Height of a share of round trips that are *not slower*.
    fn y(&self, done: f64) -> f64 {
        let share = match self.kind {
            Kind::Cdf => done,
            Kind::Tail => 1.0 - (1.0 - done).max(1e-12).log10() / f64::from(self.floor),
        };
        TOP + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Rounds to one digit: 42 µs to 40 or 50.
fn one_digit(ns: f64, round: fn(f64) -> f64) -> f64 {
    let unit = 10f64.powf(ns.log10().floor());
    round(ns / unit) * unit
}

fn total(cells: &[[u64; 2]]) -> u64 {
    cells.iter().map(|cell| cell[1]).sum()
}

/// Draws the lines into one `<svg>` element.
pub fn draw(kind: Kind, title: &str, lines: &[Line]) -> String {
    let axes = Axes::of(kind, lines);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    );
    draw_time_axis(&mut svg, &axes);
    draw_share_axis(&mut svg, &axes);
    for line in lines.iter().filter(|line| !line.cells.is_empty()) {
        let path = steps(&axes, line.cells);
        let (class, name) = (escape(&line.class), escape(&line.name));
        let _ = writeln!(
            svg,
            "<path class=\"line {class}\" d=\"{path}\"><title>{name}</title></path>"
        );
    }
    svg + "</svg>\n"
}

fn draw_time_axis(svg: &mut String, axes: &Axes) {
    let bottom = HEIGHT - BOTTOM;
    for (ns, labelled) in axes.time_ticks() {
        let x = axes.x(ns);
        if !labelled {
            let _ = writeln!(svg, "<path class=\"minor\" d=\"M{x:.1} {bottom}v-5\"/>");
            continue;
        }
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            tick_name(ns)
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">round trip</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0
    );
}

fn tick_name(ns: f64) -> String {
    // A tick has one digit that counts: "10 µs", not "10.0 µs".
    time(ns).replace(".00", "").replace(".0", "")
}

fn draw_share_axis(svg: &mut String, axes: &Axes) {
    let ticks: Vec<(f64, String)> = match axes.kind {
        Kind::Cdf => (0..=4)
            .map(|quarter| f64::from(quarter) / 4.0)
            .map(|share| (share, format!("{:.0} %", share * 100.0)))
            .collect(),
        Kind::Tail => (axes.floor..=0)
            .map(|decade| 10f64.powi(decade))
            .map(|slower| (1.0 - slower, format!("{} %", slower * 100.0)))
            .collect(),
    };
    for (done, label) in ticks {
        let y = axes.y(done);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{:.1}\"/>",
            WIDTH - RIGHT
        );
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
}

/// A distribution is a stair: nothing between two cells, then all of a cell at once.
fn steps(axes: &Axes, cells: &[[u64; 2]]) -> String {
    let all = total(cells).max(1) as f64;
    let mut path = format!("M{:.1} {:.1}", axes.x(cells[0][0] as f64), axes.y(0.0));
    let mut done = 0;
    for cell in cells {
        done += cell[1];
        let (x, y) = (axes.x(cell[0] as f64), axes.y(done as f64 / all));
        let _ = write!(path, "H{x:.1}V{y:.1}");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(cells: &[[u64; 2]]) -> Line<'_> {
        Line {
            name: "a <b>".into(),
            class: "m0".into(),
            cells,
        }
    }

    #[test]
    fn axes_hold_every_sample() {
        let cells = [[42_000, 900], [1_200_000, 99], [24_000_000, 1]];
        let axes = Axes::of(Kind::Tail, &[line(&cells)]);
        assert_eq!((axes.ends_ns, axes.floor), ((4e4, 3e7), -3));
        assert_eq!(axes.x(4e4), LEFT);
        assert!((axes.x(3e7) - (WIDTH - RIGHT)).abs() < 1e-6);
        assert_eq!(axes.y(0.0), TOP);
        assert!((axes.y(0.999) - (HEIGHT - BOTTOM)).abs() < 1e-6);
        // A share of zero slower ones has no logarithm: it lies on the floor.
        assert_eq!(axes.y(1.0), HEIGHT - BOTTOM);
    }

    #[test]
    fn labels_are_neither_missing_nor_crowded() {
        let labels = |low, high| {
            let cells = [[low, 1], [high, 1]];
            let ticks = Axes::of(Kind::Cdf, &[line(&cells)]).time_ticks();
            let names = ticks
                .iter()
                .filter(|tick| tick.1)
                .map(|tick| tick_name(tick.0));
            names.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(labels(41_300, 64_000), "40 µs, 50 µs, 60 µs, 70 µs");
        assert_eq!(labels(43_000, 219_000), "50 µs, 100 µs, 200 µs");
        assert_eq!(labels(43_000, 24_000_000), "100 µs, 1 ms, 10 ms");
        assert_eq!(labels(1, 1), "1 ns, 2 ns");
    }

    #[test]
    fn the_stair_ends_at_one() {
        let cells = [[20_000, 1], [40_000, 3]];
        let axes = Axes::of(Kind::Cdf, &[line(&cells)]);
        let path = steps(&axes, &cells);
        assert!(path.ends_with(&format!("V{:.1}", TOP)), "{path}");
        assert_eq!(path.matches('H').count(), 2);
    }

    #[test]
    fn empty_lines_and_names_are_safe() {
        let svg = draw(Kind::Cdf, "\"x\"", &[line(&[]), line(&[[5, 1]])]);
        assert_eq!(svg.matches("class=\"line").count(), 1);
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("<b>"));
    }
}
