// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp lab ...`: arguments, printing and exit codes. A binary embeds [`LabCommand`] and calls [`run`].
//!
//! Not here: doing anything; that is [`Lab`].

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cache::Clean;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lab::{KernelState, Lab};
use crate::payload::GuestFile;
use crate::qemu::Nics;
use crate::run::{MachineSpec, Outcome, Verdict};

/// The test passed, or the command did its work.
pub const EXIT_PASS: u8 = 0;
/// The test failed, or skipped without being listed in `kernels.toml`.
pub const EXIT_FAIL: u8 = 1;
/// The test skipped, as listed in `kernels.toml`.
pub const EXIT_SKIP: u8 = 4;
/// The machine was lost: a panic (an oops or a soft lockup, too), or QEMU died. Says nothing about the test.
pub const EXIT_LOST: u8 = 70;
/// The script ran longer than its time limit.
pub const EXIT_TIMED_OUT: u8 = 71;
/// The machine could not be set up.
pub const EXIT_SETUP: u8 = 72;
/// The virtual clock was not fair enough.
pub const EXIT_CLOCK: u8 = 73;

/// The commands of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run a script in a machine with a stock kernel
    Run(Box<RunArgs>),
    /// Build modules for a kernel and print where the .ko files are
    Build(BuildArgs),
    /// List the kernels, and which are in the cache
    List(ListArgs),
    /// Download what kernels need, so that `run` works without a network
    Fetch(FetchArgs),
    /// Empty the cache: by default what is built again in seconds
    Clean(CleanArgs),
}

/// Arguments of `kbp lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The script, in the folder lab/; without --shell it is required
    script: Option<PathBuf>,
    /// The kernel's id, see `kbp lab list`
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Number of CPUs
    #[arg(long, default_value_t = 4)]
    cpus: u32,
    /// Memory in MiB
    #[arg(long = "mem", value_name = "MIB", default_value_t = 256)]
    memory_mib: u32,
    /// What the guest's time is: executed instructions (1 ns each) of all CPUs in turn or of each by itself (`parallel`, which
    /// needs `make lab-qemu`), or the host's time
    #[arg(long, value_enum, default_value_t = Clock::Virtual)]
    clock: Clock,
    /// Network cards on one hub, for instance 2 or 2:virtio-net-pci (default model: e1000e, or the one in kernels.toml)
    #[arg(long, value_name = "N[:MODEL]", default_value = "0")]
    nics: Nics,
    /// One more card, $LAB_WIRE, for a tester on the host: `kbp measure openloop --backend wire --wire PATH`; needs
    /// --clock real
    #[arg(long, value_name = "PATH")]
    wire: Option<PathBuf>,
    /// A folder of kernel modules to build; the .ko files are in $MODULES
    #[arg(long = "module", value_name = "DIR")]
    modules: Vec<PathBuf>,
    /// A file or folder for the guest, with the libraries it needs
    #[arg(long = "file", value_name = "HOST[:GUEST]")]
    files: Vec<GuestFile>,
    /// A Debian package for the guest, with the libraries it needs
    #[arg(long = "package", value_name = "PKG")]
    packages: Vec<String>,
    /// The folder for what the script leaves in $OUT
    #[arg(long = "out", value_name = "DIR")]
    out_dir: Option<PathBuf>,
    /// The script's time limit, for instance 90, 90s or 5m
    #[arg(long, default_value = "120s", value_parser = parse_duration)]
    timeout: Duration,
    /// More words for the kernel's command line
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Open a shell in the guest on this terminal
    #[arg(long)]
    shell: bool,
    /// Boot anew instead of going on from a snapshot
    #[arg(long)]
    cold: bool,
    /// Boot a whole Debian from a disk, for instance debian; see [root] in lab/kernels.toml. Needs --clock real
    #[arg(long, value_name = "NAME")]
    root: Option<String>,
    /// With --root: when the script has passed, reboot the disk into this kernel and run the script again
    #[arg(long, value_name = "KERNEL")]
    then: Vec<String>,
    /// The guest can run a virtual machine with this kernel: QEMU and what it boots are in the guest, see lab/nested.sh
    #[arg(long, value_name = "KERNEL")]
    nested: Option<String>,
    /// Show the guest's console
    #[arg(short, long)]
    verbose: bool,
    /// The folder with kernels.toml (default: lab/, searched from here upwards)
    #[arg(long, value_name = "DIR")]
    lab: Option<PathBuf>,
    /// Arguments for the script
    #[arg(last = true)]
    args: Vec<String>,
}

/// Arguments of `kbp lab build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The kernel's id, see `kbp lab list`
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// A folder of kernel modules
    #[arg(long = "module", value_name = "DIR", required = true)]
    modules: Vec<PathBuf>,
    /// The folder with kernels.toml
    #[arg(long, value_name = "DIR")]
    lab: Option<PathBuf>,
    /// More arguments for make, whose output is then shown
    #[arg(last = true)]
    words: Vec<String>,
}

/// Arguments of `kbp lab list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The folder with kernels.toml
    #[arg(long, value_name = "DIR")]
    lab: Option<PathBuf>,
}

/// Arguments of `kbp lab fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// Ids of kernels; all of them by default
    kernels: Vec<String>,
    /// Look for newer versions than those in the cache
    #[arg(long)]
    refresh: bool,
    /// The folder with kernels.toml
    #[arg(long, value_name = "DIR")]
    lab: Option<PathBuf>,
}

/// Arguments of `kbp lab clean`.
#[derive(Debug, Args)]
pub struct CleanArgs {
    /// Remove everything
    #[arg(long, conflicts_with = "keep_downloads")]
    all: bool,
    /// Remove everything but the downloaded packages
    #[arg(long)]
    keep_downloads: bool,
}

/// Carries out a command and returns the program's exit code. Errors are printed.
#[must_use]
pub fn run(command: LabCommand) -> u8 {
    let result = match command {
        LabCommand::Run(args) => run_script(*args),
        LabCommand::Build(args) => build(&args),
        LabCommand::List(args) => list(&args),
        LabCommand::Fetch(args) => fetch(&args),
        LabCommand::Clean(args) => clean(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("lab: {error}");
        EXIT_SETUP
    })
}

fn run_script(args: RunArgs) -> Result<u8> {
    let lab = Lab::open(args.lab.as_deref())?;
    let spec = MachineSpec {
        kernel: args.kernel,
        cpus: args.cpus,
        memory_mib: args.memory_mib,
        clock: args.clock,
        nics: args.nics,
        wire: args.wire,
        modules: args.modules,
        files: args.files,
        packages: args.packages,
        append: args.append,
        script: args.script,
        args: args.args,
        out_dir: args.out_dir,
        timeout: args.timeout,
        shell: args.shell,
        verbose: args.verbose,
        cold: args.cold,
        root: args.root,
        then: args.then,
        nested: args.nested,
    };
    let outcome = lab.run(&spec, || Box::new(std::io::stdout()))?;
    let (code, sentence) = judge(&outcome, lab.listed_skip(&spec));
    if matches!(outcome.verdict, Verdict::Lost { .. } | Verdict::TimedOut) && !args.verbose {
        eprintln!("lab: the end of the console:\n{}", outcome.console_tail);
    }
    eprintln!(
        "lab: {sentence} (boot {:.1} s, script {:.1} s)",
        outcome.boot.as_secs_f64(),
        outcome.script.as_secs_f64()
    );
    Ok(code)
}

/// The exit code and the sentence for an outcome.
fn judge(outcome: &Outcome, listed_skip: Option<&str>) -> (u8, String) {
    match (&outcome.verdict, listed_skip) {
        (Verdict::Pass, _) => (EXIT_PASS, "passed".into()),
        (Verdict::Fail { code }, _) => (
            EXIT_FAIL,
            format!("failed: the script's exit code is {code}"),
        ),
        (Verdict::Skip, Some(reason)) => (EXIT_SKIP, format!("skipped as listed: {reason}")),
        (Verdict::Skip, None) => (
            EXIT_FAIL,
            "failed: the script skipped, but kernels.toml does not list that for this kernel"
                .into(),
        ),
        (Verdict::Lost { reason, .. }, _) => (
            EXIT_LOST,
            format!("the machine was lost, which is no result: {reason}"),
        ),
        (Verdict::TimedOut, _) => (
            EXIT_TIMED_OUT,
            "the script ran into its time limit; --timeout raises it".into(),
        ),
        (Verdict::ClockRefused { reason }, _) => {
            (EXIT_CLOCK, format!("the clock is not fair: {reason}"))
        }
    }
}

fn build(args: &BuildArgs) -> Result<u8> {
    let lab = Lab::open(args.lab.as_deref())?;
    let kernel = lab.fetch(&args.kernel, false)?;
    for source in &args.modules {
        for module in lab.build_module(&kernel, source, &args.words)? {
            println!("{}", module.display());
        }
    }
    Ok(EXIT_PASS)
}

fn list(args: &ListArgs) -> Result<u8> {
    let kernels = Lab::open(args.lab.as_deref())?.kernels();
    if args.json {
        let text = serde_json::to_string_pretty(&kernels).map_err(|error| {
            Error::Argument(format!("the list cannot be written as JSON: {error}"))
        })?;
        println!("{text}");
    } else {
        print!("{}", table(&kernels));
    }
    Ok(EXIT_PASS)
}

fn table(kernels: &[KernelState]) -> String {
    let mut text = format!(
        "{:<16} {:<28} {:<24} {:<8} TOOLCHAIN\n",
        "KERNEL", "RELEASE", "PACKAGE", "COMPILER"
    );
    for kernel in kernels {
        let abi = kernel.abi.as_deref().unwrap_or("not in the cache");
        let version = kernel.version.as_deref().unwrap_or("-");
        text.push_str(&format!(
            "{:<16} {abi:<28} {version:<24} {:<8} {}\n",
            kernel.id, kernel.compiler, kernel.toolchain
        ));
    }
    text
}

fn fetch(args: &FetchArgs) -> Result<u8> {
    let lab = Lab::open(args.lab.as_deref())?;
    let all: Vec<String> = lab.config().kernel.keys().cloned().collect();
    let wanted = if args.kernels.is_empty() {
        &all
    } else {
        &args.kernels
    };
    for id in wanted {
        let kernel = lab.fetch(id, args.refresh)?;
        lab.fetch_tools(id, args.refresh)?;
        eprintln!(
            "lab: kernel {id} is ready: {} ({})",
            kernel.abi, kernel.version
        );
    }
    Ok(EXIT_PASS)
}

fn clean(args: &CleanArgs) -> Result<u8> {
    let what = match (args.all, args.keep_downloads) {
        (true, _) => Clean::All,
        (false, true) => Clean::KeepDownloads,
        (false, false) => Clean::Built,
    };
    let freed = crate::Cache::open_default()?.clean(what)?;
    eprintln!("lab: {} MiB freed", freed >> 20);
    Ok(EXIT_PASS)
}

/// Reads `N`, `Ns` or `Nm`.
fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let (number, factor) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    match number.parse::<u64>() {
        Ok(number) if (1..=86_400).contains(&(number * factor)) => {
            Ok(Duration::from_secs(number * factor))
        }
        _ => Err(format!("'{text}' is no time from 1s to 1440m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: LabCommand,
    }

    fn outcome(verdict: Verdict) -> Outcome {
        Outcome {
            verdict,
            turns: None,
            console_tail: String::new(),
            boot: Duration::ZERO,
            script: Duration::ZERO,
        }
    }

    #[test]
    fn a_lost_machine_is_never_a_failed_test() {
        let code = |verdict, skip| judge(&outcome(verdict), skip).0;
        assert_eq!(code(Verdict::Pass, None), EXIT_PASS);
        assert_eq!(code(Verdict::Fail { code: 70 }, None), EXIT_FAIL);
        assert_eq!(code(Verdict::Skip, Some("why")), EXIT_SKIP);
        assert_eq!(code(Verdict::Skip, None), EXIT_FAIL);
        assert_eq!(
            code(
                Verdict::Lost {
                    reason: String::new(),
                    init_ran: true
                },
                None
            ),
            EXIT_LOST
        );
        assert_eq!(code(Verdict::TimedOut, None), EXIT_TIMED_OUT);
        assert_eq!(
            code(
                Verdict::ClockRefused {
                    reason: String::new()
                },
                None
            ),
            EXIT_CLOCK
        );
    }

    #[test]
    fn the_command_line_of_the_manual() {
        let line = "kbp run lab/tests/a.sh --kernel 6.12 --cpus 2 --mem 512 --clock real --nics 2:igb --module kmod \
                    --file a:/b --package sockperf --out o --timeout 5m --append nohz=off -v -- one --two";
        let program = Program::try_parse_from(line.split_whitespace()).unwrap();
        let LabCommand::Run(args) = program.command else {
            panic!("not run")
        };
        assert_eq!(
            (args.cpus, args.memory_mib, args.clock, args.nics.count),
            (2, 512, Clock::Real, 2)
        );
        assert_eq!(
            (args.timeout, args.args),
            (
                Duration::from_secs(300),
                vec!["one".to_string(), "--two".into()]
            )
        );
        assert!(Program::try_parse_from(["kbp", "clean", "--all", "--keep-downloads"]).is_err());
    }

    #[test]
    fn times() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("0").is_err() && parse_duration("x").is_err());
    }
}
