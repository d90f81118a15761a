// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of the host under a root that can be replaced.
//!
//! Only the access is here: paths, reading, writing, errors that carry the path and what was
//! tried. What the files mean is in [`crate::procfs`], [`crate::netdev`] and
//! [`crate::livepatch`], as further methods of [`Host`].

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Class, Error};
use crate::CpuList;

/// Where tracefs is mounted.
pub const TRACEFS: &str = "/sys/kernel/tracing";

/// The running machine, or a captured tree of its files.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// Access to a file of the host failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file could not be read.
    #[error("cannot read {}: {}", path.display(), explain(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write '{value}' to {}: {}", path.display(), explain(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A file holds something that is not understood.
    #[error("{} is not as expected: {what}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A system call on a thread or a module failed.
    #[error("cannot {what}: {}", explain(source))]
    Call {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// The words for an input or output error, with the way out where there is one.
pub(crate) fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "that needs root on the host".into(),
        _ => error.to_string(),
    }
}

impl HostError {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } | Self::Call { source, .. } => {
                Class::of_io(source)
            }
            Self::Parse { .. } => Class::Failure,
        }
    }

    /// The errno of a system call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } | Self::Call { source, .. } => {
                source.raw_os_error()
            }
            Self::Parse { .. } => None,
        }
    }

    /// Whether the file does not exist, or stopped to exist while it was read, as the files of a
    /// task that ends do.
    pub fn is_missing(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::ENOTDIR)
        )
    }
}

impl Host {
    /// The running machine.
    pub fn system() -> Self {
        Self::at("/")
    }

    /// The tree below `root`, which holds `proc`, `sys`, `run` and so on.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the running machine and not a captured tree.
    pub fn is_system(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The path of a file that is named from the root without a leading slash (`proc/softirqs`).
    pub fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// The text of a file.
    pub fn read(&self, file: &str) -> Result<String, HostError> {
        let path = self.path(file);
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) => Err(HostError::Read { path, source }),
        }
    }

    /// Whether its kernel is one with PREEMPT_RT, where interrupts and softirqs run in threads.
    pub fn is_preempt_rt(&self) -> bool {
        // Kernels with the old patch have /sys/kernel/realtime, too; all say it where `uname -v` has its text from.
        let version = self.read_trimmed("proc/version");
        version.is_ok_and(|text| text.split(' ').any(|word| word == "PREEMPT_RT"))
    }

    /// The text of a file without the white space around it.
    pub fn read_trimmed(&self, file: &str) -> Result<String, HostError> {
        Ok(self.read(file)?.trim().to_owned())
    }

    /// The text of a file without the white space around it, or `None` when there is no such file.
    pub fn read_optional(&self, file: &str) -> Result<Option<String>, HostError> {
        match self.read_trimmed(file) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The number in a file.
    pub fn read_number<T: std::str::FromStr>(&self, file: &str) -> Result<T, HostError> {
        let text = self.read_trimmed(file)?;
        text.parse()
            .map_err(|_| self.malformed(file, &format!("'{text}' is not a number in range")))
    }

    /// The CPU list in a file.
    pub fn read_cpu_list(&self, file: &str) -> Result<CpuList, HostError> {
        let text = self.read_trimmed(file)?;
        text.parse()
            .map_err(|e: crate::cpulist::CpuListError| self.malformed(file, &e.to_string()))
    }

    /// Write a value to an existing file with one system call, as sysfs and procfs want it.
    pub fn write(&self, file: &str, value: &str) -> Result<(), HostError> {
        let path = self.path(file);
        // A captured tree has plain files, where a shorter value has to replace a longer one.
        let opened = fs::OpenOptions::new()
            .write(true)
            .truncate(!self.is_system())
            .open(&path);
        match opened.and_then(|mut f| f.write_all(value.as_bytes())) {
            Ok(()) => Ok(()),
            Err(source) => Err(HostError::Write {
                path,
                value: value.into(),
                source,
            }),
        }
    }

    /// Whether the file or directory exists.
    pub fn exists(&self, file: &str) -> bool {
        self.path(file).exists()
    }

    /// The names in a directory, sorted; none when the directory does not exist.
    pub fn list(&self, directory: &str) -> Result<Vec<String>, HostError> {
        let path = self.path(directory);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(HostError::Read { path, source }),
        };
        let mut names: Vec<String> = entries
            .filter_map(|e| e.ok())
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    /// The last component of where a symbolic link points, or `None` when it does not exist.
    pub fn link_name(&self, link: &str) -> Option<String> {
        let target = fs::canonicalize(self.path(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The error for a file with unexpected contents.
    pub fn malformed(&self, file: &str, what: &str) -> HostError {
        HostError::Parse {
            path: self.path(file),
            what: what.into(),
        }
    }

    /// The CPUs that are online.
    pub fn online_cpus(&self) -> Result<CpuList, HostError> {
        self.read_cpu_list("sys/devices/system/cpu/online")
    }

    /// Refuse a CPU that is not online.
    pub fn require_online(&self, cpu: u32) -> Result<(), Error> {
        let online = self.online_cpus()?;
        if online.contains(cpu) {
            return Ok(());
        }
        Err(Error::CpuOffline {
            cpu,
            online: online.to_string(),
        })
    }

    /// The release of the kernel, as `uname -r` prints it.
    pub fn kernel_release(&self) -> Result<String, HostError> {
        self.read_trimmed("proc/sys/kernel/osrelease")
    }

    /// The identity of this boot; another one means that nothing remembered in /run is valid.
    pub fn boot_id(&self) -> Result<String, HostError> {
        self.read_trimmed("proc/sys/kernel/random/boot_id")
    }

    /// A setting below /proc/sys (`net/core/busy_poll`), as text.
    pub fn sysctl(&self, name: &str) -> Result<String, HostError> {
        self.read_trimmed(&format!("proc/sys/{name}"))
    }

    /// Change a setting below /proc/sys.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), HostError> {
        self.write(&format!("proc/sys/{name}"), value)
    }
}
