// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened between two readings: shares, rates, energy. Pure arithmetic.
//!
//! Not here: reading, and the model of an estimate ([`super::model`]).

use std::collections::BTreeMap;

use kbp_core::cpufreq::{Frequencies, STATE_TICK_NS};
use kbp_core::cpuidle::IdleState;
use kbp_core::netdev::PacketCounts;
use kbp_core::powercap::{Standing, Zone};
use kbp_core::procfs::{CpuTicks, Interrupts};

use super::meter::{Readings, Zones};
use super::reading::{Clocks, CpuReading, Reading};
use super::report::{
    CpuReport, Frequency, Idle, IdleShare, InterfacePackets, InterruptRates, Ipmi, Known, Packets,
    PerSecond, TimeShares, Total, Used, ZoneReport,
};

/// Name of the line of the CPU's own timer in /proc/interrupts.
const LOCAL_TIMER: &str = "LOC";

/// More than any zone draws, watts: a zone is taken to go round unseen where this would make it.
pub(crate) const PLAUSIBLE_WATTS: f64 = 4_000.0;

type Result<T> = std::result::Result<T, String>;

/// Seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn rate(then: u64, now: u64, span_ns: u64) -> f64 {
    now.saturating_sub(then) as f64 / seconds(span_ns.max(1))
}

fn why_apart(standing: &Standing) -> String {
    match standing {
        Standing::Apart => String::new(),
        Standing::PartOf(above) => format!("a part of {above}"),
        Standing::Around => "holds packages and memory".into(),
        Standing::SameAs(entry) => format!("the counter of {entry} once more"),
        Standing::Unknown => "what it is a part of is not known".into(),
    }
}

fn used(joules: f64, span_ns: u64, wraps: u32) -> Used {
    Used {
        energy_joules: joules,
        power_watts: joules / seconds(span_ns.max(1)),
        wraps,
    }
}

/// Every zone with what it used.
pub(super) fn zones(zones: &Zones) -> Vec<ZoneReport> {
    let span_ns = zones.span_ns();
    let report = |(zone, tally): &(Zone, Result<kbp_core::powercap::Tally>)| ZoneReport {
        zone: zone.entry.clone(),
        label: zone.label(),
        is_in_total: zone.standing == Standing::Apart,
        standing: why_apart(&zone.standing),
        used: match tally {
            Ok(tally) => Known::Is(used(tally.used_uj as f64 / 1e6, span_ns, tally.wraps)),
            Err(why) => Known::not(why),
        },
    };
    zones.zones.iter().map(report).collect()
}

/// The sum of the zones that are in no other one. One that can't be read leaves none: a sum without it would be read
/// as the whole.
pub(super) fn total(zones: &[ZoneReport]) -> Known<Total> {
    let counted: Vec<_> = zones.iter().filter(|zone| zone.is_in_total).collect();
    if counted.is_empty() {
        return Known::not(
            "no energy counter is there (powercap): the processor or this kernel has none, or a virtual machine or \
             container hides it",
        );
    }
    let mut total = Total {
        energy_joules: 0.0,
        power_watts: 0.0,
        zones: Vec::new(),
    };
    for zone in counted {
        match &zone.used {
            Known::Is(used) => {
                total.energy_joules += used.energy_joules;
                total.power_watts += used.power_watts;
                total.zones.push(zone.label.clone());
            }
            Known::Not { why_not } => {
                return Known::not(format!("{} has no figure: {why_not}", zone.label));
            }
        }
    }
    Known::Is(total)
}

/// Zones that may have gone round once more than was seen.
pub(super) fn maybe_wrapped(zones: &Zones) -> Vec<String> {
    let unsure = zones.zones.iter().filter(|(zone, used)| {
        used.is_ok() && zone.may_wrap_unseen(zones.longest_gap_ns, PLAUSIBLE_WATTS)
    });
    unsure.map(|(zone, _)| zone.label()).collect()
}

/// The management controller's readings, over this time.
pub(super) fn ipmi(readings: &Readings, span_ns: u64) -> Known<Ipmi> {
    let of = |asked: &Vec<Option<f64>>| {
        let watts: Vec<f64> = asked.iter().flatten().copied().collect();
        let mean = watts.iter().sum::<f64>() / watts.len().max(1) as f64;
        Ipmi {
            energy_joules: mean * seconds(span_ns),
            power_watts: mean,
            readings: watts.len() as u32,
            missed: (asked.len() - watts.len()) as u32,
        }
    };
    readings.as_ref().map(of).map_err(Clone::clone).into()
}

/// One CPU.
pub(super) fn cpu(cpu: u32, then: &Reading, now: &Reading) -> CpuReport {
    let span_ns = now.at_ns.saturating_sub(then.at_ns);
    let time = time(then.stat.cpus.get(&cpu), now.stat.cpus.get(&cpu));
    let idle_ratio = time.as_ref().map_or(0.0, |time| time.idle_ratio);
    let own = then.cpus.get(&cpu).zip(now.cpus.get(&cpu));
    let own = own.ok_or_else(|| "it was not read".to_owned());
    CpuReport {
        cpu,
        idle: own
            .clone()
            .and_then(|(then, now)| {
                let (then, now) = (then.idle.clone()?, now.idle.clone()?);
                idle(&then, &now, idle_ratio, span_ns)
            })
            .into(),
        frequency: own
            .clone()
            .and_then(|(then, now)| frequency(then, now, span_ns))
            .into(),
        frequency_changes: own
            .and_then(|(then, now)| frequency_changes(then, now, span_ns))
            .into(),
        interrupts: interrupts(cpu, then, now, span_ns).into(),
        task_runs: task_runs(cpu, then, now, span_ns).into(),
        time: time.into(),
    }
}

fn time(then: Option<&CpuTicks>, now: Option<&CpuTicks>) -> Result<TimeShares> {
    let (then, now) = then.zip(now).ok_or("it was not online all the time")?;
    let ticks = |pick: fn(&CpuTicks) -> u64| pick(now).saturating_sub(pick(then)) as f64;
    let busy = ticks(|t| t.user + t.system + t.irq + t.softirq);
    let (idle, steal) = (ticks(|t| t.idle), ticks(|t| t.steal));
    let sum = busy + idle + steal;
    if sum <= 0.0 {
        return Err("/proc/stat did not move, which counts in ticks of 10 ms".into());
    }
    Ok(TimeShares {
        busy_ratio: busy / sum,
        idle_ratio: idle / sum,
        steal_ratio: steal / sum,
    })
}

fn idle(then: &[IdleState], now: &[IdleState], idle_ratio: f64, span_ns: u64) -> Result<Idle> {
    let same = then.len() == now.len() && then.iter().zip(now).all(|(a, b)| a.name == b.name);
    if !same {
        return Err("its idle states became others meanwhile".into());
    }
    let share = |(then, now): (&IdleState, &IdleState)| {
        let rest_ns = now.time_us.saturating_sub(then.time_us) as f64 * 1e3;
        IdleShare {
            name: now.name.clone(),
            // A rest that began before counts as a whole when it ends.
            residency_ratio: (rest_ns / span_ns.max(1) as f64).min(1.0),
            entries_per_second: rate(then.entries, now.entries, span_ns),
            is_disabled: now.is_disabled,
        }
    };
    let states: Vec<_> = then.iter().zip(now).map(share).collect();
    let counted: f64 = states.iter().map(|state| state.residency_ratio).sum();
    Ok(Idle {
        wakeups_per_second: states.iter().map(|state| state.entries_per_second).sum(),
        uncounted_ratio: (idle_ratio - counted).max(0.0),
        states,
    })
}

fn frequency(then: &CpuReading, now: &CpuReading, span_ns: u64) -> Result<Frequency> {
    let clocks = then.clocks.clone().and_then(|then| {
        let now = now.clocks.clone()?;
        by_clocks(&then, &now, span_ns)
    });
    let Err(no_clocks) = clocks else {
        return clocks;
    };
    let times = then.frequencies.clone().and_then(|then| {
        let now = now.frequencies.clone()?;
        by_times(&then, &now)
    });
    times.map_err(|no_times| format!("{no_clocks}, and {no_times}"))
}

/// The constant clock stands still with the other one, so their ratio is that of the frequencies.
fn by_clocks(then: &Clocks, now: &Clocks, span_ns: u64) -> Result<Frequency> {
    let moved = |pick: fn(&Clocks) -> u64| pick(now).saturating_sub(pick(then)) as f64;
    let (aperf, mperf) = (moved(|c| c.aperf), moved(|c| c.mperf));
    if mperf <= 0.0 {
        return Err("its clock mperf did not move".into());
    }
    let constant_hz = moved(|c| c.tsc) / seconds(span_ns.max(1));
    Ok(Frequency {
        mean_hz: aperf / mperf * constant_hz,
        source: "aperf/mperf: while it was not idle".into(),
    })
}

fn by_times(then: &Frequencies, now: &Frequencies) -> Result<Frequency> {
    let no_statistics = || no_statistics(&now.driver);
    let (before, after) = then
        .times
        .as_ref()
        .zip(now.times.as_ref())
        .ok_or_else(no_statistics)?;
    let (mut sum_ns, mut cycles) = (0.0, 0.0);
    for (khz, &ticks) in after {
        let before = before.get(khz).copied().unwrap_or(0);
        let ns = ticks.saturating_sub(before) as f64 * STATE_TICK_NS as f64;
        sum_ns += ns;
        cycles += ns * *khz as f64 * 1e3;
    }
    if sum_ns <= 0.0 {
        return Err("time_in_state of cpufreq did not move".into());
    }
    Ok(Frequency {
        mean_hz: cycles / sum_ns,
        source: "cpufreq time_in_state: what was asked for, idle time included".into(),
    })
}

fn no_statistics(driver: &str) -> String {
    format!("the cpufreq driver {driver} keeps no statistics")
}

fn frequency_changes(then: &CpuReading, now: &CpuReading, span_ns: u64) -> Result<PerSecond> {
    let (then, now) = (then.frequencies.clone()?, now.frequencies.clone()?);
    let pair = then.changes.zip(now.changes);
    let (then, now) = pair.ok_or_else(|| no_statistics(&now.driver))?;
    Ok(PerSecond {
        per_second: rate(then, now, span_ns),
    })
}

/// Interrupts of a CPU since boot: of devices, of its timer, others.
fn interrupt_counts(interrupts: &Interrupts, cpu: u32) -> Option<[u64; 3]> {
    let mut counts = None;
    for (line, of_cpu, count) in interrupts.counts() {
        if of_cpu == cpu {
            let kind = match line.irq {
                Some(_) => 0,
                None if line.label == LOCAL_TIMER => 1,
                None => 2,
            };
            counts.get_or_insert([0; 3])[kind] += count;
        }
    }
    counts
}

fn interrupts(cpu: u32, then: &Reading, now: &Reading, span_ns: u64) -> Result<InterruptRates> {
    let counts = |reading: &Reading| {
        let interrupts = reading.interrupts.as_ref().map_err(Clone::clone)?;
        interrupt_counts(interrupts, cpu)
            .ok_or_else(|| "/proc/interrupts has no column for it".to_owned())
    };
    let (then, now) = (counts(then)?, counts(now)?);
    let [device, timer, other] = [0, 1, 2].map(|kind| rate(then[kind], now[kind], span_ns));
    Ok(InterruptRates {
        device_per_second: device,
        local_timer_per_second: timer,
        other_per_second: other,
    })
}

fn task_runs(cpu: u32, then: &Reading, now: &Reading, span_ns: u64) -> Result<PerSecond> {
    let runs = |reading: &Reading| {
        let runs: &BTreeMap<u32, u64> = reading.task_runs.as_ref().map_err(Clone::clone)?;
        let runs = runs.get(&cpu).copied();
        runs.ok_or_else(|| "/proc/schedstat has no line for it".to_owned())
    };
    Ok(PerSecond {
        per_second: rate(runs(then)?, runs(now)?, span_ns),
    })
}

/// Context switches of the machine a second.
pub(super) fn context_switches(then: &Reading, now: &Reading) -> f64 {
    let span_ns = now.at_ns.saturating_sub(then.at_ns);
    let count = |reading: &Reading| reading.stat.context_switches;
    rate(count(then), count(now), span_ns)
}

/// Packets by interface.
pub(super) fn packets(names: &[String], then: &Reading, now: &Reading) -> Vec<InterfacePackets> {
    let pairs = names.iter().zip(then.packets.iter().zip(&now.packets));
    let between =
        |(name, (then, now)): (&String, (&Result<PacketCounts>, &Result<PacketCounts>))| {
            let packets = then.clone().and_then(|then| {
                let now = now.clone()?;
                moved(&then, &now)
            });
            InterfacePackets {
                interface: name.clone(),
                packets: packets.into(),
            }
        };
    pairs.map(between).collect()
}

fn moved(then: &PacketCounts, now: &PacketCounts) -> Result<Packets> {
    let began_anew = || "its counters began anew: the interface was made again".to_owned();
    Ok(Packets {
        received_packets: now
            .received
            .checked_sub(then.received)
            .ok_or_else(began_anew)?,
        sent_packets: now.sent.checked_sub(then.sent).ok_or_else(began_anew)?,
    })
}
