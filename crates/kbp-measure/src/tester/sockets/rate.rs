// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rates of the middle of a run. Paper 004, section 3.3, takes the per-second rates of 20 of
//! 60 seconds, after as many that are left out, and says their standard deviation.
//!
//! Pure arithmetic; not here: the counting.

/// Both counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When, nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Packets that the kernel had taken from the sender.
    pub sent: u64,
    /// Packets that the receiver had taken from the kernel.
    pub received: u64,
}

/// Rates of the middle of a run, packets a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Sent.
    pub sent_per_s: f64,
    /// Received.
    pub received_per_s: f64,
    /// Standard deviation of the received rate of the slices; 0 when there are fewer than two.
    pub received_sd_per_s: f64,
    /// Slices in these figures.
    pub slices: u32,
    /// Length of the middle, nanoseconds.
    pub span_ns: u64,
}

/// The rates of the middle third of the slices that lie between the samples, which are in order.
///
/// What does not divide by three goes to the middle. A run of fewer than three slices is taken
/// whole.
pub fn middle(samples: &[Sample]) -> Rates {
    let slices = samples.len().saturating_sub(1);
    let left_out = slices / 3;
    let middle = &samples[left_out..samples.len() - left_out];
    let [first, .., last] = middle else {
        return Rates::default();
    };
    let per_slice: Vec<f64> = middle
        .windows(2)
        .map(|pair| per_s(pair[0].received, pair[1].received, &pair[0], &pair[1]))
        .collect();
    Rates {
        sent_per_s: per_s(first.sent, last.sent, first, last),
        received_per_s: per_s(first.received, last.received, first, last),
        received_sd_per_s: deviation(&per_slice),
        slices: per_slice.len() as u32,
        span_ns: last.at_ns - first.at_ns,
    }
}

fn per_s(before: u64, after: u64, from: &Sample, to: &Sample) -> f64 {
    match to.at_ns.saturating_sub(from.at_ns) {
        0 => 0.0,
        span_ns => after.saturating_sub(before) as f64 * 1e9 / span_ns as f64,
    }
}

/// The sample standard deviation.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// The model walks over every millisecond of the run and counts what falls into the middle.
    #[test]
    fn agrees_with_a_count_of_every_millisecond() {
        for seed in 0..50 {
            let mut rng = SplitMix64::new(seed);
            let slices = rng.in_range(3, 30);
            let slice_ms = rng.in_range(1, 20);
            let arrivals: Vec<u64> = (0..slices * slice_ms)
                .map(|_| rng.in_range(0, 900))
                .collect();
            let received = |until_ms: u64| arrivals[..until_ms as usize].iter().sum::<u64>();
            let samples: Vec<Sample> = (0..=slices)
                .map(|n| Sample {
                    at_ns: 5_000_000_000 + n * slice_ms * 1_000_000,
                    sent: 2 * received(n * slice_ms),
                    received: received(n * slice_ms),
                })
                .collect();
            let rates = middle(&samples);
            let (from, to) = (slices / 3 * slice_ms, (slices - slices / 3) * slice_ms);
            let count: u64 = (from..to).map(|ms| arrivals[ms as usize]).sum();
            let want = count as f64 / (to - from) as f64 * 1e3;
            let close = |got: f64, want: f64| (got - want).abs() <= want * 1e-9;
            assert!(close(rates.received_per_s, want), "seed {seed}: {rates:?}");
            assert!(
                close(rates.sent_per_s, 2.0 * want),
                "seed {seed}: {rates:?}"
            );
            assert_eq!(rates.span_ns, (to - from) * 1_000_000, "seed {seed}");
        }
    }

    #[test]
    fn the_ends_are_left_out_and_the_deviation_is_known() {
        // Received a second: 0, 10, 20, 30, 0, over slices of one second; the middle is 10, 20, 30.
        let counts = [0, 0, 10, 30, 60, 60];
        let samples: Vec<Sample> = (0..)
            .zip(counts)
            .map(|(s, received)| Sample {
                at_ns: s * 1_000_000_000,
                sent: received,
                received,
            })
            .collect();
        let rates = middle(&samples);
        assert_eq!(
            (rates.received_per_s, rates.received_sd_per_s, rates.slices),
            (20.0, 10.0, 3)
        );
        assert_eq!(middle(&samples[..1]), Rates::default());
        assert_eq!(middle(&[]), Rates::default());
        assert_eq!(middle(&samples[..3]).received_per_s, 5.0);
    }
}
