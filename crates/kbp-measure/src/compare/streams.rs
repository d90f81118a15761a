// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second pair of network cards, on which the load `stream` runs beside the path that is measured.
//!
//! Not here: the streams ([`crate::load::stream`]).

use std::net::Ipv4Addr;

use kbp_lab::topo::{self, End, Kind, Spec};

use crate::error::Result;
use crate::interrupt;
use crate::load::{StreamConfig, StreamEnd};
use crate::result::Cpus;

/// Name of its topology.
pub(super) const NAME: &str = "compare-stream";

/// How the load is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// The receiver's card, the sender's.
    pub nics: [String; 2],
    /// CPU of the receiver's interrupts while the load runs.
    pub irq_cpu: u32,
    /// As of [`StreamConfig`].
    pub udp_bps: u64,
    /// As of [`StreamConfig`].
    pub tcp_bps: u64,
}

impl StreamOptions {
    fn config(&self, [server, tester]: [StreamEnd; 2]) -> StreamConfig {
        StreamConfig {
            udp_bps: self.udp_bps,
            tcp_bps: self.tcp_bps,
            ..StreamConfig::new(server, tester, Some(self.irq_cpu))
        }
    }
}

/// Whether this machine has such a pair.
///
/// # Errors
/// One sentence that says why not.
pub fn can_run(options: &StreamOptions) -> std::result::Result<(), String> {
    topo::can_run_spec(&spec(options)).map_err(|why| {
        format!("the load stream needs a second pair of network cards (--stream-nics; in the lab a machine with 4): {why}")
    })
}

/// Puts the pair on its wire. Everything but the interrupts is on the housekeeping CPU, out of the way of client and server.
///
/// # Errors
/// When it can't be made; nothing is left then.
pub fn up(options: &StreamOptions, cpus: Cpus) -> Result<StreamConfig> {
    let topology = topo::add_unless(&spec(options), &interrupt::requested)?;
    let ends = [&topology.server, &topology.client].map(|end: &End| StreamEnd {
        ifname: end.ifname.clone(),
        netns: end.netns.clone(),
        addr: end.address,
        cpu: cpus.housekeeping,
    });
    Ok(options.config(ends))
}

/// The load in words, before its cards are on their wire.
pub fn words(options: &StreamOptions, cpus: Cpus) -> String {
    let ends = options.nics.clone().map(|ifname| StreamEnd {
        ifname,
        netns: None,
        addr: Ipv4Addr::UNSPECIFIED.into(),
        cpu: cpus.housekeeping,
    });
    options.config(ends).words()
}

/// Removes the pair.
///
/// # Errors
/// What could not be removed.
pub fn down() -> Result<()> {
    Ok(topo::del(NAME)?)
}

fn spec(options: &StreamOptions) -> Spec {
    Spec {
        name: NAME.into(),
        nics: options.nics.clone(),
        ..Spec::new(Kind::Nic)
    }
}
