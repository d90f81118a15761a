// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The techniques that copy each packet through a system call: UDP and AF_PACKET sockets, one
//! packet a call (`send`, `recv`) or a burst a call (`sendmmsg`, `recvmmsg`).
//!
//! Both families take datagrams, so that they share everything but the opening.
//! Not here: mapped rings.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};

use super::frame::{self, Account, Stamp, ETHERNET_LEN, ETHERTYPE, FRAME_LEN_MAX};
use super::{link, sys, Receive, ReceiveAt, Send, SendTo, Taken, WAIT};
use crate::error::{Error, Result};

/// Receive buffer, bytes: with the kernel's usual 208 KiB a receiver that is not on a CPU for a
/// millisecond would lose what the path had delivered.
const RECEIVE_BUFFER_LEN: i32 = 4 << 20;

/// A UDP sender, connected to the receiver.
pub fn udp_sender(to: &SendTo, batched: bool) -> Result<Box<dyn Send>> {
    let payload_len = frame::udp_payload_len(to.frame_len, to.addr)?;
    let what = || format!("open a UDP socket to {}", to.addr);
    let any = if to.addr.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).map_err(|e| Error::sys(what(), e))?;
    socket.connect(to.addr).map_err(|e| Error::sys(what(), e))?;
    let fd: OwnedFd = socket.into();
    let dev = to.dev.as_bytes();
    // SAFETY: the kernel reads `dev.len()` bytes of the name.
    let bound = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            dev.as_ptr().cast(),
            dev.len() as libc::socklen_t,
        )
    };
    if bound != 0 {
        let error = io::Error::last_os_error();
        return Err(Error::sys(
            format!("bind a UDP socket to {}", to.dev),
            error,
        ));
    }
    let packets = Packets::new(&vec![0xA5; payload_len], 0, to.burst);
    Ok(Box::new(Sender::new(fd, packets, to, batched)?))
}

/// A UDP receiver.
pub fn udp_receiver(at: &ReceiveAt, batched: bool) -> Result<Box<dyn Receive>> {
    let socket = UdpSocket::bind(at.addr).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Error::Invalid(format!(
            "UDP port {} of {} is in use: choose another port",
            at.addr.port(),
            at.addr.ip()
        )),
        _ => Error::sys(format!("bind UDP {}", at.addr), e),
    })?;
    Ok(Box::new(Receiver::new(socket.into(), 0, at, batched)?))
}

/// A packet socket that sends whole frames.
pub fn raw_sender(to: &SendTo, batched: bool) -> Result<Box<dyn Send>> {
    let fd = packet_socket(&to.dev, 0)?;
    let template = frame::below_ip(link::mac(&to.dev)?, to.mac, to.frame_len);
    let packets = Packets::new(&template, ETHERNET_LEN, to.burst);
    Ok(Box::new(Sender::new(fd, packets, to, batched)?))
}

/// A packet socket that receives the frames of our EtherType.
pub fn raw_receiver(at: &ReceiveAt, batched: bool) -> Result<Box<dyn Receive>> {
    let fd = packet_socket(&at.dev, ETHERTYPE)?;
    Ok(Box::new(Receiver::new(fd, ETHERNET_LEN, at, batched)?))
}

/// A packet socket on an interface; with protocol 0 it receives nothing.
pub fn packet_socket(dev: &str, protocol: u16) -> Result<OwnedFd> {
    let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|e| {
        Error::sys(
            "open a packet socket (this needs the capability CAP_NET_RAW)",
            e,
        )
    })?;
    sys::bind_packet(&fd, link::index(dev)?, protocol)
        .map_err(|e| Error::sys(format!("bind a packet socket to {dev}"), e))?;
    Ok(fd)
}

/// Buffers of a burst, and the kernel's descriptions of them.
struct Packets {
    buffers: Vec<Vec<u8>>,
    stamp_at: usize,
    // Points into `buffers`, whose parts do not move on the heap.
    iovecs: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Packets {
    fn new(template: &[u8], stamp_at: usize, burst: u32) -> Self {
        let mut buffers = vec![template.to_vec(); burst.max(1) as usize];
        let mut iovecs: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let headers = iovecs
            .iter_mut()
            .map(|iovec| {
                // SAFETY: the structure consists of pointers and integers, for which 0 is a value.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = iovec;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self {
            buffers,
            stamp_at,
            iovecs,
            headers,
        }
    }

    fn stamp(&mut self, run: u32, first_seq: u64, packets: usize) {
        let at = self.stamp_at;
        for (seq, buffer) in (first_seq..).zip(&mut self.buffers[..packets]) {
            Stamp { run, seq }.write(&mut buffer[at..]);
        }
    }
}

struct Sender {
    fd: OwnedFd,
    packets: Packets,
    run: u32,
    batched: bool,
    peer: String,
}

impl Sender {
    fn new(fd: OwnedFd, packets: Packets, to: &SendTo, batched: bool) -> Result<Self> {
        let limit = libc::timeval {
            tv_sec: 0,
            tv_usec: WAIT.as_micros() as libc::suseconds_t,
        };
        sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &limit)
            .map_err(|e| Error::sys("limit the wait of a sender", e))?;
        Ok(Self {
            fd,
            packets,
            run: to.run,
            batched,
            peer: to.addr.to_string(),
        })
    }

    /// Hands the packets from `from` to `end` to the kernel, or the first of them.
    fn send(&mut self, from: usize, end: usize) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let result = if self.batched {
            let headers = &mut self.packets.headers[from..end];
            let count = headers.len() as u32;
            // SAFETY: `count` headers are passed; each points to an iovec of `packets`, and that to
            // a buffer of `packets`, which live as long and were not moved.
            unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, 0) as isize }
        } else {
            let buffer = &self.packets.buffers[from];
            // SAFETY: the kernel reads the buffer, whose length is passed.
            unsafe { libc::send(fd, buffer.as_ptr().cast(), buffer.len(), 0) }
        };
        match result {
            ..=-1 => Err(io::Error::last_os_error()),
            count if self.batched => Ok(count as usize),
            _ => Ok(1),
        }
    }
}

impl Send for Sender {
    fn burst(&mut self, first_seq: u64, packets: u32) -> Result<Taken> {
        let packets = (packets as usize).min(self.packets.buffers.len());
        self.packets.stamp(self.run, first_seq, packets);
        let mut taken = Taken::default();
        let mut next = 0;
        while next < packets {
            match self.send(next, packets) {
                Ok(count) => {
                    taken.sent += count as u64;
                    next += count;
                }
                Err(e) if sys::is_full(&e) => {
                    taken.refused += 1;
                    next += 1;
                }
                Err(e) if sys::is_timeout(&e) => break,
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(Error::Invalid(format!(
                        "nobody listens at {}: start `kbp measure sockets receive` there first",
                        self.peer
                    )));
                }
                Err(e) => return Err(Error::sys(format!("send to {}", self.peer), e)),
            }
        }
        Ok(taken)
    }
}

struct Receiver {
    fd: OwnedFd,
    packets: Packets,
    batched: bool,
}

impl Receiver {
    fn new(fd: OwnedFd, header_len: usize, at: &ReceiveAt, batched: bool) -> Result<Self> {
        let failed = |e| Error::sys("prepare the receiving socket", e);
        let limit = libc::timeval {
            tv_sec: 0,
            tv_usec: WAIT.as_micros() as libc::suseconds_t,
        };
        sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit).map_err(failed)?;
        let forced = sys::set_option(
            &fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            &RECEIVE_BUFFER_LEN,
        );
        if forced.is_err() {
            // Without privilege the kernel's own limit holds.
            sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER_LEN)
                .map_err(failed)?;
        }
        if let Some(us) = at.busy_poll_us {
            sys::busy_poll(&fd, us).map_err(|e| Error::sys("have a socket busy-poll", e))?;
        }
        let burst = if batched { at.burst } else { 1 };
        Ok(Self {
            fd,
            packets: Packets::new(&[0; FRAME_LEN_MAX], header_len, burst),
            batched,
        })
    }

    fn receive(&mut self) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        if self.batched {
            let headers = &mut self.packets.headers;
            let count = headers.len() as u32;
            let flags = libc::MSG_WAITFORONE;
            // SAFETY: as in `Sender::send`; the kernel writes into the buffers, which nobody borrows.
            let got = unsafe {
                libc::recvmmsg(fd, headers.as_mut_ptr(), count, flags, std::ptr::null_mut())
            };
            return usize::try_from(got).map_err(|_| io::Error::last_os_error());
        }
        let buffer = self.packets.iovecs[0];
        // SAFETY: the iovec describes the first buffer, which nobody borrows.
        let len = unsafe { libc::recv(fd, buffer.iov_base, buffer.iov_len, 0) };
        let len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
        self.packets.headers[0].msg_len = len;
        Ok(1)
    }
}

impl Receive for Receiver {
    fn take(&mut self, account: &mut Account) -> Result<()> {
        let count = match self.receive() {
            Ok(count) => count,
            Err(e) if sys::is_timeout(&e) => return Ok(()),
            Err(e) => return Err(Error::sys("receive a packet", e)),
        };
        let header_len = self.packets.stamp_at;
        for (buffer, header) in self
            .packets
            .buffers
            .iter()
            .zip(&self.packets.headers[..count])
        {
            let end = (header.msg_len as usize).min(buffer.len());
            account.enter(buffer.get(header_len..end).unwrap_or_default());
        }
        Ok(())
    }

    fn drops(&mut self) -> Result<u64> {
        let info: [u32; 9] = sys::option(&self.fd, libc::SOL_SOCKET, libc::SO_MEMINFO)
            .map_err(|e| Error::sys("read the drops of a socket", e))?;
        Ok(u64::from(info[libc::SK_MEMINFO_DROPS as usize]))
    }
}
