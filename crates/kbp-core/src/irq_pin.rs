// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moving an interrupt to a CPU, and back to where it was.
//!
//! An interrupt may be wanted by several users (a vector that serves two queues); it goes back
//! when the last one leaves. An interrupt that somebody else has moved meanwhile is left alone.
//! Which interrupt a queue has is decided in [`crate::irq`].

use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;

use crate::error::{undo_incomplete, Error};
use crate::host::{Host, HostError};
use crate::irq::QueueVector;
use crate::state::{IrqRecord, StateFile, User};
use crate::CpuList;

/// How long the kernel may take to carry out a move, in the interrupt that follows it: until then it shows the CPUs of
/// before. Microseconds, and longer where the interrupt's CPU is a virtual one that waits for a processor.
const MOVE_LIMIT: Duration = Duration::from_millis(200);
/// Time between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What became of an interrupt that was to go back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Release {
    /// Its number.
    pub irq: u32,
    /// Name of its handler.
    pub name: String,
    /// What happened.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What happened to an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It has its original affinity again.
    Restored {
        /// That affinity.
        to: CpuList,
    },
    /// Others still use it.
    Kept,
    /// It was not touched, because it is not as it was left.
    LeftAlone {
        /// What is different.
        reason: String,
    },
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "interrupt {} ({}) ", self.irq, self.name)?;
        match &self.outcome {
            Outcome::Restored { to } => write!(f, "goes to CPU {to} again"),
            Outcome::Kept => write!(f, "stays, another user needs it there"),
            Outcome::LeftAlone { reason } => write!(f, "was left alone: {reason}"),
        }
    }
}

/// Move an interrupt to one CPU for a user and remember where it was. Returns where it was.
pub fn pin(
    host: &Host,
    file: &mut StateFile,
    vector: &QueueVector,
    user: &User,
    cpu: u32,
) -> Result<CpuList, Error> {
    let current = settled(host, vector.irq)?;
    let target = CpuList::one(cpu);
    let before = file.state.clone();
    let device = host.irq_device(vector.irq)?;
    match file.state.irqs.get_mut(&vector.irq) {
        Some(record)
            if record.name == vector.name || (device.is_some() && record.device == device) =>
        {
            record.name = vector.name.clone();
            record.users.insert(user.clone());
            // It has this one until it is written, and after a process that died in between.
            let moves = current != target && current != record.original;
            record.before = moves.then(|| current.clone());
            record.set = target.clone();
        }
        // Where it is right already there is nothing to put back; it is remembered so that it is seen when it leaves.
        _ => {
            let record = IrqRecord {
                name: vector.name.clone(),
                device,
                original: current.clone(),
                set: target.clone(),
                before: None,
                users: [user.clone()].into(),
            };
            file.state.irqs.insert(vector.irq, record);
        }
    }
    file.save()?;
    if current == target {
        return Ok(current);
    }
    if let Err(error) = host.set_irq_affinity(vector.irq, &target) {
        file.state = before;
        file.save()?;
        return Err(error.into());
    }
    let record = file.state.irqs.get_mut(&vector.irq);
    if record.is_some_and(|record| record.before.take().is_some()) {
        file.save()?;
    }
    Ok(current)
}

/// A user leaves: put back the interrupts that nobody wants elsewhere any more. An interrupt that
/// can't be put back stays remembered and is named in the error; the others are still done.
pub fn release(host: &Host, file: &mut StateFile, user: &User) -> Result<Vec<Release>, Error> {
    let irqs: Vec<u32> = file
        .state
        .irqs
        .iter()
        .filter(|(_, record)| record.users.contains(user))
        .map(|(irq, _)| *irq)
        .collect();
    let mut done = Vec::new();
    let mut failed = Vec::new();
    for irq in irqs {
        match release_one(host, file, irq, user) {
            Ok(release) => done.extend(release),
            Err(error) => failed.push(error),
        }
    }
    match failed.is_empty() {
        true => Ok(done),
        false => Err(undo_incomplete(failed)),
    }
}

fn release_one(
    host: &Host,
    file: &mut StateFile,
    irq: u32,
    user: &User,
) -> Result<Option<Release>, Error> {
    let Some(record) = file.state.irqs.get_mut(&irq) else {
        return Ok(None);
    };
    let name = record.name.clone();
    if record.users.len() > 1 {
        record.users.remove(user);
        file.save()?;
        return Ok(Some(Release {
            irq,
            name,
            outcome: Outcome::Kept,
        }));
    }
    let record = record.clone();
    if record.original == record.set && record.before.is_none() {
        file.state.irqs.remove(&irq);
        file.save()?;
        return Ok(None);
    }
    let outcome = put_back(host, irq, &record)?;
    file.state.irqs.remove(&irq);
    file.save()?;
    Ok(Some(Release { irq, name, outcome }))
}

fn put_back(host: &Host, irq: u32, record: &IrqRecord) -> Result<Outcome, Error> {
    let left_alone = |reason: String| Ok(Outcome::LeftAlone { reason });
    let interrupts = host.interrupts()?;
    // An interface that is down has no handler, but its interrupt keeps its affinity; one that has another name by now
    // has handlers of that name.
    let actions = interrupts
        .get(irq)
        .map(|line| line.actions.as_slice())
        .unwrap_or_default();
    let is_of_device = |device: &String| host.device_has_irq(device, irq);
    let is_same =
        actions.contains(&record.name) || record.device.as_ref().is_some_and(is_of_device);
    if !actions.is_empty() && !is_same {
        return left_alone(format!("the number belongs to {} now", actions.join(", ")));
    }
    let current = match host.irq_affinity(irq) {
        Ok(current) => current,
        Err(error) if error.is_missing() => return left_alone("it does not exist any more".into()),
        Err(error) => return Err(error.into()),
    };
    let is_original = current == record.original;
    let is_from_us = current == record.set || Some(&current) == record.before.as_ref();
    if !is_original && !is_from_us {
        return left_alone(format!(
            "something else moved it to CPU {current} meanwhile"
        ));
    }
    host.set_irq_affinity(irq, &record.original)?;
    // A move is carried out by the interrupt that follows. Where none came before the driver shut it down, the kernel
    // takes what is written now and then, when it is started again, that move.
    let now = last_look(|| host.irq_affinity(irq), |now, _| *now == record.original)?;
    if now != record.original {
        return Err(Error::UndoIncomplete(format!(
            "interrupt {irq} ({}) stays on CPU {now}, because its interface is down and the kernel finishes an earlier \
             move when that comes up; it goes back to CPU {} with the next `kbp attach`, `kbp detach` or `kbp unload` \
             after that",
            record.name, record.original
        )));
    }
    Ok(Outcome::Restored {
        to: record.original.clone(),
    })
}

/// Where an interrupt is asked to go: what two looks in a row show, because one may fall into a move that is just carried
/// out. A move that lasts from one look to the next is still taken for the CPUs of before.
pub(crate) fn settled(host: &Host, irq: u32) -> Result<CpuList, HostError> {
    last_look(|| host.irq_affinity(irq), |now, before| before == Some(now))
}

/// Looks until one is good, which is told from it and from the one before, or until the kernel has had its time. Returns
/// the last.
fn last_look(
    look: impl Fn() -> Result<CpuList, HostError>,
    is_good: impl Fn(&CpuList, Option<&CpuList>) -> bool,
) -> Result<CpuList, HostError> {
    let mut before = None;
    for _ in 0..MOVE_LIMIT.as_micros() / LOOK_EVERY.as_micros() {
        let now = look()?;
        if is_good(&now, before.as_ref()) {
            return Ok(now);
        }
        before = Some(now);
        sleep(LOOK_EVERY);
    }
    look()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Looks at an interrupt that goes from CPU 2 to CPU 0, of which the first ones show where it was.
    fn moving(stale: u32) -> impl Fn() -> Result<CpuList, HostError> {
        let looks = Cell::new(0);
        move || {
            let count = looks.replace(looks.get() + 1);
            Ok(CpuList::one(if count < stale { 2 } else { 0 }))
        }
    }

    #[test]
    fn a_move_that_is_carried_out_just_then_is_waited_for() {
        let to = CpuList::one(0);
        let is_there = |now: &CpuList, _: Option<&CpuList>| *now == to;
        assert_eq!(last_look(moving(3), is_there).unwrap(), to);
        // An interface that is down: nothing carries it out.
        assert_eq!(
            last_look(moving(u32::MAX), is_there).unwrap(),
            CpuList::one(2)
        );
    }

    #[test]
    fn one_look_is_not_believed() {
        let is_same = |now: &CpuList, before: Option<&CpuList>| before == Some(now);
        assert_eq!(last_look(moving(1), is_same).unwrap(), CpuList::one(0));
    }
}
