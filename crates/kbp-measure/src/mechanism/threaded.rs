// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `threaded` and `threaded-fifo`: mainline's threaded NAPI on the interfaces that have NAPI instances.
//!
//! Interfaces of the path that have none stay on the stock path. Not here: the switching, kbp_core::threaded.

use kbp_core::sched;
use kbp_core::threaded::{self, ThreadedRequest};
use kbp_core::{CpuList, Host};

use crate::error::Result;
use crate::mechanism::family::{memory, Bench, Family, Moved, Site};
use crate::mechanism::links;
use crate::result::Row;

/// Threaded NAPI.
#[derive(Debug)]
pub(crate) struct Threaded {
    /// Whether the threads are bound to the poller's CPU and `SCHED_FIFO`.
    pub fifo: bool,
}

/// The threads of a mechanism are bound to the poller's CPU and scheduled like this.
pub(crate) fn verify_placed(
    bench: &Bench<'_>,
    threads: &[u32],
    want: sched::Scheduling,
) -> Result<()> {
    if threads.is_empty() {
        return Err(bench.inactive("it has no thread"));
    }
    for &tid in threads {
        let scheduling = sched::scheduling(tid).map_err(kbp_core::Error::from)?;
        let cpus = sched::affinity(tid).map_err(kbp_core::Error::from)?;
        if scheduling != want || cpus != CpuList::one(bench.cpu()) {
            return Err(bench.inactive(format!(
                "thread {tid} runs as {scheduling} on CPU {cpus}, not as {want} on CPU {}",
                bench.cpu()
            )));
        }
    }
    Ok(())
}

/// The threads of a mechanism have to have worked.
pub(crate) fn threads_worked(row: &Row) -> std::result::Result<(), String> {
    match row.witness.mode_threads_ns {
        0 => Err("its threads used no CPU time".into()),
        _ => Ok(()),
    }
}

impl Family for Threaded {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        links::refuse_per_cpu(site)?;
        links::require_napi(site)
    }

    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        let cpus = self.fifo.then(|| CpuList::one(bench.cpu()));
        let scheduling = self.fifo.then(|| bench.fifo());
        let mut tids = Vec::new();
        for link in links::with_napi(&bench.rig.links)? {
            let threads = link.run(|ifname| {
                let request = ThreadedRequest {
                    ifname: ifname.into(),
                    netns: link.netns.clone(),
                    cpus: cpus.clone(),
                    scheduling,
                };
                let enabled = threaded::enable(&Host::system(), &mut memory()?, &request)?;
                Ok(enabled.threads)
            })?;
            tids.extend(threads.iter().map(|task| task.tid));
        }
        Ok(tids)
    }

    fn verify(&self, bench: &Bench<'_>, threads: &[u32]) -> Result<()> {
        if self.fifo {
            return verify_placed(bench, threads, bench.fifo());
        }
        match threads.is_empty() {
            true => Err(bench.inactive("it has no thread")),
            false => Ok(()),
        }
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
        let mut first_error = None;
        for link in &bench.rig.links {
            let disabled =
                link.run(|ifname| Ok(threaded::disable(&Host::system(), &mut memory()?, ifname)?));
            if let Err(error) = disabled {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}
