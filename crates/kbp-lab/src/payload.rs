// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one job brings into the guest: scripts, modules, the caller's files with their libraries, packages, settings.
//! It is a tar stream, unpacked over the guest's root.
//!
//! Not here: what all jobs share ([`crate::initramfs`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cpio::guest_path;
use crate::error::{Error, IoContext, Result};
use crate::initramfs::{add_libraries, package_files, GuestEntry, GuestFiles};
use crate::libs::Loader;
use crate::packages::PackageSet;

/// A file or folder of this machine for the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// Where it is here.
    pub host: PathBuf,
    /// Where it shall be there; by default `/usr/local/bin/NAME` for programs and `/root/NAME` for the rest.
    pub guest: Option<PathBuf>,
}

impl std::str::FromStr for GuestFile {
    type Err = String;

    /// Reads `HOST[:GUEST]`.
    fn from_str(text: &str) -> std::result::Result<GuestFile, String> {
        let (host, guest) = match text.split_once(':') {
            Some((host, guest)) if guest.starts_with('/') => (host, Some(PathBuf::from(guest))),
            Some((_, guest)) => {
                return Err(format!(
                    "the guest's path '{guest}' does not start with a slash"
                ))
            }
            None => (text, None),
        };
        if host.is_empty() {
            return Err("the host's path is empty".into());
        }
        Ok(GuestFile {
            host: host.into(),
            guest,
        })
    }
}

/// The files of a job.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    files: GuestFiles,
}

impl Payload {
    /// Adds the lab's scripts at `/lab`.
    pub(crate) fn add_lab(&mut self, lab_dir: &Path) -> Result<()> {
        let files = tree(lab_dir)?;
        for (relative, path) in files {
            // Modules' sources and what a build left are of no use in the guest.
            let wanted = path
                .extension()
                .is_some_and(|ext| ext == "sh" || ext == "toml" || ext == "txt");
            if wanted {
                self.add_file(&path, &format!("lab/{}", relative.display()))?;
            }
        }
        Ok(())
    }

    /// Adds built modules at `/modules`.
    pub(crate) fn add_modules(&mut self, modules: &[PathBuf]) -> Result<()> {
        for module in modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            self.add_file(module, &format!("modules/{name}"))?;
        }
        Ok(())
    }

    /// Adds the packages' files and their libraries.
    pub(crate) fn add_packages(&mut self, set: &PackageSet) -> Result<()> {
        self.files.extend(package_files(set)?);
        Ok(())
    }

    /// Adds what a machine inside the guest is made of.
    pub(crate) fn add_nested(&mut self, files: GuestFiles) {
        self.files.extend(files);
    }

    /// Adds the caller's files with the libraries of this machine that they need.
    ///
    /// # Errors
    /// [`Error::Io`] when a file is not there, [`Error::LibraryMissing`] when a library is not.
    pub(crate) fn add_files(&mut self, wanted: &[GuestFile]) -> Result<()> {
        let loader = Loader::host();
        let mut libraries = Vec::new();
        for file in wanted {
            for (to, from) in placed(file)? {
                let contents = fs::read(&from).at("read", &from)?;
                libraries.extend(loader.libraries(&from, &contents)?);
                self.add_file(&from, &to)?;
            }
        }
        if !libraries.is_empty() {
            // The guest's own packages may be of another release; the C library's parts only work together.
            libraries.extend(loader.libc_family());
        }
        add_libraries(&loader, libraries, &mut self.files)
    }

    /// Adds the caller's files alone, for a system that has libraries of its own.
    ///
    /// # Errors
    /// [`Error::Io`] when a file is not there.
    pub(crate) fn add_files_alone(&mut self, wanted: &[GuestFile]) -> Result<()> {
        for file in wanted {
            for (to, from) in placed(file)? {
                self.add_file(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Adds the settings, a file that the guest's first process reads as shell code.
    pub(crate) fn add_settings(&mut self, settings: &BTreeMap<&str, String>) {
        let lines: String = settings
            .iter()
            .map(|(name, value)| format!("export {name}={}\n", quote(value)))
            .collect();
        let entry = GuestEntry::File {
            permissions: 0o644,
            contents: lines.into_bytes(),
        };
        self.files.insert("run/kbp-lab/job.sh".into(), entry);
    }

    /// The tar archive.
    pub(crate) fn into_tar(self) -> Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        let what = Path::new("the job's archive");
        for (path, entry) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            match entry {
                GuestEntry::File {
                    permissions,
                    contents,
                } => {
                    header.set_mode(*permissions);
                    header.set_size(contents.len() as u64);
                    builder
                        .append_data(&mut header, path, contents.as_slice())
                        .at("write", what)?;
                }
                GuestEntry::Symlink(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    builder
                        .append_link(&mut header, path, target)
                        .at("write", what)?;
                }
            }
        }
        builder.into_inner().at("write", what)
    }

    fn add_file(&mut self, from: &Path, to: &str) -> Result<()> {
        let meta = fs::metadata(from).at("look at", from)?;
        let contents = fs::read(from).at("read", from)?;
        self.files.insert(
            to.into(),
            GuestEntry::File {
                permissions: meta.permissions().mode() & 0o777,
                contents,
            },
        );
        Ok(())
    }
}

/// Where the files of an argument go in the guest.
fn placed(file: &GuestFile) -> Result<Vec<(String, PathBuf)>> {
    let meta = fs::metadata(&file.host).at("look at", &file.host)?;
    let name = file.host.canonicalize().at("resolve", &file.host)?;
    let name = name.file_name().unwrap_or_default();
    let is_program = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    let default = Path::new(if is_program {
        "/usr/local/bin"
    } else {
        "/root"
    })
    .join(name);
    let target = file.guest.clone().unwrap_or(default);
    let place = |path: &Path| {
        guest_path(path)
            .ok_or_else(|| Error::Argument(format!("{} is no place in the guest", path.display())))
    };
    if meta.is_file() {
        return Ok(vec![(place(&target)?, file.host.clone())]);
    }
    tree(&file.host)?
        .into_iter()
        .map(|(relative, path)| Ok((place(&target.join(relative))?, path)))
        .collect()
}

/// All regular files below a folder: their relative and their whole path.
fn tree(root: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut files = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).at("read", &dir)? {
            let path = entry.at("read", &dir)?.path();
            if path.is_dir() && !path.is_symlink() {
                pending.push(path);
            } else if path.is_file() {
                files.push((
                    path.strip_prefix(root).unwrap_or(&path).to_path_buf(),
                    path.clone(),
                ));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Quotes a word for the shell.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_arguments() {
        let parse = |text: &str| text.parse::<GuestFile>();
        assert_eq!(
            parse("a/b").unwrap(),
            GuestFile {
                host: "a/b".into(),
                guest: None
            }
        );
        assert_eq!(parse("a:/x/y").unwrap().guest, Some("/x/y".into()));
        assert!(parse("a:x").unwrap_err().contains("slash"));
        assert!(parse(":/x").is_err());
    }

    #[test]
    fn words_survive_the_shell() {
        for word in ["", "plain", "it's", "a b\n$(reboot) `x` \\ \"q\"", "''"] {
            let script = format!("printf %s {}", quote(word));
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn programs_get_their_libraries_and_a_place() {
        let mut payload = Payload::default();
        payload
            .add_files(&[GuestFile {
                host: std::env::current_exe().unwrap(),
                guest: None,
            }])
            .unwrap();
        payload.add_settings(&BTreeMap::from([("OUT", "/out".to_string())]));
        let bytes = payload.into_tar().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let paths: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        for end in [
            "libc.so.6",
            "libm.so.6",
            "usr/lib64/ld-linux-x86-64.so.2",
            "run/kbp-lab/job.sh",
        ] {
            assert!(
                paths.iter().any(|path| path.ends_with(end)),
                "{end} is not in {paths:?}"
            );
        }
        assert!(
            paths
                .iter()
                .any(|path| path.starts_with("usr/local/bin/kbp_lab-")),
            "{paths:?}"
        );
        assert!(
            paths.iter().all(|path| !path.starts_with("lib")),
            "the guest's /usr is merged: {paths:?}"
        );
    }
}
