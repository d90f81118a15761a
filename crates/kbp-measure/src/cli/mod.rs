// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands `kbp measure …` and `kbp report`: their arguments, and what they print.
//!
//! Not here: the measuring itself, and the exit code of an error; the binary maps that
//! from [`crate::Error::class`].

mod arrivals;
mod compare;
mod compare_args;
mod frames;
mod functions;
mod load;
mod mechanism;
mod openloop;
mod party;
mod pingpong;
mod power;
mod power_text;
mod report;
mod selftest;
mod services;
mod sockets;
mod study;
mod throughput;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::check::{check_demo, Bar};
use crate::error::Result;
use crate::machine::complete_result;
use crate::report::text::micros;
use crate::result::{ResultFile, RttNs};

pub use compare_args::{CompareArgs, CompareCommand};
pub use functions::FunctionsArgs;
pub use load::LoadArgs;
pub use mechanism::{MechanismArgs, MechanismsArgs};
pub use openloop::{OpenLoopArgs, PauseArgs, TargetArgs};
pub use party::{AgreeArgs, PartyCommand};
pub use pingpong::{ClientArgs, PingpongCommand, ServerArgs};
pub use power::PowerArgs;
pub use report::{run_report, ReportArgs};
pub use selftest::SelftestArgs;
pub use sockets::SocketsCommand;
pub use study::StudyArgs;
pub use throughput::ThroughputArgs;

/// Exit code of a command that did its work and whose answer is no.
const EXIT_NOT_MET: u8 = 1;

/// `kbp measure …`
#[derive(Debug, Subcommand)]
pub enum MeasureCommand {
    /// UDP ping-pong between this machine and another, or itself
    #[command(subcommand)]
    Pingpong(PingpongCommand),
    /// Packet rates of one direction, by the way in which packets are handed over
    #[command(subcommand)]
    Sockets(SocketsCommand),
    /// Unmodified programs of third parties: sockperf, iperf3, memcached
    #[command(subcommand)]
    Party(PartyCommand),
    /// Whether our ping-pong and sockperf's see the same path
    Agree(AgreeArgs),
    /// Count calls of kernel functions while a command runs: why one path takes longer than another
    Functions(FunctionsArgs),
    /// Run a load alone for a time, and say what it did
    Load(Box<LoadArgs>),
    /// List the mechanisms and whether they can run here
    Mechanisms(MechanismsArgs),
    /// Run a command while a mechanism serves interfaces, and undo it
    Mechanism(MechanismArgs),
    /// Frames whatever comes back, at constant gaps, random or recorded ones: delay, loss, duplicates, reordering
    Openloop(OpenLoopArgs),
    /// The highest rate without loss (RFC 2544)
    Throughput(ThroughputArgs),
    /// What this machine uses for a time or while a command runs: energy, idle states, interrupts
    Power(PowerArgs),
    /// What the tester can tell apart on this machine
    Selftest(SelftestArgs),
    /// Add what the lab knows about its machine (machine.json) to a result
    Complete(CompleteArgs),
    /// Judge the demo's result by the project's bars
    CheckDemo(CheckDemoArgs),
}

/// `kbp measure check-demo`
#[derive(Debug, Args)]
pub struct CheckDemoArgs {
    /// The demo's result.json
    pub result: PathBuf,
    /// That of a second run, which has to agree with the first
    pub repeated: Option<PathBuf>,
}

/// `kbp measure complete`
#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// The result.json that is completed
    pub result: PathBuf,
    /// The lab's record; machine.json beside the result by default
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Revision of the source
    #[arg(long, value_name = "REV")]
    pub git: Option<String>,
}

/// Runs `kbp measure …`; returns the exit code of a command that came to its end.
///
/// With `json`, what is printed is one JSON object, where a command has one.
///
/// # Errors
/// What kept the command from its end.
pub fn run_measure(command: &MeasureCommand, json: bool) -> Result<u8> {
    match command {
        MeasureCommand::Pingpong(command) => pingpong::run(command, json),
        MeasureCommand::Sockets(command) => sockets::run(command, json),
        MeasureCommand::Party(command) => party::run(command, json),
        MeasureCommand::Agree(args) => party::run_agree(args, json),
        MeasureCommand::Functions(args) => functions::run(args, json),
        MeasureCommand::Load(args) => load::run(args, json),
        MeasureCommand::Mechanisms(args) => mechanism::list(args, json),
        MeasureCommand::Mechanism(args) => mechanism::hold(args),
        MeasureCommand::Openloop(args) => openloop::run(args, json),
        MeasureCommand::Throughput(args) => throughput::run(args, json),
        MeasureCommand::Power(args) => power::run(args, json),
        MeasureCommand::Selftest(args) => selftest::run(args, json),
        MeasureCommand::Complete(args) => run_complete(args),
        MeasureCommand::CheckDemo(args) => run_check_demo(args, json),
    }
}

/// Runs `kbp compare`; returns its exit code.
///
/// # Errors
/// What kept it from its end.
pub fn run_compare(args: &CompareArgs, json: bool) -> Result<u8> {
    match &args.study {
        Some(CompareCommand::Study(args)) => study::run(args, json),
        None => compare::run(args, json),
    }
}

fn run_complete(args: &CompleteArgs) -> Result<u8> {
    let mut file = ResultFile::load(&args.result)?;
    let beside = args.result.with_file_name("machine.json");
    complete_result(&mut file, args.machine.as_ref().unwrap_or(&beside))?;
    if let Some(git) = &args.git {
        file.git.clone_from(git);
    }
    file.save(&args.result)?;
    Ok(0)
}

fn run_check_demo(args: &CheckDemoArgs, json: bool) -> Result<u8> {
    let file = ResultFile::load(&args.result)?;
    let repeated = args.repeated.as_deref().map(ResultFile::load).transpose()?;
    Ok(judge(&file, repeated.as_ref(), json))
}

fn judge(file: &ResultFile, repeated: Option<&ResultFile>, json: bool) -> u8 {
    let bars = check_demo(file, repeated);
    let failed = bars.iter().filter(|bar| !bar.pass).count();
    if json {
        println!("{}", serde_json::json!({ "bars": bars, "failed": failed }));
    } else {
        print_bars(&bars, failed);
    }
    if failed == 0 {
        0
    } else {
        EXIT_NOT_MET
    }
}

fn print_bars(bars: &[Bar], failed: usize) {
    for bar in bars {
        let word = if bar.pass { "pass" } else { "FAIL" };
        println!("{word}  {}\n      {}", bar.demand, bar.found);
    }
    println!("{} of {} bars met", bars.len() - failed, bars.len());
}

/// Round trips as one line; `what` says of what.
fn times(what: &str, rtt: &RttNs) -> String {
    let us = |ns: u64| micros(ns as f64);
    format!(
        "{what}, µs: min {}, p50 {}, p90 {}, p99 {}, p99.9 {}, max {}, mean {}",
        us(rtt.min),
        us(rtt.p50),
        us(rtt.p90),
        us(rtt.p99),
        us(rtt.p999),
        us(rtt.max),
        micros(rtt.mean)
    )
}
