// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernel threads that others made: bound to CPUs and given a policy, and put back.
//!
//! Which threads those are is decided by the callers ([`crate::threaded`], [`crate::busy_poll`]) and
//! beyond. Pollers of ours are not here: the kernel module places them.

use crate::error::Error;
use crate::host::{Host, HostError};
use crate::procfs::Task;
use crate::sched::{self, Scheduling};
use crate::state::{StateFile, ThreadRecord};
use crate::CpuList;

/// How a thread is now, to be remembered before it is changed.
pub(crate) fn record(task: &Task) -> Result<ThreadRecord, HostError> {
    Ok(ThreadRecord {
        tid: task.tid,
        comm: task.comm.clone(),
        affinity: sched::affinity(task.tid)?,
        scheduling: sched::scheduling(task.tid)?,
    })
}

/// Binds a thread and gives it a policy; `None` leaves either as it is.
pub(crate) fn place(
    tid: u32,
    cpus: Option<&CpuList>,
    scheduling: Option<Scheduling>,
) -> Result<(), HostError> {
    if let Some(cpus) = cpus {
        sched::set_affinity(tid, cpus)?;
    }
    scheduling.map_or(Ok(()), |to| sched::set_scheduling(tid, to))
}

/// Puts a thread back. One that ended, or whose number another one has now, needs nothing.
pub(crate) fn put_back(host: &Host, record: &ThreadRecord) -> Result<(), Error> {
    let comm = host.read_optional(&format!("proc/{}/comm", record.tid))?;
    if comm.as_deref() != Some(record.comm.as_str()) {
        return Ok(());
    }
    sched::set_scheduling(record.tid, record.scheduling)?;
    // A per-CPU thread may not be bound, not even to the CPU that it has.
    if sched::affinity(record.tid)? != record.affinity {
        sched::set_affinity(record.tid, &record.affinity)?;
    }
    Ok(())
}

/// Gives a thread another policy and remembers how it was scheduled.
pub fn schedule(state: &mut StateFile, task: &Task, to: Scheduling) -> Result<(), Error> {
    let known = |record: &ThreadRecord| record.tid == task.tid && record.comm == task.comm;
    if !state.state.threads.iter().any(known) {
        state.state.threads.push(record(task)?);
        state.save()?;
    }
    Ok(sched::set_scheduling(task.tid, to)?)
}

/// Puts back every thread that [`schedule`] changed. One that can't be put back stays remembered.
pub fn restore(host: &Host, state: &mut StateFile) -> Result<(), Error> {
    let mut failed = Vec::new();
    for record in state.state.threads.clone() {
        match put_back(host, &record) {
            Ok(()) => state.state.threads.retain(|other| *other != record),
            Err(error) => failed.push(error.to_string()),
        }
    }
    state.save()?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::UndoIncomplete(failed.join("; "))),
    }
}
