// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The senders and receivers of the streams.
//!
//! Not here: how much is due when ([`super::pace`]).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::pace::{Pace, TICK_NS};
use super::{add, StreamConfig, Tally};
use crate::clock::{monotonic_ns, sleep_until_ns};
use crate::error::{Error, Result};
use crate::load::worker::{Stop, Workers};

/// How long a thread waits in the kernel before it looks whether it shall end.
const WAIT: Duration = Duration::from_millis(20);
/// How long the connection of the TCP stream may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// What the TCP sender writes at once, bytes.
const TCP_CHUNK_BYTES: usize = 8_192;
const TCP_READ_BYTES: usize = 65_536;

/// Starts the receiver of the UDP stream, then its sender.
///
/// # Errors
/// When a thread can't be placed or a socket can't be bound.
pub(super) fn start_udp(
    config: &StreamConfig,
    tally: &Tally,
    senders: &mut Workers,
    receivers: &mut Workers,
) -> Result<()> {
    let to = SocketAddr::new(config.server.addr, config.port);
    let from = SocketAddr::new(config.tester.addr, 0);
    let (bps, bytes) = (config.udp_bps, config.udp_payload_bytes);
    let counted = tally.clone();
    receivers.spawn(
        "kbp-udp-sink",
        config.server.place(),
        move || bind_udp(to),
        move |socket, stop| {
            // An empty datagram of a stranger is no end, as it would be on a connection.
            let receive = |buffer: &mut [u8]| match socket.recv(buffer) {
                Ok(0) => Err(ErrorKind::WouldBlock.into()),
                received => received,
            };
            drain(stop, &counted, bytes, receive)
        },
    )?;
    let counted = tally.clone();
    senders.spawn(
        "kbp-udp-source",
        config.tester.place(),
        move || connect_udp(from, to),
        move |socket, stop| {
            let chunk = vec![0x5a; bytes];
            paced(bps, bytes, &counted, stop, |_| sent(socket.send(&chunk)))
        },
    )
}

/// Starts the receiver of the TCP stream, then its sender, which is connected when this returns.
///
/// # Errors
/// When a thread can't be placed, or the connection can't be made.
pub(super) fn start_tcp(
    config: &StreamConfig,
    tally: &Tally,
    senders: &mut Workers,
    receivers: &mut Workers,
) -> Result<()> {
    let to = SocketAddr::new(config.server.addr, config.port);
    let bps = config.tcp_bps;
    let counted = tally.clone();
    receivers.spawn(
        "kbp-tcp-sink",
        config.server.place(),
        move || TcpListener::bind(to).map_err(|e| cannot("receive the TCP stream at", to, e)),
        move |listener, stop| tcp_sink(&listener, stop, &counted),
    )?;
    let counted = tally.clone();
    senders.spawn(
        "kbp-tcp-source",
        config.tester.place(),
        move || connect_tcp(to),
        move |mut socket, stop| {
            let chunk = [0x5a; TCP_CHUNK_BYTES];
            paced(bps, TCP_CHUNK_BYTES, &counted, stop, |stop| {
                write_chunk(&mut socket, &chunk, stop)
            })
        },
    )
}

fn cannot(what: &str, addr: SocketAddr, source: std::io::Error) -> Error {
    Error::sys(format!("{what} {addr}"), source)
}

fn bind_udp(addr: SocketAddr) -> Result<UdpSocket> {
    let ready = UdpSocket::bind(addr).and_then(|socket| {
        socket.set_read_timeout(Some(WAIT))?;
        Ok(socket)
    });
    ready.map_err(|e| cannot("receive the UDP stream at", addr, e))
}

fn connect_udp(from: SocketAddr, to: SocketAddr) -> Result<UdpSocket> {
    let ready = UdpSocket::bind(from).and_then(|socket| {
        socket.set_write_timeout(Some(WAIT))?;
        socket.connect(to)?;
        Ok(socket)
    });
    ready.map_err(|e| cannot(&format!("send the UDP stream from {from} to"), to, e))
}

fn connect_tcp(to: SocketAddr) -> Result<TcpStream> {
    let ready = TcpStream::connect_timeout(&to, CONNECT_LIMIT).and_then(|socket| {
        socket.set_write_timeout(Some(WAIT))?;
        Ok(socket)
    });
    ready.map_err(|e| cannot("send the TCP stream to", to, e))
}

fn tcp_sink(listener: &TcpListener, stop: &Stop, tally: &Tally) -> Result<()> {
    let Some(mut socket) = accept(listener, stop)? else {
        return Ok(());
    };
    socket
        .set_read_timeout(Some(WAIT))
        .map_err(|e| Error::sys("receive the TCP stream", e))?;
    drain(stop, tally, TCP_READ_BYTES, |buffer| socket.read(buffer))
}

/// Waits for the one connection; `None` when the load ends before it comes.
fn accept(listener: &TcpListener, stop: &Stop) -> Result<Option<TcpStream>> {
    let failed = |e| Error::sys("accept the TCP stream", e);
    listener.set_nonblocking(true).map_err(failed)?;
    while !stop.requested() {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).map_err(failed)?;
                return Ok(Some(socket));
            }
            Err(error) if is_wait(&error) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(None)
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Takes what comes until the load ends or, for a connection, the sender is gone.
fn drain(
    stop: &Stop,
    tally: &Tally,
    buffer_bytes: usize,
    mut receive: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
) -> Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    while !stop.requested() {
        match receive(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => add(&tally.delivered, bytes as u64),
            Err(error) if is_wait(&error) => {}
            Err(error) => return Err(Error::sys("receive a stream", error)),
        }
    }
    Ok(())
}

/// Sends chunks at a constant rate until the load ends. `send` says whether the kernel took the chunk.
fn paced(
    bps: u64,
    chunk_bytes: usize,
    tally: &Tally,
    stop: &Stop,
    mut send: impl FnMut(&Stop) -> Result<bool>,
) -> Result<()> {
    let mut tick_ns = monotonic_ns()?;
    let mut pace = Pace::new(tick_ns, bps, chunk_bytes);
    while !stop.requested() {
        let due = pace.due(monotonic_ns()?);
        add(&tally.skipped, due.skip * chunk_bytes as u64);
        for _ in 0..due.send {
            if !send(stop)? {
                add(&tally.skipped, chunk_bytes as u64);
            }
        }
        // After a pause the ticks go on from now, not from then.
        tick_ns = (tick_ns + TICK_NS).max(monotonic_ns()?);
        sleep_until_ns(tick_ns)?;
    }
    Ok(())
}

/// Whether the kernel took a datagram; a full queue is no failure of the load.
fn sent(result: std::io::Result<usize>) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if is_wait(&error) || error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
        Err(error) => Err(Error::sys("send the UDP stream", error)),
    }
}

/// Writes a whole chunk, however long the receiver takes. Whether it was written before the load ended.
fn write_chunk(socket: &mut TcpStream, chunk: &[u8], stop: &Stop) -> Result<bool> {
    let mut rest = chunk;
    while !rest.is_empty() {
        match socket.write(rest) {
            Ok(bytes) => rest = &rest[bytes..],
            Err(error) if is_wait(&error) && stop.requested() => return Ok(false),
            Err(error) if is_wait(&error) => {}
            Err(error) => return Err(Error::sys("send the TCP stream", error)),
        }
    }
    Ok(true)
}
