// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one error type of this crate. Every variant says what was tried, and where
//! there is a way out, the sentence names it.
//!
//! Not here: printing and exit codes; they belong to the binary `kbp`.

use std::io;
use std::path::{Path, PathBuf};

use kbp_core::Class;

/// What can go wrong while measuring, reading or judging a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read, written or created.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What was tried, as a verb: `read`, `write`, `create`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A system call or a socket operation failed.
    #[error("{what}: {source}")]
    Sys {
        /// What was tried, with its object.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The other end refused the ping.
    #[error(
        "nobody listens at {addr}: start `kbp measure pingpong server --bind {addr}` there first"
    )]
    NobodyListens {
        /// Address of the echo server that was asked for.
        addr: std::net::SocketAddr,
    },
    /// The host could not be read or changed.
    #[error(transparent)]
    Core(#[from] kbp_core::Error),
    /// A parameter does not make sense.
    #[error("{0}")]
    Invalid(String),
    /// A mechanism was set up but is not what serves the packets.
    #[error("mode {mode} is not active: {why}")]
    ModeNotActive {
        /// The mode that was asked for.
        mode: String,
        /// What was seen instead.
        why: String,
    },
    /// A load did not run as it should have.
    #[error("load {load}: {why}")]
    Load {
        /// The load that was asked for.
        load: String,
        /// What was seen instead.
        why: String,
    },
    /// A helper program failed, or said something that could not be understood.
    #[error("{program}: {why}")]
    Program {
        /// Name of the program.
        program: String,
        /// What it did or said.
        why: String,
    },
    /// A result file is not one of ours, or of another version.
    #[error("{}: {why}", path.display())]
    Schema {
        /// The result file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// A thread of the measurement died.
    #[error("the {0} thread ended with a panic; this is a bug in kbp-measure")]
    Panicked(&'static str),
}

impl Error {
    /// What kind of failure this is; the binary makes the exit code of it.
    pub fn class(&self) -> Class {
        match self {
            Self::Core(error) => error.class(),
            Self::File { source, .. } | Self::Sys { source, .. } => Class::of_io(source),
            Self::NobodyListens { .. } => Class::NotFound,
            Self::Invalid(_) => Class::Usage,
            Self::Schema { .. } => Class::Unsupported,
            Self::ModeNotActive { .. }
            | Self::Load { .. }
            | Self::Program { .. }
            | Self::Panicked(_) => Class::Failure,
        }
    }

    /// A [`Error::File`] with its path.
    pub fn file(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// A [`Error::Sys`] with what was tried.
    pub fn sys(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Sys {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
