// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The argument `--arrivals` of everything that sends frames whatever comes back, and the rate that goes with it.
//!
//! Not here: what can be asked for ([`crate::tester::openloop::Arrivals`]).

use clap::Args;

use crate::error::{Error, Result};
use crate::tester::openloop::{Arrivals, Rate};

/// Which times frames are due at.
#[derive(Debug, Args)]
pub struct ArrivalsArgs {
    /// When frames come: constant, poisson, onoff:ON_MS:OFF_MS (at constant gaps, then none; the rate is the mean), or
    /// trace:FILE (a gap in nanoseconds a line, in a circle; instead of a rate)
    #[arg(long, value_name = "WHEN", default_value = "constant")]
    arrivals: String,
}

impl ArrivalsArgs {
    /// What was asked for; a trace is read.
    ///
    /// # Errors
    /// Those of [`Arrivals::parse`].
    pub(super) fn arrivals(&self) -> Result<Arrivals> {
        Arrivals::parse(&self.arrivals)
    }
}

/// The rate of frames of `frame_bytes`, bit/s: that of a trace, or else `asked` with `option`; `None` where there is
/// neither.
///
/// # Errors
/// Where a trace and a rate were asked for.
pub(super) fn rate_bps(
    arrivals: &Arrivals,
    asked: Option<Rate>,
    option: &str,
    frame_bytes: u32,
) -> Result<Option<u64>> {
    match (arrivals.own_rate_bps(frame_bytes), asked) {
        (Some(_), Some(_)) => Err(Error::Invalid(format!(
            "{option} with --arrivals {arrivals}: a trace has a rate of its own; leave {option} out"
        ))),
        (Some(own_bps), None) => Ok(Some(own_bps)),
        (None, asked) => Ok(asked.map(|rate| rate.bps(frame_bytes))),
    }
}
