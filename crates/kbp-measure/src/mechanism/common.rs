// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has to be so under every mechanism: all that it does not change is as on the stock path. And the counters
//! that say whose work it was.
//!
//! Not here: what only one family reads back.

use kbp_core::napi_netlink::Threading;
use kbp_core::{busy_poll, module, Host};

use crate::error::Result;
use crate::mechanism::family::{memory, Bench, Moved};
use crate::mechanism::leftover::in_namespace;
use crate::mechanism::sysctls::{deferral_files, BUSY_SYSCTLS};
use crate::mechanism::{links, Changes, KeepModule};
use crate::result::Row;

/// One reply in so many at least is counted as polled where all are.
const TESTER_POLLED_PART: u64 = 10;

/// Checks everything that the mechanism does not change.
///
/// # Errors
/// [`crate::Error::ModeNotActive`] with what is different and how to put it back.
pub(crate) fn verify(bench: &Bench<'_>, changes: &Changes) -> Result<()> {
    bench.rig.verify()?;
    if !changes.poller {
        verify_no_module(bench)?;
    }
    if !changes.busy_sockets {
        verify_sockets_wait(bench)?;
    }
    verify_threading(bench, changes.threading)?;
    if !changes.deferral {
        verify_no_deferral(bench)?;
    }
    Ok(())
}

/// Our module is not there, or is kept loaded by this very run and has no poller.
fn verify_no_module(bench: &Bench<'_>) -> Result<()> {
    let host = Host::system();
    if !module::status(&host).map_err(kbp_core::Error::from)?.loaded {
        return Ok(());
    }
    let ours = memory()?.state.module.is_some();
    if !ours || bench.config.keep_module != KeepModule::Always {
        return Err(bench.inactive("the kbp module is loaded; `kbp unload` removes it"));
    }
    let mut client = kbp_core::Client::connect().map_err(kbp_core::Error::from)?;
    let pollers = client.pollers().map_err(kbp_core::Error::from)?;
    match pollers.is_empty() {
        true => Ok(()),
        false => Err(bench.inactive("the kbp module has pollers; `kbp poller del` removes them")),
    }
}

fn verify_sockets_wait(bench: &Bench<'_>) -> Result<()> {
    let host = Host::system();
    for file in BUSY_SYSCTLS {
        let value = host.read_optional(file).map_err(kbp_core::Error::from)?;
        if let Some(value) = value.filter(|value| value != "0") {
            return Err(bench.inactive(format!(
                "sockets poll by themselves: /{file} is {value}, write 0 to it"
            )));
        }
    }
    Ok(())
}

/// Each interface with NAPI instances is polled by what is wanted, the others by softirq.
fn verify_threading(bench: &Bench<'_>, wanted: Threading) -> Result<()> {
    for link in &bench.rig.links {
        let napi = links::receiver(link)? == links::Receiver::Napi;
        let wanted = if napi { wanted } else { Threading::Off };
        let why = link.run(|ifname| other_threading(ifname, wanted))?;
        if let Some(why) = why {
            return Err(bench.inactive(why));
        }
    }
    Ok(())
}

/// What is different from `wanted`: the switch of the interface, and where the kernel tells, each instance.
fn other_threading(ifname: &str, wanted: Threading) -> Result<Option<String>> {
    let host = Host::system();
    let switch = host.interface(ifname)?.threaded.unwrap_or(false);
    // Busy-poll is set for instances one by one and leaves the switch of the interface alone.
    if wanted != Threading::BusyPoll && switch != (wanted != Threading::Off) {
        let state = if switch { "on" } else { "off" };
        return Ok(Some(format!(
            "threaded NAPI of {ifname} is {state} (/sys/class/net/{ifname}/threaded)"
        )));
    }
    let napis = busy_poll::instances(&host, ifname)?;
    let other = napis
        .iter()
        .find(|napi| napi.threading.is_some_and(|is| is != wanted));
    Ok(other.and_then(|napi| {
        let is = napi.threading?;
        Some(format!(
            "NAPI instance {} of {ifname} is polled as {is}, not as {wanted}",
            napi.id
        ))
    }))
}

fn verify_no_deferral(bench: &Bench<'_>) -> Result<()> {
    for link in bench.rig.links.iter().filter(|link| link.has_interrupts) {
        link.run(|ifname| {
            let [count, _] = deferral_files(ifname);
            let value = Host::system().read_optional(&count);
            match value.map_err(kbp_core::Error::from)? {
                Some(value) if value != "0" => Err(bench.inactive(format!(
                    "interrupts are deferred: /{count} is {value}, write 0 to it"
                ))),
                _ => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// Readings of the counters in [`Moved`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters(Moved);

impl Counters {
    /// Reads them now.
    pub fn read(bench: &Bench<'_>) -> Result<Self> {
        let host = Host::system();
        let softirqs = host.softirqs().map_err(kbp_core::Error::from)?;
        let online = host.online_cpus().map_err(kbp_core::Error::from)?;
        let counts = online
            .iter()
            .filter_map(|cpu| softirqs.count("NET_RX", cpu));
        let net_rx_softirqs = counts.sum();
        let mut busy_poll_packets = 0;
        for netns in bench.namespaces() {
            busy_poll_packets += polled_by_sockets(netns.as_deref())?;
        }
        let tester_poll_packets = match &bench.rig.tester_card {
            Some(card) => polled_by_sockets(card.link.netns.as_deref())?,
            None => 0,
        };
        Ok(Self(Moved {
            net_rx_softirqs,
            busy_poll_packets,
            tester_poll_packets,
        }))
    }

    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Self) -> Moved {
        let (now, then) = (&self.0, &earlier.0);
        Moved {
            net_rx_softirqs: now.net_rx_softirqs.saturating_sub(then.net_rx_softirqs),
            busy_poll_packets: now.busy_poll_packets.saturating_sub(then.busy_poll_packets),
            tester_poll_packets: now
                .tester_poll_packets
                .saturating_sub(then.tester_poll_packets),
        }
    }
}

/// Packets that sockets took by polling in this network namespace.
fn polled_by_sockets(netns: Option<&str>) -> Result<u64> {
    in_namespace(netns, || {
        // Not /proc/net: that is the namespace of the process, not that of this thread.
        let text = Host::system().read("proc/thread-self/net/netstat");
        let text = text.map_err(kbp_core::Error::from)?;
        Ok(netstat(&text, "TcpExt", "BusyPollRxPackets").unwrap_or(0))
    })
}

/// Whether the tester's own card was polled by the tester, where it is to be. What comes while a poll ends is not counted
/// as polled.
///
/// # Errors
/// The counter that did not move.
pub(crate) fn tester_polled(
    bench: &Bench<'_>,
    row: &Row,
    moved: &Moved,
) -> std::result::Result<(), String> {
    if bench.rig.tester_card.is_none() || moved.tester_poll_packets >= row.n / TESTER_POLLED_PART {
        return Ok(());
    }
    Err(format!(
        "the tester's socket took {} of {} replies by polling its card (BusyPollRxPackets), so the card had somebody else",
        moved.tester_poll_packets, row.n
    ))
}

/// A counter of /proc/net/netstat: a line of names, then one of numbers, both behind `GROUP:`.
fn netstat(text: &str, group: &str, name: &str) -> Option<u64> {
    let prefix = format!("{group}:");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(its, _)| *its == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_group_and_name() {
        let text =
            "TcpExt: SyncookiesSent BusyPollRxPackets\nTcpExt: 0 41\nIpExt: InNoRoutes\nIpExt: 9\n";
        assert_eq!(netstat(text, "TcpExt", "BusyPollRxPackets"), Some(41));
        assert_eq!(netstat(text, "IpExt", "InNoRoutes"), Some(9));
        assert_eq!(netstat(text, "TcpExt", "InNoRoutes"), None);
    }
}
