// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp attach` and `kbp detach`.

use anyhow::Result;
use clap::Args;
use kbp_core::model::Napi;
use kbp_core::plan::{AttachPlan, AttachRequest, Attached, Detached, Session, Target};
use kbp_core::uapi::Mode;
use serde_json::json;

use crate::context::Context;
use crate::print;

/// Names what to attach or detach.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// Interface and receive queue; without a queue, all of its receive queues.
    #[arg(value_name = "DEV[:QUEUE]")]
    target: Option<Target>,
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
    fn into_target(self) -> Target {
        match (self.target, self.napi_id) {
            (Some(target), _) => target,
            // clap takes care that one of both is there.
            (None, id) => Target::NapiId(id.unwrap_or_default()),
        }
    }
}

/// Run `kbp attach`.
pub fn attach(args: AttachArgs, context: &Context) -> Result<()> {
    let request = AttachRequest {
        target: args.target.into_target(),
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
    let mut session = Session::open(&context.host, &mut client)?;
    let napis = session.plan_detach(&args.target.into_target())?;
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
