// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The frames of a tester that is a host of its own: Ethernet, ARP, IPv4, UDP. Pure.
//!
//! The UDP checksum is left out (0), as RFC 768 allows over IPv4: real cards verify it in hardware.

use std::net::{Ipv4Addr, SocketAddrV4};

use etherparse::{
    ether_type, ip_number, ArpEthIpv4Packet, ArpOperation, ArpPacketSlice, Ethernet2Slice,
    Ipv4Slice, PacketBuilder, UdpSlice,
};

/// A MAC address.
pub(super) type Mac = [u8; 6];

pub(super) const BROADCAST: Mac = [0xff; 6];
/// Bytes in front of the payload: Ethernet 14, IPv4 20, UDP 8.
pub(super) const HEADERS_LEN: usize = 42;
/// Smallest frame without FCS; what is shorter is padded.
const FRAME_LEN_MIN: usize = 60;
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;

/// One end of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub mac: Mac,
    pub socket: SocketAddrV4,
}

/// A frame with a zeroed payload of `payload_len` bytes, padded; `None` for a payload that no
/// datagram can hold.
pub(super) fn udp(from: End, to: End, payload_len: usize) -> Option<Vec<u8>> {
    let builder = PacketBuilder::ethernet2(from.mac, to.mac)
        .ipv4(from.socket.ip().octets(), to.socket.ip().octets(), 64)
        .udp(from.socket.port(), to.socket.port());
    let mut frame = Vec::with_capacity(builder.size(payload_len));
    builder.write(&mut frame, &vec![0; payload_len]).ok()?;
    frame[UDP_CHECKSUM].fill(0);
    if frame.len() < FRAME_LEN_MIN {
        frame.resize(FRAME_LEN_MIN, 0);
    }
    Some(frame)
}

/// An ARP packet in a frame, padded.
pub(super) fn arp(operation: ArpOperation, from: End, to_mac: Mac, to: Ipv4Addr) -> Vec<u8> {
    let target_mac = if to_mac == BROADCAST { [0; 6] } else { to_mac };
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: from.mac,
        sender_ipv4: from.socket.ip().octets(),
        target_mac,
        target_ipv4: to.octets(),
    };
    let mut frame = Vec::with_capacity(FRAME_LEN_MIN);
    frame.extend(to_mac);
    frame.extend(from.mac);
    frame.extend(ether_type::ARP.0.to_be_bytes());
    frame.extend(packet.to_bytes());
    frame.resize(FRAME_LEN_MIN, 0);
    frame
}

/// What a frame is to a host with the address `own`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming<'a> {
    /// Somebody asks who has our address.
    Who { mac: Mac, address: Ipv4Addr },
    /// Somebody says which MAC an address has.
    Here { mac: Mac, address: Ipv4Addr },
    /// A UDP payload for our socket from that of the peer.
    Payload(&'a [u8]),
    /// Something else.
    Other,
}

/// Reads a frame that came to `own`; `peer` is the only socket whose payloads count.
pub(super) fn read<'a>(frame: &'a [u8], own: SocketAddrV4, peer: SocketAddrV4) -> Incoming<'a> {
    let Ok(ethernet) = Ethernet2Slice::from_slice_without_fcs(frame) else {
        return Incoming::Other;
    };
    match ethernet.ether_type() {
        ether_type::ARP => read_arp(ethernet.payload_slice(), *own.ip()),
        ether_type::IPV4 => {
            read_udp(ethernet.payload_slice(), own, peer).map_or(Incoming::Other, Incoming::Payload)
        }
        _ => Incoming::Other,
    }
}

fn read_arp(bytes: &[u8], own: Ipv4Addr) -> Incoming<'static> {
    let packet = ArpPacketSlice::from_slice(bytes).ok();
    let Some(packet) = packet.and_then(|p| p.to_packet().try_eth_ipv4().ok()) else {
        return Incoming::Other;
    };
    let (mac, address) = (packet.sender_mac, packet.sender_ipv4_addr());
    match packet.operation {
        ArpOperation::REQUEST if packet.target_ipv4_addr() == own => Incoming::Who { mac, address },
        ArpOperation::REPLY => Incoming::Here { mac, address },
        _ => Incoming::Other,
    }
}

fn read_udp(bytes: &[u8], own: SocketAddrV4, peer: SocketAddrV4) -> Option<&[u8]> {
    let ip = Ipv4Slice::from_slice(bytes).ok()?;
    let header = ip.header();
    let is_ours = header.destination_addr() == *own.ip() && header.source_addr() == *peer.ip();
    if !is_ours || ip.is_payload_fragmented() || ip.payload_ip_number() != ip_number::UDP {
        return None;
    }
    let udp = UdpSlice::from_slice(ip.payload().payload).ok()?;
    let is_ours = udp.destination_port() == own.port() && udp.source_port() == peer.port();
    // The slice borrows from the frame; its lifetime is found again by its length.
    let len = udp.payload().len();
    let start = usize::from(header.ihl()) * 4 + 8;
    is_ours.then(|| bytes.get(start..start + len)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    fn end(last: u8, port: u16) -> End {
        End {
            mac: [2, 0, 0, 0, 0, last],
            socket: SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, last), port),
        }
    }

    #[test]
    fn a_payload_is_found_whatever_the_padding() {
        let (tester, server) = (end(1, 9), end(2, 7700));
        for len in [0, 1, 17, 18, 19, 466, 1472] {
            let mut frame = udp(server, tester, len).unwrap();
            assert_eq!(frame.len(), (HEADERS_LEN + len).max(FRAME_LEN_MIN));
            let mut rng = SplitMix64::new(len as u64);
            for byte in &mut frame[HEADERS_LEN..HEADERS_LEN + len] {
                *byte = rng.next_u64() as u8;
            }
            let want = Incoming::Payload(&frame[HEADERS_LEN..HEADERS_LEN + len]);
            assert_eq!(read(&frame, tester.socket, server.socket), want);
            assert_eq!(
                read(&frame, end(3, 9).socket, server.socket),
                Incoming::Other
            );
            assert_eq!(
                read(&frame, end(1, 8).socket, server.socket),
                Incoming::Other
            );
            assert_eq!(
                read(&frame, tester.socket, end(4, 7700).socket),
                Incoming::Other
            );
        }
    }

    #[test]
    fn damaged_frames_are_no_payload_and_no_panic() {
        let (tester, server) = (end(1, 9), end(2, 7700));
        let whole = udp(server, tester, 100).unwrap();
        for len in 0..whole.len() {
            assert_eq!(
                read(&whole[..len], tester.socket, server.socket),
                Incoming::Other
            );
        }
        for seed in 0..2_000 {
            let mut rng = SplitMix64::new(seed);
            let mut frame = whole.clone();
            for _ in 0..rng.in_range(1, 8) {
                let at = rng.in_range(0, frame.len() as u64 - 1) as usize;
                frame[at] = rng.next_u64() as u8;
            }
            read(&frame, tester.socket, server.socket);
        }
    }

    #[test]
    fn arp_asks_and_answers() {
        let (tester, server) = (end(1, 9), end(2, 7700));
        let (mac, address) = (server.mac, *server.socket.ip());
        let ask = arp(
            ArpOperation::REQUEST,
            server,
            BROADCAST,
            *tester.socket.ip(),
        );
        let seen = read(&ask, tester.socket, server.socket);
        assert_eq!(seen, Incoming::Who { mac, address });
        assert_eq!(read(&ask, end(3, 9).socket, server.socket), Incoming::Other);
        let answer = arp(ArpOperation::REPLY, server, tester.mac, *tester.socket.ip());
        let seen = read(&answer, tester.socket, server.socket);
        assert_eq!(seen, Incoming::Here { mac, address });
    }
}
