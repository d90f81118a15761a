// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of actions. A new kind of action is one entry of it and one function.
//!
//! Two threads act at the same time: one on pollers, attachments and the module, one on everything around them. Each
//! has its own random numbers, so that what it does follows from the seed; what coincides with what does not.
//!
//! Not here: what is judged ([`crate::phase`]).

mod fault;
mod host;
mod link;
mod napi;
mod ours;

pub use self::napi::rps_is_sound;
pub use self::ours::{load, unload};

use std::path::PathBuf;

use kbp_core::{Class, Host};
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};

use crate::state::Snapshot;
use crate::traffic::Traffic;
use crate::wiring::Wiring;

/// Longest reason that is kept, characters.
const REASON_LEN_MAX: usize = 140;

/// What an action works with.
#[derive(Debug)]
pub struct World {
    /// The machine.
    pub host: Host,
    /// The paths.
    pub wiring: Wiring,
    /// What is sent on them.
    pub traffic: Traffic,
    /// CPUs that may get pollers, go offline, and be taken by hogs. Nothing else runs there.
    pub cpus: Vec<u32>,
    /// The kernel module.
    pub module: PathBuf,
    /// The other live patch.
    pub otherpatch: PathBuf,
    /// The settings before anything was done.
    pub baseline: Snapshot,
}

/// Which of the two threads does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// Pollers, attachments, the module.
    Ours,
    /// Everything else.
    Around,
}

/// What became of an action that broke nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was refused, by the kernel or by us, with this reason.
    Refused(String),
}

/// A kind of action.
#[derive(Debug)]
pub struct Action {
    /// Its name.
    pub name: &'static str,
    /// What it does, and how the traffic is kept or held.
    pub about: &'static str,
    /// How often it is taken, beside the others of its thread.
    pub weight: u64,
    /// Who does it.
    pub worker: Worker,
    /// Whether it is possible on this machine; else why not.
    pub can_run: fn(&World) -> std::result::Result<(), String>,
    /// Does it once. An error is a failure of the torture, not a refusal.
    pub act: fn(&World, &mut SplitMix64) -> Result<Outcome>,
    /// Takes back what a phase full of it has left.
    pub undo: fn(&World) -> Result<()>,
}

/// All kinds. The order is that in which they are undone.
pub const ACTIONS: &[&Action] = &[
    &ours::POLLER_ADD,
    &ours::POLLER_DEL,
    &ours::ATTACH,
    &ours::DETACH,
    &ours::MODE_FLIP,
    &ours::BACKLOG_ATTACH,
    &ours::BACKLOG_DETACH,
    &ours::BACKLOG_FLIP,
    &fault::FAULT,
    &ours::MODULE_CYCLE,
    &link::LINK_FLAP,
    &link::RENAME,
    &link::NETNS_MOVE,
    &link::QUEUES_VETH,
    &link::QUEUES_CARD,
    &napi::XDP_GENERIC,
    &napi::XDP_NATIVE,
    &napi::GRO,
    &napi::THREADED,
    &napi::NAPI_TIMERS,
    &napi::RPS,
    &host::OTHER_PATCH,
    &host::HOG,
    &host::CPU_OFFLINE,
];

/// The kind with this name.
pub fn by_name(name: &str) -> Option<&'static Action> {
    ACTIONS.iter().copied().find(|action| action.name == name)
}

/// For kinds that are possible everywhere.
fn always(_: &World) -> std::result::Result<(), String> {
    Ok(())
}

/// For kinds that leave nothing behind.
fn nothing(_: &World) -> Result<()> {
    Ok(())
}

/// A refusal is part of the game; an answer that does not come is not.
fn judge<T>(result: std::result::Result<T, kbp_core::Error>) -> Result<Outcome> {
    match result {
        Ok(_) => Ok(Outcome::Done),
        Err(error) if error.class() == Class::TimedOut => Err(error.into()),
        Err(error) => Ok(refused(&error)),
    }
}

fn refused(why: &impl std::fmt::Display) -> Outcome {
    Outcome::Refused(reason(&why.to_string()))
}

/// The sentence without its numbers, so that equal reasons are counted together.
fn reason(text: &str) -> String {
    let mut short = String::new();
    let mut in_number = false;
    for c in text.chars().take(REASON_LEN_MAX) {
        let is_digit = c.is_ascii_digit();
        if !(is_digit && in_number) {
            short.push(if is_digit { 'N' } else { c });
        }
        in_number = is_digit;
    }
    short
}

/// One of several, or `None` of none.
fn one_of<'a, T>(rng: &mut SplitMix64, choice: &'a [T]) -> Option<&'a T> {
    let last = choice.len().checked_sub(1)?;
    choice.get(rng.in_range(0, last as u64) as usize)
}

/// A program that says that the machine does not allow it is a refusal.
fn is_refusal(error: &Error, words: &[&str]) -> bool {
    let text = error.to_string();
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_kind_is_taken_sometimes() {
        for action in ACTIONS {
            let same = ACTIONS.iter().filter(|other| other.name == action.name);
            assert_eq!(same.count(), 1, "{}", action.name);
            assert!(action.weight > 0, "{}", action.name);
            assert_eq!(by_name(action.name).map(|a| a.about), Some(action.about));
        }
    }

    #[test]
    fn equal_reasons_are_told_the_same() {
        assert_eq!(reason("CPU 2 has 17 of 300"), reason("CPU 13 has 4 of 1"));
        assert_eq!(reason("no"), "no");
    }
}
