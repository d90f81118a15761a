// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `kbp compare` sends instead of pings: frames at a constant rate, or searches for the highest rate without loss.
//!
//! Not here: sending them ([`crate::tester`]).

use clap::Args;

use super::throughput::Preset;
use crate::compare::row::Traffic;
use crate::error::{Error, Result};
use crate::result::{FramesSetting, SearchSetting};
use crate::tester::openloop::{OpenLoopConfig, Rate, Schedule};
use crate::tester::throughput::ThroughputConfig;

/// Which frames, and how fast.
#[derive(Debug, Args)]
pub struct FramesArgs {
    /// Send frames at this rate instead of the ping-pong, whatever comes back: 80M, 1G (bits of the frames a second), 5000fps
    #[arg(long, value_name = "RATE")]
    open_loop: Option<Rate>,
    /// Search the highest rate without loss (RFC 2544) up to this one instead of the ping-pong
    #[arg(long, value_name = "RATE", conflicts_with = "open_loop")]
    throughput: Option<Rate>,
    /// Length of the trials, resolution and confirmation of --throughput
    #[arg(long, value_enum, default_value_t = Preset::Lab, value_name = "PRESET")]
    search: Preset,
    /// Lengths of frames with header and FCS, bytes; a row of each, with --open-loop and --throughput
    #[arg(
        long,
        default_value = "64",
        value_delimiter = ',',
        value_name = "BYTES"
    )]
    frame: Vec<u32>,
}

impl FramesArgs {
    /// An open loop or a search of each length; nothing where pings are sent. Frames of an open loop are waited for
    /// `drain_ns`.
    ///
    /// # Errors
    /// A length or a rate out of its range, or a length named twice.
    pub(super) fn traffics(&self, seed: u64, drain_ns: u64) -> Result<Vec<Traffic>> {
        let Some(rate) = self.throughput.or(self.open_loop) else {
            return Ok(vec![]);
        };
        let mut traffics = Vec::new();
        for (place, &bytes) in self.frame.iter().enumerate() {
            if self.frame[..place].contains(&bytes) {
                return Err(Error::Invalid(format!(
                    "--frame names {bytes} bytes twice: once is enough"
                )));
            }
            let rate_bps = rate.bps(bytes);
            Schedule::new(bytes, rate_bps, 1).map_err(Error::Invalid)?;
            traffics.push(match self.throughput {
                Some(_) => Traffic::Throughput(ThroughputConfig {
                    seed,
                    ..self.search.config(bytes, rate_bps)
                }),
                None => Traffic::OpenLoop(OpenLoopConfig {
                    drain_ns,
                    seed,
                    ..OpenLoopConfig::new(bytes, rate_bps)
                }),
            });
        }
        Ok(traffics)
    }
}

/// What is sent instead of pings, for the result.
pub(super) fn setting(traffic: &Traffic) -> Option<FramesSetting> {
    match traffic {
        Traffic::PingPong(_) => None,
        Traffic::OpenLoop(config) => Some(FramesSetting {
            frame_bytes: config.frame_bytes,
            rate_bps: config.rate_bps,
            search: None,
        }),
        Traffic::Throughput(config) => Some(FramesSetting {
            frame_bytes: config.frame_bytes,
            rate_bps: config.limits.max_bps,
            search: Some(SearchSetting {
                trial_ns: config.trial_ns,
                drain_ns: config.drain_ns,
                settle_ns: config.settle_ns,
                resolution_percent: config.limits.resolution_percent,
                confirm: config.limits.confirm,
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FramesArgs,
    }

    fn settings(words: &[&str]) -> Result<Vec<FramesSetting>> {
        let line = std::iter::once("compare").chain(words.iter().copied());
        let args = Line::try_parse_from(line).unwrap().args;
        Ok(args.traffics(1, 1)?.iter().filter_map(setting).collect())
    }

    #[test]
    fn every_length_has_its_rate() {
        assert_eq!(settings(&[]).unwrap(), []);
        let loops = settings(&["--open-loop", "5000fps", "--frame", "64,1518"]).unwrap();
        let rates: Vec<u64> = loops.iter().map(|one| one.rate_bps).collect();
        assert_eq!(rates, [5_000 * 64 * 8, 5_000 * 1_518 * 8]);
        assert!(loops.iter().all(|one| one.search.is_none()));
        let searches = settings(&["--throughput", "1G", "--search", "short", "--frame", "512"]);
        let search = searches.unwrap()[0];
        assert_eq!(search.rate_bps, 1_000_000_000);
        assert_eq!(search.search.unwrap().confirm, 2);
    }

    #[test]
    fn what_no_frame_can_be_is_refused() {
        let refusal = |frame: &str| {
            let error = settings(&["--open-loop", "1M", "--frame", frame]);
            error.unwrap_err().to_string()
        };
        assert!(refusal("64,512,64").contains("twice"));
        assert!(refusal("20").contains("20 bytes"));
    }
}
