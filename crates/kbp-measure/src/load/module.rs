// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test module that is a load: loading starts it, unloading stops it, its totals are read-only parameters.
//!
//! Not here: the modules themselves (`lab/modules`) and their parameters.

use std::ffi::CString;
use std::fs::File;
use std::path::Path;

use kbp_core::Host;
use nix::errno::Errno;
use nix::kmod::{delete_module, finit_module, DeleteModuleFlags, ModuleInitFlags};

use super::claim::{self, Claim};
use crate::error::{Error, Result};

/// A loaded test module. Dropping it unloads it; [`TestModule::remove`] also reports failures.
#[derive(Debug)]
pub(super) struct TestModule {
    name: &'static str,
    claim: Option<Claim>,
}

/// Why a module can't be loaded here, as far as that can be told before.
pub(super) fn check(name: &str, path: &Path) -> std::result::Result<(), String> {
    if !path.is_file() {
        return Err(format!(
            "there is no {}: build it with `kbp lab build --module lab/modules/{name}`",
            path.display()
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err("loading a module needs root".into());
    }
    Ok(())
}

impl TestModule {
    /// Loads a module. One that a process of ours left behind when it died is unloaded first.
    ///
    /// # Errors
    /// When the kernel refuses it, or another one of that name is loaded.
    pub(super) fn insert(name: &'static str, path: &Path, parameters: &str) -> Result<Self> {
        let host = Host::system();
        claim::sweep(&host, name, unload)?;
        let file = File::open(path).map_err(|e| Error::file("open", path, e))?;
        let parameters = CString::new(parameters)
            .map_err(|_| Error::Invalid("a module parameter holds a zero byte".into()))?;
        let mut claim = Claim::new(&host, name)?;
        claim.remember(name)?;
        match finit_module(&file, &parameters, ModuleInitFlags::empty()) {
            Ok(()) => Ok(Self {
                name,
                claim: Some(claim),
            }),
            Err(errno) => {
                claim.release()?;
                Err(refused(name, path, errno))
            }
        }
    }

    /// A total of the module.
    ///
    /// # Errors
    /// When the module does not show it.
    pub(super) fn total(&self, total: &str) -> Result<u64> {
        Host::system()
            .read_number(&format!("sys/module/{}/parameters/{total}", self.name))
            .map_err(|error| kbp_core::Error::from(error).into())
    }

    /// Unloads it.
    ///
    /// # Errors
    /// When the kernel refuses; then the next run tries again.
    pub(super) fn remove(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.claim.is_none() {
            return Ok(());
        }
        // The claim stays until the module is gone, so that what failed here is tried again.
        unload(self.name)?;
        self.claim.take().map_or(Ok(()), |claim| claim.release())
    }
}

impl Drop for TestModule {
    fn drop(&mut self) {
        // On this path another error is on its way already, and that one is reported.
        let _ = self.end();
    }
}

fn unload(name: &str) -> Result<()> {
    let c_name =
        CString::new(name).map_err(|_| Error::Invalid("the name of a module is damaged".into()))?;
    match delete_module(&c_name, DeleteModuleFlags::O_NONBLOCK) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Error::sys(format!("unload the module {name}"), errno)),
    }
}

fn refused(name: &str, path: &Path, errno: Errno) -> Error {
    let why = match errno {
        Errno::EEXIST => format!(
            "the module {name} is loaded already: wait for the run that uses it, or unload it with `rmmod {name}`"
        ),
        Errno::EINVAL | Errno::ENOEXEC => format!(
            "the kernel refuses {} ({errno}): dmesg says why, another kernel's module or a parameter",
            path.display()
        ),
        _ => return Error::file("load the module", path, errno.into()),
    };
    Error::Load {
        load: name.into(),
        why,
    }
}
