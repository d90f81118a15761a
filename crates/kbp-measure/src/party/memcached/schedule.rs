// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which requests are sent, and when each is due: a pure function of the load and its seed.
//!
//! Times and contents are drawn apart, so two paces with the same seed ask for the same keys in the same order.
//!
//! Not here: sending them ([`super::client`]).

use super::client::{LoadConfig, Pace};
use crate::rng::SplitMix64;
use crate::tester::openloop::poisson_ns;

/// Of a seed, what the times are drawn from.
const TIMES: u64 = 0x7469_6d65_7300_0000;

/// The next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// Number of its key.
    pub key: u32,
    /// Whether it stores a new value.
    pub is_set: bool,
}

/// The requests of a load.
#[derive(Debug)]
pub struct Schedule {
    kinds: SplitMix64,
    times: Times,
    keys: u32,
    get_percent: u64,
}

#[derive(Debug)]
enum Times {
    /// When the one before is answered.
    Closed,
    Uniform {
        rng: SplitMix64,
        gap_ns_min: u64,
        gap_ns_max: u64,
        next_ns: u64,
    },
    /// All of them are drawn before the run, so that the loop only looks them up.
    Drawn { due_ns: Vec<u64>, next: usize },
}

impl Schedule {
    /// The requests of a load.
    pub fn new(config: &LoadConfig) -> Self {
        let seed = config.seed;
        let times = match config.pace {
            Pace::Closed => Times::Closed,
            Pace::Open {
                gap_ns_min,
                gap_ns_max,
            } => Times::Uniform {
                rng: SplitMix64::new(seed ^ TIMES),
                gap_ns_min,
                gap_ns_max,
                next_ns: 0,
            },
            Pace::Poisson { gap_ns_mean } => Times::Drawn {
                due_ns: poisson_ns(gap_ns_mean, seed ^ TIMES, config.span_ns),
                next: 0,
            },
        };
        Self {
            kinds: SplitMix64::new(seed),
            times,
            keys: config.keys,
            get_percent: config.get_percent,
        }
    }

    /// When the next request is due, nanoseconds after the start; `None` where it waits for an answer, or where no more
    /// are due.
    pub fn due_ns(&self) -> Option<u64> {
        match &self.times {
            Times::Closed => None,
            Times::Uniform { next_ns, .. } => Some(*next_ns),
            Times::Drawn { due_ns, next } => due_ns.get(*next).copied(),
        }
    }

    /// Takes the next request.
    pub fn draw(&mut self) -> Drawn {
        match &mut self.times {
            Times::Closed => {}
            Times::Uniform {
                rng,
                gap_ns_min,
                gap_ns_max,
                next_ns,
            } => *next_ns += rng.in_range(*gap_ns_min, *gap_ns_max),
            Times::Drawn { next, .. } => *next += 1,
        }
        Drawn {
            key: self.kinds.in_range(0, u64::from(self.keys) - 1) as u32,
            is_set: self.kinds.in_range(0, 99) >= self.get_percent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN_NS: u64 = 2_000_000_000;

    fn load(pace: Pace, seed: u64) -> LoadConfig {
        LoadConfig {
            pace,
            ..LoadConfig::new(SPAN_NS, seed)
        }
    }

    fn all(config: &LoadConfig) -> Vec<(u64, Drawn)> {
        let mut schedule = Schedule::new(config);
        std::iter::from_fn(|| {
            let due_ns = schedule.due_ns().filter(|due_ns| *due_ns < SPAN_NS)?;
            Some((due_ns, schedule.draw()))
        })
        .collect()
    }

    #[test]
    fn a_seed_is_the_same_load_and_another_seed_another() {
        let poisson = Pace::Poisson {
            gap_ns_mean: 1_000_000,
        };
        let first = all(&load(poisson, 7));
        assert_eq!(first, all(&load(poisson, 7)));
        assert_ne!(first, all(&load(poisson, 8)));
        let uniform = all(&load(LoadConfig::new(SPAN_NS, 7).pace, 7));
        let kinds = |all: &[(u64, Drawn)]| -> Vec<Drawn> {
            all.iter().take(100).map(|(_, drawn)| *drawn).collect()
        };
        assert_eq!(
            kinds(&first),
            kinds(&uniform),
            "the pace changes what is asked"
        );
    }

    /// 1,000 a second for 2 s, nine of ten are GETs; of an exponential gap the deviation is the mean.
    #[test]
    fn random_times_have_their_rate_and_kinds_their_share() {
        for seed in 0..20 {
            let poisson = Pace::Poisson {
                gap_ns_mean: 1_000_000,
            };
            let all = all(&load(poisson, seed));
            assert!(
                (1_800..=2_200).contains(&all.len()),
                "seed {seed}: {}",
                all.len()
            );
            assert!(all.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            let gaps: Vec<f64> = all.windows(2).map(|w| (w[1].0 - w[0].0) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let squares: f64 = gaps.iter().map(|gap| (gap - mean).powi(2)).sum();
            let sd = (squares / gaps.len() as f64).sqrt();
            assert!(
                (0.85..1.15).contains(&(sd / mean)),
                "seed {seed}: {sd} {mean}"
            );
            let gets = all.iter().filter(|(_, drawn)| !drawn.is_set).count();
            let share = gets as f64 / all.len() as f64;
            assert!((0.87..0.93).contains(&share), "seed {seed}: {share}");
            assert!(all.iter().all(|(_, drawn)| drawn.key < 1_000));
        }
    }

    #[test]
    fn who_waits_for_an_answer_is_never_due() {
        let mut closed = Schedule::new(&load(Pace::Closed, 1));
        assert_eq!(closed.due_ns(), None);
        closed.draw();
        assert_eq!(closed.due_ns(), None);
    }
}
