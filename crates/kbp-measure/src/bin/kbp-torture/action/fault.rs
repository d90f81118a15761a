// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An allocation fails within a request to the module: the request may be refused, and nothing may break.
//!
//! `/proc/thread-self/fail-nth` lets the n-th allocation of this thread fail, which every kernel has that injects
//! faults. Threads and work of the kernel that a request only starts are not hit by it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use kbp_core::client::ClientError;
use kbp_core::model::NapiRef;
use kbp_core::uapi::{Backlog, Mode};
use kbp_core::Client;
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};

use super::ours::{random_poller, undo_all};
use super::{one_of, Action, Outcome, Worker, World};

const FAIL_NTH: &str = "/proc/thread-self/fail-nth";
/// Most requests make about a dozen allocations.
const NTH_MAX: u64 = 16;
/// How the injection is set up: quietly, and for allocations that could wait too.
const SETTINGS: &[(&str, &str)] = &[
    ("failslab/verbose", "0"),
    ("failslab/ignore-gfp-wait", "N"),
    ("fail_page_alloc/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/min-order", "0"),
];

pub const FAULT: Action = Action {
    name: "fault",
    about: "an allocation fails within a random request to the module",
    weight: 12,
    worker: Worker::Ours,
    can_run,
    act,
    undo: undo_all,
};

fn can_run(world: &World) -> std::result::Result<(), String> {
    let there = |file: &str| world.host.exists(&format!("sys/kernel/debug/{file}"));
    if !(there("failslab/verbose") && fs::exists(FAIL_NTH).unwrap_or(false)) {
        return Err("this kernel injects no faults (CONFIG_FAILSLAB)".into());
    }
    for (file, value) in SETTINGS.iter().filter(|(file, _)| there(file)) {
        world
            .host
            .write(&format!("sys/kernel/debug/{file}"), value)
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn act(world: &World, rng: &mut SplitMix64) -> Result<Outcome> {
    let spec = random_poller(world, rng);
    let (what, nth) = (rng.in_range(0, 5), rng.in_range(1, NTH_MAX));
    let name = one_of(rng, &["eth0", "tn0"]).copied().unwrap_or("eth0");
    let napi = NapiRef::Queue {
        ifname: name.into(),
        queue: 0,
    };
    let to = one_of(rng, Backlog::ALL).copied().unwrap_or(Backlog::Owned);
    let mut client = match Client::connect() {
        Ok(client) => client,
        Err(ClientError::NotLoaded) => {
            return Ok(Outcome::Refused("the module is not loaded".into()))
        }
        Err(error) => return Err(kbp_core::Error::from(error).into()),
    };
    // Opened before, because opening it again allocates too.
    let file = File::options()
        .read(true)
        .write(true)
        .open(FAIL_NTH)
        .map_err(|e| Error::sys(format!("open {FAIL_NTH}"), e))?;
    set_nth(&file, nth)?;
    let answer = match what {
        0 => client.poller_new(&spec),
        1 => client.poller_del(spec.cpu),
        2 => client
            .napi_attach(&napi, spec.cpu, &Mode::Busy.into())
            .map(drop),
        3 => client.napi_detach(&napi),
        4 => client.poller_set_backlog(spec.cpu, to),
        _ => client.napis().map(drop),
    };
    let failed = is_used(&file);
    set_nth(&file, 0)?;
    let failed = failed?;
    match (answer, failed) {
        (Ok(()), true) => Ok(Outcome::Done),
        (Err(error), true) if is_lost(&error) => Err(kbp_core::Error::from(error).into()),
        (Err(_), true) => Ok(Outcome::Done),
        (_, false) => Ok(Outcome::Refused(
            "the request needed fewer allocations than the one that was to fail".into(),
        )),
    }
}

/// A request that gets no answer at all hangs its sender, whatever failed.
fn is_lost(error: &ClientError) -> bool {
    error.class() == kbp_core::Class::TimedOut
}

fn set_nth(file: &File, nth: u64) -> Result<()> {
    file.write_at(nth.to_string().as_bytes(), 0)
        .map(drop)
        .map_err(|e| Error::sys(format!("write {nth} to {FAIL_NTH}"), e))
}

/// The kernel counts the file down; 0 means that an allocation has failed.
fn is_used(file: &File) -> Result<bool> {
    let mut text = [0; 16];
    let len = file
        .read_at(&mut text, 0)
        .map_err(|e| Error::sys(format!("read {FAIL_NTH}"), e))?;
    Ok(text[..len].trim_ascii() == b"0")
}
