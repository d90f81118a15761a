// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces with names, as ip(8) knows them: files in `/run/netns`, a namespace bound on each.
//!
//! Whatever has to happen *in* a namespace happens on a thread of its own that ends with it ([`inside`]), so no thread
//! of the caller is ever in a foreign namespace.
//!
//! Not here: what a namespace contains.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sched::{setns, unshare, CloneFlags};
use nix::sys::statfs::{fstatfs, NSFS_MAGIC};

use super::error::{Error, Result};

/// Where ip(8) keeps the names of network namespaces.
const DIRECTORY: &str = "/run/netns";
/// The calling thread's own network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// The file that names a namespace.
pub(super) fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Whether there is a namespace of that name.
pub(super) fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Opens a namespace: the named one, or the calling thread's.
pub(super) fn open(name: Option<&str>) -> Result<File> {
    let path = name.map_or_else(|| PathBuf::from(OWN), path);
    let failed = || Error::sys(format!("open {}", path.display()));
    let file = File::open(&path).map_err(failed())?;
    let kind = fstatfs(&file).map_err(Error::sys(format!("look at {}", path.display())))?;
    match kind.filesystem_type() == NSFS_MAGIC {
        true => Ok(file),
        // Whoever was making it was killed before the namespace was bound on the file.
        false => Err(failed()(std::io::Error::from_raw_os_error(libc::ENOENT))),
    }
}

/// What tells the calling thread's namespace from all others of this boot.
pub(super) fn own_identity() -> Result<String> {
    let meta = fs::metadata(OWN).map_err(Error::sys(format!("look at {OWN}")))?;
    Ok(format!("{}:{}", meta.dev(), meta.ino()))
}

/// Makes a namespace and gives it a name.
pub(super) fn create(name: &str) -> Result<()> {
    prepare_directory()?;
    let path = path(name);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&path)
        .map_err(Error::sys(format!("create {}", path.display())))?;
    let bound = on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(Error::sys("make a network namespace"))?;
        mount(
            Some(OWN),
            &path,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .map_err(Error::sys(format!("bind it on {}", path.display())))
    });
    if bound.is_err() {
        let _ = fs::remove_file(&path);
    }
    bound
}

/// Takes the name away; with its last process and socket the namespace goes too. One that is gone is no error.
pub(super) fn remove(name: &str) -> Result<()> {
    let path = path(name);
    match umount2(&path, MntFlags::MNT_DETACH) {
        // EINVAL: the file is there, nothing is bound on it.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(Error::sys(format!("unmount {}", path.display()))(errno)),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::sys(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Makes `/run/netns` as `ip netns add` does: a mount whose changes other mount namespaces see, so that removing a
/// name here removes it there too.
fn prepare_directory() -> Result<()> {
    fs::create_dir_all(DIRECTORY).map_err(Error::sys(format!("create {DIRECTORY}")))?;
    let failed = |what: &str| Error::sys::<Errno>(format!("{what} {DIRECTORY}"));
    let none = None::<&str>;
    let share = || {
        mount(
            Some(""),
            DIRECTORY,
            Some("none"),
            MsFlags::MS_SHARED | MsFlags::MS_REC,
            none,
        )
    };
    match share() {
        Ok(()) => return Ok(()),
        // It is no mount yet.
        Err(Errno::EINVAL) => {}
        Err(errno) => return Err(failed("share the mount")(errno)),
    }
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(DIRECTORY), DIRECTORY, Some("none"), bind, none).map_err(failed("mount"))?;
    share().map_err(failed("share the mount"))
}

/// Runs something on a thread of its own and waits for it.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What `/sys` shows to the work that is done in a namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sys {
    /// The interfaces of the namespace that mounted it, which may be another one.
    AsIs,
    /// The interfaces of the namespace that is entered; for that the thread gets mounts of its own.
    Mounted,
}

/// Runs `work` in a namespace: the named one, or the caller's with `None`.
pub(super) fn inside<T: Send>(
    name: Option<&str>,
    sys: Sys,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(name) = name else { return work() };
    let file = open(Some(name))?;
    on_thread(|| {
        setns(&file, CloneFlags::CLONE_NEWNET)
            .map_err(Error::sys(format!("enter the network namespace {name}")))?;
        if sys == Sys::Mounted {
            mount_sys()?;
        }
        work()
    })
}

/// Runs `work` in a new namespace that ends with it.
pub(super) fn inside_new<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(Error::sys("make a network namespace"))?;
        work()
    })
}

fn mount_sys() -> Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).map_err(Error::sys("make a mount namespace"))?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(Error::sys("make the mounts private"))?;
    umount2("/sys", MntFlags::MNT_DETACH).map_err(Error::sys("unmount /sys"))?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)
        .map_err(Error::sys("mount /sys"))
}
