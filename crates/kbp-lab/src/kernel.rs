// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stock Debian kernels: from a meta-package to an unpacked image, its modules and headers that build elsewhere.
//!
//! Not here: compiling ([`crate::kbuild`]) and choosing which modules a guest gets ([`crate::initramfs`]).

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Package};
use crate::cache::{write_whole, Cache};
use crate::config::KernelConfig;
use crate::error::{Error, IoContext, Result};
use crate::packages::unpack_into;

/// A kernel in the cache, ready to boot and to build modules for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kernel {
    /// Its id in kernels.toml.
    pub id: String,
    /// Its release as `uname -r` says it, for instance `6.1.0-56-amd64`.
    pub abi: String,
    /// The version of the Debian package.
    pub version: String,
    /// The compiler for its modules.
    pub compiler: String,
    /// The boot image.
    pub image: PathBuf,
    /// The folder with its modules (`lib/modules/ABI` of the package).
    pub modules_dir: PathBuf,
    /// The folder to give kbuild as KDIR.
    pub headers_dir: PathBuf,
}

impl Kernel {
    /// The kernel as it lies in the cache, if it does.
    pub fn cached(cache: &Cache, id: &str) -> Option<Kernel> {
        let record = cache.root().join("kernels").join(id).join("kernel.json");
        let kernel: Kernel = serde_json::from_slice(&fs::read(record).ok()?).ok()?;
        (kernel.image.exists() && kernel.modules_dir.exists() && kernel.headers_dir.exists())
            .then_some(kernel)
    }

    /// Takes the kernel from the cache, or finds the newest one and downloads it. The caller holds the lock.
    ///
    /// # Errors
    /// Those of apt, of the disk, and [`Error::PackageNotFound`].
    pub(crate) fn fetch(
        cache: &Cache,
        id: &str,
        config: &KernelConfig,
        refresh: bool,
    ) -> Result<Kernel> {
        let cached = Kernel::cached(cache, id);
        if let (Some(kernel), false) = (&cached, refresh) {
            let pinned_elsewhere = config.abi.as_ref().is_some_and(|abi| *abi != kernel.abi);
            if !pinned_elsewhere {
                return Ok(kernel.clone());
            }
        }
        let apt = Apt::open(cache, &config.release)?;
        apt.update(refresh)?;
        let parts = Parts::resolve(&apt, config)?;
        if let Some(kernel) =
            cached.filter(|kernel| kernel.abi == parts.abi && kernel.version == parts.version)
        {
            return Ok(kernel);
        }
        eprintln!("lab: kernel {id} is {} ({})", parts.abi, parts.version);
        parts.install(cache, &apt, id, config)
    }
}

/// The packages of one kernel.
struct Parts {
    abi: String,
    version: String,
    image: Vec<Package>,
    headers: Vec<Package>,
}

impl Parts {
    fn resolve(apt: &Apt, config: &KernelConfig) -> Result<Parts> {
        let suites = &config.suites;
        let abi = match &config.abi {
            Some(abi) => abi.clone(),
            None => {
                let meta = apt.newest(&config.image, suites)?;
                let image =
                    dependencies(&meta.depends).find(|name| name.starts_with("linux-image-"));
                let name = image.ok_or_else(|| Error::PackageNotFound {
                    package: format!("linux-image-ABI, on which {} should depend", config.image),
                    suites: suites.join(", "),
                })?;
                name["linux-image-".len()..].to_string()
            }
        };
        let image = with_parts(apt, &format!("linux-image-{abi}"), &abi, suites)?;
        let headers = with_parts(apt, &format!("linux-headers-{abi}"), &abi, suites)?;
        Ok(Parts {
            abi,
            version: image[0].version.clone(),
            image,
            headers,
        })
    }

    fn install(self, cache: &Cache, apt: &Apt, id: &str, config: &KernelConfig) -> Result<Kernel> {
        let all: Vec<Package> = self.image.iter().chain(&self.headers).cloned().collect();
        apt.download(&all)?;
        let dir = cache.dir(&format!("kernels/{id}"))?;
        // The ABI can stay while the version grows, so both are in the name: an old tree may be in use.
        let stem = format!("{}_{}", self.abi, self.version.replace([':', '~'], "-"));
        let (image_tree, headers_tree) = (
            dir.join(format!("{stem}-image")),
            dir.join(format!("{stem}-headers")),
        );
        unpack_into(cache, &self.image, &image_tree)?;
        unpack_into(cache, &self.headers, &headers_tree)?;
        relocate_headers(&headers_tree)?;
        let modules_dir = ["lib/modules", "usr/lib/modules"]
            .iter()
            .map(|base| image_tree.join(base).join(&self.abi))
            .find(|path| path.is_dir())
            .ok_or_else(|| missing(&image_tree, "a folder of modules"))?;
        let image = image_tree
            .join("boot")
            .join(format!("vmlinuz-{}", self.abi));
        let image = Some(image)
            .filter(|path| path.is_file())
            .or_else(|| Some(modules_dir.join("vmlinuz")).filter(|path| path.is_file()));
        let kernel = Kernel {
            id: id.into(),
            headers_dir: headers_tree
                .join("usr/src")
                .join(format!("linux-headers-{}", self.abi)),
            image: image.ok_or_else(|| missing(&image_tree, "a boot image"))?,
            abi: self.abi,
            version: self.version,
            compiler: config.compiler.clone(),
            modules_dir,
        };
        let record = dir.join("kernel.json");
        let text = serde_json::to_vec_pretty(&kernel).map_err(|source| Error::Config {
            path: record.clone(),
            detail: source.to_string(),
        })?;
        write_whole(&record, &text)?;
        Ok(kernel)
    }
}

fn missing(path: &Path, what: &str) -> Error {
    Error::Config {
        path: path.into(),
        detail: format!("the kernel's packages hold no {what}"),
    }
}

/// A package and those parts of it that are packages of their own: newer kernels split image and modules.
fn with_parts(apt: &Apt, name: &str, abi: &str, suites: &[String]) -> Result<Vec<Package>> {
    let top = apt.newest(name, suites)?;
    let mut packages = vec![top];
    let mut next = 0;
    // Kernels are split into a handful of packages; the bound is against a circle of names.
    while next < packages.len() && packages.len() < 16 {
        let names: Vec<String> = dependencies(&packages[next].depends)
            .filter(|name| is_part(name, abi))
            .map(str::to_string)
            .collect();
        for name in names {
            if packages.iter().all(|package| package.name != name) {
                packages.push(apt.newest(&name, suites)?);
            }
        }
        next += 1;
    }
    Ok(packages)
}

/// Whether a dependency belongs to this very kernel: its ABI's packages, common headers, and build tools.
fn is_part(name: &str, abi: &str) -> bool {
    let is_tools = name.starts_with("linux-kbuild-");
    let is_common = name.starts_with("linux-headers-") && name.contains("-common");
    let is_abi = name.starts_with("linux-") && name.ends_with(abi);
    is_tools || is_common || is_abi
}

/// Package names of a `Depends` field; of alternatives, the first.
fn dependencies(field: &str) -> impl Iterator<Item = &str> {
    field
        .split(',')
        .filter_map(|clause| clause.split('|').next()?.split_whitespace().next())
}

/// Makes the headers work in this folder: they name their common part by an absolute path under /usr.
fn relocate_headers(tree: &Path) -> Result<()> {
    let sources = tree.join("usr/src");
    for entry in fs::read_dir(&sources).at("read", &sources)? {
        let dir = entry.at("read", &sources)?.path();
        let makefile = dir.join("Makefile");
        if !makefile.is_file() || dir.is_symlink() {
            continue;
        }
        let text = fs::read_to_string(&makefile).at("read", &makefile)?;
        if let Some(moved) = relocate(&text, tree) {
            fs::write(&makefile, moved).at("write", &makefile)?;
        }
    }
    Ok(())
}

/// The Makefile's text with absolute paths turned to the tree, or `None` when there is nothing to change.
fn relocate(text: &str, tree: &Path) -> Option<String> {
    const SOURCES: &str = "/usr/src/linux-";
    let moved_sources = format!("{}{SOURCES}", tree.display());
    let is_new = text.contains(SOURCES) && !text.contains(&moved_sources);
    is_new.then(|| text.replace(SOURCES, &moved_sources))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_and_parts() {
        let field = "linux-base (>= 4.17~), dracut | initramfs-tools (>= 0.1), linux-modules-7.3.4+deb13-amd64 (= 7)";
        let names: Vec<_> = dependencies(field).collect();
        assert_eq!(
            names,
            ["linux-base", "dracut", "linux-modules-7.3.4+deb13-amd64"]
        );
        let abi = "7.3.4+deb13-amd64";
        let parts: Vec<_> = names
            .into_iter()
            .filter(|name| is_part(name, abi))
            .collect();
        assert_eq!(parts, ["linux-modules-7.3.4+deb13-amd64"]);
        assert!(is_part(
            "linux-headers-6.1.0-56-common-rt",
            "6.1.0-56-rt-amd64"
        ));
        assert!(is_part("linux-kbuild-6.1", "6.1.0-56-amd64"));
        assert!(!is_part("linux-compiler-gcc-12-x86", "6.1.0-56-amd64"));
    }

    #[test]
    fn headers_are_relocated_once() {
        let text = "KBUILD_OUTPUT=/usr/src/linux-headers-7\ninclude /usr/src/linux-headers-7-common/Makefile\n";
        let moved = relocate(text, Path::new("/c")).unwrap();
        assert_eq!(moved, "KBUILD_OUTPUT=/c/usr/src/linux-headers-7\ninclude /c/usr/src/linux-headers-7-common/Makefile\n");
        assert_eq!(relocate(&moved, Path::new("/c")), None);
    }
}
