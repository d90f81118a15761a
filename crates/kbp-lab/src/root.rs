// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiler for a kernel's modules: this machine's if it has it, else a cached Debian build root.
//!
//! Newer kernels want a compiler, and a C library for kbuild's own programs, that an older Debian has not got. The
//! root is made by mmdebstrap and entered with the cache mounted at the same path, so all paths stay what they are.
//!
//! Not here: calling make ([`crate::kbuild`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{hex, Apt};
use crate::cache::{remove, Cache};
use crate::command;
use crate::config::{Compiler, Config};
use crate::error::{Error, IoContext, Result};
use crate::packages::unpack_into;

/// Space that a build root needs while it is made.
const ROOT_BYTES: u64 = 1500 << 20;

/// Libraries that kbuild's own programs (objtool, modpost) are linked with.
const KBUILD_LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libelf.so.1";

/// Enters the root: mounts what a compiler needs and the cache, then runs the program.
const ENTER: &str = r#"set -e
root=$1 cache=$2; shift 2
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mkdir -p "$root$cache"
mount --bind "$cache" "$root$cache"
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/ "$@""#;

/// Where a compiler runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// On this machine.
    Host,
    /// In a build root.
    Root(PathBuf),
}

impl Toolchain {
    /// Finds or makes the place for a compiler.
    ///
    /// # Errors
    /// Those of apt and mmdebstrap.
    pub(crate) fn get(cache: &Cache, config: &Config, compiler: &str) -> Result<Toolchain> {
        if host_has(compiler) {
            return Ok(Toolchain::Host);
        }
        let recipe = config.compiler.get(compiler).ok_or_else(|| {
            Error::Argument(format!(
                "kernels.toml says nothing about the compiler {compiler}"
            ))
        })?;
        let root = root_path(cache, recipe);
        if !root.join(".made").exists() {
            make_root(cache, recipe, &root)?;
        }
        Ok(Toolchain::Root(root))
    }

    /// A command that runs a program there.
    ///
    /// # Errors
    /// [`Error::MissingTool`] when `unshare` is not installed.
    pub(crate) fn command(&self, program: &str, cache: &Cache) -> Result<Command> {
        let Toolchain::Root(root) = self else {
            return Ok(Command::new(program));
        };
        if command::find("unshare").is_none() {
            return Err(Error::MissingTool {
                tool: "unshare".into(),
                purpose: "entering the build root".into(),
                package: "util-linux".into(),
            });
        }
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if !nix::unistd::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command
            .args(["sh", "-c", ENTER, "sh"])
            .arg(root)
            .arg(cache.root())
            .arg(program);
        Ok(command)
    }
}

/// Whether this machine can build for a compiler without a root.
pub(crate) fn host_has(compiler: &str) -> bool {
    let programs = [compiler, "make", "ld"];
    programs
        .iter()
        .all(|program| command::find(program).is_some())
        && Path::new("/").join(KBUILD_LIBRARY).exists()
}

/// The root's folder, whether it is there or not; named after what is in it.
pub(crate) fn root_path(cache: &Cache, recipe: &Compiler) -> PathBuf {
    use sha2::{Digest, Sha256};
    let id = hex(&Sha256::digest(recipe.packages.join(" ").as_bytes()));
    cache
        .root()
        .join("roots")
        .join(format!("{}-{}", recipe.release, &id[..12]))
}

fn make_root(cache: &Cache, recipe: &Compiler, root: &Path) -> Result<()> {
    cache.check_space(ROOT_BYTES)?;
    cache.dir("roots")?;
    let apt = Apt::open(cache, &recipe.release)?;
    apt.update(false)?;
    let packages = recipe.packages.join(",");
    eprintln!(
        "lab: making a build root of {} with {packages} (about a minute, once)",
        recipe.release
    );
    remove(root)?;
    let settings = root.with_extension("apt.conf");
    fs::write(&settings, apt.acquire_settings()).at("write", &settings)?;
    let mut command = mmdebstrap(cache)?;
    command
        .args([
            "--quiet",
            "--variant=apt",
            "--architectures=amd64",
            "--skip=check/empty",
        ])
        .arg(format!("--include={packages}"))
        .arg(format!("--aptopt={}", settings.display()))
        .args([
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
        ])
        .arg(&recipe.release)
        .arg(root)
        .arg(apt.sources_file());
    let made = command::output(
        &mut command,
        &format!("making {}", root.display()),
        "mmdebstrap",
    );
    remove(&settings)?;
    if let Err(error) = made {
        remove(root)?;
        return Err(error);
    }
    fs::write(root.join(".made"), "").at("write", root.join(".made"))
}

/// mmdebstrap of this machine, or else its package unpacked in the cache: it is one Perl script.
pub(crate) fn mmdebstrap(cache: &Cache) -> Result<Command> {
    if command::find("mmdebstrap").is_some() {
        return Ok(Command::new("mmdebstrap"));
    }
    let tree = cache.root().join("tools/mmdebstrap");
    if !tree.exists() {
        cache.dir("tools")?;
        let apt = Apt::open(cache, "bookworm")?;
        apt.update(false)?;
        let package = apt.newest("mmdebstrap", &["bookworm".to_string()])?;
        apt.download(std::slice::from_ref(&package))?;
        unpack_into(cache, &[package], &tree)?;
    }
    let mut command = Command::new("perl");
    command.arg(tree.join("usr/bin/mmdebstrap"));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_named_after_its_contents() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(temp.path()).unwrap();
        let recipe = |packages: &[&str]| Compiler {
            release: "trixie".into(),
            packages: packages.iter().map(ToString::to_string).collect(),
        };
        let one = root_path(&cache, &recipe(&["gcc-14", "make"]));
        assert_ne!(one, root_path(&cache, &recipe(&["gcc-14"])));
        assert_eq!(one, root_path(&cache, &recipe(&["gcc-14", "make"])));
        assert!(!host_has("a-compiler-that-nobody-has"));
    }
}
