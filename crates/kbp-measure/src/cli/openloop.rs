// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure openloop`: frames whatever comes back, by hand on any machine.
//!
//! Not here: the loop ([`crate::tester::openloop`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use kbp_core::host::TRACEFS;

use super::arrivals::{self, ArrivalsArgs};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::place::{run_at, Place};
use crate::report::text::{count, micros};
use crate::result::RttNs;
use crate::tester::backend::{Ends, Kind, Target};
use crate::tester::openloop::{
    bits, run as run_loop, Account, BreakTrace, OpenLoopConfig, OpenLoopReport, Pause, Rate,
};
use crate::tester::pingpong::RoundTrips;
use crate::tester::selftest::Floor;

/// Exit code of a run that an interrupt ended: its figures are of a part.
const EXIT_PARTIAL: u8 = 1;
/// Longest run that the header of a frame can tell, seconds; that of the account is shorter.
const SECONDS_MAX: f64 = 200_000.0;

/// Where the frames go, and from where.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Address and port of the echo server (`kbp measure pingpong server`)
    server: SocketAddr,
    /// How frames get on the path: a UDP socket, mapped rings on an interface, a QEMU guest's card
    #[arg(long, value_enum, default_value_t = Kind::Udp)]
    backend: Kind,
    /// The interface (ring)
    #[arg(long, value_name = "NAME", required_if_eq("backend", "ring"))]
    interface: Option<String>,
    /// The path given to `kbp lab run --wire` (wire)
    #[arg(long, value_name = "PATH", required_if_eq("backend", "wire"))]
    wire: Option<PathBuf>,
    /// The tester's own IPv4 address, which no host may have (ring, wire)
    #[arg(long, value_name = "IP", required_if_eq_any([("backend", "ring"), ("backend", "wire")]))]
    address: Option<Ipv4Addr>,
    /// The router to the server, when it is on another network (ring, wire)
    #[arg(long, value_name = "IP")]
    next_hop: Option<Ipv4Addr>,
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Run as SCHED_FIFO with this priority
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
}

impl TargetArgs {
    pub(super) fn place(&self) -> Place {
        Place {
            cpu: self.cpu,
            fifo_priority: self.fifo,
            netns: None,
        }
    }

    pub(super) fn target(&self) -> Result<Target> {
        if self.backend == Kind::Udp {
            return Ok(Target::Udp {
                server: self.server,
            });
        }
        let ends = self.ends()?;
        match (self.backend, &self.interface, &self.wire) {
            (Kind::Ring, Some(interface), _) => Ok(Target::Ring {
                interface: interface.clone(),
                ends,
            }),
            (Kind::Wire, _, Some(path)) => Ok(Target::Wire {
                path: path.clone(),
                ends,
            }),
            _ => Err(Error::Invalid(
                "the ring needs --interface, the wire needs --wire".into(),
            )),
        }
    }

    fn ends(&self) -> Result<Ends> {
        let (IpAddr::V4(ip), Some(address)) = (self.server.ip(), self.address) else {
            return Err(Error::Invalid(format!(
                "{} with the back end {}: ring and wire speak IPv4 and need --address",
                self.server, self.backend
            )));
        };
        Ok(Ends {
            address,
            server: SocketAddrV4::new(ip, self.server.port()),
            next_hop: self.next_hop,
        })
    }
}

/// What the sender does between frames.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Spin between frames (default where they are less than 200 µs apart)
    #[arg(long, conflicts_with = "sleep")]
    spin: bool,
    /// Sleep between frames
    #[arg(long)]
    sleep: bool,
}

impl PauseArgs {
    pub(super) fn pause(&self) -> Option<Pause> {
        match (self.spin, self.sleep) {
            (true, _) => Some(Pause::Spin),
            (_, true) => Some(Pause::Sleep),
            _ => None,
        }
    }
}

/// The rate where neither one nor a trace is given.
const RATE: Rate = Rate::Bits(80_000_000);

const EXAMPLES: &str = "\
Examples, with `kbp measure pingpong server` on 10.0.0.2:
  kbp measure openloop 10.0.0.2:7700 --rate 80M --size 64 --seconds 60 --repeat 5
  kbp measure openloop 10.0.0.2:7700 --rate 1000fps --arrivals poisson --seed 7

A rate that is not held ends the run with a sentence; it is never lowered silently.
docs/reference/tester.md says what is counted and how.";

/// `kbp measure openloop`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct OpenLoopArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Mean rate: bits of the frames a second without preamble and gap (80M, 1G), or frames (1000fps) [default: 80M]
    #[arg(long)]
    rate: Option<Rate>,
    #[command(flatten)]
    arrivals: ArrivalsArgs,
    /// Length of a frame with Ethernet header and FCS, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: u32,
    /// Length of the measured part, seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often to run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Frames that are due together, at constant arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    burst: u32,
    /// Frames before the measured part
    #[arg(long, value_name = "N", default_value_t = 20)]
    warmup: u64,
    /// How long frames are waited for after the last one, ms
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    drain_ms: u64,
    /// Marks the frames of this run, and draws the gaps of poisson
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pause: PauseArgs,
    /// Stop the kernel's trace at the first measured frame that comes later than this after it was sent, µs; the run goes on
    #[arg(long, value_name = "US")]
    break_trace: Option<u32>,
}

impl OpenLoopArgs {
    fn config(&self) -> Result<OpenLoopConfig> {
        let arrivals = self.arrivals.arrivals()?;
        let rate_bps = arrivals::rate_bps(&arrivals, self.rate, "--rate", self.size)?;
        let config = OpenLoopConfig::new(self.size, rate_bps.unwrap_or(RATE.bps(self.size)));
        Ok(OpenLoopConfig {
            arrivals,
            burst: self.burst,
            span_ns: span_ns(self.seconds)?,
            warmup_frames: self.warmup,
            drain_ns: self.drain_ms * 1_000_000,
            pause: self.pause.pause().unwrap_or(config.pause),
            seed: self.seed,
            break_trace: self.break_trace()?,
            ..config
        })
    }

    fn break_trace(&self) -> Result<Option<Arc<BreakTrace>>> {
        let Some(us) = self.break_trace else {
            return Ok(None);
        };
        let trace = BreakTrace::new(Path::new(TRACEFS), u64::from(us) * 1_000)?;
        Ok(Some(Arc::new(trace)))
    }
}

/// A number of seconds from the command line, as nanoseconds.
pub(super) fn span_ns(seconds: f64) -> Result<u64> {
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return Err(Error::Invalid(format!(
            "{seconds} seconds: it has to be above 0 and at most {SECONDS_MAX}"
        )));
    }
    Ok((seconds * 1e9) as u64)
}

/// What is printed: the floor first, because it says what the rest is worth.
struct Found {
    floor: Floor,
    reports: Vec<OpenLoopReport>,
    break_trace: Option<Arc<BreakTrace>>,
}

pub(super) fn run(args: &OpenLoopArgs, json: bool) -> Result<u8> {
    let config = args.config()?;
    let target = args.target.target()?;
    interrupt::catch()?;
    let found = run_at(&args.target.place(), || measure(args, &target, &config))?;
    let (account, rtts) = OpenLoopReport::merged(&found.reports);
    found.floor.check(&RttNs::from(&rtts))?;
    let is_partial =
        found.reports.len() < args.repeat as usize || found.reports.iter().any(|r| r.partial);
    if json {
        println!("{}", as_json(&found, &account, &rtts, is_partial));
    } else {
        print!("{}", as_table(&found, &account, &rtts));
        if is_partial {
            println!("interrupted: these figures are of a part");
        }
    }
    Ok(if is_partial { EXIT_PARTIAL } else { 0 })
}

fn measure(args: &OpenLoopArgs, target: &Target, config: &OpenLoopConfig) -> Result<Found> {
    let floor = Floor::of(target.kind())?;
    let mut backend = target.open()?;
    let mut reports = Vec::new();
    for _ in 0..args.repeat {
        if interrupt::requested() {
            break;
        }
        reports.push(run_loop(&mut *backend, config, || Ok(()))?);
    }
    Ok(Found {
        floor,
        reports,
        break_trace: config.break_trace.clone(),
    })
}

fn as_json(found: &Found, account: &Account, rtts: &RoundTrips, partial: bool) -> String {
    let rows: Vec<_> = (1..)
        .zip(&found.reports)
        .map(|(round, report)| report.row("", "", round))
        .collect();
    serde_json::json!({
        "floor": found.floor,
        "partial": partial,
        "sent": account.sent,
        "n": account.returned,
        "lost": account.lost,
        "dup": account.duplicated,
        "reordered": account.reordered,
        "foreign": account.foreign,
        "tester_drops": found.reports.iter().map(|r| r.drops.tester).sum::<u64>(),
        "rtt_ns": RttNs::from(rtts),
        "trace_stopped": found.break_trace.as_ref().map(|trace| trace.is_stopped()),
        "p9999_ns": rtts.percentile_ns(99.99),
        "histogram_ns": rtts.cells(),
        "rows": rows,
    })
    .to_string()
}

fn as_table(found: &Found, account: &Account, rtts: &RoundTrips) -> String {
    let us = |ns: u64| micros(ns as f64);
    let floor = &found.floor;
    let mut text = format!(
        "floor of the tester ({}): {} µs; this machine takes the CPU away for up to {} µs\n",
        floor.backend,
        us(floor.self_ns.min),
        us(floor.gap_ns_max)
    );
    if let Some(first) = found.reports.first() {
        let arrivals = first.arrivals.name();
        text += &format!(
            "frames of {} bytes at {}{}, round trips from the due time, µs\n",
            first.frame_bytes,
            bits(first.rate_bps as f64),
            arrivals.map_or(String::new(), |name| format!(", arrivals {name}"))
        );
    }
    text += &heading();
    for (round, report) in (1..).zip(&found.reports) {
        text += &line(
            &format!("{round}"),
            &report.account,
            &report.rtts,
            report.send_late_ns_max,
        );
    }
    if found.reports.len() > 1 {
        let late = found.reports.iter().map(|r| r.send_late_ns_max).max();
        text += &line("all", account, rtts, late.unwrap_or(0));
    }
    let drops: u64 = found.reports.iter().map(|r| r.drops.tester).sum();
    if drops > 0 || account.foreign > 0 {
        text += &format!(
            "{} of the lost frames were dropped at the tester itself; {} foreign datagrams came\n",
            count(drops),
            count(account.foreign)
        );
    }
    if found
        .break_trace
        .as_ref()
        .is_some_and(|trace| trace.is_stopped())
    {
        text += &format!("a frame came too late: its mark is at the end of {TRACEFS}/trace\n");
    }
    text
}

fn heading() -> String {
    format!(
        "{:>4} {:>10} {:>8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "run",
        "sent",
        "lost",
        "dup",
        "reordered",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "sent late"
    )
}

fn line(name: &str, account: &Account, rtts: &RoundTrips, late_ns: u64) -> String {
    let us = |ns: u64| micros(ns as f64);
    let at = |percent| us(rtts.percentile_ns(percent));
    format!(
        "{name:>4} {:>10} {:>8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        count(account.sent),
        count(account.lost),
        count(account.duplicated),
        count(account.reordered),
        at(50.0),
        at(90.0),
        at(99.0),
        at(99.9),
        at(99.99),
        us(rtts.max_ns()),
        us(late_ns)
    )
}
