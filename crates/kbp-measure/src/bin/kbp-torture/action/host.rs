// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Actions on CPUs and on the kernel's text: hogs, offline and online, another live patch. Traffic is never held for
//! them, and nothing may be lost.

use std::ffi::CString;
use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kbp_core::sched::{set_affinity, set_scheduling, Scheduling};
use kbp_core::{CpuList, Host};
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};
use nix::errno::Errno;
use nix::kmod::{delete_module, finit_module, DeleteModuleFlags, ModuleInitFlags};

use super::ours::TRANSITION_LIMIT;
use super::{always, nothing, one_of, refused, Action, Outcome, Worker, World};
use crate::state::irq_affinities;

pub const CPU_OFFLINE: Action = Action {
    name: "cpu-offline",
    about: "a poller's CPU goes offline and comes back",
    weight: 4,
    worker: Worker::Around,
    can_run: |world| match world.host.exists(&online(world.cpus[0])) {
        true => Ok(()),
        false => Err("this kernel can't take CPUs offline".into()),
    },
    act: cpu_offline,
    undo: restore_irqs,
};
pub const HOG: Action = Action {
    name: "hog",
    about: "a FIFO thread of priority 90 takes a poller's CPU for 50 to 600 ms, so that the watchdog hands back",
    weight: 6,
    worker: Worker::Around,
    can_run: always,
    act: hog,
    undo: nothing,
};
pub const OTHER_PATCH: Action = Action {
    name: "other-patch",
    about: "another live patch, of the kernel sample's shape, is enabled and disabled",
    weight: 3,
    worker: Worker::Around,
    can_run: |world| match world.otherpatch.is_file() {
        true => Ok(()),
        false => Err(format!("there is no {}", world.otherpatch.display())),
    },
    act: other_patch,
    undo: nothing,
};

/// Name of the other live patch and of its module.
const OTHER: &str = "otherpatch";
/// What /proc/cmdline begins with while it is enabled.
const OTHER_TEXT: &str = "otherpatch: ";
/// A transition that takes longer is told, with what blocks it.
const SLOW: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn online(cpu: u32) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/online")
}

fn cpu_offline(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let cpu = one_of(rng, &world.cpus).copied().unwrap_or(0);
    if let Err(error) = world.host.write(&online(cpu), "0") {
        return Ok(refused(&error));
    }
    sleep(Duration::from_millis(rng.in_range(10, 800)));
    world
        .host
        .write(&online(cpu), "1")
        .map_err(kbp_core::Error::from)?;
    Ok(Outcome::Done)
}

/// The kernel moves the interrupts of a CPU that goes, for good, and tells nobody. So in a phase with this action, and
/// only there, they are put back from here.
fn restore_irqs(world: &World) -> Result<()> {
    for (file, now) in irq_affinities(&world.host)? {
        let Some(before) = world.baseline.get(&file).filter(|before| **before != now) else {
            continue;
        };
        world
            .host
            .write(&file, before)
            .map_err(kbp_core::Error::from)?;
    }
    Ok(())
}

fn hog(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let cpu = one_of(rng, &world.cpus).copied().unwrap_or(0);
    let spin = Duration::from_millis(rng.in_range(50, 600));
    let thread = std::thread::Builder::new()
        .name("torture-hog".into())
        .spawn(move || -> Result<()> {
            let core = |e| Error::Core(kbp_core::Error::Host(e));
            // The priority first: on a CPU that a poller has, an ordinary thread might not get to raise its own.
            set_scheduling(0, Scheduling::fifo(90)).map_err(core)?;
            set_affinity(0, &CpuList::one(cpu)).map_err(core)?;
            let since = Instant::now();
            while since.elapsed() < spin {
                std::hint::spin_loop();
            }
            Ok(())
        })
        .map_err(|e| Error::sys("start a hog", e))?;
    thread.join().map_err(|_| Error::Panicked("hog"))??;
    Ok(Outcome::Done)
}

fn other_patch(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    match insert(&world.otherpatch) {
        Ok(()) => {}
        // Ours is in its transition just now.
        Err(Errno::EBUSY) => {
            return Ok(Outcome::Refused(
                "another live patch is in transition".into(),
            ))
        }
        Err(errno) => return Err(Error::file("load", &world.otherpatch, errno.into())),
    }
    wait_until(&world.host, true)?;
    let text = world
        .host
        .read("proc/cmdline")
        .map_err(kbp_core::Error::from)?;
    if !text.starts_with(OTHER_TEXT) {
        return Err(Error::Invalid(format!(
            "the other live patch is enabled, and /proc/cmdline is still '{}'",
            text.trim()
        )));
    }
    sleep(Duration::from_millis(rng.in_range(0, 500)));
    disable(&world.host)?;
    wait_until(&world.host, false)?;
    remove()?;
    Ok(Outcome::Done)
}

fn insert(path: &Path) -> std::result::Result<(), Errno> {
    let file = File::open(path).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
    finit_module(&file, c"", ModuleInitFlags::empty())
}

/// Refused while ours is in its transition, so it is asked until it is taken.
fn disable(host: &Host) -> Result<()> {
    let since = Instant::now();
    loop {
        match host.write(&format!("sys/kernel/livepatch/{OTHER}/enabled"), "0") {
            Ok(()) => return Ok(()),
            Err(error) if since.elapsed() > TRANSITION_LIMIT => {
                return Err(kbp_core::Error::from(error).into())
            }
            Err(_) => sleep(LOOK_EVERY),
        }
    }
}

fn wait_until(host: &Host, enabled: bool) -> Result<()> {
    let since = Instant::now();
    let mut told = false;
    loop {
        let patch = host.livepatch(OTHER).map_err(kbp_core::Error::from)?;
        let is_over = match &patch {
            Some(patch) => !patch.transition && patch.enabled == enabled,
            None => !enabled,
        };
        if is_over {
            return Ok(());
        }
        if !told && since.elapsed() > SLOW {
            told = true;
            println!(
                "note: the transition of the other live patch is slow: {}",
                blocking(host, enabled)?
            );
        }
        if since.elapsed() > TRANSITION_LIMIT {
            return Err(Error::Invalid(format!(
                "the transition of the other live patch takes more than {} s: {}",
                TRANSITION_LIMIT.as_secs(),
                blocking(host, enabled)?
            )));
        }
        sleep(LOOK_EVERY);
    }
}

/// The tasks that have not gone over, with what they do.
fn blocking(host: &Host, enabled: bool) -> Result<String> {
    let tasks = host
        .blocking_tasks(enabled)
        .map_err(kbp_core::Error::from)?;
    if tasks.is_empty() {
        return Ok("no task of /proc blocks it, so a CPU that idles does".into());
    }
    let names: Vec<String> = tasks.iter().map(ToString::to_string).collect();
    Ok(format!("blocked by {}", names.join(", ")))
}

/// The kernel lets go of the module a little after the end of the transition.
fn remove() -> Result<()> {
    let name = CString::new(OTHER).map_err(|_| Error::Invalid("a damaged name".into()))?;
    let since = Instant::now();
    loop {
        match delete_module(&name, DeleteModuleFlags::O_NONBLOCK) {
            Ok(()) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EBUSY) if since.elapsed() < TRANSITION_LIMIT => {
                sleep(LOOK_EVERY);
            }
            Err(errno) => return Err(Error::sys(format!("unload {OTHER}"), errno)),
        }
    }
}
