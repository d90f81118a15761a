// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of every crate whose reader has gone before they print.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    for args in [
        &["measure", "mechanisms"][..],
        &["lab", "list"],
        &["topo", "list"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = Command::new(env!("CARGO_BIN_EXE_kbp"))
            .args(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {} {said}", done.status);
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
}
