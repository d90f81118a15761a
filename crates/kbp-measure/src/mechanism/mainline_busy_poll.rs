// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mainline-busy-poll`: the kernel's own busy-polling threads, one for each NAPI instance, bound to the poller's
//! CPU.
//!
//! They stay `SCHED_OTHER`: with several instances on one CPU they take turns, and as `SCHED_FIFO` the first would
//! never let the others run. Not here: the messages, kbp_core::napi_netlink.

use kbp_core::busy_poll::{self, BusyPollRequest};
use kbp_core::napi_netlink::Netdev;
use kbp_core::sched::Scheduling;
use kbp_core::{CpuList, Host};

use crate::error::Result;
use crate::mechanism::family::{memory, Bench, Family, Moved, Site};
use crate::mechanism::leftover::in_namespace;
use crate::mechanism::links;
use crate::mechanism::threaded::{threads_worked, verify_placed};
use crate::result::Row;

/// Mainline's threaded busy-poll.
#[derive(Debug)]
pub(crate) struct MainlineBusyPoll;

impl Family for MainlineBusyPoll {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        let known = match Netdev::open().map_err(|error| error.to_string())? {
            Some(mut family) => family.has_busy_poll().map_err(|error| error.to_string())?,
            None => false,
        };
        if !known {
            return Err("this kernel has no threaded NAPI busy-poll; a newer one has".into());
        }
        links::refuse_per_cpu(site)?;
        links::require_napi(site)
    }

    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        let mut tids = Vec::new();
        for link in links::with_napi(&bench.rig.links)? {
            let threads = link.run(|ifname| {
                let request = BusyPollRequest {
                    ifname: ifname.into(),
                    netns: link.netns.clone(),
                    cpus: CpuList::one(bench.cpu()),
                };
                Ok(busy_poll::enable(
                    &Host::system(),
                    &mut memory()?,
                    &request,
                )?)
            })?;
            tids.extend(threads.iter().map(|task| task.tid));
        }
        Ok(tids)
    }

    fn verify(&self, bench: &Bench<'_>, threads: &[u32]) -> Result<()> {
        verify_placed(bench, threads, Scheduling::other())
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
        for netns in bench.namespaces() {
            let restored = in_namespace(netns.as_deref(), || {
                let mut state = memory()?;
                Ok(busy_poll::restore(
                    &Host::system(),
                    &mut state,
                    netns.as_deref(),
                )?)
            });
            if let Err(error) = restored {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}
