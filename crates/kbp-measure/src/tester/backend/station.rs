// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host of its own behind a link that carries frames: it has a MAC and an IPv4 address that the
//! kernel does not know, finds the reflector by ARP, and answers ARP requests for itself.
//!
//! Not here: the links ([`super::Ring`], [`super::Wire`]) and the form of the frames
//! ([`super::frame`]).

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;

use etherparse::ArpOperation;

use super::frame::{self, End, Incoming, BROADCAST, HEADERS_LEN};
use super::{wait_readable, Arrival, Backend, Drops, Ends};
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::tester::openloop::OVERHEAD_V4;

/// How long the reflector's MAC address is asked for, nanoseconds; the guest may still be booting.
const FIND_NS_MAX: u64 = 10_000_000_000;
/// From one question to the next, nanoseconds.
const ASK_NS: u64 = 200_000_000;
/// The tester's UDP port.
const PORT: u16 = 0x4b42;
const FRAME_LEN_MAX: usize = 2048;

/// What carries frames without FCS.
pub trait Link: fmt::Debug {
    /// What it is, for messages.
    fn describe(&self) -> String;

    /// Sends one frame; `false` when there is no room for it now.
    ///
    /// # Errors
    /// When the link is gone or refuses such a frame.
    fn send_frame(&mut self, frame: &[u8]) -> Result<bool>;

    /// The next frame that came, if one did: its length, of which `buffer` holds as much as it has
    /// room for. Never waits.
    ///
    /// # Errors
    /// When the link is gone.
    fn recv_frame(&mut self, buffer: &mut [u8]) -> Result<Option<usize>>;

    /// What becomes readable when a frame comes.
    fn fd(&self) -> RawFd;

    /// See [`Backend::drops`].
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn drops(&mut self) -> Result<Drops>;
}

/// A MAC address and a socket address.
pub type StationAddress = ([u8; 6], SocketAddrV4);

/// The tester as a host of its own.
#[derive(Debug)]
pub struct Station<L> {
    link: L,
    own: End,
    peer: End,
    frame: Vec<u8>,
    inbox: Vec<u8>,
}

impl<L: Link> Station<L> {
    /// Finds the MAC address of the reflector, or that of the router to it.
    ///
    /// # Errors
    /// When nobody answers for the address.
    pub fn find(link: L, ends: &Ends) -> Result<Self> {
        let own = (own_mac(), SocketAddrV4::new(ends.address, PORT));
        let mut station = Self::between(link, own, (BROADCAST, ends.server));
        station.resolve(ends.next_hop.unwrap_or(*ends.server.ip()))?;
        Ok(station)
    }

    /// A station whose peer is known.
    pub fn between(link: L, own: StationAddress, peer: StationAddress) -> Self {
        let end = |(mac, socket)| End { mac, socket };
        Self {
            link,
            own: end(own),
            peer: end(peer),
            frame: Vec::new(),
            inbox: vec![0; FRAME_LEN_MAX],
        }
    }

    fn resolve(&mut self, wanted: Ipv4Addr) -> Result<()> {
        let question = frame::arp(ArpOperation::REQUEST, self.own, BROADCAST, wanted);
        let deadline_ns = monotonic_ns()? + FIND_NS_MAX;
        let mut ask_ns = 0;
        loop {
            let now_ns = monotonic_ns()?;
            if now_ns >= deadline_ns || interrupt::requested() {
                return Err(Error::NobodyAnswers {
                    address: wanted,
                    link: self.link.describe(),
                });
            }
            if now_ns >= ask_ns {
                // A question that finds no room is asked again.
                self.link.send_frame(&question)?;
                ask_ns = now_ns + ASK_NS;
            }
            match self.link.recv_frame(&mut self.inbox)? {
                Some(len) => {
                    let frame = &self.inbox[..len.min(FRAME_LEN_MAX)];
                    match frame::read(frame, self.own.socket, self.peer.socket) {
                        Incoming::Here { mac, address } if address == wanted => {
                            self.peer.mac = mac;
                            return Ok(());
                        }
                        Incoming::Who { mac, address } => self.answer(mac, address)?,
                        _ => {}
                    }
                }
                None => wait_readable(self.link.fd(), ask_ns)?,
            }
        }
    }

    fn answer(&mut self, mac: [u8; 6], address: Ipv4Addr) -> Result<()> {
        let answer = frame::arp(ArpOperation::REPLY, self.own, mac, address);
        // An answer that finds no room is lost, as on any network; the peer asks again.
        self.link.send_frame(&answer).map(drop)
    }
}

/// A MAC address that no card has (the bit "locally administered" is set), one for each process.
fn own_mac() -> [u8; 6] {
    let [.., high, low] = std::process::id().to_be_bytes();
    [0x02, 0x4b, 0x42, 0x50, high, low]
}

impl<L: Link> Backend for Station<L> {
    fn describe(&self) -> String {
        format!("UDP {} by {}", self.peer.socket, self.link.describe())
    }

    fn overhead(&self) -> u32 {
        OVERHEAD_V4
    }

    fn send(&mut self, payload: &[u8]) -> Result<bool> {
        if self.frame.len() != HEADERS_LEN + payload.len() {
            let frame = frame::udp(self.own, self.peer, payload.len());
            self.frame = frame.ok_or_else(|| {
                Error::Invalid(format!("{} bytes do not fit one frame", payload.len()))
            })?;
        }
        self.frame[HEADERS_LEN..HEADERS_LEN + payload.len()].copy_from_slice(payload);
        self.link.send_frame(&self.frame)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<Arrival>> {
        // What is not for us is passed over; its number is bounded, so that sending goes on.
        for _ in 0..16 {
            let Some(len) = self.link.recv_frame(&mut self.inbox)? else {
                return Ok(None);
            };
            let frame = &self.inbox[..len.min(FRAME_LEN_MAX)];
            match frame::read(frame, self.own.socket, self.peer.socket) {
                Incoming::Payload(payload) => {
                    let kept = payload.len().min(buffer.len());
                    buffer[..kept].copy_from_slice(&payload[..kept]);
                    return Arrival::now(payload.len()).map(Some);
                }
                Incoming::Who { mac, address } => self.answer(mac, address)?,
                _ => {}
            }
        }
        Ok(None)
    }

    fn wait(&mut self, until_ns: u64) -> Result<()> {
        wait_readable(self.link.fd(), until_ns)
    }

    fn drops(&mut self) -> Result<Drops> {
        self.link.drops()
    }
}
