// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is recorded of a ping-pong: the round trips and the account of every ping.
//!
//! Not here: the form of the result file ([`crate::result`]).

use hdrhistogram::Histogram;

/// Longest round trip that keeps its place in the histogram, nanoseconds: a minute.
const RTT_NS_MAX: u64 = 60_000_000_000;

/// The fate of the pings of one phase. `sent = answered + lost` holds at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pings sent.
    pub sent: u64,
    /// Pings whose reply came within the time limit.
    pub answered: u64,
    /// Pings without a reply within the time limit, late ones included.
    pub lost: u64,
    /// Of the lost ones: those whose reply did come, after the limit.
    pub late: u64,
    /// Replies to a ping that had been answered already (in time or late).
    pub dup: u64,
}

/// Round-trip times: a histogram of three digits, and exact extremes and mean.
#[derive(Debug, Clone)]
pub struct RoundTrips {
    histogram: Histogram<u64>,
    sum_ns: u128,
    squares_ns2: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self::new()
    }
}

impl RoundTrips {
    /// An empty record.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, RTT_NS_MAX, 3)
            .expect("constant bounds that hdrhistogram accepts");
        Self {
            histogram,
            sum_ns: 0,
            squares_ns2: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }

    /// Adds one round trip, nanoseconds.
    pub fn record(&mut self, rtt_ns: u64) {
        self.histogram.saturating_record(rtt_ns);
        self.sum_ns += u128::from(rtt_ns);
        self.squares_ns2 += u128::from(rtt_ns).pow(2);
        self.min_ns = self.min_ns.min(rtt_ns);
        self.max_ns = self.max_ns.max(rtt_ns);
    }

    /// Adds the round trips of another record; nothing is rounded by it.
    ///
    /// # Panics
    /// Never: all records have the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("histograms of the same bounds");
        self.sum_ns += other.sum_ns;
        self.squares_ns2 += other.squares_ns2;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of round trips.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Shortest round trip, nanoseconds; 0 when there is none.
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 {
            0
        } else {
            self.min_ns
        }
    }

    /// Longest round trip, nanoseconds; 0 when there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Mean round trip, nanoseconds; 0 when there is none.
    pub fn mean_ns(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.sum_ns as f64 / count as f64,
        }
    }

    /// Standard deviation of the round trips, nanoseconds; 0 when there is none.
    pub fn sd_ns(&self) -> f64 {
        let count = u128::from(self.count().max(1));
        // In whole numbers: the squares of two means of near numbers would lose what is asked for.
        let variance = (count * self.squares_ns2).saturating_sub(self.sum_ns.pow(2));
        (variance as f64).sqrt() / count as f64
    }

    /// The round trip that `percent` of all do not exceed, nanoseconds, never above
    /// the exact maximum.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent).min(self.max_ns)
    }

    /// The filled cells of the histogram: `[upper end in ns, count]`, ascending.
    pub fn cells(&self) -> Vec<[u64; 2]> {
        self.histogram
            .iter_recorded()
            .map(|cell| {
                [
                    cell.value_iterated_to().min(self.max_ns),
                    cell.count_since_last_iteration(),
                ]
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sorted vector is the obvious model: the histogram may differ from it by its
    /// three digits, the extremes and the mean not at all.
    #[test]
    fn agrees_with_a_sorted_vector() {
        let seed = 20_240_611;
        let mut rng = crate::rng::SplitMix64::new(seed);
        let mut draw = || {
            let top_ns = 1 << rng.in_range(10, 24);
            rng.in_range(1_000, 1_000 + top_ns)
        };
        let mut model: Vec<u64> = (0..20_000).map(|_| draw()).collect();
        let mut rtts = RoundTrips::new();
        model.iter().for_each(|&rtt| rtts.record(rtt));
        model.sort_unstable();
        assert_eq!(rtts.min_ns(), model[0]);
        assert_eq!(rtts.max_ns(), model[model.len() - 1]);
        let mean = model.iter().sum::<u64>() as f64 / model.len() as f64;
        assert!((rtts.mean_ns() - mean).abs() < 1e-6);
        let square = |rtt: &u64| (*rtt as f64 - mean).powi(2);
        let variance = model.iter().map(square).sum::<f64>() / model.len() as f64;
        assert!((rtts.sd_ns() / variance.sqrt() - 1.0).abs() < 1e-6);
        for percent in [50.0, 90.0, 99.0, 99.9] {
            let rank = (percent / 100.0 * model.len() as f64).ceil() as usize;
            let want = model[rank - 1] as f64;
            let got = rtts.percentile_ns(percent) as f64;
            assert!(
                (got - want).abs() <= want / 1_000.0,
                "p{percent}: {got} for {want}, seed {seed}"
            );
        }
        let cells = rtts.cells();
        assert_eq!(cells.iter().map(|c| c[1]).sum::<u64>(), rtts.count());
        assert_eq!(cells.last().map(|c| c[0]), Some(rtts.max_ns()));
    }

    #[test]
    fn merged_records_are_the_record_of_all() {
        let mut rng = crate::rng::SplitMix64::new(9);
        let (mut all, mut merged) = (RoundTrips::new(), RoundTrips::new());
        for _ in 0..5 {
            let mut part = RoundTrips::new();
            for _ in 0..rng.in_range(0, 500) {
                let bits = rng.in_range(4, 40);
                let rtt_ns = rng.in_range(0, 1 << bits);
                part.record(rtt_ns);
                all.record(rtt_ns);
            }
            merged.merge(&part);
        }
        assert_eq!(merged.cells(), all.cells());
        let exact = |rtts: &RoundTrips| (rtts.min_ns(), rtts.max_ns(), rtts.mean_ns());
        assert_eq!(exact(&merged), exact(&all));
    }

    #[test]
    fn empty_is_zero() {
        let rtts = RoundTrips::new();
        assert_eq!((rtts.count(), rtts.min_ns(), rtts.max_ns()), (0, 0, 0));
        assert_eq!(rtts.percentile_ns(99.0), 0);
        assert!(rtts.cells().is_empty());
    }
}
