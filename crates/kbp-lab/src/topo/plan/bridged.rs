// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two namespaces joined by a bridge in a third, with and without netfilter.
//!
//! Not here: bridges behind a router ([`super::routed`]) or at the ends of a tunnel ([`super::vxlan`]).

use super::{end, ip, Builder, Ends, Iface, MTU, PREFIX};
use crate::topo::host::Facts;
use crate::topo::kind::PortKind;
use crate::topo::rules::RuleSet;
use crate::topo::step::{Plan, Step};

/// The interfaces of a bridged segment.
struct Segment {
    host: String,
    bridge: Iface,
    client: Iface,
    server: Iface,
}

/// Makes client, server and the bridge between them, in the network `net`: client .1, server .2.
fn segment(builder: &mut Builder<'_>, net: u8) -> Segment {
    let client_ns = builder.netns("client");
    let server_ns = builder.netns("server");
    let host = builder.netns("host");
    let bridge = builder.bridge(&host);
    let [client, to_client] = builder.veth([(&client_ns, "eth0"), (&host, "client")], MTU);
    let [server, to_server] = builder.veth([(&server_ns, "eth0"), (&host, "server")], MTU);
    builder.enslave(&to_client, &[client.mac]);
    builder.enslave(&to_server, &[server.mac]);
    builder.address(&client, ip(net, 1));
    builder.address(&server, ip(net, 2));
    builder.up(&[&bridge, &to_client, &to_server, &client, &server]);
    builder.neighbour(&client, ip(net, 2), &server);
    builder.neighbour(&server, ip(net, 1), &client);
    for iface in [&server, &client, &to_server, &to_client] {
        builder.port(iface, PortKind::Veth);
    }
    Segment {
        host,
        bridge,
        client,
        server,
    }
}

/// A bridge and nothing else.
pub(super) fn bridge(mut builder: Builder<'_>) -> Plan {
    let segment = segment(&mut builder, 2);
    builder.finish(Ends {
        client: end(&segment.client, ip(2, 1)),
        server: end(&segment.server, ip(2, 2)),
        target: ip(2, 2),
    })
}

/// Bridged packets go through netfilter's IPv4 hooks (br_netfilter). What the client talks to is translated on the bridge,
/// for which the bridge needs an address and has to know both ends.
pub(super) fn bridge_netfilter(mut builder: Builder<'_>, facts: &Facts) -> Plan {
    let (client_ip, server_ip, target) = (ip(3, 1), ip(3, 2), ip(3, 100));
    builder.push(Step::BridgeNetfilter {
        loaded_before: facts.bridge_netfilter,
    });
    let segment = segment(&mut builder, 3);
    builder.neighbour(&segment.client, target, &segment.server);
    builder.address(&segment.bridge, ip(3, 254));
    builder.neighbour(&segment.bridge, client_ip, &segment.client);
    builder.neighbour(&segment.bridge, server_ip, &segment.server);
    let rules = RuleSet {
        target,
        server: server_ip,
        network: (ip(3, 0), PREFIX),
        rules: builder.spec.rules,
        routed: false,
    };
    builder.push(Step::Rules {
        netns: segment.host.clone(),
        about: rules.about(),
        text: rules.text(&builder.spec.name),
    });
    let on = [
        ("net/ipv4/ip_forward", "1", false),
        ("net/bridge/bridge-nf-call-iptables", "1", false),
    ];
    builder.settings(&segment.host, &on);
    builder.finish(Ends {
        client: end(&segment.client, client_ip),
        server: end(&segment.server, server_ip),
        target,
    })
}
