// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots of booted machines that wait for a job.
//!
//! Booting on the virtual clock takes half a minute of the host's time, going on from a snapshot a fraction of a second.
//! A snapshot is named after everything that it depends on, so a stale one is never found; the oldest ones go when
//! there are too many. Every job starts from a snapshot, the first one too, so that all start from the same state.
//!
//! Not here: taking and loading them ([`crate::qmp`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::apt::hex;
use crate::cache::{remove, Cache};
use crate::error::{IoContext, Result};

/// Most snapshots kept; each is as large as the memory that the booted guest uses.
const KEPT: usize = 12;
/// Raise when what is snapshotted changes in a way that the arguments do not show.
const FORMAT: u32 = 2;

/// Where a machine's snapshot is or would be.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    path: PathBuf,
}

impl Snapshot {
    /// The snapshot of a machine with these arguments, this QEMU and these contents of its boot files.
    pub(crate) fn of(
        cache: &Cache,
        arguments: &[String],
        qemu: &str,
        boot_files: &[&Path],
    ) -> Result<Snapshot> {
        let mut hasher = Sha256::new();
        hasher.update(format!("{FORMAT}\0{qemu}\0{}\0", arguments.join("\0")));
        for file in boot_files {
            // Both files have names that change with their contents; size and name tell a replaced one apart.
            let size = fs::metadata(file).at("look at", file)?.len();
            hasher.update(format!("{}\0{size}\0", file.display()));
        }
        let name = hex(&hasher.finalize())[..24].to_string();
        Ok(Snapshot {
            path: cache.dir("snapshots")?.join(name),
        })
    }

    /// Its name, by which it is locked.
    pub(crate) fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    }

    /// The file, if the snapshot is there; it then counts as used now.
    pub(crate) fn ready(&self) -> Option<&Path> {
        let file = fs::File::options().append(true).open(&self.path).ok()?;
        // Only the order of cleaning depends on it.
        let _ = file.set_modified(SystemTime::now());
        Some(&self.path)
    }

    /// The file to save into before [`Snapshot::commit`].
    pub(crate) fn partial(&self) -> PathBuf {
        self.path.with_extension("partial")
    }

    /// Makes a saved file the snapshot and removes old ones.
    pub(crate) fn commit(&self) -> Result<()> {
        fs::rename(self.partial(), &self.path).at("rename to", &self.path)?;
        if let Some(dir) = self.path.parent() {
            prune(dir)?;
        }
        Ok(())
    }

    /// Removes one that does not load.
    pub(crate) fn discard(&self) -> Result<()> {
        remove(&self.path)
    }
}

fn prune(dir: &Path) -> Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir).at("read", dir)? {
        let entry = entry.at("read", dir)?;
        let time = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .at("look at", entry.path())?;
        files.push((time, entry.path()));
    }
    files.sort();
    let surplus = files.len().saturating_sub(KEPT);
    for (_, path) in files.into_iter().take(surplus) {
        remove(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_snapshot_depends_on_the_machine() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let file = temp.path().join("initramfs");
        fs::write(&file, "1").unwrap();
        let of = |arguments: &[&str], qemu: &str| {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            Snapshot::of(&cache, &arguments, qemu, &[&file])
                .unwrap()
                .path
        };
        let base = of(&["-smp", "4"], "10");
        assert_eq!(base, of(&["-smp", "4"], "10"));
        assert_ne!(base, of(&["-smp", "2"], "10"));
        assert_ne!(base, of(&["-smp", "4"], "11"));
        fs::write(&file, "22").unwrap();
        assert_ne!(base, of(&["-smp", "4"], "10"));
    }

    #[test]
    fn the_oldest_go_first() {
        let temp = tempfile::tempdir().unwrap();
        for index in 0..KEPT + 3 {
            let file = fs::File::create(temp.path().join(format!("{index:02}"))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(index as u64))
                .unwrap();
        }
        prune(temp.path()).unwrap();
        let left = fs::read_dir(temp.path()).unwrap().count();
        assert_eq!(left, KEPT);
        assert!(!temp.path().join("02").exists() && temp.path().join("03").exists());
    }
}
