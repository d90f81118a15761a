// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All runs as tables of Markdown: what a repository keeps beside its result files, and what a text about them quotes.
//!
//! For each run and path a table load × mechanism, with what may be said of the ratios, the witness, and why the
//! missing ones are missing; the medians of paths side by side; rates beside those of paper 000 ([`rates`]).
//!
//! Not here: the page for the browser ([`super::page`]), and the terminal's tables ([`crate::compare::table`]).

mod rates;

use std::collections::BTreeMap;
use std::fmt::Write;

use super::cell::{self, in_order, Cell, Group};
use super::ratio::{compare, Compared, Percentile};
use super::run::Run;
use super::text::{count, micros, ratio};
use crate::result::{is_service, NotRun, TOOL_KBP};
use crate::stats::Verdict;

/// What every other mechanism is set against: softirq, or on a kernel with PREEMPT_RT its stock path.
const STOCK: [&str; 2] = ["softirq", "preempt-rt"];
const PING_PONG: &str = "ping-pong";

const HEAD: &str = "\
Made from the result files of this folder; do not edit. Round trips in µs, all rounds of a mechanism together. A ratio
stands with its 95 % interval (bootstrap over rounds and round trips); an interval that holds 1 is *no difference
shown*. The best rival is the mechanism of others with the lowest p99 in the same group. `NET_RX` and `hardIRQ` are the
softirqs on the poller's CPU and the receive interrupts of a row (mean), `threads` the CPU time of what the mechanism
brings: NAPI threads, or the poller, whose own count of packets is in `packets`; `load did`, where rows say it, is what
the load itself delivered. A ping whose time comes while the answer to the one before is awaited is *skipped*: the more
were, the more do the percentiles flatter that mechanism.
";

/// The whole text.
pub fn of(runs: &[Run]) -> String {
    let groups = cell::groups(runs);
    let mut text = format!("# Tables\n\n{HEAD}");
    text += &medians(runs, &groups);
    text += &rates::of(runs, &groups);
    for (index, run) in runs.iter().enumerate() {
        let of_run: Vec<&Group> = groups.iter().filter(|g| g.key.run == index).collect();
        text += &section(run, &of_run);
    }
    text
}

/// A table as GitHub reads it.
struct Table(String);

impl Table {
    fn new(columns: &[&str]) -> Self {
        let mut table = Self(String::new());
        let names: Vec<String> = columns.iter().map(|name| (*name).into()).collect();
        table.row(&names);
        table.row(&vec!["---".into(); columns.len()]);
        table
    }

    fn row(&mut self, cells: &[String]) {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }
}

fn section(run: &Run, groups: &[&Group]) -> String {
    let latency: Vec<&Group> = groups
        .iter()
        .copied()
        .filter(|group| group.is_headline() && has_table(group.key.traffic))
        .collect();
    let is_paths = paths_alone(&latency).is_some();
    if (latency.is_empty() || is_paths) && run.file.not_run.is_empty() {
        return String::new();
    }
    let mut text = format!("\n## {}\n\n{}", run.label, provenance(run));
    for path in in_order(latency.iter().map(|group| group.key.path)) {
        let on_path = || latency.iter().filter(|group| group.key.path == path);
        for traffic in in_order(on_path().map(|group| group.key.traffic)) {
            let here: Vec<&Group> = on_path()
                .copied()
                .filter(|group| group.key.traffic == traffic)
                .collect();
            let what = match traffic {
                PING_PONG => String::new(),
                service => format!(", {service}"),
            };
            text += &format!("\n### {}, {path}{what}\n\n{}", run.label, path_table(&here));
        }
    }
    text + &not_run(&run.file.not_run) + &notes(&latency)
}

/// Whether what was sent has a table here: pings, and requests to a service.
fn has_table(traffic: &str) -> bool {
    traffic == PING_PONG || is_service(traffic)
}

/// Where a run's figures come from.
fn provenance(run: &Run) -> String {
    let file = &run.file;
    let partial = if file.partial {
        " This run is partial."
    } else {
        ""
    };
    format!(
        "Linux {}, {} clock, {}, revision {}.{partial}\n",
        file.kernel, file.clock, file.date, file.git
    )
}

fn path_table(groups: &[&Group]) -> String {
    let mut columns = vec![
        "load",
        "mechanism",
        "n",
        "lost",
        "skipped",
        "p50",
        "p99",
        "max",
        "p99 ÷ stock",
        "p99 ÷ best rival",
        "NET_RX",
        "hardIRQ",
        "threads",
        "packets",
    ];
    let mut cells = groups.iter().flat_map(|group| &group.cells);
    let has_load = cells.any(|cell| load_did(cell).is_some());
    columns.extend(has_load.then_some("load did"));
    let mut table = Table::new(&columns);
    for group in groups {
        for cell in &group.cells {
            let mut line = line(group, cell);
            line.extend(has_load.then(|| load_did(cell).unwrap_or_default()));
            table.row(&line);
        }
    }
    table.0
}

/// What the load of a cell did, a second: packets, and bits of what was delivered. `None` where no row says it.
fn load_did(cell: &Cell) -> Option<String> {
    let rows = || cell.rows.iter().filter_map(|row| row.load_done.as_ref());
    let seconds = rows().map(|done| done.span_ns).sum::<u64>() as f64 / 1e9;
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, total) in rows().flat_map(|done| &done.counts) {
        *totals.entry(name).or_default() += total;
    }
    let figures = totals.iter().filter_map(|(name, total)| {
        let a_second = *total as f64 / seconds;
        match *name {
            "udp_bytes" => Some(format!("UDP {:.1} Mbit/s", a_second * 8.0 / 1e6)),
            "tcp_bytes" => Some(format!("TCP {:.1} Mbit/s", a_second * 8.0 / 1e6)),
            "packets" => Some(format!("{} packets/s", count(a_second as u64))),
            _ => None,
        }
    });
    let figures = figures.collect::<Vec<_>>().join(", ");
    (seconds > 0.0 && !figures.is_empty()).then_some(figures)
}

fn line(group: &Group, cell: &Cell) -> Vec<String> {
    let rtt = &cell.rtt_ns;
    let us = |ns: u64| micros(ns as f64);
    let mean = |sum: u64| count(sum / (cell.rows.len() as u64).max(1));
    let packets = cell.rows.iter().filter_map(|row| row.poller);
    let packets: u64 = packets.map(|poller| poller.packets).sum();
    let is_polled = cell.rows.iter().any(|row| row.poller.is_some());
    vec![
        group.key.load.into(),
        cell.mode.into(),
        count(cell.n()),
        count(cell.lost()),
        count(cell.sum(|row| row.skipped)),
        us(rtt.p50),
        us(rtt.p99),
        us(rtt.max),
        against(cell, stock(group)),
        against(cell, group.best_rival()),
        mean(cell.sum(|row| row.witness.net_rx_softirqs)),
        mean(cell.sum(|row| row.witness.hard_irqs)),
        cell.cpu_share().map_or(String::new(), super::text::share),
        if is_polled {
            mean(packets)
        } else {
            String::new()
        },
    ]
}

fn stock<'a, 'b>(group: &'a Group<'b>) -> Option<&'a Cell<'b>> {
    STOCK.into_iter().find_map(|mode| group.of_mode(mode))
}

/// The p99 of a mechanism by that of another, in words.
fn against(cell: &Cell, other: Option<&Cell>) -> String {
    let other = other.filter(|other| other.mode != cell.mode);
    let Some((other, found)) =
        other.and_then(|other| Some((other, compare(cell, other, Percentile::P99)?)))
    else {
        return String::new();
    };
    match STOCK.contains(&other.mode) {
        true => said(&found),
        false => format!("{}, {}", said(&found), other.mode),
    }
}

/// A ratio with its interval, or what keeps it from being one.
fn said(found: &Compared) -> String {
    let share = |value: f64| ratio(value, 1.0);
    match (found.verdict, found.low, found.high) {
        (Some(verdict @ (Verdict::NoDifferenceShown | Verdict::TooFew)), _, _) => {
            verdict.words().into()
        }
        (_, Some(low), Some(high)) => {
            format!("{} ({} to {})", share(found.value), share(low), share(high))
        }
        (_, None, Some(high)) => format!("{} (below {})", share(found.value), share(high)),
        (_, Some(low), None) => format!("{} (above {})", share(found.value), share(low)),
        (_, None, None) => share(found.value),
    }
}

/// Reasons, each once, with what they kept from being measured.
fn not_run(cells: &[NotRun]) -> String {
    let mut reasons: BTreeMap<(bool, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for cell in cells {
        let modes = reasons.entry((cell.failed, &cell.why)).or_default();
        let paths = modes.entry(&cell.mode).or_default();
        if !paths.contains(&cell.path.as_str()) {
            paths.push(&cell.path);
        }
    }
    let mut text = String::new();
    for ((failed, why), modes) in reasons {
        let word = if failed { "Failed" } else { "Not here" };
        let modes: Vec<String> = modes
            .iter()
            .map(|(mode, paths)| format!("`{mode}` ({})", paths.join(", ")))
            .collect();
        let _ = write!(text, "\n{word}: {}: {why}\n", modes.join(", "));
    }
    text
}

/// What is to be known before a row is believed, each sentence once.
fn notes(groups: &[&Group]) -> String {
    let rows = groups.iter().flat_map(|group| &group.cells);
    let notes = rows
        .flat_map(|cell| &cell.rows)
        .filter_map(|row| row.note.as_deref().map(|note| (row.mode.as_str(), note)));
    let sentences: Vec<String> = notes
        .map(|(mode, note)| format!("\n`{mode}`: {note}\n"))
        .collect();
    in_order(sentences.iter().map(String::as_str)).concat()
}

/// The paths of a run that compares nothing else: one mechanism, one load, several paths.
fn paths_alone<'a>(groups: &[&'a Group<'a>]) -> Option<Vec<(&'a str, &'a Cell<'a>)>> {
    let alone = |group: &&'a Group<'a>| match &group.cells[..] {
        [cell] if STOCK.contains(&cell.mode) => Some((group.key.path, cell)),
        _ => None,
    };
    let paths: Option<Vec<_>> = groups.iter().map(alone).collect();
    let paths = paths.filter(|paths| paths.len() > 1)?;
    let names = in_order(paths.iter().map(|(path, _)| *path));
    (names.len() == paths.len()).then_some(paths)
}

/// Paper 002's question: the medians of the paths, a column for each run that asked it.
fn medians(runs: &[Run], groups: &[Group]) -> String {
    let mut text = String::new();
    for (index, run) in runs.iter().enumerate() {
        let of_run: Vec<&Group> = groups
            .iter()
            .filter(|group| {
                let key = &group.key;
                key.run == index && key.tool == TOOL_KBP && key.traffic == "ping-pong"
            })
            .collect();
        let Some(mut paths) = paths_alone(&of_run) else {
            continue;
        };
        paths.sort_by_key(|(_, cell)| cell.rtt_ns.p50);
        let mut table = Table::new(&["path", "n", "p50", "p99", "max", "p50 ÷ the one above"]);
        let mut order = String::new();
        for (place, (path, cell)) in paths.iter().enumerate() {
            let rtt = &cell.rtt_ns;
            let above = place.checked_sub(1).map(|above| paths[above].1);
            let step = above.and_then(|above| compare(cell, above, Percentile::P50));
            order += match step.as_ref().map(|step| step.verdict) {
                None => "",
                Some(Some(Verdict::Higher)) => " < ",
                Some(_) => " ≈ ",
            };
            order += path;
            table.row(&[
                (*path).into(),
                count(cell.n()),
                micros(rtt.p50 as f64),
                micros(rtt.p99 as f64),
                micros(rtt.max as f64),
                step.map_or(String::new(), |step| said(&step)),
            ]);
        }
        let _ = write!(
            text,
            "\n### {}: {order}\n\n{}\n{}",
            run.label,
            provenance(run),
            table.0
        );
    }
    match text.is_empty() {
        true => text,
        false => format!("\n## Medians of the paths, the stock path, ascending\n\n≈ stands where no difference is shown.\n{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::run::merge;
    use crate::result::tests::sample;
    use crate::result::LoadDone;

    #[test]
    fn what_a_load_did_is_a_column_where_a_row_says_it() {
        let done = |span_ns, counts: &[(&str, u64)]| LoadDone {
            span_ns,
            counts: counts
                .iter()
                .map(|(name, n)| ((*name).into(), *n))
                .collect(),
        };
        let mut file = sample();
        let text = of(&merge(vec![("a.json".into(), file.clone())]));
        assert!(!text.contains("packets | load did |"), "{text}");
        let mut rows = file
            .rows
            .iter_mut()
            .filter(|row| row.load == "storm" && row.mode == "softirq");
        let counts = [
            ("udp_bytes", 12_500_000),
            ("udp_skipped_bytes", 9),
            ("packets", 400),
            ("polls", 7),
        ];
        rows.next().unwrap().load_done = Some(done(500_000_000, &counts));
        let text = of(&merge(vec![("a.json".into(), file)]));
        assert!(text.contains("packets | load did |"), "{text}");
        assert!(
            text.contains("| 800 packets/s, UDP 200.0 Mbit/s |"),
            "{text}"
        );
        let widths = text
            .lines()
            .filter(|line| line.starts_with("| storm | ") || line.starts_with("| idle | "));
        let widths: std::collections::BTreeSet<usize> =
            widths.map(|line| line.matches('|').count()).collect();
        assert_eq!(widths, [16].into(), "{text}");
    }

    #[test]
    fn mechanisms_reasons_and_paths_are_all_there() {
        let mut file = sample();
        for path in ["nic", "vxlan"] {
            file.not_run.push(NotRun {
                path: path.into(),
                mode: "backlog-threads".into(),
                load: "idle".into(),
                why: "the kernel was not booted with it".into(),
                ..NotRun::default()
            });
        }
        let mut paths = sample();
        paths.git = "other".into();
        paths
            .rows
            .retain(|row| row.mode == "softirq" && row.load == "idle");
        paths.rows[0].path = "lo".into();
        paths.rows[1].path = "veth".into();
        let runs = merge(vec![("a.json".into(), file), ("b.json".into(), paths)]);
        let text = of(&runs);
        assert!(
            text.contains("| storm | kbp-busy | 2\u{202f}000 | 0 | 3 |"),
            "{text}"
        );
        assert!(text.contains(": lo ≈ veth\n"), "{text}");
        assert!(text.contains("1/60 ("), "{text}");
        assert!(
            text.contains("Not here: `backlog-threads` (nic, vxlan): the kernel was not booted"),
            "{text}"
        );
        let widths: Vec<usize> = text
            .lines()
            .filter(|line| line.starts_with("| ") && line.contains("kbp-busy"))
            .map(|line| line.matches('|').count())
            .collect();
        assert_eq!(widths, [15, 15]);
    }
}
