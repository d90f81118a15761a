// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may do to NAPI instances and receive queues while a poller has them: XDP programs, GRO, threaded NAPI,
//! the timers of interrupts put off, RPS.

use std::thread::sleep;
use std::time::Duration;

use kbp_core::ethtool::{offload, set_offload, Offload};
use kbp_core::Host;
use kbp_measure::place::{run_at, Place};
use kbp_measure::rng::SplitMix64;
use kbp_measure::tester::sockets::{attach_pass, Hook};
use kbp_measure::{Error, Result};

use super::{always, is_refusal, nothing, one_of, refused, Action, Outcome, Worker, World};
use crate::wiring::{interfaces, path, End, FAR, VETH_QUEUES};

pub const XDP_GENERIC: Action = Action {
    name: "xdp-generic",
    about: "a program that passes everything, run by the stack, comes and goes under traffic",
    weight: 4,
    worker: Worker::Around,
    can_run: always,
    act: xdp_generic,
    undo: nothing,
};
pub const XDP_NATIVE: Action = Action {
    name: "xdp-native",
    about: "the same, run by the driver; the path is held, for drivers empty their rings for it",
    weight: 3,
    worker: Worker::Around,
    can_run: always,
    act: xdp_native,
    undo: nothing,
};
pub const GRO: Action = Action {
    name: "gro",
    about: "merging of received packets goes off and on: under traffic at the card, with its path held at a veth, \
            which loses its NAPI instances",
    weight: 4,
    worker: Worker::Around,
    can_run: always,
    act: gro,
    undo: nothing,
};
pub const THREADED: Action = Action {
    name: "threaded",
    about: "mainline's threaded NAPI goes on and off under traffic",
    weight: 4,
    worker: Worker::Around,
    can_run: |world| has(world, "threaded"),
    act: threaded,
    undo: nothing,
};
pub const NAPI_TIMERS: Action = Action {
    name: "napi-timers",
    about: "gro_flush_timeout and napi_defer_hard_irqs get values and their old ones again, under traffic",
    weight: 4,
    worker: Worker::Around,
    can_run: |world| has(world, "gro_flush_timeout"),
    act: timers,
    undo: nothing,
};
pub const RPS: Action = Action {
    name: "rps",
    about: "received packets are steered to another CPU and back to a poller's, under traffic",
    weight: 6,
    worker: Worker::Around,
    can_run: rps_can_run,
    act: rps,
    undo: rps_undo,
};

fn pause(rng: &mut SplitMix64) {
    sleep(Duration::from_millis(rng.in_range(20, 400)));
}

fn has(world: &World, setting: &str) -> std::result::Result<(), String> {
    match world.host.exists(&format!("sys/class/net/eth0/{setting}")) {
        true => Ok(()),
        false => Err(format!("this kernel has no {setting}")),
    }
}

fn random_here(rng: &mut SplitMix64) -> (usize, &'static str) {
    let choice = interfaces(End::Here);
    one_of(rng, &choice).copied().unwrap_or(choice[0])
}

fn xdp_generic(_: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let (_, name) = random_here(rng);
    xdp(name, Hook::Generic, rng)
}

fn xdp_native(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let choice = [
        ("veth", "tv0"),
        ("veth-napi", "tn0"),
        ("rps", "tr0"),
        ("nic", "eth0"),
    ];
    let (kind, name) = one_of(rng, &choice).copied().unwrap_or(choice[0]);
    let number = path(kind);
    let _hold = world.traffic.hold(&[number]);
    let outcome = xdp(name, Hook::Native, rng)?;
    if kind == "nic" && outcome == Outcome::Done {
        world.wiring.repair(number)?;
    }
    Ok(outcome)
}

fn xdp(name: &str, hook: Hook, rng: &mut SplitMix64) -> Result<Outcome> {
    match attach_pass(name, hook) {
        Ok(program) => {
            pause(rng);
            drop(program);
            Ok(Outcome::Done)
        }
        Err(error @ Error::Invalid(_)) => Ok(refused(&error)),
        // What a driver has against XDP it says with one of these.
        Err(error) if is_refusal(&error, &["not supported", "Invalid argument"]) => {
            Ok(refused(&error))
        }
        Err(error) => Err(error),
    }
}

fn gro(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let choice = [("nic", "eth0"), ("veth-napi", "tn0"), ("veth-napi", "tn1")];
    let (kind, name) = one_of(rng, &choice).copied().unwrap_or(choice[0]);
    let _hold = (kind != "nic").then(|| world.traffic.hold(&[path(kind)]));
    let place = Place {
        netns: (name == "tn1").then(|| FAR.to_owned()),
        ..Place::default()
    };
    let core = |e| Error::Core(kbp_core::Error::Host(e));
    let wait_ms = rng.in_range(5, 250);
    run_at(&place, || {
        let before = offload(name, Offload::Receive).map_err(core)?;
        set_offload(name, Offload::Receive, !before).map_err(core)?;
        sleep(Duration::from_millis(wait_ms));
        set_offload(name, Offload::Receive, before).map_err(core)
    })?;
    Ok(Outcome::Done)
}

/// Sets a file and puts its old value back; a kernel that takes the value has to take the old one too.
fn for_a_while(world: &World, files: &[(String, String)], rng: &mut SplitMix64) -> Result<Outcome> {
    let core = kbp_core::Error::from;
    let mut outcome = Outcome::Done;
    let mut before = Vec::new();
    for (file, value) in files {
        let old = world.host.read_trimmed(file).map_err(core)?;
        match world.host.write(file, value) {
            Ok(()) => before.push((file, old)),
            Err(error) => outcome = refused(&error),
        }
    }
    pause(rng);
    for (file, old) in before {
        world.host.write(file, &old).map_err(core)?;
    }
    Ok(outcome)
}

fn threaded(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let name = one_of(rng, &["eth0", "tn0"]).copied().unwrap_or("eth0");
    let file = format!("sys/class/net/{name}/threaded");
    for_a_while(world, &[(file, "1".into())], rng)
}

fn timers(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let name = one_of(rng, &["eth0", "tn0"]).copied().unwrap_or("eth0");
    let base = format!("sys/class/net/{name}");
    let files = [
        (
            format!("{base}/napi_defer_hard_irqs"),
            rng.in_range(1, 50).to_string(),
        ),
        (
            format!("{base}/gro_flush_timeout"),
            rng.in_range(1_000, 2_000_000).to_string(),
        ),
    ];
    for_a_while(world, &files, rng)
}

fn rps_file(name: &str, queue: u64) -> String {
    format!("sys/class/net/{name}/queues/rx-{queue}/rps_cpus")
}

fn rps_can_run(world: &World) -> std::result::Result<(), String> {
    rps_is_sound(&world.host)
}

/// A stock PREEMPT_RT kernel of 6.1 warns when RPS interrupts a CPU that idles, with or without us.
pub fn rps_is_sound(host: &Host) -> std::result::Result<(), String> {
    let release = host.kernel_release().map_err(|e| e.to_string())?;
    match release.starts_with("6.1.") && release.contains("-rt-") {
        true => Err("a stock 6.1-rt warns about RPS itself".into()),
        false => Ok(()),
    }
}

/// Every queue gets a mask of one or two CPUs.
fn rps(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let core = kbp_core::Error::from;
    let mut targets = world.cpus.clone();
    targets.push(0);
    for queue in 0..u64::from(VETH_QUEUES) {
        let mut mask = 0u64;
        for _ in 0..rng.in_range(1, 2) {
            mask |= 1 << one_of(rng, &targets).copied().unwrap_or(0);
        }
        let file = rps_file("tr0", queue);
        if world.host.exists(&file) {
            world
                .host
                .write(&file, &format!("{mask:x}"))
                .map_err(core)?;
        }
    }
    pause(rng);
    Ok(Outcome::Done)
}

fn rps_undo(world: &World) -> Result<()> {
    for queue in 0..u64::from(VETH_QUEUES) {
        let file = rps_file("tr0", queue);
        if let Some(old) = world.baseline.get(&file) {
            world
                .host
                .write(&file, old)
                .map_err(kbp_core::Error::from)?;
        }
    }
    Ok(())
}
