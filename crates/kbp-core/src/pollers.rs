// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creating a poller as a plan: what is changed for it besides the poller itself is the governor of its CPU.
//!
//! Deleting one, with everything that was changed for what is attached to it, is in [`crate::undo`].

use crate::client::ClientError;
use crate::cstates::deep_exit_us;
use crate::error::Error;
use crate::governor::{self, GovernorPlan};
use crate::host::Host;
use crate::model::{Poller, PollerSpec, Schedule};
use crate::plan::Session;
use crate::state::State;
use crate::uapi::Freq;

/// A plan for a poller; nothing has been changed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollerPlan {
    /// The poller.
    pub spec: PollerSpec,
    /// What a person should know about it.
    pub notes: Vec<String>,
    governor: Option<GovernorPlan>,
}

/// The priority of the threads that handle interrupts on PREEMPT_RT, as the kernel makes them.
pub const IRQ_THREAD_PRIORITY: u32 = 50;

/// The priority of a poller for which none was named; on PREEMPT_RT it has to be that of the interrupts' threads.
pub const DEFAULT_PRIORITY: u8 = 50;

/// On PREEMPT_RT what wakes a poller is a thread, for which the poller makes way if it has the same priority.
fn priority_note(host: &Host, spec: &PollerSpec) -> Option<String> {
    match spec.schedule {
        Some(Schedule::Fifo { priority })
            if priority > IRQ_THREAD_PRIORITY && host.is_preempt_rt() =>
        {
            Some(format!(
                "with priority {priority} the poller keeps the threads that handle interrupts on this PREEMPT_RT kernel \
                 (SCHED_FIFO {IRQ_THREAD_PRIORITY}) from its CPU until it rests, and a device that waits for its \
                 interrupt waits with them; {DEFAULT_PRIORITY} lets them run"
            ))
        }
        _ => None,
    }
}

impl PollerPlan {
    /// What would be changed, a sentence each, in its order.
    pub fn changes(&self) -> Vec<String> {
        let governor = self.governor.as_ref().and_then(GovernorPlan::change);
        let create = format!("netlink kbp poller-new: {}", self.spec);
        governor.into_iter().chain([create]).collect()
    }

    /// The same without a wish for its backlog.
    pub fn without_backlog(&self) -> Self {
        Self {
            spec: PollerSpec {
                backlog: None,
                ..self.spec.clone()
            },
            notes: self.notes.clone(),
            governor: self.governor.clone(),
        }
    }
}

/// The governor that the poller's CPU needs for it.
///
/// # Errors
/// Why the frequency can't follow it.
pub(crate) fn plan_governor(
    host: &Host,
    state: &State,
    spec: &PollerSpec,
) -> Result<Option<GovernorPlan>, Error> {
    let follows = spec.freq.is_some_and(|freq| freq != Freq::Off);
    let shared = spec.freq_shared.unwrap_or(false);
    let plan = follows.then(|| governor::plan(host, state, spec.cpu, shared));
    plan.transpose()
}

/// What the module has to know to limit idle states.
///
/// # Errors
/// When there are none, or none that the limit keeps away.
pub(crate) fn deep_exit(host: &Host, spec: &PollerSpec) -> Result<Option<u32>, Error> {
    let limit = spec.max_cstate_latency_us;
    limit
        .map(|max_us| deep_exit_us(host, spec.cpu, max_us))
        .transpose()
}

impl Session<'_> {
    /// Plans a poller.
    ///
    /// # Errors
    /// When its CPU is offline or has one, its frequency can't follow it, or it has no idle states to limit.
    pub fn plan_poller(&mut self, spec: &PollerSpec) -> Result<PollerPlan, Error> {
        let cpu = spec.cpu;
        self.host.require_online(cpu)?;
        if self
            .control
            .pollers()?
            .iter()
            .any(|poller| poller.cpu == cpu)
        {
            return Err(Error::Conflict(format!(
                "this CPU has a poller; delete it first with `kbp poller del --cpu {cpu}`"
            )));
        }
        self.refuse_machines(cpu)?;
        Ok(PollerPlan {
            spec: PollerSpec {
                deep_exit_us: deep_exit(self.host, spec)?,
                ..spec.clone()
            },
            notes: priority_note(self.host, spec).into_iter().collect(),
            governor: plan_governor(self.host, &self.file.state, spec)?,
        })
    }

    /// The threads that `kbp vm tune` has put on a CPU and a poller there starve each other.
    fn refuse_machines(&self, cpu: u32) -> Result<(), Error> {
        for vm in &self.file.state.vms {
            let has = vm.requested.cpus().contains(cpu) && !vm.forced;
            if has && vm.process.is_alive(self.host)? {
                let vm = vm.label();
                return Err(Error::Conflict(format!(
                    "this CPU was given to {vm} (`kbp vm list`): whichever of the two has the higher priority keeps the other \
                     from running; name another CPU, put the machine back with `kbp vm untune`, or have both so with \
                     `kbp vm tune --force`"
                )));
            }
        }
        Ok(())
    }

    /// Creates a poller. The governor comes first: the module looks for it when the poller begins.
    ///
    /// # Errors
    /// What kept it from being created; then nothing has changed, or [`Error::LeftChanged`] says what has.
    pub fn add_poller(&mut self, plan: &PollerPlan) -> Result<Poller, Error> {
        let has_chosen = match &plan.governor {
            Some(governor) => governor::choose(self.host, &mut self.file, governor)?,
            None => false,
        };
        let cause = match self.create(&plan.spec) {
            Err(error) if has_chosen => Error::from(error),
            created => return Ok(created?),
        };
        match self.release_governors(|cpu| cpu == plan.spec.cpu) {
            Ok(_) => Err(cause),
            Err(left) => Err(Error::LeftChanged {
                step: plan.spec.to_string(),
                cause: Box::new(cause),
                left: left.to_string(),
            }),
        }
    }

    fn create(&mut self, spec: &PollerSpec) -> Result<Poller, ClientError> {
        self.control.poller_new(spec)?;
        self.control.poller_get(spec.cpu)
    }

    /// Puts back the governors of CPUs that have no poller any more, whoever has deleted it, or died in between.
    pub(crate) fn release_orphans(&mut self) -> Result<Vec<governor::Returned>, Error> {
        let pollers = self.control.pollers()?;
        let has_poller = |cpu| pollers.iter().any(|poller| poller.cpu == cpu);
        self.release_governors(|cpu| !has_poller(cpu))
    }

    /// Puts back the governors of CPUs for which `ends` says so, where no other poller wants ours.
    pub(crate) fn release_governors(
        &mut self,
        ends: impl Fn(u32) -> bool,
    ) -> Result<Vec<governor::Returned>, Error> {
        governor::release(self.host, &mut self.file, ends)
    }
}
