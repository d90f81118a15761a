// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo's bars: what a result has to show, judged from the file alone.
//!
//! Where softirq has two rounds, its figure is their mean. A `kbp-busy` or
//! `threaded-fifo` figure is the mean of its rounds too, except the maximum of
//! `kbp-busy`, which is the worst one.
//! Not here: printing.

use serde::Serialize;

use crate::result::{ResultFile, Row, RttNs, TOOL_KBP};

/// One bar and how it was met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bar {
    /// What is demanded.
    pub demand: String,
    /// What was found.
    pub found: String,
    /// Whether it is met.
    pub pass: bool,
}

/// A ratio that `kbp-busy` has to keep against another mode.
struct RatioBar {
    load: &'static str,
    figure: Figure,
    against: &'static str,
    /// `limit_num / limit_den` is the largest ratio allowed.
    limit_num: u32,
    limit_den: u32,
}

/// A figure of a row that a bar is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Median.
    P50,
    /// 99th percentile.
    P99,
    /// Longest round trip.
    Max,
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Max => "max",
        }
    }

    fn of(self, rtt: &RttNs) -> f64 {
        match self {
            Self::P50 => rtt.p50 as f64,
            Self::P99 => rtt.p99 as f64,
            Self::Max => rtt.max as f64,
        }
    }
}

const KBP: &str = "kbp-busy";

const RATIO_BARS: [RatioBar; 5] = [
    RatioBar {
        load: "idle",
        figure: Figure::P50,
        against: "softirq",
        limit_num: 102,
        limit_den: 100,
    },
    RatioBar {
        load: "storm",
        figure: Figure::P50,
        against: "softirq",
        limit_num: 1,
        limit_den: 4,
    },
    RatioBar {
        load: "storm",
        figure: Figure::P99,
        against: "softirq",
        limit_num: 1,
        limit_den: 30,
    },
    RatioBar {
        load: "storm",
        figure: Figure::Max,
        against: "softirq",
        limit_num: 1,
        limit_den: 40,
    },
    RatioBar {
        load: "storm",
        figure: Figure::Max,
        against: "threaded-fifo",
        limit_num: 115,
        limit_den: 100,
    },
];

/// Largest distance of the same idle p50 in two runs, percent.
const REPEAT_PERCENT_MAX: f64 = 5.0;

/// Judges the demo's result; with `repeated`, also whether the two agree.
pub fn check_demo(file: &ResultFile, repeated: Option<&ResultFile>) -> Vec<Bar> {
    let mut bars = vec![both_softirq_rounds(file)];
    bars.extend(RATIO_BARS.iter().map(|bar| ratio(file, bar)));
    bars.extend(witnesses(file));
    bars.push(nothing_lost(file));
    if let Some(repeated) = repeated {
        bars.extend(repeats(file, repeated));
    }
    bars
}

fn both_softirq_rounds(file: &ResultFile) -> Bar {
    let rounds = |load| file.rows_of(load, "softirq", TOOL_KBP).count();
    let (idle, storm) = (rounds("idle"), rounds("storm"));
    Bar {
        demand: "softirq was measured first and again last, in both loads".into(),
        found: format!("{idle} rounds idle, {storm} rounds storm"),
        pass: idle >= 2 && storm >= 2,
    }
}

/// The mean of a figure over the rounds of a mode, nanoseconds; `None` without a row.
pub fn mean_figure(file: &ResultFile, load: &str, mode: &str, figure: Figure) -> Option<f64> {
    let figures = figures(file, load, mode, figure);
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

fn figures(file: &ResultFile, load: &str, mode: &str, figure: Figure) -> Vec<f64> {
    file.rows_of(load, mode, TOOL_KBP)
        .map(|row| figure.of(&row.rtt_ns))
        .collect()
}

fn our_figure(file: &ResultFile, load: &str, figure: Figure) -> Option<f64> {
    match figure {
        Figure::Max => figures(file, load, KBP, figure)
            .into_iter()
            .reduce(f64::max),
        _ => mean_figure(file, load, KBP, figure),
    }
}

fn ratio(file: &ResultFile, bar: &RatioBar) -> Bar {
    let RatioBar {
        load,
        figure,
        against,
        limit_num,
        limit_den,
    } = bar;
    let name = figure.name();
    let limit = f64::from(*limit_num) / f64::from(*limit_den);
    let limit_text = if *limit_num == 1 {
        format!("1/{limit_den}")
    } else {
        format!("{limit:.2}")
    };
    let demand = format!("{load}: {name} of {KBP} ≤ {limit_text} × {against}");
    let ours = our_figure(file, load, *figure);
    let theirs = mean_figure(file, load, against, *figure);
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        let missing = if ours.is_none() { KBP } else { against };
        return Bar {
            demand,
            found: format!("there is no {load} row of {missing}"),
            pass: false,
        };
    };
    let found = format!(
        "{:.1} µs / {:.1} µs = {:.3} (limit {limit:.3})",
        ours / 1e3,
        theirs / 1e3,
        ours / theirs
    );
    Bar {
        demand,
        found,
        pass: theirs > 0.0 && ours <= limit * theirs,
    }
}

fn witnesses(file: &ResultFile) -> [Bar; 2] {
    let rows: Vec<&Row> = file.rows_of("idle", KBP, TOOL_KBP).collect();
    let bar = |what: &str, counts: Vec<u64>| Bar {
        demand: format!("idle: {what} in the {KBP} row = 0"),
        found: if counts.is_empty() {
            "there is no such row".into()
        } else {
            format!("{counts:?}")
        },
        pass: !counts.is_empty() && counts.iter().all(|&count| count == 0),
    };
    [
        bar(
            "NET_RX softirqs",
            rows.iter().map(|row| row.witness.net_rx_softirqs).collect(),
        ),
        bar(
            "receive interrupts",
            rows.iter().map(|row| row.witness.hard_irqs).collect(),
        ),
    ]
}

fn nothing_lost(file: &ResultFile) -> Bar {
    let rows: Vec<&Row> = file
        .rows
        .iter()
        .filter(|row| row.mode.starts_with("kbp-"))
        .collect();
    let answered: u64 = rows.iter().map(|row| row.n).sum();
    let lost: u64 = rows.iter().map(|row| row.lost + row.warmup_lost).sum();
    Bar {
        demand: "nothing lost in any kbp row, warm-up included".into(),
        found: format!("{lost} lost, {answered} answered in {} rows", rows.len()),
        pass: answered > 0 && lost == 0,
    }
}

fn repeats(first: &ResultFile, second: &ResultFile) -> Vec<Bar> {
    let mut bars = vec![Bar {
        demand: "both results were made on the same clock and kernel".into(),
        found: format!(
            "{} {} and {} {}",
            first.clock, first.kernel, second.clock, second.kernel
        ),
        pass: first.clock == second.clock && first.kernel == second.kernel,
    }];
    let idle = |row: &&Row| row.load == "idle" && row.tool == TOOL_KBP;
    for row in first.rows.iter().filter(idle) {
        let other = second
            .rows_of("idle", &row.mode, TOOL_KBP)
            .find(|other| other.round == row.round);
        bars.push(repeat(row, other));
    }
    bars
}

fn repeat(row: &Row, other: Option<&Row>) -> Bar {
    let demand = format!(
        "idle: p50 of {} (round {}) repeats within {REPEAT_PERCENT_MAX} %",
        row.mode, row.round
    );
    let Some(other) = other else {
        return Bar {
            demand,
            found: "the second result has no such row".into(),
            pass: false,
        };
    };
    let (a, b) = (row.rtt_ns.p50 as f64, other.rtt_ns.p50 as f64);
    let percent = (a - b).abs() / a.min(b).max(1.0) * 100.0;
    Bar {
        demand,
        found: format!("{:.1} µs and {:.1} µs: {percent:.1} %", a / 1e3, b / 1e3),
        pass: percent <= REPEAT_PERCENT_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    fn failed(bars: &[Bar]) -> Vec<&str> {
        bars.iter()
            .filter(|bar| !bar.pass)
            .map(|bar| bar.demand.as_str())
            .collect()
    }

    fn row<'a>(file: &'a mut ResultFile, load: &str, mode: &str) -> &'a mut Row {
        file.rows
            .iter_mut()
            .find(|row| row.load == load && row.mode == mode)
            .unwrap()
    }

    #[test]
    fn a_good_result_meets_every_bar() {
        let file = sample();
        let bars = check_demo(&file, Some(&file));
        assert_eq!(failed(&bars), Vec::<&str>::new(), "{bars:#?}");
        assert_eq!(bars.len(), 1 + 5 + 2 + 1 + 1 + 5);
    }

    /// Each change breaks one bar, and that one only.
    #[test]
    fn each_bar_can_fail_alone() {
        type Change = fn(&mut ResultFile);
        let cases: [(Change, &str); 9] = [
            (
                |f| drop(f.rows.pop()),
                "softirq was measured first and again",
            ),
            (
                |f| row(f, "idle", KBP).rtt_ns.p50 = 70_000,
                "idle: p50 of kbp-busy",
            ),
            (
                |f| row(f, "storm", KBP).rtt_ns.p50 = 5_000_000,
                "storm: p50 of kbp-busy",
            ),
            (
                |f| row(f, "storm", KBP).rtt_ns.p99 = 900_000,
                "storm: p99 of kbp-busy",
            ),
            (
                |f| row(f, "storm", "threaded-fifo").rtt_ns.max = 300_000,
                "storm: max of kbp-busy ≤ 1.15 × threaded-fifo",
            ),
            (
                |f| row(f, "idle", KBP).witness.net_rx_softirqs = 1,
                "idle: NET_RX softirqs",
            ),
            (
                |f| row(f, "idle", KBP).witness.hard_irqs = 1,
                "idle: receive interrupts",
            ),
            (|f| row(f, "storm", KBP).lost = 1, "nothing lost"),
            (|f| row(f, "storm", KBP).warmup_lost = 1, "nothing lost"),
        ];
        for (change, demand) in cases {
            let mut file = sample();
            change(&mut file);
            let bars = check_demo(&file, None);
            let failed = failed(&bars);
            assert_eq!(failed.len(), 1, "{demand}: {failed:?}");
            assert!(failed[0].starts_with(demand), "{demand}: {failed:?}");
        }
    }

    #[test]
    fn the_mean_of_both_softirq_rounds_counts() {
        let mut file = sample();
        let ours = row(&mut file, "idle", KBP).rtt_ns.p50;
        // One round alone would fail, their mean is exactly ours.
        for row in file
            .rows
            .iter_mut()
            .filter(|r| r.load == "idle" && r.mode == "softirq")
        {
            row.rtt_ns.p50 = if row.round == 1 {
                ours - 9_000
            } else {
                ours + 9_000
            };
        }
        assert_eq!(failed(&check_demo(&file, None)), Vec::<&str>::new());
    }

    #[test]
    fn a_missing_mode_fails_and_says_so() {
        let mut file = sample();
        file.rows.retain(|row| row.mode != KBP);
        let bars = check_demo(&file, None);
        assert_eq!(failed(&bars).len(), 5 + 2 + 1);
        assert!(
            bars[1].found.contains("no idle row of kbp-busy"),
            "{}",
            bars[1].found
        );
    }

    #[test]
    fn two_runs_that_differ_fail() {
        let (first, mut second) = (sample(), sample());
        row(&mut second, "idle", "threaded").rtt_ns.p50 = first.rows[1].rtt_ns.p50 * 107 / 100;
        let bars = check_demo(&first, Some(&second));
        assert_eq!(
            failed(&bars),
            ["idle: p50 of threaded (round 1) repeats within 5 %"]
        );
        second.clock = "real".into();
        assert_eq!(failed(&check_demo(&first, Some(&second))).len(), 2);
    }
}
