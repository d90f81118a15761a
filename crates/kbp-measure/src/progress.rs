// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows as lines of a terminal: one as each row is done, and all of them at the end.
//!
//! Not here: the page for the browser ([`crate::report`]).

use crate::report::row_name;
use crate::report::text::{count, micros, ratio};
use crate::result::{ResultFile, Row};

/// The line above the rows. Times are in µs.
pub fn heading() -> String {
    format!(
        "{:<6} {:<22} {:>7} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "load", "mode", "n", "lost", "p50 µs", "p90", "p99", "p99.9", "max", "NET_RX", "hardIRQ"
    )
}

/// One row.
pub fn line(row: &Row) -> String {
    let us = |ns: u64| micros(ns as f64);
    let rtt = &row.rtt_ns;
    format!(
        "{:<6} {:<22} {:>7} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        row.load,
        row_name(row),
        count(row.n),
        row.lost + row.warmup_lost,
        us(rtt.p50),
        us(rtt.p90),
        us(rtt.p99),
        us(rtt.p999),
        us(rtt.max),
        row.witness.net_rx_softirqs,
        row.witness.hard_irqs
    )
}

/// All rows again, load by load, as ratios to the first softirq row of the same tool.
pub fn summary(file: &ResultFile) -> String {
    let mut text = format!(
        "{:<6} {:<22} {:>10} {:>10} {:>10}   relative to softirq, round 1\n",
        "load", "mode", "p50", "p99", "max"
    );
    for row in &file.rows {
        let Some(stock) = file.rows_of(&row.load, "softirq", &row.tool).next() else {
            continue;
        };
        if std::ptr::eq(stock, row) {
            continue;
        }
        let of = |pick: fn(&Row) -> u64| ratio(pick(row) as f64, pick(stock) as f64);
        text += &format!(
            "{:<6} {:<22} {:>10} {:>10} {:>10}\n",
            row.load,
            row_name(row),
            of(|row| row.rtt_ns.p50),
            of(|row| row.rtt_ns.p99),
            of(|row| row.rtt_ns.max)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn lines_stay_in_their_columns() {
        let file = sample();
        let width = heading().chars().count();
        for row in &file.rows {
            assert_eq!(line(row).chars().count(), width, "{}", line(row));
        }
        let summary = summary(&file);
        // One line less a load: the reference itself.
        assert_eq!(summary.lines().count(), 1 + file.rows.len() - 2);
        let kbp = summary
            .lines()
            .find(|l| l.starts_with("storm  kbp-busy"))
            .unwrap();
        assert!(kbp.contains("1/60"), "{kbp}");
    }
}
