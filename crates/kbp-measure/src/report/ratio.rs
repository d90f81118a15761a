// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How two cells compare: the ratio of a percentile, and what may be said of it.
//!
//! The one place where the report meets [`crate::stats`]. Not here: how a ratio is printed.

use serde::Serialize;

use super::cell::{Cell, Group};
use crate::result::RttNs;
use crate::stats::{self, Verdict};

/// A percentile that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Percentile {
    /// Median.
    P50,
    /// 99th percentile.
    P99,
}

impl Percentile {
    fn percent(self) -> f64 {
        match self {
            Self::P50 => 50.0,
            Self::P99 => 99.0,
        }
    }

    /// This percentile, nanoseconds.
    pub fn of(self, rtt: &RttNs) -> u64 {
        match self {
            Self::P50 => rtt.p50,
            Self::P99 => rtt.p99,
        }
    }
}

/// A ratio of percentiles, and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// The ratio of the figures that the tables show.
    pub value: f64,
    /// Lower end of the 95 % interval; `None` where too few round trips leave it open.
    pub low: Option<f64>,
    /// Upper end, likewise.
    pub high: Option<f64>,
    /// What the interval shows; `None` without histograms.
    pub verdict: Option<Verdict>,
}

impl Compared {
    /// Whether the first is lower (`Some(true)`), higher (`Some(false)`), or the data do not tell.
    /// Without an interval the ratio itself decides.
    pub fn is_lower(&self) -> Option<bool> {
        match self.verdict {
            Some(Verdict::Lower) => Some(true),
            Some(Verdict::Higher) => Some(false),
            Some(Verdict::NoDifferenceShown | Verdict::TooFew) => None,
            None => (self.value != 1.0).then_some(self.value < 1.0),
        }
    }
}

/// The ratio of a percentile of `ours` to that of `theirs`; `None` when one of them has no round
/// trips.
pub fn compare(ours: &Cell, theirs: &Cell, percentile: Percentile) -> Option<Compared> {
    let (a, b) = (percentile.of(&ours.rtt_ns), percentile.of(&theirs.rtt_ns));
    if a == 0 || b == 0 {
        return None;
    }
    let shown = stats::ratio(&ours.rows, &theirs.rows, percentile.percent());
    let low = shown.map(|ratio| ratio.low).filter(|low| *low > 0.0);
    let high = shown
        .map(|ratio| ratio.high)
        .filter(|high| high.is_finite());
    Some(Compared {
        value: a as f64 / b as f64,
        low,
        high,
        verdict: shown.map(|ratio| ratio.verdict),
    })
}

/// One of our mechanisms against the others of its group, at p99.
pub struct Contest<'a> {
    /// Where.
    pub group: &'a Group<'a>,
    /// Our mechanism.
    pub ours: &'a Cell<'a>,
    /// Against the stock path.
    pub stock: Option<(&'a Cell<'a>, Compared)>,
    /// Against the best of the others, the stock path among them.
    pub rival: Option<(&'a Cell<'a>, Compared)>,
}

/// Every contest of these groups.
pub fn contests<'a>(groups: &'a [Group<'a>]) -> Vec<Contest<'a>> {
    let mut contests = Vec::new();
    for group in groups.iter().filter(|group| group.is_headline()) {
        for ours in group.ours().filter(|cell| cell.has_round_trips()) {
            let against = |theirs: Option<&'a Cell<'a>>| {
                theirs.and_then(|cell| Some((cell, compare(ours, cell, Percentile::P99)?)))
            };
            contests.push(Contest {
                group,
                ours,
                stock: against(group.stock()),
                rival: against(group.best_rival()),
            });
        }
    }
    contests
}
