// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The three clocks of a guest, and the check that those which count instructions are fair.
//!
//! *virtual*: guest time is the number of executed instructions, 1 ns each. All CPUs share one host thread and take
//! turns, so a turn has to be short against what is measured. *parallel*: the same, but the time of a CPU goes on with
//! its own instructions only, so that CPUs that work at the same time don't make each other slower; it needs the QEMU of
//! [`crate::parallel`]. *real*: a host thread per CPU and the host's time.
//!
//! Not here: how the guest bounds the turns (`guest/init.sh`) and measures them (`bin/kbp-lab-guest.rs`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A turn longer than this makes the virtual clock useless for microsecond figures.
pub const TURN_NS_LIMIT: u64 = 20_000;

/// What each CPU executes before the next one does, on the parallel clock, in nanoseconds.
pub(crate) const QUANTUM_NS: u64 = 250;

/// On the parallel clock a CPU's time is behind another's by less than this: a quantum, what a PAUSE takes beyond it, and what
/// the check takes to look.
pub const BACK_NS_LIMIT: u64 = 2 * QUANTUM_NS;

/// How long the guest measures turns, in guest time.
const TURNS_MS: u32 = 20;

/// For how many milliseconds of guest time the guest checks its clock before a script; 0 where there is nothing to check.
pub(crate) fn check_ms(clock: Clock, cpus: u32) -> u32 {
    match clock.counts_instructions() && cpus > 1 {
        true => TURNS_MS,
        false => 0,
    }
}

/// The turn that the guest's timer allows each CPU, in nanoseconds.
const TURN_NS: u64 = 5_000;

/// Ticks a second of the PIT, the timer that ends turns.
const PIT_HZ: u64 = 1_193_182;

/// The count for the guest's timer so that each of `cpus` gets a turn of about 5 us; `None` where none is
/// needed: for a single CPU, which has nobody to take turns with, and on another clock.
///
/// QEMU lets a CPU run until the next timer of the machine, divided by the number of CPUs. A shorter period would be
/// fairer still, but each one costs the host two switches between threads, even when the guest is idle.
#[must_use]
pub(crate) fn pit_count(clock: Clock, cpus: u32) -> Option<u16> {
    let count = TURN_NS * u64::from(cpus) * PIT_HZ / 1_000_000_000;
    (clock == Clock::Virtual && cpus > 1).then(|| u16::try_from(count).unwrap_or(u16::MAX))
}

/// The count where nothing is timed: a millisecond between two ends of turns, each of which costs the host time.
pub(crate) const LONG_TURNS: u16 = 1_200;

/// What a guest's time is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Executed instructions, one nanosecond each: repeats on any machine.
    Virtual,
    /// The same, of each CPU by itself.
    Parallel,
    /// The host's time.
    Real,
}

impl Clock {
    /// Whether guest time is counted in instructions, by one thread of the host.
    #[must_use]
    pub fn counts_instructions(self) -> bool {
        self != Clock::Real
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::Virtual => "virtual",
            Clock::Parallel => "parallel",
            Clock::Real => "real",
        })
    }
}

/// What the guest's agent measured, in nanoseconds of guest time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnCheck {
    /// The longest stretch that one CPU ran while all others wanted to.
    pub turn_ns_max: u64,
    /// The longest absence that a spinning thread saw: the others' turns and its own interrupts.
    pub gap_ns_max: u64,
    /// By how much one CPU's clock was behind another's; 0 on a sound machine with another clock than the parallel one.
    pub back_ns_max: u64,
    /// CPUs that took part.
    pub cpus: u64,
}

impl TurnCheck {
    /// Reads the agent's line `turn_ns_max=N gap_ns_max=N back_ns_max=N cpus=N`.
    #[must_use]
    pub fn parse(line: &str) -> Option<TurnCheck> {
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        Some(TurnCheck {
            turn_ns_max: field("turn_ns_max")?,
            gap_ns_max: field("gap_ns_max")?,
            back_ns_max: field("back_ns_max")?,
            cpus: field("cpus")?,
        })
    }

    /// Why figures from this machine must not be trusted, if so. `cpus` is how many the machine should have.
    #[must_use]
    pub fn refusal(&self, clock: Clock, cpus: u32) -> Option<String> {
        if self.cpus != u64::from(cpus) {
            return Some(format!(
                "{} of {cpus} CPUs took part in the check of the clock",
                self.cpus
            ));
        }
        // On the parallel clock a CPU's turn takes no time of the others.
        if clock == Clock::Parallel {
            return (self.back_ns_max > BACK_NS_LIMIT).then(|| {
                format!(
                    "one CPU's clock was {} ns behind another's, the limit is {BACK_NS_LIMIT} ns",
                    self.back_ns_max
                )
            });
        }
        if self.turn_ns_max > TURN_NS_LIMIT {
            return Some(format!(
                "a CPU kept its turn for {} us, the limit is {} us: waits across CPUs would measure the emulator",
                self.turn_ns_max / 1000,
                TURN_NS_LIMIT / 1000
            ));
        }
        (self.back_ns_max > 0).then(|| {
            format!(
                "one CPU's clock was {} ns behind another's",
                self.back_ns_max
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(turn: u64, back: u64, cpus: u64) -> TurnCheck {
        TurnCheck {
            turn_ns_max: turn,
            gap_ns_max: 3 * turn,
            back_ns_max: back,
            cpus,
        }
    }

    #[test]
    fn the_agents_line_is_read() {
        let line = "turn_ns_max=2600 gap_ns_max=9100 back_ns_max=0 cpus=4";
        let seen = TurnCheck::parse(line).unwrap();
        assert_eq!(
            (
                seen.turn_ns_max,
                seen.gap_ns_max,
                seen.back_ns_max,
                seen.cpus
            ),
            (2600, 9100, 0, 4)
        );
        assert_eq!(
            TurnCheck::parse("kbp-lab-guest: cannot pin a thread to each CPU"),
            None
        );
        assert_eq!(
            TurnCheck::parse("turn_ns_max=x gap_ns_max=1 back_ns_max=0 cpus=4"),
            None
        );
    }

    #[test]
    fn the_timers_period_grows_with_the_cpus() {
        assert_eq!(pit_count(Clock::Virtual, 1), None);
        assert_eq!(pit_count(Clock::Parallel, 4), None);
        assert_eq!(pit_count(Clock::Virtual, 2), Some(11));
        assert_eq!(pit_count(Clock::Virtual, 4), Some(23));
        assert_eq!(pit_count(Clock::Virtual, 64), Some(381));
    }

    #[test]
    fn unfair_clocks_are_refused() {
        assert_eq!(check(TURN_NS_LIMIT, 0, 4).refusal(Clock::Virtual, 4), None);
        assert!(check(TURN_NS_LIMIT + 1, 0, 4)
            .refusal(Clock::Virtual, 4)
            .unwrap()
            .contains("limit is 20 us"));
        assert!(check(4_000_000, 0, 4)
            .refusal(Clock::Virtual, 4)
            .unwrap()
            .contains("4000 us"));
        assert!(check(100, 0, 2)
            .refusal(Clock::Virtual, 4)
            .unwrap()
            .contains("2 of 4"));
        assert!(check(100, 7, 4)
            .refusal(Clock::Virtual, 4)
            .unwrap()
            .contains("7 ns behind"));
    }

    #[test]
    fn parallel_clocks_may_be_apart_by_a_quantum() {
        let refusal = |turn, back| check(turn, back, 4).refusal(Clock::Parallel, 4);
        assert_eq!(refusal(4_000_000, BACK_NS_LIMIT), None);
        assert!(refusal(100, BACK_NS_LIMIT + 1)
            .unwrap()
            .contains("the limit is 500 ns"));
        assert!(check(100, 0, 2).refusal(Clock::Parallel, 4).is_some());
    }
}
