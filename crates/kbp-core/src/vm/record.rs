// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is remembered of machines that were tuned: who asked for what, and how everything was before.
//!
//! Not here: the file that keeps it ([`crate::state`]), and who decides ([`super::apply`], [`super::undo`]).

use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::vm::model::{label, Placement, Role, Thread};
use crate::vm::request::TuneRequest;

/// A machine that was tuned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// Its process; another one with that number is not this machine.
    pub process: Process,
    /// Its name.
    pub name: Option<String>,
    /// What is asked for.
    pub requested: TuneRequest,
    /// Whether it was to have these CPUs though pollers were there.
    #[serde(default)]
    pub forced: bool,
    /// Its threads that were changed.
    pub threads: Vec<VmThreadRecord>,
}

impl VmRecord {
    /// What a person calls it.
    pub fn label(&self) -> String {
        label(self.name.as_deref(), self.process.pid)
    }

    /// What is remembered of a thread.
    pub fn thread(&self, thread: Thread) -> Option<&VmThreadRecord> {
        self.threads.iter().find(|one| one.thread == thread)
    }
}

/// A thread that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmThreadRecord {
    /// Which.
    #[serde(flatten)]
    pub thread: Thread,
    /// What it does.
    #[serde(flatten)]
    pub role: Role,
    /// How it was before all.
    pub original: Placement,
    /// How it was made to be.
    pub set: Placement,
    /// How we had made it before, until it is as `set` says: the process may die in between.
    #[serde(default)]
    pub before: Option<Placement>,
}

/// A governor that was replaced for the sake of machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmGovernorRecord {
    /// The governor that was there.
    pub original: String,
    /// The settings that were set by hand and that go with that governor: file below the CPU's `cpufreq`, and text.
    #[serde(default)]
    pub settings: Vec<(String, String)>,
    /// The governor that was written.
    pub set: String,
    /// What was written before that, until it is as `set` says: the process may die in between.
    #[serde(default)]
    pub before: Option<String>,
    /// The machines that want it.
    pub users: Vec<Process>,
    /// Whether its CPU was offline when it was to be put back. What the kernel chooses when that comes is nobody's choice.
    #[serde(default)]
    pub is_late: bool,
}
