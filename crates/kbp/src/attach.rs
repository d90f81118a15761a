// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp attach` and `kbp detach`, of NAPI instances, of interfaces without them, and of a CPU's backlog.

use anyhow::Result;
use clap::Args;
use kbp_core::backlog;
use kbp_core::cpulist::numbers;
use kbp_core::model::{Napi, Poller};
use kbp_core::plan::{
    AttachPlan, AttachReport, AttachRequest, Attached, Detached, Session, Target,
};
use kbp_core::service::{Service, Share, CLASS, MAX_WAKE_LATENCY_US};
use kbp_core::uapi::{Mode, PollClass};
use kbp_core::Error;
use serde_json::{json, Value};

use crate::context::Context;
use crate::{print, steered};

/// Shown below the options of `kbp attach`.
pub const EXAMPLES: &str = "\
Examples:
  kbp attach eth0:0 --cpu 2                      receive queue 0 of eth0 to the poller of CPU 2
  kbp attach eth0 --queues all --cpus 2-3        every queue, in turn to the pollers of CPU 2 and 3
  kbp attach eth0 --queues 0,2 --cpus 3,2        queue 0 to CPU 3, queue 2 to CPU 2
  kbp attach eth0 --cpus 2-3 --dry-run           what that would change
  kbp attach eth1 --cpu 2 --class normal         bulk traffic, which waits for eth0
  kbp attach br0 --cpus 2-3                      the ports of a bridge
  kbp -n POD attach eth0 --cpu 2                 what a container receives: its end of the veth
  kbp attach backlog --cpu 2                     whatever comes to the backlog of CPU 2";

/// Shown below the options of `kbp detach`.
pub const DETACH_EXAMPLES: &str = "\
Examples:
  kbp detach eth0                 every queue of eth0 that is attached
  kbp detach eth0:0               receive queue 0
  kbp detach br0                  the ports of a bridge
  kbp detach backlog --cpu 2      the backlog of CPU 2";

/// What stands where an interface may stand, and means the backlog of a CPU.
const BACKLOG: &str = "backlog";

/// Names what to attach or detach.
#[derive(Args, Default)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// Interface and receive queue; without a queue, all of its receive queues.
    ///
    /// An interface without NAPI instances (lo, most veths, tunnels) is steered to the backlog of the poller's CPU; of
    /// a bridge, its ports are attached. `backlog` is the backlog of the poller's CPU: what lo, veth, bridges, tunnels
    /// and RPS put there. (An interface of that name is named with its queue.)
    #[arg(value_name = "DEV[:QUEUE]|backlog", value_parser = parse_what)]
    target: Option<What>,
    /// A NAPI instance by its id.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    napi_id: Option<u32>,
}

/// Arguments of `kbp attach`.
#[derive(Args)]
pub struct AttachArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// CPU of the poller.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "cpus",
        required_unless_present = "cpus"
    )]
    cpu: Option<u32>,
    /// CPUs of several pollers; the queues are dealt out to them in turn.
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    cpus: Option<Numbers>,
    /// Which receive queues of the interface: all, or some by their numbers.
    #[arg(long, value_name = "all|LIST", value_parser = parse_queues)]
    queues: Option<Numbers>,
    /// How it is served.
    #[arg(long, value_name = "MODE", default_value = "busy", value_parser = parse_mode)]
    mode: Mode,
    /// How urgent it is: `rt` is looked at between any two polls of `normal`, which take --budget packets of the poller.
    ///
    /// What a poller owns without being attached is of class normal.
    #[arg(long, value_name = "CLASS", default_value = CLASS.name(), value_parser = parse_class)]
    class: PollClass,
    /// Mode adaptive: CPU time that may go into polls that find nothing, where sleeping would cost less. If neither
    /// this nor --max-wake-latency is given, all such devices of a poller have 20 together.
    #[arg(long, value_name = "PERCENT")]
    cpu_budget: Option<Share>,
    /// Mode adaptive: sleep between packets only as long as waking up takes no longer than this, microseconds.
    ///
    /// The exit of an idle state is not in it where an interrupt wakes the poller: limit that with `kbp poller add
    /// --max-cstate-latency`.
    #[arg(long, value_name = "US", value_parser = parse_latency)]
    max_wake_latency: Option<u32>,
    /// Leave the interrupt where it is.
    #[arg(long)]
    no_irq: bool,
    /// Leave it to the kernel through which transmit queues the CPU of the poller sends.
    #[arg(long)]
    no_xps: bool,
    /// Print every change and make none.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `kbp detach`.
#[derive(Args)]
pub struct DetachArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// CPU whose backlog it is.
    #[arg(long, value_name = "N", required_if_eq("target", BACKLOG))]
    cpu: Option<u32>,
}

/// What a person may name.
#[derive(Clone)]
enum What {
    Napi(Target),
    Backlog,
}

fn parse_what(text: &str) -> Result<What, String> {
    match text {
        BACKLOG => Ok(What::Backlog),
        _ => text.parse().map(What::Napi),
    }
}

/// Numbers of queues or CPUs, in their order; all of them when empty.
#[derive(Clone, Default)]
struct Numbers(Vec<u32>);

fn parse_cpus(text: &str) -> Result<Numbers, String> {
    numbers(text).map(Numbers)
}

fn parse_queues(text: &str) -> Result<Numbers, String> {
    match text {
        "all" => Ok(Numbers::default()),
        _ => parse_cpus(text),
    }
}

fn parse_latency(text: &str) -> Result<u32, String> {
    let (first, last) = (MAX_WAKE_LATENCY_US.start(), MAX_WAKE_LATENCY_US.end());
    let us = text.parse().ok();
    us.filter(|us| MAX_WAKE_LATENCY_US.contains(us))
        .ok_or_else(|| format!("it is from {first} to {last} microseconds"))
}

fn parse_class(text: &str) -> Result<PollClass, String> {
    PollClass::from_name(text)
        .ok_or_else(|| format!("it is one of: {}", crate::poller::names(PollClass::ALL)))
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let requestable = Service::modes();
    let found = requestable.iter().copied().find(|mode| mode.name() == text);
    found.ok_or_else(|| format!("it is one of: {}", crate::poller::names(&requestable)))
}

impl TargetArgs {
    fn into_what(self) -> What {
        match (self.target, self.napi_id) {
            (Some(what), _) => what,
            // clap takes care that one of both is there.
            (None, id) => What::Napi(Target::NapiId(id.unwrap_or_default())),
        }
    }
}

/// Run `kbp attach`.
pub fn attach(mut args: AttachArgs, context: &Context) -> Result<()> {
    let target = std::mem::take(&mut args.target).into_what();
    match target {
        What::Napi(target) => attach_napi(target, &args, context),
        What::Backlog => attach_backlog(&args, context),
    }
}

fn attach_backlog(args: &AttachArgs, context: &Context) -> Result<()> {
    let (Some(cpu), None) = (args.cpu, &args.queues) else {
        let words = "a backlog is that of one CPU and has no queues: name it with --cpu N alone";
        return Err(Error::Usage(words.into()).into());
    };
    args.service()?
        .check_backlog("what the kernel queues for a CPU")?;
    let mut client = context.client()?;
    let mut session = Session::open(&context.host, &mut client)?;
    let wish = session.plan_backlog(cpu)?;
    if args.dry_run {
        return print_change(context, &wish.change());
    }
    print_backlog(context, &session.attach_backlog(&wish)?)
}

fn print_change(context: &Context, change: &str) -> Result<()> {
    match context.json {
        true => print::json(context, &json!({ "changes": [change], "notes": [] })),
        false => print::line(change),
    }
}

fn detach_backlog(cpu: u32, context: &Context) -> Result<()> {
    let mut client = context.client()?;
    let plan = backlog::plan_detach(&mut client, cpu)?;
    let poller = backlog::apply(&mut client, &plan)?;
    for one in Session::open(&context.host, &mut client)?.disown_backlog(cpu)? {
        print::note(format!(
            "{} is still steered to CPU {cpu}; its packets go through softirq there now",
            one.label()
        ));
    }
    print_backlog(context, &poller)
}

/// Print who serves the backlog of a poller's CPU.
pub fn print_backlog(context: &Context, poller: &Poller) -> Result<()> {
    if context.json {
        return print::json(context, poller);
    }
    let (requested, active) = (poller.backlog_requested, poller.backlog_active);
    let words = match requested == active {
        true => active.to_string(),
        false => format!("{requested} requested, {active} active"),
    };
    print::line(format!("backlog of CPU {}: {words}", poller.cpu))
}

fn attach_napi(target: Target, args: &AttachArgs, context: &Context) -> Result<()> {
    if args.queues.is_some() && !matches!(target, Target::Interface { queue: None, .. }) {
        let words = "that is one queue already; --queues goes with an interface alone";
        return Err(Error::Usage(words.into()).into());
    }
    let request = AttachRequest {
        target,
        queues: args.queues.clone().unwrap_or_default().0,
        cpus: args.cpus(),
        service: args.service()?,
        move_irq: !args.no_irq,
        set_xps: !args.no_xps,
    };
    let mut client = context.client()?;
    let mut session = Session::open(&context.host, &mut client)?;
    let plan = session.plan_attach(&request)?;
    if args.dry_run {
        return print_plan(context, &plan);
    }
    plan.notes.iter().for_each(print::note);
    print_report(context, &session.attach(&plan)?)
}

impl AttachArgs {
    /// How it is to be served.
    fn service(&self) -> Result<Service> {
        let service = Service {
            mode: self.mode,
            class: self.class,
            cpu_budget: self.cpu_budget,
            max_wake_latency_us: self.max_wake_latency,
        };
        match service.refusal("--cpu-budget", "--max-wake-latency") {
            Some(words) => Err(Error::Usage(words).into()),
            None => Ok(service),
        }
    }

    /// The CPUs; clap takes care that one of both is there.
    fn cpus(&self) -> Vec<u32> {
        match (&self.cpus, self.cpu) {
            (Some(Numbers(cpus)), _) => cpus.clone(),
            (None, cpu) => cpu.into_iter().collect(),
        }
    }
}

fn print_plan(context: &Context, plan: &AttachPlan) -> Result<()> {
    let changes = plan.changes(&context.host);
    if context.json {
        return print::json(context, &json!({ "changes": changes, "notes": plan.notes }));
    }
    plan.notes.iter().for_each(print::note);
    print::lines(changes)
}

fn print_report(context: &Context, report: &AttachReport) -> Result<()> {
    if context.json {
        report.notes.iter().for_each(print::note);
        return print::json(context, &report_values(report)?);
    }
    print_attached_and_steered(report)
}

/// What was attached, as JSON.
pub fn report_values(report: &AttachReport) -> Result<Vec<Value>> {
    let attached = report.attached.iter().map(serde_json::to_value);
    let steered = report.steered.iter().map(serde_json::to_value);
    Ok(attached.chain(steered).collect::<Result<_, _>>()?)
}

/// What was attached, for a person.
pub fn print_attached_and_steered(report: &AttachReport) -> Result<()> {
    report.notes.iter().for_each(print::note);
    report.attached.iter().try_for_each(print_attached)?;
    print::lines(report.steered.iter().map(steered::describe))?;
    print::lines(report.written.iter().map(|file| format!("  {file}")))
}

fn print_attached(one: &Attached) -> Result<()> {
    let irq = match (&one.vector, one.irq_cpu, one.note) {
        (Some(vector), Some(cpu), _) => format!(
            ", interrupt {} ({}) goes to CPU {cpu}",
            vector.irq, vector.name
        ),
        (_, _, Some(note)) => format!("; {note}"),
        (_, _, None) => String::new(),
    };
    print::line(format!(
        "{}: {}{irq}",
        one.napi.label(),
        describe_mode(&one.napi)
    ))
}

fn describe_mode(napi: &Napi) -> String {
    let (requested, active) = (napi.mode_requested, napi.mode_active);
    let class = match napi.class {
        CLASS => String::new(),
        class => format!(" in class {class}"),
    };
    match requested == active {
        true => format!("{active}{class} on the poller of CPU {}", napi.cpu),
        false => format!(
            "{requested}{class} requested on the poller of CPU {}, {active} active",
            napi.cpu
        ),
    }
}

/// Run `kbp detach`.
pub fn detach(args: DetachArgs, context: &Context) -> Result<()> {
    let target = match args.target.into_what() {
        What::Napi(target) => target,
        What::Backlog => return detach_backlog(args.cpu.unwrap_or_default(), context),
    };
    let mut client = context.client()?;
    let mut session = Session::open(&context.host, &mut client)?;
    let plan = session.plan_detach(&target)?;
    print_detached(context, &session.detach(&plan)?)
}

/// Print what was given back to softirq.
pub fn print_detached(context: &Context, detached: &[Detached]) -> Result<()> {
    if context.json {
        return print::json(context, &detached);
    }
    for one in detached {
        print::line(format!("{}: softirq", one.napi))?;
        let sentences = one.freed.sentences();
        print::lines(sentences.iter().map(|line| format!("  {line}")))?;
        for cpu in &one.backlogs {
            print::line(format!(
                "  the backlog of CPU {cpu} is not attached any more"
            ))?;
        }
    }
    Ok(())
}
