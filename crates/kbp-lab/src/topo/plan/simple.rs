// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths without a hop between client and server: loopback, a veth pair, two network cards.
//!
//! Not here: bridges, routers and tunnels.

use std::net::Ipv4Addr;

use super::{end, ip, place, Builder, Ends, Iface, MTU};
use crate::topo::host::Facts;
use crate::topo::kind::PortKind;
use crate::topo::link::{Mac, Place};
use crate::topo::step::{Plan, Setting, Step};

/// First network of pairs of cards, and how many there are.
const NIC_NETWORK: u8 = 10;
const NIC_NETWORKS: u8 = 240;

/// Client and server in one namespace.
pub(super) fn lo(mut builder: Builder<'_>) -> Plan {
    let host = builder.netns("host");
    let lo = Iface {
        place: place(&host, "lo"),
        mac: Mac([0; 6]),
    };
    builder.port(&lo, PortKind::Lo);
    builder.finish(Ends {
        client: end(&lo, Ipv4Addr::LOCALHOST),
        server: end(&lo, Ipv4Addr::LOCALHOST),
        target: Ipv4Addr::LOCALHOST,
    })
}

/// Two namespaces and a pair of virtual cards.
pub(super) fn veth(mut builder: Builder<'_>) -> Plan {
    let client_ns = builder.netns("client");
    let server_ns = builder.netns("server");
    let [client, server] = builder.veth([(&client_ns, "eth0"), (&server_ns, "eth0")], MTU);
    let ends = Ends {
        client: end(&client, ip(1, 1)),
        server: end(&server, ip(1, 2)),
        target: ip(1, 2),
    };
    builder.port(&server, PortKind::Veth);
    builder.port(&client, PortKind::Veth);
    builder.address(&client, ip(1, 1));
    builder.address(&server, ip(1, 2));
    builder.up(&[&client, &server]);
    builder.neighbour(&client, ip(1, 2), &server);
    builder.neighbour(&server, ip(1, 1), &client);
    builder.finish(ends)
}

/// Two network cards on one wire; the server's stays, the tester's gets a namespace of its own, so that every packet
/// really goes over the wire.
pub(super) fn nic(mut builder: Builder<'_>, facts: &Facts) -> Plan {
    let network = nic_network(&builder.spec.nics[0]);
    let (server_ip, tester_ip) = (ip(network, 1), ip(network, 2));
    let [server_facts, tester_facts] = &facts.nics;
    let [server_name, tester_name] = &builder.spec.nics;
    let tester_ns = builder.netns("tester");
    let server = Iface {
        place: Place {
            netns: None,
            ifname: server_name.clone(),
        },
        mac: server_facts.mac,
    };
    let tester = Iface {
        place: place(&tester_ns, tester_name),
        mac: tester_facts.mac,
    };
    builder.push(Step::TakeNic {
        ifname: tester_name.clone(),
        netns: tester_ns,
        was_up: tester_facts.up,
        before: tester_facts.settings.clone(),
    });
    builder.push(Step::Settings {
        netns: None,
        settings: quiet_here(&server_facts.settings),
    });
    builder.address(&server, server_ip);
    builder.address(&tester, tester_ip);
    builder.up_again(&server, server_facts.up);
    builder.up(&[&tester]);
    builder.neighbour(&server, tester_ip, &tester);
    builder.neighbour(&tester, server_ip, &server);
    builder.port(&server, PortKind::Nic);
    builder.port(&tester, PortKind::Nic);
    let mut plan = builder.finish(Ends {
        client: end(&tester, tester_ip),
        server: end(&server, server_ip),
        target: server_ip,
    });
    plan.home = Some(facts.home.clone());
    plan
}

/// The network of a pair of cards. The servers of several pairs share a namespace, so each pair needs a network of its
/// own: it follows from the digits in the name of the server's card.
fn nic_network(server: &str) -> u8 {
    let digits = server.bytes().filter(u8::is_ascii_digit);
    let number = digits.fold(0u32, |number, digit| {
        (number * 10 + u32::from(digit - b'0')) % u32::from(NIC_NETWORKS)
    });
    NIC_NETWORK + number as u8
}

/// IPv6 off on the server's card; what it was is remembered. A kernel without IPv6 has nothing to switch off.
fn quiet_here(before: &[Setting]) -> Vec<Setting> {
    let disable = before
        .iter()
        .filter(|setting| setting.path.ends_with("/disable_ipv6"));
    disable
        .map(|setting| Setting {
            value: "1".into(),
            original: Some(setting.value.clone()),
            ..setting.clone()
        })
        .collect()
}
