// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Putting the threads of a machine back as they were, and the governors of its CPUs.
//!
//! What somebody else has changed meanwhile is left alone, and that is said. Of a machine that has ended only the
//! governors are there to be put back. Not here: undoing a plan of which a step failed ([`super::apply`]).

use serde::Serialize;

use crate::error::{first_or_all, Error};
use crate::governor::Returned;
use crate::host::{Host, HostError};
use crate::sched;
use crate::state::StateFile;
use crate::vm::cpuset;
use crate::vm::governor;
use crate::vm::model::{Placement, Role, Thread};
use crate::vm::read::{see, Seen};
use crate::vm::record::{VmRecord, VmThreadRecord};
use crate::CpuList;

/// What became of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadReturned {
    /// Which.
    #[serde(flatten)]
    pub thread: Thread,
    /// What it does.
    #[serde(flatten)]
    pub role: Role,
    /// What happened.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What happened to a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is as it was before.
    Restored {
        /// How that is.
        to: Placement,
    },
    /// Something about it was not touched, because it is not as it was left.
    LeftAlone {
        /// How it is.
        found: Placement,
        /// What was not touched.
        what: String,
    },
    /// It has ended.
    Gone,
}

impl std::fmt::Display for ThreadReturned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (thread {}) ", self.role, self.thread.tid)?;
        match &self.outcome {
            Outcome::Restored { to } => write!(f, "is on {to} again"),
            Outcome::LeftAlone { found, what } => write!(
                f,
                "is on {found}: its {what} was left alone, because something else has changed that meanwhile"
            ),
            Outcome::Gone => write!(f, "has ended"),
        }
    }
}

/// What an undo did for one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untuned {
    /// What a person calls the machine.
    pub vm: String,
    /// The number of its process.
    pub pid: u32,
    /// Whether it has ended; then there is no thread to put back.
    pub has_ended: bool,
    /// Its threads.
    pub threads: Vec<ThreadReturned>,
    /// Governors that went back.
    pub governors: Vec<Returned>,
}

impl Untuned {
    /// A sentence for each thing.
    pub fn sentences(&self) -> Vec<String> {
        let ended = format!(
            "{} has ended: it has no threads to put back, and is forgotten",
            self.vm
        );
        let ended = self.has_ended.then_some(ended).into_iter();
        let threads = self.threads.iter().map(ToString::to_string);
        let governors = self.governors.iter().map(ToString::to_string);
        ended.chain(threads).chain(governors).collect()
    }
}

/// Undoes everything that was done for a machine, and forgets it.
///
/// # Errors
/// What can't be put back, which stays remembered; the rest is still done.
pub fn untune(host: &Host, memory: &mut StateFile, record: &VmRecord) -> Result<Untuned, Error> {
    let process = record.process;
    let has_ended = !process.is_alive(host)?;
    let (mut threads, mut left, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for known in record.threads.iter().filter(|_| !has_ended) {
        match put_back(host, known) {
            Ok(outcome) => threads.push(ThreadReturned {
                thread: known.thread,
                role: known.role,
                outcome,
            }),
            Err(error) => {
                left.push(known.clone());
                failed.push(Error::UndoIncomplete(error.to_string()));
            }
        }
    }
    match memory
        .state
        .vms
        .iter_mut()
        .find(|other| other.process == process)
    {
        Some(kept) if !left.is_empty() => kept.threads = left,
        _ => memory.state.vms.retain(|other| other.process != process),
    }
    memory.save()?;
    let governors = governor::release(host, memory, |user, _| *user == process);
    let governors = governors.unwrap_or_else(|error| {
        failed.push(error);
        Vec::new()
    });
    first_or_all(failed)?;
    Ok(Untuned {
        vm: record.label(),
        pid: process.pid,
        has_ended,
        threads,
        governors,
    })
}

/// Undoes everything for all machines.
///
/// # Errors
/// What can't be put back, which stays remembered; the rest is still done.
pub fn untune_all(host: &Host, memory: &mut StateFile) -> Result<Vec<Untuned>, Error> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for record in memory.state.vms.clone() {
        match untune(host, memory, &record) {
            Ok(untuned) => done.push(untuned),
            Err(error) => failed.push(error),
        }
    }
    // Those of CPUs that were offline.
    failed.extend(governor::release(host, memory, |_, _| true).err());
    first_or_all(failed)?;
    Ok(done)
}

/// Forgets machines that have ended, and puts back the governors that only they wanted.
pub(super) fn forget_ended(host: &Host, memory: &mut StateFile) -> Result<Vec<Untuned>, Error> {
    let mut done = Vec::new();
    for record in memory.state.vms.clone() {
        if !record.process.is_alive(host)? {
            done.push(untune(host, memory, &record)?);
        }
    }
    Ok(done)
}

/// Whether a part of a thread's placement is to go back: `Some(false)` when somebody else has changed what we had.
fn goes_back<T: PartialEq>(
    record: &VmThreadRecord,
    now: &Placement,
    part: impl Fn(&Placement) -> T,
) -> Option<bool> {
    let (original, set, now) = (part(&record.original), part(&record.set), part(now));
    let before = record.before.as_ref().map(part);
    let is_ours = set != original || before.as_ref().is_some_and(|before| *before != original);
    if now == original || !is_ours {
        return None;
    }
    Some(now == set || Some(now) == before)
}

/// Puts a thread back as it was, where it is as it was made.
///
/// # Errors
/// What the kernel refuses.
pub(super) fn put_back(host: &Host, record: &VmThreadRecord) -> Result<Outcome, HostError> {
    let here = |seen: &Seen| seen.thread == record.thread;
    let Some(seen) = see(host, record.thread.tid)?.filter(here) else {
        return Ok(Outcome::Gone);
    };
    match restore(host, record, &seen.placement) {
        Err(error) if error.errno() == Some(libc::ESRCH) => Ok(Outcome::Gone),
        Err(error) => Err(error),
        Ok(alone) => {
            let Some(seen) = see(host, record.thread.tid)?.filter(here) else {
                return Ok(Outcome::Gone);
            };
            Ok(match alone.is_empty() {
                true => Outcome::Restored { to: seen.placement },
                false => Outcome::LeftAlone {
                    found: seen.placement,
                    what: alone.join(" and "),
                },
            })
        }
    }
}

/// The policy goes first: a thread leaves its CPU without a real-time priority. Returns what was left alone.
fn restore(
    host: &Host,
    record: &VmThreadRecord,
    now: &Placement,
) -> Result<Vec<&'static str>, HostError> {
    let (tid, original) = (record.thread.tid, &record.original);
    let mut alone = Vec::new();
    match goes_back(record, now, |placement| placement.scheduling) {
        Some(true) => sched::set_scheduling(tid, original.scheduling)?,
        Some(false) => alone.push("policy"),
        None => {}
    }
    match goes_back(record, now, |placement| placement.nice) {
        Some(true) => sched::set_nice(tid, original.nice)?,
        Some(false) => alone.push("nice value"),
        None => {}
    }
    match goes_back(record, now, |placement| placement.affinity.clone()) {
        Some(true) => bind_again(host, tid, &original.affinity)?,
        Some(false) => alone.push("affinity"),
        None => {}
    }
    Ok(alone)
}

/// A thread that was never bound has all CPUs that its cgroup has, also those that this gets later. Binding it to the CPUs
/// that it had would be less, so it is bound to all that there may be.
fn bind_again(host: &Host, tid: u32, original: &CpuList) -> Result<(), HostError> {
    let all: CpuList = (0..sched::cpus_max()).collect();
    let allowed = match cpuset::of(host, tid) {
        Some(cpuset) => Some(cpuset.cpus),
        None => host.read_cpu_list("sys/devices/system/cpu/possible").ok(),
    };
    let had_all = allowed.is_some_and(|cpus| cpus.iter().all(|cpu| original.contains(cpu)));
    if had_all {
        sched::set_affinity(tid, &all)?;
        let now = see(host, tid)?;
        if now.is_none_or(|seen| seen.placement.affinity == *original) {
            return Ok(());
        }
    }
    sched::set_affinity(tid, original)
}
