// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time: of CPUs, of ksoftirqd, and of the threads at both ends.
//!
//! Not here: what the time was spent on.

use std::collections::BTreeMap;

use kbp_core::procfs::{CpuTicks, Stat, TICK_NS};
use kbp_core::Host;
use nix::errno::Errno;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::result::{CpuTimes, CpuUse};

/// Who is counted as the server or the client. It has to live through both readings: what a thread used is forgotten
/// when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// One thread, by its id.
    Thread(u32),
    /// All threads of a process, those that ended too. Only on the running machine.
    Process(u32),
}

impl Counted {
    /// The calling thread.
    pub fn this_thread() -> Self {
        // SAFETY: the call has no argument and no effect but its result.
        Self::Thread(unsafe { libc::gettid() } as u32)
    }

    /// The time that it was on a CPU until now, nanoseconds.
    pub(super) fn cpu_ns(self, host: &Host) -> Result<u64> {
        match self {
            Self::Thread(tid) => match host.thread_cpu_ns(tid) {
                Err(error) if error.is_missing() => Err(ended(&format!("thread {tid}"))),
                read => read.map_err(|error| kbp_core::Error::from(error).into()),
            },
            Self::Process(pid) => process_cpu_ns(pid),
        }
    }
}

fn ended(who: &str) -> Error {
    Error::Invalid(format!(
        "{who} ended before its CPU time was read: keep it until the counters are read, or do not watch it"
    ))
}

/// By the process's own CPU clock: unlike the sum over its threads in /proc it holds those that ended.
fn process_cpu_ns(pid: u32) -> Result<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    let time = clock.and_then(clock_gettime).map_err(|errno| match errno {
        Errno::ESRCH | Errno::EINVAL => ended(&format!("process {pid}")),
        _ => Error::sys(format!("read the CPU clock of process {pid}"), errno),
    })?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// The sum over several.
pub(super) fn sum_ns(host: &Host, counted: &[Counted]) -> Result<u64> {
    counted.iter().map(|counted| counted.cpu_ns(host)).sum()
}

/// The ksoftirqd threads of this machine by CPU. They live as long as the kernel.
///
/// # Errors
/// When /proc can't be listed.
pub(super) fn ksoftirqds(host: &Host) -> Result<BTreeMap<u32, u32>> {
    let tasks = host.processes().map_err(kbp_core::Error::from)?;
    let found = tasks.iter().filter_map(|task| {
        let cpu = task.comm.strip_prefix("ksoftirqd/")?.parse().ok()?;
        Some((cpu, task.tid))
    });
    Ok(found.collect())
}

/// The part of [`CpuUse`] that comes from /proc/stat.
pub(super) fn between(before: &Stat, after: &Stat) -> CpuUse {
    let of_cpu = |(&cpu, now): (&u32, &CpuTicks)| {
        let then = before.cpus.get(&cpu)?;
        Some((cpu, times(then, now)))
    };
    CpuUse {
        cpus: after.cpus.iter().filter_map(of_cpu).collect(),
        context_switches: after
            .context_switches
            .saturating_sub(before.context_switches),
        ..CpuUse::default()
    }
}

fn times(then: &CpuTicks, now: &CpuTicks) -> CpuTimes {
    // The idle time of a CPU can go back a little, see get_cpu_idle_time_us() of the kernel.
    let ns = |then: u64, now: u64| now.saturating_sub(then) * TICK_NS;
    CpuTimes {
        user_ns: ns(then.user, now.user),
        system_ns: ns(then.system, now.system),
        irq_ns: ns(then.irq, now.irq),
        softirq_ns: ns(then.softirq, now.softirq),
        idle_ns: ns(then.idle, now.idle),
        steal_ns: ns(then.steal, now.steal),
    }
}
