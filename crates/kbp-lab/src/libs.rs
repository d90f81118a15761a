// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which shared libraries a program needs, asked of the dynamic loader itself, so that its rules are the ones used.
//!
//! Not here: copying them ([`crate::payload`], [`crate::initramfs`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::error::{Error, Result};

const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
const LIBRARY_DIRS: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// A dynamic loader and where it looks.
#[derive(Debug, Clone)]
pub(crate) struct Loader {
    program: PathBuf,
    /// Folders of unpacked packages; empty for this machine's own libraries.
    trees: Vec<PathBuf>,
}

impl Loader {
    /// This machine's loader.
    pub(crate) fn host() -> Loader {
        Loader {
            program: Path::new("/").join(LOADER),
            trees: Vec::new(),
        }
    }

    /// The loader of unpacked packages, which looks nowhere else; `None` when libc6 is not among them.
    pub(crate) fn of_trees(trees: &[PathBuf]) -> Option<Loader> {
        let program = trees
            .iter()
            .map(|tree| tree.join(LOADER))
            .find(|path| path.exists())
            .or_else(|| {
                // trixie's libc6 has the loader below /usr only.
                trees
                    .iter()
                    .map(|tree| tree.join("usr").join(LOADER))
                    .find(|path| path.exists())
            })?;
        Some(Loader {
            program,
            trees: trees.to_vec(),
        })
    }

    /// The loader's own file.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The folders given to the loader, separated by colons.
    pub(crate) fn search_path(&self) -> String {
        let dirs = self
            .trees
            .iter()
            .flat_map(|tree| LIBRARY_DIRS.map(|dir| tree.join(dir)))
            .filter(|dir| dir.is_dir());
        dirs.flat_map(|dir| std::iter::once(dir.clone()).chain(private_folders(&dir)))
            .map(|dir| dir.display().to_string())
            .collect::<Vec<_>>()
            .join(":")
    }

    /// The libraries of a program or library, the loader included, as files of this machine.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] when one is not found.
    pub(crate) fn libraries(&self, program: &Path, contents: &[u8]) -> Result<Vec<PathBuf>> {
        if !is_dynamic(contents) {
            return Ok(Vec::new());
        }
        let mut command = Command::new(&self.program);
        if !self.trees.is_empty() {
            command.args(["--inhibit-cache", "--library-path", &self.search_path()]);
        }
        let doing = format!("listing the libraries of {}", program.display());
        let listing = command::output(command.arg("--list").arg(program), &doing, "libc6")
            .map_err(|error| missing_of(program, error))?;
        let mut files = Vec::new();
        for line in listing.lines() {
            match parse_line(line) {
                Some((name, None)) => {
                    return Err(Error::LibraryMissing {
                        path: program.into(),
                        library: name.into(),
                    })
                }
                Some((name, Some(path))) => {
                    files.push(self.checked(program, name, Path::new(path))?)
                }
                None => {}
            }
        }
        Ok(files)
    }

    /// A library of unpacked packages must come from these, or the guest would get a mixture.
    fn checked(&self, program: &Path, name: &str, path: &Path) -> Result<PathBuf> {
        let ours = self.trees.is_empty() || self.trees.iter().any(|tree| path.starts_with(tree));
        if ours {
            Ok(path.to_path_buf())
        } else {
            Err(Error::LibraryMissing {
                path: program.into(),
                library: name.into(),
            })
        }
    }

    /// All parts of the C library beside the loader's: they only work together, so they travel together.
    pub(crate) fn libc_family(&self) -> Vec<PathBuf> {
        const FAMILY: [&str; 11] = [
            "libc.so.6",
            "libm.so.6",
            "libmvec.so.1",
            "libpthread.so.0",
            "libdl.so.2",
            "librt.so.1",
            "libresolv.so.2",
            "libutil.so.1",
            "libanl.so.1",
            "libnss_files.so.2",
            "libnss_dns.so.2",
        ];
        let roots = if self.trees.is_empty() {
            vec![PathBuf::from("/")]
        } else {
            self.trees.clone()
        };
        let dirs: Vec<PathBuf> = roots
            .iter()
            .flat_map(|root| LIBRARY_DIRS.map(|dir| root.join(dir)))
            .collect();
        let find = |name: &&str| {
            dirs.iter()
                .map(|dir| dir.join(name))
                .find(|path| path.exists())
        };
        FAMILY
            .iter()
            .filter_map(find)
            .chain([self.program.clone()])
            .collect()
    }

    /// Where a library of this loader belongs in the guest: the path without the folder of its package.
    pub(crate) fn path_in_guest<'a>(&self, library: &'a Path) -> &'a Path {
        self.trees
            .iter()
            .find_map(|tree| library.strip_prefix(tree).ok())
            .unwrap_or(library)
    }
}

/// Folders below a folder of libraries in which a package keeps libraries of its own: its programs name them (RUNPATH) by
/// their place in a system, where they are not now.
fn private_folders(dir: &Path) -> Vec<PathBuf> {
    let is_library = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("lib") && name.contains(".so.")
    };
    let holds_libraries = |folder: &PathBuf| {
        let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.any(|entry| is_library(&entry))
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && holds_libraries(path))
        .collect();
    folders.sort();
    folders
}

/// A loader that does not find a library ends with an error instead of a line that says so, where it is asked for the
/// libraries of a library.
fn missing_of(program: &Path, error: Error) -> Error {
    let said = match &error {
        Error::Command { detail, .. } => detail.clone(),
        _ => return error,
    };
    match said
        .split_once("error while loading shared libraries: ")
        .and_then(|(_, rest)| rest.split_once(": cannot open shared object file"))
    {
        Some((library, _)) => Error::LibraryMissing {
            path: program.into(),
            library: library.into(),
        },
        None => error,
    }
}

/// The name and path of a line of `ld.so --list`: `name => path (address)`, or `path (address)` for the loader.
fn parse_line(line: &str) -> Option<(&str, Option<&str>)> {
    let line = line.trim();
    let without_address = |text: &'_ str| text.rfind(" (0x").unwrap_or(text.len());
    match line.split_once(" => ") {
        Some((name, "not found")) => Some((name, None)),
        Some((name, path)) => Some((name, Some(&path[..without_address(path)]))),
        None if line.starts_with('/') => {
            let path = &line[..without_address(line)];
            Some((path, Some(path)))
        }
        None => None,
    }
}

/// Whether these are the contents of an ELF file with a dynamic section that asks for a loader's work.
fn is_dynamic(contents: &[u8]) -> bool {
    const PT_DYNAMIC: u32 = 2;
    let u16_at =
        |at: usize| Some(u16::from_le_bytes(contents.get(at..at + 2)?.try_into().ok()?) as usize);
    let type_at = |at: usize| {
        Some(u32::from_le_bytes(
            contents.get(at..at + 4)?.try_into().ok()?,
        ))
    };
    let table = || {
        (contents.get(..6)? == b"\x7fELF\x02\x01").then_some(())?;
        let start = usize::try_from(u64::from_le_bytes(
            contents.get(0x20..0x28)?.try_into().ok()?,
        ))
        .ok()?;
        Some((start, u16_at(0x36)?, u16_at(0x38)?))
    };
    let Some((start, size, count)) = table() else {
        return false;
    };
    (0..count).any(|index| start.checked_add(index * size).and_then(type_at) == Some(PT_DYNAMIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_loader() {
        assert_eq!(
            parse_line("\tlibm.so.6 => /x/libm.so.6 (0x00007f)"),
            Some(("libm.so.6", Some("/x/libm.so.6")))
        );
        assert_eq!(
            parse_line("\t/lib64/ld.so (0x00007f)"),
            Some(("/lib64/ld.so", Some("/lib64/ld.so")))
        );
        assert_eq!(
            parse_line("\tlibx.so.1 => not found"),
            Some(("libx.so.1", None))
        );
        assert_eq!(parse_line("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(parse_line("\tstatically linked"), None);
    }

    #[test]
    fn a_loader_that_gives_up_has_named_the_library() {
        let error = |detail: &str| Error::Command {
            program: "ld.so".into(),
            doing: "listing".into(),
            detail: detail.into(),
        };
        let said = "/x/htable.so: error while loading shared libraries: libsrdb1.so.1: cannot open shared object file: \
                    No such file or directory (exit status: 127)";
        let missing = missing_of(Path::new("/x/htable.so"), error(said));
        assert!(
            matches!(&missing, Error::LibraryMissing { library, .. } if library == "libsrdb1.so.1"),
            "{missing}"
        );
        let other = missing_of(Path::new("/x"), error("bad ELF magic (exit status: 127)"));
        assert!(matches!(other, Error::Command { .. }), "{other}");
    }

    #[test]
    fn folders_with_libraries_of_their_own_are_looked_into() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, file) in [
            ("own", "libx.so.1"),
            ("plugins", "x.so"),
            ("text", "libx.txt"),
        ] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join(file), "").unwrap();
        }
        assert_eq!(private_folders(dir.path()), [dir.path().join("own")]);
    }

    #[test]
    fn the_libraries_of_this_very_test() {
        let program = std::env::current_exe().unwrap();
        let contents = std::fs::read(&program).unwrap();
        let libraries = Loader::host().libraries(&program, &contents).unwrap();
        assert!(
            libraries.iter().any(|path| path.ends_with("libc.so.6")),
            "{libraries:?}"
        );
        assert!(Loader::host()
            .libraries(&program, b"#!/bin/sh")
            .unwrap()
            .is_empty());
    }
}
