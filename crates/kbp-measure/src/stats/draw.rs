// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers of the distributions that resampling needs, from the seeded generator.
//!
//! Written out for the reason of [`crate::rng`]: an interval follows from rows and seed in every version.
//! Not here: what they are drawn for.

use crate::rng::SplitMix64;

/// Uniform, above 0 and below 1.
pub(super) fn open_unit(rng: &mut SplitMix64) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Standard normal (Box and Muller 1958; the second number of the pair is not used).
pub(super) fn normal(rng: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * open_unit(rng).ln()).sqrt();
    radius * (std::f64::consts::TAU * open_unit(rng)).cos()
}

/// Gamma with this shape, at least 1, and scale 1 (Marsaglia, Tsang: *A Simple Method for Generating Gamma
/// Variables*, 2000). At most one in twenty draws is thrown away, so the loop ends soon.
fn gamma(shape: f64, rng: &mut SplitMix64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && open_unit(rng).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
            return d * v;
        }
    }
}

/// Beta(a, b), both at least 1: what the a-th smallest of a + b − 1 uniform numbers is.
pub(super) fn beta(a: f64, b: f64, rng: &mut SplitMix64) -> f64 {
    let (x, y) = (gamma(a, rng), gamma(b, rng));
    x / (x + y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beta_has_its_mean_and_variance() {
        let seed = 31;
        let mut rng = SplitMix64::new(seed);
        for (a, b) in [(1.0, 1.0), (1.0, 50.0), (500.0, 501.0), (990.0, 11.0)] {
            let n = 40_000;
            let drawn: Vec<f64> = (0..n).map(|_| beta(a, b, &mut rng)).collect();
            let mean = drawn.iter().sum::<f64>() / f64::from(n);
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
            let (want_mean, sum) = (a / (a + b), a + b);
            let want_variance = a * b / (sum * sum * (sum + 1.0));
            let error = 5.0 * (want_variance / f64::from(n)).sqrt();
            assert!((mean - want_mean).abs() < error, "{a} {b}: mean {mean}");
            let share = variance / want_variance;
            assert!(
                (0.93..1.07).contains(&share),
                "{a} {b}: variance is {share} of it, seed {seed}"
            );
        }
    }
}
