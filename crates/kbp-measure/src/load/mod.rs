// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loads a row is measured under, as a table of data: [`LOADS`].
//!
//! Each says whether it can run here and why not, counts what it does, so that nobody has to believe that it ran, and
//! leaves nothing behind: what it changes on the machine is remembered first ([`claim`]) and undone when it ends, or by
//! the next one of its kind after a crash.
//! Not here: the test modules (`lab/modules`), and which rows are measured under which load ([`crate::compare`]).

mod claim;
pub mod hogs;
mod idle;
pub mod memory;
mod module;
pub mod softirq;
pub mod storm;
pub mod stream;
mod worker;

use std::fmt::Debug;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

pub use self::memory::MemoryConfig;
pub use self::softirq::{SoftirqConfig, Vector};
pub use self::storm::StormConfig;
pub use self::stream::{StreamConfig, StreamEnd};

/// A load by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Load {
    /// Nothing else runs.
    Idle,
    /// CPU hogs.
    Hogs,
    /// A competing network device, and hogs.
    Storm,
    /// Bulk streams over another pair of network cards.
    Stream,
    /// Work in other softirq vectors.
    Softirq,
    /// Readers of memory statistics, and pressure on page allocator and page cache.
    Memory,
}

/// What all loads are made of. A load reads its own part only.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// A hog for each entry, for `hogs` and `storm`; a CPU named twice gets two.
    pub hog_cpus: Vec<u32>,
    /// The competing device.
    pub storm: StormConfig,
    /// The streams; `None` where there is no second pair of interfaces.
    pub stream: Option<StreamConfig>,
    /// The competing softirqs.
    pub softirq: SoftirqConfig,
    /// The readers of memory statistics.
    pub memory: MemoryConfig,
}

impl LoadConfig {
    /// The usual loads against one CPU: that CPU's softirqs, hogs and readers, and no streams. `modules` is the
    /// directory of storm.ko and softirq.ko.
    pub fn against(cpu: u32, modules: &Path, seed: u32) -> Self {
        Self {
            hog_cpus: vec![cpu],
            storm: StormConfig::new(modules.join("storm.ko"), cpu, seed),
            stream: None,
            softirq: SoftirqConfig::new(modules.join("softirq.ko"), cpu),
            memory: MemoryConfig::new(cpu),
        }
    }
}

/// A line of the table of loads.
#[derive(Debug)]
pub struct Entry {
    /// Which load this is.
    pub load: Load,
    /// Its name in results.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    check: fn(&LoadConfig) -> std::result::Result<(), String>,
    words: fn(&LoadConfig) -> String,
    start: fn(&LoadConfig) -> Result<Box<dyn Work>>,
}

/// All loads.
pub const LOADS: &[Entry] = &[
    idle::ENTRY,
    hogs::ENTRY,
    storm::ENTRY,
    stream::ENTRY,
    softirq::ENTRY,
    memory::ENTRY,
];

impl Load {
    /// Its line of the table.
    pub fn entry(self) -> &'static Entry {
        // The table has a line for each; a test holds it to that.
        LOADS
            .iter()
            .find(|entry| entry.load == self)
            .unwrap_or(&idle::ENTRY)
    }

    /// Its name in results.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// The load of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let entry = LOADS.iter().find(|entry| entry.name == name)?;
        Some(entry.load)
    }

    /// Whether it can run here.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn can_run(self, config: &LoadConfig) -> std::result::Result<(), String> {
        (self.entry().check)(config)
    }

    /// What it is made of, in words, for the result.
    pub fn words(self, config: &LoadConfig) -> String {
        (self.entry().words)(config)
    }
}

/// Something that a load counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Count {
    /// What is counted, with its unit if it is not a number of things.
    pub name: &'static str,
    /// The total since the load began.
    pub total: u64,
    /// Whether it stands for the load itself, so that without it the load did not run.
    pub is_proof: bool,
}

impl Count {
    /// A count without which the load did not run.
    fn proof(name: &'static str, total: u64) -> Self {
        Self {
            name,
            total,
            is_proof: true,
        }
    }

    /// A count that may stand still.
    fn note(name: &'static str, total: u64) -> Self {
        Self {
            name,
            total,
            is_proof: false,
        }
    }
}

/// What a load has done at a moment. Two of them prove that it ran between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The totals.
    pub counts: Vec<Count>,
}

impl Progress {
    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().map(|count| {
            let then = earlier.counts.iter().find(|then| then.name == count.name);
            Count {
                total: count
                    .total
                    .saturating_sub(then.map_or(0, |then| then.total)),
                ..*count
            }
        });
        Self {
            counts: counts.collect(),
        }
    }

    /// Whether the load ran since `earlier`: every count that stands for it went on. Idle always did.
    pub fn moved_since(&self, earlier: &Self) -> bool {
        self.stood_still(earlier).is_empty()
    }

    /// The counts that stand for the load and did not go on since `earlier`.
    pub fn stood_still(&self, earlier: &Self) -> Vec<&'static str> {
        let since = self.since(earlier);
        let still = since.counts.iter().filter(|c| c.is_proof && c.total == 0);
        still.map(|count| count.name).collect()
    }
}

/// A load at work. Dropping it ends it and undoes what it changed.
trait Work: Debug + Send {
    /// What it did until now.
    fn counts(&self) -> Result<Vec<Count>>;
    /// Ends it, undoes what it changed, and tells what went wrong meanwhile.
    fn stop(self: Box<Self>) -> Result<()>;
}

/// A load that runs. Dropping it ends it too; [`Running::stop`] also reports failures.
#[derive(Debug)]
pub struct Running {
    load: Load,
    work: Box<dyn Work>,
}

impl Running {
    /// Starts a load; it runs when this returns.
    ///
    /// # Errors
    /// When it can't run here, or what it needs can't be made; nothing is left then.
    pub fn start(load: Load, config: &LoadConfig) -> Result<Self> {
        load.can_run(config).map_err(|why| failed(load, why))?;
        let work = (load.entry().start)(config)?;
        Ok(Self { load, work })
    }

    /// Which load runs.
    pub fn load(&self) -> Load {
        self.load
    }

    /// What it did until now.
    ///
    /// # Errors
    /// When a test module does not show its totals.
    pub fn progress(&self) -> Result<Progress> {
        let counts = self.work.counts()?;
        Ok(Progress { counts })
    }

    /// Refuses a load that did not run since `before`.
    ///
    /// # Errors
    /// Which count stood still, or that it can't be read.
    pub fn require_moved_since(&self, before: &Progress) -> Result<Progress> {
        let now = self.progress()?;
        let still = now.stood_still(before);
        if still.is_empty() {
            return Ok(now.since(before));
        }
        let why = format!(
            "it did not run, these totals stood still: {}",
            still.join(", ")
        );
        Err(failed(self.load, why))
    }

    /// Ends the load.
    ///
    /// # Errors
    /// When a part of it had failed, or something can't be undone.
    pub fn stop(self) -> Result<()> {
        self.work.stop()
    }
}

fn failed(load: Load, why: impl Into<String>) -> Error {
    Error::Load {
        load: load.name().into(),
        why: why.into(),
    }
}

/// The sentence for a CPU that is not online.
fn check_cpu(cpu: u32) -> std::result::Result<(), String> {
    kbp_core::Host::system()
        .require_online(cpu)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LoadConfig {
        LoadConfig::against(0, Path::new("/nonexistent"), 9)
    }

    #[test]
    fn names_are_unique_and_lead_back() {
        use Load::*;
        for load in [Idle, Hogs, Storm, Stream, Softirq, Memory] {
            assert_eq!(load.entry().load, load);
            assert_eq!(Load::from_name(load.name()), Some(load));
            assert!(!load.words(&config()).is_empty());
        }
        assert_eq!(LOADS.len(), 6);
        assert_eq!(Load::from_name("tornado"), None);
    }

    #[test]
    fn what_can_not_run_says_why_and_idle_always_runs() {
        for (load, missing) in [
            (Load::Storm, "/nonexistent/storm.ko"),
            (Load::Softirq, "/nonexistent/softirq.ko"),
            (Load::Stream, "second pair"),
        ] {
            let error = Running::start(load, &config()).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
            assert!(error.contains(load.name()), "{error}");
        }
        let idle = Running::start(Load::Idle, &config()).unwrap();
        let before = idle.progress().unwrap();
        assert!(idle.progress().unwrap().moved_since(&before));
        idle.stop().unwrap();
    }

    #[test]
    fn every_proof_has_to_move_and_nothing_else() {
        let of = |bytes, skipped| Progress {
            counts: vec![
                Count::proof("bytes", bytes),
                Count::note("skipped", skipped),
            ],
        };
        assert!(of(2, 5).moved_since(&of(1, 5)));
        assert_eq!(of(2, 9).stood_still(&of(2, 5)), ["bytes"]);
        assert_eq!(of(7, 9).since(&of(2, 5)), of(5, 4));
    }
}
