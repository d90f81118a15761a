// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AF_PACKET with mapped rings (TPACKET_V2) on an interface.
//!
//! Version 2, because version 3 hands received frames over in blocks that wait for milliseconds.
//! The interface is promiscuous while the socket is open, and frames for the tester carry a MAC
//! address of their own: the kernel's stack takes them for somebody else's and leaves them alone.
//!
//! Not here: addresses ([`super::Station`]).

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

use super::{is_full, set_option, widen_buffers, Drops, Link};
use crate::error::{Error, Result};

const SLOT_LEN: usize = 2048;
const BLOCK_LEN: usize = 1 << 16;
const RX_SLOTS: usize = 4096;
const TX_SLOTS: usize = 1024;
const RING_LEN: usize = (RX_SLOTS + TX_SLOTS) * SLOT_LEN;
/// Where the kernel looks for a frame in a slot to send (`tpacket_parse_header`).
const TX_OFFSET: usize = libc::TPACKET2_HDRLEN - std::mem::size_of::<libc::sockaddr_ll>();

/// The mapped rings: received frames first, then frames to send. Unmapped at the end.
#[derive(Debug)]
struct Rings(*mut u8);

impl Rings {
    fn map(fd: RawFd) -> std::io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of the socket's rings, whose length was asked for before.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), RING_LEN, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self(base.cast()))
    }

    fn slot(&self, index: usize) -> Slot {
        assert!(
            index < RX_SLOTS + TX_SLOTS,
            "indices are taken modulo the rings' lengths"
        );
        // SAFETY: within the mapping by the line above.
        Slot(unsafe { self.0.add(index * SLOT_LEN) })
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), RING_LEN) };
    }
}

/// One slot of a ring; valid as long as the rings are.
struct Slot(*mut u8);

impl Slot {
    /// The word by which the slot changes hands.
    fn status(&self) -> &AtomicU32 {
        // SAFETY: `tp_status` is the first field of `tpacket2_hdr`, aligned and mapped; the kernel
        // changes it behind our back, which an atomic allows.
        unsafe { &*self.0.cast::<AtomicU32>() }
    }

    fn header(&self) -> *mut libc::tpacket2_hdr {
        self.0.cast()
    }
}

/// The rings of an interface.
#[derive(Debug)]
pub struct Ring {
    rings: Rings,
    fd: OwnedFd,
    interface: String,
    rx_next: usize,
    tx_next: usize,
    /// The kernel was told of a frame and could not take it yet.
    unsent: bool,
}

/// Refuses an address that the kernel has: both would answer for it.
pub(super) fn check_address(address: Ipv4Addr) -> Result<()> {
    let all = getifaddrs().map_err(|e| Error::sys("list this machine's addresses", e))?;
    let is_ours = |ip: Option<Ipv4Addr>| ip == Some(address);
    let taken = all.into_iter().find(|entry| {
        let storage = entry.address.as_ref().and_then(|a| a.as_sockaddr_in());
        is_ours(storage.map(nix::sys::socket::SockaddrIn::ip))
    });
    match taken {
        Some(entry) => Err(Error::Invalid(format!(
            "{} is an address of {} here, and the kernel would answer for it too: \
             give --address one that nobody has",
            IpAddr::from(address),
            entry.interface_name
        ))),
        None => Ok(()),
    }
}

impl Ring {
    /// Opens the rings of `interface` in the network namespace of the caller.
    ///
    /// # Errors
    /// When the interface does not exist or CAP_NET_RAW is missing.
    pub fn open(interface: &str) -> Result<Self> {
        let what = || format!("open rings on {interface}");
        let index = if_nametoindex(interface).map_err(|e| Error::sys(what(), e))?;
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers. The protocol 0 receives nothing until the socket is bound.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(Error::sys(what(), std::io::Error::last_os_error()));
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let rings = set_up(fd.as_raw_fd(), index).map_err(|e| Error::sys(what(), e))?;
        Ok(Self {
            rings,
            fd,
            interface: interface.into(),
            rx_next: 0,
            tx_next: 0,
            unsent: false,
        })
    }

    /// Tells the kernel to send what is in the ring.
    fn kick(&mut self) -> Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: no data; the ring holds the frames.
        let sent = unsafe { libc::send(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        let error = std::io::Error::last_os_error();
        self.unsent = sent < 0;
        // The kernel keeps a frame for which there was no room in the ring; the next kick sends it.
        if sent >= 0 || is_full(&error) || error.kind() == std::io::ErrorKind::Interrupted {
            return Ok(());
        }
        Err(Error::sys(format!("send on {}", self.interface), error))
    }
}

fn set_up(fd: RawFd, index: u32) -> std::io::Result<Rings> {
    let set = |name, value: libc::c_int| set_option(fd, libc::SOL_PACKET, name, &value);
    set(
        libc::PACKET_VERSION,
        libc::tpacket_versions::TPACKET_V2 as libc::c_int,
    )?;
    set(libc::PACKET_IGNORE_OUTGOING, 1)?;
    for (name, slots) in [
        (libc::PACKET_RX_RING, RX_SLOTS),
        (libc::PACKET_TX_RING, TX_SLOTS),
    ] {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_LEN as u32,
            tp_block_nr: (slots * SLOT_LEN / BLOCK_LEN) as u32,
            tp_frame_size: SLOT_LEN as u32,
            tp_frame_nr: slots as u32,
        };
        set_option(fd, libc::SOL_PACKET, name, &request)?;
    }
    widen_buffers(fd);
    let rings = Rings::map(fd)?;
    let index = index as libc::c_int;
    let promiscuous = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(
        fd,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &promiscuous,
    )?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = std::mem::size_of_val(&address) as libc::socklen_t;
    let pointer: *const libc::sockaddr_ll = &address;
    // SAFETY: the kernel reads `len` bytes of a live address.
    match unsafe { libc::bind(fd, pointer.cast(), len) } {
        0 => Ok(rings),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Link for Ring {
    fn describe(&self) -> String {
        format!("the rings of {}", self.interface)
    }

    fn send_frame(&mut self, frame: &[u8]) -> Result<bool> {
        let slot = self.rings.slot(RX_SLOTS + self.tx_next);
        // Pairs with the kernel's release when it has sent the slot's last frame.
        match slot.status().load(Ordering::Acquire) {
            libc::TP_STATUS_AVAILABLE => {}
            status if status & libc::TP_STATUS_WRONG_FORMAT != 0 => {
                let len = frame.len();
                return Err(Error::Invalid(format!(
                    "{} does not take frames of {len} bytes: its MTU is smaller",
                    self.interface
                )));
            }
            _ => {
                self.kick()?;
                return Ok(false);
            }
        }
        let len = frame.len().min(SLOT_LEN - TX_OFFSET);
        // SAFETY: the slot is ours until the status is stored; `len` ends within it, and the frame
        // does not overlap the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(frame.as_ptr(), slot.0.add(TX_OFFSET), len);
            (*slot.header()).tp_len = len as u32;
        }
        // Pairs with the kernel's read of the status before that of the frame.
        slot.status()
            .store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.tx_next = (self.tx_next + 1) % TX_SLOTS;
        self.kick()?;
        Ok(true)
    }

    fn recv_frame(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        if self.unsent {
            self.kick()?;
        }
        let slot = self.rings.slot(self.rx_next);
        // Pairs with the kernel's release after it has filled the slot.
        if slot.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return Ok(None);
        }
        // SAFETY: the slot is ours until the status is stored below.
        let header = unsafe { slot.header().read() };
        let start = usize::from(header.tp_mac).min(SLOT_LEN);
        let kept = (header.tp_snaplen as usize)
            .min(SLOT_LEN - start)
            .min(buffer.len());
        // SAFETY: `start + kept` ends within the slot, `kept` within the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(slot.0.add(start), buffer.as_mut_ptr(), kept);
        }
        // Pairs with the kernel's read of the status before it fills the slot again.
        slot.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.rx_next = (self.rx_next + 1) % RX_SLOTS;
        Ok(Some(kept))
    }

    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn drops(&mut self) -> Result<Drops> {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = std::mem::size_of_val(&stats) as libc::socklen_t;
        let pointer: *mut libc::tpacket_stats = &mut stats;
        // SAFETY: the kernel writes at most `len` bytes into a live value of that size. It also sets
        // its counters back to 0.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                pointer.cast(),
                &mut len,
            )
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::sys("read the drops of the tester's ring", error));
        }
        Ok(Drops {
            tester: u64::from(stats.tp_drops),
        })
    }
}
