// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file that is fetched from its disk through the page cache again and again.
//!
//! Not here: raw disk reads; the page cache and its pressure are the point.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use kbp_core::Host;

use crate::error::{Error, Result};
use crate::load::claim::Claim;

/// The directory of the file, as it is remembered.
pub(super) const THING: &str = "directory";

/// What is read or written at once, bytes.
const PART_BYTES: usize = 1 << 20;
/// File systems that are page cache and nothing else.
const WITHOUT_DISK: [&str; 4] = ["tmpfs", "ramfs", "rootfs", "hugetlbfs"];

/// Whether files of this directory are on a disk.
///
/// # Errors
/// The sentence that says why not.
pub(super) fn check(host: &Host, dir: &Path) -> std::result::Result<(), String> {
    let dir = fs::canonicalize(dir).map_err(|e| format!("cannot use {}: {e}", dir.display()))?;
    let mounts = host.mounts().map_err(|error| error.to_string())?;
    let above = mounts.iter().filter(|mount| dir.starts_with(&mount.point));
    // Of mounts over each other the last one is seen.
    let mount = above.max_by_key(|mount| mount.point.len());
    match mount {
        Some(mount) if WITHOUT_DISK.contains(&mount.kind.as_str()) => Err(format!(
            "{} is {}, which has no disk to read from: leave the file reader out, or name a directory on a disk",
            dir.display(),
            mount.kind
        )),
        _ => Ok(()),
    }
}

/// The file, in a directory of its own. Delete it with [`BulkFile::delete`].
#[derive(Debug)]
pub(super) struct BulkFile {
    dir: PathBuf,
}

impl BulkFile {
    /// A file to be made below `base`, in a directory called after `id`.
    ///
    /// # Errors
    /// When there is no `base`.
    pub(super) fn new(base: &Path, id: &str) -> Result<Self> {
        let base = fs::canonicalize(base).map_err(|e| Error::file("use", base, e))?;
        let dir = base.join(format!("kbp-load-{id}"));
        Ok(Self { dir })
    }

    /// Writes the file and waits until it is on the disk.
    ///
    /// # Errors
    /// When there is no room; [`BulkFile::delete`] what is there.
    pub(super) fn make(&self, bytes: u64, claim: &mut Claim) -> Result<()> {
        claim.remember(&format!("{THING} {}", self.dir.display()))?;
        fs::create_dir(&self.dir).map_err(|e| Error::file("create", &self.dir, e))?;
        let path = self.path();
        write(&path, bytes).map_err(|e| Error::file("write", &path, e))
    }

    fn path(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// When it can't be opened.
    pub(super) fn open(&self) -> Result<Reader> {
        let path = self.path();
        let file = File::open(&path).map_err(|e| Error::file("open", &path, e))?;
        Ok(Reader {
            file,
            path,
            buffer: vec![0; PART_BYTES],
        })
    }

    /// Deletes it.
    ///
    /// # Errors
    /// See [`delete`].
    pub(super) fn delete(&self) -> Result<()> {
        delete(&self.dir)
    }
}

fn write(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let part = vec![0xa5; PART_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PART_BYTES as u64);
        file.write_all(&part[..now as usize])?;
        left -= now;
    }
    // Only pages that are on the disk can be dropped from the page cache.
    file.sync_data()
}

/// Deletes the directory of a file, if it is still there.
///
/// # Errors
/// When it can't be deleted.
pub(super) fn delete(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("delete", dir, error)),
        _ => Ok(()),
    }
}

/// Reads the file part by part, each time round from the disk.
#[derive(Debug)]
pub(super) struct Reader {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
}

impl Reader {
    /// Reads the next part and returns its length, bytes; at the end the page cache is told to drop the file, and it
    /// begins anew.
    ///
    /// # Errors
    /// When it can't be read.
    pub(super) fn next_part(&mut self) -> Result<u64> {
        let failed = |e| Error::file("read", &self.path, e);
        let bytes = self.file.read(&mut self.buffer).map_err(failed)?;
        if bytes == 0 {
            // SAFETY: the call takes a descriptor that is open as long as `self` and numbers.
            let error = unsafe {
                libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
            };
            if error != 0 {
                return Err(failed(std::io::Error::from_raw_os_error(error)));
            }
            self.file.rewind().map_err(failed)?;
        }
        Ok(bytes as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        let host = Host::at(dir.path());
        let here = fs::canonicalize(dir.path()).unwrap();
        let mounts = |kind: &str| {
            let text = format!("disk / ext4 rw 0 0\nx {} {kind} rw 0 0\n", here.display());
            fs::write(host.path("proc/mounts"), text).unwrap();
        };
        mounts("tmpfs");
        assert!(check(&host, dir.path()).unwrap_err().contains("no disk"));
        mounts("ext4");
        check(&host, dir.path()).unwrap();
        let error = check(&host, Path::new("/nonexistent")).unwrap_err();
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
