// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wire to a network card of a QEMU guest: one unix datagram is one frame, as `-netdev dgram`
//! has it. The tester is outside the guest and on the host's clock, so the guest must be too.
//!
//! For `PATH` we listen at `PATH.tester` and send to `PATH.guest`, which QEMU makes; either may be
//! there first. QEMU's cards do not drop: a guest that takes no frames shows as a full queue, that
//! is as sends that find no room, and not as loss.
//!
//! Not here: the guest (`kbp lab run --wire PATH`).

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use super::{is_full, widen_buffers, Drops, Link};
use crate::error::{Error, Result};

/// The tester's end.
#[derive(Debug)]
pub struct Wire {
    socket: UnixDatagram,
    /// Ours, which is removed at the end; `None` for a wire to itself.
    own_path: Option<PathBuf>,
    guest_path: PathBuf,
    connected: bool,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Wire {
    /// The wire at `path`.
    ///
    /// # Errors
    /// When another tester has it, or the folder can't be written.
    pub fn open(path: &Path) -> Result<Self> {
        let own_path = with_suffix(path, ".tester");
        let what = || format!("listen at {}", own_path.display());
        let socket = match UnixDatagram::bind(&own_path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                remove_if_dead(&own_path)?;
                UnixDatagram::bind(&own_path)
            }
            other => other,
        };
        let socket = socket.map_err(|e| Error::sys(what(), e))?;
        // From here on the drop of this value removes the path.
        let wire = Self {
            socket,
            own_path: Some(own_path.clone()),
            guest_path: with_suffix(path, ".guest"),
            connected: false,
        };
        wire.socket
            .set_nonblocking(true)
            .map_err(|e| Error::sys(what(), e))?;
        widen_buffers(wire.socket.as_raw_fd());
        Ok(wire)
    }

    /// A wire whose two ends are one: what is sent comes back.
    ///
    /// # Errors
    /// When there are no sockets left.
    pub fn to_itself(folder: &Path) -> Result<Self> {
        let path = folder.join("self");
        let mut wire = Self::open(&path)?;
        wire.guest_path = with_suffix(&path, ".tester");
        Ok(wire)
    }

    fn connect(&mut self) -> Result<bool> {
        match self.socket.connect(&self.guest_path) {
            Ok(()) => self.connected = true,
            // QEMU has not started yet.
            Err(e) if is_absent(&e) => return Ok(false),
            Err(e) => {
                return Err(Error::sys(
                    format!("connect to {}", self.guest_path.display()),
                    e,
                ))
            }
        }
        Ok(true)
    }
}

/// A socket file that nobody holds is left over from a tester that was killed.
fn remove_if_dead(path: &Path) -> Result<()> {
    let probe = UnixDatagram::unbound().map_err(|e| Error::sys("make a unix socket", e))?;
    match probe.connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| Error::file("remove", path, e))
        }
        _ => Err(Error::sys(
            format!(
                "another tester has the wire {}: end it, or choose another path",
                path.display()
            ),
            std::io::Error::from(ErrorKind::AddrInUse),
        )),
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(path) = &self.own_path {
            // Nothing can be done about a file that is gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Link for Wire {
    fn describe(&self) -> String {
        format!("the wire {}", self.guest_path.display())
    }

    fn send_frame(&mut self, frame: &[u8]) -> Result<bool> {
        if !self.connected && !self.connect()? {
            return Ok(false);
        }
        match self.socket.send(frame) {
            Ok(_) => Ok(true),
            Err(e) if is_full(&e) || e.kind() == ErrorKind::Interrupted => Ok(false),
            Err(e) if is_absent(&e) => {
                self.connected = false;
                Ok(false)
            }
            Err(e) => Err(Error::sys(format!("send by {}", self.describe()), e)),
        }
    }

    fn recv_frame(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match self.socket.recv(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(None)
            }
            // The guest went away; sends tell when it is not back in time.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
                ) =>
            {
                self.connected = false;
                Ok(None)
            }
            Err(e) => Err(Error::sys(format!("receive by {}", self.describe()), e)),
        }
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn drops(&mut self) -> Result<Drops> {
        // A unix datagram waits at its sender, so nothing is dropped at this end.
        Ok(Drops::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_has_one_tester_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let wire = Wire::open(&path).unwrap();
        let error = Wire::open(&path).unwrap_err().to_string();
        assert!(error.contains("another tester has the wire"), "{error}");
        drop(wire);
        assert!(!with_suffix(&path, ".tester").exists());
        // As after a kill: the file is there and nobody behind it.
        drop(UnixDatagram::bind(with_suffix(&path, ".tester")).unwrap());
        Wire::open(&path).unwrap();
    }

    #[test]
    fn a_guest_may_come_later_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let mut wire = Wire::open(&path).unwrap();
        assert!(!wire.send_frame(b"early").unwrap());
        for _ in 0..2 {
            let guest = UnixDatagram::bind(with_suffix(&path, ".guest")).unwrap();
            // The first send after a guest went away finds that out.
            let sent = (0..3).any(|_| wire.send_frame(b"frame").unwrap());
            assert!(sent);
            let mut buffer = [0; 16];
            assert_eq!(guest.recv(&mut buffer).unwrap(), 5);
            guest
                .send_to(b"back", with_suffix(&path, ".tester"))
                .unwrap();
            assert_eq!(wire.recv_frame(&mut buffer).unwrap(), Some(4));
            drop(guest);
            std::fs::remove_file(with_suffix(&path, ".guest")).unwrap();
            assert!(!wire.send_frame(b"gone").unwrap());
        }
    }
}
