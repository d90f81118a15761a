// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The open loop and the throughput of RFC 2544 as tables, beside the ratios that paper 000 found.
//!
//! Not here: round trips of pings ([`super`]).

use std::fmt::Write;

use super::{against, provenance, stock, Table};
use crate::compare::rates::Rates;
use crate::report::cell::{Cell, Group};
use crate::report::names;
use crate::report::run::Run;
use crate::report::text::{bits, count, micros, ratio, time};

/// KBP's throughput by NAPI's, "up to", by length of a frame: K. Fujimoto et al., *KBP: Kernel Enhancements for
/// Low-Latency Networking for Virtual Machine and Container without Application Customization*, IEICE Trans. Commun.,
/// 2022, section 5.2.2 with Fig. 9 (a virtual machine) and section 6.2.2 with Fig. 12 (a docker container). For the
/// container its text names 1518 bytes twice; the first of them is taken as the 64 bytes that are missing.
const PAPER: [(u64, f64, f64); 3] = [(64, 1.36, 1.25), (512, 1.75, 1.05), (1518, 3.28, 1.07)];

const THROUGHPUT: &str = "\
The highest rate at which no frame was lost in trials of the length given, by the binary search of RFC 2544, 26.1 (which
asks for trials of 60 s): mean of the rounds, and what they found. In brackets stands what the lowest and the highest
round and the resolution of the search leave possible, which is no confidence interval; where that holds 1 it is *no
difference shown*, and of one round no difference is. Where the tester set the limit, the figure is a lower bound. On the
virtual clock one stream of instructions plays all CPUs, so a rate means something beside the others of its table only.
The paper's figures are KBP's throughput by NAPI's, \"up to\", without such loads, of a virtual machine and a container
behind 10 Gbit/s cards with a hardware tester (K. Fujimoto et al., *KBP*, IEICE Trans. Commun., 2022, Fig. 9 and Fig. 12;
for the container its text names 1518 bytes twice, the first of them is taken as 64).
";

const OPEN_LOOP: &str = "\
Frames whatever comes back, at constant gaps where nothing else stands beside the rate; round trips count from the moment
at which a frame was due, in µs, those of memcached from when a request left.
";

/// All of it; empty without such rows.
pub(super) fn of(runs: &[Run], groups: &[Group]) -> String {
    let mut text = String::new();
    for (title, words, one) in [
        (
            "Throughput without loss",
            THROUGHPUT,
            throughput as fn(&[&Group]) -> String,
        ),
        ("Open loop", OPEN_LOOP, open_loop),
    ] {
        let mut tables = String::new();
        for (index, run) in runs.iter().enumerate() {
            let of_run: Vec<&Group> = groups.iter().filter(|g| g.key.run == index).collect();
            let table = one(&of_run);
            if !table.is_empty() {
                let _ = write!(
                    tables,
                    "\n### {title}, {}\n\n{}\n{table}",
                    run.label,
                    provenance(run)
                );
            }
        }
        if !tables.is_empty() {
            let _ = write!(text, "\n## {title}\n\n{words}{tables}");
        }
    }
    text
}

fn throughput(groups: &[&Group]) -> String {
    let mut table = Table::new(&[
        "path",
        "load",
        "bytes",
        "mechanism",
        "frames/s",
        "rate",
        "rounds",
        "÷ stock",
        "paper: VM",
        "paper: container",
        "trials",
        "of",
        "limit",
    ]);
    let mut is_empty = true;
    for group in groups {
        for cell in &group.cells {
            let Some(found) = Rates::of(&cell.rows) else {
                continue;
            };
            is_empty = false;
            let rounds: Vec<String> = found
                .each
                .iter()
                .map(|one| count(one.round() as u64))
                .collect();
            let stock = stock(group).filter(|stock| stock.mode != cell.mode);
            let of_stock = stock.and_then(|stock| Rates::of(&stock.rows));
            let papers = PAPER
                .iter()
                .find(|(bytes, ..)| *bytes == group.key.size_bytes)
                .filter(|_| cell.mode.starts_with("kbp-"));
            let paper = |pick: fn(&(u64, f64, f64)) -> f64| {
                papers.map_or(String::new(), |figures| ratio(pick(figures), 1.0))
            };
            table.row(&[
                group.key.path.into(),
                group.key.load.into(),
                count(group.key.size_bytes),
                cell.mode.into(),
                count(found.mean.round() as u64),
                bits(found.mean * group.key.size_bytes as f64 * 8.0),
                rounds.join(", "),
                of_stock.map_or(String::new(), |stock| by(&found, &stock)),
                paper(|figures| figures.1),
                paper(|figures| figures.2),
                count(found.trials),
                trial(cell),
                found.limit().into(),
            ]);
        }
    }
    if is_empty {
        String::new()
    } else {
        table.0
    }
}

/// The length of a trial.
fn trial(cell: &Cell) -> String {
    let lengths = cell.rows.iter().filter_map(|row| row.throughput);
    let longest = lengths.map(|found| found.trial_ns).max();
    longest.map_or(String::new(), |ns| time(ns as f64))
}

fn by(found: &Rates, stock: &Rates) -> String {
    match found.by(stock) {
        Some(ratio) => ratio.words(),
        None => "the stock path lost frames at the lowest rate".into(),
    }
}

fn open_loop(groups: &[&Group]) -> String {
    let mut table = Table::new(&[
        "path",
        "load",
        "bytes",
        "rate",
        "mechanism",
        "sent",
        "lost",
        "reordered",
        "p50",
        "p99",
        "max",
        "p99 ÷ stock",
    ]);
    let mut is_empty = true;
    for group in groups {
        for cell in &group.cells {
            let accounts = cell.rows.iter().filter_map(|row| row.open_loop.as_ref());
            let (sent, reordered) = accounts.fold((0, 0), |(sent, reordered), one| {
                (sent + one.sent, reordered + one.reordered)
            });
            if sent == 0 {
                continue;
            }
            is_empty = false;
            let rtt = &cell.rtt_ns;
            let us = |ns: u64| micros(ns as f64);
            table.row(&[
                group.key.path.into(),
                group.key.load.into(),
                count(group.key.size_bytes),
                names::offered(&group.key).unwrap_or_default(),
                cell.mode.into(),
                count(sent),
                count(cell.sum(|row| row.lost)),
                count(reordered),
                us(rtt.p50),
                us(rtt.p99),
                us(rtt.max),
                against(cell, stock(group)),
            ]);
        }
    }
    if is_empty {
        String::new()
    } else {
        table.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::cell;
    use crate::report::run::merge;
    use crate::result::tests::sample;
    use crate::result::{OpenLoop, Throughput};

    fn file(rates: &[(&str, u32, f64)]) -> crate::result::ResultFile {
        let mut file = sample();
        let row = file.rows[0].clone();
        file.rows = rates
            .iter()
            .map(|(mode, round, rate)| crate::result::Row {
                mode: (*mode).into(),
                round: *round,
                traffic: "rfc2544".into(),
                size_bytes: 512,
                throughput: Some(Throughput {
                    frames_per_s: *rate,
                    resolution_frames_per_s: Some(500.0),
                    trials: 9,
                    ..Throughput::default()
                }),
                ..row.clone()
            })
            .collect();
        file
    }

    #[test]
    fn rates_stand_beside_the_papers_and_near_ones_are_no_difference() {
        let runs = merge(vec![(
            "a.json".into(),
            file(&[
                ("softirq", 1, 10_000.0),
                ("kbp-busy", 1, 20_000.0),
                ("threaded-fifo", 1, 10_400.0),
                ("softirq", 2, 10_200.0),
                ("kbp-busy", 2, 20_000.0),
                ("threaded-fifo", 2, 10_400.0),
            ]),
        )]);
        let text = of(&runs, &cell::groups(&runs));
        let line = |mode: &str| {
            let line = text.lines().find(|line| line.contains(mode));
            line.unwrap().to_owned()
        };
        assert!(
            line("| kbp-busy").contains("| 1.98 × (1.87 × to 2.05 ×) | 1.75 × | 1.05 × |"),
            "{text}"
        );
        assert!(
            line("threaded-fifo").contains("no difference shown |  |  | 18 |"),
            "{text}"
        );
        assert!(
            line("| softirq").contains("10\u{202f}000, 10\u{202f}200 |"),
            "{text}"
        );
    }

    #[test]
    fn an_open_loop_says_what_was_lost() {
        let mut file = sample();
        file.rows.truncate(1);
        file.rows[0].traffic = "open-loop".into();
        file.rows[0].lost = 7;
        file.rows[0].open_loop = Some(OpenLoop {
            sent: 2_007,
            ..OpenLoop::default()
        });
        let runs = merge(vec![("a.json".into(), file)]);
        let text = of(&runs, &cell::groups(&runs));
        assert!(
            text.contains("| softirq | 2\u{202f}007 | 7 | 0 |"),
            "{text}"
        );
        assert!(of(&[], &[]).is_empty());
    }
}
