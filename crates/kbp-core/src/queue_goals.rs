// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the mask files of an interface's queues are to hold: it follows from the wishes, from what was there before us,
//! and from what is there now. Written are they in [`crate::queue_cpus`].

use crate::host::{Host, HostError};
use crate::queue_cpus::Direction;
use crate::state::{MaskRecord, QueueCpusRecord};
use crate::CpuList;

impl QueueCpusRecord {
    /// Which CPUs a file is to hold that held `original` before us.
    fn wanted(&self, direction: Direction, queue: u32, original: &CpuList) -> CpuList {
        let own = self.wishes(direction).get(&queue).copied();
        match direction {
            Direction::Receive => own.map_or_else(|| original.clone(), CpuList::one),
            Direction::Transmit => {
                let pollers: Vec<u32> = self.transmit.values().copied().collect();
                let others = original.iter().filter(|cpu| !pollers.contains(cpu));
                others.chain(own).collect()
            }
        }
    }
}

impl MaskRecord {
    /// Whether it is from us what a file holds. A process that died may have remembered the next text and not written
    /// it.
    pub(crate) fn is_from_us(&self, now: &str) -> bool {
        let before = self.before.as_ref();
        same(now, &self.set) || before.is_some_and(|before| same(now, before))
    }
}

/// Why files are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Wishes were added.
    Give,
    /// Wishes have ended.
    TakeBack,
}

/// What a file holds and is to hold.
pub(crate) struct Goal {
    pub(crate) direction: Direction,
    /// Below the interface's directory.
    pub(crate) file: String,
    pub(crate) now: String,
    pub(crate) original: String,
    pub(crate) to: String,
    /// Somebody else wrote it meanwhile.
    pub(crate) is_foreign: bool,
}

/// The goals of an interface's files, and the files that could not be read.
#[derive(Default)]
pub(crate) struct Goals {
    pub(crate) goals: Vec<Goal>,
    pub(crate) failed: Vec<HostError>,
}

/// Two texts of one mask: the kernel pads with zeros what we don't.
pub(crate) fn same(a: &str, b: &str) -> bool {
    a == b || CpuList::from_mask(a).is_some_and(|cpus| Some(cpus) == CpuList::from_mask(b))
}

/// A mask that was not written so far; `None` where there is none to write. A device with one transmit queue has
/// `xps_cpus` and no answer in it. For a transmit queue of no traffic class, through which nobody sends, the answer is
/// EINVAL.
pub(crate) fn read_new(host: &Host, path: &str) -> Result<Option<String>, HostError> {
    match host.read_optional(path) {
        Err(error) if error.errno() == Some(libc::EINVAL) => Ok(None),
        other => other,
    }
}

/// The files of an interface that its wishes concern, or that were written for earlier ones. When wishes end, only
/// what was written is looked at.
pub(crate) fn goals(
    host: &Host,
    base: &str,
    record: &QueueCpusRecord,
    purpose: Purpose,
) -> Result<Goals, HostError> {
    let mut all = Goals::default();
    for name in host.list(&format!("{base}/queues"))? {
        let Some((direction, queue)) = Direction::of_directory(&name) else {
            continue;
        };
        let concerned = match direction {
            Direction::Transmit => !record.transmit.is_empty(),
            Direction::Receive => record.receive.contains_key(&queue),
        };
        let is_known = record.files.contains_key(&direction.path(queue));
        if !is_known && (!concerned || purpose == Purpose::TakeBack) {
            continue;
        }
        // One file that can't be read is no reason to leave the others as they are.
        match goal(host, base, record, purpose, (direction, queue)) {
            Ok(goal) => all.goals.extend(goal),
            Err(error) => all.failed.push(error),
        }
    }
    Ok(all)
}

fn goal(
    host: &Host,
    base: &str,
    record: &QueueCpusRecord,
    purpose: Purpose,
    (direction, queue): (Direction, u32),
) -> Result<Option<Goal>, HostError> {
    let file = direction.path(queue);
    let path = format!("{base}/{file}");
    let known = record.files.get(&file);
    let now = match known {
        Some(_) => host.read_optional(&path)?,
        None => read_new(host, &path)?,
    };
    let Some(now) = now else {
        return Ok(None);
    };
    let is_foreign =
        known.is_some_and(|mask| !mask.is_from_us(&now) && !same(&now, &mask.original));
    let original = match known {
        Some(mask) if !is_foreign || purpose == Purpose::TakeBack => mask.original.clone(),
        _ => now.clone(),
    };
    let cpus = CpuList::from_mask(&original)
        .ok_or_else(|| host.malformed(&path, &format!("'{original}' is no mask of CPUs")))?;
    let wanted = record.wanted(direction, queue, &cpus);
    let to = match wanted == cpus {
        true => original.clone(),
        false => wanted.to_mask(),
    };
    Ok(Some(Goal {
        direction,
        file,
        now,
        original,
        to,
        is_foreign,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(transmit: &[(u32, u32)]) -> QueueCpusRecord {
        QueueCpusRecord {
            transmit: transmit.iter().copied().collect(),
            ..QueueCpusRecord::default()
        }
    }

    /// What four transmit queues hold that held `originals`.
    fn wanted(record: &QueueCpusRecord, originals: [&str; 4]) -> Vec<String> {
        let of = |(queue, text): (usize, &&str)| {
            let original = text.parse().unwrap();
            record
                .wanted(Direction::Transmit, queue as u32, &original)
                .to_string()
        };
        originals.iter().enumerate().map(of).collect()
    }

    #[test]
    fn a_pollers_cpu_sends_through_the_queues_of_its_poller_and_others_keep_theirs() {
        let all = record(&[(0, 2), (1, 3), (2, 2), (3, 3)]);
        assert_eq!(wanted(&all, ["", "", "", ""]), ["2", "3", "2", "3"]);
        // A driver that has given each CPU a queue.
        let given = ["0", "1", "2", "3"];
        assert_eq!(wanted(&all, given), ["0,2", "1,3", "2", "3"]);
        let one = record(&[(0, 2)]);
        assert_eq!(wanted(&one, given), ["0,2", "1", "", "3"]);
        assert_eq!(wanted(&record(&[]), given), given);
    }

    #[test]
    fn masks_are_compared_as_masks() {
        assert!(same("00000000,00000004", "4") && same("", "") && !same("4", "5"));
        assert!(!same("x", "y"));
    }
}
