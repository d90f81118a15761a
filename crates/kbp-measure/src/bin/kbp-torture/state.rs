// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has to be again as it was when everything is undone, and what the kernel has complained about.
//!
//! Not here: undoing.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use kbp_core::kmsg::Mark;
use kbp_core::{state, Host};
use kbp_measure::place::{run_at, Place};
use kbp_measure::Result;

use crate::wiring::{netns, End};

/// Settings of an interface that something of ours could change.
const SETTINGS: &[&str] = &[
    "threaded",
    "gro_flush_timeout",
    "napi_defer_hard_irqs",
    "flags",
    "mtu",
];
/// Settings of its queues.
const QUEUE_SETTINGS: &[&str] = &["rps_cpus", "xps_cpus"];
/// Settings of a CPU's frequency; a CPU that is offline has none.
const FREQ_SETTINGS: &[&str] = &["scaling_governor", "scaling_min_freq", "scaling_max_freq"];
/// What a kernel says when something is wrong; lab/lib.sh has the same list for scripts.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "BUG ",
    "Oops",
    "general protection",
    "Call Trace",
    "self-detected stall",
    "rcu_sched detected",
    "rcu_preempt detected",
    "detected stalls",
    "detected expedited stalls",
    "soft lockup",
    "hard LOCKUP",
    "hung_task",
    "blocked for more than",
    "INFO: task",
    "INFO: trying to register",
    "possible recursive locking",
    "inconsistent lock state",
    "circular locking",
    "irq lock inversion",
    "invalid wait context",
    "suspicious RCU",
    "bad unlock balance",
    "held lock freed",
    "lock held when returning",
    "KASAN",
    "UBSAN",
    "ODEBUG",
    "kmemleak:",
    "list_add corruption",
    "list_del corruption",
    "refcount_t:",
    "NETDEV WATCHDOG",
    "Tx Unit Hang",
    "DEBUG_LOCKS_WARN_ON",
    "sleeping function called",
    "scheduling while atomic",
    "leaked reference",
    "to become free. Usage count",
    LATE_SOFTIRQ,
];
/// What kmemleak says at its start and when it was told to scan.
const NO_COMPLAINTS: &[&str] = &[
    "kmemleak: Kernel memory leak detector initialized",
    "kmemleak: Automatic memory scanning thread",
    "kmemleak: Cannot allocate a kmemleak_object structure",
];
/// A CPU that goes offline parks its ksoftirqd, woken or not; what that was to do waits for the next tick, and the idle
/// loop tells it. On a CPU that stays, it would mean that a softirq was raised and nobody told.
const LATE_SOFTIRQ: &str = "NOHZ tick-stop error";
const LEAKS: &str = "sys/kernel/debug/kmemleak";
/// kmemleak reports what it found unreferenced in a scan and that is older than this.
const LEAK_AGE: Duration = Duration::from_secs(6);

/// Files and their contents.
pub type Snapshot = BTreeMap<String, String>;

/// The settings now, at both ends.
///
/// # Errors
/// When a namespace can't be entered or a folder not be read.
pub fn snapshot(host: &Host) -> Result<Snapshot> {
    let mut found = irq_affinities(host)?;
    let online = host.online_cpus().map_err(kbp_core::Error::from)?;
    found.insert("online CPUs".into(), online.to_string());
    found.extend(frequencies(host)?);
    for module in ["kbp", "kbp_trace", "otherpatch"] {
        let loaded = host.exists(&format!("sys/module/{module}/refcnt"));
        found.insert(format!("module {module} loaded"), loaded.to_string());
    }
    let remembered = state::peek(host).map_err(kbp_core::Error::from)?;
    let irqs: Vec<u32> = remembered.irqs.keys().copied().collect();
    found.insert("interrupts that kbp remembers".into(), format!("{irqs:?}"));
    let governors: Vec<u32> = remembered.governors.keys().copied().collect();
    found.insert(
        "governors that kbp remembers".into(),
        format!("{governors:?}"),
    );
    for end in [End::Here, End::There] {
        let place = Place {
            netns: netns(end).map(str::to_owned),
            ..Place::default()
        };
        found.extend(run_at(&place, || interfaces(host, end))?);
    }
    Ok(found)
}

/// The affinity of every interrupt, by the file that holds it.
///
/// # Errors
/// When /proc/irq can't be read.
pub fn irq_affinities(host: &Host) -> Result<Snapshot> {
    let irqs = host.list("proc/irq").map_err(kbp_core::Error::from)?;
    let read = |irq: String| {
        let file = format!("proc/irq/{irq}/smp_affinity_list");
        // An interrupt may go between the listing and this.
        let text = host.read_optional(&file).ok()??;
        Some((file, text))
    };
    Ok(irqs.into_iter().filter_map(read).collect())
}

/// What the frequency of each CPU follows, by the file that says it; nothing without cpufreq.
fn frequencies(host: &Host) -> Result<Snapshot> {
    let core = kbp_core::Error::from;
    let mut found = Snapshot::new();
    for cpu in host.online_cpus().map_err(core)?.iter() {
        for setting in FREQ_SETTINGS {
            let file = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{setting}");
            if let Ok(Some(text)) = host.read_optional(&file) {
                found.insert(file, text);
            }
        }
    }
    Ok(found)
}

fn interfaces(host: &Host, end: End) -> Result<Snapshot> {
    let core = kbp_core::Error::from;
    let mut found = Snapshot::new();
    let names = host.interface_names().map_err(core)?;
    let at = format!("{end:?}").to_lowercase();
    found.insert(format!("interfaces {at}"), names.join(" "));
    for name in names {
        let base = format!("sys/class/net/{name}");
        for setting in SETTINGS {
            // A kernel without a setting has nothing to restore.
            if let Ok(Some(text)) = host.read_optional(&format!("{base}/{setting}")) {
                found.insert(format!("{base}/{setting}"), text);
            }
        }
        let queues = host.list(&format!("{base}/queues")).map_err(core)?;
        found.insert(format!("{base}: queues"), queues.join(" "));
        for queue in queues {
            for setting in QUEUE_SETTINGS {
                let file = format!("{base}/queues/{queue}/{setting}");
                if let Ok(Some(text)) = host.read_optional(&file) {
                    found.insert(file, text);
                }
            }
        }
    }
    Ok(found)
}

/// One sentence for each difference.
pub fn differences(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    for (name, was) in before {
        match after.get(name) {
            Some(is) if is == was => {}
            Some(is) => found.push(format!("{name} was '{was}' and is '{is}'")),
            None => found.push(format!("{name} was '{was}' and is gone")),
        }
    }
    let new = after.keys().filter(|name| !before.contains_key(*name));
    found.extend(new.map(|name| format!("{name} is new")));
    found
}

/// What the kernel has complained about since the mark. `cpus_went` says that CPUs went offline meanwhile.
pub fn complaints(mark: &mut Mark, cpus_went: bool) -> Vec<String> {
    let mut lines = mark.lines_with(COMPLAINTS);
    let is_harmless = |line: &String| {
        NO_COMPLAINTS.iter().any(|harmless| line.contains(harmless))
            || (cpus_went && line.contains(LATE_SOFTIRQ))
    };
    lines.retain(|line| !is_harmless(line));
    lines
}

/// Whether this kernel looks for leaks.
pub fn has_leak_detector(host: &Host) -> bool {
    host.exists(LEAKS)
}

/// Forgets what leaked until now, before anything of ours.
///
/// # Errors
/// When the detector can't be told.
pub fn forget_leaks(host: &Host) -> Result<()> {
    host.write(LEAKS, "clear")
        .map_err(|e| kbp_core::Error::from(e).into())
}

/// What has leaked since [`forget_leaks`]: the detector's own words, empty when nothing has.
///
/// # Errors
/// When the detector can't be asked.
pub fn leaks(host: &Host) -> Result<String> {
    let core = kbp_core::Error::from;
    // What was allocated just now is not reported, and a pointer may be in a register during one scan.
    for _ in 0..2 {
        sleep(LEAK_AGE);
        host.write(LEAKS, "scan").map_err(core)?;
    }
    Ok(host.read_trimmed(LEAKS).map_err(core)?)
}

/// Checkers that this kernel has, told by a symbol of each.
///
/// # Errors
/// When /proc/kallsyms can't be read.
pub fn checkers(host: &Host) -> Result<Vec<String>> {
    const SYMBOLS: &[(&str, &str)] = &[
        ("kasan_report", "KASAN"),
        ("print_circular_bug", "lockdep"),
        ("debug_object_activate", "DEBUG_OBJECTS"),
        ("kmemleak_scan", "kmemleak"),
        ("lockdep_rcu_suspicious", "PROVE_RCU"),
        ("kfence_handle_page_fault", "KFENCE"),
        ("should_failslab", "failslab"),
    ];
    let names: Vec<&str> = SYMBOLS.iter().map(|(symbol, _)| *symbol).collect();
    let found = host.symbols(&names).map_err(kbp_core::Error::from)?;
    let there = SYMBOLS
        .iter()
        .filter(|(symbol, _)| found.contains_key(*symbol));
    let mut checkers: Vec<String> = there.map(|(_, name)| (*name).to_owned()).collect();
    // The function is in every kernel; its switch is not.
    if !host.exists("sys/kernel/debug/failslab") {
        checkers.retain(|name| name != "failslab");
    }
    // Debian builds KFENCE in and leaves it off.
    let interval = host.read_optional("sys/module/kfence/parameters/sample_interval");
    if interval.ok().flatten().is_none_or(|text| text == "0") {
        checkers.retain(|name| name != "KFENCE");
    }
    Ok(checkers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let of = |pairs: &[(&str, &str)]| -> Snapshot {
            pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect()
        };
        let before = of(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert!(differences(&before, &before).is_empty());
        let after = of(&[("a", "1"), ("b", "9"), ("d", "4")]);
        assert_eq!(
            differences(&before, &after),
            ["b was '2' and is '9'", "c was '3' and is gone", "d is new"]
        );
    }
}
