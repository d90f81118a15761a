// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that can keep the lab from starting a machine, each as one plain sentence with the way out.
//!
//! Not here: what happens to a machine that did start (a failed test, a lost machine); that is
//! [`crate::machine::Verdict`].

use std::path::{Path, PathBuf};

/// Why the lab could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// apt's configuration names no Debian mirror.
    #[error(
        "no Debian mirror found in {looked_in}: the lab takes kernels and QEMU from the mirror that apt uses; \
         add one to apt's sources (any Debian release will do) and try again"
    )]
    NoMirror {
        /// The folder that was searched.
        looked_in: PathBuf,
    },
    /// The mirror does not answer.
    #[error("apt cannot reach its mirror while {doing}: {detail}; check the network, then run the same command again")]
    AptUnreachable {
        /// What apt was asked for.
        doing: String,
        /// apt's own words.
        detail: String,
    },
    /// A package is in none of the suites looked at.
    #[error("apt knows no package {package} in {suites}; check its name, or that the mirror carries that suite")]
    PackageNotFound {
        /// The package.
        package: String,
        /// The suites, comma separated.
        suites: String,
    },
    /// The suites offer no kernel of the kind that kernels.toml asks for.
    #[error(
        "{suites} offer no {wanted}: with image and headers they have {offered}; change 'line' or 'previous' of this \
         kernel in lab/kernels.toml, or take its table out"
    )]
    KernelNotOffered {
        /// The kernel.
        wanted: String,
        /// The suites, comma separated.
        suites: String,
        /// The ABIs that there are, newest first.
        offered: String,
    },
    /// apt failed for another reason.
    #[error("apt failed while {doing}: {detail}")]
    Apt {
        /// What apt was asked for.
        doing: String,
        /// apt's own words.
        detail: String,
    },
    /// The disk is too full.
    #[error(
        "not enough space in {path}: {need_mib} MiB needed, {free_mib} MiB free; free some, run `kbp lab clean`, \
         or set KBP_LAB_CACHE to a folder on another disk"
    )]
    NoSpace {
        /// The cache folder.
        path: PathBuf,
        /// Space needed.
        need_mib: u64,
        /// Space there is.
        free_mib: u64,
    },
    /// A downloaded file is not what the archive's index says.
    #[error("{path} does not have the checksum that the archive states; it was removed, run the same command again")]
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// A helper program failed.
    #[error("{program} failed while {doing}: {detail}")]
    Command {
        /// The program.
        program: String,
        /// Its task.
        doing: String,
        /// The end of what it printed.
        detail: String,
    },
    /// A helper program is not installed.
    #[error("{tool} is needed for {purpose} and is not installed; install the package {package}")]
    MissingTool {
        /// The program.
        tool: String,
        /// What it is for.
        purpose: String,
        /// The Debian package that has it.
        package: String,
    },
    /// kernels.toml does not name this kernel.
    #[error("there is no kernel '{id}' in the lab; it has {known}")]
    UnknownKernel {
        /// The kernel asked for.
        id: String,
        /// Those that there are.
        known: String,
    },
    /// A configuration file is wrong.
    #[error("{path} is not right: {detail}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// There is no lab folder.
    #[error("no folder lab/ with a kernels.toml found from {start} upwards; run this inside the source tree or give --lab DIR")]
    NoLabDir {
        /// Where the search began.
        start: PathBuf,
    },
    /// The archive has no QEMU that is new enough.
    #[error("QEMU {found} is too old: the lab needs version {needed} or newer, from bookworm-backports or trixie")]
    QemuTooOld {
        /// The version found.
        found: String,
        /// The version needed.
        needed: u32,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Argument(String),
    /// A kernel module does not build.
    #[error("{module} does not build for kernel {kernel}; the end of make's output:\n{tail}\nthe whole of it is in {log}")]
    Build {
        /// The module's folder.
        module: PathBuf,
        /// The kernel.
        kernel: String,
        /// The last lines.
        tail: String,
        /// The log file.
        log: PathBuf,
    },
    /// A program's shared libraries cannot be found.
    #[error("{path} needs {library}, which was not found; install it, or give the guest the package that has it")]
    LibraryMissing {
        /// The program.
        path: PathBuf,
        /// The library.
        library: String,
    },
    /// QEMU could not be started or does not talk.
    #[error("QEMU does not start: {detail}")]
    Qemu {
        /// QEMU's words.
        detail: String,
    },
    /// The QEMU of the parallel clock has not been built.
    #[error(
        "the parallel clock needs a QEMU that is built here, and {} is not there\n\
         `make lab-qemu` builds it once, which takes some ten minutes",
        path.display()
    )]
    NotBuilt {
        /// Where it would be.
        path: PathBuf,
    },
}

/// The result of everything in this crate that can fail before a machine runs.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds path and action to an [`std::io::Error`].
pub(crate) trait IoContext<T> {
    /// Turns the error into [`Error::Io`], or [`Error::NoSpace`] when the disk is full.
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|source| {
            let path = path.as_ref().to_path_buf();
            if source.kind() == std::io::ErrorKind::StorageFull {
                Error::NoSpace {
                    path,
                    need_mib: 1,
                    free_mib: 0,
                }
            } else {
                Error::Io {
                    action,
                    path,
                    source,
                }
            }
        })
    }
}

/// The last `lines` lines of a text, for messages.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
