// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets dropped, at every place that counts them without being asked over netlink: interfaces, backlogs, IP, UDP.
//!
//! The files are opened once and read again in place, those of other network namespaces too, so that a reading costs
//! a system call for each and no thread has to change its namespace. An open file keeps its namespace alive: drop the
//! counters before the namespace is deleted.
//! Not here: queueing disciplines (only netlink has their counts), and what a socket of ours counts itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use kbp_core::procfs::{parse_softnet_drops, snmp_counters};
use kbp_core::Host;

use crate::error::{Error, Result};
use crate::place::{run_at, Place};

/// An interface whose drops count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub ifname: String,
    /// Its network namespace; `None` for the caller's own.
    pub netns: Option<String>,
}

/// What an interface counts when a packet is lost (Linux `Documentation/networking/statistics.rst`). They overlap:
/// drivers add some of them up in `rx_errors`.
const PORT_COUNTERS: [&str; 8] = [
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "rx_over_errors",
    "tx_dropped",
    "tx_errors",
];

/// What a namespace counts: protocol and name in /proc/net/snmp, our name. `in_errors` holds `rcvbuf_errors`.
const PROTOCOL_COUNTERS: [(&str, &str, &str); 6] = [
    ("Ip", "InDiscards", "ip/in_discards"),
    ("Ip", "OutDiscards", "ip/out_discards"),
    ("Udp", "InErrors", "udp/in_errors"),
    ("Udp", "RcvbufErrors", "udp/rcvbuf_errors"),
    ("Udp", "SndbufErrors", "udp/sndbuf_errors"),
    ("Udp", "MemErrors", "udp/mem_errors"),
];

/// How a file is understood.
#[derive(Debug)]
enum Kind {
    /// One number, of this name.
    Number(String),
    /// The counters of a namespace; `@NAME` for others than the caller's.
    Snmp(String),
}

#[derive(Debug)]
struct Counter {
    path: PathBuf,
    file: File,
    kind: Kind,
}

/// The opened counters.
#[derive(Debug)]
pub(super) struct DropCounters {
    counters: Vec<Counter>,
}

impl DropCounters {
    /// Opens the counters of these interfaces and of the namespaces that they are in, the caller's own included.
    ///
    /// # Errors
    /// When an interface does not exist or a namespace can't be entered.
    pub(super) fn open(host: &Host, ports: &[Port]) -> Result<Self> {
        let mut namespaces: BTreeSet<Option<&str>> = [None].into();
        namespaces.extend(ports.iter().map(|port| port.netns.as_deref()));
        let mut counters = Vec::new();
        for netns in namespaces {
            let mine: Vec<&Port> = ports
                .iter()
                .filter(|port| port.netns.as_deref() == netns)
                .collect();
            let place = Place {
                netns: netns.map(str::to_owned),
                ..Place::default()
            };
            counters.extend(run_at(&place, || open_in_namespace(host, netns, &mine))?);
        }
        Ok(Self { counters })
    }

    /// The totals of all places now, by name: `nic/eth0/rx_dropped`, `udp/in_errors`, `udp@tester/in_errors`,
    /// `softnet/2/dropped`.
    ///
    /// # Errors
    /// When a counter can't be read, because its interface is gone for instance.
    pub(super) fn read(&self, host: &Host) -> Result<BTreeMap<String, u64>> {
        let mut totals = BTreeMap::new();
        let mut buffer = vec![0; 8_192];
        for counter in &self.counters {
            let text = counter.read(&mut buffer)?;
            match &counter.kind {
                Kind::Number(name) => {
                    totals.insert(name.clone(), text.trim().parse().unwrap_or(0));
                }
                Kind::Snmp(suffix) => totals.extend(protocol_drops(&text, suffix)),
            }
        }
        let softnet = host
            .read("proc/net/softnet_stat")
            .map_err(kbp_core::Error::from)?;
        let drops = parse_softnet_drops(&softnet).into_iter();
        totals.extend(drops.map(|(cpu, drops)| (format!("softnet/{cpu}/dropped"), drops)));
        Ok(totals)
    }
}

impl Counter {
    fn open(host: &Host, name: &str, kind: Kind) -> Result<Self> {
        let path = host.path(name);
        let file = File::open(&path).map_err(|e| Error::file("read", &path, e))?;
        Ok(Self { path, file, kind })
    }

    fn read<'a>(&self, buffer: &'a mut [u8]) -> Result<std::borrow::Cow<'a, str>> {
        let failed = |e| Error::file("read", &self.path, e);
        let mut filled = 0;
        loop {
            match self.file.read_at(&mut buffer[filled..], filled as u64) {
                Ok(0) => return Ok(String::from_utf8_lossy(&buffer[..filled])),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// Runs on a thread in that namespace.
fn open_in_namespace(host: &Host, netns: Option<&str>, ports: &[&Port]) -> Result<Vec<Counter>> {
    let suffix = netns.map_or(String::new(), |name| format!("@{name}"));
    // The namespace of this thread, while /proc/net is that of the process.
    let snmp = match host.is_system() {
        true => "proc/thread-self/net/snmp",
        false => "proc/net/snmp",
    };
    let mut counters = vec![Counter::open(host, snmp, Kind::Snmp(suffix.clone()))?];
    for port in ports {
        let ifname = &port.ifname;
        let base = format!("sys/class/net/{ifname}/statistics");
        if !host.exists(&base) {
            return Err(Error::Core(kbp_core::Error::UnknownInterface {
                name: ifname.clone(),
            }));
        }
        for counter in PORT_COUNTERS {
            let file = format!("{base}/{counter}");
            let name = format!("nic/{ifname}{suffix}/{counter}");
            if host.exists(&file) {
                counters.push(Counter::open(host, &file, Kind::Number(name))?);
            }
        }
    }
    Ok(counters)
}

fn protocol_drops<'a>(text: &'a str, suffix: &'a str) -> impl Iterator<Item = (String, u64)> + 'a {
    snmp_counters(text).filter_map(move |(protocol, name, total)| {
        let ours = PROTOCOL_COUNTERS
            .iter()
            .find(|c| (c.0, c.1) == (protocol, name))?
            .2;
        let (layer, counter) = ours.split_once('/')?;
        Some((format!("{layer}{suffix}/{counter}"), total))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn counters_of_a_tree_have_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/net/snmp",
            "Ip: InDiscards X\nIp: 3 9\nUdp: InErrors RcvbufErrors\nUdp: 5 4\n",
        );
        write(
            "proc/net/softnet_stat",
            "1 7 3 0 0 0 0 0 0 0 0 0 00000002 0 0\n",
        );
        write("sys/class/net/eth0/statistics/rx_missed_errors", "11\n");
        write("sys/class/net/eth0/statistics/rx_packets", "99\n");
        let host = Host::at(dir.path());
        let port = |ifname: &str| Port {
            ifname: ifname.into(),
            netns: None,
        };
        let totals = DropCounters::open(&host, &[port("eth0")])
            .unwrap()
            .read(&host)
            .unwrap();
        let want = [
            ("ip/in_discards", 3),
            ("nic/eth0/rx_missed_errors", 11),
            ("softnet/2/dropped", 7),
            ("udp/in_errors", 5),
            ("udp/rcvbuf_errors", 4),
        ];
        assert_eq!(totals, want.map(|(name, n)| (name.to_owned(), n)).into());
        let error = DropCounters::open(&host, &[port("eth7")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("eth7"), "{error}");
    }

    /// In a namespace of its own, so that nobody else drops anything there.
    #[test]
    fn a_full_socket_of_another_namespace_is_seen() {
        let name = format!("kbp-drops-{}", std::process::id());
        let ip = |words: &[&str]| {
            let done = std::process::Command::new("ip")
                .args(words)
                .output()
                .expect("iproute2 is installed");
            assert!(
                done.status.success(),
                "ip {words:?} (this test needs root): {done:?}"
            );
        };
        ip(&["netns", "add", &name]);
        let found = (|| {
            ip(&["-n", &name, "link", "set", "lo", "up"]);
            let host = Host::system();
            let lo = Port {
                ifname: "lo".into(),
                netns: Some(name.clone()),
            };
            let counters = DropCounters::open(&host, &[lo])?;
            let before = counters.read(&host)?;
            let place = Place {
                netns: Some(name.clone()),
                ..Place::default()
            };
            run_at(&place, || {
                let failed = |e| Error::sys("fill a socket", e);
                let full = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
                let to = full.local_addr().map_err(failed)?;
                let from = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
                for _ in 0..400 {
                    from.send_to(&[0; 8_000], to).map_err(failed)?;
                }
                Ok(())
            })?;
            Ok::<_, Error>((before, counters.read(&host)?))
        })();
        ip(&["netns", "del", &name]);
        let (before, after) = found.unwrap();
        let key = format!("udp@{name}/rcvbuf_errors");
        assert_eq!(before[&key], 0);
        assert!(after[&key] > 100, "{after:?}");
        assert_eq!(after[&format!("nic/lo@{name}/rx_dropped")], 0);
    }
}
