// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `preempt-rt`: the stock path of a kernel on which interrupts and softirqs run in threads. Another kernel, so
//! nothing is set up; that it is one is asked, and the threads of the receive interrupts are watched.

use kbp_core::Host;

use crate::error::Result;
use crate::mechanism::family::{Bench, Family, Moved, Site};
use crate::mechanism::stock;
use crate::result::Row;

/// The stock path of a PREEMPT_RT kernel.
#[derive(Debug)]
pub(crate) struct PreemptRt;

impl Family for PreemptRt {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        match site.host.is_preempt_rt() {
            true => Ok(()),
            false => Err("this kernel is no PREEMPT_RT one; boot one that is".into()),
        }
    }

    /// The threads are those of the receive interrupts: `irq/26-eth0-rx-0`.
    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        let tasks = Host::system().processes().map_err(kbp_core::Error::from)?;
        let irqs = &bench.rig.receive_irqs;
        let prefixes: Vec<String> = irqs.iter().map(|irq| format!("irq/{irq}-")).collect();
        let mine = |comm: &str| prefixes.iter().any(|prefix| comm.starts_with(prefix));
        let tasks = tasks.into_iter().filter(|task| mine(&task.comm));
        Ok(tasks.map(|task| task.tid).collect())
    }

    fn verify(&self, bench: &Bench<'_>, threads: &[u32]) -> Result<()> {
        if !Host::system().is_preempt_rt() {
            return Err(bench.inactive("this kernel is no PREEMPT_RT one"));
        }
        match threads.is_empty() && !bench.rig.receive_irqs.is_empty() {
            true => Err(bench.inactive("the receive interrupts have no threads")),
            false => Ok(()),
        }
    }

    fn verify_row(
        &self,
        bench: &Bench<'_>,
        row: &Row,
        moved: &Moved,
    ) -> std::result::Result<(), String> {
        stock::net_rx_ran(bench, row, moved)
    }

    fn undo(&self, _bench: &Bench<'_>) -> Result<()> {
        Ok(())
    }
}
