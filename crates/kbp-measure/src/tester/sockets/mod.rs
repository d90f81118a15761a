// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One way packet rate by the ways in which a program can hand packets to Linux: Table 1 of
//! paper 004 (section 3), continued to the ways that the paper left out.
//!
//! A sender sends frames of a size, in bursts of a size, at a rate or as fast as it can; a
//! receiver counts. Both use the same way, which is an entry of [`TECHNIQUES`].
//!
//! * [`frame`]: what a frame holds. * [`run`]: a run with both ends in one process.
//! * [`ends`]: one end of it. * [`rate`]: the middle of a run.
//!
//! Not here: where the ends run ([`crate::place`]), and the path between them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::{Error, Result};

mod bpf;
mod datagram;
pub mod ends;
pub mod frame;
mod link;
mod packet_ring;
pub mod rate;
pub mod run;
pub(crate) mod sys;
mod xdp;
mod xdp_action;
mod xdp_ring;

pub use bpf::{attach_pass, Attached as XdpProgram, Hook};
pub use frame::{Account, Stamp, FRAME_LEN_MAX, FRAME_LEN_MIN};
pub use link::{mac_of_neighbour, Mac};
pub use rate::{Rates, Sample};
pub use run::{run, Report, Run};
pub use xdp_action::{act, Acting, Action};

/// Most packets of one burst.
pub const BURST_MAX: u32 = 1_024;

/// What a sender needs to know.
#[derive(Debug, Clone)]
pub struct SendTo {
    /// Interface that the frames leave by, in the sender's namespace.
    pub dev: String,
    /// The receiver's address; techniques below IP do not use it.
    pub addr: SocketAddr,
    /// Link layer address of the receiver; only techniques below IP use it.
    pub mac: Mac,
    /// Length of a frame, bytes, without the checksum that a network card adds.
    pub frame_len: usize,
    /// Most packets of one burst.
    pub burst: u32,
    /// Marks the frames of this run.
    pub run: u32,
}

/// What a receiver needs to know.
#[derive(Debug, Clone)]
pub struct ReceiveAt {
    /// Interface that the frames come in by, in the receiver's namespace.
    pub dev: String,
    /// Address to serve; techniques below IP do not use it.
    pub addr: SocketAddr,
    /// Most packets that one call may take.
    pub burst: u32,
    /// How long the socket itself polls the device for packets, µs (`SO_BUSY_POLL`); `None` leaves that to the system.
    pub busy_poll_us: Option<u32>,
}

/// The fate of the packets of one burst, as far as the sender can see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Handed to the kernel.
    pub sent: u64,
    /// Refused or dropped by the kernel at once (a queue was full).
    pub refused: u64,
}

/// The sending end of a technique.
pub trait Send {
    /// Sends `packets` frames, numbered from `first_seq`; fewer when the kernel had no room
    /// for [`WAIT`].
    ///
    /// # Errors
    /// What the kernel refused for another reason than a full queue.
    fn burst(&mut self, first_seq: u64, packets: u32) -> Result<Taken>;
}

/// The receiving end of a technique.
pub trait Receive {
    /// Waits at most [`WAIT`] for frames and enters those that are there into `account`.
    ///
    /// # Errors
    /// When the kernel does not give them.
    fn take(&mut self, account: &mut Account) -> Result<()>;

    /// Frames that reached the socket and found no room, since it was made.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn drops(&mut self) -> Result<u64>;
}

/// How long an end waits before it looks whether the run is over.
pub const WAIT: Duration = Duration::from_millis(50);

/// One way to send and receive packets.
pub struct Technique {
    /// What it is called.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Whether its frames are below IP: an EtherType of their own, no address.
    pub below_ip: bool,
    open_sender: fn(&SendTo) -> Result<Box<dyn Send>>,
    open_receiver: fn(&ReceiveAt) -> Result<Box<dyn Receive>>,
}

/// All of them, from the most to the least of the stack.
pub static TECHNIQUES: [Technique; 7] = [
    Technique {
        name: "udp",
        about: "UDP sockets, send and recv",
        below_ip: false,
        open_sender: |to| datagram::udp_sender(to, false),
        open_receiver: |at| datagram::udp_receiver(at, false),
    },
    Technique {
        name: "udp-mmsg",
        about: "UDP sockets, sendmmsg and recvmmsg",
        below_ip: false,
        open_sender: |to| datagram::udp_sender(to, true),
        open_receiver: |at| datagram::udp_receiver(at, true),
    },
    Technique {
        name: "raw",
        about: "AF_PACKET sockets, send and recv",
        below_ip: true,
        open_sender: |to| datagram::raw_sender(to, false),
        open_receiver: |at| datagram::raw_receiver(at, false),
    },
    Technique {
        name: "raw-mmsg",
        about: "AF_PACKET sockets, sendmmsg and recvmmsg",
        below_ip: true,
        open_sender: |to| datagram::raw_sender(to, true),
        open_receiver: |at| datagram::raw_receiver(at, true),
    },
    Technique {
        name: "ring",
        about: "AF_PACKET with mapped rings (TPACKET_V2), both ways",
        below_ip: true,
        open_sender: packet_ring::sender,
        open_receiver: packet_ring::receiver,
    },
    Technique {
        name: "xdp-generic",
        about: "AF_XDP, copy mode, XDP hook of the stack",
        below_ip: true,
        open_sender: xdp::sender,
        open_receiver: |at| xdp::receiver(at, bpf::Hook::Generic),
    },
    Technique {
        name: "xdp-native",
        about: "AF_XDP, copy mode, XDP hook of the driver",
        below_ip: true,
        open_sender: xdp::sender,
        open_receiver: |at| xdp::receiver(at, bpf::Hook::Native),
    },
];

impl std::fmt::Debug for Technique {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Technique {
    /// The technique of a name.
    ///
    /// # Errors
    /// When there is none; the sentence names those that exist.
    pub fn named(name: &str) -> Result<&'static Self> {
        TECHNIQUES
            .iter()
            .find(|technique| technique.name == name)
            .ok_or_else(|| {
                let names: Vec<_> = TECHNIQUES.iter().map(|t| t.name).collect();
                Error::Invalid(format!(
                    "there is no technique '{name}'; there are {}",
                    names.join(", ")
                ))
            })
    }

    /// What [`crate::result::Row::tool`] says of it.
    pub fn tool(&self) -> String {
        format!("{}-sockets/{}", crate::result::TOOL_KBP, self.name)
    }

    /// Opens the sending end, on the calling thread and in its namespace.
    ///
    /// # Errors
    /// When the frames do not fit the interface, or the kernel can't do this.
    pub fn sender(&self, to: &SendTo) -> Result<Box<dyn Send>> {
        if !(1..=BURST_MAX).contains(&to.burst) {
            return Err(Error::Invalid(format!(
                "bursts of {} packets: it has to be 1 to {BURST_MAX}",
                to.burst
            )));
        }
        frame::check_len(to.frame_len, link::mtu(&to.dev)?, &to.dev)?;
        (self.open_sender)(to)
    }

    /// Opens the receiving end, on the calling thread and in its namespace.
    ///
    /// # Errors
    /// When the kernel or the interface can't do this; the sentence says why.
    pub fn receiver(&self, at: &ReceiveAt) -> Result<Box<dyn Receive>> {
        (self.open_receiver)(at)
    }
}
