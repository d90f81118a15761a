// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `busy-read` and `defer-irqs`: mechanisms that are a value in a file.
//!
//! Not here: how a file is remembered and put back, kbp_core::setting.

use kbp_core::{setting, Host};

use crate::compare::rig::Link;
use crate::error::Result;
use crate::mechanism::family::{memory, Bench, Family, Moved, Site};
use crate::mechanism::leftover::in_namespace;
use crate::mechanism::{links, stock};
use crate::result::Row;

/// How long sockets poll, microseconds: in recv, and in poll and select.
pub(crate) const BUSY_SYSCTLS: [&str; 2] =
    ["proc/sys/net/core/busy_read", "proc/sys/net/core/busy_poll"];

/// Whether sockets can poll on this kernel; else the file that there is not.
pub(crate) fn sockets_poll(host: &Host) -> std::result::Result<(), &'static str> {
    match BUSY_SYSCTLS.iter().find(|file| !host.exists(file)) {
        None => Ok(()),
        Some(file) => Err(file),
    }
}

/// Defers the interrupts of an interface and remembers what was there: the count, and the period in nanoseconds.
pub(crate) fn defer(link: &Link, values: &[String; 2]) -> Result<()> {
    link.run(|ifname| {
        let (host, mut state) = (Host::system(), memory()?);
        for (file, value) in deferral_files(ifname).iter().zip(values) {
            setting::set(&host, &mut state, link.netns.as_deref(), file, value)?;
        }
        Ok(())
    })
}

/// What is different where interrupts are to be deferred so; `None` where nothing is.
pub(crate) fn other_deferral(link: &Link, values: &[String; 2]) -> Result<Option<String>> {
    link.run(|ifname| {
        for (file, value) in deferral_files(ifname).iter().zip(values) {
            if let Some(other) = other_value(file, value)? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    })
}

/// The files of an interface that defer its interrupts: the count, and the period in nanoseconds.
pub(crate) fn deferral_files(ifname: &str) -> [String; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"]
        .map(|name| format!("sys/class/net/{ifname}/{name}"))
}

fn restore(bench: &Bench<'_>, netns: Option<&str>) -> Result<()> {
    in_namespace(netns, || {
        let mut state = memory()?;
        Ok(setting::restore(&Host::system(), &mut state, netns)?)
    })
    .map_err(|error| match error {
        error @ crate::Error::Core(_) => error,
        error => bench.inactive(format!("it can't be undone: {error}")),
    })
}

/// Puts back every file that the mechanism of this bench has set, in all its namespaces.
pub(crate) fn restore_all(bench: &Bench<'_>) -> Result<()> {
    let mut namespaces = bench.namespaces();
    if !namespaces.contains(&None) {
        namespaces.push(None);
    }
    let mut first_error = None;
    for netns in namespaces {
        if let Err(error) = restore(bench, netns.as_deref()) {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// What a file has instead of that value.
fn other_value(file: &str, want: &str) -> Result<Option<String>> {
    let now = Host::system().read_trimmed(file);
    let now = now.map_err(kbp_core::Error::from)?;
    Ok((now != want).then(|| format!("/{file} is {now}, not {want}")))
}

fn is_as_set(bench: &Bench<'_>, other: Option<String>) -> Result<()> {
    other.map_or(Ok(()), |why| Err(bench.inactive(why)))
}

/// Sockets poll.
#[derive(Debug)]
pub(crate) struct BusyRead;

impl Family for BusyRead {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        if let Err(file) = sockets_poll(site.host) {
            return Err(format!(
                "there is no {}: the kernel has no busy polling of sockets (PREEMPT_RT has none), or this is not \
                 the first network namespace",
                site.host.path(file).display()
            ));
        }
        links::require_napi(site)
    }

    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        let value = bench.config.busy_read_us.to_string();
        let (host, mut state) = (Host::system(), memory()?);
        for file in BUSY_SYSCTLS {
            setting::set(&host, &mut state, None, file, &value)?;
        }
        Ok(Vec::new())
    }

    fn verify(&self, bench: &Bench<'_>, _threads: &[u32]) -> Result<()> {
        let want = bench.config.busy_read_us.to_string();
        BUSY_SYSCTLS
            .iter()
            .try_for_each(|file| is_as_set(bench, other_value(file, &want)?))
    }

    /// Only sockets that were made after the set-up poll.
    fn verify_row(
        &self,
        _bench: &Bench<'_>,
        row: &Row,
        moved: &Moved,
    ) -> std::result::Result<(), String> {
        match moved.busy_poll_packets {
            0 if row.n > 0 => Err(
                "no socket took a packet by polling (BusyPollRxPackets of /proc/net/netstat); the programs have to \
                 be started after the set-up and wait in recv, poll or epoll"
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    fn undo(&self, bench: &Bench<'_>) -> Result<()> {
        restore(bench, None)
    }
}

/// Interrupts are deferred to a timer.
#[derive(Debug)]
pub(crate) struct DeferIrqs;

impl DeferIrqs {
    fn values(bench: &Bench<'_>) -> [String; 2] {
        [
            bench.config.defer_hard_irqs.to_string(),
            bench.config.gro_flush_timeout_ns.to_string(),
        ]
    }

    fn served<'a>(bench: &Bench<'a>) -> Vec<&'a Link> {
        let links = bench.rig.links.iter();
        links.filter(|link| link.has_interrupts).collect()
    }
}

impl Family for DeferIrqs {
    fn can_run(&self, site: &Site<'_>) -> std::result::Result<(), String> {
        if !site.links.is_empty() && site.links.iter().all(|link| !link.has_interrupts) {
            return Err("no interface of this path has interrupts that could be deferred".into());
        }
        for link in site.links.iter().filter(|link| link.has_interrupts) {
            let missing = link.run(|ifname| {
                let files = deferral_files(ifname);
                Ok(files.into_iter().find(|file| !Host::system().exists(file)))
            });
            if let Some(file) = missing.map_err(|error| error.to_string())? {
                return Err(format!(
                    "there is no /{file}: this kernel can't defer interrupts"
                ));
            }
        }
        Ok(())
    }

    fn set_up(&self, bench: &Bench<'_>) -> Result<Vec<u32>> {
        let values = Self::values(bench);
        for link in Self::served(bench) {
            defer(link, &values)?;
        }
        Ok(Vec::new())
    }

    fn verify(&self, bench: &Bench<'_>, _threads: &[u32]) -> Result<()> {
        let values = Self::values(bench);
        for link in Self::served(bench) {
            is_as_set(bench, other_deferral(link, &values)?)?;
        }
        Ok(())
    }

    /// While packets come more often than the timer gives up, few of them may raise an interrupt.
    fn verify_row(
        &self,
        bench: &Bench<'_>,
        row: &Row,
        moved: &Moved,
    ) -> std::result::Result<(), String> {
        stock::net_rx_ran(bench, row, moved)?;
        let gives_up_ns =
            u64::from(bench.config.defer_hard_irqs) * bench.config.gro_flush_timeout_ns;
        let received = bench.received_min(row);
        let distance_ns = row.span_ns.checked_div(row.n).unwrap_or(u64::MAX);
        // The longest gap of the usual client: its mean and half of that.
        if distance_ns.saturating_mul(3) / 2 > gives_up_ns || row.witness.hard_irqs < received {
            return Ok(());
        }
        Err(format!(
            "{} interrupts for at least {received} packets: they are not deferred",
            row.witness.hard_irqs
        ))
    }

    fn undo(&self, bench: &Bench<'_>) -> Result<()> {
        restore_all(bench)
    }
}
