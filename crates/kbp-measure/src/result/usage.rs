// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a row cost: CPU time, changes of the frequency, rests, and energy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// CPU time over the measured part, nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUse {
    /// By CPU, from /proc/stat, whose resolution is the kernel's tick (10 ms).
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// The poller of ours, from its schedstat; 0 where there is none.
    pub poller_ns: u64,
    /// All ksoftirqd threads.
    pub ksoftirqd_ns: u64,
    /// The server: its thread or its process.
    pub server_ns: u64,
    /// The client.
    pub client_ns: u64,
    /// Context switches of the machine.
    pub context_switches: u64,
}

/// Times of one CPU, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// User space, niced included.
    pub user_ns: u64,
    /// Kernel, system calls and threads.
    pub system_ns: u64,
    /// Interrupts.
    pub irq_ns: u64,
    /// Softirqs.
    pub softirq_ns: u64,
    /// Idle, waiting for disks included.
    pub idle_ns: u64,
    /// Taken by the host of this virtual machine.
    pub steal_ns: u64,
}

/// Energy over the measured part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// Joules; `null` where there is no counter.
    pub joules: Option<f64>,
    /// Which counter, or why there is none.
    pub source: String,
    /// What a model says where nothing counts; absent where something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EnergyEstimate>,
}

/// An estimate of what busy CPUs drew more than the same CPUs at rest would have. It is no measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyEstimate {
    /// Extra energy, joules.
    pub joules: f64,
    /// The same as power, watts.
    pub watts: f64,
    /// The sum of the busy shares of the CPUs, from /proc/stat, whose resolution is 10 ms.
    pub busy_cpus: f64,
    /// The CPUs.
    pub of_cpus: Vec<u32>,
    /// Name of the model.
    pub model: String,
}

/// What became of a CPU's frequency, as the kernel's cpufreq counted it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FrequencyUse {
    /// Times that it was changed.
    pub changes: u64,
    /// Mean of the frequencies that were asked for, idle time included, kHz; absent for spans shorter than the
    /// resolution of that counter (10 ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_khz: Option<f64>,
}

/// An idle state of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleUse {
    /// Times that the CPU left it.
    pub entries: u64,
    /// Time in it, of rests that ended, nanoseconds.
    pub time_ns: u64,
}
