// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One side of a comparison: the histograms of its rounds, and percentiles drawn from them.
//!
//! A resample of n from a histogram need not be made to know its percentile: its k-th smallest value is the
//! histogram's own quantile at U, where U is the k-th smallest of n uniform numbers, and that is Beta(k, n + 1 − k)
//! distributed (David, Nagaraja: *Order Statistics*, 2003, section 2.3). One draw replaces n.
//!
//! Not here: what is made of the draws ([`super::ratio`]).

use super::draw::beta;
use crate::result::Row;
use crate::rng::SplitMix64;

/// Histograms of rounds over one common grid of cells.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Upper ends of the cells of all rounds, ascending, nanoseconds.
    ends: Vec<u64>,
    /// For each round: how many round trips lie in that cell and below.
    below: Vec<Vec<u64>>,
}

impl Rounds {
    /// `None` when no row has a histogram.
    pub(super) fn of(rows: &[&Row]) -> Option<Self> {
        let histograms: Vec<&[[u64; 2]]> = rows
            .iter()
            .map(|row| row.histogram_ns.as_slice())
            .filter(|cells| cells.iter().any(|cell| cell[1] > 0))
            .collect();
        let mut ends: Vec<u64> = histograms
            .iter()
            .flat_map(|cells| cells.iter().map(|cell| cell[0]))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let below = histograms
            .iter()
            .map(|cells| cumulate(cells, &ends))
            .collect();
        (!ends.is_empty()).then_some(Self { ends, below })
    }

    /// How many rounds tell of the scatter between rounds, beyond the one that tells of the middle.
    pub(super) fn freedom(&self) -> usize {
        self.below.len() - 1
    }

    fn count(&self, round: usize) -> u64 {
        self.below[round].last().copied().unwrap_or(0)
    }

    fn all(&self) -> Vec<usize> {
        (0..self.below.len()).collect()
    }

    /// The quantile at `share` of everything, nanoseconds, at least 1.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let all = self.all();
        let n = self.total(&all);
        self.value(&all, rank(share, n))
    }

    /// Whether there are so many round trips that some lie above the quantile, but for a chance of `tail`: else nothing
    /// says how high it is.
    pub(super) fn bounds_above(&self, share: f64, tail: f64) -> bool {
        share.powf(self.total(&self.all()) as f64) <= tail
    }

    /// The same below it.
    pub(super) fn bounds_below(&self, share: f64, tail: f64) -> bool {
        (1.0 - share).powf(self.total(&self.all()) as f64) <= tail
    }

    /// The logarithm of the quantile of a resample, over that of everything's at its place in the middle: the scatter
    /// between rounds is enlarged to what it is without the loss of drawing from so few, and by `widen`.
    pub(super) fn draw(&self, share: f64, widen: f64, rng: &mut SplitMix64) -> f64 {
        let rounds = self.below.len();
        let top = rounds as u64 - 1;
        let chosen: Vec<usize> = (0..rounds).map(|_| rng.in_range(0, top) as usize).collect();
        let n = self.total(&chosen);
        let k = rank(share, n);
        let within_rank = (beta(k as f64, (n + 1 - k) as f64, rng) * n as f64).ceil() as u64;
        let drawn = self.value(&chosen, within_rank.clamp(1, n)).ln();
        if rounds == 1 {
            return drawn;
        }
        let (centre, between) = (self.quantile(share).ln(), self.value(&chosen, k).ln());
        let enlarge = widen * (rounds as f64 / top as f64).sqrt();
        drawn + (enlarge - 1.0) * (between - centre)
    }

    fn total(&self, chosen: &[usize]) -> u64 {
        chosen.iter().map(|round| self.count(*round)).sum()
    }

    /// The value with `rank` (from 1) in the chosen rounds together, nanoseconds, at least 1.
    fn value(&self, chosen: &[usize], rank: u64) -> f64 {
        let below = |cell: usize| -> u64 { chosen.iter().map(|r| self.below[*r][cell]).sum() };
        let (mut low, mut high) = (0, self.ends.len() - 1);
        while low < high {
            let middle = (low + high) / 2;
            if below(middle) >= rank {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.ends[low].max(1) as f64
    }
}

/// The rank, from 1, of the quantile at `share` of n values: the smallest that `share` of them do not exceed.
pub(crate) fn rank(share: f64, n: u64) -> u64 {
    // A share like 0.99 is a little more than it says in binary; a whole rank must not become the next one by that.
    ((share * n as f64 - 1e-9).ceil() as u64).clamp(1, n.max(1))
}

fn cumulate(cells: &[[u64; 2]], ends: &[u64]) -> Vec<u64> {
    let mut cells = cells.iter().peekable();
    let mut sum = 0;
    ends.iter()
        .map(|end| {
            while let Some([_, count]) = cells.next_if(|cell| cell[0] <= *end) {
                sum += count;
            }
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow, obvious model: all values in one sorted list.
    #[test]
    fn quantiles_are_those_of_a_sorted_list() {
        let seed = 4_711;
        let mut rng = SplitMix64::new(seed);
        for _ in 0..200 {
            let mut rows = Vec::new();
            let mut values = Vec::new();
            for _ in 0..rng.in_range(1, 4) {
                let mut end = 0;
                let cells: Vec<[u64; 2]> = (0..rng.in_range(1, 30))
                    .map(|_| {
                        end += rng.in_range(1, 9);
                        [end, rng.in_range(1, 5)]
                    })
                    .collect();
                for [end, count] in &cells {
                    values.extend(std::iter::repeat_n(*end, *count as usize));
                }
                rows.push(Row {
                    histogram_ns: cells,
                    ..Row::default()
                });
            }
            values.sort_unstable();
            let rounds = Rounds::of(&rows.iter().collect::<Vec<_>>()).unwrap();
            for percent in [0, 10, 50, 90, 99, 100] {
                let want = values[(percent * values.len()).div_ceil(100).max(1) - 1] as f64;
                let got = rounds.quantile(percent as f64 / 100.0);
                assert_eq!(got, want, "p{percent}, seed {seed}");
            }
        }
    }

    /// One draw instead of n: the same distribution as of resamples that are really made.
    #[test]
    fn draws_are_distributed_like_real_resamples() {
        let mut rng = SplitMix64::new(99);
        let cells: Vec<[u64; 2]> = (1..=200).map(|value| [value * 10, 1 + value % 7]).collect();
        let flat: Vec<u64> = cells
            .iter()
            .flat_map(|[end, count]| std::iter::repeat_n(*end, *count as usize))
            .collect();
        let row = Row {
            histogram_ns: cells,
            ..Row::default()
        };
        let rounds = Rounds::of(&[&row]).unwrap();
        let n = flat.len() as u64;
        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        for _ in 0..4_000 {
            fast.push(rounds.draw(0.9, 1.0, &mut rng).exp());
            let mut sample: Vec<u64> = (0..n)
                .map(|_| flat[rng.in_range(0, n - 1) as usize])
                .collect();
            sample.sort_unstable();
            slow.push(sample[rank(0.9, n) as usize - 1] as f64);
        }
        for list in [&mut fast, &mut slow] {
            list.sort_unstable_by(f64::total_cmp);
        }
        for at in [100, 1_000, 2_000, 3_000, 3_900] {
            let (fast, slow) = (fast[at], slow[at]);
            assert!(
                (fast - slow).abs() <= 10.0,
                "{at} of 4000: {fast} and {slow}"
            );
        }
    }
}
