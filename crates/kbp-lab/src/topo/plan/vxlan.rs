// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two namespaces that play nodes: in each a bridge with an application behind it and the end of a vxlan tunnel, which is
//! how an overlay network joins containers of different machines (paper 002, section 5).
//!
//! Not here: learning and flooding; the tunnel knows where everybody is.

use super::{end, ip, place, Builder, Ends, Iface, MTU};
use crate::topo::kind::PortKind;
use crate::topo::link::Tunnel;
use crate::topo::step::{Plan, Step};

/// Bytes that the tunnel adds to a packet: Ethernet, VXLAN, UDP and IPv4 headers (RFC 7348).
const OVERHEAD: u32 = 50;
/// Number of the tunnel's network.
const ID: u32 = 91;
/// The port that RFC 7348 names.
const UDP_PORT: u16 = 4789;

/// A node and the application on it.
struct Node {
    app: Iface,
    to_app: Iface,
    bridge: Iface,
    underlay: Iface,
    tunnel: Iface,
}

/// Client and server are on different nodes.
pub(super) fn vxlan(mut builder: Builder<'_>) -> Plan {
    let namespaces = ["client", "server"].map(|role| {
        let app = builder.netns(role);
        let node = builder.netns(&format!("{role}-node"));
        (app, node)
    });
    let [(_, client_node), (_, server_node)] = &namespaces;
    let underlays = builder.veth([(client_node, "under0"), (server_node, "under0")], MTU);
    let [client, server] = [0u8, 1].map(|side| {
        let (app, node) = &namespaces[usize::from(side)];
        node_of(&mut builder, side, app, node, &underlays)
    });
    meet(&mut builder, &client, &server, 0);
    meet(&mut builder, &server, &client, 1);
    builder.port(&server.app, PortKind::Veth);
    builder.port(&client.app, PortKind::Veth);
    for node in [&server, &client] {
        builder.port(&node.to_app, PortKind::Veth);
        builder.port(&node.underlay, PortKind::Veth);
        builder.port(&node.tunnel, PortKind::Vxlan);
    }
    builder.finish(Ends {
        client: end(&client.app, ip(6, 1)),
        server: end(&server.app, ip(6, 2)),
        target: ip(6, 2),
    })
}

/// A node's interfaces; `side` is 0 for the client's, 1 for the server's.
fn node_of(
    builder: &mut Builder<'_>,
    side: u8,
    app_ns: &str,
    node: &str,
    underlays: &[Iface; 2],
) -> Node {
    let bridge = builder.bridge(node);
    let [app, to_app] = builder.veth([(app_ns, "eth0"), (node, "app")], MTU - OVERHEAD);
    let tunnel = Iface {
        place: place(node, "vxlan0"),
        mac: builder.mac(),
    };
    builder.push(Step::Vxlan {
        place: tunnel.place.clone(),
        mac: tunnel.mac,
        tunnel: Tunnel {
            id: ID,
            local: ip(7, side + 1),
            remote: ip(7, 2 - side),
            port: UDP_PORT,
        },
        mtu: MTU - OVERHEAD,
    });
    Node {
        app,
        to_app,
        bridge,
        underlay: underlays[usize::from(side)].clone(),
        tunnel,
    }
}

/// Joins the interfaces of a node and tells it where the other's are.
fn meet(builder: &mut Builder<'_>, node: &Node, other: &Node, side: u8) {
    builder.enslave(&node.to_app, &[node.app.mac]);
    builder.enslave(&node.tunnel, &[other.app.mac]);
    builder.address(&node.underlay, ip(7, side + 1));
    builder.address(&node.app, ip(6, side + 1));
    builder.up(&[
        &node.underlay,
        &node.bridge,
        &node.to_app,
        &node.tunnel,
        &node.app,
    ]);
    builder.push(Step::TunnelEntry {
        place: node.tunnel.place.clone(),
        mac: other.app.mac,
        remote: ip(7, 2 - side),
    });
    builder.neighbour(&node.underlay, ip(7, 2 - side), &other.underlay);
    builder.neighbour(&node.app, ip(6, 2 - side), &other.app);
}
