// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything but energy that is read at the begin and at the end: CPU time, idle states, frequencies, interrupts,
//! switches, packets. These counters don't go round while somebody waits for them, so two readings are enough.
//!
//! Not here: their differences ([`super::span`]).

use std::collections::BTreeMap;

use kbp_core::cpufreq::Frequencies;
use kbp_core::cpuidle::IdleState;
use kbp_core::msr_pmu::{MsrCounter, MsrEvent};
use kbp_core::netdev::PacketCounts;
use kbp_core::procfs::{Interrupts, Stat, TaskRuns};
use kbp_core::{CpuList, Host};

use crate::clock::monotonic_ns;
use crate::error::Result;

/// What could be read, or why not.
type Readable<T> = std::result::Result<T, String>;

/// One reading of everything.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// When, nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// /proc/stat.
    pub stat: Stat,
    /// /proc/interrupts.
    pub interrupts: Readable<Interrupts>,
    /// /proc/schedstat.
    pub task_runs: Readable<TaskRuns>,
    /// What each CPU has of its own.
    pub cpus: BTreeMap<u32, CpuReading>,
    /// Packets of each interface, in the order in which they were asked for.
    pub packets: Vec<Readable<PacketCounts>>,
}

/// What a CPU has of its own.
#[derive(Debug, Clone)]
pub(super) struct CpuReading {
    /// Idle states.
    pub idle: Readable<Vec<IdleState>>,
    /// cpufreq.
    pub frequencies: Readable<Frequencies>,
    /// Its clocks.
    pub clocks: Readable<Clocks>,
}

/// Counts of a CPU's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clocks {
    /// Cycles that it ran.
    pub aperf: u64,
    /// Cycles of the constant clock over the same time.
    pub mperf: u64,
    /// Cycles of the constant clock.
    pub tsc: u64,
}

/// Clocks of CPUs that are being counted.
#[derive(Debug)]
pub(super) struct ClockCounters(BTreeMap<u32, Readable<[MsrCounter; 3]>>);

impl ClockCounters {
    /// Begins to count.
    pub fn open(host: &Host, cpus: &CpuList) -> Self {
        let events = clock_events(host);
        let open = |cpu| {
            let [aperf, mperf, tsc] = events.clone()?;
            let count = |event| MsrCounter::open(event, cpu).map_err(|e| e.to_string());
            Ok([count(aperf)?, count(mperf)?, count(tsc)?])
        };
        Self(cpus.iter().map(|cpu| (cpu, open(cpu))).collect())
    }

    fn read(&self, cpu: u32) -> Readable<Clocks> {
        let counters = self.0.get(&cpu).ok_or("its clocks are not counted")?;
        let [aperf, mperf, tsc] = counters.as_ref().map_err(Clone::clone)?;
        let read = |counter: &MsrCounter| counter.read().map_err(|e| e.to_string());
        Ok(Clocks {
            aperf: read(aperf)?,
            mperf: read(mperf)?,
            tsc: read(tsc)?,
        })
    }
}

fn clock_events(host: &Host) -> Readable<[MsrEvent; 3]> {
    if !host.is_system() {
        return Err("only the running machine's clocks can be counted".into());
    }
    let event = |name: &str| match host.msr_event(name) {
        Ok(Some(event)) => Ok(event),
        Ok(None) => Err(format!(
            "the kernel has no event msr/{name}/ here, as in most virtual machines"
        )),
        Err(error) => Err(error.to_string()),
    };
    Ok([event("aperf")?, event("mperf")?, event("tsc")?])
}

impl Reading {
    /// Reads everything now.
    ///
    /// # Errors
    /// When /proc/stat can't be read, or there is no clock. What else is not there is remembered with its reason.
    pub fn take(
        host: &Host,
        cpus: &CpuList,
        clocks: &ClockCounters,
        interfaces: &[String],
    ) -> Result<Self> {
        let words = |error: kbp_core::host::HostError| error.to_string();
        let of_cpu = |cpu| {
            let idle = host.idle_states(cpu).map_err(words);
            let frequencies = host.frequencies(cpu).map_err(words);
            let reading = CpuReading {
                idle: idle.and_then(|idle| {
                    idle.ok_or_else(|| "the kernel has no cpuidle driver for it".into())
                }),
                frequencies: frequencies.and_then(|frequencies| {
                    frequencies.ok_or_else(|| "the kernel has no cpufreq driver for it".into())
                }),
                clocks: clocks.read(cpu),
            };
            (cpu, reading)
        };
        let task_runs = host.task_runs().map_err(words);
        Ok(Self {
            at_ns: monotonic_ns()?,
            stat: host.stat().map_err(kbp_core::Error::from)?,
            interrupts: host.interrupts().map_err(words),
            task_runs: task_runs.and_then(|runs| {
                runs.ok_or_else(|| {
                    "the kernel has no /proc/schedstat (it was built without CONFIG_SCHEDSTATS)"
                        .into()
                })
            }),
            cpus: cpus.iter().map(of_cpu).collect(),
            packets: interfaces
                .iter()
                .map(|name| host.packet_counts(name).map_err(words))
                .collect(),
        })
    }
}
