// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp poller add|del|show`.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use kbp_core::cstates::MAX_CSTATE_LATENCY_US;
use kbp_core::model::{Poller, PollerSpec, Schedule};
use kbp_core::plan::Session;
use kbp_core::uapi::{Backlog, Freq, Owns};
use kbp_core::Error;
use serde_json::json;

use crate::attach::print_detached;
use crate::context::Context;
use crate::print;

/// What to do with pollers.
#[derive(Subcommand)]
pub enum PollerCommand {
    /// Start a poller on a CPU. Other CPUs stay as they are.
    Add(AddArgs),
    /// Stop a poller; what is attached to it goes back to softirq.
    Del(DelArgs),
    /// List the pollers.
    Show(ShowArgs),
}

/// Arguments of `kbp poller add`.
#[derive(Args)]
pub struct AddArgs {
    /// The CPU.
    #[arg(long, value_name = "N")]
    cpu: u32,
    /// Which NAPI instances of the CPU it serves: all, or attached ones only.
    #[arg(long, value_name = "all|attached", value_parser = parse_owns)]
    owns: Option<Owns>,
    /// Scheduling: f:PRIORITY is SCHED_FIFO (1 to 98), o:NICE is SCHED_OTHER (-20 to 19).
    #[arg(short = 'P', long = "priority", value_name = "f:PRIO|o:NICE")]
    schedule: Option<Schedule>,
    /// Packets that one poll of a NAPI of class normal may take, and one of class rt while the poller lets others run.
    /// What is not attached is of class normal.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    budget: Option<u32>,
    /// Hand its work back to softirq when it could not run for this long (1ms to 10s).
    #[arg(long, value_name = "TIME", value_parser = parse_watchdog)]
    watchdog: Option<u32>,
    /// Who serves the backlog of the CPU: the poller after everything else (owned; the default where it owns all), as
    /// what is attached, or softirq.
    #[arg(long, value_name = "softirq|owned|attached", value_parser = parse_backlog)]
    backlog: Option<Backlog>,
    /// The frequency of the CPU follows the poller, lowest while it sleeps, highest while it is awake: before each sleep
    /// (on), or where sleeps are long (auto).
    #[arg(long, value_name = "off|on|auto", value_parser = parse_freq)]
    freq: Option<Freq>,
    /// With --freq, also where other CPUs have the same frequency and become slow with it.
    #[arg(long, requires = "freq")]
    force: bool,
    /// Keep idle states whose exit takes longer than this, microseconds (0 to 30000), from the CPU while packets are to
    /// be expected. In a silence of a hundred times the deepest one's exit, 1 ms at least and 100 ms at most, they are let in.
    #[arg(long, value_name = "US", value_parser = parse_cstate_latency)]
    max_cstate_latency: Option<u32>,
    /// Say what would be changed, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `kbp poller del`.
#[derive(Args)]
pub struct DelArgs {
    /// The CPU.
    #[arg(long, value_name = "N")]
    cpu: u32,
}

/// Arguments of `kbp poller show`.
#[derive(Args)]
pub struct ShowArgs {
    /// Only the poller of this CPU.
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
}

fn parse_cstate_latency(text: &str) -> Result<u32, String> {
    let most = MAX_CSTATE_LATENCY_US.end();
    let us = text.parse().ok();
    us.filter(|us| MAX_CSTATE_LATENCY_US.contains(us))
        .ok_or_else(|| format!("it is from 0 to {most} microseconds"))
}

fn parse_owns(text: &str) -> Result<Owns, String> {
    Owns::from_name(text).ok_or_else(|| format!("it is one of: {}", names(Owns::ALL)))
}

fn parse_backlog(text: &str) -> Result<Backlog, String> {
    Backlog::from_name(text).ok_or_else(|| format!("it is one of: {}", names(Backlog::ALL)))
}

fn parse_freq(text: &str) -> Result<Freq, String> {
    Freq::from_name(text).ok_or_else(|| format!("it is one of: {}", names(Freq::ALL)))
}

/// The names of all values of an enumeration, for a message.
pub fn names(values: &[impl std::fmt::Display]) -> String {
    values
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn parse_watchdog(text: &str) -> Result<u32, String> {
    let limits = Duration::from_millis(1)..=Duration::from_secs(10);
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match limits.contains(&time) && time.subsec_nanos() % 1_000_000 == 0 {
        true => Ok(time.as_millis() as u32),
        false => Err("it is a whole number of milliseconds from 1ms to 10s".into()),
    }
}

/// Run `kbp poller`.
pub fn run(command: PollerCommand, context: &Context) -> Result<()> {
    match command {
        PollerCommand::Add(args) => add(args, context),
        PollerCommand::Del(args) => del(args, context),
        PollerCommand::Show(args) => show(args, context),
    }
}

fn add(args: AddArgs, context: &Context) -> Result<()> {
    let spec = PollerSpec {
        cpu: args.cpu,
        owns: args.owns,
        schedule: args.schedule,
        budget: args.budget,
        watchdog_ms: args.watchdog,
        backlog: args.backlog,
        freq: args.freq,
        freq_shared: args.force.then_some(true),
        max_cstate_latency_us: args.max_cstate_latency,
        deep_exit_us: None,
    };
    let mut client = context.client()?;
    let mut session = Session::open(&context.host, &mut client)?;
    let plan = session.plan_poller(&spec)?;
    if args.dry_run {
        let changes = plan.changes();
        if context.json {
            let plan = json!({ "changes": changes, "notes": plan.notes });
            return print::json(context, &plan);
        }
        plan.notes.iter().for_each(print::note);
        return print::lines(changes);
    }
    plan.notes.iter().for_each(print::note);
    let poller = session.add_poller(&plan)?;
    if context.json {
        return print::json(context, &poller);
    }
    print_pollers(&[poller])
}

fn del(args: DelArgs, context: &Context) -> Result<()> {
    let mut client = context.client()?;
    let deleted = Session::open(&context.host, &mut client)?.delete_poller(args.cpu)?;
    if context.json {
        return print::json(context, &deleted);
    }
    print_detached(context, &deleted.detached)?;
    print::lines(&deleted.gone)?;
    print::line(format!("the poller of CPU {} is deleted", deleted.cpu))
}

fn show(args: ShowArgs, context: &Context) -> Result<()> {
    let mut client = context.client()?;
    let pollers = match args.cpu {
        Some(cpu) => vec![client.poller_get(cpu).map_err(Error::from)?],
        None => client.pollers().map_err(Error::from)?,
    };
    if context.json {
        return print::json(context, &pollers);
    }
    print_pollers(&pollers)
}

/// The limit of idle states that the kernel was told of.
fn active_limit_us(poller: &Poller) -> Option<u32> {
    let is_active = poller.cstates_limited == Some(true);
    poller.max_cstate_latency_us.filter(|_| is_active)
}

/// Print pollers as a table.
pub fn print_pollers(pollers: &[Poller]) -> Result<()> {
    if pollers.is_empty() {
        return print::line("no pollers; `kbp poller add --cpu N` creates one");
    }
    let limit = |us: Option<u32>| us.map_or("-".into(), |us| format!("{us} us"));
    let row = |poller: &Poller| {
        vec![
            poller.cpu.to_string(),
            poller.owns.to_string(),
            poller.schedule.to_string(),
            poller.budget.to_string(),
            format!("{} ms", poller.watchdog_ms),
            poller.state.to_string(),
            poller.pid.to_string(),
            poller.napis.to_string(),
            poller.backlog_requested.to_string(),
            poller.backlog_active.to_string(),
            poller.freq_requested.to_string(),
            poller.freq_active.to_string(),
            limit(poller.max_cstate_latency_us),
            limit(active_limit_us(poller)),
        ]
    };
    let header = [
        "CPU",
        "OWNS",
        "SCHEDULE",
        "BUDGET",
        "WATCHDOG",
        "STATE",
        "PID",
        "ATTACHED",
        "BACKLOG-REQUESTED",
        "BACKLOG-ACTIVE",
        "FREQ-REQUESTED",
        "FREQ-ACTIVE",
        "CSTATES-REQUESTED",
        "CSTATES-ACTIVE",
    ];
    print::table(&header, pollers.iter().map(row).collect(), header.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_times() {
        assert_eq!(parse_watchdog("20ms"), Ok(20));
        assert_eq!(parse_watchdog("10s"), Ok(10_000));
        for text in ["0ms", "11s", "20", "1500us", "x"] {
            assert!(parse_watchdog(text).is_err(), "{text}");
        }
    }
}
