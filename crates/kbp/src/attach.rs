// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp attach` and `kbp detach`, of NAPI instances and of a CPU's backlog.

use anyhow::Result;
use clap::Args;
use kbp_core::backlog;
use kbp_core::model::{Napi, Poller};
use kbp_core::plan::{AttachPlan, AttachRequest, Attached, Detached, Session, Target};
use kbp_core::uapi::Mode;
use serde_json::json;

use crate::context::Context;
use crate::print;

/// What stands where an interface may stand, and means the backlog of a CPU.
const BACKLOG: &str = "backlog";

/// Names what to attach or detach.
#[derive(Args, Default)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// Interface and receive queue; without a queue, all of its receive queues.
    ///
    /// `backlog` is the backlog of the poller's CPU: what lo, veth, bridges, tunnels and RPS put there. (An interface
    /// of that name is named with its queue.)
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
    #[arg(long, value_name = "N")]
    cpu: u32,
    /// How it is served.
    #[arg(long, value_name = "MODE", default_value = "busy", value_parser = parse_mode)]
    mode: Mode,
    /// Leave the interrupt where it is.
    #[arg(long)]
    no_irq: bool,
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

fn parse_mode(text: &str) -> Result<Mode, String> {
    let requestable: Vec<Mode> = Mode::ALL
        .iter()
        .copied()
        .filter(|mode| *mode != Mode::Softirq)
        .collect();
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
    let mut client = context.client()?;
    let plan = backlog::plan_attach(&context.host, &mut client, args.cpu)?;
    if args.dry_run {
        return match context.json {
            true => print::json(context, &json!({ "changes": [plan.change()], "notes": [] })),
            false => print::line(plan.change()),
        };
    }
    print_backlog(context, &backlog::apply(&mut client, &plan)?)
}

fn print_backlog(context: &Context, poller: &Poller) -> Result<()> {
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
    let request = AttachRequest {
        target,
        cpu: args.cpu,
        mode: args.mode,
        move_irq: !args.no_irq,
    };
    let mut client = context.client()?;
    let mut session = Session::open(&context.host, &mut client)?;
    let plan = session.plan_attach(&request)?;
    if args.dry_run {
        return print_plan(context, &plan);
    }
    plan.notes.iter().for_each(print::note);
    print_attached(context, &session.attach(&plan)?)
}

fn print_plan(context: &Context, plan: &AttachPlan) -> Result<()> {
    let changes = plan.changes(&context.host);
    if context.json {
        return print::json(context, &json!({ "changes": changes, "notes": plan.notes }));
    }
    plan.notes.iter().for_each(print::note);
    print::lines(changes)
}

fn print_attached(context: &Context, attached: &[Attached]) -> Result<()> {
    if context.json {
        return print::json(context, &attached);
    }
    for one in attached {
        let irq = match (&one.vector, one.note) {
            (Some(vector), _) => format!(
                ", interrupt {} ({}) goes to CPU {}",
                vector.irq, vector.name, one.napi.cpu
            ),
            (None, Some(note)) => format!("; {note}"),
            (None, None) => String::new(),
        };
        print::line(format!(
            "{}: {}{irq}",
            one.napi.label(),
            describe_mode(&one.napi)
        ))?;
    }
    Ok(())
}

fn describe_mode(napi: &Napi) -> String {
    let (requested, active) = (napi.mode_requested, napi.mode_active);
    match requested == active {
        true => format!("{active} on the poller of CPU {}", napi.cpu),
        false => format!(
            "{requested} requested on the poller of CPU {}, {active} active",
            napi.cpu
        ),
    }
}

/// Run `kbp detach`.
pub fn detach(args: DetachArgs, context: &Context) -> Result<()> {
    let mut client = context.client()?;
    let target = match args.target.into_what() {
        What::Napi(target) => target,
        What::Backlog => {
            let plan = backlog::plan_detach(&mut client, args.cpu.unwrap_or_default())?;
            return print_backlog(context, &backlog::apply(&mut client, &plan)?);
        }
    };
    let mut session = Session::open(&context.host, &mut client)?;
    let napis = session.plan_detach(&target)?;
    print_detached(context, &session.detach(&napis)?)
}

/// Print what was given back to softirq.
pub fn print_detached(context: &Context, detached: &[Detached]) -> Result<()> {
    if context.json {
        return print::json(context, &detached);
    }
    for one in detached {
        print::line(format!("{}: softirq", one.napi))?;
        print::lines(one.irqs.iter().map(|irq| format!("  {irq}")))?;
    }
    Ok(())
}
