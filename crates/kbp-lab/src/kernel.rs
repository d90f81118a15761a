// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stock Debian kernels: from a meta-package to an unpacked image, its modules and headers that build elsewhere.
//!
//! Not here: compiling ([`crate::kbuild`]) and choosing which modules a guest gets ([`crate::initramfs`]).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::apt::{Apt, Package};
use crate::cache::{write_whole, Cache};
use crate::config::KernelConfig;
use crate::error::{Error, IoContext, Result};
use crate::packages::unpack_into;

/// How the names of a kernel's packages begin.
const IMAGE: &str = "linux-image-";
const HEADERS: &str = "linux-headers-";

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

/// What the cache remembers about a kernel: also which of several it was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    kernel: Kernel,
    /// [`KernelConfig::previous`] at that time.
    #[serde(default)]
    previous: u32,
}

impl Record {
    fn load(cache: &Cache, id: &str) -> Option<Record> {
        let path = cache.root().join("kernels").join(id).join("kernel.json");
        let record: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let kernel = &record.kernel;
        let is_whole =
            kernel.image.exists() && kernel.modules_dir.exists() && kernel.headers_dir.exists();
        is_whole.then_some(record)
    }

    fn save(&self, cache: &Cache) -> Result<()> {
        let path = cache
            .dir(&format!("kernels/{}", self.kernel.id))?
            .join("kernel.json");
        let text = serde_json::to_vec_pretty(self).map_err(|source| Error::Config {
            path: path.clone(),
            detail: source.to_string(),
        })?;
        write_whole(&path, &text)
    }

    /// Whether it is of the kind that kernels.toml asks for today.
    fn fits(&self, config: &KernelConfig) -> bool {
        let abi = &self.kernel.abi;
        let is_line = |line: &String| line == abi::line(abi);
        config.abi.as_ref().is_none_or(|pinned| pinned == abi)
            && config.line.as_ref().is_none_or(is_line)
            && config.previous == self.previous
    }
}

impl Kernel {
    /// The kernel as it lies in the cache, if it does.
    pub fn cached(cache: &Cache, id: &str) -> Option<Kernel> {
        Record::load(cache, id).map(|record| record.kernel)
    }

    /// Takes the kernel from the cache, or finds the newest one and downloads it. The caller holds the lock.
    ///
    /// # Errors
    /// Those of apt, of the disk, [`Error::PackageNotFound`] and [`Error::KernelNotOffered`].
    pub(crate) fn fetch(
        cache: &Cache,
        id: &str,
        config: &KernelConfig,
        refresh: bool,
    ) -> Result<Kernel> {
        let cached = Record::load(cache, id);
        if let (Some(record), false) = (&cached, refresh) {
            if record.fits(config) {
                return Ok(record.kernel.clone());
            }
        }
        let apt = Apt::open(cache, &config.release)?;
        apt.update(refresh)?;
        let parts = Parts::resolve(&apt, config)?;
        let is_there = |kernel: &Kernel| kernel.abi == parts.abi && kernel.version == parts.version;
        let kernel = match cached.filter(|record| is_there(&record.kernel)) {
            Some(record) => record.kernel,
            None => {
                eprintln!("lab: kernel {id} is {} ({})", parts.abi, parts.version);
                parts.install(cache, &apt, id, config)?
            }
        };
        let record = Record {
            kernel: kernel.clone(),
            previous: config.previous,
        };
        record.save(cache)?;
        Ok(kernel)
    }

    /// The packages that it was unpacked from, for a system that is to install them.
    ///
    /// # Errors
    /// Those of apt, and [`Error::Argument`] when the archive has another version of them by now.
    pub(crate) fn packages(&self, apt: &Apt, config: &KernelConfig) -> Result<Vec<Package>> {
        let this = KernelConfig {
            abi: Some(self.abi.clone()),
            ..config.clone()
        };
        let parts = Parts::resolve(apt, &this)?;
        if parts.version != self.version {
            return Err(Error::Argument(format!(
                "the archive has {} of {} now, the cache has {}; run `kbp lab fetch --refresh`",
                parts.version, self.abi, self.version
            )));
        }
        let mut packages: Vec<Package> = parts.image.into_iter().chain(parts.headers).collect();
        packages.sort_by_key(Package::file_name);
        packages.dedup();
        Ok(packages)
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
            None => meant(apt, config)?,
        };
        let image = with_parts(apt, &format!("{IMAGE}{abi}"), &abi, suites)?;
        let headers = with_parts(apt, &format!("{HEADERS}{abi}"), &abi, suites)?;
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
        Ok(kernel)
    }
}

fn missing(path: &Path, what: &str) -> Error {
    Error::Config {
        path: path.into(),
        detail: format!("the kernel's packages hold no {what}"),
    }
}

/// The ABI that a table of kernels.toml means today.
fn meant(apt: &Apt, config: &KernelConfig) -> Result<String> {
    let newest = pointed_to(apt, config)?;
    let line = config.line.as_deref().unwrap_or(abi::line(&newest));
    if config.previous == 0 && line == abi::line(&newest) {
        return Ok(newest);
    }
    let suites = &config.suites;
    let images = apt.names(&format!("{IMAGE}{line}."), suites)?;
    let headers = apt.names(&format!("{HEADERS}{line}."), suites)?;
    let offered = offered(&images, &headers, abi::flavour(&newest));
    choose(&offered, &newest, line, config.previous).ok_or_else(|| Error::KernelNotOffered {
        wanted: match config.previous {
            0 => format!("kernel of the line {line}"),
            count => format!("kernel {count} ABIs before the newest one of the line {line}"),
        },
        suites: suites.join(", "),
        offered: if offered.is_empty() {
            "none of this line".into()
        } else {
            offered.join(", ")
        },
    })
}

/// The ABI that the meta-package points to.
fn pointed_to(apt: &Apt, config: &KernelConfig) -> Result<String> {
    let meta = apt.newest(&config.image, &config.suites)?;
    let image = dependencies(&meta.depends).find_map(|name| name.strip_prefix(IMAGE));
    let abi = image.ok_or_else(|| Error::PackageNotFound {
        package: format!("{IMAGE}ABI, on which {} should depend", config.image),
        suites: config.suites.join(", "),
    })?;
    Ok(abi.to_string())
}

/// The ABIs of a flavour that have both an image and headers, newest first: an archive keeps images for longer.
fn offered(images: &BTreeSet<String>, headers: &BTreeSet<String>, flavour: &str) -> Vec<String> {
    let mut abis: Vec<String> = images
        .iter()
        .filter_map(|name| name.strip_prefix(IMAGE))
        .filter(|abi| abi::flavour(abi) == flavour && headers.contains(&format!("{HEADERS}{abi}")))
        .map(str::to_string)
        .collect();
    abis.sort_by_key(|abi| std::cmp::Reverse(abi::order(abi)));
    abis
}

/// The ABI of a line which is `previous` before the newest; that one is where the meta-package points to, if it is of
/// this line.
fn choose(offered: &[String], newest: &str, line: &str, previous: u32) -> Option<String> {
    let previous = usize::try_from(previous).ok()?;
    let mut of_line = offered.iter().filter(|abi| abi::line(abi) == line);
    if line != abi::line(newest) {
        return of_line.nth(previous).cloned();
    }
    let is_older = |abi: &&String| abi::order(abi) < abi::order(newest);
    of_line
        .filter(is_older)
        .nth(previous.checked_sub(1)?)
        .cloned()
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
    fn the_abi_that_is_meant() {
        let set = |names: &[&str], kind: &str| -> BTreeSet<String> {
            names.iter().map(|abi| format!("{kind}{abi}")).collect()
        };
        let images = set(
            &[
                "6.1.0-9-amd64",
                "6.1.0-53-amd64",
                "6.1.0-54-amd64",
                "6.1.0-54-rt-amd64",
                "6.1.0-54-amd64-dbg",
                "6.1.0-55-amd64",
                "6.1.0-56-amd64",
            ],
            IMAGE,
        );
        // No headers for 55, and the image of 57 has not come yet.
        let headers = set(
            &[
                "6.1.0-9-amd64",
                "6.1.0-53-amd64",
                "6.1.0-54-amd64",
                "6.1.0-56-amd64",
                "6.1.0-57-amd64",
            ],
            HEADERS,
        );
        let offered = offered(&images, &headers, "amd64");
        assert_eq!(
            offered,
            [
                "6.1.0-56-amd64",
                "6.1.0-54-amd64",
                "6.1.0-53-amd64",
                "6.1.0-9-amd64"
            ]
        );
        let chosen = |newest: &str, line: &str, previous: u32| {
            choose(&offered, newest, line, previous).unwrap_or_default()
        };
        assert_eq!(chosen("6.1.0-56-amd64", "6.1", 1), "6.1.0-54-amd64");
        assert_eq!(chosen("6.1.0-56-amd64", "6.1", 3), "6.1.0-9-amd64");
        assert_eq!(chosen("6.1.0-56-amd64", "6.1", 4), "");
        // What the meta-package points to counts as the newest, even if its headers are late.
        assert_eq!(chosen("6.1.0-57-amd64", "6.1", 1), "6.1.0-56-amd64");
        // The meta-package went on to another line.
        assert_eq!(chosen("7.3.4+deb13-amd64", "6.1", 0), "6.1.0-56-amd64");
        assert_eq!(chosen("7.3.4+deb13-amd64", "6.1", 1), "6.1.0-54-amd64");
    }

    #[test]
    fn what_is_cached_has_to_be_what_is_meant() {
        let text = r#"{"id":"7.3","abi":"7.3.4+deb13-amd64","version":"7.3.4-1","compiler":"gcc-14",
            "image":"/i","modules_dir":"/m","headers_dir":"/h"}"#;
        let mut record: Record = serde_json::from_str(text).unwrap();
        let config = |keys: &str| -> KernelConfig {
            let text = format!(
                "release='t'\nsuites=[]\nimage='linux-image-amd64'\ncompiler='gcc-14'\n{keys}"
            );
            toml::from_str(&text).unwrap()
        };
        assert!(record.fits(&config("")) && record.fits(&config("line='7.3'")));
        assert!(!record.fits(&config("line='7.4'")));
        assert!(!record.fits(&config("previous=1")));
        assert!(!record.fits(&config("abi='7.3.3+deb13-amd64'")));
        record.previous = 1;
        assert!(record.fits(&config("previous=1")) && !record.fits(&config("")));
    }

    #[test]
    fn headers_are_relocated_once() {
        let text = "KBUILD_OUTPUT=/usr/src/linux-headers-7\ninclude /usr/src/linux-headers-7-common/Makefile\n";
        let moved = relocate(text, Path::new("/c")).unwrap();
        assert_eq!(moved, "KBUILD_OUTPUT=/c/usr/src/linux-headers-7\ninclude /c/usr/src/linux-headers-7-common/Makefile\n");
        assert_eq!(relocate(&moved, Path::new("/c")), None);
    }
}
