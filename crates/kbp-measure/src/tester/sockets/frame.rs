// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a frame of a one way run holds, and the account of those that came.
//!
//! Every technique sends frames of the same length. Above IP it is Ethernet, IPv4 or IPv6, UDP
//! and the stamp; below IP it is Ethernet with an EtherType for local experiments and the
//! stamp, which the receiving host's IP stack does not see.
//!
//! Not here: how frames travel.

use std::net::SocketAddr;

use super::link::Mac;
use crate::error::{Error, Result};

/// Shortest frame, bytes: the shortest of Ethernet, with its checksum, as paper 004 counts it.
pub const FRAME_LEN_MIN: usize = 64;
/// Longest frame, bytes, at the usual MTU of 1,500.
pub const FRAME_LEN_MAX: usize = 1_514;
/// Ethernet's addresses and type, bytes.
pub const ETHERNET_LEN: usize = 14;
/// "Local experimental EtherType 1" of IEEE 802.
pub const ETHERTYPE: u16 = 0x88B5;
const UDP_LEN: usize = 8;
const MAGIC: u32 = u32::from_be_bytes(*b"kbp1");

/// What tells a frame of ours: the run it belongs to, and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The run.
    pub run: u32,
    /// Number of the frame, from 0.
    pub seq: u64,
}

impl Stamp {
    /// Bytes of a stamp.
    pub const LEN: usize = 16;

    /// Writes the stamp to the start of a payload, which has room for it.
    pub fn write(self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&MAGIC.to_be_bytes());
        payload[4..8].copy_from_slice(&self.run.to_be_bytes());
        payload[8..Self::LEN].copy_from_slice(&self.seq.to_be_bytes());
    }

    /// The stamp of a payload, if it has one.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let (magic, rest) = payload.split_first_chunk()?;
        let (run, rest) = rest.split_first_chunk()?;
        let (seq, _) = rest.split_first_chunk()?;
        (u32::from_be_bytes(*magic) == MAGIC).then_some(Self {
            run: u32::from_be_bytes(*run),
            seq: u64::from_be_bytes(*seq),
        })
    }
}

/// What a receiver counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    run: u32,
    /// Frames of this run.
    pub received: u64,
    /// Frames of other runs, or no frames of ours.
    pub foreign: u64,
    /// Highest number among the frames of this run, plus 1.
    pub seq_end: u64,
}

impl Account {
    /// An empty account of a run.
    pub fn new(run: u32) -> Self {
        Self {
            run,
            received: 0,
            foreign: 0,
            seq_end: 0,
        }
    }

    /// Enters what follows the headers of one frame.
    pub fn enter(&mut self, payload: &[u8]) {
        match Stamp::read(payload) {
            Some(stamp) if stamp.run == self.run => {
                self.received += 1;
                self.seq_end = self.seq_end.max(stamp.seq + 1);
            }
            _ => self.foreign += 1,
        }
    }

    /// Enters a whole frame from below IP.
    pub fn enter_frame(&mut self, frame: &[u8]) {
        self.enter(frame.get(ETHERNET_LEN..).unwrap_or_default());
    }
}

/// A frame from below IP with room for a stamp behind its header.
pub fn below_ip(from: Mac, to: Mac, frame_len: usize) -> Vec<u8> {
    let mut frame = vec![0xA5; frame_len];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..ETHERNET_LEN].copy_from_slice(&ETHERTYPE.to_be_bytes());
    frame
}

/// Length of the UDP payload that makes a frame of `frame_len` towards `addr`.
///
/// # Errors
/// When the headers leave no room for the stamp.
pub fn udp_payload_len(frame_len: usize, addr: SocketAddr) -> Result<usize> {
    let ip_len = if addr.is_ipv4() { 20 } else { 40 };
    let headers_len = ETHERNET_LEN + ip_len + UDP_LEN;
    match frame_len.checked_sub(headers_len) {
        Some(len) if len >= Stamp::LEN => Ok(len),
        _ => Err(Error::Invalid(format!(
            "frames of {frame_len} bytes are too short for UDP to {addr}: at least {}",
            headers_len + Stamp::LEN
        ))),
    }
}

/// Checks a frame's length against the limits and an interface's MTU.
///
/// # Errors
/// When it does not fit; a frame that IP would have to cut is refused.
pub fn check_len(frame_len: usize, mtu: usize, dev: &str) -> Result<()> {
    let longest = FRAME_LEN_MAX.min(mtu + ETHERNET_LEN);
    if (FRAME_LEN_MIN..=longest).contains(&frame_len) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "frames of {frame_len} bytes: {dev} with its MTU of {mtu} takes {FRAME_LEN_MIN} to {longest}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_knows_its_own() {
        let mut frame = below_ip(Mac([1; 6]), Mac([2; 6]), 64);
        Stamp { run: 7, seq: 41 }.write(&mut frame[ETHERNET_LEN..]);
        assert_eq!(&frame[12..14], [0x88, 0xB5]);
        let mut account = Account::new(7);
        account.enter_frame(&frame);
        Stamp { run: 8, seq: 99 }.write(&mut frame[ETHERNET_LEN..]);
        account.enter_frame(&frame);
        account.enter_frame(&frame[..20]);
        account.enter_frame(&[]);
        assert_eq!(
            (account.received, account.foreign, account.seq_end),
            (1, 3, 42)
        );
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        assert!(check_len(64, 1500, "d").is_ok() && check_len(1514, 1500, "d").is_ok());
        for (len, mtu) in [(63, 1500), (1515, 9000), (1514, 1499)] {
            assert!(check_len(len, mtu, "d").is_err(), "{len} at {mtu}");
        }
        let v4 = "10.0.0.1:9".parse().unwrap();
        let v6 = "[fd00::1]:9".parse().unwrap();
        assert_eq!(udp_payload_len(64, v4).unwrap(), 22);
        assert!(udp_payload_len(64, v6).is_err());
        assert_eq!(udp_payload_len(78, v6).unwrap(), 16);
    }
}
