// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rule sets of topologies with NAT, as text for nft(8): conntrack, address translation, and a number of filter rules
//! that every packet passes before one lets it through.
//!
//! Not here: loading them ([`super::apply`]).

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Stdio;

use crate::command;
use crate::error::tail;

use super::error::{Error, Result};
use super::helper::helper;

/// What a rule set does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RuleSet {
    /// What the client talks to.
    pub target: Ipv4Addr,
    /// Where that is translated to.
    pub server: Ipv4Addr,
    /// The server's network, as `(network, prefix)`.
    pub network: (Ipv4Addr, u8),
    /// How many rules a packet passes before one accepts it.
    pub rules: u32,
    /// Whether the bridge is routed to (docker) or its packets stay on it.
    pub routed: bool,
}

impl RuleSet {
    /// What it does, in a line.
    pub(super) fn about(&self) -> String {
        format!(
            "conntrack, DNAT {} to {}, masquerade, {} filter rules to pass",
            self.target, self.server, self.rules
        )
    }

    /// The text for `nft -f -`: one table, `kbp_NAME`.
    pub(super) fn text(&self, name: &str) -> String {
        let mut text = format!("table ip kbp_{} {{\n", name.replace('-', "_"));
        self.write_nat(&mut text);
        self.write_filter(&mut text);
        text.push_str("}\n");
        text
    }

    fn write_nat(&self, text: &mut String) {
        let (network, prefix) = self.network;
        let leaves = match self.routed {
            true => "oifname != \"br0\"".to_owned(),
            false => format!("ip daddr != {network}/{prefix}"),
        };
        let (target, server) = (self.target, self.server);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\tchain translate {{\n\t\tip daddr {target} dnat to {server}\n\t}}\n\
             \tchain prerouting {{\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\
             \t\tjump translate\n\t}}\n\
             \tchain postrouting {{\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\
             \t\tip saddr {network}/{prefix} {leaves} masquerade\n\t}}\n"
        );
    }

    /// `user` stands for docker's DOCKER-USER, `app` for its DOCKER.
    fn write_filter(&self, text: &mut String) {
        text.push_str("\tchain user {\n");
        for number in 0..self.rules {
            let [high, low] = (number as u16).to_be_bytes();
            let port = 1024 + number;
            let _ = writeln!(
                text,
                "\t\tip saddr 10.92.{high}.{low} udp dport {port} accept"
            );
        }
        let accepts = match self.routed {
            true => format!(
                "\t\toifname \"br0\" ct state established,related counter accept\n\
                 \t\toifname \"br0\" ip daddr {} counter accept\n\
                 \t\tiifname \"br0\" counter accept\n",
                self.server
            ),
            false => "\t\tct state established,related,new counter accept\n".to_owned(),
        };
        let _ = write!(
            text,
            "\t}}\n\tchain forward {{\n\t\ttype filter hook forward priority filter; policy drop;\n\
             \t\tct state invalid drop\n\t\tjump user\n{accepts}\t}}\n"
        );
    }
}

/// Where nft(8) is.
pub(super) fn nft() -> Option<PathBuf> {
    command::find("nft").or_else(|| {
        ["/usr/sbin/nft", "/sbin/nft"]
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.is_file())
    })
}

/// Loads rules in the calling thread's namespace, all or none of them.
pub(super) fn load(text: &str) -> Result<()> {
    use std::io::Write as _;
    let program = nft().ok_or_else(|| Error::Program {
        program: "nft".into(),
        detail: "it is not installed; apt install nftables".into(),
    })?;
    let failed = |what: &str| Error::sys(format!("{what} {}", program.display()));
    let mut child = helper(&program)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed("run"))?;
    // nft reads to the end before it says a word, so writing all of it first can't block for ever.
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    let output = child.wait_with_output().map_err(failed("wait for"))?;
    if !output.status.success() {
        return Err(Error::Program {
            program: "nft".into(),
            detail: tail(&String::from_utf8_lossy(&output.stderr), 4),
        });
    }
    written.map_err(failed("write rules to"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_set_has_the_stated_size() {
        for rules in [0, 1, 300, super::super::RULES_MAX] {
            let set = RuleSet {
                target: Ipv4Addr::new(10, 0, 0, 1),
                server: Ipv4Addr::new(10, 0, 1, 2),
                network: (Ipv4Addr::new(10, 0, 1, 0), 24),
                rules,
                routed: true,
            };
            let text = set.text("a-b");
            let passed: std::collections::BTreeSet<&str> = text
                .lines()
                .filter(|line| line.contains("ip saddr 10.92."))
                .collect();
            assert_eq!(passed.len(), rules as usize);
            assert!(text.starts_with("table ip kbp_a_b {"));
        }
    }
}
