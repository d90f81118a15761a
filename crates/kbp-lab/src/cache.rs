// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's cache: where it is, who may touch it, and how it is emptied.
//!
//! Two locks keep several users apart: `prepare` is held alone by whoever downloads, unpacks, builds or takes a
//! snapshot; `use` is held together by all that run a machine, and alone by `clean`.
//!
//! Not here: what the folders contain; each module knows its own.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Result};

/// The cache folder, which exists.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// A held lock; it is let go when dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// What `clean` leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clean {
    /// Remove what is made again in seconds: snapshots, images and built modules.
    Built,
    /// Remove all but the downloaded packages.
    KeepDownloads,
    /// Remove everything.
    All,
}

/// Folders that [`Clean::Built`] removes.
const BUILT: [&str; 4] = ["snapshots", "images", "build", "runs"];

impl Cache {
    /// Opens the cache: `$KBP_LAB_CACHE`, else `$XDG_CACHE_HOME/kbp-lab`, else `~/.cache/kbp-lab`.
    ///
    /// # Errors
    /// [`Error::Argument`] when none of the variables is set, [`Error::Io`] when the folder cannot be made.
    pub fn open_default() -> Result<Cache> {
        let root =
            default_root(|name| std::env::var_os(name).map(PathBuf::from)).ok_or_else(|| {
                Error::Argument(
                    "neither KBP_LAB_CACHE, XDG_CACHE_HOME nor HOME is set; set one of them".into(),
                )
            })?;
        Cache::open(&root)
    }

    /// Opens the cache in a given folder and makes it if needed.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be made.
    pub fn open(root: &Path) -> Result<Cache> {
        fs::create_dir_all(root).at("make the folder", root)?;
        let root = root.canonicalize().at("resolve", root)?;
        Ok(Cache { root })
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A folder of the cache, made if needed.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be made.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).at("make the folder", &path)?;
        Ok(path)
    }

    /// Takes the lock of those who change the cache; says so on standard error when it has to wait.
    ///
    /// # Errors
    /// [`Error::Io`] when the lock file cannot be used.
    pub fn lock_prepare(&self) -> Result<Lock> {
        self.lock("prepare.lock", true)
    }

    /// Takes the lock of those who use what is in the cache.
    ///
    /// # Errors
    /// [`Error::Io`] when the lock file cannot be used.
    pub fn lock_use(&self) -> Result<Lock> {
        self.lock("use.lock", false)
    }

    /// Takes the lock of those who take one snapshot; a boot is long, so it does not hold up all others.
    ///
    /// # Errors
    /// [`Error::Io`] when the lock file cannot be used.
    pub(crate) fn lock_snapshot(&self, name: &str) -> Result<Lock> {
        self.dir("locks")?;
        self.lock(&format!("locks/{name}.lock"), true)
    }

    fn lock(&self, name: &str, alone: bool) -> Result<Lock> {
        let path = self.root.join(name);
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .at("open the lock", &path)?;
        let tried = if alone {
            file.try_lock()
        } else {
            file.try_lock_shared()
        };
        match tried {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!(
                    "lab: another kbp lab is busy with {}; waiting",
                    self.root.display()
                );
                if alone {
                    file.lock()
                } else {
                    file.lock_shared()
                }
                .at("lock", &path)?;
            }
            Err(TryLockError::Error(source)) => return Err(source).at("lock", &path),
        }
        Ok(Lock { _file: file })
    }

    /// Empties the cache as far as `what` says and returns the number of bytes freed.
    ///
    /// # Errors
    /// [`Error::Io`] when something cannot be removed.
    pub fn clean(&self, what: Clean) -> Result<u64> {
        // In the order of a run, which prepares a part while it uses others: the other way round, each of the two could
        // wait for the other.
        let _use = self.lock("use.lock", true)?;
        let _prepare = self.lock_prepare()?;
        let mut freed = 0;
        for entry in fs::read_dir(&self.root).at("read", &self.root)? {
            let path = entry.at("read", &self.root)?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let goes = match what {
                Clean::Built => BUILT.contains(&name.as_str()),
                Clean::KeepDownloads => name != "downloads" && !name.ends_with(".lock"),
                Clean::All => !name.ends_with(".lock"),
            };
            if goes {
                freed += size_of(&path);
                remove(&path)?;
            }
        }
        Ok(freed)
    }

    /// Checks that `need_bytes` fit on the cache's disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when they do not.
    pub fn check_space(&self, need_bytes: u64) -> Result<()> {
        let stat = nix::sys::statvfs::statvfs(&self.root)
            .map_err(std::io::Error::from)
            .at("look at", &self.root)?;
        let free = stat.blocks_available() as u64 * stat.fragment_size() as u64;
        if free < need_bytes {
            return Err(Error::NoSpace {
                path: self.root.clone(),
                need_mib: need_bytes.div_ceil(1 << 20),
                free_mib: free >> 20,
            });
        }
        Ok(())
    }
}

/// The cache's place by the environment; `var` reads a variable.
fn default_root(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name| var(name).filter(|path| !path.as_os_str().is_empty());
    set("KBP_LAB_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("kbp-lab")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/kbp-lab")))
}

/// Removes a file or a whole folder; one that is not there is fine.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    result.at("remove", path)
}

/// Bytes of a file or of a folder's files; what cannot be read counts as nothing.
pub(crate) fn size_of(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !meta.is_dir() {
        return meta.len();
    }
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    entries.flatten().map(|entry| size_of(&entry.path())).sum()
}

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes).at("write", &partial)?;
    fs::rename(&partial, path).at("rename to", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_follows_the_environment() {
        let only =
            |wanted: &'static str| move |name: &str| (name == wanted).then(|| PathBuf::from("/x"));
        assert_eq!(default_root(only("KBP_LAB_CACHE")), Some("/x".into()));
        assert_eq!(
            default_root(only("XDG_CACHE_HOME")),
            Some("/x/kbp-lab".into())
        );
        assert_eq!(default_root(only("HOME")), Some("/x/.cache/kbp-lab".into()));
        assert_eq!(default_root(|_| Some(PathBuf::new())), None);
    }

    #[test]
    fn clean_keeps_what_it_should() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let there =
            || ["downloads", "kernels", "snapshots"].map(|name| temp.path().join(name).exists());
        let fill = || {
            ["downloads", "kernels", "snapshots"].map(|name| {
                fs::write(cache.dir(name).unwrap().join("x"), b"1234").unwrap();
            })
        };
        fill();
        assert_eq!(cache.clean(Clean::Built).unwrap(), 4);
        assert_eq!(there(), [true, true, false]);
        fill();
        assert_eq!(cache.clean(Clean::KeepDownloads).unwrap(), 8);
        assert_eq!(there(), [true, false, false]);
        assert_eq!(cache.clean(Clean::All).unwrap(), 4);
        assert_eq!(there(), [false, false, false]);
    }

    #[test]
    fn who_waits_to_clean_does_not_hold_up_a_run() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let running = cache.lock_use().unwrap();
        let cleaner = cache.clone();
        let clean = std::thread::spawn(move || cleaner.clean(Clean::Built));
        // Long enough for it to come to its locks; it can't get beyond that of the run.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!clean.is_finished());
        let prepare = File::options()
            .create(true)
            .append(true)
            .open(temp.path().join("prepare.lock"))
            .unwrap();
        prepare.try_lock().unwrap();
        drop((prepare, running));
        clean.join().unwrap().unwrap();
    }

    #[test]
    fn too_little_space_is_an_error_with_figures() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        cache.check_space(1).unwrap();
        assert!(matches!(
            cache.check_space(u64::MAX),
            Err(Error::NoSpace { .. })
        ));
    }
}
