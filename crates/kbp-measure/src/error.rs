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
    /// A topology could not be made or removed.
    #[error(transparent)]
    Topology(#[from] kbp_lab::topo::Error),
    /// The lab could not run a machine.
    #[error(transparent)]
    Lab(#[from] kbp_lab::Error),
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
    /// The tester can't send at the rate that was asked for.
    #[error(
        "{} are not held: it was {} when the sending was ended{}; \
         ask for a lower rate, or use another back end, a CPU of its own (--cpu, --fifo) or --spin",
        crate::tester::openloop::bits(*asked_bps as f64),
        crate::tester::openloop::bits(*held_bps as f64),
        if *no_room > 0 { format!(" ({no_room} sends found no room)") } else { String::new() }
    )]
    RateNotHeld {
        /// The rate that was asked for, bits of the frames a second.
        asked_bps: u64,
        /// The rate that was reached, bits of the frames a second.
        held_bps: u64,
        /// Sends that the back end had no room for: the path pushes back.
        no_room: u64,
    },
    /// Nothing of a warm-up came back.
    #[error(
        "none of {sent} frames came back from {target} ({foreign} others did): is an echo server there \
         (`kbp measure pingpong server`), and does the way back lead here?"
    )]
    NothingReturned {
        /// Frames sent.
        sent: u64,
        /// Datagrams that came and were not ours.
        foreign: u64,
        /// The reflector.
        target: String,
    },
    /// Nobody answers ARP.
    #[error(
        "nobody on {link} says that it has {address}: is that host up, and is the address on the same \
         network (else give --next-hop)?"
    )]
    NobodyAnswers {
        /// The address that was asked for.
        address: std::net::Ipv4Addr,
        /// Where it was asked.
        link: String,
    },
    /// The machine slept while it measured.
    #[error("this machine was suspended during the run, so its times mean nothing: run it again")]
    Suspended,
    /// A figure that this machine can't have measured.
    #[error(
        "{what} of {found_ns} ns is below the {floor_ns} ns that this tester can tell apart on this machine \
         (`kbp measure selftest`), so it is not reported"
    )]
    BelowFloor {
        /// What was found.
        what: &'static str,
        /// How much it was, nanoseconds.
        found_ns: u64,
        /// The least that can be told apart, nanoseconds.
        floor_ns: u64,
    },
    /// The self-test did not work.
    #[error("self-test: {0}; without it no figure of this tester can be trusted")]
    SelfTest(String),
    /// A search for the highest rate did not come to an end.
    #[error("{0}")]
    Unsettled(String),
    /// An interrupt ended something that has no partial result.
    #[error("{0} was interrupted; it has no partial result")]
    Interrupted(&'static str),
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
            Self::NobodyListens { .. } | Self::NobodyAnswers { .. } => Class::NotFound,
            Self::Invalid(_) => Class::Usage,
            Self::Schema { .. } => Class::Unsupported,
            Self::ModeNotActive { .. }
            | Self::Load { .. }
            | Self::Program { .. }
            | Self::Topology(_)
            | Self::Lab(_)
            | Self::RateNotHeld { .. }
            | Self::NothingReturned { .. }
            | Self::Suspended
            | Self::BelowFloor { .. }
            | Self::SelfTest(_)
            | Self::Unsettled(_)
            | Self::Interrupted(_)
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
