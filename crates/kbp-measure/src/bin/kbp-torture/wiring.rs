// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths of the torture: which interfaces they are made of, how they are made, and made whole again after an action
//! that took something away.
//!
//! Everything is made by ip(8), as a person would. One end of each path is in the namespace that the program was
//! started in, the other in [`FAR`]. Neighbours are entered by hand and IPv6 is off, so that nothing but the numbered
//! packets is on the wires.
//!
//! Not here: traffic ([`crate::traffic`]).

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kbp_core::ethtool::{set_offload, Offload};
use kbp_core::Host;
use kbp_measure::place::{run_at, Place};
use kbp_measure::{Error, Result};

use crate::traffic::Flow;

/// The namespace with the other ends.
pub const FAR: &str = "torture";
/// A namespace through which interfaces are moved.
pub const ELSEWHERE: &str = "torture-b";
/// Receive and transmit queues that a veth is made with.
pub const VETH_QUEUES: u32 = 4;
/// How long two cards may take to see each other again.
const CARRIER_LIMIT: Duration = Duration::from_secs(60);

/// An end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In the namespace that the program was started in.
    Here,
    /// In [`FAR`].
    There,
}

/// Two interfaces with an address each, on the same network.
#[derive(Debug, Clone, Copy)]
struct Segment {
    here: &'static str,
    there: &'static str,
    /// Third byte of the addresses, 10.9.N.1 and 10.9.N.2.
    net: u8,
}

/// A way that packets take between the two namespaces.
#[derive(Debug, Clone, Copy)]
pub struct PathKind {
    /// Its name.
    pub name: &'static str,
    /// The last segment is the one that carries the traffic.
    segments: &'static [Segment],
    /// Further interfaces of this end: ports of a bridge.
    ports: &'static [&'static str],
}

/// All paths. The numbers of paths are the places in this table.
pub const PATHS: &[PathKind] = &[
    PathKind {
        name: "nic",
        segments: &[segment("eth0", "eth1", 0)],
        ports: &[],
    },
    PathKind {
        name: "veth",
        segments: &[segment("tv0", "tv1", 1)],
        ports: &[],
    },
    PathKind {
        name: "veth-napi",
        segments: &[segment("tn0", "tn1", 2)],
        ports: &[],
    },
    PathKind {
        name: "bridge",
        segments: &[segment("tbr0", "tb1", 3)],
        ports: &["tb0"],
    },
    PathKind {
        name: "vxlan",
        segments: &[segment("tu0", "tu1", 4), segment("tx0", "tx1", 5)],
        ports: &[],
    },
    PathKind {
        name: "rps",
        segments: &[segment("tr0", "tr1", 6)],
        ports: &[],
    },
    PathKind {
        name: "lo",
        segments: &[],
        ports: &[],
    },
];

const fn segment(here: &'static str, there: &'static str, net: u8) -> Segment {
    Segment { here, there, net }
}

/// Number of the path with this name; the table above has it.
pub fn path(name: &str) -> usize {
    PATHS.iter().position(|kind| kind.name == name).unwrap_or(0)
}

/// The interfaces of the paths at an end, with the number of their path.
pub fn interfaces(end: End) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, kind) in PATHS.iter().enumerate() {
        for segment in kind.segments {
            found.push(match end {
                End::Here => (number, segment.here),
                End::There => (number, segment.there),
            });
        }
        if end == End::Here {
            found.extend(kind.ports.iter().map(|port| (number, *port)));
        }
    }
    found
}

/// The flows of all paths: one in each direction, and one on lo.
pub fn flows() -> Vec<Flow> {
    let mut flows = Vec::new();
    for (path, kind) in PATHS.iter().enumerate() {
        let mut add = |from, to, direction: &str| {
            let name = format!("{} {direction}", kind.name);
            flows.push(Flow {
                name,
                path,
                from,
                to,
            });
        };
        match kind.segments.last() {
            Some(segment) => {
                add(End::Here, segment.address(End::There), "out");
                add(End::There, segment.address(End::Here), "in");
            }
            None => add(End::Here, Ipv4Addr::LOCALHOST, "out"),
        }
    }
    flows
}

impl Segment {
    fn address(&self, end: End) -> Ipv4Addr {
        let host = match end {
            End::Here => 1,
            End::There => 2,
        };
        Ipv4Addr::new(10, 9, self.net, host)
    }

    fn name(&self, end: End) -> &'static str {
        match end {
            End::Here => self.here,
            End::There => self.there,
        }
    }

    fn is_card(&self) -> bool {
        self.here == "eth0"
    }
}

/// The link layer addresses are ours too, but for those of the cards.
#[derive(Debug)]
pub struct Wiring {
    macs: Vec<(&'static str, String)>,
}

/// Runs `ip` or `tc` with words, in a namespace.
///
/// # Errors
/// When it fails, with what it said.
pub fn run(netns: Option<&str>, program: &str, words: &str) -> Result<String> {
    let mut command = Command::new(program);
    if let Some(name) = netns {
        command.args(["-n", name]);
    }
    let failed = |why: String| Error::Program {
        program: format!("{program} {words}"),
        why,
    };
    let output = command
        .args(words.split_whitespace())
        .output()
        .map_err(|e| failed(e.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

/// Runs a list of `ip` commands as one process; the first that fails ends it.
fn batch(netns: Option<&str>, lines: &[String]) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(name) = netns {
        command.args(["-n", name]);
    }
    let failed = |why: String| Error::Program {
        program: "ip -batch".into(),
        why,
    };
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let text = lines.join("\n") + "\n";
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(text.as_bytes())
            .map_err(|e| failed(e.to_string()))?;
    }
    let output = child
        .wait_with_output()
        .map_err(|e| failed(e.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

/// The namespace of an end, as `ip -n` wants it.
pub fn netns(end: End) -> Option<&'static str> {
    match end {
        End::Here => None,
        End::There => Some(FAR),
    }
}

impl Wiring {
    /// Makes all paths. What the path `rps` receives is steered to these CPUs; with none, it is not steered.
    ///
    /// # Errors
    /// When something can't be made, or the cards do not see each other.
    pub fn make(rps_cpus: &[u32]) -> Result<Self> {
        no_ipv6()?;
        run(None, "ip", &format!("netns add {FAR}"))?;
        run(None, "ip", &format!("netns add {ELSEWHERE}"))?;
        let mut wiring = Self {
            macs: wanted_macs()?,
        };
        wiring.create()?;
        let far = Place {
            netns: Some(FAR.into()),
            ..Place::default()
        };
        run_at(&far, || {
            no_ipv6()?;
            steer("tr1", rps_cpus)?;
            use_napi("tn1")
        })?;
        steer("tr0", rps_cpus)?;
        use_napi("tn0")?;
        run(None, "ip", "link set lo up")?;
        for path in 0..PATHS.len() {
            wiring.repair(path)?;
        }
        Ok(wiring)
    }

    fn create(&mut self) -> Result<()> {
        let mut lines = Vec::new();
        let pairs = [
            ("tv0", "tv1"),
            ("tn0", "tn1"),
            ("tb0", "tb1"),
            ("tu0", "tu1"),
            ("tr0", "tr1"),
        ];
        for (here, there) in pairs {
            lines.push(format!(
                "link add {here} numrxqueues {VETH_QUEUES} numtxqueues {VETH_QUEUES} type veth \
                 peer name {there} numrxqueues {VETH_QUEUES} numtxqueues {VETH_QUEUES} netns {FAR}"
            ));
        }
        lines.push("link add tbr0 type bridge".into());
        lines.push("link set dev tb0 master tbr0".into());
        lines.push(format!("link set dev eth1 netns {FAR}"));
        lines.push(tunnel("tx0", 1, 2));
        batch(None, &lines)?;
        batch(Some(FAR), &[tunnel("tx1", 2, 1)])?;
        for end in [End::Here, End::There] {
            let mine = |name: &str| interfaces(end).iter().any(|(_, other)| *other == name);
            let lines: Vec<String> = self
                .macs
                .iter()
                .filter(|(name, _)| mine(name) && !name.starts_with("eth"))
                .map(|(name, mac)| format!("link set dev {name} address {mac}"))
                .collect();
            batch(netns(end), &lines)?;
        }
        Ok(())
    }

    /// Brings a path into the state in which it carries packets, whatever was taken away from it.
    ///
    /// # Errors
    /// When something can't be put back, or the cards do not see each other in a minute.
    pub fn repair(&self, path: usize) -> Result<()> {
        let kind = &PATHS[path];
        for end in [End::Here, End::There] {
            let mut lines = Vec::new();
            if end == End::Here {
                lines.extend(
                    kind.ports
                        .iter()
                        .map(|port| format!("link set dev {port} up")),
                );
            }
            for segment in kind.segments {
                let (name, peer) = (segment.name(end), other(end));
                lines.push(format!(
                    "address replace {}/24 dev {name}",
                    segment.address(end)
                ));
                lines.push(format!("link set dev {name} up"));
                lines.push(format!(
                    "neighbour replace {} lladdr {} dev {name} nud permanent",
                    segment.address(peer),
                    self.mac(segment.name(peer))
                ));
            }
            if !lines.is_empty() {
                batch(netns(end), &lines)?;
            }
        }
        match kind.segments.iter().any(Segment::is_card) {
            true => wait_for_carrier(),
            false => Ok(()),
        }
    }

    fn mac(&self, name: &str) -> &str {
        let found = self.macs.iter().find(|(other, _)| *other == name);
        found.map_or("", |(_, mac)| mac)
    }
}

fn other(end: End) -> End {
    match end {
        End::Here => End::There,
        End::There => End::Here,
    }
}

/// Without a lower interface, so that it outlives what happens to that.
fn tunnel(name: &str, local: u8, remote: u8) -> String {
    format!(
        "link add {name} type vxlan id 7 local 10.9.4.{local} remote 10.9.4.{remote} dstport 4789"
    )
}

/// A veth has NAPI instances while it merges what it receives, for what its peer sends without segmentation.
fn use_napi(name: &str) -> Result<()> {
    set_offload(name, Offload::Segmentation, false).map_err(kbp_core::Error::from)?;
    set_offload(name, Offload::Receive, true).map_err(kbp_core::Error::from)?;
    Ok(())
}

/// Steers what an interface receives: each of its queues to one of the CPUs, in turn.
fn steer(name: &str, cpus: &[u32]) -> Result<()> {
    for (queue, cpu) in (0..VETH_QUEUES).zip(cpus.iter().cycle()) {
        let file = format!("sys/class/net/{name}/queues/rx-{queue}/rps_cpus");
        let mask = format!("{:x}", 1u64 << cpu);
        let host = Host::system();
        if queue == 0 || host.exists(&file) {
            host.write(&file, &mask).map_err(kbp_core::Error::from)?;
        }
    }
    Ok(())
}

/// A kernel without IPv6 has nothing to switch off.
fn no_ipv6() -> Result<()> {
    let host = Host::system();
    for which in ["all", "default"] {
        let file = format!("proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        if host.exists(&file) {
            host.write(&file, "1").map_err(kbp_core::Error::from)?;
        }
    }
    Ok(())
}

fn wanted_macs() -> Result<Vec<(&'static str, String)>> {
    let mut macs = Vec::new();
    for (side, end) in [(1, End::Here), (2, End::There)] {
        for (number, (_, name)) in interfaces(end).into_iter().enumerate() {
            let mac = match name {
                "eth0" | "eth1" => Host::system()
                    .read_trimmed(&format!("sys/class/net/{name}/address"))
                    .map_err(kbp_core::Error::from)?,
                _ => format!("02:6b:62:70:{number:02x}:{side:02x}"),
            };
            macs.push((name, mac));
        }
    }
    Ok(macs)
}

fn wait_for_carrier() -> Result<()> {
    let since = Instant::now();
    let sees = |end, name: &str| -> Result<bool> {
        let text = run(netns(end), "ip", &format!("-o link show dev {name}"))?;
        Ok(text.contains("LOWER_UP"))
    };
    while !(sees(End::Here, "eth0")? && sees(End::There, "eth1")?) {
        if since.elapsed() > CARRIER_LIMIT {
            return Err(Error::Invalid("the two cards do not see each other".into()));
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_is_of_one_path_and_every_flow_ends_somewhere() {
        let mut names: Vec<&str> = [End::Here, End::There]
            .into_iter()
            .flat_map(interfaces)
            .map(|(_, name)| name)
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
        let flows = flows();
        assert_eq!(flows.len(), 2 * (PATHS.len() - 1) + 1);
        let mut to: Vec<_> = flows.iter().map(|flow| flow.to).collect();
        to.sort();
        to.dedup();
        assert_eq!(to.len(), flows.len());
        assert_eq!(PATHS[path("vxlan")].name, "vxlan");
    }
}
