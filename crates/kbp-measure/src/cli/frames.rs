// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `kbp compare` sends instead of pings: frames whatever comes back, searches for the highest rate without loss,
//! requests to services, or nothing.
//!
//! Not here: sending them ([`crate::tester`]).

use clap::Args;

use super::arrivals::{self, ArrivalsArgs};
use super::services::ServicesArgs;
use super::throughput::Preset;
use crate::compare::row::Traffic;
use crate::error::{Error, Result};
use crate::result::{FramesSetting, SearchSetting};
use crate::tester::openloop::{Arrivals, OpenLoopConfig, Rate, Schedule, FRAME_BYTES_MIN};
use crate::tester::throughput::ThroughputConfig;

/// Which frames, and how fast.
#[derive(Debug, Args)]
pub struct FramesArgs {
    /// Send frames at this rate instead of the ping-pong, whatever comes back: 80M, 1G (bits of the frames a second), 5000fps
    #[arg(long, value_name = "RATE")]
    open_loop: Option<Rate>,
    #[command(flatten)]
    arrivals: ArrivalsArgs,
    /// With --open-loop: frames for so long before those that are measured, in which a mechanism may learn; 20 frames
    /// without this
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000), conflicts_with_all = ["throughput", "no_traffic"])]
    warm_up_ms: Option<u64>,
    /// Search the highest rate without loss (RFC 2544) up to this one instead of the ping-pong
    #[arg(long, value_name = "RATE", conflicts_with = "open_loop")]
    throughput: Option<Rate>,
    /// Send nothing: what a mechanism costs while nobody needs it
    #[arg(long, conflicts_with_all = ["open_loop", "throughput"])]
    no_traffic: bool,
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
    #[command(flatten)]
    services: ServicesArgs,
}

impl FramesArgs {
    /// An open loop or a search of each length; nothing where pings are sent. Frames of an open loop are waited for
    /// `drain_ns`.
    ///
    /// # Errors
    /// A length or a rate out of its range, a length named twice, or arrivals of what is no open loop.
    pub(super) fn traffics(&self, seed: u64, drain_ns: u64) -> Result<Vec<Traffic>> {
        let arrivals = self.arrivals.arrivals()?;
        self.check(&arrivals)?;
        if self.no_traffic {
            return Ok(vec![Traffic::Nothing(0)]);
        }
        let mut traffics: Vec<Traffic> = self.services.traffics(seed);
        if !traffics.is_empty() {
            return Ok(traffics);
        }
        for &bytes in &self.frame {
            let traffic = match self.throughput {
                Some(rate) => Some(self.search(bytes, rate.bps(bytes), seed)),
                None => arrivals::rate_bps(&arrivals, self.open_loop, "--open-loop", bytes)?.map(
                    |rate_bps| {
                        let usual = OpenLoopConfig::new(bytes, rate_bps);
                        Traffic::OpenLoop(OpenLoopConfig {
                            arrivals: arrivals.clone(),
                            drain_ns,
                            seed,
                            warmup_frames: self
                                .warm_up_ms
                                .map_or(usual.warmup_frames, |ms| frames_in(bytes, rate_bps, ms)),
                            ..usual
                        })
                    },
                ),
            };
            if let Some(setting) = traffic.as_ref().and_then(setting) {
                Schedule::new(bytes, setting.rate_bps, 1).map_err(Error::Invalid)?;
            }
            traffics.extend(traffic);
        }
        Ok(traffics)
    }

    fn search(&self, frame_bytes: u32, max_bps: u64, seed: u64) -> Traffic {
        Traffic::Throughput(ThroughputConfig {
            seed,
            ..self.search.config(frame_bytes, max_bps)
        })
    }

    fn check(&self, arrivals: &Arrivals) -> Result<()> {
        let is_constant = *arrivals == Arrivals::Constant;
        let has_rate = self.open_loop.is_some() || arrivals.own_rate_bps(FRAME_BYTES_MIN).is_some();
        if !is_constant && self.throughput.is_some() {
            return Err(Error::Invalid(format!(
                "--throughput with --arrivals {arrivals}: the search of RFC 2544 is made of constant rates; leave one out"
            )));
        }
        if !is_constant && !has_rate {
            return Err(Error::Invalid(format!(
                "--arrivals {arrivals}: how many? Say it with --open-loop RATE"
            )));
        }
        if self.warm_up_ms.is_some() && !has_rate {
            return Err(Error::Invalid(
                "--warm-up-ms is for frames at a rate: name it with --open-loop RATE".into(),
            ));
        }
        if self.no_traffic && !is_constant {
            return Err(Error::Invalid(format!(
                "--no-traffic with --arrivals {arrivals}: nothing arrives; leave one out"
            )));
        }
        let sends_frames = has_rate || self.throughput.is_some();
        let twice = self
            .frame
            .iter()
            .enumerate()
            .find(|(place, bytes)| self.frame[..*place].contains(bytes));
        match twice.filter(|_| sends_frames) {
            Some((_, bytes)) => Err(Error::Invalid(format!(
                "--frame names {bytes} bytes twice: once is enough"
            ))),
            None => Ok(()),
        }
    }
}

/// Frames of `bytes` that a rate has in `ms`, one at least.
fn frames_in(bytes: u32, rate_bps: u64, ms: u64) -> u64 {
    (rate_bps * ms / (u64::from(bytes) * 8_000)).max(1)
}

/// What is sent instead of pings, for the result.
pub(super) fn setting(traffic: &Traffic) -> Option<FramesSetting> {
    match traffic {
        Traffic::PingPong(_) | Traffic::Nothing(_) | Traffic::Service(_) => None,
        Traffic::OpenLoop(config) => Some(FramesSetting {
            frame_bytes: config.frame_bytes,
            rate_bps: config.rate_bps,
            arrivals: config.arrivals.name(),
            warmup_frames: Some(config.warmup_frames),
            search: None,
        }),
        Traffic::Throughput(config) => Some(FramesSetting {
            frame_bytes: config.frame_bytes,
            rate_bps: config.limits.max_bps,
            arrivals: None,
            warmup_frames: None,
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
        let search = &searches.unwrap()[0];
        assert_eq!(search.rate_bps, 1_000_000_000);
        assert_eq!(search.search.unwrap().confirm, 2);
    }

    #[test]
    fn arrivals_are_those_of_an_open_loop() {
        let poisson = settings(&["--open-loop", "5000fps", "--arrivals", "poisson"]).unwrap();
        assert_eq!(poisson[0].arrivals.as_deref(), Some("poisson"));
        assert_eq!(poisson[0].rate_bps, 5_000 * 64 * 8);
        let constant = settings(&["--open-loop", "5000fps", "--arrivals", "constant"]).unwrap();
        assert_eq!(constant, settings(&["--open-loop", "5000fps"]).unwrap());
        assert_eq!(constant[0].arrivals, None);

        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "500000\n1500000\n").unwrap();
        let trace = format!("trace:{}", file.path().display());
        let recorded = settings(&["--arrivals", &trace, "--frame", "64,512"]).unwrap();
        let rates: Vec<u64> = recorded.iter().map(|one| one.rate_bps).collect();
        assert_eq!(rates, [512_000, 4_096_000], "1000 frames a second");
        assert!(recorded[0].arrivals.as_ref().unwrap().starts_with("trace:"));
        let refusal = |words: &[&str]| settings(words).unwrap_err().to_string();
        let why = refusal(&["--arrivals", &trace, "--open-loop", "1M"]);
        assert!(why.contains("leave --open-loop out"), "{why}");
        let why = refusal(&["--arrivals", &trace, "--throughput", "1M"]);
        assert!(why.contains("RFC 2544"), "{why}");
        let why = refusal(&["--arrivals", &trace, "--no-traffic"]);
        assert!(why.contains("nothing arrives"), "{why}");
        let warm = settings(&["--open-loop", "5000fps", "--warm-up-ms", "300"]).unwrap();
        assert_eq!(warm[0].warmup_frames, Some(1500));
        let why = refusal(&["--warm-up-ms", "300"]);
        assert!(why.contains("--open-loop"), "{why}");
        let why = refusal(&["--arrivals", "onoff:1:9"]);
        assert!(why.contains("--open-loop RATE"), "{why}");
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
