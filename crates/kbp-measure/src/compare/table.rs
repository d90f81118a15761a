// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A result as a table: for each path and load the mechanisms side by side, with what may be said of their ratios.
//!
//! The rounds of a mechanism are one line: percentiles of all of them together, the largest maximum, the sum of what
//! was lost, the mean of what was counted.
//!
//! Not here: the page for the browser ([`crate::report`]), and one row as it comes ([`crate::progress`]).

use std::fmt::Write;

use serde::Serialize;

use super::costs::{self, Costs};
use super::rates;
use crate::report::text::{bits, micros, ratio as share};
use crate::result::{is_measured, CpuUse, ResultFile, Row, NO_TRAFFIC};
use crate::stats::{percentile_ns, ratio, Ratio, Verdict};

/// The percentile whose ratios the printed table has.
const SHOWN: f64 = 99.0;
/// What every mechanism is set against.
pub(super) const STOCK: [&str; 2] = ["softirq", "preempt-rt"];
/// Names of our own mechanisms begin so; the others are rivals.
const OURS: &str = "kbp-";

/// The mechanisms under one load on one path.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// The path.
    pub path: String,
    /// The load.
    pub load: String,
    /// What was sent: `ping-pong`, `open-loop`.
    pub traffic: String,
    /// Payload of a ping; length of a frame of an open loop.
    pub size_bytes: u64,
    /// Rate of an open loop, bits of the frames a second.
    pub rate_bps: Option<u64>,
    /// Which times its frames were due at; absent where they were constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
    /// The mechanism that the ratios of `vs_stock` are to.
    pub stock: Option<String>,
    /// The mechanism of others with the lowest 99th percentile.
    pub rival: Option<String>,
    /// A line for each mechanism, in the order in which they were measured.
    pub lines: Vec<Line>,
}

/// A mechanism in its group. Times in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The mechanism.
    pub mode: String,
    /// Rounds.
    pub rounds: usize,
    /// Round trips.
    pub n: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Pings without an answer in time, warm-ups included.
    pub lost: u64,
    /// Its percentiles by those of the stock path.
    pub vs_stock: Option<Ratios>,
    /// Its percentiles by those of the best rival.
    pub vs_rival: Option<Ratios>,
    /// `NET_RX` softirqs on the poller's CPU, a round.
    pub net_rx_softirqs: u64,
    /// Receive interrupts, a round.
    pub hard_irqs: u64,
    /// CPU time of the machine that was not idle, percent of one CPU; absent where it was not read.
    pub cpu_percent: Option<f64>,
    /// What it cost otherwise.
    pub costs: Costs,
    /// What is to be known before it is believed.
    pub note: Option<String>,
}

/// Ratios of two percentiles.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratios {
    /// Of the medians.
    pub p50: Ratio,
    /// Of the 99th percentiles.
    pub p99: Ratio,
}

/// The groups of a result, in the order in which they were measured. Rows of third parties are left out, and those that
/// are a rate ([`super::rates`]).
pub fn groups(file: &ResultFile) -> Vec<Group> {
    let is_shown = |row: &Row| !row.histogram_ns.is_empty() || row.traffic == NO_TRAFFIC;
    let ours = |row: &&Row| is_measured(&row.tool) && is_shown(row) && row.throughput.is_none();
    let rows: Vec<&Row> = file.rows.iter().filter(ours).collect();
    let places = unique(rows.iter().map(|row| place(row)));
    let here = |of: &Place| -> Vec<&Row> {
        let same = |row: &&&Row| place(row) == *of;
        rows.iter().filter(same).copied().collect()
    };
    places.iter().map(|place| group(&here(place))).collect()
}

/// Path, load, traffic, size, rate and arrivals of a row.
pub(super) type Place<'a> = (&'a str, &'a str, &'a str, u64, Option<u64>, Option<&'a str>);

/// What the rows of mechanisms that are set against each other have in common.
pub(super) fn place(row: &Row) -> Place<'_> {
    let Row {
        path,
        load,
        traffic,
        ..
    } = row;
    (
        path,
        load,
        traffic,
        row.size_bytes,
        row.rate_bps,
        row.arrivals.as_deref(),
    )
}

pub(super) fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

fn group(rows: &[&Row]) -> Group {
    let modes = unique(rows.iter().map(|row| row.mode.as_str()));
    let of = |mode: &str| -> Vec<&Row> {
        let same = |row: &&&Row| row.mode == mode;
        rows.iter().filter(same).copied().collect()
    };
    let stock = STOCK.into_iter().find(|mode| modes.contains(mode));
    let p99 = |mode: &str| percentile_ns(&of(mode), SHOWN).unwrap_or(f64::INFINITY);
    let rivals = modes.iter().filter(|mode| !mode.starts_with(OURS));
    let rival = rivals.copied().min_by(|a, b| p99(a).total_cmp(&p99(b)));
    let against = |mode: &str, other: Option<&str>| {
        let other = other.filter(|other| *other != mode)?;
        let (a, b) = (of(mode), of(other));
        Some(Ratios {
            p50: ratio(&a, &b, 50.0)?,
            p99: ratio(&a, &b, SHOWN)?,
        })
    };
    let line = |mode: &&str| Line {
        vs_stock: against(mode, stock),
        vs_rival: against(mode, rival),
        ..line(mode, &of(mode))
    };
    let (path, load, traffic, size_bytes, rate_bps, arrivals) =
        rows.first().map_or(Place::default(), |row| place(row));
    Group {
        path: path.into(),
        load: load.into(),
        traffic: traffic.into(),
        size_bytes,
        rate_bps,
        arrivals: arrivals.map(String::from),
        stock: stock.map(String::from),
        rival: rival.map(String::from),
        lines: modes.iter().map(line).collect(),
    }
}

fn line(mode: &str, rows: &[&Row]) -> Line {
    let at = |percent: f64| percentile_ns(rows, percent).unwrap_or(0.0) as u64;
    let mean = |pick: fn(&Row) -> u64| {
        rows.iter().map(|row| pick(row)).sum::<u64>() / (rows.len() as u64).max(1)
    };
    Line {
        mode: mode.into(),
        rounds: rows.len(),
        n: rows.iter().map(|row| row.n).sum(),
        p50_ns: at(50.0),
        p90_ns: at(90.0),
        p99_ns: at(99.0),
        p999_ns: at(99.9),
        max_ns: rows.iter().map(|row| row.rtt_ns.max).max().unwrap_or(0),
        lost: rows.iter().map(|row| row.lost + row.warmup_lost).sum(),
        vs_stock: None,
        vs_rival: None,
        net_rx_softirqs: mean(|row| row.witness.net_rx_softirqs),
        hard_irqs: mean(|row| row.witness.hard_irqs),
        cpu_percent: cpu_percent(rows),
        costs: Costs::of(rows),
        note: rows.iter().find_map(|row| row.note.clone()),
    }
}

fn cpu_percent(rows: &[&Row]) -> Option<f64> {
    let busy_ns = |cpu: &CpuUse| -> u64 {
        let of_one = cpu.cpus.values();
        of_one
            .map(|cpu| cpu.user_ns + cpu.system_ns + cpu.irq_ns + cpu.softirq_ns)
            .sum()
    };
    let read = |row: &&&Row| row.cpu.is_some();
    let rows: Vec<&&Row> = rows.iter().filter(read).collect();
    let span_ns: u64 = rows.iter().map(|row| row.span_ns).sum();
    let busy_ns: u64 = rows
        .iter()
        .filter_map(|row| row.cpu.as_ref())
        .map(busy_ns)
        .sum();
    (span_ns > 0).then(|| busy_ns as f64 * 100.0 / span_ns as f64)
}

/// The groups as lines of a terminal.
pub fn text(groups: &[Group], file: &ResultFile) -> String {
    let mut text = String::new();
    for group in groups {
        // Writing into a string does not fail.
        let _ = write!(text, "\n{}, {}{}", group.path, group.load, sent(group));
        text += &match group.traffic == NO_TRAFFIC {
            true => "\n".into(),
            false => round_trips(group),
        };
        let _ = writeln!(text, "{}", costs::heading());
        for line in &group.lines {
            let _ = writeln!(text, "{}", costs::line(&line.mode, &line.costs));
        }
        let notes = unique(group.lines.iter().filter_map(|line| line.note.as_ref()));
        for note in notes {
            let _ = writeln!(text, "  note: {note}");
        }
    }
    text += &rates::text(file);
    for cell in &file.not_run {
        let word = if cell.failed { "failed" } else { "cannot run" };
        let _ = writeln!(
            text,
            "{word}: {}, {}, {}: {}",
            cell.path, cell.load, cell.mode, cell.why
        );
    }
    if file.partial {
        let _ = writeln!(
            text,
            "partial: the run has not come to its end; the same command continues it"
        );
    }
    text
}

/// The mechanisms with their round trips.
fn round_trips(group: &Group) -> String {
    let stock = group.stock.as_deref().unwrap_or("the stock path");
    let rival = group.rival.as_deref().unwrap_or("none");
    let lines: Vec<String> = group.lines.iter().map(one).collect();
    format!(
        ": round trips in µs; p99 against {stock} and the best rival ({rival}), 95 % intervals\n{}\n{}\n",
        heading(),
        lines.join("\n")
    )
}

/// What was sent, where it was no ping.
fn sent(group: &Group) -> String {
    match (group.traffic.as_str(), group.rate_bps) {
        ("ping-pong", _) => String::new(),
        (NO_TRAFFIC, _) => ", no traffic".into(),
        (traffic, Some(rate)) => format!(
            ", {traffic} of {} bytes at {}{}",
            group.size_bytes,
            bits(rate as f64),
            arrivals(group)
        ),
        (traffic, None) => format!(", {traffic}, {} bytes", group.size_bytes),
    }
}

fn arrivals(group: &Group) -> String {
    let name = group.arrivals.as_ref();
    name.map_or(String::new(), |name| format!(", arrivals {name}"))
}

fn heading() -> String {
    format!(
        "  {:<19} {:>9} {:>9} {:>9} {:>9} {:>9} {:>4} {:>8} {:>8} {:>5}  {:<26} {}",
        "mechanism",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "lost",
        "NET_RX",
        "hardIRQ",
        "CPU %",
        "p99 vs stock",
        "p99 vs rival"
    )
}

fn one(line: &Line) -> String {
    let us = |ns: u64| micros(ns as f64);
    let cpu = line
        .cpu_percent
        .map_or("–".into(), |percent| format!("{percent:.0}"));
    format!(
        "  {:<19} {:>9} {:>9} {:>9} {:>9} {:>9} {:>4} {:>8} {:>8} {:>5}  {:<26} {}",
        line.mode,
        us(line.p50_ns),
        us(line.p90_ns),
        us(line.p99_ns),
        us(line.p999_ns),
        us(line.max_ns),
        line.lost,
        line.net_rx_softirqs,
        line.hard_irqs,
        cpu,
        words(line.vs_stock.map(|r| r.p99)),
        words(line.vs_rival.map(|r| r.p99))
    )
    .trim_end()
    .into()
}

/// A ratio with its interval, or what keeps it from being one.
fn words(ratio: Option<Ratio>) -> String {
    match ratio {
        None => "–".into(),
        Some(ratio) => match ratio.verdict {
            Verdict::Lower if ratio.low == 0.0 => format!(
                "{} (below {})",
                share(ratio.value, 1.0),
                share(ratio.high, 1.0)
            ),
            Verdict::Higher if ratio.high.is_infinite() => format!(
                "{} (above {})",
                share(ratio.value, 1.0),
                share(ratio.low, 1.0)
            ),
            Verdict::Lower | Verdict::Higher => format!(
                "{} ({} to {})",
                share(ratio.value, 1.0),
                share(ratio.low, 1.0),
                share(ratio.high, 1.0)
            ),
            verdict => verdict.words().into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;
    use crate::result::NotRun;

    #[test]
    fn mechanisms_stand_side_by_side_with_what_may_be_said() {
        let mut file = sample();
        file.not_run.push(NotRun {
            path: "nic".into(),
            load: "idle".into(),
            mode: "backlog-threads".into(),
            round: None,
            why: "the kernel was not booted with it".into(),
            failed: false,
        });
        let groups = groups(&file);
        assert_eq!(groups.len(), 2);
        let storm = &groups[1];
        assert_eq!(storm.rival.as_deref(), Some("threaded-fifo"));
        let kbp = storm.lines.iter().find(|l| l.mode == "kbp-busy").unwrap();
        let softirq = storm.lines.iter().find(|l| l.mode == "softirq").unwrap();
        assert_eq!((softirq.rounds, softirq.n), (2, 4_000));
        let vs_stock = kbp.vs_stock.unwrap().p99;
        assert_eq!(vs_stock.verdict, Verdict::Lower);
        assert!((0.015..0.018).contains(&vs_stock.value), "{vs_stock:?}");
        assert!(softirq.vs_stock.is_none());
        let text = text(&groups, &file);
        assert!(text.contains("1/60 ("), "{text}");
        assert!(
            text.contains("cannot run: nic, idle, backlog-threads: the kernel"),
            "{text}"
        );
    }

    /// Frames that come at other times are not set against each other, though size and rate are the same.
    #[test]
    fn other_arrivals_are_another_group() {
        let mut file = sample();
        file.rows.retain(|row| row.load == "idle" && row.round == 1);
        for row in &mut file.rows {
            row.traffic = "open-loop".into();
            row.rate_bps = Some(512_000);
        }
        let random = file.rows.to_vec();
        file.rows.extend(random.into_iter().map(|row| Row {
            arrivals: Some("poisson".into()),
            ..row
        }));
        let groups = groups(&file);
        assert_eq!(groups.len(), 2);
        assert!(groups
            .iter()
            .all(|group| group.lines.iter().all(|line| line.rounds == 1)));
        let text = text(&groups, &file);
        assert!(text.contains("at 512 kbit/s: round trips"), "{text}");
        assert!(
            text.contains("at 512 kbit/s, arrivals poisson: round trips"),
            "{text}"
        );
        let json = serde_json::to_value(&groups).unwrap();
        assert!(json[0].get("arrivals").is_none() && json[1]["arrivals"] == "poisson");
    }

    /// Without traffic there are no round trips to set against each other, and the costs are there.
    #[test]
    fn without_traffic_there_are_costs_only() {
        let mut file = sample();
        file.rows.retain(|row| row.load == "idle" && row.round == 1);
        for row in &mut file.rows {
            row.traffic = NO_TRAFFIC.into();
            row.histogram_ns.clear();
            row.n = 0;
        }
        let groups = groups(&file);
        assert_eq!((groups.len(), groups[0].lines.len()), (1, 4));
        let text = text(&groups, &file);
        assert!(
            text.contains("nic, idle, no traffic\n  what it cost"),
            "{text}"
        );
        assert!(!text.contains("p99"), "{text}");
    }

    #[test]
    fn the_same_twice_shows_no_difference() {
        let mut file = sample();
        file.rows
            .retain(|row| row.mode == "softirq" && row.load == "idle");
        file.rows[0].histogram_ns = file.rows[1].histogram_ns.clone();
        file.rows[0].mode = "threaded".into();
        let text = text(&groups(&file), &file);
        assert!(text.contains("no difference shown"), "{text}");
    }
}
