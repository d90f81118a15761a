// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The QEMU of the parallel clock: Debian's sources with `lab/qemu/parallel.patch`, built by `scripts/build-qemu.sh`.
//!
//! Not here: what the patch does (docs/decisions/022-parallel-clock.md), and the command line ([`crate::qemu`]).

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::qemu::Qemu;

/// The one that was built, with the libraries and files of Debian's.
///
/// # Errors
/// [`Error::NotBuilt`] when there is none yet, [`Error::Qemu`] when it does not start.
pub(crate) fn program(cache: &Cache, stock: &Qemu) -> Result<Qemu> {
    let dir = cache.dir("qemu-parallel")?;
    let path = dir.join("qemu-system-x86_64");
    match std::fs::read_to_string(dir.join("key")) {
        Ok(key) if path.is_file() => stock.with_program(path, key.trim()),
        _ => Err(Error::NotBuilt { path }),
    }
}
