// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets of interfaces without interrupts, steered to one CPU by RPS (receive packet steering).
//!
//! Such packets go through the backlog of the CPU that sent them. A mechanism that serves one CPU gets them only
//! when they are steered there. Where a topology has done that already, nothing is changed.

use kbp_core::{setting, CpuList, Host};

use crate::compare::rig::Link;
use crate::error::Result;
use crate::mechanism::family::{memory, Bench};

/// Whether a mask as the kernel prints it has this CPU and no other.
fn is_mask_of(text: &str, cpu: u32) -> bool {
    CpuList::from_mask(text) == Some(CpuList::one(cpu))
}

fn files(host: &Host, ifname: &str) -> Result<Vec<String>> {
    let queues = format!("sys/class/net/{ifname}/queues");
    let names = host.list(&queues).map_err(kbp_core::Error::from)?;
    let receive = names.iter().filter(|name| name.starts_with("rx-"));
    Ok(receive
        .map(|name| format!("{queues}/{name}/rps_cpus"))
        .collect())
}

/// Steers every interface without interrupts to the poller's CPU; remembered before.
pub(crate) fn to_poller(bench: &Bench<'_>) -> Result<()> {
    let cpu = bench.cpu();
    for link in without_interrupts(bench) {
        link.run(|ifname| {
            let host = Host::system();
            for file in files(&host, ifname)? {
                let now = host.read_trimmed(&file).map_err(kbp_core::Error::from)?;
                if !is_mask_of(&now, cpu) {
                    let mut state = memory()?;
                    let mask = CpuList::one(cpu).to_mask();
                    setting::set(&host, &mut state, link.netns.as_deref(), &file, &mask)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// That they still are.
pub(crate) fn verify(bench: &Bench<'_>) -> Result<()> {
    let cpu = bench.cpu();
    for link in without_interrupts(bench) {
        link.run(|ifname| {
            let host = Host::system();
            for file in files(&host, ifname)? {
                let now = host.read_trimmed(&file).map_err(kbp_core::Error::from)?;
                if !is_mask_of(&now, cpu) {
                    return Err(bench.inactive(format!("{file} is {now}, not CPU {cpu}")));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn without_interrupts<'a>(bench: &Bench<'a>) -> impl Iterator<Item = &'a Link> {
    bench.rig.links.iter().filter(|link| !link.has_interrupts)
}
