// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two network namespaces behind a bridge, for tests: made with ip(8), gone when dropped.

use std::process::Command;

/// Address of the receiver, or of the server.
pub const RECEIVER_IP: &str = "10.66.0.2";

/// Two namespaces, each with an interface `eth0` at the bridge of a third.
pub struct Bench {
    names: [String; 3],
}

impl Bench {
    /// Makes them. `tag` keeps the tests of one process apart, the process's number those of others.
    pub fn new(tag: &str) -> Self {
        let name = |role: &str| format!("kbpt-{}-{tag}-{role}", std::process::id());
        let bench = Self {
            names: ["tx", "rx", "br"].map(name),
        };
        let [tx, rx, bridge] = &bench.names;
        bench
            .names
            .iter()
            .for_each(|name| ip(&["netns", "add", name]));
        ip(&["-n", bridge, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", bridge, "link", "set", "br0", "up"]);
        for (end, port, address) in [(tx, "p1", "10.66.0.1/24"), (rx, "p2", "10.66.0.2/24")] {
            ip(&[
                "-n", bridge, "link", "add", port, "type", "veth", "peer", "eth0", "netns", end,
            ]);
            ip(&["-n", bridge, "link", "set", port, "master", "br0", "up"]);
            ip(&["-n", end, "addr", "add", address, "dev", "eth0"]);
            ip(&["-n", end, "link", "set", "lo", "up"]);
            ip(&["-n", end, "link", "set", "eth0", "up"]);
        }
        bench
    }

    /// Name of the sender's namespace.
    pub fn sender(&self) -> &str {
        &self.names[0]
    }

    /// Name of the receiver's namespace.
    pub fn receiver(&self) -> &str {
        &self.names[1]
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for name in &self.names {
            // With the namespaces go their interfaces; what was not made can't be deleted.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output();
    let output = output.expect("ip(8) runs; Debian's package is iproute2");
    assert!(
        output.status.success(),
        "`ip {}` failed (these tests need root): {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}
