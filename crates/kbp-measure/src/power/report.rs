// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `kbp measure power` found, as its JSON has it: units are in the names.
//!
//! A group of figures that this machine does not have is an object with the one key `why_not` instead.
//! Not here: where the figures come from ([`super::span`]), and the text for people.

use serde::Serialize;

/// Figures, or why there are none.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Known<T> {
    /// They are known.
    Is(T),
    /// They are not.
    Not {
        /// The end of the sentence "not available on this machine because …".
        why_not: String,
    },
}

impl<T> Known<T> {
    /// Figures that are not there.
    pub fn not(why_not: impl Into<String>) -> Self {
        Self::Not {
            why_not: why_not.into(),
        }
    }

    /// The figures, where there are some.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Is(figures) => Some(figures),
            Self::Not { .. } => None,
        }
    }

    /// Why there are none.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Self::Is(_) => None,
            Self::Not { why_not } => Some(why_not),
        }
    }
}

impl<T> From<Result<T, String>> for Known<T> {
    fn from(result: Result<T, String>) -> Self {
        result.map_or_else(Self::not, Self::Is)
    }
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PowerReport {
    /// Time between the first and the last reading.
    pub span_seconds: f64,
    /// An interrupt ended it before its time.
    pub partial: bool,
    /// The command that ran meanwhile; absent where there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandEnd>,
    /// Energy that was counted, and the estimate where nothing counts it.
    pub energy: EnergyReport,
    /// Context switches of the whole machine, from /proc/stat.
    pub context_switches_per_second: f64,
    /// CPUs.
    pub cpus: Vec<CpuReport>,
    /// Packets; absent where no interface was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketReport>,
    /// What a reader has to know, in sentences.
    pub notes: Vec<String>,
}

/// A command that came to its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommandEnd {
    /// Its words.
    pub words: Vec<String>,
    /// Its exit code; 128 and the number of the signal that ended it.
    pub exit_code: u8,
}

/// Energy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergyReport {
    /// Readings of each zone; 0 where there is none.
    pub readings: u32,
    /// The longest time between two of them.
    pub longest_gap_seconds: f64,
    /// Every zone of powercap.
    pub zones: Vec<ZoneReport>,
    /// The sum of the zones that are in no other one.
    pub total: Known<Total>,
    /// The whole machine, as its management controller says.
    pub ipmi: Known<Ipmi>,
    /// An estimate of the extra power of busy CPUs; absent where energy is counted and no model was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Known<Estimate>>,
}

/// A zone of powercap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ZoneReport {
    /// Its folder, which no other zone has.
    pub zone: String,
    /// Its name, with that of the zone above it.
    pub label: String,
    /// Whether it is a summand of the total.
    pub is_in_total: bool,
    /// Why it is not; empty where it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub standing: String,
    /// What it used.
    #[serde(flatten)]
    pub used: Known<Used>,
}

/// Energy of a zone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Used {
    /// Energy.
    pub energy_joules: f64,
    /// Mean power.
    pub power_watts: f64,
    /// How often the counter began anew.
    pub wraps: u32,
}

/// Energy of all zones that may be added up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Total {
    /// Energy.
    pub energy_joules: f64,
    /// Mean power.
    pub power_watts: f64,
    /// The labels of its zones.
    pub zones: Vec<String>,
}

/// The management controller's readings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ipmi {
    /// Mean power of the readings, times the time.
    pub energy_joules: f64,
    /// Mean of the readings.
    pub power_watts: f64,
    /// How many there were.
    pub readings: u32,
    /// How often it did not answer in time.
    pub missed: u32,
}

/// What busy CPUs draw more than resting ones, by a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// Extra power of the busy CPUs.
    pub extra_power_watts: f64,
    /// The same times the time.
    pub extra_energy_joules: f64,
    /// The sum of the CPUs' busy shares.
    pub busy_cpus: f64,
    /// Extra power of one CPU that is busy all the time, by the model.
    pub polling_cpu_watts: f64,
    /// Name of the model.
    pub model: String,
    /// Where its figure is from.
    pub source: String,
}

/// One CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuReport {
    /// Its number.
    pub cpu: u32,
    /// Where its time went.
    pub time: Known<TimeShares>,
    /// Its idle states.
    pub idle: Known<Idle>,
    /// Its frequency.
    pub frequency: Known<Frequency>,
    /// How often cpufreq changed its frequency.
    pub frequency_changes: Known<PerSecond>,
    /// Its interrupts.
    pub interrupts: Known<InterruptRates>,
    /// How often it began to run a task, from /proc/schedstat.
    pub task_runs: Known<PerSecond>,
}

/// Shares of a CPU's time, from /proc/stat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeShares {
    /// In user space, the kernel, interrupts and softirqs.
    pub busy_ratio: f64,
    /// At rest.
    pub idle_ratio: f64,
    /// Taken by the host of this virtual machine.
    pub steal_ratio: f64,
}

/// How a CPU rested.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Idle {
    /// Its states, by depth.
    pub states: Vec<IdleShare>,
    /// How often it woke from any of them.
    pub wakeups_per_second: f64,
    /// Rest that /proc/stat has and that no state has: it had not ended yet.
    pub uncounted_ratio: f64,
}

/// One idle state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IdleShare {
    /// Its name.
    pub name: String,
    /// Share of the time that the CPU was in it, of rests that ended; at most 1.
    pub residency_ratio: f64,
    /// How often it was entered.
    pub entries_per_second: f64,
    /// Whether it was forbidden at the end.
    pub is_disabled: bool,
}

/// The mean frequency of a CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Frequency {
    /// The mean.
    pub mean_hz: f64,
    /// What it is the mean of.
    pub source: String,
}

/// Events a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerSecond {
    /// How many.
    pub per_second: f64,
}

/// Interrupts a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InterruptRates {
    /// Those with a number: devices.
    pub device_per_second: f64,
    /// The CPU's own timer.
    pub local_timer_per_second: f64,
    /// Others without a number: between CPUs, for instance.
    pub other_per_second: f64,
}

/// Packets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PacketReport {
    /// By interface.
    pub interfaces: Vec<InterfacePackets>,
    /// Energy of one received packet.
    pub per_packet: Known<PerPacket>,
}

/// Packets of one interface.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InterfacePackets {
    /// Its name.
    pub interface: String,
    /// Its packets.
    #[serde(flatten)]
    pub packets: Known<Packets>,
}

/// Packets of both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Received.
    pub received_packets: u64,
    /// Sent.
    pub sent_packets: u64,
}

/// Energy by packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerPacket {
    /// Energy, divided by the packets that all named interfaces received.
    pub energy_per_received_packet_joules: f64,
    /// Those packets.
    pub received_packets: u64,
    /// Which energy it is.
    pub energy_source: String,
}
