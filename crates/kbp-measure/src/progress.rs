// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows as lines of a terminal, one as each row is done.
//!
//! Not here: all of them at the end ([`crate::compare::table`]), and the page for the browser ([`crate::report`]).

use std::fmt::Write;

use crate::report::row_name;
use crate::report::text::{count, micros};
use crate::result::{Row, NO_TRAFFIC, TOOL_KBP};

/// The line above the rows. Times are in µs.
pub fn heading() -> String {
    format!(
        "{:<16} {:<8} {:<28} {:>7} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "path",
        "load",
        "mode",
        "n",
        "lost",
        "p50 µs",
        "p90",
        "p99",
        "p99.9",
        "max",
        "NET_RX",
        "hardIRQ"
    )
}

/// One row.
pub fn line(row: &Row) -> String {
    let us = |ns: u64| micros(ns as f64);
    let rtt = &row.rtt_ns;
    let mut line = format!(
        "{:<16} {:<8} {:<28} {:>7} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        row.path,
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
    );
    // Writing into a string does not fail.
    if row.traffic == NO_TRAFFIC {
        line += "  no traffic";
    } else if row.traffic != "ping-pong" && row.tool == TOOL_KBP {
        let _ = write!(line, "  {} bytes", row.size_bytes);
        if let Some(arrivals) = &row.arrivals {
            let _ = write!(line, ", {arrivals}");
        }
    }
    if let Some(found) = row.throughput {
        let _ = write!(
            line,
            ": {} frames/s without loss",
            count(found.frames_per_s.round() as u64)
        );
    }
    line
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
    }
}
