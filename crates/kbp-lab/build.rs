// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the guest agent as a static program, so that the library can carry it in its own bytes.
//!
//! A guest has no shared libraries before the lab puts some in, and a library's user (`kbp`, a test) does not get
//! the binaries of its dependencies built by cargo. The agent uses nothing but `std`, so one call of rustc is enough.

use std::path::PathBuf;
use std::process::Command;

const AGENT: &str = "src/bin/kbp-lab-guest.rs";

fn main() {
    println!("cargo::rerun-if-changed={AGENT}");
    let var =
        |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo did not set {name}"));
    let output = PathBuf::from(var("OUT_DIR")).join("kbp-lab-guest");
    let status = Command::new(var("RUSTC"))
        .args([
            "--edition",
            "2021",
            "--crate-name",
            "kbp_lab_guest",
            "--crate-type",
            "bin",
        ])
        .args([
            "-C",
            "opt-level=2",
            "-C",
            "panic=abort",
            "-C",
            "strip=symbols",
        ])
        .args([
            "-C",
            "target-feature=+crt-static",
            "--target",
            &var("TARGET"),
            AGENT,
            "-o",
        ])
        .arg(&output)
        .status()
        .expect("rustc could not be started");
    assert!(
        status.success(),
        "the guest agent {AGENT} does not compile as a static program"
    );
}
