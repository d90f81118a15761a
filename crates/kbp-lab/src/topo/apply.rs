// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interpreter: does the steps of a plan one by one, and undoes them in reverse.
//!
//! Undoing works from the steps alone and takes what is gone already for undone, so it is the same after a whole `add`,
//! after one that failed, and after a crash between any two steps.
//!
//! Not here: which steps ([`super::plan`]).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::tail;

use super::cni;
use super::container;
use super::error::{Error, Result};
use super::helper::helper;
use super::host;
use super::link::{Links, Place};
use super::netns::{self, Sys};
use super::rules;
use super::state::{self, State};
use super::step::{Plan, Setting, Step};
use super::Topology;

/// How often to look whether a link passes packets.
const READY_PERIOD: Duration = Duration::from_millis(5);
/// What br_netfilter switches on for every bridge when it is loaded.
const BRIDGE_CALLS: [&str; 3] = [
    "net/bridge/bridge-nf-call-arptables",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
];

/// Makes a topology, or nothing.
pub(super) fn add(plan: &Plan, interrupted: &dyn Fn() -> bool) -> Result<Topology> {
    let mut state = State::begun(plan)?;
    state.write()?;
    let mut links = Links::default();
    for (number, step) in plan.steps.iter().enumerate() {
        let done = match interrupted() {
            true => Err(interruption(&state)),
            false => apply(step, &mut links, interrupted),
        };
        if let Err(reason) = done {
            // Sockets would keep the namespaces alive.
            drop(links);
            let error = match interrupted() {
                true => interruption(&state),
                false => Error::Step {
                    step: step.to_string(),
                    reason: Box::new(reason),
                },
            };
            return Err(give_up(&state, number + 1, error));
        }
    }
    state.complete = true;
    match state.write() {
        Ok(()) => Ok(plan.topology.clone()),
        Err(error) => Err(give_up(&state, plan.steps.len(), error)),
    }
}

fn interruption(state: &State) -> Error {
    let name = state.name().to_owned();
    Error::Interrupted { name }
}

/// Undoes the first `count` steps, and says what went wrong in the first place.
fn give_up(state: &State, count: usize, error: Error) -> Error {
    match undo_steps(state, count) {
        Err(Error::LeftBehind { name, what, .. }) => Error::LeftBehind {
            name,
            what,
            after: Some(Box::new(error)),
        },
        _ => error,
    }
}

/// Removes a topology.
pub(super) fn del(state: &State) -> Result<()> {
    if let Some(home) = &state.plan.home {
        if *home != netns::own_identity()? {
            return Err(Error::Argument(format!(
                "the topology '{}' has network cards of another network namespace than this one; \
                 remove it in the one in which it was made",
                state.name()
            )));
        }
    }
    undo_steps(state, state.plan.steps.len())
}

/// Undoes the first `count` steps, last one first, as far as that goes, and forgets the topology when nothing is left.
fn undo_steps(state: &State, count: usize) -> Result<()> {
    let mut links = Links::default();
    let mut what = Vec::new();
    for step in state.plan.steps[..count].iter().rev() {
        match undo(step, state, &mut links) {
            Err(error) if !error.is_gone() => what.push(format!("to undo \"{step}\": {error}")),
            _ => {}
        }
    }
    match what.is_empty() {
        true => state.forget(),
        false => Err(Error::LeftBehind {
            name: state.name().into(),
            what,
            after: None,
        }),
    }
}

/// Does a step.
pub(super) fn apply(step: &Step, links: &mut Links, interrupted: &dyn Fn() -> bool) -> Result<()> {
    match step {
        Step::BridgeNetfilter { loaded_before } => load_bridge_netfilter(*loaded_before),
        Step::Netns { name } => make_netns(name, links),
        Step::Settings { netns, settings } => write_settings(netns.as_deref(), settings),
        Step::Veth {
            ends: [(a, a_mac), (b, b_mac)],
            mtu,
        } => links.add_veth([(a, *a_mac), (b, *b_mac)], *mtu),
        Step::Bridge { place, mac } => links.add_bridge(place, *mac),
        Step::Vxlan {
            place,
            mac,
            tunnel,
            mtu,
        } => links.add_vxlan(place, *mac, *tunnel, *mtu),
        Step::Enslave { port, bridge } => links.enslave(port, bridge),
        Step::TakeNic { ifname, netns, .. } => links.move_to(&here(ifname), Some(netns)),
        Step::Address { place, net } => links.address(place, *net, true),
        Step::Up { place, .. } => links.set_up(place, true),
        Step::Neighbour {
            place,
            address,
            mac,
        } => links.neighbour(place, *address, *mac, true),
        Step::BridgeEntry { port, mac } => links.bridge_entry(port, *mac),
        Step::TunnelEntry { place, mac, remote } => links.tunnel_entry(place, *mac, *remote),
        Step::DefaultRoute { netns, gateway } => links.default_route(netns, *gateway),
        Step::Rules { netns, text, .. } => {
            netns::inside(Some(netns), Sys::AsIs, || rules::load(text))
        }
        Step::Steer { place, cpu } => steer(place, *cpu),
        Step::Cni { network } => cni::add(network, links),
        Step::Bundle { bundle } => container::write_bundle(bundle),
        Step::Container {
            id,
            bundle,
            runtime,
            pivot,
        } => container::start(runtime, id, bundle, *pivot),
        Step::Ready { place, limit_ms } => wait_ready(place, *limit_ms, links, interrupted),
    }
}

/// Undoes a step, whether or not it was done. What is inside of a namespace of the topology's own ends with that, links
/// excepted: they are removed at once, even if a process keeps the namespace.
fn undo(step: &Step, state: &State, links: &mut Links) -> Result<()> {
    match step {
        Step::BridgeNetfilter {
            loaded_before: false,
        } => unload_bridge_netfilter(state),
        Step::Netns { name } => {
            links.forget(name);
            netns::remove(name)
        }
        Step::Settings {
            netns: None,
            settings,
        } => restore(settings.iter().filter_map(|setting| {
            let original = setting.original.as_deref()?;
            Some((setting, original))
        })),
        Step::Veth {
            ends: [(place, _), _],
            ..
        }
        | Step::Bridge { place, .. }
        | Step::Vxlan { place, .. } => links.delete(place),
        Step::TakeNic {
            ifname,
            netns,
            was_up,
            before,
        } => return_nic(ifname, netns, *was_up, before, links),
        Step::Address { place, net } if place.netns.is_none() => links.address(place, *net, false),
        Step::Up {
            place,
            was_up: false,
        } if place.netns.is_none() => links.set_up(place, false),
        Step::Neighbour {
            place,
            address,
            mac,
        } if place.netns.is_none() => links.neighbour(place, *address, *mac, false),
        Step::Cni { network } => cni::del(network),
        Step::Bundle { bundle } => container::remove_bundle(bundle),
        Step::Container { id, runtime, .. } => container::remove(runtime, id),
        _ => Ok(()),
    }
}

fn here(ifname: &str) -> Place {
    Place {
        netns: None,
        ifname: ifname.into(),
    }
}

fn make_netns(name: &str, links: &mut Links) -> Result<()> {
    netns::create(name)?;
    let lo = Place {
        netns: Some(name.into()),
        ifname: "lo".into(),
    };
    links.set_up(&lo, true)
}

fn write_setting(path: &str, value: &str, optional: bool) -> Result<()> {
    let path = Path::new("/proc/sys").join(path);
    if optional && !path.exists() {
        return Ok(());
    }
    fs::write(&path, value).map_err(Error::sys(format!("write {value} to {}", path.display())))
}

fn write_settings(netns: Option<&str>, settings: &[Setting]) -> Result<()> {
    netns::inside(netns, Sys::AsIs, || {
        settings
            .iter()
            .try_for_each(|setting| write_setting(&setting.path, &setting.value, setting.optional))
    })
}

/// Puts settings back where they differ; those of an interface that is gone are gone.
fn restore<'a>(settings: impl Iterator<Item = (&'a Setting, &'a str)>) -> Result<()> {
    for (setting, original) in settings {
        let path = Path::new("/proc/sys").join(&setting.path);
        match fs::read_to_string(&path) {
            Ok(value) if value.trim() != original => write_setting(&setting.path, original, true)?,
            _ => {}
        }
    }
    Ok(())
}

/// Brings a card back and makes it what it was.
fn return_nic(
    ifname: &str,
    netns: &str,
    was_up: bool,
    before: &[Setting],
    links: &mut Links,
) -> Result<()> {
    let there = Place {
        netns: Some(netns.into()),
        ifname: ifname.into(),
    };
    match links.move_to(&there, None) {
        // It is here, or was never taken.
        Err(error) if error.is_gone() => {}
        moved => moved?,
    }
    let values = before
        .iter()
        .map(|setting| (setting, setting.value.as_str()));
    restore(values)?;
    let link = links.get(&here(ifname))?;
    match link.up == was_up {
        true => Ok(()),
        false => links.set_up(&here(ifname), was_up),
    }
}

fn modprobe(arguments: &[&str]) -> Result<()> {
    let output = helper("modprobe")
        .args(arguments)
        .output()
        .map_err(Error::sys("run modprobe"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Program {
            program: "modprobe".into(),
            detail: tail(&String::from_utf8_lossy(&output.stderr), 2),
        }),
    }
}

fn load_bridge_netfilter(loaded_before: bool) -> Result<()> {
    if loaded_before {
        return Ok(());
    }
    modprobe(&["br_netfilter"])?;
    BRIDGE_CALLS
        .iter()
        .try_for_each(|path| write_setting(path, "0", true))
}

/// Unloads the module, unless another topology uses it: then unloading is that one's business from now on.
fn unload_bridge_netfilter(state: &State) -> Result<()> {
    if !host::bridge_netfilter_loaded() {
        return Ok(());
    }
    for mut other in state::all()? {
        if other.name() == state.name() {
            continue;
        }
        for step in &mut other.plan.steps {
            if let Step::BridgeNetfilter { loaded_before } = step {
                *loaded_before = false;
                return other.write();
            }
        }
    }
    modprobe(&["-r", "br_netfilter"])
}

/// The mask of one CPU, as /proc and /sys write it: groups of 32 bits, the highest first.
fn mask_of(cpu: u32) -> String {
    let low = vec!["00000000"; (cpu / 32) as usize];
    let high = format!("{:x}", 1u32 << (cpu % 32));
    std::iter::once(high.as_str())
        .chain(low)
        .collect::<Vec<_>>()
        .join(",")
}

fn steer(place: &Place, cpu: u32) -> Result<()> {
    let mask = mask_of(cpu);
    let queues = format!("/sys/class/net/{}/queues", place.ifname);
    netns::inside(place.netns.as_deref(), Sys::Mounted, || {
        let failed = || Error::sys(format!("read {queues}"));
        for entry in fs::read_dir(&queues).map_err(failed())? {
            let path = entry.map_err(failed())?.path().join("rps_cpus");
            if path.exists() {
                fs::write(&path, &mask)
                    .map_err(Error::sys(format!("write {mask} to {}", path.display())))?;
            }
        }
        Ok(())
    })
}

fn wait_ready(
    place: &Place,
    limit_ms: u64,
    links: &mut Links,
    interrupted: &dyn Fn() -> bool,
) -> Result<()> {
    let begin = Instant::now();
    while !links.get(place)?.ready {
        let late = begin.elapsed() > Duration::from_millis(limit_ms);
        if late || interrupted() {
            return Err(Error::TimedOut {
                what: format!("{place} passes no packets"),
                limit_ms,
                remedy: "it may have no carrier: check what it is connected to".into(),
            });
        }
        std::thread::sleep(READY_PERIOD);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_groups_of_32_bits() {
        let expected = [
            (0, "1"),
            (5, "20"),
            (31, "80000000"),
            (32, "1,00000000"),
            (70, "40,00000000,00000000"),
        ];
        for (cpu, mask) in expected {
            assert_eq!(mask_of(cpu), mask);
        }
    }
}
