// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rows, traffic, paths and loads are called for a reader, and the colour of a mechanism.
//!
//! Not here: numbers ([`super::text`]).

use std::fmt::Write;

use super::cell::Key;
use super::text::bits;
use crate::result::{Config, Row, NO_TRAFFIC, TOOL_KBP};

/// Mechanisms with a colour of their own, by its number in the style sheet. The same name has the
/// same colour on every page.
const COLOURS: [(&str, usize); 13] = [
    ("softirq", 0),
    ("threaded", 1),
    ("threaded-fifo", 2),
    ("kbp-busy", 3),
    ("mainline-busy-poll", 4),
    ("busy-read", 5),
    ("defer-irqs", 6),
    ("backlog-threads", 7),
    ("backlog-threads-fifo", 7),
    ("preempt-rt", 8),
    ("kbp-sleep", 9),
    ("kbp-adaptive", 10),
    ("kbp", 3),
];
/// Colour of every other mechanism.
const OTHER_COLOUR: usize = 11;

/// Number of a mechanism's colour in the style sheet.
pub fn colour(mode: &str) -> usize {
    let known = COLOURS.iter().find(|(name, _)| *name == mode);
    known.map_or(OTHER_COLOUR, |(_, colour)| *colour)
}

/// How a row is called in a table.
pub fn row(row: &Row) -> String {
    let mut name = row.mode.clone();
    if row.tool != TOOL_KBP {
        let _ = write!(name, " ({})", row.tool);
    }
    if row.round > 1 {
        name += ", again";
    }
    name
}

/// What was sent, by whom, how large and how fast.
pub fn traffic(key: &Key) -> String {
    let mut words = match key.traffic {
        "ping-pong" => "ping-pong".to_owned(),
        "open-loop" => "open loop".into(),
        "rfc2544" => "throughput".into(),
        "one-way" => "one way".into(),
        NO_TRAFFIC => "no traffic".into(),
        other => other.into(),
    };
    if key.size_bytes > 0 {
        let _ = write!(words, ", {} bytes", key.size_bytes);
    }
    if let Some(rate) = key.rate_bps {
        let _ = write!(words, ", {}", bits(rate as f64));
    }
    if let Some(arrivals) = key.arrivals {
        let _ = write!(words, ", {arrivals}");
    }
    if key.tool != TOOL_KBP {
        let _ = write!(words, " ({})", key.tool);
    }
    words
}

/// The rate at which frames were offered, and how they came where that was not constant; `None` where none was set.
pub fn offered(key: &Key) -> Option<String> {
    let rate = bits(key.rate_bps? as f64);
    Some(match key.arrivals {
        Some(arrivals) => format!("{rate}, {arrivals}"),
        None => rate,
    })
}

/// A sentence about a topology, empty for one that is not known here.
pub fn path_words(path: &str) -> &'static str {
    match path {
        "lo" => "The loopback interface of one namespace.",
        "veth" => "A veth pair between two namespaces.",
        "bridge" | "veth+bridge" => "Two namespaces, each with a veth pair, on one bridge.",
        "bridge-netfilter" => {
            "Two namespaces on one bridge, with connection tracking and a rule set in between."
        }
        "routed-nat" => "Two namespaces, routed and masqueraded in between: the docker model.",
        "vxlan" => "Two namespaces that play nodes, connected by a vxlan tunnel.",
        "container" => "A container behind a bridge with network address translation.",
        "pod" => "Two containers with one network, made by CNI plug-ins, behind a forwarded port.",
        "nic" => "A pair of network cards on one wire.",
        _ => "",
    }
}

/// What a load is made of, as the run says it; empty where neither it nor this page knows.
pub fn load_words<'a>(load: &str, config: Option<&'a Config>) -> &'a str {
    let said = config.and_then(|config| config.loads.get(load));
    match (load, config) {
        _ if said.is_some() => said.map_or("", String::as_str),
        ("idle", _) => "Nothing else runs.",
        ("storm", Some(config)) => &config.storm,
        _ => "",
    }
}
