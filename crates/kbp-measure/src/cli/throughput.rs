// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure throughput`: the highest rate without loss, as RFC 2544 has it.
//!
//! Not here: the search ([`crate::tester::throughput`]).

use clap::{Args, ValueEnum};

use super::openloop::{span_ns, PauseArgs, TargetArgs};
use crate::error::Result;
use crate::interrupt;
use crate::place::run_at;
use crate::report::text::micros;
use crate::result::{Row, RttNs};
use crate::tester::openloop::{bits, Rate};
use crate::tester::selftest::Floor;
use crate::tester::throughput::{
    run as run_search, Outcome, ThroughputConfig, ThroughputReport, Wall,
};

/// Sets of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// 60 s a trial, 2 s for late frames, 5 s to settle, to 0.5 %, two trials without loss
    Rfc,
    /// 0.3 s a trial, to 1 %, three trials without loss
    Lab,
    /// 0.1 s a trial, to 3 %, two trials without loss: for the lab's virtual clock
    Short,
}

impl Preset {
    /// A search for frames of this length up to this rate.
    pub(super) fn config(self, frame_bytes: u32, max_bps: u64) -> ThroughputConfig {
        match self {
            Self::Rfc => ThroughputConfig::rfc(frame_bytes, max_bps),
            Self::Lab => ThroughputConfig::lab(frame_bytes, max_bps),
            Self::Short => ThroughputConfig::short(frame_bytes, max_bps),
        }
    }
}

const EXAMPLES: &str = "\
Example, with `kbp measure pingpong server` on 10.0.0.2:
  kbp measure throughput 10.0.0.2:7700 --size 512 --max 1G --preset lab --repeat 3

What keeps the search from higher rates is said: the path, the tester, or --max.";

/// `kbp measure throughput`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ThroughputArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Length of a frame with Ethernet header and FCS, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: u32,
    /// The highest rate to try: bits of the frames a second (80M, 1G), or frames (1000fps)
    #[arg(long, value_name = "RATE", default_value = "1G")]
    max: Rate,
    /// Length of trials, resolution and confirmation
    #[arg(long, value_enum, default_value_t = Preset::Rfc)]
    preset: Preset,
    /// Length of a trial, seconds, instead of the preset's
    #[arg(long, value_name = "SECONDS")]
    trial: Option<f64>,
    /// The bounds' distance that ends the search, percent of --max, instead of the preset's
    #[arg(long, value_name = "PERCENT")]
    resolution: Option<f64>,
    /// Trials without loss that the result needs, instead of the preset's
    #[arg(long, value_name = "N")]
    confirm: Option<u32>,
    /// How often to search
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Frames that are due together
    #[arg(long, value_name = "N", default_value_t = 1)]
    burst: u32,
    /// Marks the frames of this run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pause: PauseArgs,
}

impl ThroughputArgs {
    fn config(&self) -> Result<ThroughputConfig> {
        let mut config = self.preset.config(self.size, self.max.bps(self.size));
        if let Some(seconds) = self.trial {
            config.trial_ns = span_ns(seconds)?;
        }
        let limits = &mut config.limits;
        limits.resolution_percent = self.resolution.unwrap_or(limits.resolution_percent);
        limits.confirm = self.confirm.unwrap_or(limits.confirm);
        Ok(ThroughputConfig {
            burst: self.burst,
            pause: self.pause.pause(),
            seed: self.seed,
            ..config
        })
    }
}

pub(super) fn run(args: &ThroughputArgs, json: bool) -> Result<u8> {
    let config = args.config()?;
    let target = args.target.target()?;
    interrupt::catch()?;
    let (floor, reports) = run_at(&args.target.place(), || {
        let floor = Floor::of(target.kind())?;
        let mut backend = target.open()?;
        let mut reports = Vec::new();
        for _ in 0..args.repeat {
            reports.push(run_search(&mut *backend, &config, note)?);
        }
        Ok((floor, reports))
    })?;
    let rows: Vec<Row> = (1..)
        .zip(&reports)
        .map(|(round, report)| report.row("", "", round))
        .collect();
    for row in &rows {
        floor.check(&row.rtt_ns)?;
    }
    if json {
        println!("{}", serde_json::json!({ "floor": floor, "rows": rows }));
    } else {
        for (report, row) in reports.iter().zip(&rows) {
            println!("{}", sentence(report, &row.rtt_ns));
        }
    }
    Ok(0)
}

/// Progress, on standard error.
fn note(rate_bps: u64, outcome: &Outcome) {
    let what = match outcome {
        Outcome::Clean => "no loss".into(),
        Outcome::Lost(frames) => format!("{frames} lost"),
        Outcome::NotHeld { held_bps } => {
            format!("the tester holds {}", bits(*held_bps as f64))
        }
    };
    eprintln!("{:>16}  {what}", bits(rate_bps as f64));
}

fn sentence(report: &ThroughputReport, rtt: &RttNs) -> String {
    let found = &report.throughput;
    let wall = match report.wall {
        Wall::Path => "above it the path loses frames",
        Wall::Tester => "a lower bound: the tester does not hold more",
        Wall::Asked => "a lower bound: more was not asked for",
    };
    let us = |ns: u64| micros(ns as f64);
    format!(
        "{} bytes: {} without loss, {:.0} frames/s ({wall}; {} trials of {} s, to {} %); \
         round trips there: p50 {}, p99 {}, max {} µs",
        report.frame_bytes,
        bits(found.bps),
        found.frames_per_s,
        found.trials,
        found.trial_ns as f64 / 1e9,
        found.resolution_percent,
        us(rtt.p50),
        us(rtt.p99),
        us(rtt.max)
    )
}
