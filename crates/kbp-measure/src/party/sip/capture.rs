// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What goes to a UDP port and comes from it, seen at the interfaces of a network namespace, with the kernel's own times:
//! of a frame that is sent, when it is handed to its driver; of one that is received, when the driver hands it to the stack.
//!
//! Not here: what the datagrams are ([`super::pairing`]).

use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{recvmsg, setsockopt, sockopt, ControlMessageOwned, LinkAddr, MsgFlags};
use nix::sys::time::TimeSpec;

use super::pairing::Way;
use crate::error::{Error, Result};
use crate::tester::sockets::sys;

/// Room of the socket, bytes: seconds of messages, should the reader be late.
const ROOM: i32 = 8 << 20;
/// Longest frame that is looked at, bytes; the kernel's own are longer only where it joined several.
const FRAME_LEN: usize = 65_536;
/// `PACKET_HOST` and `PACKET_OUTGOING` of linux/if_packet.h.
const TO_US: u8 = 0;
const OUTGOING: u8 = 4;

/// A datagram to or from the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Which way it goes.
    pub way: Way,
    /// When it was seen, nanoseconds of the kernel's real-time clock.
    pub at_ns: u64,
    /// What is in it.
    pub payload: &'a [u8],
}

/// A capture in the network namespace of the thread that began it.
#[derive(Debug)]
pub struct Capture {
    fd: OwnedFd,
    port: SocketAddrV4,
    buffer: Vec<u8>,
}

impl Capture {
    /// Begins to capture what goes to `port` and comes from it, at all interfaces.
    ///
    /// # Errors
    /// Without the capability CAP_NET_RAW.
    pub fn begin(port: SocketAddrV4) -> Result<Self> {
        let failed = |what: &'static str| move |e: std::io::Error| Error::sys(what, e);
        let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 0).map_err(
            failed("open a packet socket (this needs the capability CAP_NET_RAW)"),
        )?;
        sys::set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM)
            .map_err(failed("make room in a packet socket"))?;
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)
            .map_err(|errno| Error::sys("ask for the kernel's times of frames", errno))?;
        // Only sockets of all protocols see what is sent.
        sys::bind_packet(&fd, 0, libc::ETH_P_ALL as u16)
            .map_err(failed("bind a packet socket to all interfaces"))?;
        Ok(Self {
            fd,
            port,
            buffer: vec![0; FRAME_LEN],
        })
    }

    /// Hands out what was captured and not taken yet; waits up to `limit` for the first of it.
    ///
    /// # Errors
    /// Those of reading, and of `each`.
    pub fn take(
        &mut self,
        limit: Duration,
        mut each: impl FnMut(Datagram<'_>) -> Result<()>,
    ) -> Result<()> {
        sys::wait(&self.fd, libc::POLLIN, limit).map_err(|e| Error::sys("wait for frames", e))?;
        while let Some((len, from, at_ns)) = self.next()? {
            let frame = &self.buffer[..len];
            if let Some((way, payload)) = of_port(frame, from, self.port) {
                each(Datagram {
                    way,
                    at_ns,
                    payload,
                })?;
            }
        }
        Ok(())
    }

    /// Length, direction and time of the next frame in the buffer; `None` when there is none.
    fn next(&mut self) -> Result<Option<(usize, u8, u64)>> {
        let mut space = nix::cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let received = recvmsg::<LinkAddr>(
            self.fd.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::empty(),
        );
        let message = match received {
            Ok(message) => message,
            Err(errno) => {
                let error = std::io::Error::from(errno);
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
                    _ => Err(Error::sys("read a captured frame", error)),
                };
            }
        };
        let time = message
            .cmsgs()
            .map_err(|errno| Error::sys("read the time of a frame", errno))?
            .find_map(|control| match control {
                ControlMessageOwned::ScmTimestampns(time) => Some(time),
                _ => None,
            });
        let time =
            time.ok_or_else(|| Error::Invalid("a captured frame came without its time".into()))?;
        let from = message.address.map_or(TO_US, |address| address.pkttype());
        let at_ns = time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64;
        Ok(Some((message.bytes, from, at_ns)))
    }

    /// How many frames found no room since it was last asked.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn drops(&self) -> Result<u64> {
        let [_frames, drops]: [u32; 2] =
            sys::option(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)
                .map_err(|e| Error::sys("read the drops of a packet socket", e))?;
        Ok(u64::from(drops))
    }
}

/// The payload of a frame that this host sends to the port or receives from it. On the loopback every frame is seen both
/// when it is sent and when it is received; only one of the two counts.
fn of_port(frame: &[u8], direction: u8, port: SocketAddrV4) -> Option<(Way, &[u8])> {
    let (from, to, payload) = datagram(frame)?;
    match direction {
        OUTGOING if to == port => Some((Way::There, payload)),
        TO_US if from == port => Some((Way::Back, payload)),
        _ => None,
    }
}

const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;
const UDP: u8 = 17;

/// Source, destination and payload of an unfragmented UDP datagram over IPv4.
fn datagram(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, &[u8])> {
    let u16_at =
        |bytes: &[u8], at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    if i32::from(u16_at(frame, 12)?) != libc::ETH_P_IP {
        return None;
    }
    let packet = frame.get(ETHERNET_LEN..)?;
    let header_len = usize::from(*packet.first()? & 0xf) * 4;
    // More fragments, or not the first one.
    let is_fragment = u16_at(packet, 6)? & 0x3fff != 0;
    if packet[0] >> 4 != 4 || *packet.get(9)? != UDP || is_fragment {
        return None;
    }
    let address = |at: usize| -> Option<[u8; 4]> { packet.get(at..at + 4)?.try_into().ok() };
    let udp = packet.get(header_len..)?;
    let socket = |address: [u8; 4], port: u16| SocketAddrV4::new(address.into(), port);
    let from = socket(address(12)?, u16_at(udp, 0)?);
    let to = socket(address(16)?, u16_at(udp, 2)?);
    let len = usize::from(u16_at(udp, 4)?);
    // Short frames are padded.
    Some((from, to, udp.get(UDP_LEN..len)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    const PROXY: &str = "10.0.0.1:5060";
    const CALLER: &str = "10.0.0.2:5062";

    fn frame(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let (from, to): (SocketAddrV4, SocketAddrV4) = (from.parse().unwrap(), to.parse().unwrap());
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(from.ip().octets(), to.ip().octets(), 64)
            .udp(from.port(), to.port());
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).unwrap();
        frame.resize(frame.len().max(60), 0);
        frame
    }

    fn seen(from: &str, to: &str, direction: u8) -> Option<Way> {
        let frame = frame(from, to, b"hi");
        let (way, payload) = of_port(&frame, direction, PROXY.parse().unwrap())?;
        assert_eq!(payload, b"hi", "padding is in it");
        Some(way)
    }

    #[test]
    fn what_goes_to_the_port_and_what_comes_from_it() {
        assert_eq!(seen(CALLER, PROXY, OUTGOING), Some(Way::There));
        assert_eq!(seen(PROXY, CALLER, TO_US), Some(Way::Back));
        for (from, to, direction) in [
            (CALLER, PROXY, TO_US),
            (PROXY, CALLER, OUTGOING),
            (CALLER, "10.0.0.1:5061", OUTGOING),
            (CALLER, "10.0.0.3:5060", OUTGOING),
        ] {
            assert_eq!(seen(from, to, direction), None, "{from} {to}");
        }
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_left_out() {
        let whole = frame(CALLER, PROXY, &[7; 200]);
        assert!(datagram(&whole).is_some());
        for len in 0..whole.len() {
            assert_eq!(datagram(&whole[..len]), None, "{len} bytes");
        }
        let changed = |at: usize, to: u8| {
            let mut frame = whole.clone();
            frame[at] = to;
            frame
        };
        // ARP, IPv6, TCP, a fragment.
        for (at, to) in [(13, 6), (14, 0x65), (23, 6), (21, 8)] {
            assert_eq!(datagram(&changed(at, to)), None, "byte {at}");
        }
    }
}
