// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Do two testers see the same path? Our ping-pong and sockperf's, in turn, round after round.
//!
//! Both ask again when the answer is there, because that is all that sockperf's ping-pong does.
//! What is compared is the median of the rounds, so that one disturbed round does not decide;
//! the spread of the rounds says how much of a difference the path itself makes.
//!
//! Not here: which of the two is right, if they differ.

use std::net::SocketAddr;

use super::sockperf::Sockperf;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::place::{run_at, Place};
use crate::result::{Row, RttNs};
use crate::tester::pingpong::{run_client, ClientConfig, EchoServer, Stop};

/// Shortest pause between two of our pings, nanoseconds: with it the next ping follows the
/// answer, as sockperf's does.
const PERIOD_NS: u64 = 1_000;

/// What sockperf leaves out of a run, seconds, rounded.
const LEFT_OUT_S: u32 = 1;

/// A comparison to make.
#[derive(Debug, Clone)]
pub struct Agree {
    /// Address that both servers serve, one after the other.
    pub server: SocketAddr,
    /// Where both servers run.
    pub server_place: Place,
    /// Where both clients run.
    pub client_place: Place,
    /// UDP payload, bytes.
    pub payload_len: usize,
    /// Rounds of each.
    pub rounds: u32,
    /// Length of a round, seconds.
    pub seconds: u32,
    /// Seed of our ping-pong.
    pub seed: u64,
    /// How far they may differ.
    pub bounds: Bounds,
}

/// How far two testers may differ, percent of the smaller figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// At the median.
    pub p50_percent: f64,
    /// At the 99th percentile.
    pub p99_percent: f64,
}

/// One percentile as both saw it.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Figure {
    /// Median of our rounds, nanoseconds.
    pub ours_ns: u64,
    /// Median of sockperf's rounds, nanoseconds.
    pub theirs_ns: u64,
    /// Ours less theirs, percent of the smaller.
    pub difference_percent: f64,
    /// How far sockperf's own rounds lie apart, percent of the smallest.
    pub spread_percent: f64,
    /// The bound.
    pub bound_percent: f64,
}

impl Figure {
    fn new(ours_ns: &[u64], theirs_ns: &[u64], bound_percent: f64) -> Self {
        let (ours, theirs) = (median(ours_ns), median(theirs_ns));
        let smaller = ours.min(theirs).max(1) as f64;
        let (low, high) = (theirs_ns.iter().min(), theirs_ns.iter().max());
        let (low, high) = (low.copied().unwrap_or(0), high.copied().unwrap_or(0));
        Self {
            ours_ns: ours,
            theirs_ns: theirs,
            difference_percent: (ours as f64 - theirs as f64) / smaller * 100.0,
            spread_percent: (high - low) as f64 / low.max(1) as f64 * 100.0,
            bound_percent,
        }
    }

    /// Whether the two differ by no more than the bound.
    pub fn is_met(&self) -> bool {
        self.difference_percent.abs() <= self.bound_percent
    }
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// At the median.
    pub p50: Figure,
    /// At the 99th percentile.
    pub p99: Figure,
    /// The rounds of both, in the order in which they were made.
    pub rows: Vec<Row>,
}

impl Agreement {
    /// Whether they agree.
    pub fn is_met(&self) -> bool {
        self.p50.is_met() && self.p99.is_met()
    }
}

impl Agree {
    /// Runs all rounds; `on_row` hears of each.
    ///
    /// # Errors
    /// When an end can't be placed or reached, or an interrupt came.
    pub fn run(&self, mut on_row: impl FnMut(&Row)) -> Result<Agreement> {
        if self.rounds == 0 || self.seconds == 0 {
            return Err(Error::Invalid("rounds and seconds: at least 1".into()));
        }
        let mut rows: Vec<Row> = Vec::new();
        for round in 1..=self.rounds {
            for is_ours in order(round) {
                let row = if is_ours {
                    self.ours()?
                } else {
                    self.theirs()?
                };
                let row = Row { round, ..row };
                on_row(&row);
                rows.push(row);
            }
        }
        Ok(judge(rows, self.bounds))
    }

    fn ours(&self) -> Result<Row> {
        let config = ClientConfig {
            payload_len: self.payload_len,
            period_ns: PERIOD_NS,
            jitter_percent: 0,
            spin: true,
            stop: Stop::AfterNs(u64::from(self.seconds) * 1_000_000_000),
            ..ClientConfig::new(self.server, self.seed)
        };
        let there = Place {
            netns: self.server_place.netns.clone(),
            ..Place::default()
        };
        let server = EchoServer::start(self.server, self.server_place.clone())?;
        let measured = run_at(&self.client_place, || run_client(&config, || Ok(())));
        // The server is woken for its end from its own namespace.
        let echoed = run_at(&there, || server.stop());
        let report = measured?;
        echoed?;
        if interrupt::requested() {
            return Err(Error::Invalid("interrupted before the end".into()));
        }
        let row = Row::of_client("softirq", "idle", 1, &report);
        Ok(Row {
            size_bytes: self.payload_len as u64,
            ..row
        })
    }

    fn theirs(&self) -> Result<Row> {
        let sockperf = Sockperf {
            server: self.server,
            server_place: self.server_place.clone(),
            client_place: self.client_place.clone(),
            payload_len: self.payload_len,
            seconds: self.seconds + LEFT_OUT_S,
        };
        let row = sockperf.run(|| Ok(()))?.row(self.payload_len);
        Ok(Row {
            mode: "softirq".into(),
            load: "idle".into(),
            ..row
        })
    }
}

/// Who goes first (ours: true) changes, so that a path that drifts favours neither.
fn order(round: u32) -> [bool; 2] {
    let ours_first = round % 2 == 1;
    [ours_first, !ours_first]
}

fn judge(rows: Vec<Row>, bounds: Bounds) -> Agreement {
    let of = |ours: bool, pick: fn(&RttNs) -> u64| -> Vec<u64> {
        let rows = rows.iter();
        let chosen = rows.filter(|row| (row.tool == crate::result::TOOL_KBP) == ours);
        chosen.map(|row| pick(&row.rtt_ns)).collect()
    };
    let figure =
        |pick: fn(&RttNs) -> u64, bound| Figure::new(&of(true, pick), &of(false, pick), bound);
    Agreement {
        p50: figure(|rtt| rtt.p50, bounds.p50_percent),
        p99: figure(|rtt| rtt.p99, bounds.p99_percent),
        rows,
    }
}

/// The middle value; of an even number of them, the lower one of the middle two.
fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted
        .get(sorted.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tool: &str, p50: u64, p99: u64) -> Row {
        Row {
            tool: tool.into(),
            rtt_ns: RttNs {
                p50,
                p99,
                ..RttNs::default()
            },
            ..Row::default()
        }
    }

    #[test]
    fn the_bounds_decide_in_both_directions() {
        let bounds = Bounds {
            p50_percent: 10.0,
            p99_percent: 30.0,
        };
        let judged = |ours: (u64, u64)| {
            let rows = vec![
                row("kbp", ours.0, ours.1),
                row("sockperf", 10_000, 20_000),
                row("sockperf", 10_000, 22_000),
                row("kbp", ours.0, ours.1),
                row("kbp", 99_000, 99_000),
                row("sockperf", 500, 20_000),
            ];
            judge(rows, bounds)
        };
        assert!(judged((11_000, 26_000)).is_met());
        assert!(judged((9_100, 16_000)).is_met());
        assert!(!judged((11_001, 20_000)).is_met());
        assert!(!judged((9_000, 20_000)).is_met());
        assert!(!judged((10_000, 26_001)).is_met());
        assert_eq!(
            [1, 2, 3].map(order).concat(),
            [true, false, false, true, true, false]
        );
        let p99 = judged((10_000, 26_000)).p99;
        assert_eq!(
            (
                p99.ours_ns,
                p99.theirs_ns,
                p99.difference_percent,
                p99.spread_percent
            ),
            (26_000, 20_000, 30.0, 10.0)
        );
    }
}
