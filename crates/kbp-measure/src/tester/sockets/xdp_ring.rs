// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory and the four rings that an AF_XDP socket shares with the kernel.
//!
//! Written here because the crates for it bring a C library or a licence that is not ours; the
//! structures are libc's. A ring has one producer and one consumer, each with an index that
//! only it writes. Not here: what goes into the rings ([`super::xdp`]).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{xdp_desc, xdp_ring_offset};

use super::sys::{self, Map};
use crate::error::{Error, Result};

/// One packet's place in the shared memory, bytes.
pub const CHUNK_LEN: usize = 2_048;
/// Chunks of a socket, and entries of each of its rings.
pub const CHUNKS: u32 = 4_096;

/// A ring of `T`, of which we are the producer or the consumer.
#[derive(Debug)]
pub struct Ring<T> {
    map: Map,
    offsets: xdp_ring_offset,
    /// Our own index, which only we change.
    ours: u32,
    entries: std::marker::PhantomData<T>,
}

/// What a ring holds: plain integers.
pub trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for xdp_desc {}

impl<T: Entry> Ring<T> {
    fn index(&self, offset: u64) -> &AtomicU32 {
        let at = self.map.at(offset as usize, size_of::<u32>()).cast();
        // SAFETY: inside the mapping, aligned by the kernel, and both sides access it whole.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }
    }

    fn entry(&self, index: u32) -> std::ptr::NonNull<T> {
        let slot = (index % CHUNKS) as usize;
        let offset = self.offsets.desc as usize + slot * size_of::<T>();
        self.map.at(offset, size_of::<T>()).cast()
    }

    /// As the producer: adds an entry, which the other side sees after [`Ring::publish`]. The caller
    /// has no more entries than the ring, so there is room.
    pub fn push(&mut self, value: T) {
        // SAFETY: the entry is inside the mapping, and the consumer does not read past the index.
        unsafe { self.entry(self.ours).write(value) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// As the producer: shows the other side what was pushed.
    pub fn publish(&self) {
        // Pairs with the kernel's acquire load: the entries are there before the index.
        let producer = self.index(self.offsets.producer);
        producer.store(self.ours, Ordering::Release);
    }

    /// As the producer: entries that the other side has not taken yet.
    pub fn pending(&self) -> u32 {
        let consumer = self.index(self.offsets.consumer);
        self.ours.wrapping_sub(consumer.load(Ordering::Acquire))
    }

    /// As the consumer: the next entry, if there is one.
    pub fn pop(&mut self) -> Option<T> {
        // Pairs with the kernel's release store: with the index come the entries.
        let producer = self.index(self.offsets.producer).load(Ordering::Acquire);
        if producer == self.ours {
            return None;
        }
        // SAFETY: the entry is inside the mapping, and the producer does not write it until we
        // release it.
        let value = unsafe { self.entry(self.ours).read() };
        self.ours = self.ours.wrapping_add(1);
        Some(value)
    }

    /// As the consumer: gives the entries that were popped back.
    pub fn release(&self) {
        // Pairs with the kernel's acquire load: we have read before it may write.
        let consumer = self.index(self.offsets.consumer);
        consumer.store(self.ours, Ordering::Release);
    }
}

/// An AF_XDP socket in copy mode with all its rings.
#[derive(Debug)]
pub struct Socket {
    /// The socket. It goes first, so that the kernel lets go of the memory behind it.
    pub fd: OwnedFd,
    /// Chunks for the kernel to fill.
    pub fill: Ring<u64>,
    /// Chunks that the kernel has sent.
    pub completion: Ring<u64>,
    /// Frames that came.
    pub receive: Ring<xdp_desc>,
    /// Frames to send.
    pub transmit: Ring<xdp_desc>,
    memory: Map,
}

impl Socket {
    /// Makes the socket, its memory and its rings. It is not bound yet.
    ///
    /// # Errors
    /// When the kernel has no AF_XDP, or refuses a step.
    pub fn new() -> Result<Self> {
        let failed = |what: &'static str| move |e| Error::sys(what, e);
        let fd = sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(failed(
            "open an AF_XDP socket (this needs a kernel with CONFIG_XDP_SOCKETS and CAP_NET_RAW)",
        ))?;
        let memory_len = CHUNKS as usize * CHUNK_LEN;
        let memory =
            Map::anonymous(memory_len).map_err(failed("get memory for an AF_XDP socket"))?;
        let registration = libc::xdp_umem_reg {
            addr: memory.at(0, memory_len).as_ptr() as u64,
            len: memory_len as u64,
            chunk_size: CHUNK_LEN as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        sys::set_option(&fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
            .map_err(failed("register the memory of an AF_XDP socket"))?;
        for which in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            sys::set_option(&fd, libc::SOL_XDP, which, &CHUNKS)
                .map_err(failed("make a ring of an AF_XDP socket"))?;
        }
        let at: libc::xdp_mmap_offsets = sys::option(&fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
            .map_err(failed("ask for the rings of an AF_XDP socket"))?;
        Ok(Self {
            fill: ring(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, at.fr)?,
            completion: ring(&fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, at.cr)?,
            receive: ring(&fd, libc::XDP_PGOFF_RX_RING as u64, at.rx)?,
            transmit: ring(&fd, libc::XDP_PGOFF_TX_RING as u64, at.tx)?,
            fd,
            memory,
        })
    }

    /// Binds to queue 0 of an interface.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn bind(&self, ifindex: u32) -> std::io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        sys::bind(&self.fd, &address)
    }

    /// What stands at an address of the shared memory; at most the rest of its chunk.
    pub fn bytes(&self, address: u64, len: usize) -> &[u8] {
        let (at, len) = self.inside(address, len);
        // SAFETY: `at` checks that it is inside; the chunk is ours until it is pushed.
        unsafe { std::slice::from_raw_parts(self.memory.at(at, len).as_ptr(), len) }
    }

    /// The same, to be written.
    pub fn bytes_mut(&mut self, address: u64, len: usize) -> &mut [u8] {
        let (at, len) = self.inside(address, len);
        // SAFETY: as in `bytes`; `&mut self` keeps others of us away.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(at, len).as_ptr(), len) }
    }

    /// Keeps an address that the kernel named, and a length, inside its chunk.
    fn inside(&self, address: u64, len: usize) -> (usize, usize) {
        let at = address as usize % (CHUNKS as usize * CHUNK_LEN);
        (at, len.min(CHUNK_LEN - at % CHUNK_LEN))
    }
}

fn ring<T: Entry>(fd: &OwnedFd, page_offset: u64, offsets: xdp_ring_offset) -> Result<Ring<T>> {
    let len = offsets.desc as usize + CHUNKS as usize * size_of::<T>();
    let map = Map::of(fd.as_raw_fd(), page_offset, len)
        .map_err(|e| Error::sys("map a ring of an AF_XDP socket", e))?;
    Ok(Ring {
        map,
        offsets,
        ours: 0,
        entries: std::marker::PhantomData,
    })
}
