// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docker's model: a client on the wire talks to an address of the host, which forwards it, translated, to a container
//! behind a bridge.
//!
//! Not here: the container's configuration ([`crate::topo::container`]).

use super::{end, ip, place, Builder, Ends, Iface, MTU, PREFIX};
use crate::topo::cni;
use crate::topo::container;
use crate::topo::host::Facts;
use crate::topo::kind::PortKind;
use crate::topo::link::Mac;
use crate::topo::rules::RuleSet;
use crate::topo::state;
use crate::topo::step::{Plan, Step};

/// A namespace is the server's end.
pub(super) fn routed_nat(mut builder: Builder<'_>) -> Plan {
    let ends = router(&mut builder, 4, 5);
    builder.finish(ends)
}

/// A container has that namespace.
pub(super) fn container(mut builder: Builder<'_>, facts: &Facts) -> Plan {
    let mut ends = router(&mut builder, 8, 9);
    let netns = ends.server.netns.clone().unwrap_or_default();
    let name = builder.spec.name.clone();
    run_container(&mut builder, &name, &netns, &netns, facts);
    ends.server.container = Some(netns);
    builder.finish(ends)
}

/// A pod: a container that holds the network, and the one with the application in the same network.
pub(super) fn pod(mut builder: Builder<'_>, facts: &Facts) -> Plan {
    const WIRE: u8 = 250;
    const PODS: u8 = 251;
    let wire_ns = builder.netns("wire");
    let host = builder.netns("host");
    let app_ns = builder.netns("app");
    let [client, uplink] = builder.veth([(&wire_ns, "eth0"), (&host, "eth0")], MTU);
    builder.address(&uplink, ip(WIRE, 1));
    builder.address(&client, ip(WIRE, 2));
    builder.up(&[&uplink, &client]);
    know_each_other(
        &mut builder,
        [(&client, ip(WIRE, 2)), (&uplink, ip(WIRE, 1))],
    );
    let name = builder.spec.name.clone();
    let pause = format!("{name}-pause");
    // As a container runtime does: the network first, then the container that holds it, then the others.
    builder.push(Step::Cni {
        network: cni::Network {
            name: format!("kbp-{name}"),
            host: host.clone(),
            netns: app_ns.clone(),
            ifname: "eth0".into(),
            host_ifname: "app".into(),
            gateway: ip(PODS, 1),
            address: ip(PODS, 2),
            folder: facts.cni.clone(),
            data: state::pod_directory(&name),
        },
    });
    run_container(
        &mut builder,
        &pause,
        &format!("kbp-{pause}"),
        &app_ns,
        facts,
    );
    run_container(&mut builder, &name, &app_ns, &app_ns, facts);
    let [app, to_app, bridge] = [(&app_ns, "eth0"), (&host, "app"), (&host, cni::BRIDGE)]
        .map(|(netns, ifname)| made(netns, ifname));
    // They are up; this waits until packets pass.
    builder.up(&[&app, &to_app, &bridge]);
    for iface in [&app, &client, &uplink, &to_app] {
        builder.port(iface, PortKind::Veth);
    }
    builder.port(&bridge, PortKind::Bridge);
    let mut server = end(&app, ip(PODS, 2));
    server.container = Some(app_ns);
    builder.finish(Ends {
        client: end(&client, ip(WIRE, 2)),
        server,
        target: ip(WIRE, 1),
    })
}

/// An interface that a plug-in makes; its address is the plug-in's choice.
fn made(netns: &str, ifname: &str) -> Iface {
    Iface {
        place: place(netns, ifname),
        mac: Mac([0; 6]),
    }
}

/// Starts a container in a namespace; `name` is that of the folder of its files.
fn run_container(builder: &mut Builder<'_>, name: &str, id: &str, netns: &str, facts: &Facts) {
    let bundle = container::bundle(name, id, netns, &facts.container);
    let start = Step::Container {
        id: id.into(),
        bundle: bundle.dir.clone(),
        runtime: facts.container.runtime.clone(),
        pivot: facts.container.pivot,
    };
    builder.push(Step::Bundle { bundle });
    // Interfaces are steered before the container starts or after: it is the same.
    builder.push(start);
}

/// Client - host - bridge - application, in the networks `wire` and `apps`.
fn router(builder: &mut Builder<'_>, wire: u8, apps: u8) -> Ends {
    let wire_ns = builder.netns("wire");
    let host = builder.netns("host");
    let app_ns = builder.netns("app");
    let [client, uplink] = builder.veth([(&wire_ns, "eth0"), (&host, "eth0")], MTU);
    let bridge = builder.bridge(&host);
    let [app, to_app] = builder.veth([(&app_ns, "eth0"), (&host, "app")], MTU);
    builder.enslave(&to_app, &[app.mac]);
    let addresses = [
        (&uplink, ip(wire, 1)),
        (&client, ip(wire, 2)),
        (&bridge, ip(apps, 1)),
        (&app, ip(apps, 2)),
    ];
    for (iface, address) in addresses {
        builder.address(iface, address);
    }
    builder.up(&[&bridge, &to_app, &uplink, &client, &app]);
    builder.push(Step::DefaultRoute {
        netns: app_ns,
        gateway: ip(apps, 1),
    });
    know_each_other(builder, [(&client, ip(wire, 2)), (&uplink, ip(wire, 1))]);
    know_each_other(builder, [(&app, ip(apps, 2)), (&bridge, ip(apps, 1))]);
    forward(builder, &host, wire, apps);
    for iface in [&app, &client, &uplink, &to_app] {
        builder.port(iface, PortKind::Veth);
    }
    builder.port(&bridge, PortKind::Bridge);
    Ends {
        client: end(&client, ip(wire, 2)),
        server: end(&app, ip(apps, 2)),
        target: ip(wire, 1),
    }
}

fn know_each_other(
    builder: &mut Builder<'_>,
    [(a, a_ip), (b, b_ip)]: [(&Iface, std::net::Ipv4Addr); 2],
) {
    builder.neighbour(a, b_ip, b);
    builder.neighbour(b, a_ip, a);
}

fn forward(builder: &mut Builder<'_>, host: &str, wire: u8, apps: u8) {
    let rules = RuleSet {
        target: ip(wire, 1),
        server: ip(apps, 2),
        network: (ip(apps, 0), PREFIX),
        rules: builder.spec.rules,
        routed: true,
    };
    builder.push(Step::Rules {
        netns: host.into(),
        about: rules.about(),
        text: rules.text(&builder.spec.name),
    });
    builder.settings(host, &[("net/ipv4/ip_forward", "1", false)]);
}
