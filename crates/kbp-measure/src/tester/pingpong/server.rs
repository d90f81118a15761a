// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The echo server: sends every ping and every frame of the open loop back to where it came from,
//! unchanged.
//!
//! It echoes nothing else, so that two of them can't keep each other busy.
//! Not here: time stamps; the server's clock is nobody's business.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::packet::{Ping, PAYLOAD_LEN_MAX};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::tester::backend::widen_buffers;
use crate::tester::openloop::Probe;
use crate::witness::Counted;

/// Wake-ups that are sent to a server which shall stop, before it is given up.
const WAKE_ATTEMPTS_MAX: u32 = 40;
/// How long one of them may take to arrive, and how often the end is looked for meanwhile: a comparison stops a server
/// for every row.
const WAKE_LIMIT: Duration = Duration::from_millis(50);
const WAKE_LOOK: Duration = Duration::from_micros(200);

/// What a server did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EchoReport {
    /// Pings and frames sent back.
    pub echoed: u64,
    /// Datagrams that were neither; they are not answered.
    pub foreign: u64,
}

/// An echo server on a thread of its own.
#[derive(Debug)]
pub struct EchoServer {
    addr: SocketAddr,
    counted: Counted,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<EchoReport>>,
}

impl EchoServer {
    /// Binds `addr` in the namespace of `place` and serves it there.
    ///
    /// Returns when the socket is bound, so a client may start at once.
    ///
    /// # Errors
    /// When the address can't be bound or the thread can't be placed.
    pub fn start(addr: SocketAddr, place: Place) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (bound_tx, bound_rx) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("kbp-echo".into())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    let socket = place.apply().and_then(|()| bind(addr));
                    let local = socket.as_ref().ok().and_then(|s| s.local_addr().ok());
                    // The receiver only goes away after it has heard this.
                    let _ = bound_tx.send(local.map(|addr| (addr, Counted::this_thread())));
                    echo_until(&socket?, &stop)
                }
            })
            .map_err(|e| Error::sys("start the echo server's thread", e))?;
        match bound_rx.recv() {
            Ok(Some((addr, counted))) => Ok(Self {
                addr,
                counted,
                stop,
                thread,
            }),
            _ => Err(match thread.join() {
                Ok(Err(error)) => error,
                _ => Error::Panicked("echo server"),
            }),
        }
    }

    /// The address that is served; its port is the real one when 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its thread, for who counts CPU time.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Stops the server and waits for its end.
    ///
    /// The server sleeps in a blocking `recv` without a time limit, as an application
    /// does; an empty datagram to its own address wakes it. Call this in the network
    /// namespace that the server was started in.
    ///
    /// # Errors
    /// What ended the server early, if something did, or that it does not wake up.
    pub fn stop(self) -> Result<EchoReport> {
        // Pairs with the load in `echo_until`; the datagram comes after the store.
        self.stop.store(true, Ordering::Release);
        for _ in 0..WAKE_ATTEMPTS_MAX {
            wake(self.addr);
            let since = Instant::now();
            while since.elapsed() < WAKE_LIMIT {
                if self.thread.is_finished() {
                    return self.join();
                }
                std::thread::sleep(WAKE_LOOK);
            }
        }
        Err(Error::Invalid(format!(
            "the echo server on {} does not wake up",
            self.addr
        )))
    }

    /// Waits until the server ends by itself, which it only does on an error.
    ///
    /// # Errors
    /// What ended the server.
    pub fn join(self) -> Result<EchoReport> {
        self.thread
            .join()
            .map_err(|_| Error::Panicked("echo server"))?
    }
}

/// With room for what the path delivered faster than it is echoed: a loss behind the path is none of the path.
fn bind(addr: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(addr).map_err(|e| Error::sys(format!("bind UDP {addr}"), e))?;
    widen_buffers(socket.as_raw_fd());
    Ok(socket)
}

/// Sends an empty datagram; whether it arrives is seen by the thread's end.
fn wake(addr: SocketAddr) {
    let mut to = addr;
    let (any, loopback): (&str, std::net::IpAddr) = match addr {
        SocketAddr::V4(_) => ("0.0.0.0:0", std::net::Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(_) => ("[::]:0", std::net::Ipv6Addr::LOCALHOST.into()),
    };
    if addr.ip().is_unspecified() {
        to.set_ip(loopback);
    }
    if let Ok(socket) = UdpSocket::bind(any) {
        let _ = socket.send_to(&[], to);
    }
}

fn echo_until(socket: &UdpSocket, stop: &AtomicBool) -> Result<EchoReport> {
    let mut report = EchoReport::default();
    let mut buffer = [0u8; PAYLOAD_LEN_MAX];
    loop {
        let (len, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(Error::sys("receive a ping", e)),
        };
        // Pairs with the store in `EchoServer::stop`. Only the empty datagram ends it, so
        // that what was sent before is served before.
        if len == 0 && stop.load(Ordering::Acquire) {
            return Ok(report);
        }
        let payload = &buffer[..len];
        if Ping::read(payload).is_none() && Probe::read(payload).is_none() {
            report.foreign += 1;
            continue;
        }
        match socket.send_to(payload, from) {
            Ok(_) => report.echoed += 1,
            // The client has gone: its loss, not ours.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(Error::sys(format!("send an echo to {from}"), e)),
        }
    }
}
