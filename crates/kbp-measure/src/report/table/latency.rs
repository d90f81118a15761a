// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Round trips: percentiles, and the ratios to the stock path and to the best rival.
//!
//! Not here: what a mechanism costs ([`super::cost`]).

use super::{compared, none, Table};
use crate::report::cell::{Cell, Group};
use crate::report::ratio::{compare, Percentile};
use crate::report::text::{count, escape, micros};

/// The table of a group.
pub fn of(group: &Group) -> String {
    let rival = group.best_rival();
    let rival_heading = match rival {
        Some(rival) => format!("p99 ÷ best rival<br>({})", escape(rival.mode)),
        None => "p99 ÷ best rival".into(),
    };
    let mut table = Table::new(&[
        "mechanism",
        "n",
        "lost",
        "min µs",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "p50 ÷ softirq",
        "p99 ÷ softirq",
        &rival_heading,
    ]);
    for cell in &group.cells {
        let mut columns = figures(cell);
        let to = |other: Option<&Cell>, percentile| match other {
            Some(other) if other.mode != cell.mode => compared(compare(cell, other, percentile)),
            _ => none(),
        };
        columns.push(to(group.stock(), Percentile::P50));
        columns.push(to(group.stock(), Percentile::P99));
        columns.push(to(rival, Percentile::P99));
        table.row(cell.mode, cell.mode, &columns);
    }
    table.html()
}

fn figures(cell: &Cell) -> Vec<String> {
    let mut columns = vec![count(cell.n()), count(cell.lost())];
    let rtt = &cell.rtt_ns;
    for ns in [rtt.min, rtt.p50, rtt.p90, rtt.p99, rtt.p999, rtt.max] {
        columns.push(if cell.has_round_trips() {
            micros(ns as f64)
        } else {
            none()
        });
    }
    columns
}
