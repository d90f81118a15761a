// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wire from a guest's further card to a tester on the host: a pair of unix sockets, one datagram a frame.
//!
//! QEMU listens at `PATH.guest` and sends to `PATH.tester`; either end may be there first.
//!
//! Not here: the tester, and the card itself ([`crate::qemu::Hardware`]).

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Result};

/// Longest path of a unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// QEMU's end. Its socket file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Wire {
    guest: PathBuf,
    tester: PathBuf,
}

impl Wire {
    /// The wire at `path`, for this run alone.
    ///
    /// # Errors
    /// [`Error::Argument`] for a path that QEMU's options or the kernel cannot hold, and for one that another machine
    /// has.
    pub(crate) fn claim(path: &Path) -> Result<Wire> {
        let path = std::path::absolute(path).at("find", path)?;
        let text = path.display().to_string();
        if text.len() + ".tester".len() > SOCKET_PATH_MAX || text.contains(',') {
            return Err(Error::Argument(format!(
                "--wire {text}: choose a path without commas of at most {} bytes",
                SOCKET_PATH_MAX - ".tester".len()
            )));
        }
        let guest = PathBuf::from(format!("{text}.guest"));
        let probe = UnixDatagram::unbound().at("make a socket for", &path)?;
        if probe.connect(&guest).is_ok() {
            return Err(Error::Argument(format!(
                "--wire {text}: another machine has this wire; end it, or choose another path"
            )));
        }
        Ok(Wire {
            guest,
            tester: PathBuf::from(format!("{text}.tester")),
        })
    }

    /// QEMU's arguments for it, on a machine with `count` cards before this one.
    pub(crate) fn arguments(&self, count: u32) -> [String; 2] {
        let local = format!("local.type=unix,local.path={}", self.guest.display());
        let remote = format!("remote.type=unix,remote.path={}", self.tester.display());
        [
            "-netdev".into(),
            format!("dgram,id=net{count},{local},{remote}"),
        ]
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // It is gone already when QEMU did not get so far.
        let _ = std::fs::remove_file(&self.guest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_belongs_to_one_machine() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("w");
        let wire = Wire::claim(&path).unwrap();
        let words = wire.arguments(2);
        let (guest, tester) = (&wire.guest.display(), &wire.tester.display());
        assert_eq!(
            words[1],
            format!("dgram,id=net2,local.type=unix,local.path={guest},remote.type=unix,remote.path={tester}")
        );
        let qemu = UnixDatagram::bind(&wire.guest).unwrap();
        let error = Wire::claim(&path).unwrap_err().to_string();
        assert!(error.contains("another machine has this wire"), "{error}");
        drop((qemu, wire));
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn paths_that_do_not_fit_are_refused() {
        assert!(Wire::claim(Path::new("/tmp/a,b")).is_err());
        let long = format!("/{}", "x".repeat(101));
        assert!(Wire::claim(Path::new(&long)).is_err());
    }
}
