// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kinds of topologies, as a table: name, one line about it, drawing.
//!
//! `lo`, `veth`, `bridge`, the rules of netfilter and `vxlan` are the mechanisms whose latencies paper 002 compares
//! (sections 4 and 5); the others are what containers and machines have around them.
//!
//! Not here: how they are made ([`super::plan`]).

use std::fmt;

use clap::builder::PossibleValue;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Client and server in one namespace, over its loopback.
    Lo,
    /// Two namespaces and a pair of virtual cards.
    Veth,
    /// Two namespaces joined by a bridge in a third.
    Bridge,
    /// The same, and bridged packets go through conntrack, NAT and a rule set.
    BridgeNetfilter,
    /// A container's network as docker makes it: a port forwarded to it, behind a router with NAT.
    RoutedNat,
    /// Two namespaces that play nodes, with a vxlan tunnel between their bridges.
    Vxlan,
    /// The network of `routed-nat`; the server's end is a container.
    Container,
    /// Two containers with one network, which CNI plug-ins make.
    Pod,
    /// Two network cards on one wire.
    Nic,
}

/// What is to be said about a kind.
struct About {
    kind: Kind,
    name: &'static str,
    about: &'static str,
    drawing: &'static str,
}

const TABLE: [About; 9] = [
    About {
        kind: Kind::Lo,
        name: "lo",
        about: "one namespace, over its loopback",
        drawing: "\
+- kbp-NAME-host ---------------+
|  client  <--- lo --->  server |
|            127.0.0.1          |
+-------------------------------+",
    },
    About {
        kind: Kind::Veth,
        name: "veth",
        about: "two namespaces, a veth pair between them",
        drawing: "\
+- kbp-NAME-client -+        +- kbp-NAME-server -+
|  client      eth0 |--veth--| eth0      server  |
|        10.91.1.1  |        |  10.91.1.2        |
+-------------------+        +-------------------+",
    },
    About {
        kind: Kind::Bridge,
        name: "bridge",
        about: "two namespaces, joined by a bridge in a third",
        drawing: "\
+- kbp-NAME-client -+      +- kbp-NAME-host -+      +- kbp-NAME-server -+
|  client      eth0 |-veth-| client          |      |                   |
|        10.91.2.1  |      |    `-- br0 --.  |      |                   |
+-------------------+      |          server |-veth-| eth0      server  |
                           +-----------------+      |  10.91.2.2        |
                                                    +-------------------+",
    },
    About {
        kind: Kind::BridgeNetfilter,
        name: "bridge-netfilter",
        about: "bridge, with conntrack, NAT and a rule set on its packets",
        drawing: "\
+- kbp-NAME-client -+      +- kbp-NAME-host ---------+      +- kbp-NAME-server -+
|  client      eth0 |-veth-| client                  |      |                   |
|        10.91.3.1  |      |    `-- br0 --.          |      |                   |
| talks to          |      |  10.91.3.254 |          |      |                   |
| 10.91.3.100       |      |          server         |-veth-| eth0      server  |
+-------------------+      |  DNAT .100 -> .2        |      |  10.91.3.2        |
                           |  forward: --rules rules |      +-------------------+
                           +-------------------------+",
    },
    About {
        kind: Kind::RoutedNat,
        name: "routed-nat",
        about: "docker's model: an address of the host is forwarded to a container's namespace",
        drawing: "\
+- kbp-NAME-wire --+      +- kbp-NAME-host -----------+      +- kbp-NAME-app --+
|  client     eth0 |-veth-| eth0 10.91.4.1            |      |                 |
|       10.91.4.2  |      |  DNAT 10.91.4.1 -> app    |      |                 |
| talks to         |      |  forward: --rules rules   |      |                 |
| 10.91.4.1        |      |  masquerade               |      |                 |
+------------------+      | br0 10.91.5.1 --.         |      |                 |
                          |                app        |-veth-| eth0    server  |
                          +---------------------------+      |  10.91.5.2      |
                                                             +-----------------+",
    },
    About {
        kind: Kind::Vxlan,
        name: "vxlan",
        about: "two namespaces that play nodes, a vxlan tunnel between their bridges",
        drawing: "\
+- kbp-NAME-client -+                                +- kbp-NAME-server -+
|  client      eth0 |                                | eth0      server  |
|        10.91.6.1  |                                |  10.91.6.2        |
+--------------veth-+                                +-veth--------------+
                |                                        |
+- kbp-NAME-client-node ----+              +- kbp-NAME-server-node ----+
|              app          |              |          app              |
|  vxlan0 --- br0           |              |          br0 --- vxlan0   |
|     `------- under0       |-----veth-----|       under0 -------'     |
|           10.91.7.1       |              |       10.91.7.2           |
+---------------------------+              +---------------------------+",
    },
    About {
        kind: Kind::Container,
        name: "container",
        about: "routed-nat, and the server's end is a container of crun or runc",
        drawing: "\
+- kbp-NAME-wire --+      +- kbp-NAME-host -----------+      +- kbp-NAME-app --------+
|  client     eth0 |-veth-| eth0 10.91.8.1            |      | +-------------------+ |
|       10.91.8.2  |      |  DNAT 10.91.8.1 -> app    |      | | container         | |
| talks to         |      |  forward: --rules rules   |      | | kbp-NAME-app      | |
| 10.91.8.1        |      |  masquerade               |      | |                   | |
+------------------+      | br0 10.91.9.1 --.         |      | |                   | |
                          |                app        |-veth-| | eth0      server  | |
                          +---------------------------+      | |  10.91.9.2        | |
                                                             | +-------------------+ |
                                                             +-----------------------+",
    },
    About {
        kind: Kind::Pod,
        name: "pod",
        about: "two containers with one network, made by CNI plug-ins: bridge, portmap, host-local",
        drawing: "\
+- kbp-NAME-wire --+      +- kbp-NAME-host ----------+      +- kbp-NAME-app -----------------+
|  client     eth0 |-veth-| eth0 10.91.250.1         |      | +------------+ +-------------+ |
|     10.91.250.2  |      |  portmap: UDP port 7700  |      | | container  | | container   | |
| talks to         |      |  ipMasq                  |      | | ...-pause  | | ...-app     | |
| 10.91.250.1      |      | cni0 10.91.251.1 --.     |      | |            | |     server  | |
+------------------+      |                  app     |-veth-| +------------+ +-------------+ |
                          +--------------------------+      | eth0 10.91.251.2               |
                                                            +--------------------------------+",
    },
    About {
        kind: Kind::Nic,
        name: "nic",
        about: "two network cards on one wire, the tester's in a namespace",
        drawing: "\
+- here --------------+             +- kbp-NAME-tester ---+
|  server    NIC A    |             |    NIC B    client  |
|       10.91.10.1    |-- network --|       10.91.10.2    |
+---------------------+             +---------------------+",
    },
];

impl Kind {
    /// All kinds, the shortest path first.
    pub const ALL: [Kind; 9] = [
        Kind::Lo,
        Kind::Veth,
        Kind::Bridge,
        Kind::BridgeNetfilter,
        Kind::RoutedNat,
        Kind::Vxlan,
        Kind::Container,
        Kind::Pod,
        Kind::Nic,
    ];

    /// [`TABLE`] has the order of the enumeration; a test holds it to that.
    fn entry(self) -> &'static About {
        &TABLE[self as usize]
    }

    /// The name, as on the command line and in results.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// What it is, in one line.
    pub fn about(self) -> &'static str {
        self.entry().about
    }

    /// A drawing of it; `NAME` stands for the topology's name.
    pub fn drawing(self) -> &'static str {
        self.entry().drawing
    }

    /// Whether packets go through a rule set, so that [`super::Spec::rules`] means something.
    pub fn has_rules(self) -> bool {
        matches!(
            self,
            Kind::BridgeNetfilter | Kind::RoutedNat | Kind::Container
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = TABLE.map(|entry| entry.name).join(", ");
        TABLE
            .iter()
            .find(|entry| entry.name == text)
            .map(|entry| entry.kind)
            .ok_or_else(|| format!("there is no topology '{text}'; it is one of {names}"))
    }
}

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.about()))
    }
}

/// What kind of interface receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// A network card: a NAPI instance for each of its queues.
    Nic,
    /// One end of a pair; receives through the CPU's backlog.
    Veth,
    /// The end of a tunnel; receives through its gro_cells.
    Vxlan,
    /// A bridge's own interface: packets that the bridge hands up to the host.
    Bridge,
    /// The loopback; receives through the CPU's backlog.
    Lo,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_kinds() {
        for kind in Kind::ALL {
            assert_eq!(kind.entry().kind, kind);
            assert_eq!(kind.name().parse(), Ok(kind));
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.name());
        }
        assert!("bridges".parse::<Kind>().unwrap_err().contains("bridge"));
    }

    #[test]
    fn drawings_fit_a_terminal_of_100_columns() {
        for kind in Kind::ALL {
            assert!(kind.drawing().starts_with('+'), "{kind}");
            for line in kind.drawing().lines() {
                assert!(line.is_ascii() && line.len() <= 100, "{kind}: {line}");
            }
        }
    }
}
