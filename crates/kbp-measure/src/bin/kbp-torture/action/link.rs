// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Actions on interfaces that take packets away without a count: down and up, another name, another namespace, another
//! number of queues. The traffic of the interface's path is held around each, and of no other path.

use std::thread::sleep;
use std::time::Duration;

use kbp_core::ethtool::{channels, set_channels, Channels};
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};

use super::{always, is_refusal, nothing, one_of, refused, Action, Outcome, Worker, World};
use crate::wiring::{interfaces, netns, path, run, End, ELSEWHERE, VETH_QUEUES};

pub const LINK_FLAP: Action = Action {
    name: "link-flap",
    about: "an interface goes down and up; its path is held, for what is on a cut wire is counted by nobody",
    weight: 5,
    worker: Worker::Around,
    can_run: always,
    act: flap,
    undo: nothing,
};
pub const RENAME: Action = Action {
    name: "rename",
    about: "an interface gets another name and its own again: while it is up and carries traffic where the kernel \
            allows that, else down and with its path held",
    weight: 4,
    worker: Worker::Around,
    can_run: always,
    act: rename,
    undo: nothing,
};
pub const NETNS_MOVE: Action = Action {
    name: "netns-move",
    about: "an interface goes to another network namespace and comes back; its path is held, for the kernel takes it down",
    weight: 4,
    worker: Worker::Around,
    can_run: always,
    act: move_away,
    undo: nothing,
};
pub const QUEUES_VETH: Action = Action {
    name: "queues-veth",
    about: "a veth uses another number of queues, and all of them again; its path is held, for the driver empties its rings",
    weight: 4,
    worker: Worker::Around,
    can_run: |_| can_change("tn0"),
    act: |world, rng| queues(world, rng, &["tn0", "tv0"]),
    undo: nothing,
};
pub const QUEUES_CARD: Action = Action {
    name: "queues-card",
    about: "a card uses another number of queues, and all of them again; its path is held, for most drivers reset the card",
    weight: 2,
    worker: Worker::Around,
    can_run: |_| can_change("eth0"),
    act: |world, rng| queues(world, rng, &["eth0"]),
    undo: nothing,
};

fn pause(rng: &mut SplitMix64) {
    sleep(Duration::from_millis(rng.in_range(5, 250)));
}

/// A random interface of an end; the cards, which take seconds to find each other again, less often.
fn random_interface(rng: &mut SplitMix64, end: End) -> (usize, &'static str) {
    let mut choice = interfaces(end);
    choice.extend(
        interfaces(end)
            .into_iter()
            .filter(|(number, _)| *number != path("nic")),
    );
    one_of(rng, &choice).copied().unwrap_or((0, "eth0"))
}

fn flap(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let end = one_of(rng, &[End::Here, End::There])
        .copied()
        .unwrap_or(End::Here);
    let (number, name) = random_interface(rng, end);
    let _hold = world.traffic.hold(&[number]);
    run(netns(end), "ip", &format!("link set dev {name} down"))?;
    pause(rng);
    world.wiring.repair(number)?;
    Ok(Outcome::Done)
}

fn rename(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let (number, name) = random_interface(rng, End::Here);
    let (there, back) = (
        format!("link set dev {name} name {name}-x"),
        format!("link set dev {name}-x name {name}"),
    );
    match run(None, "ip", &there) {
        Ok(_) => {
            pause(rng);
            run(None, "ip", &back)?;
            return Ok(Outcome::Done);
        }
        Err(error) if is_refusal(&error, &["busy"]) => {}
        Err(error) => return Err(error),
    }
    let _hold = world.traffic.hold(&[number]);
    run(None, "ip", &format!("link set dev {name} down"))?;
    run(None, "ip", &there)?;
    run(None, "ip", &format!("link set dev {name}-x up"))?;
    pause(rng);
    run(None, "ip", &format!("link set dev {name}-x down"))?;
    run(None, "ip", &back)?;
    world.wiring.repair(number)?;
    Ok(Outcome::Done)
}

fn move_away(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let choice = [
        ("veth", "tv0"),
        ("veth-napi", "tn0"),
        ("vxlan", "tu0"),
        ("veth-napi", "tn0"),
        ("nic", "eth0"),
    ];
    let (kind, name) = one_of(rng, &choice).copied().unwrap_or(choice[0]);
    let number = path(kind);
    let _hold = world.traffic.hold(&[number]);
    run(
        None,
        "ip",
        &format!("link set dev {name} netns {ELSEWHERE}"),
    )?;
    pause(rng);
    if rng.in_range(0, 1) == 1 {
        run(Some(ELSEWHERE), "ip", &format!("link set dev {name} up"))?;
        pause(rng);
    }
    let own = std::process::id();
    run(
        Some(ELSEWHERE),
        "ip",
        &format!("link set dev {name} netns {own}"),
    )?;
    world.wiring.repair(number)?;
    Ok(Outcome::Done)
}

/// Whether an interface can be told how many queues to use, and has more than one.
fn can_change(name: &str) -> std::result::Result<(), String> {
    let found = channels(name).map_err(|e| e.to_string())?;
    match found.max.iter().any(|&max| max > 1) {
        true => Ok(()),
        false => Err(format!("{name} has one queue")),
    }
}

fn queues(world: &World, rng: &mut SplitMix64, choice: &[&str]) -> Result<Outcome> {
    let name = one_of(rng, choice).copied().unwrap_or(choice[0]);
    let of = interfaces(End::Here);
    let number = of
        .iter()
        .find(|(_, other)| *other == name)
        .map_or(0, |(number, _)| *number);
    let core = |e| Error::Core(kbp_core::Error::Host(e));
    let _hold = world.traffic.hold(&[number]);
    let before = channels(name).map_err(core)?;
    let mut wanted = before;
    for (count, max) in wanted.count.iter_mut().zip(wanted.max) {
        if *count > 0 && max > 1 {
            *count = rng.in_range(1, u64::from(max.min(VETH_QUEUES))) as u32;
        }
    }
    if let Err(error) = set_channels(name, wanted) {
        return Ok(refused(&error));
    }
    pause(rng);
    restore(name, before)?;
    world.wiring.repair(number)?;
    Ok(Outcome::Done)
}

fn restore(name: &str, before: Channels) -> Result<()> {
    set_channels(name, before).map_err(|e| Error::Core(kbp_core::Error::Host(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_of_the_path_that_it_is_said_to_be() {
        let mut rng = SplitMix64::new(1);
        for _ in 0..500 {
            let (number, name) = random_interface(&mut rng, End::There);
            assert!(interfaces(End::There).contains(&(number, name)));
        }
    }
}
