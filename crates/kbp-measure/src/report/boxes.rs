// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The box of percentiles: a bar a mechanism on a logarithmic axis, from the shortest round trip to
//! the longest. Drawn without the browser's help, so it is there without scripts too.
//!
//! Not here: the charts ([`super::data`]).

use std::fmt::Write;

use super::cell::{Cell, Group};
use super::names;
use super::scale::Scale;
use super::text::{escape, time};
use crate::result::RttNs;

/// Width of a bar's own coordinates.
const WIDTH: f64 = 1_000.0;

/// The bars of the cells that have round trips; their numbers are those of the group's lines.
pub fn of(group: &Group) -> String {
    let cells: Vec<(usize, &Cell)> = group
        .cells
        .iter()
        .enumerate()
        .filter(|(_, cell)| cell.has_round_trips())
        .collect();
    let ends = cells
        .iter()
        .flat_map(|(_, cell)| [cell.rtt_ns.min, cell.rtt_ns.max]);
    let scale = Scale::of(ends);
    let mut html = String::from("<figure class=\"boxes\"><div class=\"title\">Percentiles</div>\n");
    for (line, cell) in &cells {
        html += &bar(*line, cell, &scale);
    }
    html += "<div class=\"scale\" aria-hidden=\"true\"><span></span><div>";
    for (place, name) in scale.ticks() {
        let _ = write!(html, "<i style=\"left:{:.1}%\">{name}</i>", place * 100.0);
    }
    html + "</div></div>\n<figcaption>From the shortest round trip to the median (pale, up to the \
            mark), then to p90, p99 and p99.9, ever paler; the thin line ends at the \
            longest.</figcaption></figure>\n"
}

fn bar(line: usize, cell: &Cell, scale: &Scale) -> String {
    let RttNs {
        min,
        p50,
        p90,
        p99,
        p999,
        max,
        ..
    } = cell.rtt_ns;
    let name = escape(cell.mode);
    let x = |ns: u64| scale.place(ns as f64) * WIDTH;
    let mut svg = String::new();
    let mut rect = |class: &str, from: u64, to: u64, (y, height): (u32, u32)| {
        let (left, right) = (x(from), x(to));
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{height}\"/>",
            (right - left).max(1.5)
        );
    };
    rect("q0", min, p50, (4, 16));
    rect("q1", p50, p90, (4, 16));
    rect("q2", p90, p99, (4, 16));
    rect("q3", p99, p999, (4, 16));
    rect("q4", p999, max, (11, 2));
    let _ = write!(
        svg,
        "<rect class=\"mark\" x=\"{:.1}\" y=\"1\" width=\"4\" height=\"22\"/>",
        x(p50) - 2.0
    );
    let words = [
        ("min", min),
        ("p50", p50),
        ("p90", p90),
        ("p99", p99),
        ("p99.9", p999),
        ("max", max),
    ]
    .map(|(what, ns)| format!("{what} {}", time(ns as f64)))
    .join(", ");
    format!(
        "<div class=\"box c{colour}\" data-line=\"{line}\" title=\"{name}: {words}\">\
         <span>{name}</span><svg viewBox=\"0 0 {WIDTH} 24\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{name}: {words}\">{svg}</svg></div>\n",
        colour = names::colour(cell.mode)
    )
}
