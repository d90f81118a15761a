// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The open loop: frames at times that are known before, whatever comes back, so that waiting counts and is not
//! hidden by a sender that waits too (no coordinated omission). Round trips count from the moment
//! at which a frame was due.
//!
//! * [`arrivals`](Arrivals): constant, random, on and off, or recorded
//! * [`break_trace`](BreakTrace): stops the kernel's trace at a late frame
//! * `cycle`: random and recorded times
//! * [`schedule`](Schedule): when each frame is due
//! * `pace`: whether the sender keeps up with that
//! * [`probe`](Probe): the 18 bytes that a frame carries
//! * [`ledger`](Ledger): the exact account
//! * `lateness`: how late each frame was sent
//! * [`run`](run()): the loop
//! * `turns`: how a sender that spins is scheduled
//!
//! Not here: how frames get on the path ([`super::backend`]) and the search for the highest rate
//! ([`super::throughput`]).

mod arrivals;
mod break_trace;
mod cycle;
mod lateness;
mod ledger;
mod pace;
mod probe;
mod report;
mod run;
mod schedule;
mod turns;

pub use arrivals::{Arrivals, Trace};
pub use break_trace::BreakTrace;
pub use cycle::poisson_ns;
pub use ledger::{Account, Ledger, Seen, FRAMES_MAX};
pub use probe::{Probe, PROBE_LEN};
pub use report::OpenLoopReport;
pub use run::{run, OpenLoopConfig, Pause};
pub use schedule::{
    bits, Rate, Schedule, FRAME_BYTES_MAX, FRAME_BYTES_MIN, OVERHEAD_V4, OVERHEAD_V6, RATE_BPS_MIN,
};
pub(super) use turns::Turns;
