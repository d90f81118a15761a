// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `lab/kernels.toml`: which kernels there are, what compiles their modules, what a guest holds.
//!
//! Not here: package versions. The file names suites and meta-packages; the newest version is found by apt.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, IoContext, Result};
use crate::source::SourceKernel;

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What every guest holds.
    pub guest: Guest,
    /// Compilers by the name of their program.
    #[serde(default)]
    pub compiler: BTreeMap<String, Compiler>,
    /// Kernels by id.
    pub kernel: BTreeMap<String, KernelConfig>,
    /// Kernels that are built from source, by id.
    #[serde(default)]
    pub source: BTreeMap<String, SourceKernel>,
    /// Systems that machines boot from a disk, by name.
    #[serde(default)]
    pub root: BTreeMap<String, RootConfig>,
}

/// A whole Debian on a disk.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootConfig {
    /// Its release.
    pub release: String,
    /// What is installed beside the essential packages and apt.
    pub packages: Vec<String>,
    /// Stock modules loaded before the disk is mounted; those that a kernel lacks are left out.
    pub boot_modules: Vec<String>,
    /// Size of the disk in MiB.
    pub disk_mib: u32,
}

/// What every guest holds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// The Debian release that the guest's packages come from.
    pub release: String,
    /// Packages in every guest.
    pub packages: Vec<String>,
    /// Stock modules loaded before the job comes.
    pub boot_modules: Vec<String>,
    /// Stock modules that lie ready for `modprobe` and the kernel's own requests.
    pub modules: Vec<String>,
}

/// Where a compiler comes from when this machine has not got it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiler {
    /// The release of the build root.
    pub release: String,
    /// The packages of the build root.
    pub packages: Vec<String>,
}

/// One kernel.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelConfig {
    /// The Debian release whose package lists are read.
    pub release: String,
    /// Suites to choose from; the newest version of all wins.
    pub suites: Vec<String>,
    /// The meta-package of the image, `linux-image-...`; that of the headers is named alike.
    pub image: String,
    /// The compiler that its modules want.
    pub compiler: String,
    /// A kernel line such as `7.3`: the newest ABI of it that the suites offer, wherever the meta-package points to by then.
    #[serde(default)]
    pub line: Option<String>,
    /// How many ABIs before the newest one; only those count whose image and headers the suites offer.
    #[serde(default)]
    pub previous: u32,
    /// A fixed ABI such as `6.1.0-55-amd64`, instead of what the meta-package points to.
    #[serde(default)]
    pub abi: Option<String>,
    /// The model of network cards when a job names none.
    #[serde(default = "default_nic")]
    pub nic: String,
    /// Scripts that may skip on this kernel, by their file names, with the reason. A skip that is not listed counts as a failure.
    #[serde(default)]
    pub skip: BTreeMap<String, String>,
}

impl KernelConfig {
    /// Whether what chooses the ABI makes sense together, and the id says the truth about it.
    fn check_choice(&self, id: &str) -> std::result::Result<(), String> {
        if self.abi.is_some() && (self.line.is_some() || self.previous > 0) {
            return Err(
                "'abi' names one kernel, so 'line' and 'previous' say nothing beside it".into(),
            );
        }
        let belongs = |line: &String| {
            id.strip_prefix(line.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        match &self.line {
            Some(line) if !belongs(line) => {
                Err(format!("its name does not begin with its line {line}"))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn default_nic() -> String {
    "e1000e".into()
}

impl Config {
    /// Reads `kernels.toml` in the lab's folder.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Config`].
    pub fn read(lab_dir: &Path) -> Result<Config> {
        let path = lab_dir.join("kernels.toml");
        let text = fs::read_to_string(&path).at("read", &path)?;
        Config::parse(&text).map_err(|detail| Error::Config { path, detail })
    }

    fn parse(text: &str) -> std::result::Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        for (id, kernel) in &config.kernel {
            if !kernel.image.starts_with("linux-image-") {
                return Err(format!(
                    "kernel {id}: the image '{}' is no linux-image- package",
                    kernel.image
                ));
            }
            if !config.compiler.contains_key(&kernel.compiler) {
                return Err(format!(
                    "kernel {id}: there is no [compiler.\"{}\"]",
                    kernel.compiler
                ));
            }
            kernel
                .check_choice(id)
                .map_err(|detail| format!("kernel {id}: {detail}"))?;
        }
        for (id, source) in &config.source {
            if config.kernel.contains_key(id) {
                return Err(format!("kernel {id}: there are two of this name"));
            }
            if !config.compiler.contains_key(&source.builder) {
                return Err(format!(
                    "kernel {id}: there is no [compiler.\"{}\"]",
                    source.builder
                ));
            }
        }
        Ok(config)
    }

    /// The compiler and the model of network cards of a kernel, whichever kind it is.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`], with the ids that there are.
    pub fn compiler_and_nic(&self, id: &str) -> Result<(&str, &str)> {
        if let Some(source) = self.source.get(id) {
            return Ok((&source.compiler, &source.nic));
        }
        let kernel = self.kernel(id)?;
        Ok((&kernel.compiler, &kernel.nic))
    }

    /// One system for disks by its name.
    ///
    /// # Errors
    /// [`Error::Argument`], with the names that there are.
    pub fn root(&self, name: &str) -> Result<&RootConfig> {
        self.root.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.root.keys().map(String::as_str).collect();
            Error::Argument(format!(
                "there is no root '{name}' in the lab; it has {}",
                known.join(", ")
            ))
        })
    }

    /// One stock kernel by its id.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`], with the ids that there are.
    pub fn kernel(&self, id: &str) -> Result<&KernelConfig> {
        self.kernel.get(id).ok_or_else(|| Error::UnknownKernel {
            id: id.into(),
            known: self
                .kernel
                .keys()
                .chain(self.source.keys())
                .cloned()
                .collect::<Vec<_>>()
                .join(", "),
        })
    }
}

/// Finds the folder `lab` that has a kernels.toml, from `start` upwards.
///
/// # Errors
/// [`Error::NoLabDir`] when there is none.
pub fn find_lab_dir(start: &Path) -> Result<PathBuf> {
    start
        .ancestors()
        .map(|dir| dir.join("lab"))
        .find(|dir| dir.join("kernels.toml").is_file())
        .ok_or_else(|| Error::NoLabDir {
            start: start.to_path_buf(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = "[guest]\nrelease='b'\npackages=[]\nboot_modules=[]\nmodules=[]\n";

    #[test]
    fn the_file_of_this_tree_is_right() {
        let lab_dir = find_lab_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        let config = Config::read(&lab_dir).unwrap();
        for id in [
            "6.1",
            "6.1-cloud",
            "6.1-rt",
            "6.12",
            "6.12-rt",
            "7.3",
            "7.3-rt",
        ] {
            config.kernel(id).unwrap();
        }
        // The replay of security updates: the same meta-package, one ABI after the other.
        let base = &config.kernel["6.1"];
        let mut previous: Vec<u32> = config
            .kernel
            .values()
            .filter(|kernel| kernel.image == base.image && kernel.suites == base.suites)
            .map(|kernel| kernel.previous)
            .collect();
        previous.sort_unstable();
        assert_eq!(previous, [0, 1, 2, 3]);
        let error = config.kernel("2.6").unwrap_err().to_string();
        assert!(
            error.contains("'2.6'") && error.contains("6.1-cloud"),
            "{error}"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let kernel =
            "[kernel.x]\nrelease='b'\nsuites=['b']\nimage='linux-image-amd64'\ncompiler='gcc'\n";
        let error = Config::parse(&format!("{GUEST}{kernel}")).unwrap_err();
        assert!(error.contains("[compiler.\"gcc\"]"), "{error}");
        let compiler = "[compiler.gcc]\nrelease='b'\npackages=[]\n";
        Config::parse(&format!("{GUEST}{compiler}{kernel}")).unwrap();
        let error = Config::parse(&format!("{GUEST}{compiler}{kernel}colour='red'\n")).unwrap_err();
        assert!(error.contains("colour"), "{error}");
    }

    #[test]
    fn what_chooses_the_abi_has_to_make_sense() {
        let with = |id: &str, keys: &str| {
            Config::parse(&format!(
                "{GUEST}[compiler.gcc]\nrelease='b'\npackages=[]\n[kernel.\"{id}\"]\nrelease='b'\nsuites=['b']\n\
                 image='linux-image-amd64'\ncompiler='gcc'\n{keys}"
            ))
        };
        let kernel = with("7.3-rt", "line='7.3'\nprevious=2\n").unwrap();
        let kernel = kernel.kernel("7.3-rt").unwrap();
        assert_eq!((kernel.line.as_deref(), kernel.previous), (Some("7.3"), 2));
        let error = with("7.31", "line='7.3'\n").unwrap_err();
        assert!(
            error.contains("does not begin with its line 7.3"),
            "{error}"
        );
        let error = with("a", "abi='6.1.0-55-amd64'\nprevious=1\n").unwrap_err();
        assert!(error.contains("'abi' names one kernel"), "{error}");
    }
}
