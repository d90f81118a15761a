// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docker's model: a client on the wire talks to an address of the host, which forwards it, translated, to a container
//! behind a bridge.
//!
//! Not here: the container's configuration ([`crate::topo::container`]).

use super::{end, ip, Builder, Ends, Iface, MTU, PREFIX};
use crate::topo::container;
use crate::topo::host::Facts;
use crate::topo::kind::PortKind;
use crate::topo::rules::RuleSet;
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
    let bundle = container::bundle(&name, &netns, &facts.container);
    let start = Step::Container {
        id: netns.clone(),
        bundle: bundle.dir.clone(),
        runtime: facts.container.runtime.clone(),
        pivot: facts.container.pivot,
    };
    builder.push(Step::Bundle { bundle });
    ends.server.container = Some(netns);
    // Interfaces are steered before the container starts or after: it is the same.
    builder.push(start);
    builder.finish(ends)
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
