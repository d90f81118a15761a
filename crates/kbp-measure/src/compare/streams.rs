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

/// Whether this machine has such a pair.
///
/// # Errors
/// One sentence that says why not.
pub fn can_run(nics: &[String; 2]) -> std::result::Result<(), String> {
    topo::can_run_spec(&spec(nics)).map_err(|why| {
        format!("the load stream needs a second pair of network cards (--stream-nics; in the lab a machine with 4): {why}")
    })
}

/// Puts the pair on its wire. Interrupts of the receiver's card go to `irq_cpu` while the load runs; everything else of
/// the streams is on the housekeeping CPU, out of the way of client and server.
///
/// # Errors
/// When it can't be made; nothing is left then.
pub fn up(nics: &[String; 2], cpus: Cpus, irq_cpu: u32) -> Result<StreamConfig> {
    let topology = topo::add_unless(&spec(nics), &interrupt::requested)?;
    let end = |end: &End| StreamEnd {
        ifname: end.ifname.clone(),
        netns: end.netns.clone(),
        addr: end.address,
        cpu: cpus.housekeeping,
    };
    Ok(StreamConfig::new(
        end(&topology.server),
        end(&topology.client),
        Some(irq_cpu),
    ))
}

/// The load in words, before its cards are on their wire.
pub fn words(nics: &[String; 2], cpus: Cpus, irq_cpu: u32) -> String {
    let end = |ifname: &String| StreamEnd {
        ifname: ifname.clone(),
        netns: None,
        addr: Ipv4Addr::UNSPECIFIED.into(),
        cpu: cpus.housekeeping,
    };
    StreamConfig::new(end(&nics[0]), end(&nics[1]), Some(irq_cpu)).words()
}

/// Removes the pair.
///
/// # Errors
/// What could not be removed.
pub fn down() -> Result<()> {
    Ok(topo::del(NAME)?)
}

fn spec(nics: &[String; 2]) -> Spec {
    Spec {
        name: NAME.into(),
        nics: nics.clone(),
        ..Spec::new(Kind::Nic)
    }
}
