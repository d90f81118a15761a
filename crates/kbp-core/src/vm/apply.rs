// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carrying out the plan for a machine: remembered first, then done; when a step fails, the earlier ones are undone.
//!
//! A thread that ends meanwhile is no failure. Not here: the checks ([`super::plan`]), and putting back what was carried
//! out earlier ([`super::undo`]).

use serde::Serialize;

use crate::error::Error;
use crate::host::{Host, HostError};
use crate::model::Schedule;
use crate::process::Process;
use crate::sched;
use crate::state::StateFile;
use crate::vm::governor;
use crate::vm::model::{Placement, Thread, VmThread};
use crate::vm::plan::{ThreadPlan, TunePlan};
use crate::vm::read::see;
use crate::vm::record::{VmRecord, VmThreadRecord};
use crate::vm::request::TuneRequest;
use crate::vm::undo;

/// What tuning did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tuned {
    /// The threads as they are now.
    pub threads: Vec<VmThread>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Carries a plan out.
///
/// # Errors
/// The step that failed; then nothing has changed, or [`Error::LeftChanged`] says what has.
pub fn tune(host: &Host, memory: &mut StateFile, plan: &TunePlan) -> Result<Tuned, Error> {
    if !plan.vm.process.is_alive(host)? {
        return Err(Error::NotFound(format!("{} has ended", plan.vm.label())));
    }
    let before = memory.state.clone();
    remember(memory, plan);
    memory.save()?;
    let mut tuned = Tuned::default();
    let mut done = Vec::new();
    if let Err((step, cause)) = carry_out(host, memory, plan, &mut done, &mut tuned) {
        let left = roll_back(host, memory, plan, &done);
        // What could not be undone stays remembered, for `kbp vm untune`.
        if left.is_empty() {
            memory.state = before;
            memory.save()?;
        }
        return Err(failure(step, cause, &left, !plan.changes().is_empty()));
    }
    settle(memory, plan.vm.process, &tuned.threads);
    governor::settle(&mut memory.state, &plan.governors);
    memory.save()?;
    // What can't be put back for others stays remembered, and is said.
    if let Err(error) = leave_others(host, memory, plan) {
        tuned.notes.push(error.to_string());
    }
    Ok(tuned)
}

fn failure(step: String, cause: Error, left: &[Error], has_changed: bool) -> Error {
    let cause = Box::new(cause);
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    match (has_changed, left.is_empty()) {
        (false, true) => *cause,
        (true, true) => Error::RolledBack { step, cause },
        (_, false) => Error::LeftChanged {
            step,
            cause,
            left: format!("{}; `kbp vm untune` tries again", left.join("; ")),
        },
    }
}

/// Writes down how everything is before it is touched. The first originals stay.
fn remember(memory: &mut StateFile, plan: &TunePlan) {
    let process = plan.vm.process;
    let vms = &mut memory.state.vms;
    let at = vms.iter().position(|record| record.process == process);
    let at = at.unwrap_or_else(|| {
        vms.push(VmRecord {
            process,
            name: plan.vm.name.clone(),
            requested: plan.requested.clone(),
            forced: plan.forced,
            threads: Vec::new(),
        });
        vms.len() - 1
    });
    let record = &mut vms[at];
    record.requested = plan.requested.clone();
    record.forced = plan.forced;
    // Those that have ended have nothing to put back.
    let is_there = |thread: Thread| plan.vm.threads.iter().any(|one| one.thread == thread);
    record.threads.retain(|known| is_there(known.thread));
    for one in &plan.threads {
        let mut known = record.threads.iter_mut();
        match known.find(|known| known.thread == one.thread.thread) {
            Some(known) => {
                let set = asked(&plan.requested, one, &known.original);
                known.before = Some(std::mem::replace(&mut known.set, set));
            }
            None => record.threads.push(changed(one)),
        }
    }
}

/// What is remembered of a thread that nobody has changed before.
fn changed(one: &ThreadPlan) -> VmThreadRecord {
    VmThreadRecord {
        thread: one.thread.thread,
        role: one.thread.role,
        original: one.thread.placement.clone(),
        set: one.to.clone(),
        before: None,
    }
}

/// How a thread is made to be, where that is asked for; the rest is not ours, whoever changes it.
fn asked(request: &TuneRequest, one: &ThreadPlan, original: &Placement) -> Placement {
    let (has_cpus, schedule) = request.of(one.thread.role);
    let mut set = original.clone();
    if has_cpus {
        set.affinity = one.to.affinity.clone();
    }
    if schedule.is_some() {
        set.scheduling = one.to.scheduling;
    }
    if matches!(schedule, Some(Schedule::Other { .. })) {
        set.nice = one.to.nice;
    }
    set
}

/// Everything is as it was to be: what was in between is forgotten, and those that have ended.
fn settle(memory: &mut StateFile, process: Process, threads: &[VmThread]) {
    let records = memory.state.vms.iter_mut();
    for record in records.filter(|record| record.process == process) {
        for known in &mut record.threads {
            if threads.iter().any(|thread| thread.thread == known.thread) {
                known.before = None;
            }
        }
    }
}

fn carry_out<'p>(
    host: &Host,
    memory: &mut StateFile,
    plan: &'p TunePlan,
    done: &mut Vec<&'p ThreadPlan>,
    tuned: &mut Tuned,
) -> Result<(), (String, Error)> {
    governor::choose(host, memory, plan.vm.process, &plan.governors)
        .map_err(|cause| ("choosing a governor".to_owned(), cause))?;
    for one in &plan.threads {
        let thread = &one.thread;
        done.push(one);
        let placed = place(host, thread.thread, &one.to);
        match placed.map_err(|cause| (format!("tuning {thread}"), cause))? {
            Some(placement) => tuned.threads.push(VmThread {
                placement,
                ..thread.clone()
            }),
            None => tuned.notes.push(format!("{thread} has ended meanwhile")),
        }
    }
    Ok(())
}

/// Has a thread run on these CPUs with this policy, and returns how it is then; `None` when it has ended.
fn place(host: &Host, thread: Thread, to: &Placement) -> Result<Option<Placement>, Error> {
    let Some(seen) = see(host, thread.tid)?.filter(|seen| seen.thread == thread) else {
        return Ok(None);
    };
    match set(thread.tid, &seen.placement, to) {
        Err(error) if error.errno() == Some(libc::ESRCH) => return Ok(None),
        other => other?,
    }
    let Some(seen) = see(host, thread.tid)?.filter(|seen| seen.thread == thread) else {
        return Ok(None);
    };
    match seen.placement == *to {
        true => Ok(Some(seen.placement)),
        false => Err(Error::Conflict(format!(
            "thread {} was to be on {to} and is on {}; its cgroup, or somebody else, has it so",
            thread.tid, seen.placement
        ))),
    }
}

fn set(tid: u32, now: &Placement, to: &Placement) -> Result<(), HostError> {
    if now.affinity != to.affinity {
        sched::set_affinity(tid, &to.affinity)?;
    }
    if now.scheduling != to.scheduling {
        sched::set_scheduling(tid, to.scheduling)?;
    }
    if now.nice != to.nice {
        sched::set_nice(tid, to.nice)?;
    }
    Ok(())
}

fn roll_back(host: &Host, memory: &StateFile, plan: &TunePlan, done: &[&ThreadPlan]) -> Vec<Error> {
    let mut failed = Vec::new();
    for one in done.iter().rev() {
        let back = undo::put_back(host, &changed(one));
        failed.extend(back.err().map(Error::from));
    }
    failed.extend(governor::roll_back(host, &memory.state, &plan.governors));
    failed
}

/// Puts back what this machine does not want any more, and what machines wanted that have ended.
fn leave_others(host: &Host, memory: &mut StateFile, plan: &TunePlan) -> Result<(), Error> {
    let wanted: Vec<u32> = plan.governors.iter().map(|one| one.first()).collect();
    let process = plan.vm.process;
    governor::release(host, memory, |user, first| {
        *user == process && !wanted.contains(&first)
    })?;
    undo::forget_ended(host, memory).map(drop)
}
