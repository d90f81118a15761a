// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's first root: busybox, the first process, the agent, stock modules and the packages of every guest.
//!
//! It is the same for all jobs of a kernel and a kind of network card, so that a snapshot of the booted machine can be
//! used by all of them. What differs from job to job comes later as a stream ([`crate::payload`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::apt::hex;
use crate::cache::Cache;
use crate::command;
use crate::config::{Guest, RootConfig};
use crate::cpio::{guest_path, Archive};
use crate::error::{Error, IoContext, Result};
use crate::kernel::Kernel;
use crate::libs::Loader;
use crate::modinfo::{needed_by, Module, ModuleTree};
use crate::packages::PackageSet;

const INIT: &str = include_str!("../guest/init.sh");
/// The first process of a machine inside a guest.
const NESTED_INIT: &str = include_str!("../guest/nested-init.sh");
const DISK_INIT: &str = include_str!("../guest/disk-init.sh");
/// The guest's side of a job, and what starts it where systemd is the first process.
const JOB: &str = include_str!("../guest/job.sh");
const SERVICE: &str = include_str!("../guest/kbp-lab-job.service");
const TARGET: &str = include_str!("../guest/kbp-lab.target");
const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kbp-lab-guest"));

/// Folders of a package that a guest has no use for.
const NOT_IN_GUEST: [&str; 7] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/bash-completion",
    "usr/include",
];

/// Folders of the guest's root.
const DIRS: [&str; 12] = [
    "proc",
    "sys",
    "dev",
    "run",
    "tmp",
    "root",
    "etc",
    "var",
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    "usr/lib64",
];

/// One file for the guest.
#[derive(Debug, Clone)]
pub(crate) enum GuestEntry {
    File { permissions: u32, contents: Vec<u8> },
    Symlink(String),
}

impl GuestEntry {
    /// A file of this machine.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn read(path: &Path) -> Result<GuestEntry> {
        read_entry(path)
    }
}

/// Raised when the same parts are put together in another way, so that older archives are not taken for it.
const FORM: u32 = 3;

/// How many links are followed until a path counts as leading nowhere.
const MAX_LINKS: usize = 8;

/// Files for the guest by their path in it.
pub(crate) type GuestFiles = BTreeMap<String, GuestEntry>;

/// What a first root is made of.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    kernel: &'a Kernel,
    /// The first process.
    init: &'static str,
    /// What it reads or hands on, in `etc/kbp-lab`.
    texts: &'static [(&'static str, &'static str)],
    /// Stock modules that it loads.
    boot: Vec<&'a str>,
    /// Stock modules that lie ready.
    ready: &'a [String],
    packages: PackageSet,
    busybox: PackageSet,
}

impl<'a> Parts<'a> {
    /// Gets the parts for a kernel, with the driver of the network cards loaded at boot.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub(crate) fn fetch(
        cache: &Cache,
        guest: &'a Guest,
        kernel: &'a Kernel,
        nic_module: Option<&'a str>,
    ) -> Result<Parts<'a>> {
        let boot = guest.boot_modules.iter().map(String::as_str);
        Ok(Parts {
            kernel,
            init: INIT,
            texts: &[("job.sh", JOB)],
            boot: boot.chain(nic_module).collect(),
            ready: &guest.modules,
            packages: PackageSet::fetch(cache, &guest.release, &guest.packages, false)?,
            busybox: busybox(cache, &guest.release)?,
        })
    }

    /// Gets the parts for a kernel that goes on with the system of a disk.
    ///
    /// # Errors
    /// When a package cannot be fetched or the kernel's modules cannot be read.
    pub(crate) fn for_disk(
        cache: &Cache,
        root: &'a RootConfig,
        kernel: &'a Kernel,
    ) -> Result<Parts<'a>> {
        let tree = ModuleTree::read(&kernel.modules_dir)?;
        let boot = root.boot_modules.iter().map(String::as_str);
        Ok(Parts {
            kernel,
            init: DISK_INIT,
            texts: &[
                ("job.sh", JOB),
                ("kbp-lab-job.service", SERVICE),
                ("kbp-lab.target", TARGET),
            ],
            boot: boot.filter(|name| tree.knows(name)).collect(),
            ready: &[],
            packages: PackageSet::default(),
            busybox: busybox(cache, &root.release)?,
        })
    }

    /// Gets the parts for a kernel that runs in a machine inside a guest, with virtio's network card.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub(crate) fn for_nested(
        cache: &Cache,
        guest: &'a Guest,
        kernel: &'a Kernel,
    ) -> Result<Parts<'a>> {
        Ok(Parts {
            init: NESTED_INIT,
            texts: &[],
            ..Parts::fetch(cache, guest, kernel, Some("virtio_net"))?
        })
    }

    /// The kernel's release, which is part of the name of what is built.
    pub(crate) fn abi(&self) -> &str {
        &self.kernel.abi
    }

    /// A name that changes when any of the parts does.
    pub(crate) fn identity(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(format!("{FORM} {self:?}"));
        hasher.update(AGENT);
        hex(&hasher.finalize())[..24].to_string()
    }

    /// Builds the archive.
    ///
    /// # Errors
    /// When the kernel lacks a module that the boot needs.
    pub(crate) fn build(&self) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for dir in DIRS {
            archive.directory(dir);
        }
        for dir in ["bin", "sbin", "lib", "lib64"] {
            archive.symlink(dir, &format!("usr/{dir}"));
        }
        archive.device("dev/console", 5, 1);
        archive.device("dev/null", 1, 3);
        archive.file("init", 0o755, self.init.as_bytes());
        for (name, text) in self.texts {
            archive.file(&format!("etc/kbp-lab/{name}"), 0o644, text.as_bytes());
        }
        archive.file("usr/bin/kbp-lab-guest", 0o755, AGENT);
        archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n");
        archive.file("etc/group", 0o644, b"root:x:0:\n");
        archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost lab\n");
        add_modules(&mut archive, self.kernel, &self.boot, self.ready)?;
        // Before busybox, whose applets fill in for what the packages do not have.
        for (path, entry) in package_files(&self.packages)? {
            match entry {
                GuestEntry::File {
                    permissions,
                    contents,
                } => archive.file(&path, permissions, &contents),
                GuestEntry::Symlink(target) => archive.symlink(&path, &target),
            }
        }
        add_busybox(&mut archive, &self.busybox)?;
        Ok(archive.finish())
    }
}

fn busybox(cache: &Cache, release: &str) -> Result<PackageSet> {
    PackageSet::fetch(cache, release, &["busybox-static".to_string()], false)
}

fn add_modules(
    archive: &mut Archive,
    kernel: &Kernel,
    boot: &[&str],
    ready: &[String],
) -> Result<()> {
    let tree = ModuleTree::read(&kernel.modules_dir)?;
    let boot = tree.closure(boot)?;
    let ready: Vec<&str> = ready
        .iter()
        .map(String::as_str)
        .filter(|name| tree.knows(name))
        .collect();
    let ready = tree.closure(&ready)?;

    let base = format!("usr/lib/modules/{}", kernel.abi);
    let mut all: BTreeMap<&str, &Module> = BTreeMap::new();
    for module in boot.iter().chain(&ready) {
        archive.file(
            &format!("{base}/{}", module.path.display()),
            0o644,
            &module.bytes,
        );
        all.insert(&module.name, module);
    }
    let (mut dep, mut alias) = (String::new(), String::new());
    for module in all.values() {
        let needs: Vec<String> = needed_by(module, &all)
            .iter()
            .map(|module| module.path.display().to_string())
            .collect();
        dep.push_str(&format!("{}: {}\n", module.path.display(), needs.join(" ")));
        for pattern in &module.aliases {
            alias.push_str(&format!("alias {pattern} {}\n", module.name));
        }
    }
    archive.file(&format!("{base}/modules.dep"), 0o644, dep.as_bytes());
    archive.file(&format!("{base}/modules.alias"), 0o644, alias.as_bytes());
    let insmod: String = boot
        .iter()
        .map(|module| format!("/{base}/{}\n", module.path.display()))
        .collect();
    archive.file("etc/kbp-lab/insmod", 0o644, insmod.as_bytes());
    Ok(())
}

fn add_busybox(archive: &mut Archive, set: &PackageSet) -> Result<()> {
    let program = set
        .wanted
        .iter()
        .flat_map(|tree| [tree.join("bin/busybox"), tree.join("usr/bin/busybox")])
        .find(|path| path.is_file())
        .ok_or_else(|| Error::Config {
            path: set.wanted.first().cloned().unwrap_or_default(),
            detail: "the package busybox-static holds no busybox".into(),
        })?;
    let contents = fs::read(&program).at("read", &program)?;
    archive.file("usr/bin/busybox", 0o755, &contents);
    // busybox's shell takes its own applets before what is in $PATH (its `ip` knows no namespaces), so scripts are
    // run by another shell if a package brings one.
    if let Some(shell) = ["usr/bin/dash", "usr/bin/bash"]
        .iter()
        .find(|path| archive.has(path))
    {
        archive.symlink("usr/bin/sh", &format!("/{shell}"));
    }
    let applets = command::output(
        Command::new(&program).arg("--list-full"),
        "listing busybox's applets",
        "busybox-static",
    )?;
    for applet in applets.lines() {
        let Some(path) = guest_path(Path::new(applet)) else {
            continue;
        };
        let name = path.rsplit('/').next().unwrap_or_default();
        // A package's program wins over the applet, wherever in $PATH it lies.
        let taken = ["usr/bin", "usr/sbin"]
            .iter()
            .any(|dir| archive.has(&format!("{dir}/{name}")));
        if !taken {
            archive.symlink(&path, "/usr/bin/busybox");
        }
    }
    Ok(())
}

/// The files of the packages that were asked for, and the libraries that their programs need.
///
/// # Errors
/// [`Error::Io`], or [`Error::LibraryMissing`].
pub(crate) fn package_files(set: &PackageSet) -> Result<GuestFiles> {
    let mut files = GuestFiles::new();
    for tree in &set.wanted {
        collect_tree(tree, tree, &mut files)?;
    }
    let Some(loader) = Loader::of_trees(&set.all) else {
        return Ok(files);
    };
    let mut libraries = Vec::new();
    for tree in &set.wanted {
        for (path, contents) in programs(tree)? {
            match loader.libraries(&path, &contents) {
                Ok(found) => libraries.extend(found),
                // A plug-in may want what the package only recommends; the guest does without that plug-in.
                Err(Error::LibraryMissing { .. })
                    if path.extension().is_some_and(|ext| ext == "so") =>
                {
                    files.retain(|name, _| !path.ends_with(name));
                }
                Err(error) => return Err(error),
            }
        }
    }
    if !libraries.is_empty() {
        libraries.extend(loader.libc_family());
    }
    add_libraries(&loader, libraries, &mut files)?;
    Ok(files)
}

/// Adds libraries under the names by which programs ask for them.
pub(crate) fn add_libraries(
    loader: &Loader,
    mut libraries: Vec<PathBuf>,
    files: &mut GuestFiles,
) -> Result<()> {
    libraries.sort();
    libraries.dedup();
    for library in libraries {
        if let Some(path) = guest_path(loader.path_in_guest(&library)) {
            if !is_there(files, &path) {
                files.insert(path, read_entry(&library)?);
            }
        }
    }
    if files
        .keys()
        .any(|path| path.ends_with("ld-linux-x86-64.so.2"))
    {
        let at = "usr/lib64/ld-linux-x86-64.so.2";
        if !files.contains_key(at) {
            files.insert(at.into(), read_entry(loader.program())?);
        }
    }
    Ok(())
}

/// Whether a path leads to a file already. A plug-in that is a library, too, is one file with two names: as two files, the
/// loader would load it twice. A link that goes up (`..`) is not followed, and leads to none.
fn is_there(files: &GuestFiles, path: &str) -> bool {
    let mut path = path.to_string();
    for _ in 0..MAX_LINKS {
        let target = match files.get(&path) {
            None => return false,
            Some(GuestEntry::File { .. }) => return true,
            Some(GuestEntry::Symlink(target)) => Path::new("/").join(&path).with_file_name(target),
        };
        match guest_path(&target) {
            Some(next) => path = next,
            None => return false,
        }
    }
    false
}

fn read_entry(path: &Path) -> Result<GuestEntry> {
    let meta = fs::metadata(path).at("look at", path)?;
    let contents = fs::read(path).at("read", path)?;
    Ok(GuestEntry::File {
        permissions: meta.permissions().mode() & 0o7777,
        contents,
    })
}

fn collect_tree(root: &Path, dir: &Path, files: &mut GuestFiles) -> Result<()> {
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        let relative = path.strip_prefix(root).unwrap_or(&path);
        if NOT_IN_GUEST
            .iter()
            .any(|unwanted| relative.starts_with(unwanted))
        {
            continue;
        }
        let meta = fs::symlink_metadata(&path).at("look at", &path)?;
        if meta.is_dir() {
            collect_tree(root, &path, files)?;
            continue;
        }
        let Some(name) = guest_path(relative) else {
            continue;
        };
        if meta.is_symlink() {
            let target = fs::read_link(&path).at("read the link", &path)?;
            files.insert(name, GuestEntry::Symlink(target.display().to_string()));
        } else {
            files.insert(name, read_entry(&path)?);
        }
    }
    Ok(())
}

/// The ELF files of a tree.
fn programs(dir: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        let meta = fs::symlink_metadata(&path).at("look at", &path)?;
        if meta.is_dir() {
            found.extend(programs(&path)?);
        } else if meta.is_file() {
            let contents = fs::read(&path).at("read", &path)?;
            if contents.starts_with(b"\x7fELF") {
                found.push((path, contents));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_a_plug_in_stays_one_file() {
        let link = |target: &str| GuestEntry::Symlink(target.into());
        let file = GuestEntry::File {
            permissions: 0o644,
            contents: vec![],
        };
        let mut files = GuestFiles::new();
        files.insert("usr/lib/plugins/bus.so.1.0".into(), file);
        files.insert("usr/lib/plugins/bus.so.1".into(), link("bus.so.1.0"));
        files.insert("usr/lib/bus.so.1".into(), link("plugins/bus.so.1"));
        files.insert("usr/lib/absolute.so".into(), link("/lib/bus.so.1"));
        files.insert("usr/lib/lost.so".into(), link("nowhere.so"));
        files.insert("usr/lib/up.so".into(), link("../lib/bus.so.1"));
        files.insert("usr/lib/circle.so".into(), link("circle.so"));
        for path in [
            "usr/lib/plugins/bus.so.1.0",
            "usr/lib/bus.so.1",
            "usr/lib/absolute.so",
        ] {
            assert!(is_there(&files, path), "{path}");
        }
        for path in [
            "usr/lib/lost.so",
            "usr/lib/up.so",
            "usr/lib/circle.so",
            "usr/lib/none.so",
        ] {
            assert!(!is_there(&files, path), "{path}");
        }
    }
}
