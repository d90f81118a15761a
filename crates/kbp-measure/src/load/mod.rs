// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loads a row is measured under: nothing, or the storm.
//!
//! The storm is a test module with a NAPI instance of its own on the poller's CPU, which
//! gets bursts of synthetic packets, and ordinary CPU hogs. It stands for the second
//! network card that everything else of a machine goes through.
//! Not here: the module itself (`lab/modules/storm`).

pub mod hogs;

use std::ffi::CString;
use std::fs::File;
use std::path::{Path, PathBuf};

use kbp_core::Host;
use nix::kmod::{delete_module, finit_module, DeleteModuleFlags, ModuleInitFlags};

use self::hogs::Hogs;
use crate::error::{Error, Result};

/// Name of the storm module.
const STORM: &str = "storm";

/// A load by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Nothing else runs.
    Idle,
    /// The storm.
    Storm,
}

impl Load {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Storm => STORM,
        }
    }
}

/// What a storm is made of.
#[derive(Debug, Clone)]
pub struct StormConfig {
    /// The module's file.
    pub module: PathBuf,
    /// CPU of its NAPI instance.
    pub cpu: u32,
    /// Packets of a burst.
    pub burst_packets: u32,
    /// Work of a packet, nanoseconds.
    pub packet_ns: u32,
    /// Mean distance of two bursts, milliseconds.
    pub period_ms: u32,
    /// Seed of the distances.
    pub seed: u32,
    /// A hog for each entry.
    pub hog_cpus: Vec<u32>,
}

impl StormConfig {
    /// In words, for the result.
    pub fn words(&self) -> String {
        let poll_us = f64::from(self.packet_ns) * 64.0 / 1e3;
        format!(
            "A second NAPI instance on CPU {}: bursts of {} packets with {:.1} µs of work each, every {} ms \
             on average, handed out by budget, so that a full poll of 64 packets lasts {poll_us:.0} µs; \
             and SCHED_OTHER hogs: {}.",
            self.cpu,
            self.burst_packets,
            f64::from(self.packet_ns) / 1e3,
            self.period_ms,
            self.hog_words()
        )
    }

    fn hog_words(&self) -> String {
        let mut cpus = self.hog_cpus.clone();
        cpus.sort_unstable();
        let words = cpus
            .chunk_by(|a, b| a == b)
            .map(|same| format!("{} on CPU {}", same.len(), same[0]));
        words.collect::<Vec<_>>().join(", ")
    }

    fn parameters(&self) -> String {
        format!(
            "cpu={} burst={} pkt_ns={} period_ms={} seed={}",
            self.cpu, self.burst_packets, self.packet_ns, self.period_ms, self.seed
        )
    }
}

/// The totals of the storm module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StormTotals {
    /// Bursts begun.
    pub bursts: u64,
    /// Packets worked off.
    pub packets: u64,
    /// Polls that worked off any.
    pub polls: u64,
}

/// A load that runs. Dropping it ends it too; [`Running::stop`] also reports failures.
#[derive(Debug)]
pub struct Running {
    storm: Option<StormModule>,
    hogs: Option<Hogs>,
}

impl Running {
    /// Starts a load; it runs when this returns.
    ///
    /// # Errors
    /// When the module can't be loaded or a hog can't be placed; nothing is left then.
    pub fn start(load: Load, config: &StormConfig) -> Result<Self> {
        if load == Load::Idle {
            return Ok(Self {
                storm: None,
                hogs: None,
            });
        }
        let storm = StormModule::insert(config)?;
        let hogs = Hogs::start(&config.hog_cpus)?;
        Ok(Self {
            storm: Some(storm),
            hogs: Some(hogs),
        })
    }

    /// The storm's totals until now; `None` without a storm.
    ///
    /// # Errors
    /// When the module does not show them.
    pub fn totals(&self) -> Result<Option<StormTotals>> {
        self.storm
            .as_ref()
            .map(|_| read_totals(&Host::system()))
            .transpose()
    }

    /// Ends the load: hogs first, so that nothing holds up the module's end.
    ///
    /// # Errors
    /// When the module can't be unloaded.
    pub fn stop(mut self) -> Result<()> {
        if let Some(hogs) = self.hogs.take() {
            hogs.stop()?;
        }
        self.storm.take().map_or(Ok(()), StormModule::remove)
    }
}

fn read_totals(host: &Host) -> Result<StormTotals> {
    let read = |name: &str| {
        host.read_number(&format!("sys/module/{STORM}/parameters/{name}"))
            .map_err(kbp_core::Error::from)
    };
    Ok(StormTotals {
        bursts: read("bursts")?,
        packets: read("packets")?,
        polls: read("polls")?,
    })
}

/// The loaded module.
#[derive(Debug)]
struct StormModule {
    loaded: bool,
}

impl StormModule {
    fn insert(config: &StormConfig) -> Result<Self> {
        let path: &Path = &config.module;
        let file = File::open(path).map_err(|e| Error::file("open", path, e))?;
        let parameters = CString::new(config.parameters())
            .map_err(|_| Error::Invalid("a module parameter holds a zero byte".into()))?;
        finit_module(&file, &parameters, ModuleInitFlags::empty())
            .map_err(|errno| Error::file("load the module", path, errno.into()))?;
        Ok(Self { loaded: true })
    }

    fn remove(mut self) -> Result<()> {
        self.loaded = false;
        delete_module(c"storm", DeleteModuleFlags::O_NONBLOCK)
            .map_err(|errno| Error::sys("unload the module storm", errno))
    }
}

impl Drop for StormModule {
    fn drop(&mut self) {
        if self.loaded {
            // On this path another error is on its way already, and that one is reported.
            let _ = delete_module(c"storm", DeleteModuleFlags::O_NONBLOCK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> StormConfig {
        StormConfig {
            module: "/nonexistent/storm.ko".into(),
            cpu: 2,
            burst_packets: 3_200,
            packet_ns: 3_100,
            period_ms: 20,
            seed: 9,
            hog_cpus: vec![2, 2, 3, 3],
        }
    }

    #[test]
    fn words_and_parameters_are_those_of_the_issue() {
        let config = config();
        assert_eq!(
            config.parameters(),
            "cpu=2 burst=3200 pkt_ns=3100 period_ms=20 seed=9"
        );
        assert!(
            config.words().contains("3.1 µs of work"),
            "{}",
            config.words()
        );
        assert!(
            config.words().contains("lasts 198 µs"),
            "{}",
            config.words()
        );
    }

    #[test]
    fn a_missing_module_is_named_and_idle_needs_none() {
        let error = Running::start(Load::Storm, &config())
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nonexistent/storm.ko"), "{error}");
        let idle = Running::start(Load::Idle, &config()).unwrap();
        assert_eq!(idle.totals().unwrap(), None);
        idle.stop().unwrap();
    }
}
