// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs of an interface's queues, in the mask files of /sys: which CPUs send through a transmit queue (XPS,
//! `xps_cpus`), and to which CPU's backlog the packets of a receive queue are steered (RPS, `rps_cpus`).
//!
//! Remembered are the wishes, by queue, and the originals, by file; from both follows what each file is to hold. So
//! one wish may end while others stay. A poller's CPU sends through the transmit queues whose receive queues its
//! poller serves and through no other; the CPUs without a poller keep the queues that they had.
//!
//! Which queue is served where is decided in [`crate::plan`].

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::{first_or_all, Error};
use crate::host::{Host, HostError};
use crate::netns;
use crate::state::{MaskRecord, QueueCpusRecord, State, StateFile};
use crate::CpuList;

/// Which way the packets of a queue go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// XPS.
    Transmit,
    /// RPS.
    Receive,
}

/// An interface, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// Name of its network namespace, where that has one.
    pub netns: Option<String>,
    /// Cookie of that namespace.
    pub netns_cookie: u64,
    /// Its number there.
    pub ifindex: u32,
    /// Its name now.
    pub ifname: String,
}

/// A CPU for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Which way.
    pub direction: Direction,
    /// The queue, from 0.
    pub queue: u32,
    /// The CPU.
    pub cpu: u32,
}

/// A file and what is to be written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file, from the root of the host.
    pub file: String,
    /// What it holds now.
    pub from: String,
    /// What it is to hold.
    pub to: String,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// The interface.
    pub ifname: String,
    /// The file, below the interface's directory.
    pub file: String,
    /// What happened.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What happened to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It was written, and its original is remembered.
    Set {
        /// What it holds now.
        to: String,
    },
    /// It holds its original again.
    Restored {
        /// That original.
        to: String,
    },
    /// It was not touched, because it is not as it was left.
    LeftAlone {
        /// What it holds.
        found: String,
    },
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ", self.ifname, self.file)?;
        match &self.outcome {
            Outcome::Set { to } => write!(f, "is '{to}' now"),
            Outcome::Restored { to } => write!(f, "is '{to}' again"),
            Outcome::LeftAlone { found } => {
                write!(
                    f,
                    "was left alone: something else wrote '{found}' meanwhile"
                )
            }
        }
    }
}

impl Direction {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Transmit => "tx-",
            Self::Receive => "rx-",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Transmit => "xps_cpus",
            Self::Receive => "rps_cpus",
        }
    }

    fn path(self, queue: u32) -> String {
        format!("queues/{}{queue}/{}", self.prefix(), self.file())
    }

    /// The queue that a directory in `queues` is of.
    fn of_directory(name: &str) -> Option<(Self, u32)> {
        [Self::Transmit, Self::Receive]
            .into_iter()
            .find_map(|direction| {
                let number = name.strip_prefix(direction.prefix())?;
                Some((direction, number.parse().ok()?))
            })
    }
}

impl QueueCpusRecord {
    /// The wishes of one direction, by queue.
    pub fn wishes(&self, direction: Direction) -> &BTreeMap<u32, u32> {
        match direction {
            Direction::Transmit => &self.transmit,
            Direction::Receive => &self.receive,
        }
    }

    fn is_idle(&self) -> bool {
        self.transmit.is_empty() && self.receive.is_empty()
    }

    fn add(&mut self, wish: Wish) {
        match wish.direction {
            Direction::Transmit => self.transmit.insert(wish.queue, wish.cpu),
            Direction::Receive => self.receive.insert(wish.queue, wish.cpu),
        };
    }

    fn is_of(&self, whose: &Whose) -> bool {
        self.netns_cookie == whose.netns_cookie && self.ifindex == whose.ifindex
    }

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

/// What a file holds and is to hold.
struct Goal {
    /// Below the interface's directory.
    file: String,
    now: String,
    original: String,
    to: String,
}

/// Two texts of one mask: the kernel pads with zeros what we don't.
fn same(a: &str, b: &str) -> bool {
    a == b || CpuList::from_mask(a).is_some_and(|cpus| Some(cpus) == CpuList::from_mask(b))
}

fn directory(ifname: &str) -> String {
    format!("sys/class/net/{ifname}")
}

/// The files of an interface that its wishes concern, or that were written for earlier ones.
fn goals(host: &Host, base: &str, record: &QueueCpusRecord) -> Result<Vec<Goal>, HostError> {
    let mut goals = Vec::new();
    for name in host.list(&format!("{base}/queues"))? {
        let Some((direction, queue)) = Direction::of_directory(&name) else {
            continue;
        };
        let file = direction.path(queue);
        let known = record.files.get(&file);
        let concerned = match direction {
            Direction::Transmit => !record.transmit.is_empty(),
            Direction::Receive => record.receive.contains_key(&queue),
        };
        if known.is_none() && !concerned {
            continue;
        }
        let path = format!("{base}/{file}");
        let Some(now) = host.read_optional(&path)? else {
            continue;
        };
        let original = known.map_or_else(|| now.clone(), |mask| mask.original.clone());
        let cpus = CpuList::from_mask(&original)
            .ok_or_else(|| host.malformed(&path, &format!("'{original}' is no mask of CPUs")))?;
        let wanted = record.wanted(direction, queue, &cpus);
        let to = match wanted == cpus {
            true => original.clone(),
            false => wanted.to_mask(),
        };
        goals.push(Goal {
            file,
            now,
            original,
            to,
        });
    }
    Ok(goals)
}

/// Whether the interface has the file of this queue. A device with one transmit queue has `xps_cpus` and no answer in
/// it, and may have fewer transmit than receive queues; a kernel without XPS has no such file.
pub fn has_file(
    host: &Host,
    ifname: &str,
    direction: Direction,
    queue: u32,
) -> Result<bool, HostError> {
    let path = format!("{}/{}", directory(ifname), direction.path(queue));
    Ok(host.read_optional(&path)?.is_some())
}

fn with_wishes(state: &State, whose: &Whose, wishes: &[Wish]) -> QueueCpusRecord {
    let known = state.queue_cpus.iter().find(|record| record.is_of(whose));
    let mut record = known.cloned().unwrap_or_else(|| QueueCpusRecord {
        netns: whose.netns.clone(),
        netns_cookie: whose.netns_cookie,
        ifindex: whose.ifindex,
        ..QueueCpusRecord::default()
    });
    record.ifname = whose.ifname.clone();
    wishes.iter().for_each(|wish| record.add(*wish));
    record
}

/// What [`give`] would write.
pub fn preview(
    host: &Host,
    state: &State,
    whose: &Whose,
    wishes: &[Wish],
) -> Result<Vec<Change>, HostError> {
    let base = directory(&whose.ifname);
    let goals = goals(host, &base, &with_wishes(state, whose, wishes))?;
    let changes = goals.into_iter().filter(|goal| !same(&goal.now, &goal.to));
    Ok(changes
        .map(|goal| Change {
            file: format!("{base}/{}", goal.file),
            from: goal.now,
            to: goal.to,
        })
        .collect())
}

/// Give queues of an interface in the calling thread's network namespace to CPUs.
pub fn give(
    host: &Host,
    memory: &mut StateFile,
    whose: &Whose,
    wishes: &[Wish],
) -> Result<Vec<Written>, Error> {
    let record = with_wishes(&memory.state, whose, wishes);
    let records = &mut memory.state.queue_cpus;
    let at = records.iter().position(|record| record.is_of(whose));
    let at = at.unwrap_or(records.len());
    match records.get_mut(at) {
        Some(known) => *known = record,
        None => records.push(record),
    }
    memory.save()?;
    reach_goals(host, memory, at, &whose.ifname)
}

/// End every wish for which `ends` says so (the interface's record, the wish); files go back that no other wish of the
/// interface concerns. `own` is the cookie of the calling thread's namespace; other namespaces are entered. What can't
/// be put back stays remembered and is named in the error; the rest is still done.
pub fn take_back(
    host: &Host,
    memory: &mut StateFile,
    own: u64,
    ends: impl Fn(&QueueCpusRecord, &Wish) -> bool,
) -> Result<Vec<Written>, Error> {
    end_wishes(host, memory, own, false, ends)
}

/// End every wish, and try again what could not be put back before.
pub fn take_back_all(host: &Host, memory: &mut StateFile, own: u64) -> Result<Vec<Written>, Error> {
    end_wishes(host, memory, own, true, |_, _| true)
}

fn end_wishes(
    host: &Host,
    memory: &mut StateFile,
    own: u64,
    again: bool,
    ends: impl Fn(&QueueCpusRecord, &Wish) -> bool,
) -> Result<Vec<Written>, Error> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    // From the last, because a record may go.
    for at in (0..memory.state.queue_cpus.len()).rev() {
        let record = &mut memory.state.queue_cpus[at];
        let before = record.clone();
        let stays = |direction| {
            let (before, ends) = (&before, &ends);
            move |queue: &u32, cpu: &mut u32| {
                let wish = Wish {
                    direction,
                    queue: *queue,
                    cpu: *cpu,
                };
                !ends(before, &wish)
            }
        };
        record.transmit.retain(stays(Direction::Transmit));
        record.receive.retain(stays(Direction::Receive));
        // One without wishes is there because its files could not be put back the last time.
        if *record == before && !(again && record.is_idle()) {
            continue;
        }
        match settle(host, memory, own, at) {
            Ok(written) => done.extend(written),
            Err(error) => failed.push(error),
        }
    }
    first_or_all(failed)?;
    Ok(done)
}

/// Has the files of an interface follow its wishes, wherever it is, and forgets it when there is nothing left to undo.
fn settle(host: &Host, memory: &mut StateFile, own: u64, at: usize) -> Result<Vec<Written>, Error> {
    let record = memory.state.queue_cpus[at].clone();
    memory.save()?;
    let seen = netns::inside(own, record.netns_cookie, || {
        match host.interface_with_index(record.ifindex)? {
            Some(ifname) => reach_goals(host, memory, at, &ifname).map(Some),
            None => Ok(None),
        }
    })?;
    // Without its namespace, or without the interface, there is no file that could be put back.
    let written = seen.unwrap_or(Ok(None))?;
    if written.is_none() || record.is_idle() {
        memory.state.queue_cpus.remove(at);
    }
    memory.save()?;
    Ok(written.unwrap_or_default())
}

fn reach_goals(
    host: &Host,
    memory: &mut StateFile,
    at: usize,
    ifname: &str,
) -> Result<Vec<Written>, Error> {
    let base = directory(ifname);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for goal in goals(host, &base, &memory.state.queue_cpus[at])? {
        let outcome = match goal.to == goal.original {
            true => put_back(host, memory, at, &base, &goal),
            false => set(host, memory, at, &base, &goal),
        };
        match outcome {
            Ok(outcome) => done.extend(outcome.map(|outcome| Written {
                ifname: ifname.into(),
                file: goal.file,
                outcome,
            })),
            Err(error) => failed.push(error),
        }
    }
    first_or_all(failed)?;
    Ok(done)
}

fn set(
    host: &Host,
    memory: &mut StateFile,
    at: usize,
    base: &str,
    goal: &Goal,
) -> Result<Option<Outcome>, Error> {
    let before = memory.state.clone();
    let mask = MaskRecord {
        original: goal.original.clone(),
        set: goal.to.clone(),
    };
    let files = &mut memory.state.queue_cpus[at].files;
    files.insert(goal.file.clone(), mask);
    if memory.state != before {
        memory.save()?;
    }
    if same(&goal.now, &goal.to) {
        return Ok(None);
    }
    if let Err(error) = host.write(&format!("{base}/{}", goal.file), &goal.to) {
        memory.state = before;
        memory.save()?;
        return Err(error.into());
    }
    Ok(Some(Outcome::Set {
        to: goal.to.clone(),
    }))
}

fn put_back(
    host: &Host,
    memory: &mut StateFile,
    at: usize,
    base: &str,
    goal: &Goal,
) -> Result<Option<Outcome>, Error> {
    let files = &mut memory.state.queue_cpus[at].files;
    let Some(mask) = files.get(&goal.file) else {
        return Ok(None);
    };
    let outcome = if same(&goal.now, &goal.original) {
        None
    } else if !same(&goal.now, &mask.set) {
        let found = goal.now.clone();
        Some(Outcome::LeftAlone { found })
    } else {
        match host.write(&format!("{base}/{}", goal.file), &goal.original) {
            // A queue or interface that went in this moment has nothing to put back.
            Err(error) if error.is_missing() => None,
            other => {
                other?;
                let to = goal.original.clone();
                Some(Outcome::Restored { to })
            }
        }
    };
    files.remove(&goal.file);
    memory.save()?;
    Ok(outcome)
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
