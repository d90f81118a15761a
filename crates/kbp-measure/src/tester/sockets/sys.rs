// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The few system calls of packet sockets that the standard library has no words for.
//!
//! Each is a thin, safe cover of one call; not here: what they are used for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

/// Makes a socket that is closed on exec.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; the descriptor that comes back belongs to nobody else.
    unsafe {
        match libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Sets a socket option to a plain value.
pub fn set_option<T: Copy>(fd: &impl AsRawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads `len` bytes of `value`, which is as long and lives long enough.
    zero_or_error(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) })
}

// Of asm-generic/socket.h.
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
/// What the kernel takes from a device at once for a socket that busy-polls.
const BUSY_POLL_BUDGET: i32 = 64;

/// Has a socket poll its device itself for this long when it waits, and be preferred to interrupts.
pub fn busy_poll(fd: &impl AsRawFd, us: u32) -> io::Result<()> {
    let level = libc::SOL_SOCKET;
    set_option(fd, level, SO_PREFER_BUSY_POLL, &1i32)?;
    set_option(fd, level, libc::SO_BUSY_POLL, &us)?;
    set_option(fd, level, SO_BUSY_POLL_BUDGET, &BUSY_POLL_BUDGET)
}

/// Has the kernel look for frames of an AF_XDP socket that busy-polls, without waiting.
pub fn look(fd: &impl AsRawFd) -> io::Result<()> {
    let (flags, none) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
    // SAFETY: no memory is passed.
    let result =
        unsafe { libc::recvfrom(fd.as_raw_fd(), none, 0, flags, none.cast(), none.cast()) };
    match result {
        ..=-1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reads a socket option into a value made of integers; the part that the kernel does not know
/// stays 0.
pub fn option<T: Integers>(fd: &impl AsRawFd, level: i32, name: i32) -> io::Result<T> {
    // SAFETY: `Integers` promises that all bytes 0 are a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    let target = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes to the value and the number to `len`; any bytes
    // are a value, as `Integers` promises.
    zero_or_error(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, target, &mut len) })?;
    Ok(value)
}

/// Values that any bytes make.
///
/// # Safety
/// The type consists of integers only.
pub unsafe trait Integers: Copy {}
// SAFETY: integers.
unsafe impl<const N: usize> Integers for [u32; N] {}
// SAFETY: integers.
unsafe impl Integers for libc::xdp_mmap_offsets {}
// SAFETY: integers.
unsafe impl Integers for libc::xdp_statistics {}

/// Binds a socket to an address in the kernel's own form.
pub fn bind<T: Copy>(fd: &impl AsRawFd, address: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let address = std::ptr::from_ref(address).cast();
    // SAFETY: the kernel reads `len` bytes of the address, which is as long.
    zero_or_error(unsafe { libc::bind(fd.as_raw_fd(), address, len) })
}

/// Binds a packet socket to an interface; with protocol 0 it receives nothing.
pub fn bind_packet(fd: &impl AsRawFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: the structure consists of integers, for which 0 is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as i32;
    bind(fd, &address)
}

/// Tells the kernel to look at what was written to a mapped ring, without waiting.
pub fn kick(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let result = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null(),
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits until one of `events` (`POLLIN`, `POLLOUT`) is there; says whether it came in time.
pub fn wait(fd: &impl AsRawFd, events: i16, limit: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry is passed and lives until the call returns.
    match unsafe { libc::poll(&mut entry, 1, limit.as_millis() as i32) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        _ => Ok(entry.revents & events != 0),
    }
}

/// Whether an error says that there was no room: a queue or buffer was full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EBUSY))
}

/// Whether an error says that a wait ended.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn zero_or_error(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory that is shared with the kernel, or that it fills; unmapped when it is dropped.
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    len: usize,
}

impl Map {
    /// Maps a part of what stands behind a descriptor.
    pub fn of(fd: RawFd, offset: u64, len: usize) -> io::Result<Self> {
        Self::mmap(libc::MAP_SHARED | libc::MAP_POPULATE, fd, offset, len)
    }

    /// Maps fresh, empty memory.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::mmap(flags, -1, 0, len)
    }

    fn mmap(flags: i32, fd: RawFd, offset: u64, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no memory of ours is replaced.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                fd,
                offset as libc::off_t,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Address of the byte at `offset`; `bytes` from there on are inside.
    ///
    /// # Panics
    /// When they are not, which would be a bug of the caller.
    pub fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset <= self.len && bytes <= self.len - offset);
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nobody borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
