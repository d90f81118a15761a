// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp vm list|tune|untune|verify`: the vCPU threads and vhost workers of virtual machines.

use anyhow::Result;
use clap::{ArgGroup, Args, Subcommand};
use kbp_core::cpulist::numbers;
use kbp_core::model::Schedule;
use kbp_core::state::{self, State, StateFile};
use kbp_core::vm::model::{Vm, VmThread};
use kbp_core::vm::plan::{plan, poller_cpus, TunePlan};
use kbp_core::vm::request::TuneRequest;
use kbp_core::vm::select::VmName;
use kbp_core::vm::undo::{untune, untune_all};
use kbp_core::vm::{apply, verify};
use kbp_core::Error;
use serde_json::json;

use crate::context::Context;
use crate::print;

/// Shown below the options of `kbp vm`.
pub const EXAMPLES: &str = "\
Examples:
  kbp vm list                                            machines, their vCPU threads and vhost workers
  kbp vm tune demo --vcpu-cpus 2-3 --vhost-cpus 4 --dry-run   what that would change
  kbp vm tune demo --vcpu-cpus 2-3 --vhost-cpus 4        vCPU 0 on CPU 2, vCPU 1 on CPU 3, SCHED_FIFO 1
  kbp vm tune demo                                       the same for workers that came since
  kbp vm verify demo                                     is it still so?
  kbp vm untune demo                                     as it was before";

/// What to do with virtual machines.
#[derive(Subcommand)]
pub enum VmCommand {
    /// List the virtual machines of QEMU that run here, with their threads.
    List,
    /// Give vCPU threads and vhost workers CPUs and priorities, and these CPUs a governor.
    #[command(after_help = EXAMPLES)]
    Tune(TuneArgs),
    /// Put back everything that `kbp vm tune` changed for a machine.
    Untune(UntuneArgs),
    /// Say where a machine is not as it was tuned; then the exit code is 10.
    Verify(VerifyArgs),
}

/// Arguments of `kbp vm tune`.
#[derive(Args)]
pub struct TuneArgs {
    /// The machine, by the name that QEMU was given or by the number of its process.
    #[arg(value_name = "NAME|PID")]
    vm: VmName,
    /// CPUs of the vCPU threads: one each in turn, if there are enough; else all of them for each.
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    vcpu_cpus: Option<Cpus>,
    /// CPUs of the vhost workers, in the same way.
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    vhost_cpus: Option<Cpus>,
    /// Scheduling of the vCPU threads: f:PRIORITY is SCHED_FIFO (1 to 98), o:NICE is SCHED_OTHER (-20 to 19). With
    /// --vcpu-cpus it is f:1 if nothing else is said.
    #[arg(short = 'P', long, value_name = "f:PRIO|o:NICE")]
    priority: Option<Schedule>,
    /// Scheduling of the vhost workers; without it they keep what they have.
    #[arg(long, value_name = "f:PRIO|o:NICE")]
    vhost_priority: Option<Schedule>,
    /// The cpufreq governor of all these CPUs: performance if nothing else is said; keep leaves it as it is.
    #[arg(long, value_name = "NAME|keep")]
    governor: Option<String>,
    /// Also take CPUs that have a poller.
    #[arg(long)]
    force: bool,
    /// Print every change and make none.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `kbp vm untune`.
#[derive(Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub struct UntuneArgs {
    /// The machine, by the name that QEMU was given or by the number of its process; it need not run any more.
    #[arg(value_name = "NAME|PID", group = "which")]
    vm: Option<VmName>,
    /// All machines that were tuned.
    #[arg(long, group = "which")]
    all: bool,
}

/// Arguments of `kbp vm verify`.
#[derive(Args)]
pub struct VerifyArgs {
    /// The machine, by the name that QEMU was given or by the number of its process.
    #[arg(value_name = "NAME|PID")]
    vm: VmName,
}

/// CPUs in their order.
#[derive(Clone)]
struct Cpus(Vec<u32>);

fn parse_cpus(text: &str) -> Result<Cpus, String> {
    numbers(text).map(Cpus)
}

impl TuneArgs {
    fn request(&self) -> TuneRequest {
        TuneRequest {
            vcpu_cpus: self.vcpu_cpus.clone().map(|cpus| cpus.0),
            vhost_cpus: self.vhost_cpus.clone().map(|cpus| cpus.0),
            priority: self.priority,
            vhost_priority: self.vhost_priority,
            governor: self.governor.clone(),
        }
    }

    fn plan(&self, context: &Context, state: &State) -> Result<TunePlan, Error> {
        let host = &context.host;
        let vms = host.vms()?;
        let vm = self.vm.running(host, &vms)?;
        let pollers = poller_cpus()?;
        plan(host, state, vm, &self.request(), &pollers, self.force)
    }
}

/// Run `kbp vm`.
pub fn run(command: VmCommand, context: &Context) -> Result<()> {
    match command {
        VmCommand::List => list(context),
        VmCommand::Tune(args) => tune(&args, context),
        VmCommand::Untune(args) => undo(&args, context),
        VmCommand::Verify(args) => check(&args, context),
    }
}

fn list(context: &Context) -> Result<()> {
    let vms = context.host.vms().map_err(Error::from)?;
    let state = state::peek(&context.host).map_err(Error::from)?;
    let is_tuned = |vm: &Vm| state.vms.iter().any(|record| record.process == vm.process);
    if context.json {
        let mut values = Vec::new();
        for vm in &vms {
            let mut value = serde_json::to_value(vm)?;
            value["tuned"] = is_tuned(vm).into();
            values.push(value);
        }
        return print::json(context, &values);
    }
    let rows = vms.iter().flat_map(|vm| rows(vm, is_tuned(vm))).collect();
    let header = [
        "PID", "NAME", "ACCEL", "TUNED", "THREAD", "ROLE", "CPUS", "SCHEDULE",
    ];
    print::table(&header, rows, header.len())?;
    for vm in &vms {
        if let Some(reason) = &vm.unknown_vcpus {
            print::note(format!("{}: {reason}", vm.label()));
        }
    }
    Ok(())
}

/// A row for each thread, one with dashes for a machine of which none is known.
fn rows(vm: &Vm, is_tuned: bool) -> Vec<Vec<String>> {
    let row = |rest: [String; 4]| {
        let tuned = if is_tuned { "yes" } else { "no" };
        let first = [
            vm.process.pid.to_string(),
            print::or_dash(vm.name.as_ref()),
            vm.accelerator.to_string(),
            tuned.into(),
        ];
        first.into_iter().chain(rest).collect()
    };
    let of_thread = |thread: &VmThread| {
        row([
            thread.thread.tid.to_string(),
            thread.role.to_string(),
            thread.placement.affinity.to_string(),
            thread.placement.schedule(),
        ])
    };
    match vm.threads.is_empty() {
        true => vec![row(["-"; 4].map(String::from))],
        false => vm.threads.iter().map(of_thread).collect(),
    }
}

fn tune(args: &TuneArgs, context: &Context) -> Result<()> {
    if args.dry_run {
        let state = state::peek(&context.host).map_err(Error::from)?;
        let plan = args.plan(context, &state)?;
        if context.json {
            return print::json(context, &described(&plan));
        }
        print::lines(plan.changes())?;
        plan.notes.iter().for_each(print::note);
        return Ok(());
    }
    let mut memory = StateFile::open(&context.host).map_err(Error::from)?;
    let plan = args.plan(context, &memory.state)?;
    let tuned = apply::tune(&context.host, &mut memory, &plan)?;
    if context.json {
        let mut value = described(&plan);
        let notes: Vec<&String> = plan.notes.iter().chain(&tuned.notes).collect();
        value["notes"] = json!(notes);
        value["active"] = json!(tuned.threads);
        return print::json(context, &value);
    }
    for thread in &tuned.threads {
        print::line(format!("{thread}: {}", thread.placement))?;
    }
    print::lines(
        plan.changes()
            .iter()
            .filter(|change| change.starts_with("write")),
    )?;
    plan.notes.iter().chain(&tuned.notes).for_each(print::note);
    Ok(())
}

fn described(plan: &TunePlan) -> serde_json::Value {
    json!({
        "pid": plan.vm.process.pid,
        "name": plan.vm.name,
        "requested": plan.requested,
        "changes": plan.changes(),
        "notes": plan.notes,
    })
}

fn undo(args: &UntuneArgs, context: &Context) -> Result<()> {
    let host = &context.host;
    let mut memory = StateFile::open(host).map_err(Error::from)?;
    let done = match &args.vm {
        Some(name) => {
            let record = name.tuned(&memory.state.vms)?.clone();
            vec![untune(host, &mut memory, &record)?]
        }
        None => untune_all(host, &mut memory)?,
    };
    if context.json {
        return print::json(context, &done);
    }
    if done.is_empty() {
        return print::line("no virtual machine is tuned");
    }
    print::lines(done.iter().flat_map(|untuned| untuned.sentences()))
}

fn check(args: &VerifyArgs, context: &Context) -> Result<()> {
    let state = state::peek(&context.host).map_err(Error::from)?;
    let found = verify::verify(&context.host, &state, &args.vm)?;
    match context.json {
        true => print::json(context, &found)?,
        false => {
            for thread in &found.active {
                print::line(format!("{thread}: {}", thread.placement))?;
            }
        }
    }
    found.differences.iter().for_each(print::note);
    match found.differences.is_empty() {
        true => Ok(()),
        false => {
            let words = format!(
                "{} is not as requested; `kbp vm tune {}` makes it so again",
                found.vm, args.vm
            );
            Err(Error::Incomplete(words).into())
        }
    }
}
