// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of which topologies are made. As text they are what `--dry-run` prints; as JSON, what the state file keeps.
//!
//! What was there before and is changed (a setting, a card) is in the step, so it can be undone from the step alone.
//!
//! Not here: doing and undoing them ([`super::apply`]).

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cni::Network;
use super::container::Bundle;
use super::link::{Mac, Net, Place, Tunnel};
use super::Topology;

/// A topology, and the steps that make it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub topology: Topology,
    /// The namespace in which it is made, when it changes something there.
    pub home: Option<String>,
    pub steps: Vec<Step>,
}

/// A value below `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setting {
    /// The path below `/proc/sys`.
    pub path: String,
    pub value: String,
    /// Whether a kernel without this setting is as good.
    pub optional: bool,
    /// The value before, where it has to be put back.
    pub original: Option<String>,
}

/// One step, and all that is needed to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// Loads br_netfilter. As it is switched on for every bridge when it is loaded, it is switched off here at once.
    BridgeNetfilter {
        loaded_before: bool,
    },
    /// A named namespace with its loopback up.
    Netns {
        name: String,
    },
    Settings {
        netns: Option<String>,
        settings: Vec<Setting>,
    },
    Veth {
        ends: [(Place, Mac); 2],
        mtu: u32,
    },
    Bridge {
        place: Place,
        mac: Mac,
    },
    Vxlan {
        place: Place,
        mac: Mac,
        tunnel: Tunnel,
        mtu: u32,
    },
    Enslave {
        port: Place,
        bridge: String,
    },
    /// Moves a network card to a namespace; `before` is what its settings were.
    TakeNic {
        ifname: String,
        netns: String,
        was_up: bool,
        before: Vec<Setting>,
    },
    Address {
        place: Place,
        net: Net,
    },
    Up {
        place: Place,
        was_up: bool,
    },
    Neighbour {
        place: Place,
        address: Ipv4Addr,
        mac: Mac,
    },
    BridgeEntry {
        port: Place,
        mac: Mac,
    },
    TunnelEntry {
        place: Place,
        mac: Mac,
        remote: Ipv4Addr,
    },
    DefaultRoute {
        netns: String,
        gateway: Ipv4Addr,
    },
    Rules {
        netns: String,
        about: String,
        text: String,
    },
    Steer {
        place: Place,
        cpu: u32,
    },
    /// A pod's network, made by CNI plug-ins.
    Cni {
        network: Network,
    },
    Bundle {
        bundle: Bundle,
    },
    Container {
        id: String,
        bundle: PathBuf,
        runtime: PathBuf,
        pivot: bool,
    },
    /// Waits until packets pass.
    Ready {
        place: Place,
        limit_ms: u64,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::BridgeNetfilter { loaded_before } => match loaded_before {
                true => write!(f, "use the module br_netfilter, which is loaded"),
                false => write!(f, "load the module br_netfilter and switch it off here"),
            },
            Step::Netns { name } => write!(f, "make the network namespace {name}, loopback up"),
            Step::Settings { netns, settings } => write_settings(f, netns, settings),
            Step::Veth {
                ends: [(a, a_mac), (b, b_mac)],
                mtu,
            } => write!(
                f,
                "make the veth pair {a} ({a_mac}) - {b} ({b_mac}), MTU {mtu}"
            ),
            Step::Bridge { place, mac } => write!(
                f,
                "make the bridge {place} ({mac}) without STP and multicast snooping"
            ),
            Step::Vxlan {
                place,
                mac,
                tunnel,
                mtu,
            } => write!(
                f,
                "make the vxlan device {place} ({mac}), id {}, {} to {} port {}, MTU {mtu}, no learning",
                tunnel.id, tunnel.local, tunnel.remote, tunnel.port
            ),
            Step::Enslave { port, bridge } => write!(f, "make {port} a port of {bridge}"),
            Step::TakeNic { ifname, netns, .. } => write!(f, "move {ifname} to {netns}"),
            Step::Address { place, net } => write!(f, "give {place} the address {net}"),
            Step::Up { place, .. } => write!(f, "set {place} up"),
            Step::Neighbour {
                place,
                address,
                mac,
            } => write!(f, "tell {place} that {address} is at {mac}, for good"),
            Step::BridgeEntry { port, mac } => {
                write!(f, "tell the bridge that {mac} is behind {port}")
            }
            Step::TunnelEntry { place, mac, remote } => {
                write!(f, "tell {place} that {mac} is behind {remote}")
            }
            Step::DefaultRoute { netns, gateway } => {
                write!(f, "route all else in {netns} over {gateway}")
            }
            Step::Rules { netns, about, .. } => {
                write!(f, "give {netns} nftables rules: {about}")
            }
            Step::Steer { place, cpu } => {
                write!(f, "steer what {place} receives to CPU {cpu} (rps_cpus)")
            }
            Step::Cni { network } => write!(f, "have the CNI plug-ins {network}"),
            Step::Bundle { bundle } => {
                write!(f, "write a root file system and config.json to {}", bundle.dir.display())
            }
            Step::Container { id, runtime, .. } => {
                write!(f, "start the container {id} with {}", runtime.display())
            }
            Step::Ready { place, limit_ms } => {
                write!(f, "wait until {place} passes packets, at most {limit_ms} ms")
            }
        }
    }
}

fn write_settings(
    f: &mut fmt::Formatter<'_>,
    netns: &Option<String>,
    settings: &[Setting],
) -> fmt::Result {
    f.write_str("set ")?;
    for (number, setting) in settings.iter().enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        write!(f, "{comma}{}={}", setting.path, setting.value)?;
        if let Some(original) = &setting.original {
            write!(f, " (was {original})")?;
        }
        if setting.optional {
            f.write_str(" if there is one")?;
        }
    }
    match netns {
        Some(netns) => write!(f, " in {netns}"),
        None => Ok(()),
    }
}
