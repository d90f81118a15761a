// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The error of this crate and its classes, which the binary turns into exit codes.
//!
//! Every message is one plain sentence that says what is wrong and, where there is one, the way
//! out. The words that concern one module only are in that module's own error type.

use crate::client::ClientError;
use crate::host::HostError;
use crate::module::ModuleError;
use crate::napi_netlink::NetdevError;
use crate::netns::NetnsError;
use crate::setup::SetupError;
use crate::state::StateError;

/// What kind of failure an error is. The numbers are the exit codes of `kbp` and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Something failed that is none of the kinds below.
    Failure = 1,
    /// The request itself is wrong: an option, a value out of range, a malformed name.
    Usage = 2,
    /// The kernel module is not loaded.
    NotLoaded = 3,
    /// This kernel or device can't do what was asked for.
    Unsupported = 4,
    /// The caller lacks the privilege.
    NoPrivilege = 5,
    /// The interface, queue, CPU, poller or attachment does not exist.
    NotFound = 6,
    /// It exists already or something else holds it.
    Conflict = 7,
    /// A time limit passed.
    TimedOut = 8,
    /// A change failed and putting things back failed too: the host is left changed.
    LeftChanged = 9,
    /// A part of what was asked for could not be done; all the rest is done.
    Incomplete = 10,
}

impl Class {
    /// The exit code.
    pub const fn exit_code(self) -> u8 {
        self as u8
    }

    /// The class of an errno that the kernel answered with.
    pub fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EACCES => Self::NoPrivilege,
            libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ESRCH => Self::NotFound,
            libc::EEXIST | libc::EBUSY | libc::EALREADY | libc::EAGAIN => Self::Conflict,
            libc::EOPNOTSUPP | libc::ENOSYS => Self::Unsupported,
            libc::EINVAL | libc::ERANGE | libc::E2BIG => Self::Usage,
            libc::ETIMEDOUT => Self::TimedOut,
            _ => Self::Failure,
        }
    }

    /// The class of an input or output error.
    pub fn of_io(error: &std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::Failure, Self::of_errno)
    }
}

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of /proc or /sys could not be read, written or understood.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The netlink family refused or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Loading or unloading the kernel module failed.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The file that remembers originals could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file with the setup could not be read, written or understood.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A network namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel's own netlink family for network devices refused or could not be reached.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// No such interface.
    #[error("there is no interface '{name}' in this network namespace; `ip link` lists them")]
    UnknownInterface {
        /// The name that was asked for.
        name: String,
    },
    /// No such receive queue.
    #[error("{ifname} has no receive queue {queue}; it has {queues}, numbered from 0")]
    UnknownQueue {
        /// The interface.
        ifname: String,
        /// The queue that was asked for.
        queue: u32,
        /// How many receive queues there are.
        queues: u32,
    },
    /// The CPU is offline or does not exist.
    #[error("CPU {cpu} is not online; the online CPUs are {online}")]
    CpuOffline {
        /// The CPU that was asked for.
        cpu: u32,
        /// The online CPUs in list format.
        online: String,
    },
    /// No interrupt vector could be matched to a receive queue.
    #[error("{reason}; use --no-irq to attach without moving the interrupt")]
    NoVector {
        /// Why there is no match.
        reason: String,
    },
    /// Nothing that matches is attached.
    #[error("{what} is not attached; `kbp show` lists what is")]
    NotAttached {
        /// The interface, queue or NAPI id.
        what: String,
    },
    /// The poller is not there.
    #[error("CPU {cpu} has no poller; create it with `kbp poller add --cpu {cpu}`, `kbp poller show` lists them")]
    NoPoller {
        /// The CPU that was asked for.
        cpu: u32,
    },
    /// It is attached already.
    #[error(
        "{what} is already attached to the poller of CPU {cpu}; detach it first with `kbp detach`"
    )]
    AlreadyAttached {
        /// The NAPI instance.
        what: String,
        /// CPU of its poller.
        cpu: u32,
    },
    /// Something that was named, or that it needs, is not there.
    #[error("{0}")]
    NotFound(String),
    /// Something else is in the way.
    #[error("{0}")]
    Conflict(String),
    /// A request that contradicts itself or the host.
    #[error("{0}")]
    Usage(String),
    /// The kernel or device lacks what is needed.
    #[error("{0}")]
    Unsupported(String),
    /// What a command waits for did not happen.
    #[error("{0}")]
    TimedOut(String),
    /// A step failed, the earlier ones were undone.
    #[error("{step}: {cause}; everything was put back as it was")]
    RolledBack {
        /// The step that failed.
        step: String,
        /// Why.
        cause: Box<Error>,
    },
    /// A step failed, and undoing the earlier ones failed too.
    #[error("{step}: {cause}; putting it back failed too: {left}")]
    LeftChanged {
        /// The step that failed.
        step: String,
        /// Why.
        cause: Box<Error>,
        /// What could not be put back, and why.
        left: String,
    },
    /// A part of what was asked for could not be done; the rest was.
    #[error("{0}")]
    Incomplete(String),
    /// A part of an undo failed; the rest was done.
    #[error("not everything could be put back: {0}")]
    UndoIncomplete(String),
}

impl Error {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::Host(e) => e.class(),
            Self::Client(e) => e.class(),
            Self::Module(e) => e.class(),
            Self::State(e) => e.class(),
            Self::Setup(e) => e.class(),
            Self::Netns(e) => e.class(),
            Self::Netdev(e) => e.class(),
            Self::UnknownInterface { .. } | Self::UnknownQueue { .. } => Class::NotFound,
            Self::CpuOffline { .. } | Self::NotAttached { .. } => Class::NotFound,
            Self::NoPoller { .. } | Self::NotFound(_) => Class::NotFound,
            Self::AlreadyAttached { .. } | Self::Conflict(_) => Class::Conflict,
            Self::NoVector { .. } | Self::Unsupported(_) => Class::Unsupported,
            Self::Usage(_) => Class::Usage,
            Self::TimedOut(_) => Class::TimedOut,
            Self::Incomplete(_) => Class::Incomplete,
            Self::RolledBack { cause, .. } => cause.class(),
            Self::LeftChanged { .. } | Self::UndoIncomplete(_) => Class::LeftChanged,
        }
    }
}

/// One failure keeps its own words and class; several become one sentence.
pub(crate) fn first_or_all(mut failed: Vec<Error>) -> Result<(), Error> {
    match failed.len() {
        0 => Ok(()),
        1 => Err(failed.remove(0)),
        _ => Err(undo_incomplete(failed)),
    }
}

/// That these kept an undo from its end.
pub(crate) fn undo_incomplete(failed: Vec<Error>) -> Error {
    let words = failed.into_iter().map(|error| match error {
        Error::UndoIncomplete(words) => words,
        other => other.to_string(),
    });
    Error::UndoIncomplete(words.collect::<Vec<_>>().join("; "))
}
