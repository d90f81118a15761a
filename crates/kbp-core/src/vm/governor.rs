// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cpufreq governor of a virtual machine's CPUs: chosen, and put back when no machine wants it any more.
//!
//! CPUs that share a frequency have one governor. What was set by hand for the governor that goes (its tunables, the
//! frequency of `userspace`) goes with it, so that is remembered, too. A governor that somebody else has chosen
//! meanwhile is left alone. Not here: the module's own governor, which pollers want ([`crate::governor`]).

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use crate::error::{undo_incomplete, Error};
use crate::governor::{file, Outcome, Returned, OURS};
use crate::host::{Host, HostError};
use crate::process::Process;
use crate::state::{State, StateFile};
use crate::vm::record::VmGovernorRecord;
use crate::vm::request::TuneRequest;
use crate::CpuList;

/// The governor whose frequency is a setting of its own, and where it is set.
const BY_HAND: (&str, &str) = ("userspace", "scaling_setspeed");

/// That CPUs with one frequency get a governor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GovernorPlan {
    /// First of the CPUs that share the frequency; the record is kept under its number.
    first: u32,
    from: String,
    to: String,
}

impl GovernorPlan {
    /// The first of the CPUs that get it.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// What is written, as it is shown before; `None` where it is so already.
    pub fn change(&self) -> Option<String> {
        let file = file(self.first, "scaling_governor");
        let (from, to) = (&self.from, &self.to);
        (from != to).then(|| format!("write '{to}' to /{file} ('{from}' now)"))
    }
}

/// The governors that a wish needs, and what a person should know about them.
///
/// # Errors
/// When a driver does not know the governor.
pub(super) fn plan(
    host: &Host,
    state: &State,
    request: &TuneRequest,
) -> Result<(Vec<GovernorPlan>, Vec<String>), Error> {
    let (mut plans, mut notes) = (Vec::new(), Vec::new());
    let Some(to) = request.chosen_governor() else {
        return Ok((plans, notes));
    };
    let cpus = request.cpus();
    let (mut seen, mut without) = (BTreeSet::new(), Vec::new());
    for cpu in cpus.iter() {
        let Some(from) = host.read_optional(&file(cpu, "scaling_governor"))? else {
            without.push(cpu);
            continue;
        };
        let related = related(host, cpu)?;
        let first = related.iter().next().unwrap_or(cpu);
        if !seen.insert(first) {
            continue;
        }
        if from == OURS {
            notes.push(format!(
                "the frequency of CPU {related} follows a poller (`--freq`), and stays so"
            ));
            continue;
        }
        require_known(host, cpu, to)?;
        let others: CpuList = related
            .iter()
            .filter(|other| !cpus.contains(*other))
            .collect();
        if from != to && !others.is_empty() {
            notes.push(format!(
                "CPU {others} has one frequency with CPU {cpu} and gets the governor {to}, too"
            ));
        }
        if from != to || state.vm_governors.contains_key(&first) {
            plans.push(GovernorPlan {
                first,
                from,
                to: to.into(),
            });
        }
    }
    if !without.is_empty() {
        let without: CpuList = without.into_iter().collect();
        notes.push(format!(
            "CPU {without} has no frequency to choose here: no cpufreq driver has it, as in most virtual machines"
        ));
    }
    Ok((plans, notes))
}

fn related(host: &Host, cpu: u32) -> Result<CpuList, Error> {
    let name = file(cpu, "related_cpus");
    let text = host.read_trimmed(&name)?;
    text.replace(' ', ",")
        .parse()
        .map_err(|_| host.malformed(&name, "it is no list of CPUs").into())
}

fn require_known(host: &Host, cpu: u32, to: &str) -> Result<(), Error> {
    let known = host.read_optional(&file(cpu, "scaling_available_governors"))?;
    let known = known.unwrap_or_default();
    match known.split_whitespace().any(|name| name == to) {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "CPU {cpu} has no governor '{to}' but: {known}; --governor names another, `--governor keep` leaves it as it is"
        ))),
    }
}

/// What was set by hand for this governor: the writable files of its own, of this CPU or of all, and its frequency.
fn settings(host: &Host, cpu: u32, governor: &str) -> Vec<(String, String)> {
    let folders = [
        file(cpu, governor),
        format!("sys/devices/system/cpu/cpufreq/{governor}"),
    ];
    let mut files: Vec<String> = Vec::new();
    for folder in folders {
        let names = host.list(&folder).unwrap_or_default();
        files.extend(names.into_iter().map(|name| format!("{folder}/{name}")));
    }
    if governor == BY_HAND.0 {
        files.push(file(cpu, BY_HAND.1));
    }
    let is_writable = |file: &String| {
        let found = std::fs::metadata(host.path(file));
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o200 != 0)
    };
    files.retain(is_writable);
    let text = |file: String| Some((host.read_trimmed(&file).ok()?, file));
    let texts = files.into_iter().filter_map(text);
    texts.map(|(text, file)| (file, text)).collect()
}

/// Writes the governors of a plan and remembers what was there.
///
/// # Errors
/// What the kernel refuses; what was written before is for [`roll_back`].
pub(super) fn choose(
    host: &Host,
    memory: &mut StateFile,
    user: Process,
    plans: &[GovernorPlan],
) -> Result<(), Error> {
    for plan in plans {
        let known = memory.state.vm_governors.get(&plan.first);
        let mut record = match known {
            // Where somebody has chosen another one since, that is what is to come back.
            Some(known) if is_ours(known, &plan.from) => known.clone(),
            _ => VmGovernorRecord {
                original: plan.from.clone(),
                settings: settings(host, plan.first, &plan.from),
                set: plan.to.clone(),
                before: None,
                users: known.map(|known| known.users.clone()).unwrap_or_default(),
                is_late: false,
            },
        };
        record.before = Some(plan.from.clone());
        record.set = plan.to.clone();
        if !record.users.contains(&user) {
            record.users.push(user);
        }
        memory.state.vm_governors.insert(plan.first, record);
        memory.save()?;
        write(host, plan)?;
    }
    Ok(())
}

/// Is this what we wrote, or wrote before?
fn is_ours(record: &VmGovernorRecord, found: &str) -> bool {
    found == record.set || record.before.as_deref() == Some(found)
}

/// The governors of a plan are written: what was in between is forgotten.
pub(super) fn settle(state: &mut State, plans: &[GovernorPlan]) {
    for plan in plans {
        if let Some(record) = state.vm_governors.get_mut(&plan.first) {
            record.before = None;
        }
    }
}

/// Some drivers take another governor than they were told, without a word.
fn write(host: &Host, plan: &GovernorPlan) -> Result<(), Error> {
    if plan.from == plan.to {
        return Ok(());
    }
    let name = file(plan.first, "scaling_governor");
    host.write(&name, &plan.to)?;
    let found = host.read_trimmed(&name)?;
    match found == plan.to {
        true => Ok(()),
        false => Err(Error::Conflict(format!(
            "the cpufreq driver of CPU {} takes the governor {found} instead of '{}'",
            plan.first, plan.to
        ))),
    }
}

/// Writes back what [`choose`] has written. The memory is that after it.
pub(super) fn roll_back(host: &Host, state: &State, plans: &[GovernorPlan]) -> Vec<Error> {
    let mut failed = Vec::new();
    for plan in plans {
        let Some(record) = state.vm_governors.get(&plan.first) else {
            continue;
        };
        let name = file(plan.first, "scaling_governor");
        let is_written = host
            .read_trimmed(&name)
            .is_ok_and(|found| found != plan.from);
        if is_written {
            // What was set by hand is known of the first one only.
            let settings = match plan.from == record.original {
                true => record.settings.clone(),
                false => Vec::new(),
            };
            let back = VmGovernorRecord {
                original: plan.from.clone(),
                settings,
                ..record.clone()
            };
            failed.extend(write_back(host, plan.first, &back).err().map(Error::from));
        }
    }
    failed
}

fn write_back(host: &Host, first: u32, record: &VmGovernorRecord) -> Result<(), HostError> {
    host.write(&file(first, "scaling_governor"), &record.original)?;
    for (file, text) in &record.settings {
        // A file that is not there any more has nothing to put back.
        if host.read_optional(file)?.is_some_and(|now| now != *text) {
            host.write(file, text)?;
        }
    }
    Ok(())
}

/// Machines want no governor any more: those for which `ends` says so, of the first CPU. Puts back what nobody wants.
///
/// # Errors
/// What can't be put back, which stays remembered; the rest is still done.
pub(super) fn release(
    host: &Host,
    memory: &mut StateFile,
    ends: impl Fn(&Process, u32) -> bool,
) -> Result<Vec<Returned>, Error> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (first, mut record) in memory.state.vm_governors.clone() {
        record.users.retain(|user| !ends(user, first));
        memory.state.vm_governors.insert(first, record.clone());
        if !record.users.is_empty() {
            continue;
        }
        match put_back(host, &mut memory.state, first, &record) {
            Ok(outcome) => {
                memory.state.vm_governors.remove(&first);
                done.push(Returned {
                    cpu: first,
                    outcome,
                });
            }
            Err(error) => {
                record.is_late = error.errno() == Some(libc::EBUSY);
                failed.push(unreturned(first, &record, &error));
                memory.state.vm_governors.insert(first, record);
            }
        }
    }
    memory.save()?;
    match failed.is_empty() {
        true => Ok(done),
        false => Err(undo_incomplete(failed)),
    }
}

fn unreturned(cpu: u32, record: &VmGovernorRecord, error: &HostError) -> Error {
    let original = &record.original;
    Error::UndoIncomplete(match record.is_late {
        true => format!(
            "the governor {original} of CPU {cpu}, which is offline: it goes back with the next `kbp vm tune` or `kbp vm \
             untune --all` while that is online"
        ),
        false => format!("the governor {original} of CPU {cpu}: {error}"),
    })
}

fn put_back(
    host: &Host,
    state: &mut State,
    first: u32,
    record: &VmGovernorRecord,
) -> Result<Outcome, HostError> {
    let Some(found) = host.read_optional(&file(first, "scaling_governor"))? else {
        return Ok(Outcome::Gone);
    };
    // A poller has taken it over: it gives back what was there before us.
    if let Some(poller) = state.governors.get_mut(&first).filter(|_| found == OURS) {
        if poller.original == record.set {
            poller.original = record.original.clone();
            let speed = record
                .settings
                .iter()
                .find(|(file, _)| file.ends_with(BY_HAND.1));
            poller.speed_khz = speed.map(|(_, khz)| khz.clone());
            return Ok(Outcome::WithPoller {
                to: record.original.clone(),
            });
        }
    }
    if found == record.original {
        return Ok(Outcome::Restored { to: found });
    }
    if !is_ours(record, &found) && !record.is_late {
        return Ok(Outcome::LeftAlone { found });
    }
    write_back(host, first, record)?;
    Ok(Outcome::Restored {
        to: record.original.clone(),
    })
}

/// The governors of a wish that are not as requested.
pub(super) fn differences(host: &Host, request: &TuneRequest) -> Result<Vec<String>, Error> {
    let Some(wanted) = request.chosen_governor() else {
        return Ok(Vec::new());
    };
    let mut different = Vec::new();
    for cpu in request.cpus().iter() {
        let found = host.read_optional(&file(cpu, "scaling_governor"))?;
        if let Some(found) = found.filter(|found| found != wanted) {
            different.push(format!("CPU {cpu} has the governor {found}, not {wanted}"));
        }
    }
    Ok(different)
}
