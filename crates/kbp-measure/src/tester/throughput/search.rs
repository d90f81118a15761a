// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The binary search for the highest rate without loss, as a machine of states. Pure.
//!
//! A path is never the same twice, so a clean trial is no proof: the rate that is reported has to be
//! clean several times in a row, and one that fails then is a bound like any other. Bounds from
//! above only ever go down, so the search ends.
//!
//! Not here: a trial.

/// Where a search begins and ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The highest rate that is tried, bit/s; it is tried first.
    pub max_bps: u64,
    /// The search ends when the bounds are this close, percent of the highest rate.
    pub resolution_percent: f64,
    /// Trials in a row without loss that the reported rate needs.
    pub confirm: u32,
    /// A search that takes more trials is given up.
    pub trials_max: u32,
}

/// What came of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every frame came back.
    Clean,
    /// So many did not.
    Lost(u64),
    /// The tester did not hold the rate, or lost frames itself.
    NotHeld {
        /// What it did hold, bit/s.
        held_bps: u64,
    },
}

/// What is above the reported rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wall {
    /// The highest rate that was asked for.
    Asked,
    /// A rate that the tester does not hold.
    Tester,
    /// A rate at which the path loses frames.
    Path,
}

/// The end of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The highest rate that was clean as often as was asked; 0 when there was none.
    pub rate_bps: u64,
    /// What is above it.
    pub wall: Wall,
    /// Trials made.
    pub trials: u32,
}

/// A search: ask [`Search::next_rate`], make the trial, [`Search::book`] it, until there is none.
#[derive(Debug, Clone)]
pub struct Search {
    limits: Limits,
    step_bps: u64,
    /// Rates that were clean, ascending.
    clean: Vec<u64>,
    /// Clean trials in a row of the last of them.
    confirmed: u32,
    high_bps: u64,
    wall: Wall,
    next: Option<u64>,
    trials: u32,
}

impl Search {
    /// One that has made no trial yet.
    ///
    /// # Errors
    /// Limits out of their range, in one sentence.
    pub fn new(limits: Limits) -> Result<Self, String> {
        if !(0.001..=50.0).contains(&limits.resolution_percent) {
            return Err(format!(
                "a resolution of {} %: it has to be 0.001 to 50",
                limits.resolution_percent
            ));
        }
        if limits.confirm == 0 || limits.trials_max == 0 || limits.max_bps == 0 {
            return Err(
                "highest rate, confirming trials and number of trials have to be above 0".into(),
            );
        }
        let step_bps = (limits.max_bps as f64 * limits.resolution_percent / 100.0) as u64;
        Ok(Self {
            limits,
            step_bps: step_bps.max(1),
            clean: Vec::new(),
            confirmed: 0,
            high_bps: limits.max_bps,
            wall: Wall::Asked,
            next: Some(limits.max_bps),
            trials: 0,
        })
    }

    /// The rate of the next trial; `None` at the end.
    pub fn next_rate(&self) -> Option<u64> {
        self.next.filter(|_| self.trials < self.limits.trials_max)
    }

    /// Books the outcome of the trial at [`Search::next_rate`].
    pub fn book(&mut self, outcome: Outcome) {
        let Some(rate) = self.next_rate() else {
            return;
        };
        self.trials += 1;
        let mut hint = None;
        match outcome {
            Outcome::Clean if self.clean.last() == Some(&rate) => self.confirmed += 1,
            Outcome::Clean => {
                self.clean.push(rate);
                self.confirmed = 1;
            }
            Outcome::Lost(_) => self.bound(rate, Wall::Path),
            Outcome::NotHeld { held_bps } => {
                self.bound(rate, Wall::Tester);
                hint = Some(held_bps);
            }
        }
        self.next = self.choose(hint);
    }

    fn bound(&mut self, rate: u64, wall: Wall) {
        self.high_bps = rate;
        self.wall = wall;
        if self.clean.last() == Some(&rate) {
            self.clean.pop();
            // The one below was clean at least once, or the search would not have gone on from it.
            self.confirmed = 1;
        }
    }

    fn choose(&self, hint: Option<u64>) -> Option<u64> {
        let low_bps = self.clean.last().copied().unwrap_or(0);
        if self.high_bps - low_bps > self.step_bps {
            // What the tester held is nearer than the middle; a hint without progress is none.
            let near = self.high_bps - self.step_bps;
            let hint = hint.filter(|held| *held > low_bps && *held <= near);
            return Some(hint.unwrap_or(low_bps + (self.high_bps - low_bps) / 2));
        }
        (low_bps > 0 && self.confirmed < self.limits.confirm).then_some(low_bps)
    }

    /// What was found.
    ///
    /// # Errors
    /// A sentence, when the search is not at its end.
    pub fn found(&self) -> Result<Found, String> {
        let low_bps = self.clean.last().copied().unwrap_or(0);
        if self.next.is_some() {
            return Err(format!(
                "after {} trials the highest rate without loss is still somewhere from {low_bps} to {} bit/s: \
                 the path loses frames at rates that it also carried; make the trials longer or the resolution coarser",
                self.trials, self.high_bps
            ));
        }
        Ok(Found {
            rate_bps: low_bps,
            wall: self.wall,
            trials: self.trials,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    fn limits(rng: &mut SplitMix64) -> Limits {
        let bits = rng.in_range(11, 36);
        Limits {
            max_bps: rng.in_range(1_000, 1 << bits),
            resolution_percent: rng.in_range(1, 100) as f64 / 10.0,
            confirm: rng.in_range(1, 5) as u32,
            trials_max: 100,
        }
    }

    /// A path that carries up to `capacity`, seen by a tester that holds up to `holds`.
    #[test]
    fn a_hidden_capacity_is_found_to_the_resolution() {
        for seed in 0..2_000 {
            let mut rng = SplitMix64::new(seed);
            let limits = limits(&mut rng);
            let top = limits.max_bps + limits.max_bps / 4;
            let (capacity, holds) = (rng.in_range(0, top), rng.in_range(1, top));
            let mut search = Search::new(limits).unwrap();
            let mut clean_at = std::collections::BTreeMap::new();
            while let Some(rate) = search.next_rate() {
                search.book(if rate > holds {
                    Outcome::NotHeld { held_bps: holds }
                } else if rate > capacity {
                    Outcome::Lost(1)
                } else {
                    *clean_at.entry(rate).or_insert(0) += 1;
                    Outcome::Clean
                });
            }
            let found = search.found().unwrap();
            let truth = capacity.min(holds).min(limits.max_bps);
            let step = (limits.max_bps as f64 * limits.resolution_percent / 100.0).max(1.0) as u64;
            assert!(
                found.rate_bps <= truth,
                "seed {seed}: {found:?}, truth {truth}"
            );
            assert!(
                truth - found.rate_bps <= step,
                "seed {seed}: {found:?}, truth {truth}"
            );
            assert!(found.rate_bps == 0 || clean_at[&found.rate_bps] >= limits.confirm);
            if truth == limits.max_bps {
                assert_eq!(
                    (found.rate_bps, found.wall),
                    (truth, Wall::Asked),
                    "seed {seed}"
                );
            } else if capacity + step < holds {
                assert_eq!(found.wall, Wall::Path, "seed {seed}");
            } else if holds + step < capacity {
                assert_eq!(found.wall, Wall::Tester, "seed {seed}");
            }
        }
    }

    /// A path whose capacity is another one in every trial: the search ends, and what it reports was
    /// clean in its last trials, one after the other.
    #[test]
    fn a_noisy_path_ends_the_search_too() {
        let mut settled = 0;
        for seed in 0..2_000 {
            let mut rng = SplitMix64::new(seed);
            let limits = limits(&mut rng);
            let (low, high) = (limits.max_bps / 3, limits.max_bps);
            let mut search = Search::new(limits).unwrap();
            let mut log = Vec::new();
            while let Some(rate) = search.next_rate() {
                let is_clean = rate <= rng.in_range(low, high);
                log.push((rate, is_clean));
                search.book(if is_clean {
                    Outcome::Clean
                } else {
                    Outcome::Lost(3)
                });
            }
            assert!(log.len() <= 100, "seed {seed}");
            let Ok(found) = search.found() else { continue };
            settled += 1;
            let lowest_lost = log.iter().filter(|l| !l.1).map(|l| l.0).min();
            assert!(
                lowest_lost.is_none_or(|lost| found.rate_bps < lost),
                "seed {seed}"
            );
            let clean = log.iter().filter(|l| **l == (found.rate_bps, true)).count();
            assert!(clean as u32 >= limits.confirm, "seed {seed}");
        }
        assert!(settled > 1_900, "{settled}");
    }

    #[test]
    fn a_search_that_does_not_settle_says_so() {
        let limits = Limits {
            max_bps: 1_000_000,
            resolution_percent: 0.1,
            confirm: 3,
            trials_max: 4,
        };
        let mut search = Search::new(limits).unwrap();
        while search.next_rate().is_some() {
            search.book(Outcome::Lost(1));
        }
        assert!(search.found().unwrap_err().contains("after 4 trials"));
        assert!(Search::new(Limits {
            confirm: 0,
            ..limits
        })
        .is_err());
        let resolution_percent = f64::NAN;
        assert!(Search::new(Limits {
            resolution_percent,
            ..limits
        })
        .is_err());
    }
}
