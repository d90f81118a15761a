// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The highest rates without loss of a result as lines: for each path, load and length of a frame the mechanisms side
//! by side.
//!
//! A rate is known to the resolution of its search, and rounds differ; mechanisms whose rounds do not lie further apart
//! than that show no difference.
//!
//! Not here: the search ([`crate::tester::throughput`]), and round trips ([`super::table`]).

use std::fmt::Write;

use serde::Serialize;

use super::table::{place, unique, Place, STOCK};
use crate::report::text::{bits, count, ratio};
use crate::result::{ResultFile, Row, Throughput};

/// What the rounds of a mechanism found.
#[derive(Debug, Clone, Serialize)]
pub struct Rates {
    /// Frames a second of each round.
    pub each: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// The lowest that the rate may be: that of the lowest round.
    pub low: f64,
    /// The highest that it may be: that of the highest round, and the resolution.
    pub high: f64,
    /// Trials of all rounds.
    pub trials: u64,
    /// Whether in a round the tester, and not the path, set the limit: then `high` is not known.
    pub limited_by_tester: bool,
}

/// What may be said of two mechanisms' rates, first by second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RateRatio {
    /// Of the means.
    pub value: f64,
    /// Lowest and highest that the rounds and the resolution leave possible; not a confidence interval. Infinite, or 0,
    /// where the tester set a limit.
    pub range: [f64; 2],
    /// Whether that range is on one side of 1, and both have several rounds.
    pub is_shown: bool,
    /// Whether the tester set the limit of one of them, which then is a lower bound.
    pub is_bounded: bool,
    /// Whether one of them has a single round, so that nothing is known of their scatter.
    pub is_single: bool,
}

impl Rates {
    /// Those of rows that are searches; `None` without one.
    pub fn of(rows: &[&Row]) -> Option<Self> {
        let found: Vec<Throughput> = rows.iter().filter_map(|row| row.throughput).collect();
        if found.is_empty() {
            return None;
        }
        let each: Vec<f64> = found.iter().map(|one| one.frames_per_s).collect();
        let room = |one: &Throughput| one.resolution_frames_per_s.unwrap_or(0.0);
        let highest = found.iter().map(|one| one.frames_per_s + room(one));
        Some(Self {
            mean: each.iter().sum::<f64>() / each.len() as f64,
            low: each.iter().copied().fold(f64::INFINITY, f64::min),
            high: highest.fold(0.0, f64::max),
            trials: found.iter().map(|one| u64::from(one.trials)).sum(),
            limited_by_tester: found.iter().any(|one| one.limited_by_tester),
            each,
        })
    }

    /// By those of another mechanism; `None` where that one carries nothing without loss.
    pub fn by(&self, other: &Self) -> Option<RateRatio> {
        if other.low <= 0.0 {
            return None;
        }
        let lowest = match other.limited_by_tester {
            true => 0.0,
            false => self.low / other.high,
        };
        let highest = match self.limited_by_tester {
            true => f64::INFINITY,
            false => self.high / other.low,
        };
        let is_single = self.each.len().min(other.each.len()) < 2;
        Some(RateRatio {
            value: self.mean / other.mean,
            range: [lowest, highest],
            is_shown: !is_single && (lowest > 1.0 || highest < 1.0),
            is_bounded: self.limited_by_tester || other.limited_by_tester,
            is_single,
        })
    }

    /// What set the limit.
    pub fn limit(&self) -> &'static str {
        match self.limited_by_tester {
            true => "the tester: a lower bound",
            false => "the path",
        }
    }
}

impl RateRatio {
    /// In words.
    pub fn words(&self) -> String {
        let share = |value: f64| ratio(value, 1.0);
        let [lowest, highest] = self.range;
        let decides = lowest > 1.0 || highest < 1.0;
        match (self.is_bounded, decides) {
            (true, false) => "the tester's limit: nothing to compare".into(),
            (true, true) if lowest > 1.0 => format!("at least {}", share(lowest)),
            (true, true) => format!("at most {}", share(highest)),
            (false, _) if self.is_single => format!("{}, one round", share(self.value)),
            (false, false) => "no difference shown".into(),
            (false, true) => format!(
                "{} ({} to {})",
                share(self.value),
                share(lowest),
                share(highest)
            ),
        }
    }
}

/// The mechanisms with frames of one length.
#[derive(Debug, Clone, Serialize)]
pub struct RateGroup {
    /// The path.
    pub path: String,
    /// The load.
    pub load: String,
    /// Length of a frame.
    pub size_bytes: u64,
    /// The mechanism that ratios are to.
    pub stock: Option<String>,
    /// Each mechanism with its rates, and those by the stock path's.
    pub lines: Vec<(String, Rates, Option<RateRatio>)>,
}

/// The groups of a result, in the order in which they were measured.
pub fn groups(file: &ResultFile) -> Vec<RateGroup> {
    let rows: Vec<&Row> = file
        .rows
        .iter()
        .filter(|row| row.throughput.is_some())
        .collect();
    let places = unique(rows.iter().map(|row| place(row)));
    places.iter().map(|of| group(of, &rows)).collect()
}

fn group(of: &Place, rows: &[&Row]) -> RateGroup {
    let here: Vec<&Row> = rows
        .iter()
        .filter(|row| place(row) == *of)
        .copied()
        .collect();
    let modes = unique(here.iter().map(|row| row.mode.as_str()));
    let stock = STOCK.into_iter().find(|mode| modes.contains(mode));
    let rates = |mode: &str| {
        let rows: Vec<&Row> = here
            .iter()
            .filter(|row| row.mode == mode)
            .copied()
            .collect();
        Rates::of(&rows)
    };
    let line = |mode: &&str| {
        let found = rates(mode)?;
        let other = stock.filter(|stock| stock != mode).and_then(rates);
        let by = other.and_then(|other| found.by(&other));
        Some(((*mode).to_owned(), found, by))
    };
    RateGroup {
        path: of.0.into(),
        load: of.1.into(),
        size_bytes: of.3,
        stock: stock.map(String::from),
        lines: modes.iter().filter_map(line).collect(),
    }
}

/// The groups as lines of a terminal; empty without any.
pub fn text(file: &ResultFile) -> String {
    let mut text = String::new();
    for group in groups(file) {
        // Writing into a string does not fail.
        let _ = writeln!(
            text,
            "\n{}, {}, {} bytes: highest rate without loss (RFC 2544), mean of the rounds\n  {:<19} {:>10} {:>14} {:>6}  {:<26} {:<26} rounds",
            group.path, group.load, group.size_bytes, "mechanism", "frames/s", "rate", "trials", "vs stock", "limit"
        );
        for (mode, rates, by) in &group.lines {
            let each: Vec<String> = rates
                .each
                .iter()
                .map(|one| count(one.round() as u64))
                .collect();
            let _ = writeln!(
                text,
                "  {mode:<19} {:>10} {:>14} {:>6}  {:<26} {:<26} {}",
                count(rates.mean.round() as u64),
                bits(rates.mean * group.size_bytes as f64 * 8.0),
                rates.trials,
                by.map_or("–".into(), |by| by.words()),
                rates.limit(),
                each.join(", ")
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    fn file(rates: &[(&str, f64, bool)]) -> ResultFile {
        let mut file = sample();
        let row = file.rows[0].clone();
        let of = |(mode, frames_per_s, limited_by_tester): &(&str, f64, bool)| Row {
            mode: (*mode).into(),
            traffic: "rfc2544".into(),
            size_bytes: 512,
            throughput: Some(Throughput {
                frames_per_s: *frames_per_s,
                resolution_frames_per_s: Some(500.0),
                trials: 9,
                limited_by_tester: *limited_by_tester,
                ..Throughput::default()
            }),
            ..row.clone()
        };
        file.rows = rates.iter().map(of).collect();
        file
    }

    #[test]
    fn what_the_resolution_hides_is_no_difference() {
        let file = file(&[
            ("softirq", 10_000.0, false),
            ("kbp-busy", 20_000.0, false),
            ("threaded-fifo", 10_400.0, false),
            ("threaded", 15_000.0, true),
            ("defer-irqs", 9_000.0, true),
            ("busy-read", 15_000.0, false),
            ("softirq", 10_200.0, false),
            ("kbp-busy", 20_000.0, false),
            ("threaded-fifo", 10_400.0, false),
        ]);
        let text = text(&file);
        let line = |mode: &str| text.lines().find(|l| l.contains(mode)).unwrap().to_owned();
        assert!(
            line("kbp-busy").contains("1.98 × (1.87 × to 2.05 ×)"),
            "{text}"
        );
        assert!(
            line("threaded-fifo").contains("no difference shown"),
            "{text}"
        );
        assert!(line("threaded ").contains("at least 1.40 ×"), "{text}");
        assert!(line("defer-irqs").contains("nothing to compare"), "{text}");
        assert!(line("busy-read").contains("1.49 ×, one round"), "{text}");
        assert!(
            line("softirq").contains("10\u{202f}000, 10\u{202f}200"),
            "{text}"
        );
        assert!(
            super::super::table::groups(&file).is_empty(),
            "no round trips of pings"
        );
    }

    #[test]
    fn a_path_that_carries_nothing_has_no_ratio() {
        let found = groups(&file(&[("softirq", 0.0, false), ("kbp-busy", 9.0, false)]));
        assert!(found[0].lines[1].2.is_none());
    }
}
