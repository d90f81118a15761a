// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes cpio archives of the kind that the kernel unpacks as its first root (`newc`).
//!
//! Not here: what goes into one ([`crate::initramfs`]). Nothing is compressed: copying is cheaper for an emulated CPU
//! than uncompressing.

use std::collections::BTreeSet;
use std::path::{Component, Path};

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_777;
const CHARACTER: u32 = 0o020_600;

/// An archive being written, in memory.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    seen: BTreeSet<String>,
}

impl Archive {
    /// Adds a regular file with these permission bits; its folders are added as needed.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, contents: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | (permissions & 0o7777), (0, 0), contents);
    }

    /// Adds a symbolic link.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK, (0, 0), target.as_bytes());
    }

    /// Adds a folder and those above it.
    pub(crate) fn directory(&mut self, path: &str) {
        self.parents(path);
        self.entry(path, DIRECTORY, (0, 0), &[]);
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHARACTER, (major, minor), &[]);
    }

    /// Whether something of this path is in the archive already.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.seen.contains(path)
    }

    /// Ends the archive and gives it away.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.append("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        let parts: Vec<&str> = path.split('/').collect();
        for end in 1..parts.len() {
            let parent = parts[..end].join("/");
            if !self.seen.contains(&parent) {
                self.entry(&parent, DIRECTORY, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        // The kernel would take a second entry as well; the first one wins, so that the order of adding decides.
        if self.seen.insert(path.to_string()) {
            self.append(path, mode, device, contents);
        }
    }

    fn append(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            contents.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0, // check sum, unused in this format
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

/// The path of a file in the guest: no leading slash, nothing upwards, and Debian's merged `/usr`, where `/bin` is
/// `/usr/bin`. `None` when the path leads out of the root or is empty.
pub(crate) fn guest_path(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    let merged = matches!(parts.first(), Some(&("bin" | "sbin" | "lib" | "lib64")));
    if merged {
        parts.insert(0, "usr");
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn paths_of_the_guest() {
        let path = |text: &str| guest_path(Path::new(text));
        assert_eq!(path("/bin/sh").as_deref(), Some("usr/bin/sh"));
        assert_eq!(path("./usr/bin/ip").as_deref(), Some("usr/bin/ip"));
        assert_eq!(path("/lib64/ld.so").as_deref(), Some("usr/lib64/ld.so"));
        assert_eq!(path("../etc"), None);
        assert_eq!(path("/"), None);
    }

    #[test]
    fn the_format_is_right_to_the_byte() {
        let mut archive = Archive::default();
        archive.file("a/b", 0o755, b"hello");
        archive.file("a/b", 0o644, b"second");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            text.starts_with("07070100000001000041ed"),
            "the folder comes first: {text}"
        );
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(
            text.matches("070701").count(),
            3,
            "folder, file, trailer: {text}"
        );
        assert!(
            text.contains("a/b\0")
                && text.contains("hello\0\0\0")
                && text.ends_with("TRAILER!!!\0\0\0\0")
        );
    }

    #[test]
    fn cpio_reads_it() {
        let mut archive = Archive::default();
        archive.directory("proc");
        archive.symlink("bin", "usr/bin");
        archive.file("etc/x", 0o600, b"12345");
        let temp = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temp.path(), archive.finish()).unwrap();
        let file = std::fs::File::open(temp.path()).unwrap();
        let Ok(output) = Command::new("cpio")
            .arg("-tv")
            .stdin(Stdio::from(file))
            .output()
        else {
            eprintln!("cpio is not installed; its view of the archive was not checked");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            text.contains("bin -> usr/bin") && text.contains("-rw-------"),
            "{text}"
        );
    }
}
