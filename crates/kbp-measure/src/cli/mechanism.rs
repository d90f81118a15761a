// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure mechanisms` lists the mechanisms and whether they can run here; `kbp measure mechanism` sets one up
//! around a command, or for a time, as nice(1) and chrt(1) do with what they set.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use kbp_core::pollers::DEFAULT_PRIORITY;
use kbp_core::Host;
use serde_json::json;

use crate::compare::rig::{Link, Rig};
use crate::error::{Error, Result};
use crate::hold;
use crate::interrupt;
use crate::mechanism::{
    find, leftover, Active, KeepModule, Mechanism, MechanismConfig, Site, MECHANISMS, RT_BUDGET,
};
use crate::place::{run_at, Place};
use crate::result::{Cpus, Row};

const EXAMPLES: &str = "\
Example:
  kbp measure mechanisms --dev eth0 --dev eth1@tester";

const WRAP_EXAMPLES: &str = "\
Examples:
  kbp measure mechanism busy-read --dev eth0 -- sockperf ping-pong -i 10.9.0.1
  kbp measure mechanism kbp-busy --dev eth0 --cpu 2 --seconds 60

The exit code is that of the command.";

/// An interface and its network namespace.
#[derive(Debug, Clone)]
pub struct Device {
    ifname: String,
    netns: Option<String>,
}

impl FromStr for Device {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let (ifname, netns) = match text.split_once('@') {
            Some((ifname, netns)) => (ifname, Some(netns.into())),
            None => (text, None),
        };
        Ok(Self {
            ifname: ifname.into(),
            netns,
        })
    }
}

/// `kbp measure mechanisms`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MechanismsArgs {
    /// An interface that is to be served; may be repeated. Without one, only the machine is asked
    #[arg(long = "dev", value_name = "DEV[@NETNS]")]
    devices: Vec<Device>,
    /// CPU of receive interrupts, threads and poller
    #[arg(long, default_value_t = 0, value_name = "N")]
    cpu: u32,
}

/// `kbp measure mechanism`
#[derive(Debug, Args)]
#[command(after_help = WRAP_EXAMPLES)]
pub struct MechanismArgs {
    /// Name of the mechanism; `kbp measure mechanisms` lists them
    name: String,
    /// An interface that is to be served; may be repeated
    #[arg(long = "dev", value_name = "DEV[@NETNS]", required = true)]
    devices: Vec<Device>,
    /// CPU of receive interrupts, threads and poller
    #[arg(long, default_value_t = 0, value_name = "N")]
    cpu: u32,
    /// SCHED_FIFO priority of what the mechanism runs; on PREEMPT_RT threads of mainline have 49 at most
    #[arg(long, default_value_t = DEFAULT_PRIORITY, value_parser = clap::value_parser!(u8).range(1..=98), value_name = "P")]
    priority: u8,
    /// The kbp module, for its modes; the one that is installed by default
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
    /// How long a socket polls in one call, µs (busy-read)
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..), value_name = "US")]
    busy_read_us: u32,
    /// How often the timer may find nothing before the interrupt is armed (defer-irqs)
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    defer_hard_irqs: u32,
    /// Period of that timer, µs (defer-irqs)
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), value_name = "US")]
    gro_flush_timeout_us: u32,
    /// Hold it for this long instead of running a command
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "command",
        required_unless_present = "command"
    )]
    seconds: Option<u32>,
    /// Command that runs while it is set up
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn link(device: &Device) -> Result<Link> {
    let place = Place {
        netns: device.netns.clone(),
        ..Place::default()
    };
    let interface = run_at(&place, || Ok(Host::system().interface(&device.ifname)?))?;
    Ok(Link {
        ifname: device.ifname.clone(),
        netns: device.netns.clone(),
        has_interrupts: interface.device.is_some(),
    })
}

fn links(devices: &[Device]) -> Result<Vec<Link>> {
    devices.iter().map(link).collect()
}

pub(super) fn list(args: &MechanismsArgs, json: bool) -> Result<u8> {
    let (host, links) = (Host::system(), links(&args.devices)?);
    let site = Site {
        host: &host,
        links: &links,
        cpu: args.cpu,
    };
    let answers = MECHANISMS.iter().map(|m| (m, m.can_run_at(&site)));
    if json {
        let objects: Vec<_> = answers.map(|(m, answer)| object(m, &answer)).collect();
        println!("{}", json!({ "mechanisms": objects }));
        return Ok(0);
    }
    for (mechanism, answer) in answers {
        let word = if answer.is_ok() { "yes" } else { "no" };
        println!("{:<19} {word:<4} {}", mechanism.name, mechanism.about);
        if let Err(why) = answer {
            println!("{:24} {why}", "");
        }
    }
    Ok(0)
}

fn object(mechanism: &Mechanism, answer: &std::result::Result<(), String>) -> serde_json::Value {
    json!({
        "name": mechanism.name,
        "about": mechanism.about,
        "needs": mechanism.needs,
        "clock_note": mechanism.clock_note,
        "can_run": answer.is_ok(),
        "why_not": answer.as_ref().err(),
    })
}

impl MechanismArgs {
    fn config(&self) -> MechanismConfig {
        MechanismConfig {
            fifo_priority: self.priority,
            rt_budget: RT_BUDGET,
            module: self.module.clone(),
            keep_module: KeepModule::No,
            busy_read_us: self.busy_read_us,
            defer_hard_irqs: self.defer_hard_irqs,
            gro_flush_timeout_ns: u64::from(self.gro_flush_timeout_us) * 1_000,
        }
    }
}

pub(super) fn hold(args: &MechanismArgs) -> Result<u8> {
    let mechanism = find(&args.name)?;
    interrupt::catch()?;
    if let Some(undone) = leftover::recover()? {
        eprintln!("undone: {undone}");
    }
    let cpus = Cpus {
        housekeeping: args.cpu,
        tester: args.cpu,
        poller: args.cpu,
        application: args.cpu,
    };
    let rig = Rig::set_up(links(&args.devices)?, None, cpus)?;
    let held = held(args, mechanism, &rig);
    rig.take_down()?;
    held
}

fn held(args: &MechanismArgs, mechanism: &'static Mechanism, rig: &Rig) -> Result<u8> {
    let config = args.config();
    if let Err(why) = mechanism.can_run(rig) {
        return Err(Error::Core(kbp_core::Error::Unsupported(format!(
            "{} can't run here: {why}",
            mechanism.name
        ))));
    }
    let active = Active::set_up(mechanism, rig, &config)?;
    eprintln!("{} is active", mechanism.name);
    let ended = watched(args, &active);
    let undone = active.undo();
    let code = ended?;
    undone?;
    eprintln!("{} is undone", mechanism.name);
    Ok(code)
}

/// Runs the command between two readings of the counters, and says what moved.
fn watched(args: &MechanismArgs, active: &Active<'_>) -> Result<u8> {
    let (host, watch) = (Host::system(), active.watch());
    let before = watch.read(&host)?;
    let code = match args.seconds {
        Some(seconds) => {
            hold::for_time(Duration::from_secs(seconds.into()));
            0
        }
        None => hold::while_runs(hold::command(&args.command)?)?,
    };
    let between = watch.read(&host)?.since(&before);
    active.verify()?;
    let row = Row {
        mode: active.name().into(),
        load: "any".into(),
        tool: "command".into(),
        // One packet at least; how many there were only the command knows.
        n: 1,
        span_ns: between.span_ns,
        witness: between.witness,
        poller: between.poller,
        ..Row::default()
    };
    let seen = &between.witness;
    eprintln!(
        "on CPU {}: {} NET_RX softirqs, {} receive interrupts, {:.1} ms of CPU time in the mechanism's threads{}",
        watch.cpu,
        seen.net_rx_softirqs,
        seen.hard_irqs,
        seen.mode_threads_ns as f64 / 1e6,
        between
            .poller
            .map_or(String::new(), |poller| format!(", {} packets in the poller", poller.packets))
    );
    match active.verify_row(&row) {
        Ok(()) => eprintln!("its counters moved"),
        Err(error) => eprintln!("not shown to have served: {error}"),
    }
    Ok(code)
}
