// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Working in a named network namespace, as ip(8) does with `-n`, or in one that is found by its cookie.
//!
//! Creating and deleting namespaces is not here.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};
use nix::sys::socket::LinkAddr;

use crate::error::Class;
use crate::host::TRACEFS;

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
    /// Its file is there and no namespace is mounted on it, as for a moment while ip(8) creates one.
    #[error(
        "{} is no network namespace; `ip netns` creates it as a file first and mounts it then",
        path.display()
    )]
    NotMounted {
        /// The file.
        path: PathBuf,
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
    /// The kernel did not list the interfaces of a namespace.
    #[error("cannot list the interfaces of a network namespace: {source}")]
    Interfaces {
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
            Self::Unknown { .. } | Self::NotMounted { .. } => Class::NotFound,
            Self::Enter { source, .. } | Self::Interfaces { source } | Self::Cookie { source } => {
                Class::of_io(source)
            }
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
/// namespace of its own, where /sys is mounted anew. Of what is mounted below the old /sys only
/// tracefs is mounted again. To be called before any other thread is started.
pub fn enter(name: &str) -> Result<(), NetnsError> {
    let (path, file) = open(name)?;
    switch(name, &path, &file)?;
    mount_sys(name)
}

fn failed(name: &str, what: impl Into<String>) -> impl FnOnce(nix::Error) -> NetnsError {
    let (name, what) = (name.to_owned(), what.into());
    move |errno| NetnsError::Enter {
        name,
        what,
        source: errno.into(),
    }
}

fn switch(name: &str, path: &Path, file: &File) -> Result<(), NetnsError> {
    match setns(file, CloneFlags::CLONE_NEWNET) {
        // The kernel's word for a file that is no namespace.
        Err(nix::Error::EINVAL) => Err(NetnsError::NotMounted { path: path.into() }),
        done => done.map_err(failed(name, format!("setns to {}", path.display()))),
    }
}

fn mount_sys(name: &str) -> Result<(), NetnsError> {
    let is_traced = Path::new(TRACEFS).join("tracing_on").exists();
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed(name, "unshare the mounts"))?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(failed(name, "make the mounts private"))?;
    umount2("/sys", MntFlags::MNT_DETACH).map_err(failed(name, "unmount /sys"))?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)
        .map_err(failed(name, "mount /sys"))?;
    if is_traced {
        // Who needs it says that it is missing; most do not.
        let tracefs = Some("tracefs");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(tracefs, TRACEFS, tracefs, flags, none).ok();
    }
    Ok(())
}

/// Device and inode of a namespace, which tell it from all others.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether the calling thread is in the network namespace of the host, which is that of process 1; `None` where that
/// can't be read.
pub fn is_of_host() -> Option<bool> {
    let own = identity(Path::new("/proc/thread-self/ns/net"))?;
    Some(own == identity(Path::new("/proc/1/ns/net"))?)
}

/// The name of the calling thread's network namespace; `None` when ip(8) knows none.
pub fn own_name() -> Option<String> {
    let own = identity(Path::new("/proc/thread-self/ns/net"))?;
    let mut names = fs::read_dir(DIRECTORY).ok()?.filter_map(Result::ok);
    let named = names.find(|entry| identity(&entry.path()) == Some(own))?;
    Some(named.file_name().to_string_lossy().into_owned())
}

/// Runs `work` where the files of the network namespace with this cookie are in sight: here when it is the calling
/// thread's (whose cookie is `own`), else on a thread that enters it. `None` when no name and no process has that
/// namespace any more: then its files are gone with it.
pub fn inside<T: Send>(
    own: u64,
    cookie: u64,
    work: impl FnOnce() -> T + Send,
) -> Result<Option<T>, NetnsError> {
    if own == cookie {
        return Ok(Some(work()));
    }
    std::thread::scope(|scope| {
        let is_it = move || Ok(self::cookie()? == cookie);
        let thread = scope.spawn(move || enter_where(is_it).map(|entered| entered.then(work)));
        let ended = thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` where the files of the network namespace are in sight that has an interface with this hardware address,
/// with the name of that; `None` when none has.
pub fn with_address<T: Send>(
    address: &str,
    work: impl FnOnce(&str) -> T + Send,
) -> Result<Option<T>, NetnsError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut found = None;
            let entered = enter_where(|| {
                found = interface_with_address(address)?;
                Ok(found.is_some())
            })?;
            Ok(found.filter(|_| entered).map(|name| work(&name)))
        });
        let ended = thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The interface of the calling thread's namespace that has this hardware address.
fn interface_with_address(address: &str) -> Result<Option<String>, NetnsError> {
    let interfaces = getifaddrs().map_err(|errno| NetnsError::Interfaces {
        source: errno.into(),
    })?;
    let has_it = |link: &LinkAddr| {
        let bytes = link.addr().unwrap_or_default();
        let text: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        text.join(":") == address
    };
    let mut found = interfaces.filter(|one| {
        let link = one.address.as_ref().and_then(|all| all.as_link_addr());
        link.is_some_and(has_it)
    });
    Ok(found.next().map(|one| one.interface_name))
}

/// Runs `work` in the network namespace of this name, on a thread of its own.
pub fn in_named<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter(name).map(|()| work()));
        let ended = thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The network namespaces that have names, by name, each with its cookie. A name of which only the file is left is
/// none.
pub fn named() -> Result<Vec<(String, u64)>, NetnsError> {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return Ok(Vec::new());
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found = Vec::new();
    for name in names {
        match std::thread::scope(|scope| scope.spawn(|| cookie_of(&name)).join()) {
            Ok(Ok(cookie)) => found.push((name, cookie)),
            Ok(Err(error)) if error.class() == Class::NoPrivilege => return Err(error),
            Ok(Err(_)) => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    found.sort();
    Ok(found)
}

/// The cookie of a namespace. The calling thread stays in it.
fn cookie_of(name: &str) -> Result<u64, NetnsError> {
    let (path, file) = open(name)?;
    switch(name, &path, &file)?;
    cookie()
}

/// Moves the calling thread into the first namespace in which `is_it` says so; false when there is none. It may have
/// been in others on the way, so it has to end soon.
fn enter_where(mut is_it: impl FnMut() -> Result<bool, NetnsError>) -> Result<bool, NetnsError> {
    let mut seen = BTreeSet::new();
    for path in namespaces() {
        let name = path.display().to_string();
        let file = match File::open(&path) {
            Ok(file) => file,
            // A process that ended meanwhile, or a kernel thread.
            Err(error) if is_gone(&error) => continue,
            Err(source) => {
                let what = format!("open {name}");
                return Err(NetnsError::Enter { name, what, source });
            }
        };
        let inode = file.metadata().map(|meta| meta.ino()).unwrap_or_default();
        if !seen.insert(inode) {
            continue;
        }
        match switch(&name, &path, &file) {
            Err(error) if error.class() == Class::NoPrivilege => return Err(error),
            // A name of which only the file is left.
            Err(_) => continue,
            Ok(()) => {}
        }
        if is_it()? {
            mount_sys(&name)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Where namespaces can be found: by name, and at every process.
fn namespaces() -> Vec<PathBuf> {
    let entries = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let is_process = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.bytes().all(|byte| byte.is_ascii_digit())
    };
    let processes = entries("/proc").filter(is_process);
    entries(DIRECTORY)
        .chain(processes.map(|path| path.join("ns/net")))
        .collect()
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
    fn the_own_namespace_needs_no_thread_and_one_that_is_not_there_is_not_found() {
        let own = cookie().unwrap();
        let here = std::thread::current().id();
        let ran = inside(own, own, || std::thread::current().id()).unwrap();
        assert_eq!(ran, Some(here));
        // Looking through the others needs root; without it that is an error, and not a namespace that is gone.
        let missing = inside(own, u64::MAX, || ());
        assert!(!matches!(missing, Ok(Some(()))));
        assert_eq!(cookie().unwrap(), own, "the calling thread has stayed");
    }

    #[test]
    fn a_file_without_a_namespace_is_one_that_is_not_there_yet() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = switch("pod", file.path(), file.as_file()).unwrap_err();
        assert!(matches!(error, NetnsError::NotMounted { .. }), "{error}");
        assert_eq!(error.class(), Class::NotFound);
    }

    #[test]
    fn a_new_namespace_is_not_that_of_the_host() {
        let looked = std::thread::spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => is_of_host(),
            // Only root may make one.
            Err(_) => Some(false),
        });
        assert_ne!(looked.join().unwrap(), Some(true));
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
