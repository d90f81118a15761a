// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file that remembers the originals of what was changed, so that it can be undone by another
//! process and after a crash.
//!
//! An original is written here *before* the thing itself is touched. The file belongs to one boot;
//! what an earlier boot left is ignored. What is changed and undone is decided in
//! [`crate::plan`], [`crate::irq_pin`], [`crate::queue_cpus`], [`crate::irqbalance`], [`crate::threaded`],
//! [`crate::busy_poll`], [`crate::setting`], [`crate::governor`], [`crate::placed`] and [`crate::vm`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Class;
use crate::governor::GovernorRecord;
use crate::host::{explain, Host, HostError};
use crate::model::Napi;
use crate::process::Process;
use crate::sched::Scheduling;
use crate::vm::record::{VmGovernorRecord, VmRecord};
use crate::CpuList;

/// Directory of the file, from the root of the host.
const DIRECTORY: &str = "run/kbp";
/// Format of the file; a higher one is not read.
const VERSION: u32 = 1;

/// The state file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It could not be read, written or locked.
    #[error("cannot {what} {}: {}", path.display(), explain(source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It holds something that is not understood.
    #[error(
        "{} is damaged or of another version ({reason}); compare /proc/irq/*/smp_affinity_list with it by hand, then delete it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The identity of this boot could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl StateError {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::Io { source, .. } => match Class::of_io(source) {
                Class::NoPrivilege => Class::NoPrivilege,
                _ => Class::Failure,
            },
            Self::Damaged { .. } => Class::Failure,
            Self::Host(error) => error.class(),
        }
    }
}

/// Who wants an interrupt where it was moved to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum User {
    /// An attached receive queue. Its NAPI instance may become another one when the interface goes
    /// down and up, so it is not named by id.
    Queue {
        /// Number of its interface.
        ifindex: u32,
        /// The receive queue.
        queue: u32,
        /// Cookie of the network namespace of its interface.
        netns_cookie: Option<u64>,
    },
    /// An attached NAPI instance whose queue is not known.
    Napi {
        /// Its id.
        id: u32,
        /// Cookie of the network namespace of its interface.
        netns_cookie: Option<u64>,
    },
    /// Something else, by a name of its own choice.
    Other(String),
}

impl User {
    /// The user that an attached NAPI instance is.
    pub fn of(napi: &Napi) -> Self {
        let netns_cookie = napi.netns_cookie;
        match (napi.ifindex, napi.queue) {
            (Some(ifindex), Some(queue)) => Self::Queue {
                ifindex,
                queue,
                netns_cookie,
            },
            _ => Self::Napi {
                id: napi.napi_id,
                netns_cookie,
            },
        }
    }

    /// Whether this is an attachment that the network namespace with this cookie is sure to see.
    pub fn is_attachment_in(&self, cookie: u64) -> bool {
        match self {
            Self::Queue { netns_cookie, .. } | Self::Napi { netns_cookie, .. } => {
                netns_cookie.is_none_or(|its| its == cookie)
            }
            Self::Other(_) => false,
        }
    }
}

/// An interrupt that was moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqRecord {
    /// Name of its handler.
    pub name: String,
    /// The PCI device that it is of; `None` where that is not known. Another one, or another name where it is not known,
    /// means that the number was given to something else. The name alone does not: it follows that of an interface.
    #[serde(default)]
    pub device: Option<String>,
    /// The affinity that it had.
    pub original: CpuList,
    /// The affinity that it was given.
    pub set: CpuList,
    /// The affinity that we had given it before, until it has `set`: the process may die in between.
    #[serde(default)]
    pub before: Option<CpuList>,
    /// Who wants it there; it goes back when the last one leaves.
    pub users: BTreeSet<User>,
}

/// A file with a mask of CPUs that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskRecord {
    /// What it held.
    pub original: String,
    /// What was written.
    pub set: String,
    /// What we had written before, until `set` is written: the process may die in between.
    #[serde(default)]
    pub before: Option<String>,
}

/// CPUs that the queues of an interface were given, and the files that were written for that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCpusRecord {
    /// Name of its network namespace; `None` where that has none.
    pub netns: Option<String>,
    /// Cookie of that namespace.
    pub netns_cookie: u64,
    /// Its number there.
    pub ifindex: u32,
    /// Its name at that time.
    pub ifname: String,
    /// Its hardware address, by which it is found again in another network namespace; `None` where it has none.
    #[serde(default)]
    pub address: Option<String>,
    /// Transmit queues, each with the CPU of the poller that serves the receive queue of the same number.
    #[serde(default)]
    pub transmit: BTreeMap<u32, u32>,
    /// Receive queues, each with the CPU to whose backlog its packets are steered.
    #[serde(default)]
    pub receive: BTreeMap<u32, u32>,
    /// The files, by their path below the directory of the interface.
    #[serde(default)]
    pub files: BTreeMap<String, MaskRecord>,
}

/// Interrupts that irqbalance was told to leave alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqbalanceRecord {
    /// The irqbalance that was told; another one has not heard of it.
    pub process: Process,
    /// The interrupts that it would have moved, each with those for whose sake it does not.
    pub bans: BTreeMap<u32, BTreeSet<User>>,
}

/// A kernel thread that was moved or given another policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRecord {
    /// Thread id.
    pub tid: u32,
    /// Its name; another one means that the id was given to another thread.
    pub comm: String,
    /// The CPUs that it could run on.
    pub affinity: CpuList,
    /// How it was scheduled.
    pub scheduling: Scheduling,
}

/// An interface whose threaded NAPI was switched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadedRecord {
    /// Name of its network namespace; `None` for the one that a login has.
    #[serde(default)]
    pub netns: Option<String>,
    /// What /sys/class/net/DEV/threaded held.
    pub original: String,
    /// Its threads that were changed.
    pub threads: Vec<ThreadRecord>,
}

/// A file of /proc/sys or /sys that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingRecord {
    /// Its path from the root of the host.
    pub file: String,
    /// Name of the network namespace that it was seen from; `None` for the one that a login has.
    pub netns: Option<String>,
    /// Cookie of that namespace; another one means that the name was given to another namespace.
    pub netns_cookie: u64,
    /// What it held, without white space around it.
    pub original: String,
}

/// A NAPI instance whose own threading was set through the netdev family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiRecord {
    /// Name of the network namespace of its interface; `None` for the one that a login has.
    pub netns: Option<String>,
    /// Cookie of that namespace.
    pub netns_cookie: u64,
    /// Its interface.
    pub ifname: String,
    /// The threading that it had, as the family numbers it.
    pub original: u32,
    /// Its thread, when that was changed.
    pub thread: Option<ThreadRecord>,
}

/// A mechanism that a process has set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MechanismRecord {
    /// Its name.
    pub name: String,
    /// The process that undoes it; when it has ended, the next one does.
    pub process: Process,
}

/// Everything that has to be undone one day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    boot_id: String,
    /// Interrupts by number.
    #[serde(default)]
    pub irqs: BTreeMap<u32, IrqRecord>,
    /// CPUs of queues, by interface.
    #[serde(default)]
    pub queue_cpus: Vec<QueueCpusRecord>,
    /// Backlogs that were attached for interfaces that are steered there, by CPU: who was to serve each before, as
    /// the family numbers it.
    #[serde(default)]
    pub backlogs: BTreeMap<u32, u32>,
    /// What irqbalance was told.
    #[serde(default)]
    pub irqbalance: Option<IrqbalanceRecord>,
    /// Interfaces by `name@cookie of the network namespace`.
    #[serde(default)]
    pub threaded: BTreeMap<String, ThreadedRecord>,
    /// Governors of frequencies, each under the first of the CPUs that have it.
    #[serde(default)]
    pub governors: BTreeMap<u32, GovernorRecord>,
    /// Virtual machines that were tuned.
    #[serde(default)]
    pub vms: Vec<VmRecord>,
    /// Governors of their CPUs, each under the first of the CPUs that have it.
    #[serde(default)]
    pub vm_governors: BTreeMap<u32, VmGovernorRecord>,
    /// Files, in the order in which they were written.
    #[serde(default)]
    pub settings: Vec<SettingRecord>,
    /// NAPI instances by id.
    #[serde(default)]
    pub napis: BTreeMap<u32, NapiRecord>,
    /// Kernel threads that belong to none of the above.
    #[serde(default)]
    pub threads: Vec<ThreadRecord>,
    /// The mechanism that is set up; there is at most one.
    #[serde(default)]
    pub mechanism: Option<MechanismRecord>,
    /// The process that loaded our kernel module for a mechanism and is to unload it.
    #[serde(default)]
    pub module: Option<Process>,
}

/// The state with its file, locked against other processes until it is dropped.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// What is remembered; [`StateFile::save`] writes it down.
    pub state: State,
    _lock: File,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { what, path, source }
}

/// Read the state without locking it, for display; empty when there is no file.
pub fn peek(host: &Host) -> Result<State, StateError> {
    read(&host.path(DIRECTORY).join("state.json"), &host.boot_id()?)
}

fn read(path: &Path, boot_id: &str) -> Result<State, StateError> {
    let fresh = State {
        version: VERSION,
        boot_id: boot_id.into(),
        ..State::default()
    };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(fresh),
        Err(source) => return Err(io_error("read", path)(source)),
    };
    let damaged = |reason: String| StateError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let state: State = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
    if state.version != VERSION {
        return Err(damaged(format!("version {}", state.version)));
    }
    Ok(if state.boot_id == boot_id {
        state
    } else {
        fresh
    })
}

impl StateFile {
    /// Lock and read the state of this host; waits for another process that has it.
    pub fn open(host: &Host) -> Result<Self, StateError> {
        let directory = host.path(DIRECTORY);
        fs::create_dir_all(&directory).map_err(io_error("create", &directory))?;
        let lock_path = directory.join("lock");
        let lock = File::create(&lock_path).map_err(io_error("create", &lock_path))?;
        lock.lock().map_err(io_error("lock", &lock_path))?;
        let path = directory.join("state.json");
        let state = read(&path, &host.boot_id()?)?;
        Ok(Self {
            path,
            state,
            _lock: lock,
        })
    }

    /// Write the state down; a reader sees the old or the new one, never a part.
    pub fn save(&self) -> Result<(), StateError> {
        let temporary = self.path.with_extension("json.new");
        let text = serde_json::to_string_pretty(&self.state).map_err(|e| StateError::Damaged {
            path: self.path.clone(),
            reason: e.to_string(),
        })?;
        fs::write(&temporary, text + "\n").map_err(io_error("write", &temporary))?;
        fs::rename(&temporary, &self.path).map_err(io_error("replace", &self.path))
    }
}
