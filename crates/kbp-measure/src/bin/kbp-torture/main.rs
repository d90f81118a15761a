// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random actions on pollers and everything around them, under numbered traffic on every path, with a ledger that has to
//! come out even. For the lab's virtual machine only: it takes interfaces away, stops CPUs and patches the kernel.
//!
//! The same seed gives the same actions in the same order in each of its two threads; how they fall together depends on
//! the machine.
//!
//! Not here: the machine (`lab/torture.sh`, the Makefile).

mod action;
mod drops;
mod ledger;
mod phase;
mod report;
mod result;
mod state;
mod traffic;
mod wiring;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand};
use kbp_core::sched::set_affinity;
use kbp_core::{CpuList, Host};
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};

use crate::action::{Action, Worker, World, ACTIONS};
use crate::phase::{Ended, Phase};
use crate::result::{TortureResult, SCHEMA};
use crate::traffic::Traffic;
use crate::wiring::{Wiring, PATHS};

/// Of three kinds of actions a phase takes two, by chance: some faults show only where another kind is absent.
const KEPT_OF_THREE: u64 = 2;
/// Kinds without which there is nothing to torture.
const ALWAYS: &[&str] = &["poller-add", "attach"];

/// Random actions on pollers and everything around them, under numbered traffic on every path.
#[derive(Parser)]
#[command(name = "kbp-torture", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Make a page of result files
    Report(ReportArgs),
}

#[derive(Args)]
struct ReportArgs {
    /// What `--json` has written
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Where the page goes; else to standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct RunArgs {
    /// Where the random numbers start; by default another one each time. It is printed
    #[arg(long)]
    seed: Option<u64>,
    /// How many phases
    #[arg(long, default_value_t = 6)]
    phases: u32,
    /// How long actions are done in a phase, seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Phases until this time has passed, for instance 2h, instead of a number of them
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
    /// Only these kinds of actions
    #[arg(long, value_delimiter = ',', value_name = "ACTION")]
    only: Vec<String>,
    /// List the kinds of actions and end
    #[arg(long)]
    list: bool,
    /// Packets a second of each flow
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=2000))]
    rate: u64,
    /// CPUs for pollers, hogs and going offline; traffic and everything else keeps off them
    #[arg(long, default_value = "2-3", value_name = "LIST")]
    cpus: CpuList,
    /// The kernel module
    #[arg(long, default_value = "/modules/kbp.ko")]
    module: PathBuf,
    /// The other live patch
    #[arg(long, default_value = "/modules/otherpatch.ko")]
    otherpatch: PathBuf,
    /// Where the result goes
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Report(args)) => write_report(args).map(|()| true),
        None if cli.run.list => {
            list();
            Ok(true)
        }
        None => torture(&cli.run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kbp-torture: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for action in ACTIONS {
        let worker = match action.worker {
            Worker::Ours => "ours",
            Worker::Around => "around",
        };
        println!(
            "{:<15} {worker:<7} {:>3}  {}",
            action.name, action.weight, action.about
        );
    }
}

fn write_report(args: &ReportArgs) -> Result<()> {
    let results: Result<Vec<TortureResult>> = args
        .results
        .iter()
        .map(|path| TortureResult::read(path))
        .collect();
    let page = report::page(&results?);
    match &args.output {
        Some(path) => std::fs::write(path, page).map_err(|e| Error::file("write", path, e)),
        None => {
            print!("{page}");
            Ok(())
        }
    }
}

/// The machine as the actions want it, and the traffic, held.
fn prepare(args: &RunArgs, seed: u64) -> Result<World> {
    let host = Host::system();
    let core = kbp_core::Error::from;
    let online = host.online_cpus().map_err(core)?;
    for cpu in args.cpus.iter() {
        host.require_online(cpu)?;
    }
    let others: CpuList = online
        .iter()
        .filter(|&cpu| !args.cpus.contains(cpu))
        .collect();
    if args.cpus.is_empty() || args.cpus.contains(0) || others.is_empty() {
        return Err(Error::Invalid(
            "--cpus has to name a CPU, and leave CPU 0 and one for the traffic".into(),
        ));
    }
    // Threads and programs that are started from here inherit it.
    set_affinity(0, &others).map_err(core)?;
    let cpus: Vec<u32> = args.cpus.iter().collect();
    let rps: &[u32] = match action::rps_is_sound(&host) {
        Ok(()) => &cpus,
        Err(_) => &[],
    };
    let wiring = Wiring::make(rps)?;
    let traffic = Traffic::start(wiring::flows(), PATHS.len(), args.rate, &others, seed)?;
    let baseline = state::snapshot(&host)?;
    Ok(World {
        host,
        wiring,
        traffic,
        cpus,
        module: args.module.clone(),
        otherpatch: args.otherpatch.clone(),
        baseline,
    })
}

/// The kinds that were asked for and are possible here; the others are noted with their reason.
fn choose(
    args: &RunArgs,
    world: &World,
    result: &mut TortureResult,
) -> Result<Vec<&'static Action>> {
    let mut wanted: Vec<&Action> = Vec::new();
    for name in &args.only {
        wanted.push(action::by_name(name).ok_or_else(|| {
            Error::Invalid(format!("there is no action '{name}'; --list has them"))
        })?);
    }
    if wanted.is_empty() {
        wanted = ACTIONS.to_vec();
    }
    let possible = |action: &&Action| {
        let count = result.actions.entry(action.name.into()).or_default();
        count.not_possible = (action.can_run)(world).err();
        if let Some(reason) = &count.not_possible {
            println!("not possible here: {}: {reason}", action.name);
        }
        count.not_possible.is_none()
    };
    Ok(wanted.into_iter().filter(possible).collect())
}

/// Two thirds of the kinds, by chance, unless some were asked for by name.
fn of_this_phase(
    args: &RunArgs,
    possible: &[&'static Action],
    rng: &mut SplitMix64,
) -> Vec<&'static Action> {
    let kept = |action: &&&'static Action| {
        let chance = rng.in_range(1, 3) <= KEPT_OF_THREE;
        chance || !args.only.is_empty() || ALWAYS.contains(&action.name)
    };
    possible.iter().filter(kept).copied().collect()
}

fn torture(args: &RunArgs) -> Result<bool> {
    let since = Instant::now();
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seed = args
        .seed
        .unwrap_or_else(|| SplitMix64::new(unix.as_nanos() as u64).next_u64() >> 32);
    println!("seed {seed}");
    let world = prepare(args, seed)?;
    let mut result = TortureResult {
        schema: SCHEMA.into(),
        seed,
        kernel: world.host.kernel_release().map_err(kbp_core::Error::from)?,
        checkers: state::checkers(&world.host)?,
        cpus: world.cpus.clone(),
        unix_time: unix.as_secs(),
        ..TortureResult::default()
    };
    println!(
        "kernel {}, checkers: {}",
        result.kernel,
        result.checkers.join(", ")
    );
    let possible = choose(args, &world, &mut result)?;
    let leaks = state::has_leak_detector(&world.host);
    if leaks {
        state::forget_leaks(&world.host)?;
    }
    let mut rng = SplitMix64::new(seed);
    for number in 1.. {
        let over = args
            .time
            .map_or(number > args.phases, |time| since.elapsed() >= time);
        if over || !result.failures.is_empty() {
            break;
        }
        let phase = Phase {
            number,
            seed: rng.next_u64(),
            length: Duration::from_secs(args.seconds),
            actions: &of_this_phase(args, &possible, &mut rng),
        };
        let started = Instant::now();
        let ended = phase::run(&world, &phase)?;
        tell(&phase, &ended, started.elapsed());
        book(&mut result, ended);
        result.run_seconds = since.elapsed().as_secs_f64();
        write(args, &result)?;
    }
    if leaks && result.failures.is_empty() {
        let found = state::leaks(&world.host)?;
        if !found.is_empty() {
            println!("FAILED: memory has leaked\n{found}");
            result.failures.push(format!("memory has leaked\n{found}"));
        }
    }
    result.run_seconds = since.elapsed().as_secs_f64();
    write(args, &result)?;
    sum_up(&result);
    Ok(result.failures.is_empty())
}

fn write(args: &RunArgs, result: &TortureResult) -> Result<()> {
    args.json
        .as_deref()
        .map_or(Ok(()), |path| result.write(path))
}

fn book(result: &mut TortureResult, ended: Ended) {
    result.add_actions(&ended.actions);
    result.add_traffic(&ended.counts, &ended.drops);
    result.phases_clean += u32::from(ended.failures.is_empty());
    result.failures.extend(ended.failures);
    result.complaints.extend(ended.complaints);
    if !ended.module_version.is_empty() {
        result.module_version = ended.module_version;
    }
}

/// A line for each phase, and everything that is known about one that failed.
fn tell(phase: &Phase, ended: &Ended, took: Duration) {
    let done: u64 = ended.actions.values().map(|count| count.done).sum();
    let refused: u64 = ended
        .actions
        .values()
        .map(|count| count.refused_total())
        .sum();
    let sent: u64 = ended.counts.iter().map(|count| count.sent).sum();
    let lost: u64 = ended.counts.iter().map(|count| count.lost()).sum();
    println!(
        "phase {}: {done} actions done, {refused} refused; {sent} packets, {lost} missing, {} counted as dropped; {:.0} s",
        phase.number,
        ended.drops.values().sum::<u64>(),
        took.as_secs_f64()
    );
    if ended.failures.is_empty() {
        return;
    }
    println!(
        "FAILED in phase {}, whose seed is {}",
        phase.number, phase.seed
    );
    ended.failures.iter().for_each(|why| println!("  {why}"));
    ended
        .complaints
        .iter()
        .for_each(|line| println!("  kernel: {line}"));
    println!("the last actions, seconds after the start of the phase:");
    ended.recent.iter().for_each(|line| println!("  {line}"));
}

fn sum_up(result: &TortureResult) {
    println!(
        "{:<15} {:>7} {:>8} {:>11}",
        "action", "done", "refused", "longest, ms"
    );
    for (name, count) in &result.actions {
        println!(
            "{name:<15} {:>7} {:>8} {:>11}",
            count.done,
            count.refused_total(),
            count.longest_ms
        );
        for (reason, times) in &count.refused {
            println!("    {times} times: {reason}");
        }
    }
    println!(
        "{:<10} {:>9} {:>9} {:>5} {:>9} {:>9}",
        "path", "sent", "received", "lost", "overtaken", "not taken"
    );
    for (name, count) in &result.paths {
        println!(
            "{name:<10} {:>9} {:>9} {:>5} {:>9} {:>9}",
            count.sent, count.received, count.lost, count.reordered, count.not_taken
        );
    }
    for (place, count) in &result.drops {
        println!("counted as dropped: {place}: {count}");
    }
    match result.failures.is_empty() {
        true => println!("seed {}: {} phases clean", result.seed, result.phases_clean),
        false => println!(
            "seed {}: FAILED after {} clean phases",
            result.seed, result.phases_clean
        ),
    }
}
