// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The seeded numbers behind the jitter of the ping period: SplitMix64.
//!
//! Written out here and not taken from a crate because the sequence is part of the
//! result: the same seed has to mean the same send times in every version of this tool.
//! Not here: anything that has to be unpredictable.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included; `low` when the range is empty.
    ///
    /// The bias of the multiplication is below 2⁻³² for ranges under 2³².
    pub fn in_range(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high.saturating_sub(low)) + 1;
        low + ((u128::from(self.next_u64()) * span) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn sequence_is_the_published_one() {
        // First outputs for seed 0, as every published implementation gives them.
        let mut rng = SplitMix64::new(0);
        assert_eq!(rng.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn range_is_kept_and_filled() {
        let mut rng = SplitMix64::new(7);
        let drawn: Vec<u64> = (0..10_000).map(|_| rng.in_range(500, 1_500)).collect();
        assert!(drawn.iter().all(|v| (500..=1_500).contains(v)));
        let mean = drawn.iter().sum::<u64>() / drawn.len() as u64;
        assert!((980..=1_020).contains(&mean), "mean {mean}");
        assert_eq!(rng.in_range(9, 9), 9);
    }
}
