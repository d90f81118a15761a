// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Competing softirqs: a test module that works in another softirq vector of the poller's CPU, so often and so long.
//! This is the competition of paper 000, section 3.2.5, which names timers and a disk driver.
//!
//! Not here: the module itself (`lab/modules/softirq`).

use std::path::PathBuf;

use super::module::{self, TestModule};
use super::{check_cpu, Count, Entry, Load, LoadConfig, Work};
use crate::error::Result;

pub(super) const ENTRY: Entry = Entry {
    load: Load::Softirq,
    name: "softirq",
    about: "work in another softirq vector of the poller's CPU (module softirq)",
    check,
    words: |config| config.softirq.words(),
    start: |config| Ok(Box::new(Softirq::start(&config.softirq)?)),
};

/// Highest share of the CPU that the module accepts, nanoseconds of a second.
const NS_PER_S_MAX: u64 = 800_000_000;
/// Highest rate that the module accepts.
const RATE_HZ_MAX: u32 = 100_000;

/// A softirq vector in which a module may work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Vector {
    /// `HI`: before all others.
    Hi,
    /// `TIMER`: at most once a tick of the kernel.
    Timer,
    /// `TASKLET`, where disk drivers and many network drivers work.
    Tasklet,
    /// `HRTIMER`.
    Hrtimer,
}

impl Vector {
    /// Its name as a parameter of the module.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hi => "hi",
            Self::Timer => "timer",
            Self::Tasklet => "tasklet",
            Self::Hrtimer => "hrtimer",
        }
    }

    /// Its name in /proc/softirqs.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Hi => "HI",
            Self::Timer => "TIMER",
            Self::Tasklet => "TASKLET",
            Self::Hrtimer => "HRTIMER",
        }
    }
}

/// What the competing softirqs are.
#[derive(Debug, Clone)]
pub struct SoftirqConfig {
    /// The module's file.
    pub module: PathBuf,
    /// CPU of the work.
    pub cpu: u32,
    /// Where it is done.
    pub vector: Vector,
    /// How often a second.
    pub rate_hz: u32,
    /// How long, nanoseconds.
    pub length_ns: u32,
}

impl SoftirqConfig {
    /// A tasklet of 400 µs, 500 times a second: a fifth of the CPU.
    pub fn new(module: PathBuf, cpu: u32) -> Self {
        Self {
            module,
            cpu,
            vector: Vector::Tasklet,
            rate_hz: 500,
            length_ns: 400_000,
        }
    }

    fn words(&self) -> String {
        format!(
            "Work of {:.0} µs in softirq vector {} of CPU {}, {} times a second.",
            f64::from(self.length_ns) / 1e3,
            self.vector.kind(),
            self.cpu,
            self.rate_hz
        )
    }

    fn parameters(&self) -> String {
        format!(
            "cpu={} vector={} rate_hz={} length_ns={}",
            self.cpu,
            self.vector.name(),
            self.rate_hz,
            self.length_ns
        )
    }
}

fn check(config: &LoadConfig) -> std::result::Result<(), String> {
    let softirq = &config.softirq;
    module::check("softirq", &softirq.module)?;
    check_cpu(softirq.cpu)?;
    let (rate_hz, length_ns) = (softirq.rate_hz, softirq.length_ns);
    if rate_hz == 0 || rate_hz > RATE_HZ_MAX || length_ns == 0 {
        return Err(format!(
            "{rate_hz} times a second for {length_ns} ns: the rate has to be 1 to {RATE_HZ_MAX}, the length not 0"
        ));
    }
    if u64::from(rate_hz) * u64::from(length_ns) > NS_PER_S_MAX {
        return Err(format!(
            "{rate_hz} times {length_ns} ns are more than 80 % of a CPU: choose a lower rate or length"
        ));
    }
    Ok(())
}

#[derive(Debug)]
struct Softirq {
    module: TestModule,
}

impl Softirq {
    fn start(config: &SoftirqConfig) -> Result<Self> {
        let module = TestModule::insert("softirq", &config.module, &config.parameters())?;
        Ok(Self { module })
    }
}

impl Work for Softirq {
    fn counts(&self) -> Result<Vec<Count>> {
        Ok(vec![
            Count::proof("raised", self.module.total("raised")?),
            Count::proof("ran", self.module.total("ran")?),
            Count::note("missed", self.module.total("missed")?),
        ])
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.module.remove()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_without_time_for_others_is_refused() {
        // Any file does: it is only looked at once the numbers are right.
        let mut config = LoadConfig::against(0, "/nonexistent".as_ref(), 1);
        config.softirq.module = "/proc/self/exe".into();
        check(&config).unwrap();
        config.softirq.length_ns = 1_600_000;
        check(&config).unwrap();
        config.softirq.length_ns += 1;
        assert!(check(&config).unwrap_err().contains("80 %"));
        config.softirq.rate_hz = 0;
        assert!(check(&config).unwrap_err().contains("1 to 100000"));
        assert_eq!(config.softirq.vector.kind(), "TASKLET");
    }
}
