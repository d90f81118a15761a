// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run of the torture leaves: counts of each kind of action, of packets on each path, of drops by place.
//!
//! Not here: the text that is made of it ([`crate::report`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kbp_measure::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::drops::Drops;
use crate::traffic::FlowCount;
use crate::wiring::PATHS;

/// Form of the file.
pub const SCHEMA: &str = "kbp.torture/1";

/// Everything about one run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TortureResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// From which all random numbers follow.
    pub seed: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Checkers that the kernel has.
    pub checkers: Vec<String>,
    /// Version of the module, as it says itself.
    pub module_version: String,
    /// CPUs that had pollers.
    pub cpus: Vec<u32>,
    /// When the run began, seconds since 1970.
    pub unix_time: u64,
    /// How long it took, seconds.
    pub run_seconds: f64,
    /// Phases that ended clean.
    pub phases_clean: u32,
    /// Actions by kind.
    pub actions: BTreeMap<String, ActionCount>,
    /// Packets by path.
    pub paths: BTreeMap<String, PathCount>,
    /// Drops that the stack counted, by place.
    pub drops: Drops,
    /// Lines of the kernel's log that are complaints.
    pub complaints: Vec<String>,
    /// Why the run failed; empty when it did not.
    pub failures: Vec<String>,
}

/// How often a kind of action was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionCount {
    /// Times that it was done.
    pub done: u64,
    /// The longest that one took, milliseconds.
    #[serde(default)]
    pub longest_ms: u64,
    /// Times that it was refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Why it is not possible on this machine, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_possible: Option<String>,
}

/// Packets of one path, both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCount {
    /// Packets that the stack took.
    pub sent: u64,
    /// Packets that arrived.
    pub received: u64,
    /// Packets that did not.
    pub lost: u64,
    /// Further copies.
    pub duplicated: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
    /// Packets that the stack did not take from the sender.
    pub not_taken: u64,
}

impl ActionCount {
    /// The sum of all refusals.
    pub fn refused_total(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Adds what another thread, phase or run did.
    pub fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        for (reason, count) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += count;
        }
        if self.not_possible.is_none() {
            self.not_possible.clone_from(&other.not_possible);
        }
    }
}

impl PathCount {
    /// Adds another phase or run.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.not_taken += other.not_taken;
    }
}

impl TortureResult {
    /// Books the packets of a phase.
    pub fn add_traffic(&mut self, counts: &[FlowCount], drops: &Drops) {
        for count in counts {
            let path = self.paths.entry(PATHS[count.path].name.into()).or_default();
            path.add(&PathCount {
                sent: count.sent,
                received: count.account.received,
                lost: count.lost(),
                duplicated: count.account.duplicated,
                reordered: count.account.reordered,
                not_taken: count.not_taken,
            });
        }
        for (place, count) in drops {
            *self.drops.entry(place.clone()).or_default() += count;
        }
    }

    /// Books the actions of a phase.
    pub fn add_actions(&mut self, counts: &BTreeMap<String, ActionCount>) {
        for (name, count) in counts {
            self.actions.entry(name.clone()).or_default().add(count);
        }
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Invalid(format!("the result can't be written as JSON: {e}")))?;
        let partial = path.with_extension("partial");
        fs::write(&partial, text + "\n").map_err(|e| Error::file("write", &partial, e))?;
        fs::rename(&partial, path).map_err(|e| Error::file("replace", path, e))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is none of ours.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|e| Error::file("read", path, e))?;
        let schema = |why: String| Error::Schema {
            path: path.into(),
            why,
        };
        let result: Self = serde_json::from_str(&text).map_err(|e| schema(e.to_string()))?;
        match result.schema == SCHEMA {
            true => Ok(result),
            false => Err(schema(format!("its form is '{}'", result.schema))),
        }
    }
}
