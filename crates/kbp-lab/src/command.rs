// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Running helper programs: output captured, failures with the end of what was printed.
//!
//! Not here: apt (its errors get a meaning in `apt`) and QEMU (`machine`).

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{tail, Error, Result};

/// Runs a program and returns what it printed on standard output.
///
/// # Errors
/// [`Error::MissingTool`] when it is not installed (`package` has it), [`Error::Command`] when it fails.
pub(crate) fn output(command: &mut Command, doing: &str, package: &str) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|source| {
        if source.kind() == ErrorKind::NotFound {
            Error::MissingTool {
                tool: program.clone(),
                purpose: doing.into(),
                package: package.into(),
            }
        } else {
            Error::Command {
                program: program.clone(),
                doing: doing.into(),
                detail: source.to_string(),
            }
        }
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let detail = format!("{} ({})", tail(&text, 4), output.status);
    Err(Error::Command {
        program,
        doing: doing.into(),
        detail,
    })
}

/// Finds a program on `$PATH`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}
