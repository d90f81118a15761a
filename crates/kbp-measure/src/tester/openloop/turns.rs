// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a thread of the tester that spins is scheduled: `SCHED_FIFO` if its thread is, but for a fifth of the time `SCHED_OTHER`.
//!
//! Before Linux 6.12, RT throttling keeps the FIFO threads of a CPU that have run for 950 ms of a second from running for
//! the rest of it, also where nobody else wants the CPU. Frames would be up to 50 ms late, and round trips with them.
//! Nothing else is to run on the CPU of such a thread, so it loses nothing by not being FIFO.

use kbp_core::sched::{scheduling, set_scheduling, Scheduling};

use super::run::Pause;
use crate::error::{Error, Result};
use crate::place::SELF;

/// Times of one turn, nanoseconds.
const FIFO_NS: u64 = 400_000_000;
const OTHER_NS: u64 = 100_000_000;

/// When a thread is which.
#[derive(Debug, Default)]
struct Clock {
    is_aside: bool,
    until_ns: Option<u64>,
}

impl Clock {
    /// Is it time to become the other? If so, it has become that.
    fn turns(&mut self, now_ns: u64) -> bool {
        let until_ns = *self.until_ns.get_or_insert(now_ns + FIFO_NS);
        if now_ns < until_ns {
            return false;
        }
        self.is_aside = !self.is_aside;
        self.until_ns = Some(now_ns + if self.is_aside { OTHER_NS } else { FIFO_NS });
        true
    }
}

/// The scheduling of the calling thread while it spins.
#[derive(Debug)]
pub(in crate::tester) struct Turns {
    /// What it is put back to; nothing where it stays what it is.
    fifo: Option<Scheduling>,
    clock: Clock,
}

impl Turns {
    /// # Errors
    /// When the policy of the thread can't be read.
    pub(in crate::tester) fn of_this_thread(pause: Pause) -> Result<Self> {
        let usual = scheduling(SELF).map_err(|e| Error::Core(e.into()))?;
        let takes_turns = pause == Pause::Spin && usual.policy == libc::SCHED_FIFO;
        Ok(Self {
            fifo: takes_turns.then_some(usual),
            clock: Clock::default(),
        })
    }

    /// Changes the policy of the thread, if it is time for that.
    ///
    /// # Errors
    /// When it may not be changed.
    pub(in crate::tester) fn look(&mut self, now_ns: u64) -> Result<()> {
        match self.fifo {
            Some(fifo) if self.clock.turns(now_ns) => {
                let to = if self.clock.is_aside {
                    Scheduling::other()
                } else {
                    fifo
                };
                set_scheduling(SELF, to).map_err(|e| Error::Core(e.into()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // It was FIFO a moment ago, so it may be again; and a report is worth more than this error.
        if let (Some(fifo), true) = (self.fifo, self.clock.is_aside) {
            set_scheduling(SELF, fifo).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_as_much_fifo_as_is_throttled() {
        let (step_ns, second_ns) = (1_000_000, 1_000_000_000_u64);
        let mut clock = Clock::default();
        let fifo: Vec<u64> = (0..5_000)
            .map(|step| {
                clock.turns(step * step_ns);
                if clock.is_aside {
                    0
                } else {
                    step_ns
                }
            })
            .collect();
        let of_a_second = (second_ns / step_ns) as usize;
        let most = fifo
            .windows(of_a_second)
            .map(|w| w.iter().sum::<u64>())
            .max();
        assert!(most.unwrap() <= 850_000_000, "{most:?}");
        assert!(fifo.iter().sum::<u64>() >= 3_900_000_000);
    }
}
