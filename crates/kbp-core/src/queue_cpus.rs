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
use crate::queue_goals::{goals, read_new, same, Goal, Purpose};
use crate::state::{MaskRecord, QueueCpusRecord, State, StateError, StateFile};
use crate::steer;
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
    /// It was written over what somebody else had written meanwhile; that is its original now.
    Adopted {
        /// What it holds now.
        to: String,
        /// What is remembered as its original.
        original: String,
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
            Outcome::Adopted { to, original } => write!(
                f,
                "is '{to}' now; it gets back '{original}', which something else wrote meanwhile"
            ),
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

    pub(crate) fn path(self, queue: u32) -> String {
        format!("queues/{}{queue}/{}", self.prefix(), self.file())
    }

    /// The queue that a directory in `queues` is of.
    pub(crate) fn of_directory(name: &str) -> Option<(Self, u32)> {
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
}

fn directory(ifname: &str) -> String {
    format!("sys/class/net/{ifname}")
}

/// Whether the interface has the file of this queue and an answer in it. A device may have fewer transmit than receive
/// queues; a kernel without XPS has no such file.
pub fn has_file(
    host: &Host,
    ifname: &str,
    direction: Direction,
    queue: u32,
) -> Result<bool, HostError> {
    let path = format!("{}/{}", directory(ifname), direction.path(queue));
    Ok(read_new(host, &path)?.is_some())
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
    let record = with_wishes(state, whose, wishes);
    let all = goals(host, &base, &record, Purpose::Give)?;
    all.failed.into_iter().next().map_or(Ok(()), Err)?;
    let changes = all.goals.into_iter();
    let changes = changes.filter(|goal| !same(&goal.now, &goal.to));
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
    let mut record = with_wishes(&memory.state, whose, wishes);
    let address = host.read_optional(&format!("{}/address", directory(&whose.ifname)))?;
    record.address = address
        .map(|text| text.trim().to_owned())
        .filter(|text| text.bytes().any(|byte| !matches!(byte, b'0' | b':')));
    let records = &mut memory.state.queue_cpus;
    let at = records.iter().position(|record| record.is_of(whose));
    let at = at.unwrap_or(records.len());
    match records.get_mut(at) {
        Some(known) => *known = record,
        None => records.push(record),
    }
    memory.save()?;
    reach_goals(host, memory, at, &whose.ifname, Purpose::Give)
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
            Some(ifname) => reach_goals(host, memory, at, &ifname, Purpose::TakeBack).map(Some),
            None => Ok(None),
        }
    })?;
    let (written, is_over) = match seen.unwrap_or(Ok(None))? {
        Some(written) => (written, record.is_idle()),
        None => (settle_away(host, memory, at)?, true),
    };
    if is_over {
        memory.state.queue_cpus.remove(at);
    }
    memory.save()?;
    Ok(written)
}

/// An interface that is not where it was may have gone to another network namespace, and its files with it: they go
/// back there, for nothing is steered any more. One that is nowhere has no file that could be put back.
fn settle_away(host: &Host, memory: &mut StateFile, at: usize) -> Result<Vec<Written>, Error> {
    let record = &mut memory.state.queue_cpus[at];
    record.transmit.clear();
    record.receive.clear();
    let address = record.address.clone();
    memory.save()?;
    let Some(address) = address.filter(|_| host.is_system()) else {
        return Ok(Vec::new());
    };
    let written = netns::with_address(&address, |ifname| {
        reach_goals(host, memory, at, ifname, Purpose::TakeBack)
    })?;
    written.unwrap_or(Ok(Vec::new()))
}

fn reach_goals(
    host: &Host,
    memory: &mut StateFile,
    at: usize,
    ifname: &str,
    purpose: Purpose,
) -> Result<Vec<Written>, Error> {
    let base = directory(ifname);
    let all = goals(host, &base, &memory.state.queue_cpus[at], purpose)?;
    let mut failed: Vec<Error> = all.failed.into_iter().map(Error::from).collect();
    let mut done = Vec::new();
    for goal in all.goals {
        let outcome = match (goal.to == goal.original, purpose) {
            (true, _) => put_back(host, memory, at, &base, &goal),
            (false, Purpose::Give) => set(host, memory, at, &base, &goal),
            (false, Purpose::TakeBack) => set_less(host, memory, at, &base, &goal),
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
    let remembered = memory.state.clone();
    let is_there = same(&goal.now, &goal.to);
    let mask = MaskRecord {
        original: goal.original.clone(),
        set: goal.to.clone(),
        before: Some(goal.now.clone()).filter(|now| !is_there && !same(now, &goal.original)),
    };
    remember(memory, at, &goal.file, mask)?;
    if is_there {
        return Ok(None);
    }
    if let Err(error) = host.write(&format!("{base}/{}", goal.file), &goal.to) {
        memory.state = remembered;
        memory.save()?;
        return Err(refusal(goal, error));
    }
    let files = &mut memory.state.queue_cpus[at].files;
    let before = files
        .get_mut(&goal.file)
        .and_then(|mask| mask.before.take());
    if before.is_some() {
        memory.save()?;
    }
    let (to, original) = (goal.to.clone(), goal.original.clone());
    Ok(Some(match goal.is_foreign {
        true => Outcome::Adopted { to, original },
        false => Outcome::Set { to },
    }))
}

fn remember(
    memory: &mut StateFile,
    at: usize,
    file: &str,
    mask: MaskRecord,
) -> Result<(), StateError> {
    let files = &mut memory.state.queue_cpus[at].files;
    if files.get(file) == Some(&mask) {
        return Ok(());
    }
    files.insert(file.to_owned(), mask);
    memory.save()
}

/// What a write that failed means.
fn refusal(goal: &Goal, error: HostError) -> Error {
    let cpus = CpuList::from_mask(&goal.to).unwrap_or_default();
    match (goal.direction, error.errno()) {
        (Direction::Receive, Some(libc::EINVAL)) => steer::isolated(&cpus),
        _ => error.into(),
    }
}

/// Writes what other wishes leave of a file when one has ended. A file that this does not concern stays as it is,
/// whatever it holds by now.
fn set_less(
    host: &Host,
    memory: &mut StateFile,
    at: usize,
    base: &str,
    goal: &Goal,
) -> Result<Option<Outcome>, Error> {
    let known = memory.state.queue_cpus[at].files.get(&goal.file);
    if known.is_some_and(|mask| mask.before.is_none() && same(&mask.set, &goal.to)) {
        return Ok(None);
    }
    if goal.is_foreign {
        let found = goal.now.clone();
        return Ok(Some(Outcome::LeftAlone { found }));
    }
    set(host, memory, at, base, goal)
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
    } else if !mask.is_from_us(&goal.now) {
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

    #[test]
    fn the_kernels_refusal_of_an_isolated_cpu_is_the_sentence_of_the_plan() {
        let refused = |direction, errno| {
            let text = |text: &str| text.to_owned();
            let goal = Goal {
                direction,
                file: text("queues/rx-0/rps_cpus"),
                now: text("0"),
                original: text("0"),
                to: text("4"),
                is_foreign: false,
            };
            let error = HostError::Write {
                path: "rps_cpus".into(),
                value: text("4"),
                source: std::io::Error::from_raw_os_error(errno),
            };
            refusal(&goal, error).to_string()
        };
        let sentence = refused(Direction::Receive, libc::EINVAL);
        assert_eq!(sentence, steer::isolated(&CpuList::one(2)).to_string());
        for other in [
            refused(Direction::Receive, libc::EBUSY),
            refused(Direction::Transmit, libc::EINVAL),
        ] {
            assert!(other.contains("cannot write '4'"), "{other}");
        }
    }
}
