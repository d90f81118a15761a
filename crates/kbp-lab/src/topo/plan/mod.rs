// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a specification to steps: pure functions, one for each kind.
//!
//! Everything that a packet's way could depend on is fixed: Ethernet addresses, neighbours, the bridges' forwarding
//! tables. So nothing is learned, asked for or flooded, and two topologies of the same kind are alike.
//!
//! Not here: the machine. What has to be known of it comes in as [`Facts`].

mod bridged;
mod routed;
mod simple;
mod vxlan;

use std::net::{IpAddr, Ipv4Addr};

use super::host::Facts;
use super::kind::{Kind, PortKind};
use super::link::{Mac, Net, Place};
use super::step::{Plan, Setting, Step};
use super::{End, Port, Spec, Topology};

/// Bytes in a packet on all links but those inside of a tunnel.
const MTU: u32 = 1500;
/// Length of the prefix of all networks here.
const PREFIX: u8 = 24;

/// How long an interface may take to pass packets: network cards have to see each other first.
const READY_MS: u64 = 10_000;

/// The steps that make a topology.
pub(super) fn plan(spec: &Spec, facts: &Facts) -> Plan {
    let builder = Builder::new(spec);
    match spec.kind {
        Kind::Lo => simple::lo(builder),
        Kind::Veth => simple::veth(builder),
        Kind::Bridge => bridged::bridge(builder),
        Kind::BridgeNetfilter => bridged::bridge_netfilter(builder, facts),
        Kind::RoutedNat => routed::routed_nat(builder),
        Kind::Container => routed::container(builder, facts),
        Kind::Pod => routed::pod(builder, facts),
        Kind::Vxlan => vxlan::vxlan(builder),
        Kind::Nic => simple::nic(builder, facts),
    }
}

/// The network namespaces that a topology will have.
pub(super) fn namespaces(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.steps.iter().filter_map(|step| match step {
        Step::Netns { name } => Some(name.as_str()),
        _ => None,
    })
}

/// An address in one of the networks of topologies, 10.91.0.0/16.
fn ip(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 91, network, host)
}

/// An interface that the plan makes, with its Ethernet address.
#[derive(Debug, Clone)]
struct Iface {
    place: Place,
    mac: Mac,
}

/// Both ends of a topology and what the client talks to.
struct Ends {
    client: End,
    server: End,
    target: Ipv4Addr,
}

/// Collects steps.
struct Builder<'a> {
    spec: &'a Spec,
    steps: Vec<Step>,
    ports: Vec<Port>,
    ups: Vec<Place>,
    interfaces: u8,
}

impl<'a> Builder<'a> {
    fn new(spec: &'a Spec) -> Self {
        Builder {
            spec,
            steps: Vec::new(),
            ports: Vec::new(),
            ups: Vec::new(),
            interfaces: 0,
        }
    }

    fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// The next Ethernet address: administered locally, "kb", the kind, a running number.
    fn mac(&mut self) -> Mac {
        self.interfaces += 1;
        Mac([0x02, b'k', b'b', self.spec.kind as u8, 0, self.interfaces])
    }

    /// A namespace that says nothing by itself: no IPv6, no second look at where packets come from.
    fn netns(&mut self, role: &str) -> String {
        let name = format!("kbp-{}-{role}", self.spec.name);
        self.push(Step::Netns { name: name.clone() });
        let quiet = [
            ("net/ipv6/conf/all/disable_ipv6", "1", true),
            ("net/ipv6/conf/default/disable_ipv6", "1", true),
            ("net/ipv4/conf/all/rp_filter", "0", false),
            ("net/ipv4/conf/default/rp_filter", "0", false),
        ];
        self.settings(&name, &quiet);
        name
    }

    /// Settings of a namespace of our own: `(path, value, optional)`.
    fn settings(&mut self, netns: &str, values: &[(&str, &str, bool)]) {
        let settings = values.iter().map(|(path, value, optional)| Setting {
            path: (*path).into(),
            value: (*value).into(),
            optional: *optional,
            original: None,
        });
        self.push(Step::Settings {
            netns: Some(netns.into()),
            settings: settings.collect(),
        });
    }

    fn veth(&mut self, ends: [(&str, &str); 2], mtu: u32) -> [Iface; 2] {
        let ends = ends.map(|(netns, ifname)| Iface {
            place: place(netns, ifname),
            mac: self.mac(),
        });
        let [a, b] = ends.clone().map(|iface| (iface.place, iface.mac));
        self.push(Step::Veth { ends: [a, b], mtu });
        ends
    }

    /// A bridge, br0, in a namespace whose bridged packets netfilter leaves alone.
    fn bridge(&mut self, netns: &str) -> Iface {
        let iface = Iface {
            place: place(netns, "br0"),
            mac: self.mac(),
        };
        self.push(Step::Bridge {
            place: iface.place.clone(),
            mac: iface.mac,
        });
        let off = [
            ("net/bridge/bridge-nf-call-arptables", "0", true),
            ("net/bridge/bridge-nf-call-iptables", "0", true),
            ("net/bridge/bridge-nf-call-ip6tables", "0", true),
        ];
        self.settings(netns, &off);
        iface
    }

    /// Makes an interface a port of br0; `behind` are the addresses that the bridge will find there.
    fn enslave(&mut self, port: &Iface, behind: &[Mac]) {
        self.push(Step::Enslave {
            port: port.place.clone(),
            bridge: "br0".into(),
        });
        for mac in behind {
            self.push(Step::BridgeEntry {
                port: port.place.clone(),
                mac: *mac,
            });
        }
    }

    fn address(&mut self, iface: &Iface, address: Ipv4Addr) {
        self.push(Step::Address {
            place: iface.place.clone(),
            net: Net {
                address,
                prefix: PREFIX,
            },
        });
    }

    /// Sets interfaces up; [`Builder::finish`] waits until all of them pass packets.
    fn up(&mut self, ifaces: &[&Iface]) {
        for iface in ifaces {
            self.up_again(iface, false);
        }
    }

    /// Sets an interface up that may have been so before.
    fn up_again(&mut self, iface: &Iface, was_up: bool) {
        let place = iface.place.clone();
        self.ups.push(place.clone());
        self.push(Step::Up { place, was_up });
    }

    /// `at` reaches `address` at `whose`. Only once `at` is up: going down forgets neighbours.
    fn neighbour(&mut self, at: &Iface, address: Ipv4Addr, whose: &Iface) {
        self.push(Step::Neighbour {
            place: at.place.clone(),
            address,
            mac: whose.mac,
        });
    }

    /// Notes an interface that receives; the server's first, then the client's, then those between.
    fn port(&mut self, iface: &Iface, kind: PortKind) {
        self.ports.push(Port {
            netns: iface.place.netns.clone(),
            ifname: iface.place.ifname.clone(),
            kind,
        });
    }

    /// Waits for all interfaces, steers what virtual ones receive, if that is wanted, and closes the plan.
    fn finish(mut self, ends: Ends) -> Plan {
        let limit_ms = READY_MS;
        let ready = self.ups.drain(..);
        self.steps
            .extend(ready.map(|place| Step::Ready { place, limit_ms }));
        if let Some(cpu) = self.spec.rps_cpu {
            let virtual_ports = self.ports.iter().filter(|port| port.kind != PortKind::Nic);
            let steer = virtual_ports.map(|port| Step::Steer {
                place: Place {
                    netns: port.netns.clone(),
                    ifname: port.ifname.clone(),
                },
                cpu,
            });
            self.steps.extend(steer);
        }
        Plan {
            topology: Topology {
                spec: self.spec.clone(),
                client: ends.client,
                server: ends.server,
                target: IpAddr::V4(ends.target),
                ports: self.ports,
            },
            home: None,
            steps: self.steps,
        }
    }
}

fn place(netns: &str, ifname: &str) -> Place {
    Place {
        netns: Some(netns.into()),
        ifname: ifname.into(),
    }
}

fn end(iface: &Iface, address: Ipv4Addr) -> End {
    End {
        netns: iface.place.netns.clone(),
        ifname: iface.place.ifname.clone(),
        address: IpAddr::V4(address),
        container: None,
    }
}
