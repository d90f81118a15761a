// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tuning a machine as a plan: checked first, shown, then carried out as a whole ([`super::apply`]).
//!
//! Not here: which thread gets which CPU ([`super::request`]), and what is said of the CPUs ([`super::isolation`]).

use crate::client::{Client, ClientError};
use crate::error::Error;
use crate::host::Host;
use crate::state::State;
use crate::vm::governor::{self, GovernorPlan};
use crate::vm::model::{Placement, Role, Vm, VmThread};
use crate::vm::record::VmRecord;
use crate::vm::request::{assign, TuneRequest};
use crate::vm::{cpuset, isolation};

/// The policy of threads that have deadlines (SCHED_DEADLINE), which no crate in use names.
const DEADLINE: i32 = 6;

/// How a thread is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// The thread, and how it is now.
    pub thread: VmThread,
    /// How it is to be.
    pub to: Placement,
}

impl ThreadPlan {
    fn changes(&self) -> Vec<String> {
        let (thread, now, to) = (&self.thread, &self.thread.placement, &self.to);
        let mut changes = Vec::new();
        if now.affinity != to.affinity {
            let (to, now) = (&to.affinity, &now.affinity);
            changes.push(format!("bind {thread} to CPU {to} (now {now})"));
        }
        if (now.scheduling, now.nice) != (to.scheduling, to.nice) {
            let (to, now) = (to.schedule(), now.schedule());
            changes.push(format!("set {thread} to {to} (now {now})"));
        }
        changes
    }
}

/// A plan for a machine; nothing has been changed yet.
#[derive(Clone, Debug)]
pub struct TunePlan {
    /// The machine.
    pub vm: Vm,
    /// What is asked for, with what was asked for earlier and what goes without saying.
    pub requested: TuneRequest,
    /// The threads that this is about, those that are so already included.
    pub threads: Vec<ThreadPlan>,
    /// What a person should know before.
    pub notes: Vec<String>,
    pub(super) governors: Vec<GovernorPlan>,
    pub(super) forced: bool,
}

impl TunePlan {
    /// Every change in the order in which it is made, as one sentence each.
    pub fn changes(&self) -> Vec<String> {
        let governors = self.governors.iter().filter_map(GovernorPlan::change);
        let threads = self.threads.iter().flat_map(ThreadPlan::changes);
        governors.chain(threads).collect()
    }
}

/// The CPUs that have pollers now; none while the kernel module is not loaded.
///
/// # Errors
/// When the module is there and can't be asked.
pub fn poller_cpus() -> Result<Vec<u32>, Error> {
    let mut client = match Client::connect() {
        Ok(client) => client,
        Err(ClientError::NotLoaded) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let pollers = client.pollers()?;
    Ok(pollers.iter().map(|poller| poller.cpu).collect())
}

/// Checks a wish against the host and makes a plan of it. Nothing is changed. `pollers`: the CPUs that have some; with
/// `force` they are no reason to refuse.
///
/// # Errors
/// Why it can't be, with the way out.
pub fn plan(
    host: &Host,
    state: &State,
    vm: &Vm,
    request: &TuneRequest,
    pollers: &[u32],
    force: bool,
) -> Result<TunePlan, Error> {
    let record = state.vms.iter().find(|record| record.process == vm.process);
    let requested = match record {
        Some(record) => request.over(&record.requested),
        None => request.clone(),
    }
    .completed();
    check(host, vm, &requested)?;
    let mut notes: Vec<String> = isolation::refuse_pollers(&requested, pollers, force)?
        .into_iter()
        .collect();
    let threads = threads(vm, &requested, record);
    for one in &threads {
        check_thread(host, one)?;
    }
    notes.extend(isolation::strays(&requested, &threads, pollers));
    let (governors, more) = governor::plan(host, state, &requested)?;
    notes.extend(more);
    let others: Vec<&VmRecord> = state
        .vms
        .iter()
        .filter(|other| {
            other.process != vm.process && other.process.is_alive(host).unwrap_or(false)
        })
        .collect();
    notes.extend(isolation::notes(host, vm, &requested, &others)?);
    Ok(TunePlan {
        vm: vm.clone(),
        requested,
        threads,
        notes,
        governors,
        forced: force,
    })
}

fn threads(vm: &Vm, request: &TuneRequest, record: Option<&VmRecord>) -> Vec<ThreadPlan> {
    let assigned = assign(vm, request, record).into_iter();
    let wanted = assigned.filter(|(thread, _)| request.is_about(thread.role));
    wanted
        .map(|(thread, to)| ThreadPlan {
            thread: thread.clone(),
            to,
        })
        .collect()
}

fn check(host: &Host, vm: &Vm, request: &TuneRequest) -> Result<(), Error> {
    if request.is_empty() {
        return Err(Error::Usage(format!(
            "nothing is asked for {}: name --vcpu-cpus, --vhost-cpus or --priority",
            vm.label()
        )));
    }
    if request.chosen_governor().is_some() && request.cpus().is_empty() {
        return Err(Error::Usage(
            "a governor is that of CPUs: name them with --vcpu-cpus or --vhost-cpus".into(),
        ));
    }
    for cpu in request.cpus().iter() {
        host.require_online(cpu)?;
    }
    let vcpus = request.is_about(Role::AllVcpus);
    match &vm.unknown_vcpus {
        Some(reason) if vcpus => Err(Error::Unsupported(format!("{}: {reason}", vm.label()))),
        _ => Ok(()),
    }
}

fn check_thread(host: &Host, one: &ThreadPlan) -> Result<(), Error> {
    let (thread, now, to) = (&one.thread, &one.thread.placement, &one.to);
    if now.scheduling.policy == DEADLINE {
        return Err(Error::Conflict(format!(
            "{thread} is scheduled by deadlines (SCHED_DEADLINE), which can't be put back by this command; `chrt --other \
             --pid 0 {}` ends that",
            thread.thread.tid
        )));
    }
    if now.affinity == to.affinity {
        return Ok(());
    }
    let Some(allowed) = cpuset::of(host, thread.thread.tid) else {
        return Ok(());
    };
    let lacking: crate::CpuList = to
        .affinity
        .iter()
        .filter(|cpu| !allowed.cpus.contains(*cpu))
        .collect();
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(Error::Conflict(format!(
            "the cgroup of {thread} lacks CPU {lacking}: {} has {}; add them to its cpuset.cpus first",
            host.path(&allowed.file).display(),
            allowed.cpus
        ))),
    }
}
