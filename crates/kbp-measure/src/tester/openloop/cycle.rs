// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Due times that are known before a run, drawn or recorded, and come again in a circle. Pure.
//!
//! Eight bytes a frame, of at most [`CYCLE_FRAMES_MAX`] frames: the loop then only looks a time up, also that of an
//! early frame which comes back late.
//!
//! Random gaps are computed in integers. The logarithm of a platform's mathematical library may differ in the last bit,
//! that bit may be the one which rounds a time to the next nanosecond, and all later times are sums with it; so the same
//! seed would not be the same traffic on every machine.
//!
//! Not here: times that follow from a formula ([`super::schedule`]), and reading recorded gaps ([`super::arrivals`]).

use super::schedule::Period;
use crate::rng::SplitMix64;

/// Frames of a cycle, at most: 32 MiB of due times, and 70 minutes at 1000 frames a second.
pub const CYCLE_FRAMES_MAX: usize = 1 << 22;

/// ln 2 in 2⁻⁶⁴.
const LN_2: u64 = 0xB172_17F7_D1CF_79AB;

/// The due times of some frames, and when the first of them is due again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// Ascending, the first is 0; not empty.
    due_ns: Vec<u64>,
    length_ns: u64,
}

impl Cycle {
    /// A frame before each of these gaps, of which there are at most [`CYCLE_FRAMES_MAX`]; `None` where they last no
    /// time at all.
    pub fn of_gaps(gaps_ns: &[u64]) -> Option<Self> {
        let mut length_ns: u64 = 0;
        let mut due_ns = Vec::with_capacity(gaps_ns.len());
        for gap_ns in gaps_ns {
            due_ns.push(length_ns);
            length_ns = length_ns.saturating_add(*gap_ns);
        }
        (length_ns > 0).then_some(Self { due_ns, length_ns })
    }

    /// A Poisson process from its first frame on: exponential gaps whose mean is `period`. There are at least
    /// `frames_min` of them, and all that begin before `span_ns`, as long as those are not more than
    /// [`CYCLE_FRAMES_MAX`]. A longer span is the same for longer.
    pub fn poisson(period: Period, seed: u64, span_ns: u64, frames_min: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let mut due_ns = Vec::new();
        // The exact sum of the gaps, in 2⁻³² of the period, so that rounding adds nothing up.
        let mut periods: u64 = 0;
        loop {
            let next_ns = period.times_part(periods);
            let is_enough = next_ns >= span_ns && due_ns.len() as u64 >= frames_min.max(1);
            if is_enough || due_ns.len() == CYCLE_FRAMES_MAX {
                return Self {
                    due_ns,
                    length_ns: next_ns,
                };
            }
            due_ns.push(next_ns);
            periods += unit_gap(&mut rng);
        }
    }

    /// When frame `seq` is due, nanoseconds after the start.
    pub fn due_ns(&self, seq: u64) -> u64 {
        let frames = self.frames();
        let turns_ns = (seq / frames).saturating_mul(self.length_ns);
        turns_ns.saturating_add(self.due_ns[(seq % frames) as usize])
    }

    /// Frames of one turn.
    pub fn frames(&self) -> u64 {
        self.due_ns.len() as u64
    }

    /// Length of one turn, nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.length_ns
    }
}

/// The times of a Poisson process before `span_ns`, nanoseconds after its start; the first one is 0. Gaps have the mean
/// `gap_ns_mean` and follow from the seed alone, as those of [`Cycle::poisson`].
pub fn poisson_ns(gap_ns_mean: u64, seed: u64, span_ns: u64) -> Vec<u64> {
    Cycle::poisson(Period::new(u128::from(gap_ns_mean), 1), seed, span_ns, 1).due_ns
}

/// An exponential gap whose mean is 1, in 2⁻³²: −ln of a number that is uniform between 0 and 1. At most 45.
fn unit_gap(rng: &mut SplitMix64) -> u64 {
    // Odd, so that it is never 0.
    let drawn = rng.next_u64() | 1;
    let zeros = drawn.leading_zeros();
    // drawn / 2⁶⁴ is a number from 1 to 2 by the power of two of these zeros and one more.
    let minus_log2 = (u64::from(zeros + 1) << 32) - log2_digits(drawn << zeros);
    ((u128::from(minus_log2) * u128::from(LN_2)) >> 64) as u64
}

/// log₂ of `number` / 2⁶³, which is from 1 to 2, in 2⁻³² and rounded down. Squaring doubles the logarithm: where the
/// square is 2 or more, the next binary digit is 1. What the 32 squares lose to rounding is below 2⁻⁵⁷.
fn log2_digits(mut number: u64) -> u64 {
    let mut digits = 0;
    for _ in 0..32 {
        let square = u128::from(number) * u128::from(number);
        let digit = (square >> 127) as u64;
        digits = digits << 1 | digit;
        number = (square >> (63 + digit)) as u64;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame every millisecond.
    const MS: u64 = 1_000_000;

    fn poisson(seed: u64, frames: u64) -> Cycle {
        Cycle::poisson(Period::new(u128::from(MS), 1), seed, 0, frames)
    }

    fn gaps(cycle: &Cycle) -> Vec<u64> {
        let of = |seq| cycle.due_ns(seq + 1) - cycle.due_ns(seq);
        (0..cycle.frames()).map(of).collect()
    }

    /// Times that another program computed with 40 decimal digits. They have to be these on every machine.
    #[test]
    fn a_seed_is_the_same_times_everywhere() {
        let first = |seed| -> Vec<u64> { (0..6).map(|seq| poisson(seed, 6).due_ns(seq)).collect() };
        assert_eq!(
            first(0),
            [0, 124_078, 964_501, 4_597_613, 4_627_164, 6_868_215]
        );
        assert_eq!(
            first(1),
            [0, 568_169, 861_491, 890_917, 1_702_039, 2_513_374]
        );
    }

    #[test]
    fn a_gap_is_a_logarithm() {
        for seed in 0..50_000 {
            let uniform = (SplitMix64::new(seed).next_u64() | 1) as f64 / 2f64.powi(64);
            let found = unit_gap(&mut SplitMix64::new(seed)) as f64 / 2f64.powi(32);
            assert!((found + uniform.ln()).abs() < 1e-9, "seed {seed}");
        }
    }

    /// The mean, and the largest distance of the distribution (Kolmogorov-Smirnov): of 10 000 exponential gaps it is
    /// beyond 2.5 / √n once in 130 000 times.
    #[test]
    fn gaps_are_exponential() {
        const FRAMES: u64 = 10_000;
        let root = (FRAMES as f64).sqrt();
        for seed in 0..=200 {
            let mut gaps = gaps(&poisson(seed, FRAMES));
            let mean = gaps.iter().sum::<u64>() as f64 / FRAMES as f64 / MS as f64;
            assert!((mean - 1.0).abs() < 4.0 / root, "seed {seed}: mean {mean}");
            gaps.sort_unstable();
            let steps = gaps.iter().enumerate().map(|(place, gap_ns)| {
                let share = 1.0 - (-(*gap_ns as f64) / MS as f64).exp();
                let (low, high) = (place as f64, place as f64 + 1.0);
                let n = FRAMES as f64;
                (share - low / n).abs().max((high / n - share).abs())
            });
            let distance = steps.fold(0.0, f64::max);
            assert!(distance < 2.5 / root, "seed {seed}: distance {distance}");
        }
    }

    /// Gaps know nothing of those before them: neighbours are uncorrelated, and the number of frames in equal slices of
    /// time scatters like its mean.
    #[test]
    fn gaps_are_independent() {
        const FRAMES: u64 = 100_000;
        for seed in 0..=20 {
            let cycle = poisson(seed, FRAMES);
            let unit: Vec<f64> = gaps(&cycle)
                .iter()
                .map(|gap_ns| *gap_ns as f64 / MS as f64 - 1.0)
                .collect();
            let product: f64 = unit.windows(2).map(|pair| pair[0] * pair[1]).sum();
            let correlation = product / FRAMES as f64;
            let error = 1.0 / (FRAMES as f64).sqrt();
            assert!(
                correlation.abs() < 4.5 * error,
                "seed {seed}: {correlation}"
            );
            let slices = cycle.length_ns() / (10 * MS);
            let mut counts = vec![0u32; slices as usize + 1];
            (0..FRAMES).for_each(|seq| counts[(cycle.due_ns(seq) / (10 * MS)) as usize] += 1);
            counts.pop();
            let mean = counts.iter().sum::<u32>() as f64 / slices as f64;
            let squares = counts
                .iter()
                .map(|count| (f64::from(*count) - mean).powi(2));
            let dispersion = squares.sum::<f64>() / mean / slices as f64;
            let error = (2.0 / slices as f64).sqrt();
            assert!(
                (dispersion - 1.0).abs() < 4.5 * error,
                "seed {seed}: {dispersion}"
            );
        }
    }

    #[test]
    fn a_million_frames_do_not_drift() {
        const FRAMES: u64 = 1_000_000;
        // 3 frames in 20 ns: a period that is no whole number.
        let period = Period::new(20, 3);
        for seed in 0..5 {
            let cycle = Cycle::poisson(period, seed, 0, FRAMES);
            let mut last_ns = 0;
            for seq in (0..=FRAMES).step_by(1_000) {
                let due_ns = cycle.due_ns(seq);
                let exact_ns = seq as f64 * 20.0 / 3.0;
                let error_ns = 20.0 / 3.0 * (seq as f64).sqrt();
                assert!(
                    (due_ns as f64 - exact_ns).abs() <= 4.5 * error_ns + 1.0,
                    "seed {seed}: frame {seq} at {due_ns}"
                );
                assert!(due_ns >= last_ns, "seed {seed}: frame {seq}");
                last_ns = due_ns;
            }
        }
    }

    #[test]
    fn a_longer_span_goes_on_with_the_same() {
        let period = Period::new(u128::from(MS), 1);
        for seed in 0..50 {
            let long = Cycle::poisson(period, seed, 400 * MS, 1);
            assert!(long.length_ns() >= 400 * MS && long.due_ns(long.frames() - 1) < 400 * MS);
            let short = Cycle::poisson(period, seed, 100 * MS, 1);
            for seq in 0..=short.frames() {
                assert_eq!(short.due_ns(seq), long.due_ns(seq), "seed {seed}");
            }
        }
        let most = Cycle::poisson(period, 1, u64::MAX, 1);
        assert_eq!(most.frames(), CYCLE_FRAMES_MAX as u64);
        let again = most.frames() + 7;
        assert_eq!(most.due_ns(again), most.length_ns() + most.due_ns(7));
    }

    #[test]
    fn gaps_come_in_a_circle() {
        let cycle = Cycle::of_gaps(&[5, 0, 10]).unwrap();
        let due: Vec<u64> = (0..8).map(|seq| cycle.due_ns(seq)).collect();
        assert_eq!(due, [0, 5, 5, 15, 20, 20, 30, 35]);
        assert_eq!(cycle.due_ns(u64::MAX), u64::MAX, "never beyond");
        assert_eq!(Cycle::of_gaps(&[]), None);
        assert_eq!(Cycle::of_gaps(&[0, 0]), None);
    }
}
