// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows as comma-separated values (RFC 4180): `kbp report --csv`.
//!
//! One line a row, not pooled; a figure that a row does not have is an empty field.
//! Not here: histograms, timelines and counts by vector; the result file has them.

use super::run::Run;
use crate::result::Row;

/// The columns, in order.
pub const COLUMNS: [&str; 59] = [
    "run",
    "kernel",
    "clock",
    "path",
    "load",
    "mode",
    "round",
    "tool",
    "traffic",
    "size_bytes",
    "rate_bps",
    "arrivals",
    "n",
    "lost",
    "late",
    "dup",
    "warmup_lost",
    "skipped",
    "span_ns",
    "min_ns",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "mean_ns",
    "net_rx_softirqs",
    "hard_irqs",
    "ksoftirqd_ns",
    "mode_threads_ns",
    "mode_threads_sleeps",
    "poller_busy_ns",
    "poller_polls",
    "poller_packets",
    "poller_handbacks",
    "poller_sleeps",
    "poller_wakeups",
    "poller_empty_polls",
    "poller_empty_rounds",
    "poller_slowdowns",
    "poller_speedups",
    "server_ns",
    "client_ns",
    "context_switches",
    "dropped",
    "joules",
    "estimated_joules",
    "freq_changes",
    "freq_mean_khz",
    "sent",
    "duplicated",
    "reordered",
    "send_late_ns_max",
    "frames_per_s",
    "limited_by_tester",
    "sent_per_s",
    "received_per_s",
    "sent_bps",
    "received_bps",
];

/// All rows of all runs, with a line of headings.
pub fn of(runs: &[Run]) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    for run in runs {
        for row in &run.file.rows {
            let fields: Vec<String> = fields(run, row).iter().map(|field| quote(field)).collect();
            text += &fields.join(",");
            text += "\r\n";
        }
    }
    text
}

/// A field as RFC 4180 wants it: quoted where it holds a comma, a quote or a line break.
fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn fields(run: &Run, row: &Row) -> Vec<String> {
    let mut fields = vec![
        run.label.clone(),
        run.file.kernel.clone(),
        run.file.clock.clone(),
    ];
    let names = [&row.path, &row.load, &row.mode].map(Clone::clone);
    fields.extend(names);
    fields.extend([row.round.to_string(), row.tool.clone(), row.traffic.clone()]);
    fields.extend([row.size_bytes.to_string(), optional(row.rate_bps)]);
    fields.push(optional(row.arrivals.as_ref()));
    let counts = [
        row.n,
        row.lost,
        row.late,
        row.dup,
        row.warmup_lost,
        row.skipped,
        row.span_ns,
    ];
    fields.extend(counts.map(|count| count.to_string()));
    let rtt = &row.rtt_ns;
    let times = [rtt.min, rtt.p50, rtt.p90, rtt.p99, rtt.p999, rtt.max];
    let timed = row.n > 0;
    fields.extend(times.map(|ns| optional(timed.then_some(ns))));
    fields.push(optional(timed.then_some(rtt.mean)));
    let witness = &row.witness;
    let counts = [
        witness.net_rx_softirqs,
        witness.hard_irqs,
        witness.ksoftirqd_ns,
        witness.mode_threads_ns,
    ];
    fields.extend(counts.map(|count| count.to_string()));
    fields.push(optional(witness.mode_threads_sleeps));
    fields.extend(costs(row));
    fields.extend(rates(row));
    fields
}

fn costs(row: &Row) -> Vec<String> {
    let (poller, cpu) = (row.poller.as_ref(), row.cpu.as_ref());
    let dropped: u64 = row.drops.values().sum();
    let energy = row.energy.as_ref();
    let estimate = energy.and_then(|energy| energy.estimate.as_ref());
    let frequency = row.frequency.as_ref();
    vec![
        optional(poller.map(|poller| poller.busy_ns)),
        optional(poller.map(|poller| poller.polls)),
        optional(poller.map(|poller| poller.packets)),
        optional(poller.map(|poller| poller.handbacks)),
        optional(poller.map(|poller| poller.sleeps)),
        optional(poller.map(|poller| poller.wakeups)),
        optional(poller.and_then(|poller| poller.empty_polls)),
        optional(poller.and_then(|poller| poller.empty_rounds)),
        optional(poller.and_then(|poller| poller.slowdowns)),
        optional(poller.and_then(|poller| poller.speedups)),
        optional(cpu.map(|cpu| cpu.server_ns)),
        optional(cpu.map(|cpu| cpu.client_ns)),
        optional(cpu.map(|cpu| cpu.context_switches)),
        dropped.to_string(),
        optional(energy.and_then(|energy| energy.joules)),
        optional(estimate.map(|estimate| estimate.joules)),
        optional(frequency.map(|frequency| frequency.changes)),
        optional(frequency.and_then(|frequency| frequency.mean_khz)),
    ]
}

fn rates(row: &Row) -> Vec<String> {
    let open = row.open_loop.as_ref();
    vec![
        optional(open.map(|open| open.sent)),
        optional(open.map(|open| open.duplicated)),
        optional(open.map(|open| open.reordered)),
        optional(open.map(|open| open.send_late_ns_max)),
        optional(row.throughput.map(|found| found.frames_per_s)),
        optional(row.throughput.map(|found| found.limited_by_tester)),
        optional(row.one_way.map(|found| found.sent_per_s)),
        optional(row.one_way.map(|found| found.received_per_s)),
        optional(row.bulk.map(|found| found.sent_bps)),
        optional(row.bulk.map(|found| found.received_bps)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::run::merge;
    use crate::report::tests::full;

    #[test]
    fn the_columns_are_documented_in_their_order() {
        let page = include_str!("../../../../docs/reference/report.md");
        let (_, list) = page.split_once("The columns: ").unwrap();
        // Every second piece between backticks is a name; the paragraph is one line.
        let names = list.lines().next().unwrap().split('`').skip(1).step_by(2);
        assert_eq!(names.collect::<Vec<_>>(), COLUMNS);
    }

    #[test]
    fn every_row_has_every_column() {
        let mut file = full();
        file.rows[0].load = "a \"load\", quoted".into();
        let rows = file.rows.len();
        let first = file.rows[0].clone();
        let text = of(&merge(vec![("a".into(), file)]));
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 1 + rows);
        assert!(
            lines[1].contains(",\"a \"\"load\"\", quoted\","),
            "{}",
            lines[1]
        );
        for line in &lines[2..] {
            assert_eq!(line.split(',').count(), COLUMNS.len(), "{line}");
        }
        let plain = lines[1].replace("\"a \"\"load\"\", quoted\"", "load");
        let field = |name: &str| {
            let place = COLUMNS.iter().position(|column| *column == name).unwrap();
            plain.split(',').nth(place).unwrap().to_owned()
        };
        assert_eq!(field("p99_ns"), first.rtt_ns.p99.to_string());
        assert_eq!(field("hard_irqs"), first.witness.hard_irqs.to_string());
        assert_eq!(field("received_per_s"), "", "what is not there is empty");
    }
}
