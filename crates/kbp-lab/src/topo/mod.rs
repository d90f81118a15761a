// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Topologies: paths between a client and a server, made of namespaces, virtual interfaces, rules and containers.
//!
//! A topology is a plan: a pure function makes a list of [steps](step) of a [`Spec`] ([`plan`]), and one interpreter
//! prints, applies or undoes them ([`apply`]). The list is in a file before the first step is done ([`state`]), so a
//! topology can be removed from that file alone, after a crash too.
//!
//! ```no_run
//! # fn main() -> kbp_lab::topo::Result<()> {
//! use kbp_lab::topo::{self, Kind, Spec};
//! let topology = topo::add(&Spec::new(Kind::Bridge))?;
//! println!("talk to {} from {:?}", topology.target, topology.client.netns);
//! topo::del(&topology.spec.name)
//! # }
//! ```
//!
//! Not here: traffic. Nothing in this module sends a packet.

mod apply;
mod check;
mod cni;
mod container;
mod error;
mod helper;
mod host;
mod kind;
mod link;
mod netlink;
mod netns;
mod plan;
mod rules;
mod state;
mod step;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use check::{can_run, can_run_spec};
pub use container::command_in_container;
pub use error::{Error, Result};
pub use kind::{Kind, PortKind};
pub use netlink::Refusal;

/// Size of the rule set when none is given.
pub const RULES_DEFAULT: u32 = 100;
/// Most rules that may be asked for.
pub const RULES_MAX: u32 = 10_000;

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The kind of topology.
    pub kind: Kind,
    /// Its name; by default the kind's. Namespaces are called `kbp-NAME-ROLE`.
    pub name: String,
    /// How many filter rules a packet passes, in each direction, before one lets it through. Only for kinds with a rule set.
    pub rules: u32,
    /// For [`Kind::Nic`]: the server's card, the tester's card.
    pub nics: [String; 2],
    /// Every virtual interface that receives steers its packets to this CPU (`rps_cpus`). Network cards are left alone.
    pub rps_cpu: Option<u32>,
}

impl Spec {
    /// A topology of this kind with the defaults.
    pub fn new(kind: Kind) -> Spec {
        Spec {
            kind,
            name: kind.name().into(),
            rules: RULES_DEFAULT,
            nics: ["eth0".into(), "eth1".into()],
            rps_cpu: None,
        }
    }
}

/// Where a program is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Its network namespace, as `ip netns` knows it; `None` is the one in which the topology was made.
    pub netns: Option<String>,
    /// Its interface.
    pub ifname: String,
    /// Its address.
    pub address: IpAddr,
    /// The container that has this namespace; see [`command_in_container`].
    pub container: Option<String>,
}

/// An interface that receives packets on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its network namespace; `None` is the one in which the topology was made.
    pub netns: Option<String>,
    /// Its name.
    pub ifname: String,
    /// How it receives.
    pub kind: PortKind,
}

/// A topology that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// What was asked for.
    pub spec: Spec,
    /// The client's end.
    pub client: End,
    /// The server's end.
    pub server: End,
    /// What the client has to talk to: the server's address, or one that is translated to it.
    pub target: IpAddr,
    /// Every interface that receives on the way of a packet, in either direction: the server's first, then the client's,
    /// then those between.
    pub ports: Vec<Port>,
}

/// A topology that is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The topology.
    pub topology: Topology,
    /// Whether all of it was made. If not, whoever made it crashed or is still at it; [`del`] removes what there is.
    pub complete: bool,
}

/// Makes a topology. When that fails, what was made is removed again.
///
/// # Errors
/// [`Error::Exists`] when there is one of that name; [`Error::CannotRun`] when this machine can't; what a step says.
pub fn add(spec: &Spec) -> Result<Topology> {
    add_unless(spec, &|| false)
}

/// Like [`add`], but stops and removes what was made as soon as `interrupted` says so. It is asked between two steps and
/// while waiting.
///
/// # Errors
/// As [`add`], and [`Error::Interrupted`].
pub fn add_unless(spec: &Spec, interrupted: &dyn Fn() -> bool) -> Result<Topology> {
    check::spec(spec)?;
    check::privilege(&format!("make the topology {}", spec.name))?;
    let _lock = state::lock(&spec.name, interrupted)?;
    check::is_new(&spec.name)?;
    can_run_spec(spec).map_err(|reason| Error::CannotRun {
        kind: spec.kind,
        reason,
    })?;
    let plan = plan::plan(spec, &host::observe(spec)?);
    check::nothing_in_the_way(&plan)?;
    apply::add(&plan, interrupted)
}

/// Removes a topology, whole or half made.
///
/// # Errors
/// [`Error::Unknown`] when there is none of that name; [`Error::LeftBehind`] with everything that could not be removed.
pub fn del(name: &str) -> Result<()> {
    check::name(name)?;
    check::privilege(&format!("remove the topology {name}"))?;
    let _lock = state::lock(name, &|| false)?;
    let state = state::read(name)?.ok_or_else(|| Error::Unknown { name: name.into() })?;
    apply::del(&state)
}

/// The topologies that are there and complete, by name.
///
/// # Errors
/// When a file of `/run/kbp-topo` can't be read.
pub fn list() -> Result<Vec<Topology>> {
    let entries = entries()?.into_iter();
    Ok(entries
        .filter(|entry| entry.complete)
        .map(|entry| entry.topology)
        .collect())
}

/// The topologies that are remembered, half made ones too, by name.
///
/// # Errors
/// When a file of `/run/kbp-topo` can't be read.
pub fn entries() -> Result<Vec<Entry>> {
    let states = state::all()?.into_iter();
    Ok(states
        .map(|state| Entry {
            topology: state.plan.topology,
            complete: state.complete,
        })
        .collect())
}

/// What [`add`] would do, a line for each step, in order. Changes nothing.
///
/// # Errors
/// As [`add`] before its first step; that this machine can't make it is no error here.
pub fn steps(spec: &Spec) -> Result<Vec<String>> {
    check::spec(spec)?;
    let plan = plan::plan(spec, &host::observe(spec)?);
    Ok(plan.steps.iter().map(ToString::to_string).collect())
}
