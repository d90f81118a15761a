// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the stack counts a packet that it drops, each place once.
//!
//! The kernel counts some drops at two or three places: a full backlog in `softnet_stat`, at the interface that
//! receives and at the veth that sends. Here each place of loss has one counter, so that their sum can be compared with
//! what the ledger misses:
//!
//! * `softnet`: the backlog of a CPU was full. For lo, veth, bridge and RPS this is the only count that is taken.
//! * `card`: the ring of a card was full, or the stack had nobody for its packet.
//! * `qdisc`: the queue of a card was full.
//! * `tunnel`: the cells of a tunnel were full, or it had no way to send.
//! * `ring`: the ring of a veth with NAPI instances was full.
//! * `udp`, `ip`: a socket was full, nobody listened, a packet was damaged, or there was no way.
//!
//! Not here: losses that nobody counts, as on a wire that is cut. Traffic is held around what makes those.

use std::collections::BTreeMap;

use kbp_core::procfs::{parse_softnet_drops, snmp_counters};
use kbp_core::Host;
use kbp_measure::place::{run_at, Place};
use kbp_measure::Result;

use crate::wiring::{netns, run, End};

/// Drops by place since boot, or between two readings.
pub type Drops = BTreeMap<String, u64>;

/// Protocol and name in /proc/net/snmp. `InErrors` of UDP holds the full sockets and the bad sums.
const PROTOCOLS: &[(&str, &str)] = &[
    ("Ip", "InHdrErrors"),
    ("Ip", "InAddrErrors"),
    ("Ip", "InDiscards"),
    ("Ip", "InUnknownProtos"),
    ("Ip", "OutDiscards"),
    ("Ip", "OutNoRoutes"),
    ("Udp", "NoPorts"),
    ("Udp", "InErrors"),
];

/// Counters of interfaces: kind, interface here, interface there, counter.
const INTERFACES: &[(&str, &str, &str, &str)] = &[
    ("card", "eth0", "eth1", "rx_missed_errors"),
    ("card", "eth0", "eth1", "rx_dropped"),
    ("card", "eth0", "eth1", "tx_dropped"),
    ("tunnel", "tx0", "tx1", "rx_dropped"),
    ("tunnel", "tx0", "tx1", "tx_dropped"),
    ("ring", "tn0", "tn1", "tx_dropped"),
];

/// All counters now. Every interface has to be in its place.
///
/// # Errors
/// When a counter can't be read.
pub fn read(host: &Host) -> Result<Drops> {
    let mut drops = Drops::new();
    let softnet = host
        .read("proc/net/softnet_stat")
        .map_err(kbp_core::Error::from)?;
    for (cpu, count) in parse_softnet_drops(&softnet) {
        drops.insert(format!("softnet: CPU {cpu}"), count);
    }
    for end in [End::Here, End::There] {
        let place = Place {
            netns: netns(end).map(str::to_owned),
            ..Place::default()
        };
        drops.extend(run_at(&place, || read_end(host, end))?);
    }
    Ok(drops)
}

/// Runs on a thread in the end's namespace.
fn read_end(host: &Host, end: End) -> Result<Drops> {
    let mut drops = Drops::new();
    let at = match end {
        End::Here => "here",
        End::There => "there",
    };
    let snmp = host
        .read("proc/thread-self/net/snmp")
        .map_err(kbp_core::Error::from)?;
    for (protocol, name, count) in snmp_counters(&snmp) {
        if PROTOCOLS.contains(&(protocol, name)) {
            let protocol = protocol.to_lowercase();
            drops.insert(format!("{protocol}: {name} {at}"), count);
        }
    }
    for (kind, here, there, counter) in INTERFACES {
        let name = if end == End::Here { here } else { there };
        let file = format!("sys/class/net/{name}/statistics/{counter}");
        let count: u64 = host.read_number(&file).map_err(kbp_core::Error::from)?;
        drops.insert(format!("{kind}: {name} {counter}"), count);
    }
    let card = if end == End::Here { "eth0" } else { "eth1" };
    let text = run(None, "tc", &format!("-s qdisc show dev {card}"))?;
    drops.insert(format!("qdisc: {card}"), qdisc_drops(&text));
    Ok(drops)
}

/// The sum of `(dropped N, overlimits ...` in what tc prints; the children of a queue are counted in it.
fn qdisc_drops(text: &str) -> u64 {
    let mut root = false;
    for line in text.lines() {
        if line.starts_with("qdisc") {
            root = line.contains(" root");
        }
        let count = line
            .split("(dropped ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        if let (true, Some(count)) = (root, count) {
            return count.trim().parse().unwrap_or(0);
        }
    }
    0
}

/// What was counted between two readings, without zeros.
pub fn between(before: &Drops, after: &Drops) -> Drops {
    let grown = |(name, count): (&String, &u64)| {
        let grown = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        (grown > 0).then(|| (name.clone(), grown))
    };
    after.iter().filter_map(grown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_queue_at_the_root_counts() {
        let text = "qdisc mq 0: root \n Sent 96 bytes 1 pkt (dropped 7, overlimits 0 requeues 0) \n backlog 0b\n\
                    qdisc fq_codel 0: parent :1 limit 10240p\n Sent 9 bytes (dropped 7, overlimits 0 requeues 0)\n";
        assert_eq!(qdisc_drops(text), 7);
        assert_eq!(qdisc_drops("qdisc noqueue 0: root refcnt 2\n"), 0);
    }

    #[test]
    fn only_what_grew_is_told() {
        let of = |pairs: &[(&str, u64)]| -> Drops {
            pairs.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect()
        };
        let grown = between(
            &of(&[("a", 1), ("b", 5)]),
            &of(&[("a", 1), ("b", 7), ("c", 2)]),
        );
        assert_eq!(grown, of(&[("b", 2), ("c", 2)]));
    }
}
