// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The highest rate without loss, RFC 2544, section 26.1: send a number of frames at a rate; if fewer
//! come back, lower the rate and try again.
//!
//! The RFC asks for trials of at least 60 s (section 24) and, after each, 2 s for frames that are
//! still on their way and 5 s for the device to settle (section 23); it says neither how rates are
//! chosen nor how finely. Here that is a binary search ([`Search`]) down to a stated resolution, and
//! the rate that is reported has to be free of loss in several trials.
//!
//! Not here: a single trial ([`super::openloop`]).

mod search;

use std::time::Duration;

pub use search::{Limits, Outcome, Search, Wall};

use super::backend::{Backend, Drops};
use super::openloop::{self, OpenLoopConfig, OpenLoopReport, Pause, RATE_BPS_MIN};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::result::{Row, Throughput};

/// The part of the highest rate at which the path is tried first, how long, and how long frames are waited for then.
const REACH_PART: u64 = 50;
const REACH_SPAN_NS: u64 = 1_000_000;
const REACH_DRAIN_NS: u64 = 1_000_000_000;

/// Everything that defines a search.
#[derive(Debug, Clone, Copy)]
pub struct ThroughputConfig {
    /// Length of a frame with header and FCS, bytes.
    pub frame_bytes: u32,
    /// Where the search begins and ends.
    pub limits: Limits,
    /// Length of a trial, nanoseconds.
    pub trial_ns: u64,
    /// How long frames are waited for after a trial, nanoseconds.
    pub drain_ns: u64,
    /// How long the path is left alone after a trial, nanoseconds.
    pub settle_ns: u64,
    /// Frames that are due together.
    pub burst: u32,
    /// What the sender does between two frames; `None`: spins where they are close.
    pub pause: Option<Pause>,
    /// Marks the frames.
    pub seed: u64,
}

impl ThroughputConfig {
    /// Trials as the RFC asks for: 60 s, 2 s for late frames, 5 s to settle; 0.5 % of the highest rate
    /// apart, and confirmed once.
    pub fn rfc(frame_bytes: u32, max_bps: u64) -> Self {
        Self {
            frame_bytes,
            limits: Limits {
                max_bps,
                resolution_percent: 0.5,
                confirm: 2,
                trials_max: 60,
            },
            trial_ns: 60_000_000_000,
            drain_ns: 2_000_000_000,
            settle_ns: 5_000_000_000,
            burst: 1,
            pause: None,
            seed: 1,
        }
    }

    /// Short trials for the lab: 0.3 s, 0.1 s for late frames, 1 % apart, three without loss.
    pub fn lab(frame_bytes: u32, max_bps: u64) -> Self {
        Self {
            limits: Limits {
                resolution_percent: 1.0,
                confirm: 3,
                ..Self::rfc(frame_bytes, max_bps).limits
            },
            trial_ns: 300_000_000,
            drain_ns: 100_000_000,
            settle_ns: 20_000_000,
            ..Self::rfc(frame_bytes, max_bps)
        }
    }

    /// The shortest that says something, for a machine on which a second is minutes: 100 ms a trial, several times what
    /// queues hold, 40 ms for late frames, 3 % apart, two without loss.
    pub fn short(frame_bytes: u32, max_bps: u64) -> Self {
        Self {
            limits: Limits {
                resolution_percent: 3.0,
                confirm: 2,
                ..Self::rfc(frame_bytes, max_bps).limits
            },
            trial_ns: 100_000_000,
            drain_ns: 40_000_000,
            settle_ns: 5_000_000,
            ..Self::rfc(frame_bytes, max_bps)
        }
    }

    fn trial(&self, rate_bps: u64) -> OpenLoopConfig {
        let config = OpenLoopConfig::new(self.frame_bytes, rate_bps);
        OpenLoopConfig {
            burst: self.burst,
            span_ns: self.trial_ns,
            drain_ns: self.drain_ns,
            pause: self.pause.unwrap_or(config.pause),
            seed: self.seed,
            ..config
        }
    }
}

/// What a search found.
#[derive(Debug, Clone)]
pub struct ThroughputReport {
    /// The figures for the result.
    pub throughput: Throughput,
    /// What kept the search from higher rates.
    pub wall: Wall,
    /// The trials without loss at that rate, as one; `None` when there was none.
    pub runs: Vec<OpenLoopReport>,
    /// Length of a frame, bytes.
    pub frame_bytes: u32,
    /// What the tester's own end dropped, all trials.
    pub drops: Drops,
}

impl ThroughputReport {
    /// The row of this search; its round trips are those of the trials at the rate that was found.
    pub fn row(&self, mode: &str, load: &str, round: u32) -> Row {
        let (account, rtts) = OpenLoopReport::merged(&self.runs);
        let base = self.runs.last().map(|run| run.row(mode, load, round));
        Row {
            mode: mode.into(),
            load: load.into(),
            round,
            tool: crate::result::TOOL_KBP.into(),
            path: "as-is".into(),
            traffic: "rfc2544".into(),
            size_bytes: u64::from(self.frame_bytes),
            // The rate was found, not set: it is in `throughput`.
            rate_bps: None,
            n: account.returned,
            lost: account.lost,
            dup: account.duplicated,
            span_ns: self.runs.iter().map(|run| run.span_ns).sum(),
            rtt_ns: crate::result::RttNs::from(&rtts),
            histogram_ns: rtts.cells(),
            open_loop: None,
            throughput: Some(self.throughput),
            // The counts above are of all trials, a timeline is that of one.
            timeline_ns: vec![],
            ..base.unwrap_or_default()
        }
    }
}

/// Searches over `backend`; `note` hears of every trial: its rate and what came of it.
///
/// # Errors
/// Those of [`openloop::run`] but for a rate that is not held, which bounds the search; a search
/// that does not settle; an interrupt, because half a search has no result.
pub fn run(
    backend: &mut dyn Backend,
    config: &ThroughputConfig,
    mut note: impl FnMut(u64, &Outcome),
) -> Result<ThroughputReport> {
    let mut search = Search::new(config.limits).map_err(Error::Invalid)?;
    reach(backend, config)?;
    let mut clean: Vec<OpenLoopReport> = Vec::new();
    let mut drops = Drops::default();
    while let Some(rate_bps) = search.next_rate() {
        let (outcome, report) = trial(backend, &config.trial(rate_bps))?;
        if interrupt::requested() {
            return Err(Error::Interrupted("the search for the highest rate"));
        }
        note(rate_bps, &outcome);
        search.book(outcome);
        if let Some(report) = report {
            drops.tester += report.drops.tester;
            if outcome == Outcome::Clean {
                clean.push(report);
            }
        }
        std::thread::sleep(Duration::from_nanos(config.settle_ns));
    }
    let step_bps = config.limits.max_bps as f64 * config.limits.resolution_percent / 100.0;
    let frame_bits = f64::from(config.frame_bytes) * 8.0;
    let found = search.found().map_err(Error::Unsettled)?;
    clean.retain(|run| run.rate_bps == found.rate_bps);
    Ok(ThroughputReport {
        throughput: Throughput {
            frames_per_s: found.rate_bps as f64 / frame_bits,
            bps: found.rate_bps as f64,
            trial_ns: config.trial_ns,
            resolution_percent: config.limits.resolution_percent,
            resolution_frames_per_s: Some(step_bps / frame_bits),
            trials: found.trials,
            limited_by_tester: found.wall != Wall::Path,
        },
        wall: found.wall,
        runs: clean,
        frame_bytes: config.frame_bytes,
        drops,
    })
}

/// Frames at a small part of the highest rate, before the first trial: does anybody answer at all?
fn reach(backend: &mut dyn Backend, config: &ThroughputConfig) -> Result<()> {
    let slow_bps = (config.limits.max_bps / REACH_PART).max(RATE_BPS_MIN);
    let few = OpenLoopConfig {
        span_ns: REACH_SPAN_NS,
        drain_ns: REACH_DRAIN_NS,
        pause: OpenLoopConfig::new(config.frame_bytes, slow_bps).pause,
        ..config.trial(slow_bps)
    };
    match openloop::run(backend, &few, || Ok(())) {
        // A tester that does not hold even that will say so in its trials.
        Ok(_) | Err(Error::RateNotHeld { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// One trial. Loss at the tester's own end says nothing about the path.
fn trial(
    backend: &mut dyn Backend,
    config: &OpenLoopConfig,
) -> Result<(Outcome, Option<OpenLoopReport>)> {
    match openloop::run(backend, config, || Ok(())) {
        Ok(report) if report.account.lost == 0 => Ok((Outcome::Clean, Some(report))),
        Ok(report) if report.drops.tester >= report.account.lost => {
            let held_bps = config.rate_bps;
            Ok((Outcome::NotHeld { held_bps }, Some(report)))
        }
        Ok(report) => Ok((Outcome::Lost(report.account.lost), Some(report))),
        Err(Error::RateNotHeld { held_bps, .. }) => Ok((Outcome::NotHeld { held_bps }, None)),
        // Somebody answered before, so what is lost at this rate is lost because of it.
        Err(Error::NothingReturned { sent, .. }) => Ok((Outcome::Lost(sent), None)),
        Err(error) => Err(error),
    }
}
