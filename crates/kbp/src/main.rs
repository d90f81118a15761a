// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `kbp`: arguments, printing and exit codes.
//!
//! Every decision is in the libraries: `kbp-core` (the host and the kernel module), `kbp-lab` (the
//! lab), `kbp-measure` (load and reports). One file here is one noun of the command line.

mod attach;
mod check;
mod context;
mod load;
mod monitor;
mod poller;
mod print;
mod show;
mod stats;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use kbp_core::{Class, Host};
use kbp_lab::cli::LabCommand;
use kbp_measure::cli::{run_measure, run_report, MeasureCommand, ReportArgs};

use context::Context;

/// Gives chosen receive queues to a poller, on stock Linux kernels.
#[derive(Parser)]
#[command(name = "kbp", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    /// Print JSON.
    #[arg(short, long, global = true)]
    json: bool,
    /// Indent the JSON.
    #[arg(short, long, global = true, requires = "json")]
    pretty: bool,
    /// Work in this network namespace, as `ip -n` does.
    #[arg(short, long, global = true, value_name = "NAME")]
    netns: Option<String>,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  kbp check                            can the module work on this kernel?
  kbp load                             load it; nothing changes for any packet yet
  kbp poller add --cpu 2 -P f:50       a poller on CPU 2, SCHED_FIFO 50
  kbp attach eth0:0 --cpu 2 --dry-run  what attaching would change
  kbp attach eth0:0 --cpu 2            give it receive queue 0 of eth0
  kbp show                             what is requested and what is active
  kbp stats -w 1                       counters, every second
  kbp unload                           put everything back and leave
  kbp lab list                         the stock kernels that the lab can boot

Exit codes: docs/reference/exit-codes.md";

#[derive(Subcommand)]
enum Command {
    /// Create, delete and list pollers.
    #[command(subcommand)]
    Poller(poller::PollerCommand),
    /// Give receive queues to a poller and move their interrupts to its CPU.
    Attach(attach::AttachArgs),
    /// Give receive queues back to softirq and put their interrupts back.
    Detach(attach::DetachArgs),
    /// Show the module, the pollers and what is attached.
    Show,
    /// Show counters.
    Stats(stats::StatsArgs),
    /// Print events as they happen.
    Monitor(monitor::MonitorArgs),
    /// Say whether the module can work on this kernel and, if not, why.
    Check(check::CheckArgs),
    /// Load the module and wait until every task uses it.
    Load(load::LoadArgs),
    /// Put everything back and remove the module.
    Unload(load::UnloadArgs),
    /// Measure latency under load, mode against mode.
    #[command(subcommand)]
    Measure(MeasureCommand),
    /// Make a page of a result.
    Report(ReportArgs),
    /// Run scripts in virtual machines with stock kernels.
    #[command(subcommand)]
    Lab(LabCommand),
}

fn dispatch(command: Command, context: &Context) -> Result<ExitCode> {
    match command {
        Command::Poller(command) => poller::run(command, context)?,
        Command::Attach(args) => attach::attach(args, context)?,
        Command::Detach(args) => attach::detach(args, context)?,
        Command::Show => show::run(context)?,
        Command::Stats(args) => stats::run(args, context)?,
        Command::Monitor(args) => monitor::run(args, context)?,
        Command::Check(args) => return check::run(args, context),
        Command::Load(args) => load::load(args, context)?,
        Command::Unload(args) => load::unload(args, context)?,
        Command::Measure(command) => {
            return Ok(ExitCode::from(run_measure(&command, context.json)?))
        }
        Command::Report(args) => return Ok(ExitCode::from(run_report(&args)?)),
        Command::Lab(command) => return Ok(ExitCode::from(kbp_lab::cli::run(command))),
    }
    Ok(ExitCode::SUCCESS)
}

fn run(cli: Cli) -> Result<ExitCode> {
    if let Some(name) = &cli.netns {
        kbp_core::netns::enter(name).map_err(kbp_core::Error::from)?;
    }
    let context = Context {
        host: Host::system(),
        json: cli.json,
        pretty: cli.pretty,
    };
    dispatch(cli.command, &context)
}

/// The exit code of an error; `None` for a reader of our output that has gone, which is no error.
fn exit_code(error: &anyhow::Error) -> Option<u8> {
    if let Some(error) = error.downcast_ref::<kbp_core::Error>() {
        return Some(error.class().exit_code());
    }
    if let Some(error) = error.downcast_ref::<kbp_measure::Error>() {
        return Some(error.class().exit_code());
    }
    match error.downcast_ref::<std::io::Error>() {
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => None,
        _ => Some(Class::Failure.exit_code()),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => match exit_code(&error) {
            Some(code) => {
                eprintln!("kbp: {error:#}");
                ExitCode::from(code)
            }
            None => ExitCode::SUCCESS,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_class_of_error_has_its_exit_code() {
        let error = kbp_core::Error::from(kbp_core::client::ClientError::NotLoaded);
        assert_eq!(exit_code(&error.into()), Some(3));
        let error = kbp_core::Error::UnknownInterface {
            name: "eth9".into(),
        };
        assert_eq!(exit_code(&error.into()), Some(6));
        assert_eq!(
            exit_code(&std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
            None
        );
    }
}
