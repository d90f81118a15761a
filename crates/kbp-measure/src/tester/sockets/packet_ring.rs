// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AF_PACKET with rings that are mapped into the program (TPACKET_V2): frames pass without a
//! copy by a system call, and one call tells the kernel about a burst.
//!
//! A slot belongs to whoever its status word names. Version 2 and not 3: the receiving side of
//! version 3 hands over blocks of frames by a timer, which would be another experiment.
//!
//! Not here: AF_XDP, whose rings hold descriptions of frames and not frames.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::tpacket2_hdr;

use super::datagram::packet_socket;
use super::frame::{self, Account, Stamp, ETHERNET_LEN, ETHERTYPE};
use super::sys::{self, Map};
use super::{link, Receive, ReceiveAt, Send, SendTo, Taken, BURST_MAX, WAIT};
use crate::error::{Error, Result};

/// A slot: header and frame, bytes.
const SLOT_LEN: usize = 2_048;
/// The kernel allocates the ring in blocks of this many bytes.
const BLOCK_LEN: usize = 1 << 16;
/// Slots of a ring: twice the longest burst.
const SLOTS: usize = 2 * BURST_MAX as usize;
/// Where the frame begins in a slot that is sent: the header, rounded up to
/// `TPACKET_ALIGNMENT`.
const SEND_AT: usize = size_of::<tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
/// Kicks that may find a full queue before a burst is left for the next one.
const KICKS_MAX: u32 = 1_000;

/// A sender with a mapped ring.
pub fn sender(to: &SendTo) -> Result<Box<dyn Send>> {
    let fd = packet_socket(&to.dev, 0)?;
    let ring = Ring::map(fd, libc::PACKET_TX_RING)?;
    let template = frame::below_ip(link::mac(&to.dev)?, to.mac, to.frame_len);
    for slot in 0..SLOTS {
        ring.fill(slot, &template);
    }
    Ok(Box::new(Sender {
        ring,
        next: 0,
        run: to.run,
        frame_len: to.frame_len,
    }))
}

/// A receiver with a mapped ring.
pub fn receiver(at: &ReceiveAt) -> Result<Box<dyn Receive>> {
    // Nothing may come before the ring is there, so it is bound afterwards.
    let fd = packet_socket(&at.dev, 0)?;
    let ring = Ring::map(fd, libc::PACKET_RX_RING)?;
    sys::bind_packet(&ring.fd, link::index(&at.dev)?, ETHERTYPE)
        .map_err(|e| Error::sys(format!("bind a packet socket to {}", at.dev), e))?;
    Ok(Box::new(Receiver {
        ring,
        next: 0,
        drops: 0,
    }))
}

struct Ring {
    fd: OwnedFd,
    map: Map,
}

impl Ring {
    fn map(fd: OwnedFd, which: i32) -> Result<Self> {
        let failed = |what: &'static str| move |e| Error::sys(what, e);
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        sys::set_option(&fd, libc::SOL_PACKET, libc::PACKET_VERSION, &version)
            .map_err(failed("choose TPACKET_V2"))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_LEN as u32,
            tp_block_nr: (SLOTS * SLOT_LEN / BLOCK_LEN) as u32,
            tp_frame_size: SLOT_LEN as u32,
            tp_frame_nr: SLOTS as u32,
        };
        sys::set_option(&fd, libc::SOL_PACKET, which, &request)
            .map_err(failed("make the ring of a packet socket"))?;
        let map = Map::of(fd.as_raw_fd(), 0, SLOTS * SLOT_LEN)
            .map_err(failed("map the ring of a packet socket"))?;
        Ok(Self { fd, map })
    }

    fn header(&self, slot: usize) -> NonNull<tpacket2_hdr> {
        let at = self.map.at(slot * SLOT_LEN, SLOT_LEN);
        at.cast()
    }

    /// The word that says whose a slot is. Loads acquire what the other side wrote before it
    /// stored; stores release ours.
    fn status(&self, slot: usize) -> &AtomicU32 {
        let header = self.header(slot).as_ptr();
        // SAFETY: the word is inside the mapping, aligned, and both sides access it whole.
        unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) }
    }

    /// Writes a frame and its length into a slot of ours.
    fn fill(&self, slot: usize, frame: &[u8]) {
        let room = self.map.at(slot * SLOT_LEN + SEND_AT, frame.len());
        let header = self.header(slot).as_ptr();
        // SAFETY: `at` checked the room; nobody else writes a slot that is ours.
        unsafe {
            room.copy_from_nonoverlapping(NonNull::from(frame).cast(), frame.len());
            (*header).tp_len = frame.len() as u32;
        }
    }
}

struct Sender {
    ring: Ring,
    next: usize,
    run: u32,
    frame_len: usize,
}

impl Sender {
    /// Waits until the next slot is ours; says whether it came in time.
    fn await_slot(&self) -> Result<bool> {
        let status = self.ring.status(self.next);
        if status.load(Ordering::Acquire) == libc::TP_STATUS_AVAILABLE {
            return Ok(true);
        }
        // Without the kick, slots that a full queue left behind would stay there.
        let _ = sys::kick(&self.ring.fd);
        sys::wait(&self.ring.fd, libc::POLLOUT, WAIT)
            .map_err(|e| Error::sys("wait for room in a ring", e))?;
        match status.load(Ordering::Acquire) {
            libc::TP_STATUS_AVAILABLE => Ok(true),
            wrong if wrong & libc::TP_STATUS_WRONG_FORMAT != 0 => Err(Error::Invalid(format!(
                "the kernel refused a frame of {} bytes from the ring",
                self.frame_len
            ))),
            _ => Ok(false),
        }
    }

    /// Kicks until the kernel has taken every slot up to the last one that was filled. A frame
    /// for which a queue was full stays in its slot and is tried again.
    fn hand_over(&self) -> Result<()> {
        let last = (self.next + SLOTS - 1) % SLOTS;
        for _ in 0..KICKS_MAX {
            match sys::kick(&self.ring.fd) {
                Err(e) if !(sys::is_full(&e) || sys::is_timeout(&e)) => {
                    return Err(Error::sys("send from a ring", e));
                }
                _ => {}
            }
            if self.ring.status(last).load(Ordering::Acquire) != libc::TP_STATUS_SEND_REQUEST {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Send for Sender {
    fn burst(&mut self, first_seq: u64, packets: u32) -> Result<Taken> {
        let mut taken = Taken::default();
        for seq in first_seq..first_seq + u64::from(packets) {
            if !self.await_slot()? {
                break;
            }
            let at = self.next * SLOT_LEN + SEND_AT + ETHERNET_LEN;
            let room = self.ring.map.at(at, Stamp::LEN);
            // SAFETY: the room is inside the mapping, and the slot is ours.
            let room = unsafe { std::slice::from_raw_parts_mut(room.as_ptr(), Stamp::LEN) };
            Stamp { run: self.run, seq }.write(room);
            // Pairs with the kernel's read of the status: the frame is there before it.
            self.ring
                .status(self.next)
                .store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
            self.next = (self.next + 1) % SLOTS;
            taken.sent += 1;
        }
        if taken.sent > 0 {
            self.hand_over()?;
        }
        Ok(taken)
    }
}

struct Receiver {
    ring: Ring,
    next: usize,
    drops: u64,
}

impl Receiver {
    /// Enters the frame of a slot that is ours.
    fn enter(&self, slot: usize, account: &mut Account) {
        let header = self.ring.header(slot).as_ptr();
        // SAFETY: the header is inside the mapping, and the kernel does not write a slot of ours.
        let (offset, len) = unsafe { ((*header).tp_mac as usize, (*header).tp_snaplen as usize) };
        let len = len.min(SLOT_LEN.saturating_sub(offset));
        let frame = self
            .ring
            .map
            .at(slot * SLOT_LEN + offset.min(SLOT_LEN), len);
        // SAFETY: `at` checked that the frame is inside the mapping; the slot is ours.
        account.enter_frame(unsafe { std::slice::from_raw_parts(frame.as_ptr(), len) });
    }
}

impl Receive for Receiver {
    fn take(&mut self, account: &mut Account) -> Result<()> {
        let is_ours = |receiver: &Self| {
            let status = receiver.ring.status(receiver.next).load(Ordering::Acquire);
            status & libc::TP_STATUS_USER != 0
        };
        if !is_ours(self) {
            sys::wait(&self.ring.fd, libc::POLLIN, WAIT)
                .map_err(|e| Error::sys("wait for frames in a ring", e))?;
        }
        // At most one round, so that the caller can look whether the run is over.
        for _ in 0..SLOTS {
            if !is_ours(self) {
                break;
            }
            self.enter(self.next, account);
            // Pairs with the kernel's read of the status: we have read before it may write.
            self.ring
                .status(self.next)
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % SLOTS;
        }
        Ok(())
    }

    fn drops(&mut self) -> Result<u64> {
        let [_packets, drops]: [u32; 2] =
            sys::option(&self.ring.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)
                .map_err(|e| Error::sys("read the drops of a packet socket", e))?;
        // The kernel starts anew with each reading.
        self.drops += u64::from(drops);
        Ok(self.drops)
    }
}
