// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: a frame when one is due, else a look for what came back. One thread does both, as a tester in a guest may have
//! one CPU; when a reply came is the back end's to say.
//!
//! Not here: the back end, and where the thread runs ([`crate::place`]).

use std::sync::Arc;

use super::arrivals::Arrivals;
use super::break_trace::BreakTrace;
use super::lateness::Lateness;
use super::ledger::{Account, Ledger, Seen, FRAMES_MAX};
use super::pace::Pace;
use super::probe::{fresh_tag, PROBE_LEN};
use super::report::OpenLoopReport;
use super::schedule::Schedule;
use super::turns::Turns;
use crate::clock::{monotonic_ns, suspended_ns};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::tester::backend::Backend;
use crate::tester::pingpong::{RoundTrips, PAYLOAD_LEN_MAX};
use crate::tester::timeline::Timeline;

/// From the time when everything is ready to the first frame, nanoseconds: what is touched for the first time on the way
/// there must not make that one late.
const LEAD_NS: u64 = 1_000_000;
/// How long replies have to be seen as they come from `on_warm` on, nanoseconds: as long as it takes, or longer. Waiting for that
/// later would be counted.
const READING_NS: u64 = 40_000_000;
/// How long before a frame is due the sender wakes, to spin the rest, nanoseconds.
const WAKE_EARLY_NS: u64 = 100_000;
/// Longest sleep, nanoseconds: an interrupt may come to another thread, and the gap may be an hour.
const SLEEP_NS_MAX: u64 = 1_000_000_000;
/// Longest time for which the sender may be behind, nanoseconds ([`Pace`]).
const BEHIND_NS_MAX: u64 = 100_000_000;
/// The same for the warm-up, in which neighbours are found and pages come, nanoseconds.
const WARMUP_BEHIND_NS_MAX: u64 = 2_000_000_000;
/// From the moment at which everything is back: how long further copies are waited for, nanoseconds.
const LINGER_NS: u64 = 20_000_000;
/// Longest run whose due times the header of a frame can hold (48 bits), nanoseconds.
const SPAN_NS_MAX: u64 = 250_000_000_000_000;
/// A pause of the whole machine that is longer than this spoils the run, nanoseconds.
const SUSPENDED_NS_MAX: u64 = 10_000_000;

/// What the sender does until the next frame is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Looks again and again: exact, and takes the whole CPU.
    Spin,
    /// Sleeps until the next frame is due or one comes back; wakes some microseconds late.
    Sleep,
}

/// Everything that defines a run.
#[derive(Debug, Clone)]
pub struct OpenLoopConfig {
    /// Length of a frame with header and FCS, bytes.
    pub frame_bytes: u32,
    /// Mean rate, bits of the frames a second, without preamble and gap; that of a trace is its own
    /// ([`Arrivals::own_rate_bps`]).
    pub rate_bps: u64,
    /// Which times frames are due at.
    pub arrivals: Arrivals,
    /// Frames that are due together, 1 to 1024; 1 unless arrivals are constant.
    pub burst: u32,
    /// Length of the measured part, nanoseconds.
    pub span_ns: u64,
    /// Frames sent before the measured part (routing cache, neighbours, page faults).
    pub warmup_frames: u64,
    /// How long frames are waited for after the last one was sent, nanoseconds.
    pub drain_ns: u64,
    /// What is done between two frames.
    pub pause: Pause,
    /// Marks the frames, together with the time of the run; draws random arrivals, which are the same in every run.
    pub seed: u64,
    /// The trace that a late frame stops, one of the measured part.
    pub break_trace: Option<Arc<BreakTrace>>,
}

impl OpenLoopConfig {
    /// 3 s of frames of `frame_bytes` at `rate_bps`: at constant gaps, one at a time, 20 to warm up, 1 s to come
    /// back, spinning where frames are less than 200 µs apart.
    pub fn new(frame_bytes: u32, rate_bps: u64) -> Self {
        let period_ns = u64::from(frame_bytes) * 8_000_000_000 / rate_bps.max(1);
        Self {
            frame_bytes,
            rate_bps,
            arrivals: Arrivals::Constant,
            burst: 1,
            span_ns: 3_000_000_000,
            warmup_frames: 20,
            drain_ns: 1_000_000_000,
            pause: if period_ns < 200_000 {
                Pause::Spin
            } else {
                Pause::Sleep
            },
            seed: 1,
            break_trace: None,
        }
    }
}

/// Runs the open loop on the calling thread, which stays where it was placed.
///
/// `on_warm` is called once, after the warm-up and before the first measured frame.
///
/// # Errors
/// A parameter out of its range; a rate that is not held ([`Error::RateNotHeld`]); a path on which
/// nothing of the warm-up comes back; a machine that was suspended. Lost frames are no error.
pub fn run(
    backend: &mut dyn Backend,
    config: &OpenLoopConfig,
    on_warm: impl FnOnce() -> Result<()>,
) -> Result<OpenLoopReport> {
    let plan = Plan::of(backend, config)?;
    let mut turns = Turns::of_this_thread(config.pause)?;
    let warmup = if config.warmup_frames > 0 {
        let warmup = Phase::new(&plan, config.warmup_frames, WARMUP_BEHIND_NS_MAX, None)?
            .go(backend, &mut turns)?
            .account;
        if warmup.returned == 0 && !interrupt::requested() {
            return Err(Error::NothingReturned {
                sent: warmup.sent,
                foreign: warmup.foreign,
                target: backend.describe(),
            });
        }
        warmup
    } else {
        Account::default()
    };
    backend.settle(READING_NS)?;
    on_warm()?;
    backend.drops()?;
    let suspended_before_ns = suspended_ns()?;
    let break_trace = config.break_trace.as_deref();
    let done =
        Phase::new(&plan, plan.frames, BEHIND_NS_MAX, break_trace)?.go(backend, &mut turns)?;
    if suspended_ns()?.abs_diff(suspended_before_ns) > SUSPENDED_NS_MAX {
        return Err(Error::Suspended);
    }
    Ok(OpenLoopReport {
        warmup,
        account: done.account,
        rtts: done.rtts,
        timeline: done.timeline,
        frame_bytes: config.frame_bytes,
        rate_bps: config.rate_bps,
        arrivals: config.arrivals.clone(),
        send_late_ns_max: done.late_ns_max,
        since_sent_ns_max: done.since_sent_ns_max,
        span_ns: done.span_ns,
        drops: backend.drops()?,
        partial: done.account.sent < plan.frames,
    })
}

/// A checked configuration.
struct Plan<'a> {
    config: &'a OpenLoopConfig,
    schedule: Schedule,
    frames: u64,
    payload_len: usize,
}

impl<'a> Plan<'a> {
    fn of(backend: &dyn Backend, config: &'a OpenLoopConfig) -> Result<Self> {
        let steady = Schedule::new(config.frame_bytes, config.rate_bps, config.burst)
            .map_err(Error::Invalid)?;
        let overhead = backend.overhead();
        let payload_len = config.frame_bytes.saturating_sub(overhead) as usize;
        if payload_len < PROBE_LEN {
            return Err(Error::Invalid(format!(
                "a frame of {} bytes has no room for the {PROBE_LEN} bytes of a probe on this path: \
                 the smallest is {}",
                config.frame_bytes,
                overhead + PROBE_LEN as u32
            )));
        }
        if config.span_ns > SPAN_NS_MAX {
            return Err(Error::Invalid(format!(
                "a run of {} s: the header of a frame counts up to {} s; make it shorter and repeat it",
                config.span_ns / 1_000_000_000,
                SPAN_NS_MAX / 1_000_000_000
            )));
        }
        let schedule = steady
            .arriving(
                &config.arrivals,
                config.seed,
                config.span_ns,
                config.warmup_frames,
            )
            .map_err(Error::Invalid)?;
        let frames = schedule.frames_in(config.span_ns);
        if frames.max(config.warmup_frames) > FRAMES_MAX {
            return Err(Error::Invalid(format!(
                "{frames} frames are more than the {FRAMES_MAX} that one run can account for: \
                 make it shorter and repeat it"
            )));
        }
        Ok(Self {
            config,
            schedule,
            frames,
            payload_len,
        })
    }
}

/// One stretch of frames from the first to the last, and what comes back of them.
struct Phase<'a> {
    plan: &'a Plan<'a>,
    frames: u64,
    ledger: Ledger<'a>,
    start_ns: u64,
    sent: u64,
    next_due_ns: u64,
    payload: Vec<u8>,
    buffer: Vec<u8>,
    rtts: RoundTrips,
    timeline: Timeline,
    lateness: Lateness,
    late_ns_max: u64,
    since_sent_ns_max: u64,
    pace: Pace,
    no_room: u64,
    break_trace: Option<&'a BreakTrace>,
}

/// What a phase leaves.
struct Done {
    account: Account,
    rtts: RoundTrips,
    timeline: Timeline,
    late_ns_max: u64,
    since_sent_ns_max: u64,
    span_ns: u64,
}

impl<'a> Phase<'a> {
    fn new(
        plan: &'a Plan<'a>,
        frames: u64,
        behind_ns_max: u64,
        break_trace: Option<&'a BreakTrace>,
    ) -> Result<Self> {
        let tag = fresh_tag(plan.config.seed, monotonic_ns()?);
        let ledger = Ledger::new(tag, frames, plan.payload_len, &plan.schedule);
        Ok(Self {
            plan,
            frames,
            ledger,
            start_ns: 0,
            sent: 0,
            next_due_ns: 0,
            payload: vec![0xA5; plan.payload_len],
            buffer: vec![0; PAYLOAD_LEN_MAX + 1],
            rtts: RoundTrips::new(),
            timeline: Timeline::new(),
            lateness: Lateness::new(),
            late_ns_max: 0,
            since_sent_ns_max: 0,
            pace: Pace::new(behind_ns_max),
            no_room: 0,
            break_trace,
        })
    }

    fn go(mut self, backend: &mut dyn Backend, turns: &mut Turns) -> Result<Done> {
        backend.settle(2 * LEAD_NS)?;
        self.start_ns = monotonic_ns()? + LEAD_NS;
        self.next_due_ns = self.start_ns;
        while self.sent < self.frames && !interrupt::requested() {
            let now_ns = monotonic_ns()?;
            turns.look(now_ns)?;
            let is_due = now_ns >= self.next_due_ns;
            if is_due {
                self.send(backend, now_ns)?;
            }
            if !self.receive(backend)? && !is_due {
                // The sleep ends early: its own lateness must not be in the round trips, which count from the due time.
                match self.plan.config.pause {
                    Pause::Sleep if self.next_due_ns > now_ns + 2 * WAKE_EARLY_NS => {
                        let wake_ns = self.next_due_ns - WAKE_EARLY_NS;
                        backend.wait(wake_ns.min(now_ns + SLEEP_NS_MAX))?;
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        }
        let end_ns = monotonic_ns()?;
        self.check_end(end_ns)?;
        self.drain(backend, end_ns)?;
        Ok(Done {
            account: self.ledger.close(),
            rtts: self.rtts,
            timeline: self.timeline,
            late_ns_max: self.late_ns_max,
            since_sent_ns_max: self.since_sent_ns_max,
            span_ns: end_ns.saturating_sub(self.start_ns),
        })
    }

    fn send(&mut self, backend: &mut dyn Backend, now_ns: u64) -> Result<()> {
        let late_ns = now_ns - self.next_due_ns;
        self.check_pace(now_ns)?;
        self.ledger.next_probe().write(&mut self.payload);
        if !backend.send(&self.payload)? {
            self.no_room += 1;
            return Ok(());
        }
        self.lateness.sent(self.sent, late_ns);
        self.ledger.sent();
        self.sent += 1;
        self.late_ns_max = self.late_ns_max.max(late_ns);
        self.next_due_ns = self.start_ns + self.plan.schedule.due_ns(self.sent);
        Ok(())
    }

    fn receive(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        let Some(arrival) = backend.recv(&mut self.buffer)? else {
            return Ok(false);
        };
        let payload = &self.buffer[..arrival.len.min(self.buffer.len())];
        if let Seen::First { seq, due_ns } = self.ledger.received(payload) {
            let rtt_ns = arrival.at_ns.saturating_sub(self.start_ns + due_ns);
            self.rtts.record(rtt_ns);
            let since_sent_ns = self.lateness.without(seq, rtt_ns);
            self.since_sent_ns_max = self.since_sent_ns_max.max(since_sent_ns);
            if let Some(trace) = self.break_trace {
                trace.look(seq, since_sent_ns);
            }
            self.timeline.record(due_ns, rtt_ns);
        }
        Ok(true)
    }

    /// A sender that can't keep up is ended.
    fn check_pace(&mut self, now_ns: u64) -> Result<()> {
        let next_ns = self.start_ns + self.plan.schedule.next_due_ns(self.sent);
        match self.pace.is_kept(now_ns, self.next_due_ns, next_ns) {
            true => Ok(()),
            false => Err(self.not_held(now_ns)),
        }
    }

    fn check_end(&self, end_ns: u64) -> Result<()> {
        let next_ns = self.start_ns + self.plan.schedule.due_ns(self.frames);
        let is_kept = self.pace.is_kept_at_end(self.start_ns, end_ns, next_ns);
        match is_kept || self.sent < self.frames {
            true => Ok(()),
            false => Err(self.not_held(end_ns)),
        }
    }

    fn not_held(&self, now_ns: u64) -> Error {
        let (schedule, span_ns) = (&self.plan.schedule, now_ns - self.start_ns);
        Error::RateNotHeld {
            asked_bps: schedule.rate_until_bps(span_ns),
            held_bps: schedule.bps_of(self.sent, span_ns) as u64,
            no_room: self.no_room,
        }
    }

    /// Takes what still comes: until the time is over, or nothing is missing and no further copies
    /// have come for a while.
    fn drain(&mut self, backend: &mut dyn Backend, end_ns: u64) -> Result<()> {
        let deadline_ns = end_ns + self.plan.config.drain_ns;
        let mut quiet_since_ns = end_ns;
        loop {
            let now_ns = monotonic_ns()?;
            let is_quiet = self.ledger.is_complete() && now_ns >= quiet_since_ns + LINGER_NS;
            if now_ns >= deadline_ns || is_quiet {
                return Ok(());
            }
            if self.receive(backend)? {
                quiet_since_ns = now_ns;
            } else {
                backend.wait(deadline_ns.min(now_ns + LINGER_NS))?;
            }
        }
    }
}
