// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What apt says on standard error, turned into sentences with a way out.
//!
//! Not here: success; apt's warnings are of no interest when it succeeds.

use std::io::ErrorKind;

use crate::error::{tail, Error};

/// Words by which apt says that the network or the mirror does not answer.
const UNREACHABLE: [&str; 8] = [
    "Could not resolve",
    "Temporary failure resolving",
    "Could not connect",
    "Cannot initiate the connection",
    "Unable to connect",
    "Connection failed",
    "Connection timed out",
    "Network is unreachable",
];

/// Makes an error of what apt printed.
pub(crate) fn of(stderr: &str, doing: &str, release: &str) -> Error {
    let says = |words: &[&str]| {
        stderr
            .lines()
            .find(|line| words.iter().any(|word| line.contains(word)))
    };
    if let Some(line) = says(&[
        "No space left",
        "don't have enough free space",
        "not enough free space",
    ]) {
        return Error::Apt {
            doing: doing.into(),
            detail: format!("the disk is full ({})", line.trim()),
        };
    }
    if let Some(line) = says(&UNREACHABLE) {
        return Error::AptUnreachable {
            doing: doing.into(),
            detail: line.trim().into(),
        };
    }
    if let Some(line) = says(&[
        "Unable to locate package",
        "No packages found",
        "has no installation candidate",
    ]) {
        let package = line
            .split("package ")
            .nth(1)
            .or(line.split('\'').nth(1))
            .unwrap_or(line);
        return Error::PackageNotFound {
            package: package.trim().into(),
            suites: release.into(),
        };
    }
    Error::Apt {
        doing: doing.into(),
        detail: tail(stderr, 3),
    }
}

/// The error for an apt program that cannot be started at all.
pub(crate) fn spawn_failed(program: &str, source: &std::io::Error) -> Error {
    if source.kind() == ErrorKind::NotFound {
        return Error::MissingTool {
            tool: program.into(),
            purpose: "finding kernels and QEMU".into(),
            package: "apt (the lab needs a Debian system)".into(),
        };
    }
    Error::Command {
        program: program.into(),
        doing: "starting it".into(),
        detail: source.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apts_words_become_kinds() {
        let network = "E: Failed to fetch http://m/InRelease  Temporary failure resolving 'm'\n";
        assert!(matches!(
            of(network, "x", "bookworm"),
            Error::AptUnreachable { .. }
        ));
        let unknown = "E: Unable to locate package nonesuch\n";
        match of(unknown, "x", "bookworm") {
            Error::PackageNotFound { package, suites } => {
                assert_eq!((&*package, &*suites), ("nonesuch", "bookworm"))
            }
            other => panic!("{other}"),
        }
        let full = "E: You don't have enough free space in /x.\n";
        assert!(of(full, "x", "bookworm")
            .to_string()
            .contains("disk is full"));
        assert!(matches!(of("E: odd", "x", "bookworm"), Error::Apt { .. }));
    }
}
