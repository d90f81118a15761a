// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure pingpong client` and `server`, for use by hand on any machine. The network
//! namespace is the caller's; `kbp --netns NAME measure …` chooses another.
//!
//! Not here: comparisons ([`crate::compare`]).

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::times;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::place::{run_at, Place};
use crate::report::text::count;
use crate::result::RttNs;
use crate::tester::backend::Kind;
use crate::tester::pingpong::{run_client, ClientConfig, ClientReport, EchoServer, Stop};
use crate::tester::selftest::Floor;

/// `kbp measure pingpong …`
#[derive(Debug, Subcommand)]
pub enum PingpongCommand {
    /// Send pings and measure their round trips
    Client(ClientArgs),
    /// Send every ping and every frame of the open loop back, until interrupted
    Server(ServerArgs),
}

/// Where the end runs.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Run as SCHED_FIFO with this priority
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
}

impl PlaceArgs {
    fn place(&self) -> Place {
        Place {
            cpu: self.cpu,
            fifo_priority: self.fifo,
            netns: None,
        }
    }
}

/// `kbp measure pingpong server`
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Address and port to serve
    #[arg(long, default_value = "0.0.0.0:7700")]
    bind: SocketAddr,
    #[command(flatten)]
    place: PlaceArgs,
}

/// `kbp measure pingpong client`
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Address and port of the server
    server: SocketAddr,
    /// Length of the measured part, seconds
    #[arg(long, default_value_t = 3.0, conflicts_with = "count")]
    seconds: f64,
    /// Number of measured pings, instead of a length
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Mean distance of two pings, µs
    #[arg(long, default_value_t = 1_000)]
    period_us: u64,
    /// Uniform jitter of that distance, ± percent
    #[arg(long, default_value_t = 50)]
    jitter: u64,
    /// UDP payload, bytes
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// A ping without a reply for this long is lost, ms
    #[arg(long, default_value_t = 1_000)]
    timeout_ms: u64,
    /// First pings that stay out of the figures
    #[arg(long, default_value_t = 20)]
    warmup: u64,
    /// Seed of the send times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Spin until the next ping instead of sleeping
    #[arg(long)]
    spin: bool,
    /// Write every measured round trip to this file, in order, ns, one a line
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

impl ClientArgs {
    fn config(&self) -> Result<ClientConfig> {
        if !(self.seconds.is_finite() && (0.0..=1e6).contains(&self.seconds)) {
            return Err(Error::Invalid(format!(
                "{} seconds: it has to be 0 to 1000000",
                self.seconds
            )));
        }
        let ns = |value: u64, unit_ns: u64, name: &str| {
            value
                .checked_mul(unit_ns)
                .filter(|ns| *ns < 1 << 62)
                .ok_or_else(|| {
                    Error::Invalid(format!(
                        "{name} of {value} is more than this clock can count"
                    ))
                })
        };
        Ok(ClientConfig {
            payload_len: self.size,
            period_ns: ns(self.period_us, 1_000, "a period")?,
            jitter_percent: self.jitter,
            timeout_ns: ns(self.timeout_ms, 1_000_000, "a time limit")?,
            warmup_pings: self.warmup,
            stop: match self.count {
                Some(pings) => Stop::Pings(pings),
                None => Stop::AfterNs((self.seconds * 1e9) as u64),
            },
            spin: self.spin,
            keep_series: self.series.is_some(),
            ..ClientConfig::new(self.server, self.seed)
        })
    }
}

pub(super) fn run(command: &PingpongCommand, json: bool) -> Result<u8> {
    match command {
        PingpongCommand::Client(args) => run_client_command(args, json),
        PingpongCommand::Server(args) => run_server(args),
    }
}

fn run_server(args: &ServerArgs) -> Result<u8> {
    let server = EchoServer::start(args.bind, args.place.place())?;
    println!("serving {}", server.addr());
    server.join()?;
    Ok(0)
}

fn run_client_command(args: &ClientArgs, json: bool) -> Result<u8> {
    let config = args.config()?;
    interrupt::catch()?;
    let (floor, report) = run_at(&args.place.place(), || {
        let floor = Floor::of(Kind::Udp)?;
        Ok((floor, run_client(&config, || Ok(()))?))
    })?;
    floor.check(&RttNs::from(&report.rtts))?;
    if let (Some(path), Some(series_ns)) = (&args.series, &report.series_ns) {
        write_series(path, series_ns).map_err(|e| Error::file("write", path, e))?;
    }
    println!(
        "{}",
        if json {
            as_json(&report)
        } else {
            as_table(&report)
        }
    );
    Ok(0)
}

fn write_series(path: &std::path::Path, series_ns: &[u64]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for rtt_ns in series_ns {
        writeln!(file, "{rtt_ns}")?;
    }
    file.flush()
}

fn as_json(report: &ClientReport) -> String {
    serde_json::json!({
        "partial": interrupt::requested(),
        "n": report.measured.answered,
        "lost": report.measured.lost,
        "late": report.measured.late,
        "dup": report.measured.dup,
        "warmup_lost": report.warmup.lost,
        "skipped": report.skipped,
        "foreign": report.foreign,
        "span_ns": report.span_ns,
        "rtt_ns": RttNs::from(&report.rtts),
        "histogram_ns": report.rtts.cells(),
        "timeline_ns": report.timeline.points(),
    })
    .to_string()
}

fn as_table(report: &ClientReport) -> String {
    let counts = &report.measured;
    format!(
        "{} round trips, {} lost ({} of them late), {} duplicates, {} slots skipped, {} foreign\n{}",
        count(counts.answered),
        count(counts.lost),
        count(counts.late),
        count(counts.dup),
        count(report.skipped),
        count(report.foreign),
        times("round trip", &RttNs::from(&report.rtts))
    )
}
