// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands `kbp measure …` and `kbp report`: their arguments, and what they print.
//!
//! Not here: the measuring itself, and the exit code of an error; the binary maps that
//! from [`crate::Error::class`].

mod demo;
mod functions;
mod party;
mod pingpong;
mod sockets;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::check::{check_demo, Bar};
use crate::error::Result;
use crate::machine::complete_result;
use crate::result::ResultFile;

pub use demo::DemoArgs;
pub use functions::FunctionsArgs;
pub use party::{AgreeArgs, PartyCommand};
pub use pingpong::{ClientArgs, PingpongCommand, ServerArgs};
pub use sockets::SocketsCommand;

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
    /// The demo: softirq, threaded NAPI and KBP side by side, idle and in a storm
    Demo(DemoArgs),
    /// Count calls of kernel functions while a command runs: why one path takes longer than another
    Functions(FunctionsArgs),
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

/// `kbp report`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A result.json
    pub result: PathBuf,
    /// The page to write
    #[arg(short, long, default_value = "report.html")]
    pub output: PathBuf,
    /// Also judge the result by the demo's bars, as `kbp measure check-demo` does
    #[arg(long)]
    pub check: bool,
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
        MeasureCommand::Demo(args) => demo::run(args),
        MeasureCommand::Functions(args) => functions::run(args, json),
        MeasureCommand::Complete(args) => run_complete(args),
        MeasureCommand::CheckDemo(args) => run_check_demo(args, json),
    }
}

/// Runs `kbp report`; returns its exit code.
///
/// # Errors
/// When the result can't be read or the page can't be written.
pub fn run_report(args: &ReportArgs) -> Result<u8> {
    let file = ResultFile::load(&args.result)?;
    crate::report::write(&file, &args.output)?;
    println!("{}: {} rows", args.output.display(), file.rows.len());
    if !args.check {
        return Ok(0);
    }
    Ok(judge(&file, None, false))
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
