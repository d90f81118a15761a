// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the tester's datagrams get on the path and back.
//!
//! | back end | what it is | round trip holds |
//! |---|---|---|
//! | `udp` | a UDP socket of this machine | this machine's stack, twice |
//! | `ring` | AF_PACKET with mapped rings on an interface; a host of its own with its own MAC and IPv4 address | the interface's driver |
//! | `wire` | the network card of a QEMU guest, by unix datagrams (`kbp lab run --wire`); the tester is outside the guest | nothing of the guest but what is measured |
//!
//! All stamp on one clock, in user space, right before the send and right after the receive. One thread does both, and sees
//! a reply late by the time of one send, unless the socket is read [`Aside`]; then the two times are of two CPUs.
//!
//! Not here: what is sent and when ([`super::openloop`]).

mod aside;
mod frame;
mod ring;
mod station;
mod udp;
mod wire;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::clock::monotonic_ns;
use crate::error::{Error, Result};

pub use aside::{Aside, Reader};
pub use ring::Ring;
pub use station::{Link, Station, StationAddress};
pub use udp::Udp;
pub use wire::Wire;

/// Which back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A UDP socket.
    Udp,
    /// AF_PACKET with mapped rings.
    Ring,
    /// A QEMU guest's network card.
    Wire,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Ring => "ring",
            Self::Wire => "wire",
        })
    }
}

/// What the tester's own end lost; the path has nothing to do with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Drops {
    /// Frames that came back to this machine and found no room at the tester.
    pub tester: u64,
}

/// A payload that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its whole length, bytes.
    pub len: usize,
    /// When it was received, nanoseconds of the clock.
    pub at_ns: u64,
}

impl Arrival {
    /// One of `len` bytes that was received just now.
    pub(super) fn now(len: usize) -> Result<Self> {
        let at_ns = monotonic_ns()?;
        Ok(Self { len, at_ns })
    }
}

/// A way to the reflector and back.
pub trait Backend: fmt::Debug {
    /// The reflector and the way there, for messages.
    fn describe(&self) -> String;

    /// Bytes of a frame around the payload, FCS included.
    fn overhead(&self) -> u32;

    /// Sends one payload; `false` when there is no room for it now.
    ///
    /// # Errors
    /// When the path is gone or refuses such a frame.
    fn send(&mut self, payload: &[u8]) -> Result<bool>;

    /// The next payload that came, if one did. `buffer` gets its beginning: the header of a probe
    /// ([`super::openloop::PROBE_LEN`] bytes), and from all but [`Aside`] as much as it has room for. Never waits, but
    /// in the reader of an [`Aside`] that polls.
    ///
    /// # Errors
    /// When the path is gone.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<Arrival>>;

    /// Waits until what comes within the next `ahead_ns` is seen as it comes; for most there is nothing to wait for.
    ///
    /// # Errors
    /// When nobody receives any more, or not in time.
    fn settle(&mut self, _ahead_ns: u64) -> Result<()> {
        Ok(())
    }

    /// Sleeps until something may have come, or until `until_ns` of the clock.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    fn wait(&mut self, until_ns: u64) -> Result<()>;

    /// What was dropped at the tester's own end since the last call.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn drops(&mut self) -> Result<Drops>;
}

/// A reflector and the way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Through this machine's stack.
    Udp {
        /// The reflector.
        server: SocketAddr,
    },
    /// From an interface of the caller's network namespace, past its stack.
    Ring {
        /// Name of the interface.
        interface: String,
        /// Who we are and whom we talk to.
        ends: Ends,
    },
    /// Into a QEMU guest.
    Wire {
        /// The path that was given to `kbp lab run --wire`.
        path: PathBuf,
        /// Who we are and whom we talk to.
        ends: Ends,
    },
}

/// The two ends of a back end that is a host of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The tester's address; no other host of that network may have it.
    pub address: Ipv4Addr,
    /// The reflector.
    pub server: SocketAddrV4,
    /// The router to the reflector; `None` when it is on the same network.
    pub next_hop: Option<Ipv4Addr>,
}

impl Target {
    /// Which back end it takes.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Udp { .. } => Kind::Udp,
            Self::Ring { .. } => Kind::Ring,
            Self::Wire { .. } => Kind::Wire,
        }
    }

    /// Opens the way; with `ring` and `wire` it also finds the reflector's MAC address.
    ///
    /// # Errors
    /// When the interface does not exist, the privilege is missing, the address is taken, or nobody
    /// answers for the reflector's address.
    pub fn open(&self) -> Result<Box<dyn Backend>> {
        Ok(match self {
            Self::Udp { server } => Box::new(Udp::connect(*server)?),
            Self::Ring { interface, ends } => {
                ring::check_address(ends.address)?;
                Box::new(Station::find(Ring::open(interface)?, ends)?)
            }
            Self::Wire { path, ends } => Box::new(Station::find(Wire::open(path)?, ends)?),
        })
    }
}

/// Sleeps until `fd` is readable or the time has come; a signal ends the wait too.
pub(super) fn wait_readable(fd: RawFd, until_ns: u64) -> Result<()> {
    let left_ns = until_ns.saturating_sub(monotonic_ns()?);
    if left_ns == 0 {
        return Ok(());
    }
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = libc::timespec {
        tv_sec: (left_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (left_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: one pollfd and one timespec that live until the call returns; no signal mask.
    let result = unsafe { libc::ppoll(&mut poll, 1, &limit, std::ptr::null()) };
    let error = std::io::Error::last_os_error();
    if result < 0 && error.kind() != std::io::ErrorKind::Interrupted {
        return Err(Error::sys("wait for a frame", error));
    }
    Ok(())
}

/// Whether an error of a send means "no room now".
pub(super) fn is_full(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Sets a socket option whose value is plain data.
pub(super) fn set_option<T>(fd: RawFd, level: i32, name: i32, value: &T) -> std::io::Result<()> {
    let len = std::mem::size_of::<T>() as libc::socklen_t;
    let pointer: *const T = value;
    // SAFETY: the kernel reads `len` bytes of a live value.
    match unsafe { libc::setsockopt(fd, level, name, pointer.cast(), len) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Room for what waits for the tester, or for the server: 8 MiB, or what the system allows without privilege.
pub(in crate::tester) fn widen_buffers(fd: RawFd) {
    const BYTES: libc::c_int = 8 << 20;
    for (force, plain) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        // What does not fit is counted as dropped at the tester, so a smaller buffer is no secret.
        if set_option(fd, libc::SOL_SOCKET, force, &BYTES).is_err() {
            let _ = set_option(fd, libc::SOL_SOCKET, plain, &BYTES);
        }
    }
}
