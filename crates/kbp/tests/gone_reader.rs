// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands whose reader has gone before they print.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_has_gone_ends_a_command_without_a_panic() {
    for args in [&["measure", "mechanisms"][..], &["lab", "list"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = Command::new(env!("CARGO_BIN_EXE_kbp"))
            .args(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(141), "{args:?}: {said}");
        // The lab may say that it waits for its cache.
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
}
