// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernels that are built here from a Debian package of sources, with a small configuration: test instruments with
//! checkers that no stock kernel has.
//!
//! A build is kept in the cache, and made anew only when the package, the configuration or the compiler is another one.
//! It runs in a build root, so that this machine needs none of the tools; it takes long, and other users of the cache go
//! on meanwhile.
//!
//! Not here: stock kernels ([`crate::kernel`]).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::apt::{hex, Apt, Package};
use crate::cache::{remove, write_whole, Cache};
use crate::config::Config;
use crate::error::{tail, Error, IoContext, Result};
use crate::kernel::Kernel;
use crate::packages::unpack_into;
use crate::root::Toolchain;

/// Space that sources and objects need, bytes.
const SPACE: u64 = 6 << 30;

/// A kernel that is built from a package of sources.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceKernel {
    /// The Debian release whose package lists are read.
    pub release: String,
    /// Suites to choose from; the newest version of all wins.
    pub suites: Vec<String>,
    /// The package, `linux-source-...`.
    pub package: String,
    /// Its configuration, in the lab's folder: all that is not off.
    pub config: PathBuf,
    /// The compiler, for the kernel and its modules.
    pub compiler: String,
    /// The build root, as a table of compilers; it has that compiler and what a kernel needs beside it.
    pub builder: String,
    /// The model of network cards when a job names none.
    #[serde(default = "crate::config::default_nic")]
    pub nic: String,
}

/// What a build is made of, and where it goes.
struct Build<'a> {
    cache: &'a Cache,
    toolchain: Toolchain,
    compiler: &'a str,
    /// The tree of the package's sources.
    sources: PathBuf,
    /// Where objects go.
    objects: PathBuf,
    /// Where the modules are installed.
    modules: PathBuf,
}

/// Takes the kernel from the cache if it is the one that is asked for, else builds it. With `refresh`, a newer package
/// is looked for. The caller holds no lock.
///
/// # Errors
/// Those of apt and of the disk, [`Error::Build`], and [`Error::Config`] when the configuration can't be had.
pub(crate) fn fetch(
    cache: &Cache,
    config: &Config,
    lab_dir: &Path,
    id: &str,
    source: &SourceKernel,
    refresh: bool,
) -> Result<Kernel> {
    let _building = cache.lock_snapshot(&format!("source-{id}"))?;
    let path = lab_dir.join(&source.config);
    let wanted = fs::read(&path).at("read", &path)?;
    let key = hex(&Sha256::digest(
        [source.compiler.as_bytes(), &wanted].concat(),
    ))[..12]
        .to_string();
    let cached = Kernel::cached(cache, id).filter(|kernel| kernel.version.ends_with(&key));
    if let (Some(kernel), false) = (&cached, refresh) {
        return Ok(kernel.clone());
    }
    let dir = cache.dir(&format!("kernels/{id}"))?;
    let (package, toolchain) = {
        let _lock = cache.lock_prepare()?;
        let apt = Apt::open(cache, &source.release)?;
        apt.update(refresh)?;
        let package = apt.newest(&source.package, &source.suites)?;
        let version = format!("{}+{key}", package.version);
        if let Some(kernel) = cached.filter(|kernel| kernel.version == version) {
            return Ok(kernel);
        }
        apt.download(std::slice::from_ref(&package))?;
        let toolchain = Toolchain::get(cache, config, &source.builder)?;
        (package, toolchain)
    };
    cache.check_space(SPACE)?;
    let stem = format!("{}-{key}", package.version.replace([':', '~'], "-"));
    let build = Build {
        cache,
        toolchain,
        compiler: &source.compiler,
        sources: dir.join(format!("{stem}-source")),
        objects: dir.join(format!("{stem}-build")),
        modules: dir.join(format!("{stem}-modules")),
    };
    build.unpack(&package)?;
    build.configure(&wanted, &path)?;
    eprintln!(
        "lab: building {id} from {} {}; this takes long",
        package.name, package.version
    );
    build.make("building the kernel", &["-j2", "bzImage", "modules"])?;
    remove(&build.modules)?;
    let install = format!("INSTALL_MOD_PATH={}", build.modules.display());
    build.make("installing its modules", &[&install, "modules_install"])?;
    build.finish(id, &format!("{}+{key}", package.version))
}

impl Build<'_> {
    /// The package holds one archive of sources.
    fn unpack(&self, package: &Package) -> Result<()> {
        if self.sources.is_dir() {
            return Ok(());
        }
        let outer = beside(&self.sources, ".package");
        unpack_into(self.cache, std::slice::from_ref(package), &outer)?;
        let archive = outer.join(format!("usr/src/{}.tar.xz", package.name));
        let partial = beside(&self.sources, ".partial");
        remove(&partial)?;
        fs::create_dir_all(&partial).at("make the folder", &partial)?;
        let mut command = self.toolchain.command("tar", self.cache)?;
        command
            .args(["--strip-components=1", "-xJf"])
            .arg(&archive)
            .arg("-C")
            .arg(&partial);
        self.run(command, "unpacking the sources")?;
        remove(&outer)?;
        fs::rename(&partial, &self.sources).at("rename to", &self.sources)
    }

    /// Everything is off but what the file wants and what that needs; then it is seen whether the file got it all.
    fn configure(&self, wanted: &[u8], path: &Path) -> Result<()> {
        fs::create_dir_all(&self.objects).at("make the folder", &self.objects)?;
        let copy = self.objects.join("wanted.config");
        fs::write(&copy, wanted).at("write", &copy)?;
        let all = format!("KCONFIG_ALLCONFIG={}", copy.display());
        self.make("configuring the kernel", &[&all, "allnoconfig"])?;
        let result = self.objects.join(".config");
        let text = fs::read_to_string(&result).at("read", &result)?;
        let missing = missing_options(&String::from_utf8_lossy(wanted), &text);
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::Config {
                path: path.into(),
                detail: format!("the kernel does not take {}", missing.join(", ")),
            }),
        }
    }

    fn make(&self, doing: &str, words: &[&str]) -> Result<()> {
        let mut command = self.toolchain.command("make", self.cache)?;
        command
            .arg("-C")
            .arg(&self.sources)
            .arg(format!("O={}", self.objects.display()))
            .args([
                format!("CC={}", self.compiler),
                format!("HOSTCC={}", self.compiler),
            ])
            .args(words);
        self.run(command, doing)
    }

    /// What is printed goes to a file: it is long, and only its end is of use.
    fn run(&self, mut command: Command, doing: &str) -> Result<()> {
        let log = beside(&self.objects, ".log");
        let failed = |detail: String| Error::Command {
            program: "make".into(),
            doing: doing.into(),
            detail,
        };
        let file = File::create(&log).at("write", &log)?;
        let errors = file.try_clone().at("write", &log)?;
        let status = command
            .stdin(std::process::Stdio::null())
            .stdout(file)
            .stderr(errors)
            .status()
            .map_err(|e| failed(e.to_string()))?;
        if status.success() {
            return Ok(());
        }
        let text = fs::read(&log).at("read", &log)?;
        let end = tail(&String::from_utf8_lossy(&text), 20);
        Err(failed(format!(
            "{end} ({status}); all of it is in {}",
            log.display()
        )))
    }

    fn finish(&self, id: &str, version: &str) -> Result<Kernel> {
        let release_file = self.objects.join("include/config/kernel.release");
        let abi = fs::read_to_string(&release_file)
            .at("read", &release_file)?
            .trim()
            .to_string();
        let kernel = Kernel {
            id: id.into(),
            version: version.into(),
            compiler: self.compiler.into(),
            image: self.objects.join("arch/x86/boot/bzImage"),
            modules_dir: self.modules.join("lib/modules").join(&abi),
            headers_dir: self.objects.clone(),
            abi,
        };
        let record = self.objects.with_file_name("kernel.json");
        let text = serde_json::to_vec_pretty(&kernel).map_err(|source| Error::Config {
            path: record.clone(),
            detail: source.to_string(),
        })?;
        write_whole(&record, &text)?;
        Kernel::cached(self.cache, id).ok_or_else(|| Error::Config {
            path: self.objects.clone(),
            detail: "the build left no image, or no modules".into(),
        })
    }
}

/// A neighbour of a file; its name may have dots, so nothing of it is replaced.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Options that a file wants and a configuration does not have.
fn missing_options(wanted: &str, has: &str) -> Vec<String> {
    let is_option = |line: &&str| line.starts_with("CONFIG_") && !line.ends_with("=n");
    let there: Vec<&str> = has.lines().collect();
    wanted
        .lines()
        .map(str::trim)
        .filter(is_option)
        .filter(|option| !there.contains(option))
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_not_taken_is_named() {
        let wanted = "# why\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_C=n\nCONFIG_D=\"x\"\n";
        let has = "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\nCONFIG_D=\"x\"\n";
        assert_eq!(missing_options(wanted, has), ["CONFIG_B=m"]);
        assert!(missing_options(wanted, wanted).is_empty());
    }
}
