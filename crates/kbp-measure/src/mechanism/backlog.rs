// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backlog-threads`: mainline's threads for the per-CPU backlog, through which packets of interfaces without
//! interrupts go (lo, veth, RPS).
//!
//! The kernel makes them when it boots with the parameter. Here they get `SCHED_FIFO`, and the packets are steered
//! to the poller's CPU: what `threaded-fifo` is for network cards.

use kbp_core::procfs::Task;
use kbp_core::{placed, Host};

use crate::error::Result;
use crate::mechanism::family::{memory, Bench, Family, Moved, Site};
use crate::mechanism::threaded::{threads_worked, verify_placed};
use crate::mechanism::{links, steer, sysctls};
use crate::result::Row;

/// The word on the kernel's command line.
pub(crate) const BOOT_PARAMETER: &str = "thread_backlog_napi";
/// Beginning of the threads' names; the number of the CPU follows.
const THREAD_PREFIX: &str = "backlog_napi/";

/// The backlog threads.
#[derive(Debug)]
pub(crate) struct BacklogThreads;

fn thread_of(host: &Host, cpu: u32) -> Result<Option<Task>> {
    let name = format!("{THREAD_PREFIX}{cpu}");
    let found = host.processes_named(&name).map_err(kbp_core::Error::from)?;
    Ok(found.into_iter().next())
}

impl Family for BacklogThreads {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        let tasks = site.host.processes().map_err(|error| error.to_string())?;
        if !tasks
            .iter()
            .any(|task| task.comm.starts_with(THREAD_PREFIX))
        {
            let cmdline = site.host.read("proc/cmdline").unwrap_or_default();
            let asked = cmdline
                .split_whitespace()
                .any(|word| word == BOOT_PARAMETER);
            return Err(match asked {
                true => format!("the kernel was booted with {BOOT_PARAMETER} but does not know it; a newer one does"),
                false => format!("the machine has to be booted with {BOOT_PARAMETER} on the kernel's command line"),
            });
        }
        links::require_without_interrupts(site)
    }

    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        let host = Host::system();
        let Some(task) = thread_of(&host, bench.cpu())? else {
            return Err(bench.inactive(format!("CPU {} has no backlog thread", bench.cpu())));
        };
        placed::schedule(&mut memory()?, &task, bench.fifo())?;
        steer::to_poller(bench)?;
        Ok(vec![task.tid])
    }

    fn verify(&self, bench: &Bench<'_>, threads: &[u32]) -> Result<()> {
        steer::verify(bench)?;
        verify_placed(bench, threads, bench.fifo())
    }

    fn verify_row(
        &self,
        _bench: &Bench<'_>,
        row: &Row,
        _moved: &Moved,
    ) -> std::result::Result<(), String> {
        threads_worked(row)
    }

    fn undo(&self, bench: &Bench<'_>) -> Result<()> {
        let steered = sysctls::restore_all(bench);
        let mut state = memory()?;
        let scheduled = placed::restore(&Host::system(), &mut state);
        steered.and(scheduled.map_err(Into::into))
    }
}
