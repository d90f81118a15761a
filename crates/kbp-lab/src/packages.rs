// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian packages unpacked beside the system: downloaded, checked, extracted, never installed.
//!
//! Not here: choosing packages ([`crate::apt`]) and putting files into a guest ([`crate::payload`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::apt::{hex, Apt, Package};
use crate::cache::{remove, write_whole, Cache};
use crate::command;
use crate::error::{Error, IoContext, Result};

/// Extracts packages into one folder, which is there whole or not at all.
pub(crate) fn unpack_into(cache: &Cache, packages: &[Package], target: &Path) -> Result<()> {
    let partial = target.with_extension("partial");
    remove(&partial)?;
    fs::create_dir_all(&partial).at("make the folder", &partial)?;
    // Packages unpack to three to five times their size.
    cache.check_space(5 * packages.iter().map(|package| package.size).sum::<u64>())?;
    let downloads = cache.dir("downloads")?;
    for package in packages {
        let deb = downloads.join(package.file_name());
        let doing = format!("unpacking {}", deb.display());
        command::output(
            Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&partial),
            &doing,
            "dpkg",
        )?;
    }
    remove(target)?;
    fs::rename(&partial, target).at("rename to", target)
}

/// Some packages for the guest with all that they depend on, each unpacked in a folder of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PackageSet {
    /// The folders of the packages that were asked for.
    pub wanted: Vec<PathBuf>,
    /// The folders of all packages, theirs included.
    pub all: Vec<PathBuf>,
}

impl PackageSet {
    /// Takes the set from the cache, or resolves, downloads and unpacks it.
    ///
    /// # Errors
    /// Those of [`Apt`].
    pub(crate) fn fetch(
        cache: &Cache,
        release: &str,
        names: &[String],
        refresh: bool,
    ) -> Result<PackageSet> {
        let record = cache
            .dir("packages")?
            .join(format!("{release}-{}.json", set_name(names)));
        if !refresh {
            if let Some(set) = PackageSet::load(&record) {
                return Ok(set);
            }
        }
        let apt = Apt::open(cache, release)?;
        apt.update(refresh)?;
        let packages = apt.closure(names, None)?;
        apt.download(&packages)?;
        let trees = cache.dir("trees")?;
        let mut set = PackageSet {
            wanted: Vec::new(),
            all: Vec::new(),
        };
        for package in &packages {
            let tree = trees.join(package.file_name().trim_end_matches(".deb"));
            if !tree.exists() {
                unpack_into(cache, std::slice::from_ref(package), &tree)?;
            }
            if names.contains(&package.name) {
                set.wanted.push(tree.clone());
            }
            set.all.push(tree);
        }
        let text = serde_json::to_vec_pretty(&set).map_err(|source| Error::Config {
            path: record.clone(),
            detail: source.to_string(),
        })?;
        write_whole(&record, &text)?;
        Ok(set)
    }

    fn load(record: &Path) -> Option<PackageSet> {
        let set: PackageSet = serde_json::from_slice(&fs::read(record).ok()?).ok()?;
        set.all.iter().all(|tree| tree.exists()).then_some(set)
    }
}

/// A file name for a set of packages, the same for any order.
fn set_name(names: &[String]) -> String {
    use sha2::{Digest, Sha256};
    let mut sorted = names.to_vec();
    sorted.sort();
    hex(&Sha256::digest(sorted.join(" ").as_bytes()))[..16].to_string()
}
