// SPDX-License-Identifier: Apache-2.0 OR MIT
//! AF_XDP in copy mode: frames go to the driver and come from the XDP hook without the stack,
//! copied once between socket buffers and memory that the program shares with the kernel.
//!
//! Sending is the same with both hooks; what differs is where the receiver's frames leave the
//! ordinary way. Not here: zero copy, which needs a network card whose driver has it, and
//! sockets on more than one queue.

use std::io;

use super::bpf::{self, Hook};
use super::frame::{self, Account, Stamp, ETHERNET_LEN};
use super::sys;
use super::xdp_ring::{Socket, CHUNKS, CHUNK_LEN};
use super::{link, Receive, ReceiveAt, Send, SendTo, Taken, WAIT};
use crate::clock::{monotonic_ns, sleep_until_ns};
use crate::error::{Error, Result};
use crate::interrupt;

/// How long the kernel may take to let go of a socket that was closed, nanoseconds.
const RELEASE_NS_MAX: u64 = 3_000_000_000;
/// How often it is asked, nanoseconds.
const RELEASE_STEP_NS: u64 = 5_000_000;

/// A sender on queue 0.
pub fn sender(to: &SendTo) -> Result<Box<dyn Send>> {
    let mut socket = Socket::new()?;
    bind(&socket, &to.dev)?;
    let template = frame::below_ip(link::mac(&to.dev)?, to.mac, to.frame_len);
    let free: Vec<u64> = (0..CHUNKS).map(|n| n as u64 * CHUNK_LEN as u64).collect();
    for &address in &free {
        let chunk = socket.bytes_mut(address, template.len());
        chunk.copy_from_slice(&template);
    }
    Ok(Box::new(Sender {
        socket,
        free,
        run: to.run,
        frame_len: to.frame_len,
    }))
}

/// A receiver on queue 0, with the program that brings it the frames.
pub fn receiver(at: &ReceiveAt, hook: Hook) -> Result<Box<dyn Receive>> {
    let queues = link::receive_queues(&at.dev)?;
    if queues != 1 {
        return Err(Error::Invalid(format!(
            "{0} has {queues} receive queues, and frames of any but the first would pass by an \
             AF_XDP socket: leave it one with `ethtool -L {0} rx 1` (or `combined 1`)",
            at.dev
        )));
    }
    let mut socket = Socket::new()?;
    for n in 0..CHUNKS {
        socket.fill.push(n as u64 * CHUNK_LEN as u64);
    }
    socket.fill.publish();
    if let Some(us) = at.busy_poll_us {
        sys::busy_poll(&socket.fd, us).map_err(|e| Error::sys("have a socket busy-poll", e))?;
    }
    bind(&socket, &at.dev)?;
    let program = bpf::attach(&at.dev, hook, &socket.fd)?;
    Ok(Box::new(Receiver {
        _program: program,
        socket,
        busy_polls: at.busy_poll_us.is_some(),
    }))
}

/// Binds, and waits a while for a queue that is in use: the kernel lets go of a socket that was
/// closed only when its last packet is gone.
fn bind(socket: &Socket, dev: &str) -> Result<()> {
    let ifindex = link::index(dev)?;
    let deadline_ns = monotonic_ns()? + RELEASE_NS_MAX;
    loop {
        let Err(error) = socket.bind(ifindex) else {
            return Ok(());
        };
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(Error::sys(format!("bind an AF_XDP socket to {dev}"), error));
        }
        let now_ns = monotonic_ns()?;
        if now_ns > deadline_ns || interrupt::requested() {
            return Err(Error::Invalid(format!(
                "queue 0 of {dev} has an AF_XDP socket of somebody else: end that program first"
            )));
        }
        sleep_until_ns(now_ns + RELEASE_STEP_NS)?;
    }
}

struct Sender {
    socket: Socket,
    /// Chunks that are neither in a ring nor in a packet.
    free: Vec<u64>,
    run: u32,
    frame_len: usize,
}

impl Sender {
    fn reclaim(&mut self) {
        while let Some(address) = self.socket.completion.pop() {
            self.free.push(address);
        }
        self.socket.completion.release();
    }

    /// A chunk to send from, or `None` when every one stays on its way for too long.
    fn chunk(&mut self, deadline_ns: u64) -> Result<Option<u64>> {
        loop {
            if let Some(address) = self.free.pop() {
                return Ok(Some(address));
            }
            self.reclaim();
            if self.free.is_empty() && monotonic_ns()? > deadline_ns {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    /// Kicks until the kernel has taken all that was published, and says how often it dropped one.
    fn hand_over(&mut self, deadline_ns: u64) -> Result<u64> {
        let mut dropped = 0;
        while self.socket.transmit.pending() > 0 {
            match sys::kick(&self.socket.fd) {
                Ok(()) => {}
                // The device's queue was full: this one packet is gone.
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => dropped += 1,
                // More than the kernel takes at once, or buffers that are all on their way.
                Err(e) if sys::is_full(&e) || e.kind() == io::ErrorKind::WouldBlock => {
                    self.reclaim();
                }
                Err(e) => return Err(Error::sys("send from an AF_XDP socket", e)),
            }
            if monotonic_ns()? > deadline_ns {
                break;
            }
        }
        Ok(dropped)
    }
}

impl Send for Sender {
    fn burst(&mut self, first_seq: u64, packets: u32) -> Result<Taken> {
        let deadline_ns = monotonic_ns()? + WAIT.as_nanos() as u64;
        self.reclaim();
        let mut pushed = 0;
        for seq in first_seq..first_seq + u64::from(packets) {
            let Some(address) = self.chunk(deadline_ns)? else {
                break;
            };
            let (len, run) = (self.frame_len, self.run);
            let frame = self.socket.bytes_mut(address, len);
            Stamp { run, seq }.write(&mut frame[ETHERNET_LEN..]);
            self.socket.transmit.push(libc::xdp_desc {
                addr: address,
                len: len as u32,
                options: 0,
            });
            pushed += 1;
        }
        self.socket.transmit.publish();
        let refused = self.hand_over(deadline_ns)?;
        // What the kernel could not take in time stays in the ring and goes with the next burst.
        Ok(Taken {
            sent: pushed - refused.min(pushed),
            refused,
        })
    }
}

struct Receiver {
    // The program goes before the socket that it points to.
    _program: bpf::Attached,
    socket: Socket,
    busy_polls: bool,
}

impl Receiver {
    /// Waits at most [`WAIT`] for a frame; one that busy-polls asks the kernel for it all the time.
    fn first(&mut self) -> Result<Option<libc::xdp_desc>> {
        let failed = |e| Error::sys("wait for frames of an AF_XDP socket", e);
        if !self.busy_polls {
            sys::wait(&self.socket.fd, libc::POLLIN, WAIT).map_err(failed)?;
            return Ok(self.socket.receive.pop());
        }
        let end_ns = monotonic_ns()? + WAIT.as_nanos() as u64;
        loop {
            sys::look(&self.socket.fd).map_err(failed)?;
            let frame = self.socket.receive.pop();
            if frame.is_some() || monotonic_ns()? > end_ns {
                return Ok(frame);
            }
        }
    }
}

impl Receive for Receiver {
    fn take(&mut self, account: &mut Account) -> Result<()> {
        let mut first = self.socket.receive.pop();
        if first.is_none() {
            first = self.first()?;
        }
        let mut next = first;
        // At most one round, so that the caller can look whether the run is over.
        for _ in 0..CHUNKS {
            let Some(frame) = next else { break };
            account.enter_frame(self.socket.bytes(frame.addr, frame.len as usize));
            let chunk = frame.addr - frame.addr % CHUNK_LEN as u64;
            self.socket.fill.push(chunk);
            next = self.socket.receive.pop();
        }
        self.socket.receive.release();
        self.socket.fill.publish();
        Ok(())
    }

    fn drops(&mut self) -> Result<u64> {
        let counts: libc::xdp_statistics =
            sys::option(&self.socket.fd, libc::SOL_XDP, libc::XDP_STATISTICS)
                .map_err(|e| Error::sys("read the drops of an AF_XDP socket", e))?;
        Ok(counts.rx_dropped + counts.rx_ring_full)
    }
}
