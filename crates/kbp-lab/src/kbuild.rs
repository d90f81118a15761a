// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds out-of-tree module folders against a kernel's headers, with the compiler that the kernel asks for.
//!
//! The folder is copied into the cache, so the source stays clean and two kernels never share an object file. A folder
//! whose contents, kernel and compiler are those of an earlier build is not built again.
//!
//! Not here: the build root itself ([`crate::root`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::{Digest, Sha256};

use crate::apt::hex;
use crate::cache::{remove, Cache};
use crate::config::Config;
use crate::error::{tail, Error, IoContext, Result};
use crate::kernel::Kernel;
use crate::root::Toolchain;

/// What a build leaves in a folder: neither copied nor part of its identity.
const PRODUCTS: [&str; 9] = ["o", "ko", "mod", "cmd", "d", "symvers", "order", "a", "dwo"];

/// Builds a folder for a kernel and returns the `.ko` files. `words` are more arguments for make; with any, make's
/// output is shown. The caller holds the lock.
///
/// # Errors
/// [`Error::Build`] with the end of make's output, or what keeps the compiler from being there.
pub(crate) fn build(
    cache: &Cache,
    config: &Config,
    kernel: &Kernel,
    source: &Path,
    words: &[String],
) -> Result<Vec<PathBuf>> {
    let source = source.canonicalize().at("find the module folder", source)?;
    let files = sources(&source)?;
    let identity = identity(&files, &source, kernel, words)?;
    let name = source
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let dir = cache
        .dir(&format!("build/{}", kernel.id))?
        .join(format!("{name}-{}", &identity[..16]));
    let done = dir.join(".built");
    if !done.exists() {
        remove(&dir)?;
        copy(&files, &source, &dir)?;
        Make {
            cache,
            config,
            kernel,
            source: &source,
            dir: &dir,
            words,
        }
        .run()?;
        fs::write(&done, "").at("write", &done)?;
    }
    let mut modules = Vec::new();
    find_modules(&dir, &mut modules)?;
    modules.sort();
    if modules.is_empty() {
        let detail = format!("make built no .ko file in {}", source.display());
        return Err(Error::Config {
            path: source,
            detail,
        });
    }
    Ok(modules)
}

/// One call of make.
struct Make<'a> {
    cache: &'a Cache,
    config: &'a Config,
    kernel: &'a Kernel,
    source: &'a Path,
    dir: &'a Path,
    words: &'a [String],
}

impl Make<'_> {
    fn run(&self) -> Result<()> {
        let (kernel, source) = (self.kernel, self.source);
        let toolchain = Toolchain::get(self.cache, self.config, &kernel.compiler)?;
        eprintln!(
            "lab: building {} for {} with {}",
            source.display(),
            kernel.abi,
            kernel.compiler
        );
        let mut command = toolchain.command("make", self.cache)?;
        command
            .args(["-j2", "-C"])
            .arg(self.dir)
            .arg(format!("KDIR={}", kernel.headers_dir.display()))
            .arg(format!("CC={}", kernel.compiler))
            // Type information of modules needs a pahole that fits the kernel, and nothing here reads it.
            .arg("CONFIG_DEBUG_INFO_BTF_MODULES=")
            .args(self.words)
            .stdin(Stdio::null());
        let output = command.output().map_err(|source| Error::Command {
            program: "make".into(),
            doing: format!("building {}", self.dir.display()),
            detail: source.to_string(),
        })?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let log = self.dir.join("make.log");
        fs::write(&log, &text).at("write", &log)?;
        if !output.status.success() {
            let tail = tail(&text, 25);
            return Err(Error::Build {
                module: source.into(),
                kernel: kernel.abi.clone(),
                tail,
                log,
            });
        }
        if !self.words.is_empty() {
            eprint!("{text}");
        }
        Ok(())
    }
}

/// The files of a source folder, relative to it and sorted, without what a build leaves and without hidden ones.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).at("read", &dir)? {
            let path = entry.at("read", &dir)?.path();
            if is_product(&path) {
                continue;
            }
            if path.is_dir() {
                pending.push(path);
            } else if let Ok(relative) = path.strip_prefix(root) {
                files.push(relative.to_path_buf());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_product(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    name.starts_with('.')
        || name.ends_with(".mod.c")
        || (!path.is_dir() && PRODUCTS.contains(&&*extension))
}

fn identity(files: &[PathBuf], source: &Path, kernel: &Kernel, words: &[String]) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(format!(
        "{}\0{}\0{}\0{}\0",
        kernel.abi,
        kernel.version,
        kernel.compiler,
        words.join("\0")
    ));
    for file in files {
        let path = source.join(file);
        let contents = fs::read(&path).at("read", &path)?;
        hasher.update(format!("{}\0{}\0", file.display(), contents.len()));
        hasher.update(contents);
    }
    Ok(hex(&hasher.finalize()))
}

fn copy(files: &[PathBuf], source: &Path, target: &Path) -> Result<()> {
    for file in files {
        let to = target.join(file);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).at("make the folder", parent)?;
        }
        fs::copy(source.join(file), &to).at("copy to", &to)?;
    }
    Ok(())
}

fn find_modules(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        if path.is_dir() {
            find_modules(&path, found)?;
        } else if path.extension().is_some_and(|ext| ext == "ko") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_neither_copied_nor_part_of_the_identity() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("sub")).unwrap();
        for name in ["Makefile", "sub/a.c"] {
            fs::write(at(name), name).unwrap();
        }
        let kernel = Kernel {
            id: "k".into(),
            abi: "1-amd64".into(),
            version: "1".into(),
            compiler: "cc".into(),
            image: PathBuf::new(),
            modules_dir: PathBuf::new(),
            headers_dir: PathBuf::new(),
        };
        let take = || {
            let files = sources(temp.path()).unwrap();
            let id = identity(&files, temp.path(), &kernel, &[]).unwrap();
            (files, id)
        };
        let (files, before) = take();
        assert_eq!(files, [PathBuf::from("Makefile"), PathBuf::from("sub/a.c")]);
        for name in [
            "sub/a.o",
            "sub/.a.o.cmd",
            "x.mod.c",
            "x.ko",
            "Module.symvers",
        ] {
            fs::write(at(name), "x").unwrap();
        }
        assert_eq!(take(), (files, before.clone()));
        fs::write(at("sub/a.c"), "changed").unwrap();
        assert_ne!(take().1, before);
    }
}
