// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: one ping at a time, sent at seeded times, waited for in a blocking `recv`.
//!
//! Send times follow from the seed alone: a slot that passes while an answer is awaited
//! is skipped and counted, and the next slot is kept. So every mechanism is asked at the
//! same times. (It also means that a slow mechanism is asked less often, which flatters
//! it: read `skipped` beside the percentiles.)
//!
//! Not here: the open loop ([`crate::tester::openloop`]).

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::ledger::{Ledger, Reply};
use super::packet::{Ping, HEADER_LEN, PAYLOAD_LEN_MAX};
use super::stats::{Counts, RoundTrips};
use crate::clock::{monotonic_ns, sleep_until_ns, spin_until_ns};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::rng::SplitMix64;
use crate::tester::timeline::Timeline;

/// When the measured part ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// After this many measured pings.
    Pings(u64),
    /// At the first slot this many nanoseconds after the measured part began.
    AfterNs(u64),
}

/// Everything that defines a run of the client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The echo server.
    pub server: SocketAddr,
    /// UDP payload, bytes, [`HEADER_LEN`] to [`PAYLOAD_LEN_MAX`].
    pub payload_len: usize,
    /// Mean distance of two pings, nanoseconds.
    pub period_ns: u64,
    /// The distance is uniform within the mean ± this many percent, 0 to 100.
    pub jitter_percent: u64,
    /// A ping without a reply for this long is lost, nanoseconds.
    pub timeout_ns: u64,
    /// First pings that stay out of the figures (routing cache, neighbours, page faults).
    pub warmup_pings: u64,
    /// End of the measured part.
    pub stop: Stop,
    /// How long late replies and duplicates are still counted after the last ping,
    /// nanoseconds.
    pub linger_ns: u64,
    /// Spin instead of sleeping until the next ping.
    pub spin: bool,
    /// Seed of the send times; also marks the pings of this run.
    pub seed: u64,
    /// Keep every round trip, in order.
    pub keep_series: bool,
}

impl ClientConfig {
    /// The project's standard ping-pong against `server`: 64 bytes, 1 ms ± 50 %, 1 s
    /// time limit, 20 warm-up pings, 3 s.
    pub fn new(server: SocketAddr, seed: u64) -> Self {
        Self {
            server,
            payload_len: 64,
            period_ns: 1_000_000,
            jitter_percent: 50,
            timeout_ns: 1_000_000_000,
            warmup_pings: 20,
            stop: Stop::AfterNs(3_000_000_000),
            linger_ns: 20_000_000,
            spin: false,
            seed,
            keep_series: false,
        }
    }

    fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::Invalid(why));
        if !(HEADER_LEN..=PAYLOAD_LEN_MAX).contains(&self.payload_len) {
            return invalid(format!(
                "payload of {} bytes: it has to be {HEADER_LEN} to {PAYLOAD_LEN_MAX}",
                self.payload_len
            ));
        }
        if self.jitter_percent > 100 {
            return invalid(format!("jitter of {} %: at most 100", self.jitter_percent));
        }
        if self.period_ns == 0 || self.timeout_ns == 0 {
            return invalid("period and time limit have to be above 0".into());
        }
        Ok(())
    }
}

/// What a run of the client found.
#[derive(Debug, Clone)]
pub struct ClientReport {
    /// The account of the warm-up.
    pub warmup: Counts,
    /// The account of the measured part.
    pub measured: Counts,
    /// Round trips of the measured, answered pings.
    pub rtts: RoundTrips,
    /// Slots of the measured part that passed while an answer was awaited.
    pub skipped: u64,
    /// Datagrams that were not of this run.
    pub foreign: u64,
    /// Length of the measured part, nanoseconds.
    pub span_ns: u64,
    /// Every measured round trip in order, nanoseconds, when it was asked for.
    pub series_ns: Option<Vec<u64>>,
    /// The longest round trips over time.
    pub timeline: Timeline,
}

/// Runs a ping-pong on the calling thread, which stays where it was placed.
///
/// `on_warm` is called once, after the warm-up and before the first measured ping: the
/// place to read counters whose differences shall cover the measured part only.
///
/// # Errors
/// A parameter out of its range, a socket that can't be made, or nobody listening at
/// the other end. Lost pings are no error; they are counted.
pub fn run_client(
    config: &ClientConfig,
    on_warm: impl FnOnce() -> Result<()>,
) -> Result<ClientReport> {
    config.check()?;
    let mut client = Client::connect(config)?;
    while !client.ledger.is_warm() && !interrupt::requested() {
        client.slot()?;
    }
    client.skipped = 0;
    on_warm()?;
    let start_ns = monotonic_ns()?;
    client.next_ns = start_ns;
    client.start_ns = start_ns;
    while !client.is_over(start_ns) {
        client.slot()?;
    }
    let span_ns = monotonic_ns()? - start_ns;
    client.linger()?;
    Ok(ClientReport {
        warmup: client.ledger.warmup,
        measured: client.ledger.measured,
        rtts: client.rtts,
        skipped: client.skipped,
        foreign: client.foreign,
        span_ns,
        series_ns: client.series_ns,
        timeline: client.timeline,
    })
}

/// What one `recv` brought.
#[derive(Clone, Copy)]
enum Received {
    Nothing,
    Foreign,
    Reply(u64),
}

struct Client<'a> {
    config: &'a ClientConfig,
    socket: UdpSocket,
    payload: Vec<u8>,
    buffer: Vec<u8>,
    rng: SplitMix64,
    ledger: Ledger,
    rtts: RoundTrips,
    series_ns: Option<Vec<u64>>,
    timeline: Timeline,
    start_ns: u64,
    next_ns: u64,
    skipped: u64,
    foreign: u64,
}

impl<'a> Client<'a> {
    fn connect(config: &'a ClientConfig) -> Result<Self> {
        let any = match config.server {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let what = || format!("open a UDP socket to {}", config.server);
        let socket = UdpSocket::bind(any).map_err(|e| Error::sys(what(), e))?;
        socket
            .connect(config.server)
            .map_err(|e| Error::sys(what(), e))?;
        socket
            .set_read_timeout(Some(Duration::from_nanos(config.timeout_ns)))
            .map_err(|e| Error::sys(what(), e))?;
        Ok(Self {
            config,
            socket,
            payload: vec![0xA5; config.payload_len],
            buffer: vec![0; PAYLOAD_LEN_MAX],
            rng: SplitMix64::new(config.seed),
            ledger: Ledger::new(config.warmup_pings),
            rtts: RoundTrips::new(),
            series_ns: config.keep_series.then(Vec::new),
            timeline: Timeline::new(),
            start_ns: 0,
            next_ns: monotonic_ns()?,
            skipped: 0,
            foreign: 0,
        })
    }

    fn is_over(&self, start_ns: u64) -> bool {
        if interrupt::requested() {
            return true;
        }
        match self.config.stop {
            Stop::Pings(pings) => self.ledger.measured.sent >= pings,
            Stop::AfterNs(span_ns) => self.next_ns >= start_ns + span_ns,
        }
    }

    /// Waits for the slot, plays one ping-pong in it and finds the next slot.
    fn slot(&mut self) -> Result<()> {
        if self.config.spin {
            spin_until_ns(self.next_ns)?;
        } else {
            sleep_until_ns(self.next_ns)?;
        }
        let done_ns = self.ping()?;
        self.next_ns += self.gap_ns();
        while self.next_ns <= done_ns {
            self.next_ns += self.gap_ns();
            self.skipped += 1;
        }
        Ok(())
    }

    fn gap_ns(&mut self) -> u64 {
        let spread_ns = self.config.period_ns / 100 * self.config.jitter_percent;
        let low_ns = (self.config.period_ns - spread_ns).max(1);
        self.rng.in_range(low_ns, self.config.period_ns + spread_ns)
    }

    /// Sends one ping and waits for its fate; returns when that was known.
    fn ping(&mut self) -> Result<u64> {
        let measured = self.ledger.is_warm();
        let seq = self.ledger.send();
        Ping {
            seed: self.config.seed,
            seq,
        }
        .write(&mut self.payload);
        let sent_ns = monotonic_ns()?;
        self.socket
            .send(&self.payload)
            .map_err(|e| self.socket_error("send to", e))?;
        let deadline_ns = sent_ns + self.config.timeout_ns;
        let mut limit_cut = false;
        let done_ns = loop {
            let (answer, now_ns) = self.receive()?;
            if now_ns >= deadline_ns {
                // Given up first, so that a reply which came after the limit is lost and
                // late, also when the socket's own, coarser timer was slow to say so.
                self.ledger.give_up();
                self.book(answer);
                break now_ns;
            }
            if self.book(answer) == Some(Reply::Awaited) {
                if measured {
                    self.record(sent_ns, now_ns - sent_ns);
                }
                break now_ns;
            }
            // Something else came: the kernel starts its limit anew with every `recv`.
            self.limit_recv(deadline_ns - now_ns)?;
            limit_cut = true;
        };
        if limit_cut {
            self.limit_recv(self.config.timeout_ns)?;
        }
        Ok(done_ns)
    }

    fn record(&mut self, sent_ns: u64, rtt_ns: u64) {
        self.rtts.record(rtt_ns);
        self.timeline
            .record(sent_ns.saturating_sub(self.start_ns), rtt_ns);
        if let Some(series_ns) = &mut self.series_ns {
            series_ns.push(rtt_ns);
        }
    }

    /// One blocking `recv`: what came, and when.
    fn receive(&mut self) -> Result<(Received, u64)> {
        let received = self.socket.recv(&mut self.buffer);
        let now_ns = monotonic_ns()?;
        let len = match received {
            Ok(len) => len,
            Err(e) if is_timeout(&e) => return Ok((Received::Nothing, now_ns)),
            Err(e) => return Err(self.socket_error("receive from", e)),
        };
        let received = match Ping::read(&self.buffer[..len]) {
            Some(ping) if ping.seed == self.config.seed => Received::Reply(ping.seq),
            _ => Received::Foreign,
        };
        Ok((received, now_ns))
    }

    fn book(&mut self, received: Received) -> Option<Reply> {
        let reply = match received {
            Received::Nothing => return None,
            Received::Foreign => Reply::Unknown,
            Received::Reply(seq) => self.ledger.reply(seq),
        };
        if reply == Reply::Unknown {
            self.foreign += 1;
        }
        Some(reply)
    }

    /// Counts what still comes after the last ping.
    fn linger(&mut self) -> Result<()> {
        let deadline_ns = monotonic_ns()? + self.config.linger_ns;
        loop {
            let left_ns = deadline_ns.saturating_sub(monotonic_ns()?);
            if left_ns == 0 {
                return Ok(());
            }
            self.limit_recv(left_ns)?;
            let (received, _) = self.receive()?;
            self.book(received);
        }
    }

    fn limit_recv(&self, limit_ns: u64) -> Result<()> {
        // The kernel counts this limit in microseconds, and 0 would mean "forever".
        let limit = Duration::from_nanos(limit_ns.max(1_000));
        self.socket
            .set_read_timeout(Some(limit))
            .map_err(|e| Error::sys("limit the wait for a reply", e))
    }

    fn socket_error(&self, verb: &str, source: std::io::Error) -> Error {
        let addr = self.config.server;
        if source.kind() == ErrorKind::ConnectionRefused {
            return Error::NobodyListens { addr };
        }
        Error::sys(format!("{verb} {addr}"), source)
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
