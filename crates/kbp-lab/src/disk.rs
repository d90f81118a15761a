// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks with a whole Debian: made once by mmdebstrap and mke2fs, copied for each run, which may change its copy.
//!
//! The system is installed as on any machine, by apt and dpkg with all maintainer scripts. So is the first kernel of a
//! run; the packages of those that follow lie in [`KERNELS_DIR`], for the script to install. What makes it a machine of the
//! lab comes with the first root ([`crate::initramfs`]).
//!
//! Not here: booting it ([`crate::boots`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::apt::{hex, Apt};
use crate::cache::{remove, size_of, Cache};
use crate::command;
use crate::config::{Config, RootConfig};
use crate::error::{Error, IoContext, Result};
use crate::kernel::Kernel;
use crate::payload::quote;
use crate::root::mmdebstrap;

/// Where the packages of the kernels lie on the disk, a folder for each kernel's id.
pub(crate) const KERNELS_DIR: &str = "/var/cache/kbp-lab/kernels";

const PREPARE: &str = include_str!("../guest/disk-prepare.sh");
const HOSTS: &str = "127.0.0.1 localhost lab\n";

/// Raised when the same parts are put together in another way, so that older disks are not taken for it.
const FORM: u32 = 1;
/// Most disks kept.
const KEPT: usize = 2;
/// How the name of a run's copy ends.
const COPY: &str = ".disk";

/// What a disk is made of.
pub(crate) struct Recipe<'a> {
    /// The root's name in kernels.toml.
    pub name: &'a str,
    pub root: &'a RootConfig,
    /// The kernels that the machine boots, in order; the first one is installed.
    pub kernels: &'a [Kernel],
}

impl Recipe<'_> {
    /// A copy of the disk, which is made if it is not there. Others go on with the cache meanwhile, but for its disks:
    /// who makes one may remove another.
    ///
    /// # Errors
    /// Those of apt, mmdebstrap and mke2fs, and [`Error::Argument`] when it has to be made and we are not root; then
    /// those of [`Copy::of`].
    pub(crate) fn copy(&self, cache: &Cache, config: &Config) -> Result<Copy> {
        let _disks = cache.lock_snapshot("disks")?;
        Copy::of(cache, &self.fetch(cache, config)?)
    }

    fn fetch(&self, cache: &Cache, config: &Config) -> Result<PathBuf> {
        let disks = cache.dir("disks")?;
        let disk = disks.join(format!("{}-{}.ext4", self.name, self.identity()));
        if disk.exists() {
            // Only the order of cleaning depends on it.
            let _ = fs::File::options()
                .append(true)
                .open(&disk)
                .and_then(|file| file.set_modified(std::time::SystemTime::now()));
            return Ok(disk);
        }
        if !nix::unistd::geteuid().is_root() {
            return Err(Error::Argument(format!(
                "the disk of the root '{}' has to be made first, and its files belong to several users: run this \
                 command once as root, with the same KBP_LAB_CACHE",
                self.name
            )));
        }
        let (tree, stage) = (
            disk.with_extension("tree.partial"),
            disk.with_extension("stage.partial"),
        );
        let made = self.make(cache, config, &tree, &stage, &disk);
        remove(&tree)?;
        remove(&stage)?;
        made?;
        prune(&disks)?;
        Ok(disk)
    }

    /// A name that changes with what the disk holds.
    fn identity(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(format!("{FORM} {:?}", self.root));
        for kernel in self.kernels {
            hasher.update(format!("{} {} {}\0", kernel.id, kernel.abi, kernel.version));
        }
        hasher.update(PREPARE);
        hasher.update(HOSTS);
        hex(&hasher.finalize())[..16].to_string()
    }

    fn make(
        &self,
        cache: &Cache,
        config: &Config,
        tree: &Path,
        stage: &Path,
        disk: &Path,
    ) -> Result<()> {
        // The tree and the disk that is made of it lie side by side for a while.
        cache.check_space((2 * u64::from(self.root.disk_mib)) << 20)?;
        remove(tree)?;
        remove(stage)?;
        self.stage(cache, config, stage)?;
        let ids: Vec<&str> = self
            .kernels
            .iter()
            .map(|kernel| kernel.id.as_str())
            .collect();
        eprintln!(
            "lab: making a disk with {} for {} (some minutes, once)",
            self.root.release,
            ids.join(", ")
        );
        self.install(cache, tree, stage)?;
        let partial = disk.with_extension("partial");
        remove(&partial)?;
        make_filesystem(tree, &partial, self.root.disk_mib)?;
        fs::rename(&partial, disk).at("rename to", disk)
    }

    /// Lays out the files that come on top of Debian's.
    fn stage(&self, cache: &Cache, config: &Config, stage: &Path) -> Result<()> {
        let write = |path: &str, text: &str| {
            let path = stage.join(path);
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir).at("make the folder", dir)?;
            }
            fs::write(&path, text).at("write", &path)
        };
        write("etc/hostname", "lab\n")?;
        write("etc/hosts", HOSTS)?;
        write("etc/fstab", "/dev/vda / ext4 defaults 0 0\n")?;
        write("var/cache/kbp-lab/prepare.sh", PREPARE)?;
        let _prepare = cache.lock_prepare()?;
        let downloads = cache.dir("downloads")?;
        for kernel in self.kernels {
            let apt = Apt::open(cache, &config.kernel(&kernel.id)?.release)?;
            apt.update(false)?;
            let packages = kernel.packages(&apt, config.kernel(&kernel.id)?)?;
            apt.download(&packages)?;
            let dir = stage
                .join(KERNELS_DIR.trim_start_matches('/'))
                .join(&kernel.id);
            fs::create_dir_all(&dir).at("make the folder", &dir)?;
            for package in packages {
                let (from, to) = (
                    downloads.join(package.file_name()),
                    dir.join(package.file_name()),
                );
                fs::copy(&from, &to).at("copy", &from)?;
            }
        }
        Ok(())
    }

    /// Installs Debian, our files and the first kernel into a folder.
    fn install(&self, cache: &Cache, tree: &Path, stage: &Path) -> Result<()> {
        let apt = Apt::open(cache, &self.root.release)?;
        let settings = stage.with_extension("apt.conf");
        fs::write(&settings, apt.acquire_settings()).at("write", &settings)?;
        let first = &self.kernels[0].id;
        let hook = format!(
            "cp -r {}/. \"$1\"/ && chroot \"$1\" sh /var/cache/kbp-lab/prepare.sh {}",
            quote(&stage.display().to_string()),
            quote(first)
        );
        let mmdebstrap = mmdebstrap(cache)?;
        // What it mounts in the tree is gone when it ends, however it ends: the tree is removed afterwards.
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--"])
            .arg(mmdebstrap.get_program())
            .args(mmdebstrap.get_args())
            .args(["--mode=root", "--variant=minbase", "--architectures=amd64"])
            .args(["--format=directory", "--verbose", "--skip=check/empty"])
            .arg(format!("--include={}", self.root.packages.join(",")))
            .arg(format!("--aptopt={}", settings.display()))
            .args([
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
            ])
            .arg(format!("--customize-hook={hook}"))
            .arg(&self.root.release)
            .arg(tree)
            .arg(apt.sources_file());
        let doing = format!("making {}", tree.display());
        let made = command::output(&mut command, &doing, "util-linux");
        remove(&settings)?;
        made.map(|_| ())
    }
}

fn make_filesystem(tree: &Path, disk: &Path, mib: u32) -> Result<()> {
    let program = ["mke2fs", "/sbin/mke2fs", "/usr/sbin/mke2fs"]
        .into_iter()
        .find(|name| command::find(name).is_some() || Path::new(name).is_file())
        .unwrap_or("mke2fs");
    let mut command = Command::new(program);
    command
        .args(["-q", "-t", "ext4", "-L", "lab", "-m", "0", "-d"])
        .args([tree, disk])
        .arg(format!("{mib}M"));
    let doing = format!(
        "making a file system of {mib} MiB with {} MiB in it",
        size_of(tree) >> 20
    );
    command::output(&mut command, &doing, "e2fsprogs").map(|_| ())
}

/// A copy of a disk for one run, which is removed when it is dropped, or by the next run when ours was killed: its lock
/// says that it is used.
#[derive(Debug)]
pub(crate) struct Copy {
    file: tempfile::NamedTempFile,
}

impl Copy {
    /// Copies a disk within the cache.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or those of cp.
    fn of(cache: &Cache, disk: &Path) -> Result<Copy> {
        let runs = cache.dir("runs")?;
        remove_abandoned(&runs)?;
        let meta = fs::metadata(disk).at("look at", disk)?;
        // A run may fill it.
        cache.check_space(meta.len())?;
        let file = tempfile::Builder::new()
            .suffix(COPY)
            .tempfile_in(&runs)
            .at("make a file in", &runs)?;
        file.as_file().lock().at("lock", file.path())?;
        let mut command = Command::new("cp");
        command
            .args(["--sparse=always", "--reflink=auto"])
            .args([disk, file.path()]);
        command::output(&mut command, "copying a disk", "coreutils")?;
        Ok(Copy { file })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Removes the copies that nobody holds. The lock of the disks keeps others from making one meanwhile.
fn remove_abandoned(runs: &Path) -> Result<()> {
    for entry in fs::read_dir(runs).at("read", runs)? {
        let path = entry.at("read", runs)?.path();
        if !path.to_string_lossy().ends_with(COPY) {
            continue;
        }
        // A run that ends meanwhile takes its copy along.
        let Ok(file) = fs::File::open(&path) else {
            continue;
        };
        match file.try_lock() {
            Ok(()) => remove(&path)?,
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(source)) => return Err(source).at("lock", &path),
        }
    }
    Ok(())
}

/// Removes the disks that were not used for the longest time, and what a break left.
fn prune(dir: &Path) -> Result<()> {
    let mut disks = Vec::new();
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        if path.extension().is_some_and(|ext| ext == "ext4") {
            let time = fs::metadata(&path)
                .and_then(|meta| meta.modified())
                .at("look at", &path)?;
            disks.push((time, path));
        } else {
            remove(&path)?;
        }
    }
    disks.sort();
    let surplus = disks.len().saturating_sub(KEPT);
    disks
        .into_iter()
        .take(surplus)
        .try_for_each(|(_, path)| remove(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_disk_is_named_after_what_it_holds() {
        let root = RootConfig {
            release: "bookworm".into(),
            packages: vec!["udev".into()],
            boot_modules: vec!["ext4".into()],
            disk_mib: 4096,
        };
        let kernel = |abi: &str| Kernel {
            id: "6.1".into(),
            abi: abi.into(),
            version: "6.1.1-1".into(),
            compiler: "gcc-12".into(),
            image: PathBuf::new(),
            modules_dir: PathBuf::new(),
            headers_dir: PathBuf::new(),
        };
        let of = |root: &RootConfig, abis: &[&str]| {
            let kernels: Vec<Kernel> = abis.iter().map(|abi| kernel(abi)).collect();
            Recipe {
                name: "debian",
                root,
                kernels: &kernels,
            }
            .identity()
        };
        let base = of(&root, &["6.1.0-1-amd64", "6.1.0-2-amd64"]);
        assert_eq!(base, of(&root, &["6.1.0-1-amd64", "6.1.0-2-amd64"]));
        assert_ne!(base, of(&root, &["6.1.0-2-amd64", "6.1.0-1-amd64"]));
        let more = RootConfig {
            packages: vec!["udev".into(), "gcc".into()],
            ..root
        };
        assert_ne!(base, of(&more, &["6.1.0-1-amd64", "6.1.0-2-amd64"]));
    }

    #[test]
    fn the_disks_used_last_stay_and_what_a_break_left_goes() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("a.tree.partial")).unwrap();
        for index in 0..KEPT + 2 {
            let file = fs::File::create(temp.path().join(format!("{index}.ext4"))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(index as u64))
                .unwrap();
        }
        prune(temp.path()).unwrap();
        let mut left: Vec<String> = fs::read_dir(temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["2.ext4", "3.ext4"]);
    }

    #[test]
    fn a_copy_is_the_disk_and_goes_with_the_run() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let disk = temp.path().join("d.ext4");
        let file = fs::File::create(&disk).unwrap();
        file.set_len(1 << 20).unwrap();
        let copy = Copy::of(&cache, &disk).unwrap();
        assert_eq!(fs::metadata(copy.path()).unwrap().len(), 1 << 20);
        fs::write(copy.path(), "changed").unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), 1 << 20);
        let path = copy.path().to_path_buf();
        drop(copy);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_run_left_goes_and_what_is_used_stays() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let disk = temp.path().join("d.ext4");
        fs::write(&disk, "disk").unwrap();
        let used = Copy::of(&cache, &disk).unwrap();
        // The kernel lets go of a lock when its owner is gone.
        let left = temp.path().join("runs/left.disk");
        let other = temp.path().join("runs/other");
        fs::write(&left, "left").unwrap();
        fs::write(&other, "another thing of a run").unwrap();
        let more = Copy::of(&cache, &disk).unwrap();
        assert!(!left.exists());
        assert!(used.path().exists() && more.path().exists() && other.exists());
    }
}
