// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cgroups of the load `memory`: made, remembered before, removed.
//!
//! Of both kinds: version 2, where the memory controller may have to be switched on for the groups below the root, and
//! the version 1 hierarchy `memory` of machines that still have it.
//! Not here: the processes in them ([`super::pods`]).

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kbp_core::Host;

use crate::error::{Error, Result};
use crate::load::claim::Claim;

/// A directory of cgroups, as it is remembered.
pub(super) const THING_GROUP: &str = "cgroups";
/// A `cgroup.subtree_control` that was given the memory controller, as it is remembered.
pub(super) const THING_CONTROLLER: &str = "controller";

/// How often a cgroup whose processes are about to end is tried again, 5 ms apart.
const REMOVE_ATTEMPTS_MAX: u32 = 200;

/// Where cgroups with memory statistics can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    root: PathBuf,
    is_v2: bool,
}

impl Hierarchy {
    /// Its root.
    #[cfg(test)]
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Finds it among the mounts.
    ///
    /// # Errors
    /// The sentence that says what is missing.
    pub(super) fn find(host: &Host) -> std::result::Result<Self, String> {
        let mounts = host.mounts().map_err(|error| error.to_string())?;
        let in_root = |point: &str| host.path(point.trim_start_matches('/'));
        let has_memory = |root: &Path| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers"));
            controllers.is_ok_and(|text| text.split_whitespace().any(|word| word == "memory"))
        };
        let v2 = mounts.iter().filter(|mount| mount.kind == "cgroup2");
        if let Some(root) = v2.map(|m| in_root(&m.point)).find(|root| has_memory(root)) {
            return Ok(Self { root, is_v2: true });
        }
        let is_memory = |options: &[String]| options.iter().any(|option| option == "memory");
        let v1 = mounts
            .iter()
            .find(|m| m.kind == "cgroup" && is_memory(&m.options));
        match v1 {
            Some(mount) => Ok(Self {
                root: in_root(&mount.point),
                is_v2: false,
            }),
            None => Err(
                "no cgroup hierarchy with the memory controller is mounted: mount -t cgroup2 none /sys/fs/cgroup, and \
                 do not boot with cgroup_disable=memory"
                    .into(),
            ),
        }
    }
}

/// The cgroups. Remove them with [`Groups::remove`] when their processes have ended.
#[derive(Debug)]
pub(super) struct Groups {
    hierarchy: Hierarchy,
    parent: PathBuf,
    count: u32,
    switched_on: bool,
}

impl Groups {
    /// `count` cgroups to be made in a directory of their own, called after `id`.
    pub(super) fn new(hierarchy: Hierarchy, id: &str, count: u32) -> Self {
        Self {
            parent: hierarchy.root.join(format!("kbp-load-{id}")),
            hierarchy,
            count,
            switched_on: false,
        }
    }

    /// Makes them.
    ///
    /// # Errors
    /// When the kernel refuses one of them; [`Groups::remove`] those before.
    pub(super) fn make(&mut self, claim: &mut Claim) -> Result<()> {
        let root = &self.hierarchy.root;
        if self.hierarchy.is_v2 && !is_enabled(root)? {
            claim.remember(&format!("{THING_CONTROLLER} {}", root.display()))?;
            control(root, "+memory")?;
            self.switched_on = true;
        }
        claim.remember(&format!("{THING_GROUP} {}", self.parent.display()))?;
        let make =
            |path: &Path| fs::create_dir(path).map_err(|e| Error::file("make the cgroup", path, e));
        make(&self.parent)?;
        if self.hierarchy.is_v2 {
            control(&self.parent, "+memory")?;
        }
        (0..self.count).try_for_each(|number| make(&self.group(number)))
    }

    fn group(&self, number: u32) -> PathBuf {
        self.parent.join(number.to_string())
    }

    /// The files to which a process that wants into a cgroup writes 0.
    ///
    /// # Errors
    /// When one can't be opened.
    pub(super) fn open_entrances(&self) -> Result<Vec<File>> {
        let entrance = |number| {
            let path = self.group(number).join("cgroup.procs");
            let file = fs::OpenOptions::new().write(true).open(&path);
            file.map_err(|e| Error::file("open", &path, e))
        };
        (0..self.count).map(entrance).collect()
    }

    /// The statistics: those of all together first, then those of each.
    ///
    /// # Errors
    /// When one can't be opened.
    pub(super) fn open_stats(&self) -> Result<Vec<File>> {
        let open = |path: PathBuf| File::open(&path).map_err(|e| Error::file("open", &path, e));
        let sum = std::iter::once(self.parent.join("memory.stat"));
        let each = (0..self.count).map(|number| self.group(number).join("memory.stat"));
        sum.chain(each).map(open).collect()
    }

    /// Removes the cgroups and switches the controller off again, if it was off.
    ///
    /// # Errors
    /// When the kernel keeps one of them.
    pub(super) fn remove(&mut self) -> Result<()> {
        remove_tree(&self.parent)?;
        if self.switched_on {
            disable(&self.hierarchy.root)?;
            self.switched_on = false;
        }
        Ok(())
    }
}

fn is_enabled(root: &Path) -> Result<bool> {
    let path = root.join("cgroup.subtree_control");
    let text = fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))?;
    Ok(text.split_whitespace().any(|word| word == "memory"))
}

fn control(group: &Path, change: &str) -> Result<()> {
    let path = group.join("cgroup.subtree_control");
    fs::write(&path, change).map_err(|e| Error::file("switch the memory controller in", &path, e))
}

/// Switches the memory controller off for the groups below `root`. If others use it by now, it is theirs and stays.
///
/// # Errors
/// When the kernel refuses for another reason.
pub(super) fn disable(root: &Path) -> Result<()> {
    match control(root, "-memory") {
        Err(Error::File { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        done => done,
    }
}

/// Removes a directory of cgroups, whose processes have ended or are about to.
///
/// # Errors
/// When the kernel keeps one of them.
pub(super) fn remove_tree(parent: &Path) -> Result<()> {
    let entries = match fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::file("list", parent, error)),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path())?;
        }
    }
    remove_group(parent)
}

fn remove_group(path: &Path) -> Result<()> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for _ in 0..REMOVE_ATTEMPTS_MAX {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
            Err(error) => return Err(Error::file("remove the cgroup", path, error)),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::file("remove the cgroup", path, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_with_the_memory_controller_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/mounts",
            "none /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        );
        write("sys/fs/cgroup/unified/cgroup.controllers", "cpu io\n");
        let error = Hierarchy::find(&host).unwrap_err();
        assert!(error.contains("mount -t cgroup2"), "{error}");
        write(
            "proc/mounts",
            "none /sys/fs/cgroup/unified cgroup2 rw 0 0\nc /sys/fs/cgroup/m cgroup rw,memory 0 0\n",
        );
        let v1 = Hierarchy::find(&host).unwrap();
        assert_eq!((v1.is_v2, v1.root), (false, host.path("sys/fs/cgroup/m")));
        write("sys/fs/cgroup/unified/cgroup.controllers", "cpu memory\n");
        let v2 = Hierarchy::find(&host).unwrap();
        assert_eq!(
            (v2.is_v2, v2.root),
            (true, host.path("sys/fs/cgroup/unified"))
        );
    }
}
