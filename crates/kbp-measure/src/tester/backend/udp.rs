// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A UDP socket: connected, does not wait unless it polls, and does not let the kernel fragment.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::{is_full, set_option, wait_readable, widen_buffers, Arrival, Backend, Drops};
use crate::error::{Error, Result};
use crate::tester::openloop::{OVERHEAD_V4, OVERHEAD_V6};

/// How long a receiver polls for one packet at most, and waits after that, microseconds, which the kernel makes jiffies of: who
/// receives also has to see that it is over. After the wait it polls once more for as long (`__skb_recv_udp()` of
/// net/ipv4/udp.c). A packet that comes in that wait, after a silence, is later by as long as the card's interrupt is deferred,
/// or, if the card's softirq was left to ksoftirqd, comes with the end of what is polled then.
const POLL_US: libc::c_int = 50_000;
const WAIT_US: u64 = 1_000;
/// [`POLL_US`], nanoseconds.
pub(super) const POLL_NS: u64 = POLL_US as u64 * 1_000;

/// A socket that is connected to the reflector.
#[derive(Debug)]
pub struct Udp {
    socket: UdpSocket,
    server: SocketAddr,
    dropped: u64,
}

impl Udp {
    /// Connects to `server` in the network namespace of the caller.
    ///
    /// # Errors
    /// When there is no way to that address.
    pub fn connect(server: SocketAddr) -> Result<Self> {
        let any = match server {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let what = || format!("open a UDP socket to {server}");
        let socket = UdpSocket::bind(any).map_err(|e| Error::sys(what(), e))?;
        socket.connect(server).map_err(|e| Error::sys(what(), e))?;
        Self::with(socket, server).map_err(|e| Error::sys(what(), e))
    }

    /// A socket that is connected to itself over loopback: what it sends, it receives.
    ///
    /// # Errors
    /// When loopback is down.
    pub fn to_itself() -> Result<Self> {
        let open = || {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            let own = socket.local_addr()?;
            socket.connect(own)?;
            Self::with(socket, own)
        };
        open().map_err(|e| Error::sys("open a UDP socket over loopback (is `lo` up?)", e))
    }

    fn with(socket: UdpSocket, server: SocketAddr) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        widen_buffers(socket.as_raw_fd());
        let (level, name, never) = match server {
            SocketAddr::V4(_) => (
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            ),
            SocketAddr::V6(_) => (
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            ),
        };
        set_option(socket.as_raw_fd(), level, name, &never)?;
        Ok(Self {
            socket,
            server,
            dropped: 0,
        })
    }

    /// Another handle of the same socket.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub(super) fn share(&self) -> Result<Self> {
        let what = || format!("share the socket to {}", self.server);
        Ok(Self {
            socket: self.socket.try_clone().map_err(|e| Error::sys(what(), e))?,
            server: self.server,
            dropped: self.dropped,
        })
    }

    /// Has whoever receives by this socket poll the card that its packets come from, for as long as none is there
    /// (`SO_BUSY_POLL` of socket(7)): [`Backend::recv`] returns when one has come, or when it has polled [`POLL_US`], waited
    /// [`WAIT_US`] and polled again. Sending still does not wait.
    ///
    /// # Errors
    /// Where the kernel has no busy polling, or the privilege for it is missing.
    pub(super) fn poll(&self) -> Result<()> {
        let fd = self.socket.as_raw_fd();
        let set = |name, value: libc::c_int| set_option(fd, libc::SOL_SOCKET, name, &value);
        set(libc::SO_BUSY_POLL, POLL_US)
            .and_then(|()| set(libc::SO_PREFER_BUSY_POLL, 1))
            .and_then(|()| {
                self.socket
                    .set_read_timeout(Some(Duration::from_micros(WAIT_US)))
            })
            .and_then(|()| self.socket.set_nonblocking(false))
            .map_err(|e| Error::sys("have a socket poll its card (needs CAP_NET_ADMIN)", e))
    }

    fn error(&self, verb: &str, source: std::io::Error) -> Error {
        let addr = self.server;
        match source.raw_os_error() {
            Some(libc::ECONNREFUSED) => Error::NobodyListens { addr },
            Some(libc::EMSGSIZE) => Error::Invalid(format!(
                "frames of this size do not pass to {addr} in one piece (MTU): choose a smaller --size"
            )),
            _ => Error::sys(format!("{verb} {addr}"), source),
        }
    }
}

impl Backend for Udp {
    fn describe(&self) -> String {
        format!("UDP {}", self.server)
    }

    fn overhead(&self) -> u32 {
        match self.server {
            SocketAddr::V4(_) => OVERHEAD_V4,
            SocketAddr::V6(_) => OVERHEAD_V6,
        }
    }

    fn send(&mut self, payload: &[u8]) -> Result<bool> {
        // SAFETY: the kernel reads `payload.len()` bytes of a live slice.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                payload.as_ptr().cast(),
                payload.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if sent >= 0 {
            return Ok(true);
        }
        match std::io::Error::last_os_error() {
            e if is_full(&e) || e.kind() == ErrorKind::Interrupted => Ok(false),
            e => Err(self.error("send to", e)),
        }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<Arrival>> {
        match self.socket.recv(buffer) {
            Ok(len) => Arrival::now(len).map(Some),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(e) => Err(self.error("receive from", e)),
        }
    }

    fn wait(&mut self, until_ns: u64) -> Result<()> {
        wait_readable(self.socket.as_raw_fd(), until_ns)
    }

    fn drops(&mut self) -> Result<Drops> {
        let mut info = [0u32; libc::SK_MEMINFO_DROPS as usize + 1];
        let mut len = std::mem::size_of_val(&info) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into a live array of that size.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                info.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::sys("read the drops of the tester's socket", error));
        }
        let dropped = u64::from(info[libc::SK_MEMINFO_DROPS as usize]);
        let tester = dropped.saturating_sub(std::mem::replace(&mut self.dropped, dropped));
        Ok(Drops { tester })
    }
}
