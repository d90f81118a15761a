// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a load as an HTML table: a line a row, softirq's first round as the
//! reference of the ratios.
//!
//! Not here: the same table for the terminal ([`crate::progress`]).

use std::fmt::Write;

use super::text::{count, escape, micros, ratio};
use crate::result::{Row, TOOL_KBP};

const HEADINGS: [&str; 13] = [
    "mode",
    "n",
    "lost",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "max",
    "mean",
    "skipped slots",
    "NET_RX softirqs",
    "receive interrupts",
    "CPU time of mode",
];

/// What the columns mean, for the end of the page.
pub const NOTES: &str = "<p>Times in the tables are in µs; the grey figure is the ratio to the \
     first softirq row of the same tool. Softirqs are those on the poller's CPU, interrupts those \
     of both interfaces' receive vectors, both counted by the kernel over the row. CPU time is that \
     of the NAPI threads or of the poller, as a share of one CPU: a busy poller takes all of its \
     CPU, that is its price. A row of <code>sockperf</code> is Debian's unmodified tool, which \
     sends without a pause.</p>\n";

/// The table of these rows, which are of one load.
pub fn of(rows: &[&Row]) -> String {
    let headings: String = HEADINGS
        .iter()
        .map(|name| format!("<th scope=\"col\">{name}</th>"))
        .collect();
    let lines: String = rows
        .iter()
        .map(|row| line(row, reference(rows, row)))
        .collect();
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr>{headings}</tr></thead>\n\
         <tbody>\n{lines}</tbody></table></div>\n"
    )
}

/// A row is compared with what the same tool saw on the stock path.
fn reference<'a>(rows: &[&'a Row], row: &Row) -> Option<&'a Row> {
    rows.iter()
        .copied()
        .find(|other| other.mode == "softirq" && other.tool == row.tool)
}

fn line(row: &Row, reference: Option<&Row>) -> String {
    let class = if row.mode.starts_with("kbp-") {
        " class=\"ours\""
    } else {
        ""
    };
    let mut line = format!("<tr{class}><th scope=\"row\">{}</th>", escape(&name(row)));
    let mut cell = |text: String| {
        let _ = write!(line, "<td>{text}</td>");
    };
    let timed = |pick: fn(&Row) -> u64| {
        let shown = micros(pick(row) as f64);
        match reference.filter(|reference| !std::ptr::eq(*reference, row)) {
            Some(other) => {
                let ratio = ratio(pick(row) as f64, pick(other) as f64);
                format!("{shown}<span class=\"ratio\">{ratio}</span>")
            }
            None => shown,
        }
    };
    cell(count(row.n));
    cell(count(row.lost + row.warmup_lost));
    cell(timed(|row| row.rtt_ns.p50));
    cell(micros(row.rtt_ns.p90 as f64));
    cell(timed(|row| row.rtt_ns.p99));
    cell(micros(row.rtt_ns.p999 as f64));
    cell(timed(|row| row.rtt_ns.max));
    cell(micros(row.rtt_ns.mean));
    cell(if row.tool == TOOL_KBP {
        count(row.skipped)
    } else {
        "–".into()
    });
    cell(count(row.witness.net_rx_softirqs));
    cell(count(row.witness.hard_irqs));
    cell(cpu_share(row));
    line + "</tr>\n"
}

/// How a row is called in a table.
pub fn name(row: &Row) -> String {
    let mut name = row.mode.clone();
    if row.tool != TOOL_KBP {
        let _ = write!(name, " ({})", row.tool);
    }
    if row.round > 1 {
        name += ", again";
    }
    name
}

/// CPU time of the threads that the mode brings, as a share of one CPU.
pub fn cpu_share(row: &Row) -> String {
    if row.span_ns == 0 || row.witness.mode_threads_ns == 0 {
        return "–".into();
    }
    let percent = row.witness.mode_threads_ns as f64 / row.span_ns as f64 * 100.0;
    match percent {
        p if p < 9.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}
