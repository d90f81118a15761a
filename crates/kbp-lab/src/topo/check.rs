// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked before anything is made: is the specification right, may we, can this machine, is nothing in the way.
//!
//! Whether the kernel can make a kind of interface or load rules is tried, in a namespace that ends with the trial.
//!
//! Not here: making topologies.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::cni;
use super::container;
use super::error::{Error, Result};
use super::host;
use super::kind::Kind;
use super::link::{Links, Mac, Place, Tunnel};
use super::netns;
use super::plan;
use super::rules::{self, RuleSet};
use super::state;
use super::step::{Plan, Step};
use super::{Spec, RULES_MAX};

/// Most characters in a topology's name.
const NAME_LEN_MAX: usize = 32;
/// Most characters in an interface's name (`IFNAMSIZ` - 1).
const IFNAME_LEN_MAX: usize = 15;
/// Bits in the sets of capabilities (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;

/// Whether a topology may have this name.
pub(super) fn name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let right = name.len() <= NAME_LEN_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain);
    match right {
        true => Ok(()),
        false => Err(Error::Argument(format!(
            "'{name}' can't be a topology's name: it needs 1 to {NAME_LEN_MAX} letters, digits, - and _, and starts with a letter or digit"
        ))),
    }
}

/// Whether the values of a specification make sense on this machine.
pub(super) fn spec(spec: &Spec) -> Result<()> {
    name(&spec.name)?;
    if spec.rules > RULES_MAX {
        return Err(Error::Argument(format!(
            "{} rules are more than the {RULES_MAX} that a topology may have",
            spec.rules
        )));
    }
    for nic in &spec.nics {
        let wrong = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if nic.is_empty() || nic.len() > IFNAME_LEN_MAX || nic.contains(wrong) {
            return Err(Error::Argument(format!(
                "'{nic}' can't be an interface's name"
            )));
        }
    }
    if spec.nics[0] == spec.nics[1] {
        return Err(Error::Argument(format!(
            "server and tester need a network card each; {} was given for both",
            spec.nics[0]
        )));
    }
    match spec.rps_cpu {
        Some(cpu) => online(cpu),
        None => Ok(()),
    }
}

fn online(cpu: u32) -> Result<()> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path).map_err(Error::sys(format!("read {path}")))?;
    match list_contains(text.trim(), cpu) {
        true => Ok(()),
        false => Err(Error::Argument(format!(
            "CPU {cpu} is not online; these are: {}",
            text.trim()
        ))),
    }
}

/// Whether a list like `0-3,8` has the number.
fn list_contains(list: &str, number: u32) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&number),
            _ => false,
        }
    })
}

/// Whether the calling thread may make namespaces and interfaces.
pub(super) fn privilege(what: &str) -> Result<()> {
    let path = "/proc/thread-self/status";
    let text = fs::read_to_string(path).map_err(Error::sys(format!("read {path}")))?;
    let capabilities = text
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
        .unwrap_or(0);
    let has = |bit: u32| capabilities >> bit & 1 == 1;
    match has(CAP_NET_ADMIN) && has(CAP_SYS_ADMIN) {
        true => Ok(()),
        false => Err(Error::NoPrivilege { what: what.into() }),
    }
}

/// Whether there is no topology of that name.
pub(super) fn is_new(name: &str) -> Result<()> {
    match state::read(name)? {
        Some(_) => Err(Error::Exists { name: name.into() }),
        None => Ok(()),
    }
}

/// Whether no other topology gives its address to the namespace in which this one gives it.
fn address_is_free(plan: &Plan) -> Result<()> {
    let clashes = |other: &&state::State| {
        plan.home.is_some()
            && other.plan.home == plan.home
            && other.plan.topology.server.address == plan.topology.server.address
    };
    match state::all()?.iter().find(clashes) {
        Some(other) => Err(Error::Taken {
            what: format!(
                "the topology '{}', which has the same addresses,",
                other.name()
            ),
            remedy: format!("`kbp topo del {}`", other.name()),
        }),
        None => Ok(()),
    }
}

/// Whether everything that the plan makes is free. So whatever has one of its names later, the plan has made.
pub(super) fn nothing_in_the_way(plan: &Plan) -> Result<()> {
    address_is_free(plan)?;
    for name in plan::namespaces(plan) {
        if netns::exists(name) {
            return Err(Error::Taken {
                what: format!("a network namespace {name}"),
                remedy: format!("`ip netns del {name}`"),
            });
        }
    }
    for step in &plan.steps {
        match step {
            Step::Bundle { bundle } if bundle.dir.exists() => {
                return Err(Error::Taken {
                    what: format!("the folder {}", bundle.dir.display()),
                    remedy: "look what it has, then delete it".into(),
                })
            }
            Step::Container { id, runtime, .. } if container::exists(runtime, id)? => {
                return Err(Error::Taken {
                    what: format!("a container {id}"),
                    remedy: format!("`{} delete --force {id}`", runtime.display()),
                })
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether this machine can make a kind of topology, with the defaults.
///
/// # Errors
/// One sentence that says why not, and what would help.
pub fn can_run(kind: Kind) -> std::result::Result<(), String> {
    can_run_spec(&Spec::new(kind))
}

/// Whether this machine can make a topology.
///
/// # Errors
/// One sentence that says why not, and what would help.
pub fn can_run_spec(spec: &Spec) -> std::result::Result<(), String> {
    privilege(&format!("make the topology {}", spec.name)).map_err(|error| error.to_string())?;
    let trial = || netns::inside_new(|| Ok(try_kernel(spec.kind)));
    match spec.kind {
        Kind::Nic => [&spec.nics[0], &spec.nics[1]]
            .into_iter()
            .try_for_each(|nic| usable_nic(nic)),
        Kind::BridgeNetfilter => bridge_netfilter(),
        Kind::Container => host::runtime().map(drop),
        Kind::Pod => host::runtime().map(drop).and_then(|()| cni::can_run()),
        _ => Ok(()),
    }?;
    trial().map_err(|error| error.to_string())?
}

fn bridge_netfilter() -> std::result::Result<(), String> {
    let modprobe = || {
        Command::new("modprobe")
            .args(["-D", "br_netfilter"])
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
    };
    match host::bridge_netfilter_loaded() || modprobe() {
        true => Ok(()),
        false => Err("this kernel has no br_netfilter, and modprobe knows no such module".into()),
    }
}

/// A card can be taken when it is nobody's: it would lose what it has.
fn usable_nic(ifname: &str) -> std::result::Result<(), String> {
    let mut links = Links::default();
    let place = Place {
        netns: None,
        ifname: ifname.into(),
    };
    let link = links.get(&place).map_err(|error| match error.is_gone() {
        true => format!("there is no network interface {ifname} here; name two with --nics A,B"),
        false => error.to_string(),
    })?;
    if link.loopback {
        return Err(format!("{ifname} is the loopback"));
    }
    if link.has_master {
        return Err(format!(
            "{ifname} is a port of a bridge or a bond; take it out first (`ip link set {ifname} nomaster`)"
        ));
    }
    if let Some(upper) = upper_of(ifname) {
        return Err(format!(
            "{upper} stands on {ifname} and would lose what it has; name two cards that are free, with --nics A,B"
        ));
    }
    match links.has_address(&place) {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!(
            "{ifname} has an IP address, so it is in use; name two cards that are not, with --nics A,B"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// An interface that stands on another one: a VLAN, a macvlan.
fn upper_of(ifname: &str) -> Option<String> {
    let entries = fs::read_dir(Path::new("/sys/class/net").join(ifname)).ok()?;
    entries
        .filter_map(std::result::Result::ok)
        .find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix("upper_").map(str::to_owned)
        })
}

/// Makes, in the calling thread's namespace, one of everything that this kind needs.
fn try_kernel(kind: Kind) -> std::result::Result<(), String> {
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let here = |ifname: &str| Place {
        netns: None,
        ifname: ifname.into(),
    };
    let mut links = Links::default();
    let refused = |what: &'static str| {
        move |error: Error| {
            format!("this kernel makes no {what} ({error}); it may lack the module {what}")
        }
    };
    if !matches!(kind, Kind::Lo | Kind::Nic) {
        links
            .add_veth([(&here("a"), a), (&here("b"), b)], 1500)
            .map_err(refused("veth"))?;
    }
    if !matches!(kind, Kind::Lo | Kind::Nic | Kind::Veth) {
        links
            .add_bridge(&here("br0"), a)
            .map_err(refused("bridge"))?;
    }
    if kind == Kind::Vxlan {
        let tunnel = Tunnel {
            id: 1,
            local: Ipv4Addr::new(10, 0, 0, 1),
            remote: Ipv4Addr::new(10, 0, 0, 2),
            port: 4789,
        };
        links
            .add_vxlan(&here("vxlan0"), a, tunnel, 1450)
            .map_err(refused("vxlan"))?;
    }
    match kind.has_rules() {
        true => try_rules(),
        false => Ok(()),
    }
}

fn try_rules() -> std::result::Result<(), String> {
    if rules::nft().is_none() {
        return Err("the program nft is not installed; apt install nftables".into());
    }
    let set = RuleSet {
        target: Ipv4Addr::new(10, 0, 0, 1),
        server: Ipv4Addr::new(10, 0, 1, 2),
        network: (Ipv4Addr::new(10, 0, 1, 0), 24),
        rules: 1,
        routed: true,
    };
    rules::load(&set.text("trial")).map_err(|error| {
        format!("this kernel does not take the rules ({error}); it may lack nf_tables, nft_ct, nft_nat, nft_masq or nft_chain_nat")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        for right in ["a", "veth", "0-_x", &"n".repeat(NAME_LEN_MAX)] {
            assert!(name(right).is_ok(), "{right}");
        }
        for wrong in ["", "-a", ".", "a/b", "a b", "ä", &"n".repeat(33)] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_of_cpus_are_read() {
        let of = |list: &str| {
            (0..10)
                .filter(|cpu| list_contains(list, *cpu))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(of("5"), [5]);
        assert_eq!(of(""), [0; 0]);
    }
}
