// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of `kbp measure power` as text.
//!
//! Not here: the figures ([`crate::power`]).

use std::collections::BTreeMap;
use std::fmt::Write;

use kbp_core::CpuList;

use crate::power::report::{
    CpuReport, EnergyReport, Estimate, Idle, Known, PacketReport, PowerReport, ZoneReport,
};
use crate::report::text::{count, share};

/// What stands where a figure is missing.
const NONE: &str = "-";
/// Width of the names of zones.
const LABEL: usize = 24;

/// The text of a report.
pub(super) fn text(report: &PowerReport) -> String {
    let mut text = format!("measured for {:.2} s", report.span_seconds);
    if report.partial {
        text += ", partial: interrupted before the end";
    }
    text += "\n\nenergy\n";
    text += &energy(&report.energy);
    text += "\nCPUs\n";
    text += &cpus(&report.cpus);
    let switches = events(report.context_switches_per_second);
    text += &format!("  context switches of the machine (/proc/stat): {switches}/s\n");
    if let Some(found) = &report.packets {
        text += "\npackets\n";
        text += &packets(found);
    }
    for note in &report.notes {
        text += &format!("\nnote: {note}\n");
    }
    text
}

fn missing(why: &str) -> String {
    format!("not available on this machine because {why}")
}

fn amount(joules: f64, watts: f64) -> String {
    format!("{joules:>10.2} J {watts:>9.2} W")
}

fn zone(zone: &ZoneReport) -> String {
    let used = match &zone.used {
        Known::Is(used) => amount(used.energy_joules, used.power_watts),
        Known::Not { why_not } => missing(why_not),
    };
    let standing = match zone.standing.as_str() {
        "" => String::new(),
        standing => format!("   ({standing}; not in the total)"),
    };
    format!("  {:<LABEL$} {used}{standing}\n", zone.label)
}

fn energy(energy: &EnergyReport) -> String {
    let mut text: String = energy.zones.iter().map(zone).collect();
    text += &match &energy.total {
        Known::Is(total) => format!(
            "  {:<LABEL$} {}   {}\n",
            "total",
            amount(total.energy_joules, total.power_watts),
            total.zones.join(" + ")
        ),
        Known::Not { why_not } => format!("  {:<LABEL$} {}\n", "total", missing(why_not)),
    };
    text += &match &energy.ipmi {
        Known::Is(ipmi) => format!(
            "  {:<LABEL$} {}   mean of {} coarse readings{}\n",
            "IPMI, whole machine",
            amount(ipmi.energy_joules, ipmi.power_watts),
            ipmi.readings,
            match ipmi.missed {
                0 => String::new(),
                missed => format!("; {missed} times it did not answer"),
            }
        ),
        Known::Not { why_not } => {
            format!("  {:<LABEL$} {}\n", "IPMI, whole machine", missing(why_not))
        }
    };
    match &energy.estimate {
        Some(Known::Is(found)) => text + &estimate(found),
        Some(Known::Not { why_not }) => {
            format!("{text}  {:<LABEL$} {}\n", "estimate", missing(why_not))
        }
        None => text,
    }
}

fn estimate(estimate: &Estimate) -> String {
    format!(
        "  {:<LABEL$} {}   more than with the same CPUs at rest\n    \
         an estimate, not a measurement: {:.2} busy CPUs × {} W by model {}\n    \
         its figure: {}\n",
        "estimate",
        amount(estimate.extra_energy_joules, estimate.extra_power_watts),
        estimate.busy_cpus,
        estimate.polling_cpu_watts,
        estimate.model,
        estimate.source
    )
}

/// Events a second: a decimal only where it tells something.
fn events(per_second: f64) -> String {
    match per_second {
        v if v < 9.95 => format!("{v:.1}"),
        v => count(v.round() as u64),
    }
}

fn or_none<T>(known: &Known<T>, show: impl FnOnce(&T) -> String) -> String {
    known.get().map_or_else(|| NONE.into(), show)
}

fn idle(idle: &Idle) -> String {
    let states = idle.states.iter().map(|state| {
        let forbidden = if state.is_disabled { " (disabled)" } else { "" };
        format!("{} {}{forbidden}", state.name, share(state.residency_ratio))
    });
    let mut states: Vec<String> = states.collect();
    // What is less comes from ticks of 10 ms.
    if idle.uncounted_ratio > 0.05 {
        states.push(format!("not ended yet {}", share(idle.uncounted_ratio)));
    }
    states.join(", ")
}

fn row(cells: [String; 10]) -> String {
    let [cpu, busy, steal, device, timer, other, runs, wakeups, mhz, changes] = cells;
    format!(
        "  {cpu:>4} {busy:>8} {steal:>8} {device:>9} {timer:>9} {other:>9} {runs:>9} {wakeups:>10} {mhz:>7} \
         {changes:>9}"
    )
}

fn cpu(cpu: &CpuReport) -> String {
    let interrupts = |pick: fn(&crate::power::report::InterruptRates) -> f64| {
        or_none(&cpu.interrupts, |rates| events(pick(rates)))
    };
    let cells = [
        cpu.cpu.to_string(),
        or_none(&cpu.time, |time| share(time.busy_ratio)),
        or_none(&cpu.time, |time| share(time.steal_ratio)),
        interrupts(|rates| rates.device_per_second),
        interrupts(|rates| rates.local_timer_per_second),
        interrupts(|rates| rates.other_per_second),
        or_none(&cpu.task_runs, |runs| events(runs.per_second)),
        or_none(&cpu.idle, |idle| events(idle.wakeups_per_second)),
        or_none(&cpu.frequency, |f| format!("{:.0}", f.mean_hz / 1e6)),
        or_none(&cpu.frequency_changes, |changes| events(changes.per_second)),
    ];
    format!("{}  {}\n", row(cells), or_none(&cpu.idle, idle))
}

fn cpus(cpus: &[CpuReport]) -> String {
    let heading = [
        "CPU",
        "busy",
        "steal",
        "device/s",
        "timer/s",
        "other/s",
        "tasks/s",
        "wakeups/s",
        "MHz",
        "changes/s",
    ];
    let mut text = format!("{}  idle states\n", row(heading.map(str::to_owned)));
    text.extend(cpus.iter().map(cpu));
    for ((what, words), of) in remarks(cpus) {
        let _ = writeln!(text, "  {what} of CPU {of}: {words}");
    }
    text
}

/// What is said of several CPUs, once: what is missing, and what the frequencies are.
fn remarks(cpus: &[CpuReport]) -> Vec<((&'static str, String), CpuList)> {
    let mut of: BTreeMap<(&'static str, String), Vec<u32>> = BTreeMap::new();
    for cpu in cpus {
        let groups = [
            ("busy time", cpu.time.why_not()),
            ("idle states", cpu.idle.why_not()),
            ("frequency", cpu.frequency.why_not()),
            ("frequency changes", cpu.frequency_changes.why_not()),
            ("interrupts", cpu.interrupts.why_not()),
            ("tasks/s", cpu.task_runs.why_not()),
        ];
        for (what, why) in groups {
            if let Some(why) = why {
                of.entry((what, missing(why))).or_default().push(cpu.cpu);
            }
        }
        if let Some(frequency) = cpu.frequency.get() {
            let key = ("frequency", format!("mean by {}", frequency.source));
            of.entry(key).or_default().push(cpu.cpu);
        }
    }
    of.into_iter()
        .map(|(remark, cpus)| (remark, cpus.into_iter().collect()))
        .collect()
}

/// A small energy with its unit.
fn small_joules(joules: f64) -> String {
    match joules {
        j if j < 1e-3 => format!("{:.3} µJ", j * 1e6),
        j if j < 1.0 => format!("{:.3} mJ", j * 1e3),
        j => format!("{j:.3} J"),
    }
}

fn packets(found: &PacketReport) -> String {
    let mut text = String::new();
    for one in &found.interfaces {
        let words = match &one.packets {
            Known::Is(packets) => format!(
                "{} received, {} sent",
                count(packets.received_packets),
                count(packets.sent_packets)
            ),
            Known::Not { why_not } => missing(why_not),
        };
        let _ = writeln!(text, "  {:<LABEL$} {words}", one.interface);
    }
    let words = match &found.per_packet {
        Known::Is(one) => format!(
            "{}   ({}, over {} received packets)",
            small_joules(one.energy_per_received_packet_joules),
            one.energy_source,
            count(one.received_packets)
        ),
        Known::Not { why_not } => missing(why_not),
    };
    let _ = writeln!(text, "  {:<LABEL$} {words}", "energy per received one");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::report::{Total, Used};

    fn one_zone(label: &str, standing: &str, used: Known<Used>) -> ZoneReport {
        ZoneReport {
            zone: "intel-rapl:0".into(),
            label: label.into(),
            is_in_total: standing.is_empty(),
            standing: standing.into(),
            used,
        }
    }

    /// The line that begins with a word.
    fn line<'a>(text: &'a str, word: &str) -> &'a str {
        let found = text
            .lines()
            .find(|line| line.trim_start().starts_with(word));
        found.unwrap_or_else(|| panic!("no line {word}: {text}"))
    }

    #[test]
    fn what_is_missing_has_its_reason_and_an_estimate_its_name() {
        let used = |joules: f64| {
            Known::Is(Used {
                energy_joules: joules,
                power_watts: joules / 2.0,
                wraps: 0,
            })
        };
        let mut found = EnergyReport {
            readings: 3,
            longest_gap_seconds: 1.0,
            zones: vec![
                one_zone("package-0", "", used(20.0)),
                one_zone("core of package-0", "a part of package-0", used(12.0)),
                one_zone(
                    "psys",
                    "holds packages and memory",
                    Known::not("it is gone"),
                ),
            ],
            total: Known::Is(Total {
                energy_joules: 20.0,
                power_watts: 10.0,
                zones: vec!["package-0".into()],
            }),
            ipmi: Known::not("nobody answers"),
            estimate: None,
        };
        let text = energy(&found);
        assert!(line(&text, "package-0").ends_with("20.00 J     10.00 W"));
        assert!(
            line(&text, "core of package-0").ends_with("(a part of package-0; not in the total)")
        );
        assert!(line(&text, "psys").contains("not available on this machine because it is gone"));
        assert!(line(&text, "total").ends_with("20.00 J     10.00 W   package-0"));
        assert!(line(&text, "IPMI").contains("because nobody answers"));
        assert!(!text.contains("estimate"));
        found.total = Known::not("nothing counts");
        found.estimate = Some(Known::Is(Estimate {
            extra_power_watts: 5.5,
            extra_energy_joules: 11.0,
            busy_cpus: 1.0,
            polling_cpu_watts: 5.5,
            model: "mine".into(),
            source: "my meter".into(),
        }));
        let text = energy(&found);
        assert!(line(&text, "total").contains("because nothing counts"));
        assert!(line(&text, "estimate").contains("11.00 J      5.50 W   more than"));
        assert!(line(&text, "its figure").ends_with("my meter"));
    }
}
