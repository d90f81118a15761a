// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a sender keeps up with its schedule. Pure; times are nanoseconds of one clock.
//!
//! Frames may be due at any times. So it is no sign of a sender that can't keep up when many frames are late, at a low
//! rate each by the lateness of its own wake-up, or when it takes long over frames that are due at once: only that there
//! is something left to do, all the time.
//!
//! Not here: the times ([`super::schedule`]), and what is done about it ([`super::run`]).

/// A frame that is sent later than this is a sign that the rate is not held, nanoseconds.
const LATE_NS: u64 = 1_000_000;
/// The last frame may be late by this part of the run (0.1 %), or by [`LATE_NS`] if that is more;
/// else the frames before it may have been late for a quarter of the run.
const END_LATE_PART: u64 = 1_000;

/// A sender's pace during a run.
#[derive(Debug)]
pub struct Pace {
    behind_ns_max: u64,
    behind_since_ns: Option<u64>,
}

impl Pace {
    /// Of a sender that may be behind for `behind_ns_max` at a time: one that is only held up for a moment catches up
    /// within it.
    pub fn new(behind_ns_max: u64) -> Self {
        Self {
            behind_ns_max,
            behind_since_ns: None,
        }
    }

    /// Books that a frame that was due at `due_ns` is about to be sent; the one after it is due at `next_ns`. Says whether
    /// the pace is kept.
    pub fn is_kept(&mut self, now_ns: u64, due_ns: u64, next_ns: u64) -> bool {
        // Where the next frame is not due yet, the sender has caught up with this one.
        let is_behind = now_ns.saturating_sub(due_ns) > LATE_NS && next_ns <= now_ns;
        if !is_behind {
            self.behind_since_ns = None;
            return true;
        }
        let since_ns = *self.behind_since_ns.get_or_insert(now_ns);
        now_ns - since_ns <= self.behind_ns_max
    }

    /// Says at the end of a run that began at `start_ns` whether nothing is left over that a longer run would have shown;
    /// the frame after the last one would be due at `next_ns`. A sender that was only held up at the very end would have
    /// caught up.
    pub fn is_kept_at_end(&self, start_ns: u64, end_ns: u64, next_ns: u64) -> bool {
        let Some(since_ns) = self.behind_since_ns else {
            return true;
        };
        let span_ns = next_ns - start_ns;
        let late_ns = end_ns.saturating_sub(next_ns);
        let allowed_ns = (span_ns / 4).min(self.behind_ns_max);
        late_ns <= (span_ns / END_LATE_PART).max(LATE_NS) || end_ns - since_ns <= allowed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::tester::openloop::{Arrivals, Schedule};

    const MS: u64 = 1_000_000;
    const BEHIND_NS_MAX: u64 = 100 * MS;

    /// Traffic at `frames_per_s` in the mean, and the rate at which its frames come at most over a longer time.
    fn traffic(rng: &mut SplitMix64, frames_per_s: u64, span_ns: u64) -> (Schedule, u64) {
        let (arrivals, peak) = match rng.in_range(0, 2) {
            0 => (Arrivals::Constant, 1),
            1 => (Arrivals::Poisson, 1),
            _ => {
                let (on_ms, off_ms) = (rng.in_range(1, 20) as u32, rng.in_range(1, 60) as u32);
                let peak = u64::from(off_ms / on_ms) + 2;
                (Arrivals::OnOff { on_ms, off_ms }, peak)
            }
        };
        let steady = Schedule::new(64, frames_per_s * 512, 1).unwrap();
        let seed = rng.next_u64();
        let schedule = steady.arriving(&arrivals, seed, span_ns, 0).unwrap();
        (schedule, frames_per_s * peak)
    }

    /// Sends all frames of a span, each of which takes `send_ns`; one that has to be waited for is `wake_ns` late.
    fn keeps_up(
        schedule: &Schedule,
        span_ns: u64,
        send_ns: u64,
        wake_ns: &mut dyn FnMut() -> u64,
    ) -> bool {
        let frames = schedule.frames_in(span_ns);
        let mut pace = Pace::new(BEHIND_NS_MAX);
        let mut now_ns = 0;
        for seq in 0..frames {
            let due_ns = schedule.due_ns(seq);
            if now_ns < due_ns {
                now_ns = due_ns + wake_ns();
            }
            if !pace.is_kept(now_ns, due_ns, schedule.due_ns(seq + 1)) {
                return false;
            }
            now_ns += send_ns;
        }
        pace.is_kept_at_end(0, now_ns, schedule.due_ns(frames))
    }

    /// One that sends four times as fast as frames come, takes no longer than 100 µs over one, and wakes up to 30 ms late,
    /// is never called behind.
    #[test]
    fn who_keeps_up_is_never_behind() {
        for seed in 0..600 {
            let mut rng = SplitMix64::new(seed);
            let frames_per_s = 2 << rng.in_range(0, 14);
            let span_ns = rng.in_range(50, 20_000).min(40_000_000 / frames_per_s) * MS;
            let (schedule, peak_per_s) = traffic(&mut rng, frames_per_s, span_ns);
            let send_ns = (1_000_000_000 / peak_per_s / 4).min(100_000);
            let kept = keeps_up(&schedule, span_ns, send_ns, &mut || {
                let is_late = rng.in_range(0, 3) == 0;
                if is_late {
                    rng.in_range(0, 30 * MS)
                } else {
                    0
                }
            });
            assert!(kept, "seed {seed}: {frames_per_s} frames/s");
        }
    }

    /// One that needs half as long again as frames are apart is found in every run of a second or more that has frames
    /// enough to show it.
    #[test]
    fn who_can_not_is_found() {
        for seed in 0..600 {
            let mut rng = SplitMix64::new(seed);
            let frames_per_s = 200 << rng.in_range(0, 7);
            let span_ns = rng.in_range(1_000, 3_000) * MS;
            let (schedule, _) = traffic(&mut rng, frames_per_s, span_ns);
            let send_ns = 1_500_000_000 / frames_per_s;
            let kept = keeps_up(&schedule, span_ns, send_ns, &mut || 0);
            assert!(!kept, "seed {seed}: {frames_per_s} frames/s");
        }
    }

    #[test]
    fn a_moment_is_forgiven_and_a_short_run_is_not() {
        let run = |frames_per_s: u64, span_ms: u64, send_ns: u64, wake_ns: u64| {
            let schedule = Schedule::new(64, frames_per_s * 512, 1).unwrap();
            let mut wakes = std::iter::once(wake_ns).chain(std::iter::repeat(0));
            keeps_up(&schedule, span_ms * MS, send_ns, &mut || {
                wakes.next().unwrap_or(0)
            })
        };
        assert!(run(10_000, 3_000, 10_000, 800 * MS), "caught up in 89 ms");
        assert!(!run(10_000, 3_000, 10_000, 1_200 * MS), "in 133 ms");
        assert!(!run(10_000, 40, 200_000, 0), "40 ms at twice the time");
        assert!(run(10_000, 40, 99_000, 0));
    }
}
