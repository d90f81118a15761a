// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a thread is scheduled and on which CPUs it may run.
//!
//! Only other threads than the caller's pollers: those are set over netlink, because the kernel
//! module must know. No crate in use wraps `sched_setscheduler`, so its two calls are here.

use std::io;

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::host::HostError;
use crate::CpuList;

/// Scheduling policy and priority of a thread, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// `SCHED_OTHER`, `SCHED_FIFO` ... of sched(7).
    pub policy: i32,
    /// Priority of a real-time policy, 1 to 99; 0 for the others.
    pub priority: i32,
}

impl Scheduling {
    /// `SCHED_FIFO` with a priority from 1 to 99.
    pub fn fifo(priority: i32) -> Self {
        Self {
            policy: libc::SCHED_FIFO,
            priority,
        }
    }

    /// `SCHED_OTHER`.
    pub fn other() -> Self {
        Self {
            policy: libc::SCHED_OTHER,
            priority: 0,
        }
    }

    /// Whether it goes before all that is not real-time.
    pub fn is_real_time(&self) -> bool {
        matches!(self.policy, libc::SCHED_FIFO | libc::SCHED_RR)
    }
}

impl std::fmt::Display for Scheduling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.policy {
            libc::SCHED_FIFO => write!(f, "SCHED_FIFO {}", self.priority),
            libc::SCHED_RR => write!(f, "SCHED_RR {}", self.priority),
            libc::SCHED_OTHER => write!(f, "SCHED_OTHER"),
            libc::SCHED_BATCH => write!(f, "SCHED_BATCH"),
            libc::SCHED_IDLE => write!(f, "SCHED_IDLE"),
            policy => write!(f, "policy {policy} {}", self.priority),
        }
    }
}

fn call_failed(what: String, source: impl Into<io::Error>) -> HostError {
    HostError::Call {
        what,
        source: source.into(),
    }
}

/// The scheduling of a thread.
pub fn scheduling(tid: u32) -> Result<Scheduling, HostError> {
    let what = || format!("read the scheduling policy of thread {tid}");
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call takes a number and has no other effect than its result.
    let policy = unsafe { libc::sched_getscheduler(tid as libc::pid_t) };
    if policy < 0 {
        return Err(call_failed(what(), io::Error::last_os_error()));
    }
    // SAFETY: `param` lives until the call returns, which writes nothing but it.
    if unsafe { libc::sched_getparam(tid as libc::pid_t, &mut param) } < 0 {
        return Err(call_failed(what(), io::Error::last_os_error()));
    }
    // The flag for "not inherited by children" is no policy.
    Ok(Scheduling {
        policy: policy & !libc::SCHED_RESET_ON_FORK,
        priority: param.sched_priority,
    })
}

/// Change the scheduling of a thread. Its nice value stays, and whether its children inherit the policy.
pub fn set_scheduling(tid: u32, to: Scheduling) -> Result<(), HostError> {
    // SAFETY: the call takes a number and has no other effect than its result. Where it fails so does the next one.
    let now = unsafe { libc::sched_getscheduler(tid as libc::pid_t) };
    let flag = now.max(0) & libc::SCHED_RESET_ON_FORK;
    let param = libc::sched_param {
        sched_priority: to.priority,
    };
    // SAFETY: `param` lives until the call returns, which only reads it.
    if unsafe { libc::sched_setscheduler(tid as libc::pid_t, to.policy | flag, &param) } < 0 {
        return Err(call_failed(
            format!("set thread {tid} to {to}"),
            io::Error::last_os_error(),
        ));
    }
    Ok(())
}

/// Change the nice value of a thread.
pub fn set_nice(tid: u32, nice: i32) -> Result<(), HostError> {
    // SAFETY: the call takes numbers and has no other effect than its result.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice) } < 0 {
        return Err(call_failed(
            format!("set the nice value of thread {tid} to {nice}"),
            io::Error::last_os_error(),
        ));
    }
    Ok(())
}

/// More CPUs than any thread may be bound to by [`set_affinity`]: a list of that many means all that there are.
pub(crate) fn cpus_max() -> u32 {
    CpuSet::count() as u32
}

/// The CPUs that a thread may run on.
pub fn affinity(tid: u32) -> Result<CpuList, HostError> {
    let set = sched_getaffinity(Pid::from_raw(tid as i32))
        .map_err(|errno| call_failed(format!("read the CPU affinity of thread {tid}"), errno))?;
    Ok((0..CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .map(|cpu| cpu as u32)
        .collect())
}

/// Bind a thread to CPUs; thread 0 is the calling one.
pub fn set_affinity(tid: u32, cpus: &CpuList) -> Result<(), HostError> {
    let what = format!("bind thread {tid} to CPUs {cpus}");
    let mut set = CpuSet::new();
    for cpu in cpus.iter() {
        set.set(cpu as usize)
            .map_err(|errno| call_failed(what.clone(), errno))?;
    }
    sched_setaffinity(Pid::from_raw(tid as i32), &set).map_err(|errno| call_failed(what, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_thread_can_be_read_and_bound() {
        let before = affinity(0).unwrap();
        let cpu = before.iter().next().unwrap();
        set_affinity(0, &CpuList::one(cpu)).unwrap();
        assert_eq!(affinity(0).unwrap(), CpuList::one(cpu));
        set_affinity(0, &before).unwrap();
        assert_eq!(scheduling(0).unwrap(), Scheduling::other());
    }
}
