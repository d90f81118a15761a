// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storm: a test module with a NAPI instance of its own on the poller's CPU, which
//! gets bursts of synthetic packets, and ordinary CPU hogs. It stands for the second
//! network card that everything else of a machine goes through.
//!
//! Not here: the module itself (`lab/modules/storm`).

use std::path::PathBuf;

use super::hogs::{self, Hogs};
use super::module::{self, TestModule};
use super::{check_cpu, Count, Entry, Load, LoadConfig, Work};
use crate::error::Result;

pub(super) const ENTRY: Entry = Entry {
    load: Load::Storm,
    name: "storm",
    about: "a competing network device on the poller's CPU (module storm), and hogs",
    check: |config| {
        module::check("storm", &config.storm.module)?;
        check_cpu(config.storm.cpu)
    },
    words,
    start: |config| Ok(Box::new(Storm::start(config)?)),
};

/// What the competing device does.
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
}

impl StormConfig {
    /// The storm of the demo: bursts of 10 ms every 20 ms, in polls of 200 µs.
    pub fn new(module: PathBuf, cpu: u32, seed: u32) -> Self {
        Self {
            module,
            cpu,
            burst_packets: 3_200,
            packet_ns: 3_100,
            period_ms: 20,
            seed,
        }
    }

    fn parameters(&self) -> String {
        format!(
            "cpu={} burst={} pkt_ns={} period_ms={} seed={}",
            self.cpu, self.burst_packets, self.packet_ns, self.period_ms, self.seed
        )
    }
}

fn words(config: &LoadConfig) -> String {
    let storm = &config.storm;
    let poll_us = f64::from(storm.packet_ns) * 64.0 / 1e3;
    let hogs = match config.hog_cpus[..] {
        [] => "and no hogs".into(),
        _ => format!("and SCHED_OTHER hogs: {}", hogs::words(&config.hog_cpus)),
    };
    format!(
        "A second NAPI instance on CPU {}: bursts of {} packets with {:.1} µs of work each, every {} ms \
         on average, handed out by budget, so that a full poll of 64 packets lasts {poll_us:.0} µs; {hogs}.",
        storm.cpu,
        storm.burst_packets,
        f64::from(storm.packet_ns) / 1e3,
        storm.period_ms,
    )
}

/// The fields are dropped in this order: hogs first, so that nothing holds up the module's end.
#[derive(Debug)]
struct Storm {
    hogs: Hogs,
    module: TestModule,
}

impl Storm {
    fn start(config: &LoadConfig) -> Result<Self> {
        let storm = &config.storm;
        let module = TestModule::insert("storm", &storm.module, &storm.parameters())?;
        let hogs = Hogs::start(&config.hog_cpus)?;
        Ok(Self { hogs, module })
    }
}

impl Work for Storm {
    fn counts(&self) -> Result<Vec<Count>> {
        Ok(vec![
            Count::proof("bursts", self.module.total("bursts")?),
            Count::proof("packets", self.module.total("packets")?),
            Count::note("polls", self.module.total("polls")?),
            Count::note("hog_rounds", self.hogs.rounds()),
        ])
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let hogs = self.hogs.stop();
        self.module.remove()?;
        hogs.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_parameters_are_those_of_the_issue() {
        let mut config = LoadConfig::against(2, "/nonexistent".as_ref(), 9);
        config.hog_cpus = vec![2, 2, 3, 3];
        assert_eq!(
            config.storm.parameters(),
            "cpu=2 burst=3200 pkt_ns=3100 period_ms=20 seed=9"
        );
        let words = words(&config);
        for part in ["3.1 µs of work", "lasts 198 µs", "2 on CPU 2, 2 on CPU 3"] {
            assert!(words.contains(part), "{words}");
        }
    }
}
