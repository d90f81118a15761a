// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `kbp`: arguments, printing and exit codes.
//!
//! Every decision is in the libraries: `kbp-core` (the host and the kernel module), `kbp-lab` (the
//! lab), `kbp-measure` (load and reports). One file here is one noun of the command line.

mod attach;
mod check;
mod context;
mod gone_reader;
mod load;
mod manual;
mod monitor;
mod poller;
mod print;
mod save;
mod show;
mod stats;
mod steered;
mod topo;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use kbp_core::{Class, Host};
use kbp_lab::cli::LabCommand;
use kbp_measure::cli::{
    run_compare, run_measure, run_report, CompareArgs, MeasureCommand, ReportArgs,
};

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
  kbp attach eth0 --cpus 2-3           every queue of eth0, in turn to the pollers of CPU 2 and 3
  kbp attach veth0 --cpu 2             steer what has no NAPI instance to the backlog of CPU 2
  kbp show                             what is requested and what is active
  kbp stats -w 1                       counters, every second
  kbp save                             to /etc/kbp/kbp.toml, so that `kbp restore` brings it back after a restart
  kbp vm list                          virtual machines, their vCPU threads and vhost workers
  kbp unload                           put everything back and leave
  kbp topo list                        the paths to measure on that this machine can make
  kbp lab list                         the stock kernels that the lab can boot

Exit codes: docs/reference/exit-codes.md";

const MEASURE_EXAMPLES: &str = "\
Examples:
  kbp measure pingpong server --cpu 3                 the echo server, until interrupted
  kbp measure pingpong client 192.0.2.1:7700 --json   its round trips, from another machine
  kbp measure check-demo out/demo/result.json         does the demo show what it has to?";

#[derive(Subcommand)]
enum Command {
    /// Create, delete and list pollers.
    #[command(subcommand)]
    Poller(poller::PollerCommand),
    /// Give receive queues to pollers and move their interrupts to the CPUs of these.
    #[command(after_help = attach::EXAMPLES)]
    Attach(attach::AttachArgs),
    /// Give receive queues back to softirq and put back what was changed for them.
    #[command(after_help = attach::DETACH_EXAMPLES)]
    Detach(attach::DetachArgs),
    /// Show the module, the pollers and what is attached.
    Show,
    /// Write what is requested now to a file, from which `kbp restore` brings it back.
    #[command(after_help = save::EXAMPLES)]
    Save(save::SaveArgs),
    /// Create and attach what a file says and is not there.
    #[command(after_help = save::RESTORE_EXAMPLES)]
    Restore(save::RestoreArgs),
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
    /// Place the vCPU threads and vhost workers of virtual machines.
    #[command(subcommand, after_help = vm::EXAMPLES)]
    Vm(vm::VmCommand),
    /// Measure latency under load, mode against mode.
    #[command(subcommand, after_help = MEASURE_EXAMPLES)]
    Measure(MeasureCommand),
    /// Set mechanisms side by side on paths and under loads.
    Compare(Box<CompareArgs>),
    /// Make a page of results: who is ahead, by how much, and how sure that is.
    Report(ReportArgs),
    /// Make, show and remove paths to measure on.
    #[command(subcommand)]
    Topo(topo::TopoCommand),
    /// Run scripts in virtual machines with stock kernels.
    #[command(subcommand)]
    Lab(LabCommand),
    /// Write the manual pages.
    #[command(hide = true)]
    Man(manual::ManArgs),
    /// Print the completions of a shell.
    #[command(hide = true)]
    Completion(manual::CompletionArgs),
}

fn dispatch(command: Command, context: &Context) -> Result<ExitCode> {
    match command {
        Command::Poller(command) => poller::run(command, context)?,
        Command::Attach(args) => attach::attach(args, context)?,
        Command::Detach(args) => attach::detach(args, context)?,
        Command::Show => show::run(context)?,
        Command::Save(args) => save::save(args, context)?,
        Command::Restore(args) => save::restore(args, context)?,
        Command::Stats(args) => stats::run(args, context)?,
        Command::Monitor(args) => monitor::run(args, context)?,
        Command::Check(args) => return check::run(args, context),
        Command::Load(args) => load::load(args, context)?,
        Command::Unload(args) => load::unload(args, context)?,
        Command::Vm(command) => vm::run(command, context)?,
        Command::Measure(command) => {
            return Ok(ExitCode::from(run_measure(&command, context.json)?))
        }
        Command::Compare(args) => return Ok(ExitCode::from(run_compare(&args, context.json)?)),
        Command::Topo(command) => topo::run(command, context)?,
        Command::Report(args) => {
            return Ok(ExitCode::from(run_report(
                &args,
                context.json,
                context.pretty,
            )?))
        }
        Command::Lab(command) => return Ok(ExitCode::from(kbp_lab::cli::run(command))),
        Command::Man(args) => manual::man(Cli::command(), &args)?,
        Command::Completion(args) => manual::completion(Cli::command(), &args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run(cli: Cli) -> Result<ExitCode> {
    if let Some(name) = &cli.netns {
        kbp_core::netns::enter(name).map_err(kbp_core::Error::from)?;
    }
    let context = Context {
        host: Host::system(),
        is_in_netns: cli.netns.is_some(),
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
    if let Some(error) = error.downcast_ref::<kbp_lab::topo::Error>() {
        return Some(topo::exit_code(error));
    }
    match error.downcast_ref::<std::io::Error>() {
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => None,
        _ => Some(Class::Failure.exit_code()),
    }
}

fn main() -> ExitCode {
    gone_reader::tolerated(|| ended(run(Cli::parse())))
}

/// What the program ends with, and why, if it failed.
fn ended(result: Result<ExitCode>) -> ExitCode {
    match result {
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

    #[test]
    fn commands_with_many_options_show_an_example() {
        let cli = Cli::command();
        for name in [
            "attach", "compare", "detach", "measure", "report", "restore", "save", "topo", "vm",
        ] {
            let command = cli.find_subcommand(name).unwrap();
            let help = command.get_after_help().map(ToString::to_string);
            assert!(
                help.unwrap_or_default().contains(&format!("kbp {name} ")),
                "{name}"
            );
        }
    }

    #[test]
    fn every_visible_command_has_its_manual_page() {
        let dir = std::env::temp_dir().join(format!("kbp-man-{}", std::process::id()));
        let args = ["kbp".as_ref(), "man".as_ref(), dir.as_os_str()];
        let Command::Man(args) = Cli::parse_from(args).command else {
            panic!("`kbp man` is another command now");
        };
        manual::man(Cli::command(), &args).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        for command in Cli::command()
            .get_subcommands()
            .filter(|one| !one.is_hide_set())
        {
            let name = command.get_name();
            assert!(
                page(&format!("kbp-{name}.1")).contains(".SH NAME"),
                "{name}"
            );
        }
        assert!(
            page("kbp-report.1").contains("kbp report before.json after.json"),
            "its examples"
        );
        assert!(!dir.join("kbp-man.1").exists(), "hidden commands stay so");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
