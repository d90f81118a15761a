// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was requested for a machine beside what is so now.
//!
//! Not here: repairing it; the same command again does that ([`super::apply`]).

use serde::Serialize;

use crate::error::Error;
use crate::host::Host;
use crate::state::State;
use crate::vm::governor;
use crate::vm::model::{Role, VmThread};
use crate::vm::record::VmRecord;
use crate::vm::request::TuneRequest;
use crate::vm::select::VmName;

/// What is requested, and where it is not so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// What a person calls the machine.
    pub vm: String,
    /// The number of its process.
    pub pid: u32,
    /// What is requested.
    pub requested: TuneRequest,
    /// The threads as they are now.
    pub active: Vec<VmThread>,
    /// What is not as requested, a sentence each.
    pub differences: Vec<String>,
}

/// Compares the machine that is meant with what was requested for it.
///
/// # Errors
/// When it is not tuned or has ended, or can't be read.
pub fn verify(host: &Host, state: &State, name: &VmName) -> Result<Verified, Error> {
    let record = name.tuned(&state.vms)?;
    let vms = host.vms()?;
    let vm = vms.iter().find(|vm| vm.process == record.process);
    let vm = vm.ok_or_else(|| {
        Error::NotFound(format!(
            "{} has ended; `kbp vm untune {name}` puts back what is left of its tuning",
            record.label()
        ))
    })?;
    let wanted = |thread: &&VmThread| record.requested.is_about(thread.role);
    let active: Vec<VmThread> = vm.threads.iter().filter(wanted).cloned().collect();
    let mut differences: Vec<String> = active
        .iter()
        .flat_map(|thread| of_thread(record, thread))
        .collect();
    let vcpus = record.requested.is_about(Role::AllVcpus);
    differences.extend(vm.unknown_vcpus.clone().filter(|_| vcpus));
    differences.extend(governor::differences(host, &record.requested)?);
    Ok(Verified {
        vm: record.label(),
        pid: record.process.pid,
        requested: record.requested.clone(),
        active,
        differences,
    })
}

fn of_thread(record: &VmRecord, thread: &VmThread) -> Vec<String> {
    let now = &thread.placement;
    let Some(known) = record.thread(thread.thread) else {
        return vec![format!(
            "{thread} came since and is not tuned: it is on {now}"
        )];
    };
    let (has_cpus, schedule) = record.requested.of(thread.role);
    let mut different = Vec::new();
    if has_cpus && now.affinity != known.set.affinity {
        different.push(format!(
            "{thread} is on CPU {}, not on CPU {}",
            now.affinity, known.set.affinity
        ));
    }
    if schedule.is_some() && now.scheduling != known.set.scheduling {
        different.push(format!(
            "{thread} has {}, not {}",
            now.schedule(),
            known.set.schedule()
        ));
    }
    different
}
