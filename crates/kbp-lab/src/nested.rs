// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine that runs a virtual machine itself: what it needs for that, as files of a job. The emulated processor has
//! AMD's SVM, so the guest's own KVM works; its QEMU is the one that the lab runs.
//!
//! Not here: starting the inner machine, which the script does (`lab/nested.sh`), and the modules of the outer one.

use std::path::{Path, PathBuf};

use crate::error::{IoContext, Result};
use crate::initramfs::{add_libraries, GuestEntry, GuestFiles};
use crate::libs::Loader;
use crate::qemu::Qemu;

/// Firmware of a `pc` that boots a kernel without a screen, with QEMU's folder of it.
const FIRMWARE: [&str; 3] = [
    "usr/share/seabios/bios-256k.bin",
    "usr/share/qemu/kvmvapic.bin",
    "usr/share/qemu/linuxboot_dma.bin",
];
/// Where the guest finds everything about its inner machine.
pub(crate) const PLACE: &str = "nested";

/// What the inner machine boots.
#[derive(Debug)]
pub(crate) struct Inner<'a> {
    /// The boot image of its kernel.
    pub kernel_image: &'a Path,
    /// Its first root.
    pub initramfs: &'a Path,
    /// Modules that were built for its kernel.
    pub modules: &'a [PathBuf],
}

/// The files for the guest: QEMU with its libraries and firmware, and below `/nested` the inner machine's own.
///
/// # Errors
/// When a file cannot be read or QEMU lacks a library.
pub(crate) fn files(qemu: &Qemu, inner: &Inner) -> Result<GuestFiles> {
    let mut files = GuestFiles::new();
    let loader = Loader::of_trees(&[qemu.tree().to_path_buf()]).ok_or_else(|| qemu.damaged())?;
    let program = qemu.tree().join("usr/bin/qemu-system-x86_64");
    let contents = std::fs::read(&program).at("read", &program)?;
    let mut libraries = loader.libraries(&program, &contents)?;
    libraries.extend(loader.libc_family());
    add_libraries(&loader, libraries, &mut files)?;
    files.insert(
        "usr/bin/qemu-system-x86_64".into(),
        GuestEntry::File {
            permissions: 0o755,
            contents,
        },
    );
    for name in FIRMWARE {
        let path = qemu.tree().join(name);
        let to = format!("usr/share/qemu/{}", file_name(&path));
        files.insert(to, GuestEntry::read(&path)?);
    }
    files.insert(
        format!("{PLACE}/kernel"),
        GuestEntry::read(inner.kernel_image)?,
    );
    files.insert(
        format!("{PLACE}/initramfs.cpio"),
        GuestEntry::read(inner.initramfs)?,
    );
    for module in inner.modules {
        let to = format!("{PLACE}/modules/{}", file_name(module));
        files.insert(to, GuestEntry::read(module)?);
    }
    Ok(files)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
