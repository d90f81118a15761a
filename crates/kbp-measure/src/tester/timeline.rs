// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Round trips over time, thinned to the longest of each of a bounded number of slices.
//!
//! The length of a run need not be known before: when the slices are full, two neighbours
//! become one of twice the length.
//!
//! Not here: the histogram ([`super::pingpong::RoundTrips`]), which keeps every round trip.

/// Most slices that are kept.
pub const SLICES_MAX: usize = 500;

/// Length of a slice before any two were joined, nanoseconds.
const SLICE_NS_MIN: u64 = 1_000;

/// The longest round trip of each slice of time.
#[derive(Debug, Clone)]
pub struct Timeline {
    slice_ns: u64,
    /// `[offset, round trip]` by slice.
    slices: Vec<Option<[u64; 2]>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl Timeline {
    /// One without round trips.
    pub fn new() -> Self {
        Self {
            slice_ns: SLICE_NS_MIN,
            slices: Vec::with_capacity(SLICES_MAX),
        }
    }

    /// Adds a round trip that began `offset_ns` after the start of the run; the order of the
    /// calls does not matter.
    pub fn record(&mut self, offset_ns: u64, rtt_ns: u64) {
        while offset_ns / self.slice_ns >= SLICES_MAX as u64 {
            self.join();
        }
        let index = (offset_ns / self.slice_ns) as usize;
        if index >= self.slices.len() {
            self.slices.resize(index + 1, None);
        }
        self.slices[index] = longer(self.slices[index], Some([offset_ns, rtt_ns]));
    }

    /// The kept round trips in order of time: `[offset, round trip]`, nanoseconds.
    pub fn points(&self) -> Vec<[u64; 2]> {
        self.slices.iter().flatten().copied().collect()
    }

    fn join(&mut self) {
        self.slice_ns *= 2;
        for index in 0..self.slices.len().div_ceil(2) {
            let second = self.slices.get(2 * index + 1).copied().flatten();
            self.slices[index] = longer(self.slices[2 * index], second);
        }
        self.slices.truncate(self.slices.len().div_ceil(2));
    }
}

/// The longer round trip; of equal ones the earlier.
fn longer(a: Option<[u64; 2]>, b: Option<[u64; 2]>) -> Option<[u64; 2]> {
    match (a, b) {
        (Some(a), Some(b)) => {
            let b_wins = (b[1], std::cmp::Reverse(b[0])) > (a[1], std::cmp::Reverse(a[0]));
            Some(if b_wins { b } else { a })
        }
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::SplitMix64;

    /// All points, grouped by slices of the width that the last offset asks for.
    fn model(points: &[[u64; 2]]) -> Vec<[u64; 2]> {
        let last = points.iter().map(|p| p[0]).max().unwrap_or(0);
        let mut slice_ns = SLICE_NS_MIN;
        while last / slice_ns >= SLICES_MAX as u64 {
            slice_ns *= 2;
        }
        let mut groups: BTreeMap<u64, Vec<[u64; 2]>> = BTreeMap::new();
        for point in points {
            groups.entry(point[0] / slice_ns).or_default().push(*point);
        }
        let longest = |group: &Vec<[u64; 2]>| {
            let top = group.iter().map(|p| p[1]).max()?;
            group.iter().filter(|p| p[1] == top).min().copied()
        };
        groups.values().filter_map(longest).collect()
    }

    #[test]
    fn agrees_with_grouping_everything_at_the_end() {
        for seed in 0..200 {
            let mut rng = SplitMix64::new(seed);
            let span_ns = 1 << rng.in_range(1, 40);
            let count = rng.in_range(0, 2_000);
            let mut timeline = Timeline::new();
            let points: Vec<[u64; 2]> = (0..count)
                .map(|_| [rng.in_range(0, span_ns), rng.in_range(1, 50)])
                .collect();
            for [offset_ns, rtt_ns] in &points {
                timeline.record(*offset_ns, *rtt_ns);
            }
            assert_eq!(timeline.points(), model(&points), "seed {seed}");
            assert!(timeline.points().len() <= SLICES_MAX);
        }
    }
}
