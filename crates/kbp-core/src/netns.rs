// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Working in a named network namespace, as ip(8) does with `-n`.
//!
//! Creating and deleting namespaces is not here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};

use crate::error::Class;

/// Where ip(8) keeps the names of network namespaces.
pub const DIRECTORY: &str = "/run/netns";

/// A network namespace could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is none of that name.
    #[error(
        "there is no network namespace '{name}' in {}; `ip netns` lists them",
        DIRECTORY
    )]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
    /// A step failed.
    #[error("cannot enter the network namespace '{name}': {what}: {source}")]
    Enter {
        /// The namespace.
        name: String,
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel did not say which namespace the thread is in.
    #[error("cannot read the cookie of the network namespace: {source}")]
    Cookie {
        /// Why it failed.
        source: io::Error,
    },
}

impl NetnsError {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::Unknown { .. } => Class::NotFound,
            Self::Enter { source, .. } | Self::Cookie { source } => Class::of_io(source),
        }
    }
}

fn open(name: &str) -> Result<(PathBuf, File), NetnsError> {
    let unknown = || NetnsError::Unknown { name: name.into() };
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(unknown());
    }
    let path = Path::new(DIRECTORY).join(name);
    match File::open(&path) {
        Ok(file) => Ok((path, file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(unknown()),
        Err(source) => Err(NetnsError::Enter {
            name: name.into(),
            what: format!("open {}", path.display()),
            source,
        }),
    }
}

/// Move the calling thread into a network namespace and give it a /sys that shows it.
///
/// /sys shows the interfaces of the namespace that mounted it, so the thread also gets a mount
/// namespace of its own, where /sys is mounted anew; what is mounted below the old /sys
/// (tracefs) can't be seen there. To be called before any other thread is started.
pub fn enter(name: &str) -> Result<(), NetnsError> {
    let (path, file) = open(name)?;
    let failed = |what: &str| {
        let (name, what) = (name.to_owned(), what.to_owned());
        move |errno: nix::Error| NetnsError::Enter {
            name,
            what,
            source: errno.into(),
        }
    };
    setns(&file, CloneFlags::CLONE_NEWNET)
        .map_err(failed(&format!("setns to {}", path.display())))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("unshare the mounts"))?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(failed("make the mounts private"))?;
    umount2("/sys", MntFlags::MNT_DETACH).map_err(failed("unmount /sys"))?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)
        .map_err(failed("mount /sys"))
}

/// The cookie of the calling thread's network namespace, as [`crate::model::Napi`] has it.
pub fn cookie() -> Result<u64, NetnsError> {
    let failed = |source| NetnsError::Cookie { source };
    let socket = UnixDatagram::unbound().map_err(failed)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie` and the number to `length`; both
    // live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &mut length,
        )
    };
    match result {
        0 => Ok(cookie),
        _ => Err(failed(io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_of_a_namespace_is_stable() {
        let first = cookie().unwrap();
        assert_ne!(first, 0);
        assert_eq!(first, cookie().unwrap());
    }

    #[test]
    fn names_are_not_paths() {
        for name in ["", ".", "..", "a/b", "no-such-namespace-of-kbp"] {
            assert!(
                matches!(open(name), Err(NetnsError::Unknown { .. })),
                "{name}"
            );
        }
    }
}
