// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cpufreq governor of a poller's CPU: the module's own is chosen, so that the frequency can follow the poller, and
//! the former one put back when the poller goes.
//!
//! CPUs that share a frequency have one governor; it goes back with the last poller among them. A governor that
//! somebody else has chosen meanwhile is left alone. When the frequency changes is decided in the module.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{undo_incomplete, Error};
use crate::host::{Host, HostError};
use crate::state::{State, StateFile};
use crate::CpuList;

/// The module's governor.
pub(crate) const OURS: &str = "kbp";
/// The governor whose frequency is a setting of its own.
const BY_HAND: &str = "userspace";

/// A governor that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GovernorRecord {
    /// The governor that was there.
    pub original: String,
    /// The frequency that had been set by hand, kHz, where that governor has one.
    pub speed_khz: Option<String>,
    /// Whether several CPUs have it.
    pub is_shared: bool,
    /// The CPUs whose pollers want another.
    pub users: BTreeSet<u32>,
    /// Whether its CPU was offline when it was to be put back. What the kernel chooses when that comes is nobody's
    /// choice.
    #[serde(default)]
    pub is_late: bool,
}

/// That a CPU is to be governed by the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GovernorPlan {
    cpu: u32,
    /// First of the CPUs that share its frequency; the record is kept under its number.
    first: u32,
    is_shared: bool,
    from: String,
    speed_khz: Option<String>,
}

/// What became of a governor that was to be put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Returned {
    /// First of the CPUs that have it.
    pub cpu: u32,
    /// What happened.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What happened to a governor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is the former one again.
    Restored {
        /// Its name.
        to: String,
    },
    /// It was not touched, because it is not as it was left.
    LeftAlone {
        /// The one that is there.
        found: String,
    },
    /// There is none: its cpufreq driver has gone.
    Gone,
    /// A poller has one of its own there now, and puts the former one back when it goes.
    WithPoller {
        /// The name of the former one.
        to: String,
    },
}

impl std::fmt::Display for Returned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the governor of CPU {} ", self.cpu)?;
        match &self.outcome {
            Outcome::Restored { to } => write!(f, "is {to} again"),
            Outcome::LeftAlone { found } => {
                write!(f, "was left alone: something else chose {found} meanwhile")
            }
            Outcome::Gone => write!(f, "has gone with its driver"),
            Outcome::WithPoller { to } => write!(f, "becomes {to} again when its poller goes"),
        }
    }
}

impl GovernorPlan {
    /// What is written, as it is shown before.
    pub fn change(&self) -> Option<String> {
        let file = file(self.cpu, "scaling_governor");
        (self.from != OURS).then(|| format!("write '{OURS}' to /{file} ('{}' now)", self.from))
    }
}

/// The CPUs that have the module's governor, but not for a poller of `kbp`'s.
///
/// # Errors
/// When the list of CPUs can't be read.
pub(crate) fn chosen_by_others(host: &Host, state: &State) -> Result<CpuList, HostError> {
    let is_so = |cpu: &u32| {
        // A CPU that comes or goes has a policy that can't be read.
        let chosen = host.read_optional(&file(*cpu, "scaling_governor"));
        let shared = sharers(host, *cpu, true);
        let first = shared.iter().flat_map(CpuList::iter).next();
        matches!(chosen, Ok(Some(name)) if name == OURS)
            && first.is_some_and(|first| !state.governors.contains_key(&first))
    };
    Ok(host.online_cpus()?.iter().filter(is_so).collect())
}

/// Whether the frequency of this CPU follows its poller although others have it, too.
pub fn is_shared(state: &State, cpu: u32) -> bool {
    let mut records = state.governors.values();
    records.any(|record| record.is_shared && record.users.contains(&cpu))
}

/// A file of a CPU's frequency, from the root of the host.
pub(crate) fn file(cpu: u32, name: &str) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}")
}

/// Whether the frequency of this CPU could follow a poller of its own, as far as that can be said before the module, which
/// brings the governor, is loaded.
///
/// # Errors
/// Why it can't, with the way out.
pub fn can_follow(host: &Host, cpu: u32) -> Result<(), Error> {
    chosen(host, cpu)?;
    let driver = driver(host, cpu)?;
    if active_mode(host, &driver).is_some() {
        return Err(no_governor(host, &driver));
    }
    sharers(host, cpu, false)?;
    require_range(host, cpu)
}

/// How this CPU comes under the module's governor; nothing is changed. `shared`: also where other CPUs have the same
/// frequency.
///
/// # Errors
/// Why it can't, with the way out.
pub fn plan(host: &Host, state: &State, cpu: u32, shared: bool) -> Result<GovernorPlan, Error> {
    let read = |name: &str| host.read_optional(&file(cpu, name));
    let from = chosen(host, cpu)?;
    let known = read("scaling_available_governors")?.unwrap_or_default();
    if !known.split_whitespace().any(|name| name == OURS) {
        return Err(no_governor(host, &driver(host, cpu)?));
    }
    let cpus = sharers(host, cpu, shared)?;
    let first = cpus.iter().next().unwrap_or(cpu);
    require_range(host, cpu)?;
    if from == OURS && !state.governors.contains_key(&first) {
        return Err(Error::Conflict(format!(
            "CPU {cpu} has the governor '{OURS}' already, and what it had before is not known here; write the one that is to \
             come back to /{} first",
            file(cpu, "scaling_governor")
        )));
    }
    let speed_khz = match from == BY_HAND {
        true => read("scaling_setspeed")?,
        false => None,
    };
    Ok(GovernorPlan {
        cpu,
        first,
        is_shared: cpus.len() > 1,
        from,
        speed_khz,
    })
}

/// The governor of a CPU.
fn chosen(host: &Host, cpu: u32) -> Result<String, Error> {
    host.read_optional(&file(cpu, "scaling_governor"))?.ok_or_else(|| {
        Error::Unsupported(format!(
            "CPU {cpu} has no frequency to choose here: no cpufreq driver has it, as in most virtual machines, whose hosts \
             choose"
        ))
    })
}

fn driver(host: &Host, cpu: u32) -> Result<String, Error> {
    Ok(host
        .read_optional(&file(cpu, "scaling_driver"))?
        .unwrap_or_default())
}

/// The CPUs that have one frequency with this one, and it.
fn sharers(host: &Host, cpu: u32, shared: bool) -> Result<CpuList, Error> {
    let related = host.read_trimmed(&file(cpu, "related_cpus"))?;
    let cpus: CpuList = related.replace(' ', ",").parse().map_err(|_| {
        Error::Unsupported(format!("CPU {cpu} shares its frequency with '{related}'"))
    })?;
    let others: Vec<String> = cpus
        .iter()
        .filter(|other| *other != cpu)
        .map(|other| other.to_string())
        .collect();
    if !others.is_empty() && !shared {
        return Err(Error::Conflict(format!(
            "CPU {cpu} has one frequency with CPU {}: all of them are slow while the poller sleeps; --force \
             (`freq_shared = true` in the file) has it so",
            others.join(", ")
        )));
    }
    Ok(cpus)
}

/// The limits have to leave a choice.
fn require_range(host: &Host, cpu: u32) -> Result<(), Error> {
    let read = |name: &str| host.read_optional(&file(cpu, name));
    let limits = (read("scaling_min_freq")?, read("scaling_max_freq")?);
    if let (Some(min), Some(max)) = limits {
        if min == max {
            return Err(Error::Conflict(format!(
                "the limits of CPU {cpu} leave one frequency, {min} kHz; raise /{} or lower /{}",
                file(cpu, "scaling_max_freq"),
                file(cpu, "scaling_min_freq")
            )));
        }
    }
    Ok(())
}

/// The driver's name, where it chooses frequencies by itself.
fn active_mode(host: &Host, driver: &str) -> Option<&'static str> {
    ["intel_pstate", "amd_pstate"].into_iter().find(|name| {
        let status = host.read_optional(&format!("sys/devices/system/cpu/{name}/status"));
        driver.replace('-', "_").starts_with(name)
            && status.is_ok_and(|text| text.as_deref() == Some("active"))
    })
}

/// Why a driver offers the module's governor no frequency.
fn no_governor(host: &Host, driver: &str) -> Error {
    Error::Conflict(match active_mode(host, driver) {
        Some(name) => format!(
            "{driver} chooses frequencies by itself (active mode); `echo passive > /sys/devices/system/cpu/{name}/status` \
             leaves that to governors"
        ),
        None => format!("the cpufreq driver {driver} takes no governor '{OURS}', or the kbp module is of another version"),
    })
}

/// Carries a plan out and remembers what was there. `false`: this CPU wanted it already.
///
/// # Errors
/// When the kernel refuses; then nothing has changed.
pub fn choose(host: &Host, memory: &mut StateFile, plan: &GovernorPlan) -> Result<bool, Error> {
    let before = memory.state.governors.clone();
    let record = GovernorRecord {
        original: plan.from.clone(),
        speed_khz: plan.speed_khz.clone(),
        is_shared: plan.is_shared,
        users: BTreeSet::new(),
        is_late: false,
    };
    let known = memory.state.governors.get(&plan.first);
    // Where somebody has chosen another one since, that is what is to come back.
    let mut record = match known {
        Some(known) if plan.from == OURS => known.clone(),
        Some(known) => GovernorRecord {
            users: known.users.clone(),
            ..record
        },
        None => record,
    };
    record.is_late = false;
    let is_new = record.users.insert(plan.cpu);
    memory.state.governors.insert(plan.first, record);
    memory.save()?;
    if plan.from != OURS {
        if let Err(error) = write_ours(host, plan) {
            memory.state.governors = before;
            memory.save()?;
            return Err(error);
        }
    }
    Ok(is_new)
}

/// Some drivers take another governor than they were told, without a word.
fn write_ours(host: &Host, plan: &GovernorPlan) -> Result<(), Error> {
    let governor = file(plan.cpu, "scaling_governor");
    host.write(&governor, OURS)?;
    let found = host.read_trimmed(&governor)?;
    if found == OURS {
        return Ok(());
    }
    host.write(&governor, &plan.from)?;
    Err(Error::Conflict(format!(
        "the cpufreq driver of CPU {} takes the governor {found} instead of '{OURS}'",
        plan.cpu
    )))
}

/// The pollers of CPUs for which `ends` says so want no governor any more: puts back those that nobody wants.
///
/// # Errors
/// What can't be put back, which stays remembered; the rest is still done.
pub fn release(
    host: &Host,
    memory: &mut StateFile,
    ends: impl Fn(u32) -> bool,
) -> Result<Vec<Returned>, Error> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (first, mut record) in memory.state.governors.clone() {
        record.users.retain(|cpu| !ends(*cpu));
        memory.state.governors.insert(first, record.clone());
        if !record.users.is_empty() {
            continue;
        }
        match put_back(host, first, &record) {
            Ok(outcome) => {
                memory.state.governors.remove(&first);
                done.push(Returned {
                    cpu: first,
                    outcome,
                });
            }
            Err(error) => {
                let is_late = error.errno() == Some(libc::EBUSY);
                let record = GovernorRecord { is_late, ..record };
                failed.push(unreturned(first, &record, &error));
                memory.state.governors.insert(first, record);
            }
        }
    }
    if !done.is_empty() || !failed.is_empty() || !memory.state.governors.is_empty() {
        memory.save()?;
    }
    match failed.is_empty() {
        true => Ok(done),
        false => Err(undo_incomplete(failed)),
    }
}

fn unreturned(cpu: u32, record: &GovernorRecord, error: &HostError) -> Error {
    let original = &record.original;
    Error::UndoIncomplete(match record.is_late {
        true => format!(
            "the governor {original} of CPU {cpu}, which is offline: it goes back with the next `kbp attach`, `kbp detach` \
             or `kbp unload` while that is online"
        ),
        false => format!("the governor {original} of CPU {cpu}: {error}"),
    })
}

fn put_back(host: &Host, cpu: u32, record: &GovernorRecord) -> Result<Outcome, HostError> {
    let governor = file(cpu, "scaling_governor");
    let Some(found) = host.read_optional(&governor)? else {
        return Ok(Outcome::Gone);
    };
    if found != OURS && !record.is_late {
        return Ok(Outcome::LeftAlone { found });
    }
    host.write(&governor, &record.original)?;
    if let Some(khz) = &record.speed_khz {
        host.write(&file(cpu, "scaling_setspeed"), khz)?;
    }
    Ok(Outcome::Restored {
        to: record.original.clone(),
    })
}
