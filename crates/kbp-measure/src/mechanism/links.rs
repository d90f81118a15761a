// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What kind of receiving an interface has: NAPI instances of its own, the backlog of a CPU, or the per-CPU
//! instances of a tunnel (`gro_cells`).
//!
//! Not here: interrupts and CPUs; those are the rig's.

use std::result::Result as StdResult;

use kbp_core::ethtool::{self, Offload};
use kbp_core::Host;

use crate::compare::rig::Link;
use crate::mechanism::Site;

/// Who receives for an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// NAPI instances of its own, which may become threads.
    Napi,
    /// No NAPI instance; in words.
    Backlog(&'static str),
    /// Instances that must stay on their CPU; in words.
    PerCpu(&'static str),
}

const LOOPBACK: &str = "loopback has no NAPI instance, its packets go through the backlog of a CPU";
const BRIDGE: &str = "a bridge has no NAPI instance, its ports receive";
const PLAIN_VETH: &str =
    "a veth has NAPI instances only with `ethtool -K DEV gro on`, and uses them only for what its peer sends after \
     `ethtool -K PEER tso off`";
const TUNNEL: &str =
    "it may receive through gro_cells, per-CPU queues without a lock that rely on staying on their CPU; \
     mainline would let threads run anywhere, which is unsafe";

/// Who receives for this interface.
pub(crate) fn receiver(link: &Link) -> crate::Result<Receiver> {
    if link.has_interrupts {
        return Ok(Receiver::Napi);
    }
    link.run(|ifname| {
        if Host::system().interface(ifname)?.device.is_some() {
            return Ok(Receiver::Napi);
        }
        let driver = ethtool::driver(ifname).map_err(kbp_core::Error::from)?;
        Ok(match driver.as_deref() {
            None => Receiver::Backlog(LOOPBACK),
            Some("bridge") => Receiver::Backlog(BRIDGE),
            Some("veth") => {
                match ethtool::offload(ifname, Offload::Receive).map_err(kbp_core::Error::from)? {
                    true => Receiver::Napi,
                    false => Receiver::Backlog(PLAIN_VETH),
                }
            }
            Some(_) => Receiver::PerCpu(TUNNEL),
        })
    })
}

/// The interfaces that have NAPI instances of their own.
pub(crate) fn with_napi(links: &[Link]) -> crate::Result<Vec<&Link>> {
    let mut found = Vec::new();
    for link in links {
        if receiver(link)? == Receiver::Napi {
            found.push(link);
        }
    }
    Ok(found)
}

/// That at least one interface has a NAPI instance; else why none has.
pub(crate) fn require_napi(site: &Site<'_>) -> StdResult<(), String> {
    let mut reasons = Vec::new();
    for link in site.links {
        match receiver(link).map_err(|error| error.to_string())? {
            Receiver::Napi => return Ok(()),
            Receiver::Backlog(why) | Receiver::PerCpu(why) => {
                reasons.push(format!("{}: {why}", link.ifname));
            }
        }
    }
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(reasons.join("; ")),
    }
}

/// That no interface is one whose instances must not become threads.
pub(crate) fn refuse_per_cpu(site: &Site<'_>) -> StdResult<(), String> {
    for link in site.links {
        if let Receiver::PerCpu(why) = receiver(link).map_err(|error| error.to_string())? {
            return Err(format!("{}: {why}", link.ifname));
        }
    }
    Ok(())
}

/// That at least one interface receives without interrupts.
pub(crate) fn require_without_interrupts(site: &Site<'_>) -> StdResult<(), String> {
    let any = site.links.iter().any(|link| !link.has_interrupts);
    match any || site.links.is_empty() {
        true => Ok(()),
        false => Err(
            "every interface of this path has interrupts, so no packet goes through the backlog"
                .into(),
        ),
    }
}
