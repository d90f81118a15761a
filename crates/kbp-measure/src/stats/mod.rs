// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What may be said of two sets of round trips: the ratio of a percentile, its 95 % interval, and a verdict.
//!
//! A difference that the interval does not show is none: [`Verdict::NoDifferenceShown`]. Everything here is pure and
//! follows from the rows and a seed.
//!
//! Not here: where rows come from, and how a ratio is printed in a page ([`crate::report`]).

mod draw;
mod rounds;

use serde::Serialize;

use crate::result::Row;
use crate::rng::SplitMix64;
pub(crate) use rounds::rank;
use rounds::Rounds;

/// Resamples behind an interval.
const RESAMPLES: usize = 1_000;
/// Share of the resamples below the interval, and above it.
const TAIL: f64 = 0.025;
/// Histogram cells have three digits: a figure may be off by this share of itself.
const CELL: f64 = 0.001;
/// Seed of the resamples: the same rows have the same interval everywhere.
const SEED: u64 = 0x6b62_7020_7261_7469;

/// What a ratio shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is below 1.
    Lower,
    /// The whole interval is above 1.
    Higher,
    /// The interval holds 1: the difference is inside the noise.
    NoDifferenceShown,
    /// There are too few round trips to bound the ratio where that would tell.
    TooFew,
}

impl Verdict {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Higher => "higher",
            Self::NoDifferenceShown => "no difference shown",
            Self::TooFew => "too few round trips to say",
        }
    }

    fn of(low: f64, high: f64) -> Self {
        if high < 1.0 {
            Self::Lower
        } else if low > 1.0 {
            Self::Higher
        } else if low > 0.0 && high.is_finite() {
            Self::NoDifferenceShown
        } else {
            Self::TooFew
        }
    }
}

/// The ratio of a percentile of two sets of rows, first by second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio of the percentiles as measured.
    pub value: f64,
    /// Lower end of the 95 % interval; 0 where there are too few round trips to bound it.
    pub low: f64,
    /// Upper end; infinite where there are too few (JSON: `null`).
    pub high: f64,
    /// What it shows.
    pub verdict: Verdict,
}

/// The ratio of `percentile` (0 to 100) of the round trips of `a` to that of `b`.
///
/// The rows of a side are the rounds of one cell. `None` when a side has no histogram with round trips in it.
///
/// Method: the bootstrap percentile interval (Efron, Tibshirani: *An Introduction to the Bootstrap*, 1993, chapter 13)
/// of the logarithm of the ratio, in two levels where a side has several rounds (Davison, Hinkley: *Bootstrap Methods
/// and their Application*, 1997, section 3.8): rounds are drawn with replacement, then round trips from the drawn
/// ones. Pings of one round share what the machine did in that round, so that drawing pings alone would make the
/// interval too narrow. Drawn from R rounds, the scatter between rounds comes out too small by (R − 1) / R in the
/// variance; it is enlarged by that, and by what Student's t exceeds the normal quantile for so few degrees of freedom
/// (two rounds a side: 2.2 times), since the scatter itself is known from a few rounds only. With one round nothing is known about the scatter between rounds and the interval
/// is narrower than the truth if there is any.
///
/// Lost pings are in no percentile: read `lost` beside it.
pub fn ratio(a: &[&Row], b: &[&Row], percentile: f64) -> Option<Ratio> {
    let (a, b) = (Rounds::of(a)?, Rounds::of(b)?);
    let share = (percentile / 100.0).clamp(0.0, 1.0);
    let value = a.quantile(share) / b.quantile(share);
    let mut rng = SplitMix64::new(SEED);
    let widen = student_over_normal(a.freedom() + b.freedom());
    let mut drawn: Vec<f64> = (0..RESAMPLES)
        .map(|_| a.draw(share, widen, &mut rng) - b.draw(share, widen, &mut rng))
        .collect();
    drawn.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| drawn[(share * (RESAMPLES - 1) as f64).round() as usize].exp();
    // Each end needs one side of each percentile: how high the first can be, and how low the second.
    let low = match a.bounds_below(share, TAIL) && b.bounds_above(share, TAIL) {
        true => at(TAIL) * (1.0 - CELL),
        false => 0.0,
    };
    let high = match a.bounds_above(share, TAIL) && b.bounds_below(share, TAIL) {
        true => at(1.0 - TAIL) * (1.0 + CELL),
        false => f64::INFINITY,
    };
    Some(Ratio {
        value,
        low,
        high,
        verdict: Verdict::of(low, high),
    })
}

/// The 97.5 % quantile of Student's t with so many degrees of freedom, over that of the normal distribution. Without any,
/// no scatter between rounds is known and none is widened.
fn student_over_normal(freedom: usize) -> f64 {
    /// For 1 to 10 degrees of freedom, from any table of the distribution.
    const T: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    const NORMAL: f64 = 1.96;
    match freedom {
        0 => 1.0,
        1..=10 => T[freedom - 1] / NORMAL,
        // The first term of the expansion in 1 / freedom; off by less than 0.5 % here.
        _ => 1.0 + (NORMAL * NORMAL + 1.0) / (4.0 * freedom as f64),
    }
}

/// A percentile of the round trips of all `rows` together, nanoseconds; `None` without a histogram.
pub fn percentile_ns(rows: &[&Row], percentile: f64) -> Option<f64> {
    Some(Rounds::of(rows)?.quantile((percentile / 100.0).clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tester::pingpong::RoundTrips;

    /// A round of `n` round trips: exponential around `scale_ns`, with a floor, as measured ones are.
    fn round(rng: &mut SplitMix64, n: usize, scale_ns: f64) -> Row {
        let mut rtts = RoundTrips::new();
        for _ in 0..n {
            let wait = -draw::open_unit(rng).ln();
            rtts.record((scale_ns * (1.0 + wait)) as u64);
        }
        Row {
            n: rtts.count(),
            histogram_ns: rtts.cells(),
            ..Row::default()
        }
    }

    fn rounds(rng: &mut SplitMix64, count: usize, n: usize, scale_ns: f64) -> Vec<Row> {
        (0..count).map(|_| round(rng, n, scale_ns)).collect()
    }

    fn compare(a: &[Row], b: &[Row], percentile: f64) -> Ratio {
        let (a, b): (Vec<&Row>, Vec<&Row>) = (a.iter().collect(), b.iter().collect());
        ratio(&a, &b, percentile).unwrap()
    }

    /// Of 200 experiments: how many intervals hold the true ratio, and how many show a difference.
    fn experiments(seed: u64, count: usize, truth: f64, percentile: f64) -> (u32, u32) {
        let mut rng = SplitMix64::new(seed);
        let (mut held, mut shown) = (0, 0);
        for _ in 0..200 {
            let a = rounds(&mut rng, count, 600, 40_000.0 * truth);
            let b = rounds(&mut rng, count, 600, 40_000.0);
            let ratio = compare(&a, &b, percentile);
            held += u32::from(ratio.low <= truth && truth <= ratio.high);
            shown += u32::from(matches!(ratio.verdict, Verdict::Lower | Verdict::Higher));
        }
        (held, shown)
    }

    #[test]
    fn intervals_hold_the_true_ratio() {
        for (seed, count, truth, percentile) in [
            (11, 1, 0.5, 50.0),
            (12, 2, 0.8, 50.0),
            (13, 2, 1.0, 90.0),
            (14, 3, 0.25, 99.0),
            (15, 1, 3.0, 99.0),
        ] {
            let (held, shown) = experiments(seed, count, truth, percentile);
            assert!(
                held >= 180,
                "seed {seed}: {held} of 200 intervals hold {truth}"
            );
            if truth == 1.0 {
                assert!(
                    shown <= 20,
                    "seed {seed}: {shown} differences that are none"
                );
            } else {
                assert!(shown >= 190, "seed {seed}: {shown} of 200 differences seen");
            }
        }
    }

    /// Rounds that differ by some percent among themselves: pooling them as if they were one would promise far more
    /// than is known, and drawing rounds too must not.
    #[test]
    fn rounds_that_differ_widen_the_interval() {
        for (seed, count) in [(77, 6), (78, 3), (79, 2)] {
            let (two_levels, pooled) = held_with_scatter(seed, count);
            assert!(two_levels >= 180, "{count} rounds: {two_levels} of 200");
            assert!(
                pooled <= 160,
                "{count} rounds: {pooled} of 200: the test shows nothing"
            );
        }
    }

    /// Of 200 experiments without a difference, rounds scattered by 5 %: how many intervals hold 1, with rounds as
    /// rounds, and pooled as one.
    fn held_with_scatter(seed: u64, count: usize) -> (u32, u32) {
        let mut rng = SplitMix64::new(seed);
        let (mut two_levels, mut pooled) = (0, 0);
        for _ in 0..200 {
            let mut side = || -> Vec<Row> {
                let scatter = |rng: &mut SplitMix64| 1.0 + 0.05 * draw::normal(rng);
                let scales: Vec<f64> = (0..count).map(|_| 40_000.0 * scatter(&mut rng)).collect();
                scales.iter().map(|s| round(&mut rng, 600, *s)).collect()
            };
            let (a, b) = (side(), side());
            let holds = |ratio: Ratio| u32::from(ratio.low <= 1.0 && 1.0 <= ratio.high);
            two_levels += holds(compare(&a, &b, 50.0));
            pooled += holds(compare(&[merged(&a)], &[merged(&b)], 50.0));
        }
        (two_levels, pooled)
    }

    fn merged(rows: &[Row]) -> Row {
        let mut cells: std::collections::BTreeMap<u64, u64> = Default::default();
        for [end, count] in rows.iter().flat_map(|row| &row.histogram_ns) {
            *cells.entry(*end).or_default() += count;
        }
        Row {
            n: rows.iter().map(|row| row.n).sum(),
            histogram_ns: cells.into_iter().map(|(end, count)| [end, count]).collect(),
            ..Row::default()
        }
    }

    /// A slow side with few round trips may be slower still: that it is slower is shown all the same.
    #[test]
    fn one_end_of_an_interval_is_enough() {
        let mut rng = SplitMix64::new(8);
        let (fast, slow) = (
            rounds(&mut rng, 2, 500, 9e3),
            rounds(&mut rng, 2, 60, 400e3),
        );
        let lower = compare(&fast, &slow, 99.0);
        assert_eq!((lower.verdict, lower.low), (Verdict::Lower, 0.0));
        assert!(lower.value < lower.high && lower.high < 0.1, "{lower:?}");
        let higher = compare(&slow, &fast, 99.0);
        assert_eq!(higher.verdict, Verdict::Higher);
        assert!(higher.low > 10.0 && higher.high.is_infinite(), "{higher:?}");
    }

    #[test]
    fn too_few_round_trips_bound_nothing() {
        let mut rng = SplitMix64::new(5);
        let (a, b) = (
            rounds(&mut rng, 1, 500, 9e3),
            rounds(&mut rng, 1, 500, 40e3),
        );
        let far = compare(&a, &b, 99.9);
        assert_eq!(far.verdict, Verdict::TooFew, "{far:?}");
        assert!((far.low, far.high) == (0.0, f64::INFINITY));
        assert_eq!(compare(&a, &b, 99.0).verdict, Verdict::Lower);
        assert_eq!(compare(&a, &b, 100.0).verdict, Verdict::TooFew);
        let sockperf = Row {
            n: 10,
            ..Row::default()
        };
        assert_eq!(ratio(&[&sockperf], &[&sockperf], 50.0), None);
        assert_eq!(ratio(&[], &[], 50.0), None);
    }

    /// On the virtual clock rows can be equal to the nanosecond, or a cell apart: the cell is no difference.
    #[test]
    fn the_width_of_a_cell_is_no_difference() {
        let constant = |ns: u64| Row {
            n: 1_000,
            histogram_ns: vec![[ns, 1_000]],
            ..Row::default()
        };
        let of = |a, b| compare(&[constant(a)], &[constant(b)], 50.0).verdict;
        assert_eq!(of(40_000, 40_000), Verdict::NoDifferenceShown);
        assert_eq!(of(40_000, 40_031), Verdict::NoDifferenceShown);
        assert_eq!(of(40_000, 41_000), Verdict::Lower);
    }

    /// A page asks for hundreds of ratios. Time of the CPU, whatever else the machine does.
    #[test]
    fn a_table_takes_well_under_two_seconds() {
        let mut rng = SplitMix64::new(6);
        let (a, b) = (
            rounds(&mut rng, 3, 2_000, 9e3),
            rounds(&mut rng, 3, 2_000, 1e4),
        );
        let cpu = || {
            let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
            std::time::Duration::from(nix::time::clock_gettime(clock).unwrap())
        };
        let since = cpu();
        for _ in 0..200 {
            compare(&a, &b, 99.0);
        }
        let took = cpu() - since;
        assert!(took.as_secs_f64() < 2.0, "{took:?}");
    }
}
