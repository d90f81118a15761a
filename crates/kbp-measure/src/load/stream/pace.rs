// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a sender at a constant rate sends how much: pure arithmetic.
//!
//! Not here: the clock and the sockets.

/// How often a sender looks at the clock, nanoseconds.
pub(super) const TICK_NS: u64 = 500_000;

/// A sender that falls behind by more than this gives the time up instead of sending a burst that no network card of
/// that rate would see.
const BEHIND_NS_MAX: u64 = 5_000_000;

/// The account of a sender that sends chunks of one size at a constant rate.
#[derive(Debug)]
pub(super) struct Pace {
    start_ns: u64,
    bps: u64,
    chunk_bits: u64,
    /// Chunks that were handed out or given up.
    done: u64,
}

/// What a sender is to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    /// Chunks to send.
    pub(super) send: u64,
    /// Chunks that are given up.
    pub(super) skip: u64,
}

impl Pace {
    /// A sender that begins at `start_ns` with its first chunk.
    pub(super) fn new(start_ns: u64, bps: u64, chunk_bytes: usize) -> Self {
        Self {
            start_ns,
            bps: bps.max(1),
            chunk_bits: chunk_bytes.max(1) as u64 * 8,
            done: 0,
        }
    }

    /// What is due at `now_ns` and was not handed out before.
    pub(super) fn due(&mut self, now_ns: u64) -> Due {
        let total = self.chunks_in(now_ns.saturating_sub(self.start_ns)) + 1;
        let open = total.saturating_sub(self.done);
        // At least one, or a slow sender would never send at all.
        let send = open.min(self.chunks_in(BEHIND_NS_MAX).max(1));
        self.done += open;
        Due {
            send,
            skip: open - send,
        }
    }

    fn chunks_in(&self, ns: u64) -> u64 {
        let bits = u128::from(ns) * u128::from(self.bps) / 1_000_000_000;
        (bits / u128::from(self.chunk_bits)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// Against a list of the moments at which each chunk is due.
    #[test]
    fn all_that_is_due_is_sent_or_given_up_in_time() {
        for seed in 0..200 {
            let mut rng = SplitMix64::new(seed);
            let chunk_bytes = rng.in_range(1, 9_000) as usize;
            let bps = rng.in_range(1_000_000, 2_000_000_000);
            let start_ns = rng.in_range(0, 1 << 50);
            let ns_a_chunk = chunk_bytes as f64 * 8e9 / bps as f64;
            let mut pace = Pace::new(start_ns, bps, chunk_bytes);
            let (mut now_ns, mut done) = (start_ns, 0u64);
            for _ in 0..50 {
                let due = pace.due(now_ns);
                done += due.send + due.skip;
                let model = ((now_ns - start_ns) as f64 / ns_a_chunk).floor() + 1.0;
                assert!(
                    (done as f64 - model).abs() <= 1.0,
                    "seed {seed}: {done}, {model}"
                );
                let burst_ns = due.send.saturating_sub(1) as f64 * ns_a_chunk;
                assert!(burst_ns <= BEHIND_NS_MAX as f64, "seed {seed}: {due:?}");
                assert!(due.skip == 0 || due.send > 0, "seed {seed}: {due:?}");
                now_ns += rng.in_range(0, 8_000_000);
            }
        }
    }

    #[test]
    fn in_time_nothing_is_given_up_and_late_only_what_is_too_much() {
        // A chunk each millisecond.
        let mut pace = Pace::new(7, 8_000_000, 1_000);
        assert_eq!(pace.due(7), Due { send: 1, skip: 0 });
        assert_eq!(pace.due(7 + 999_999), Due { send: 0, skip: 0 });
        assert_eq!(pace.due(7 + 3_000_000), Due { send: 3, skip: 0 });
        assert_eq!(pace.due(7 + 23_000_000), Due { send: 5, skip: 15 });
    }
}
