// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that can keep a topology from being made or removed, each as one sentence with the way out.

use std::io;

use super::netlink::Refusal;
use super::Kind;

/// A topology could not be made, read or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller may not make namespaces and interfaces.
    #[error("cannot {what}: that needs CAP_SYS_ADMIN and CAP_NET_ADMIN; run it as root")]
    NoPrivilege {
        /// What was tried.
        what: String,
    },
    /// A value of the specification is wrong.
    #[error("{0}")]
    Argument(String),
    /// This machine or kernel can't do it.
    #[error("the topology {kind} cannot be made here: {reason}")]
    CannotRun {
        /// The kind asked for.
        kind: Kind,
        /// Why not, and what would help.
        reason: String,
    },
    /// There is one of that name.
    #[error("there is a topology '{name}' already; remove it with `kbp topo del {name}`, or give this one another name with --name")]
    Exists {
        /// Its name.
        name: String,
    },
    /// Something has a name or an address that is needed.
    #[error("{what} is in the way; remove it first ({remedy})")]
    Taken {
        /// What exists.
        what: String,
        /// How to remove it.
        remedy: String,
    },
    /// There is none of that name.
    #[error("there is no topology '{name}'; `kbp topo show` lists those that there are")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// Another process works on topologies and does not end.
    #[error("another process has been adding or removing a topology for {waited_s} s: {what}; wait for its end and try again")]
    Busy {
        /// By what that is known.
        what: String,
        /// How long this one waited.
        waited_s: u64,
    },
    /// An interrupt came; what was made is gone again.
    #[error("interrupted; what was made of the topology '{name}' was removed again")]
    Interrupted {
        /// Its name.
        name: String,
    },
    /// A step failed; what was made before it is gone again.
    #[error("cannot {step}: {reason}; what was made before was removed again")]
    Step {
        /// The step, as `--dry-run` prints it.
        step: String,
        /// Why it failed.
        reason: Box<Error>,
    },
    /// Not everything could be removed.
    #[error("of the topology '{name}' this could not be removed: {}; put that right and run `kbp topo del {name}` again", .what.join("; "))]
    LeftBehind {
        /// Its name.
        name: String,
        /// What is left, each with its reason.
        what: Vec<String>,
        /// Why it was being removed, where that was a failure.
        #[source]
        after: Option<Box<Error>>,
    },
    /// The kernel refused a request.
    #[error("the kernel refuses: {0}")]
    Refused(Refusal),
    /// A system call or a file failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {detail}")]
    Program {
        /// The program.
        program: String,
        /// The end of what it said.
        detail: String,
    },
    /// A file or an answer makes no sense.
    #[error("{what} is not understood: {detail}")]
    Malformed {
        /// The file or the answer.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A condition did not come true.
    #[error("{what} after {limit_ms} ms; {remedy}")]
    TimedOut {
        /// What did not happen, as the start of a sentence.
        what: String,
        /// The time limit.
        limit_ms: u64,
        /// What may help.
        remedy: String,
    },
}

/// The result of everything that topologies do.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failed system call, to be used with `map_err`.
    pub(crate) fn sys<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
        let what = what.into();
        move |source| Error::System {
            what,
            source: source.into(),
        }
    }

    /// Whether the thing in question is simply not there (any more).
    pub(crate) fn is_gone(&self) -> bool {
        let errno = match self {
            Error::Refused(refusal) => Some(refusal.errno),
            Error::System { source, .. } => source.raw_os_error(),
            _ => None,
        };
        use nix::errno::Errno;
        matches!(
            errno.map(Errno::from_raw),
            Some(Errno::ENOENT | Errno::ENODEV | Errno::EADDRNOTAVAIL | Errno::ESRCH)
        )
    }
}
