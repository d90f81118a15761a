// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bulk streams, UDP and TCP, over a second pair of interfaces; the interrupts of the receiver's card share the poller's
//! CPU: the NetStream of paper 003, section 2. Other than there (iperf at the highest speed), the rates are set, so that
//! rows can be compared.
//!
//! The receivers stand for the programs on the measured machine, the senders for other machines.
//! Not here: the interfaces and their addresses; who runs the load sets them up.

mod ends;
mod irqs;
mod pace;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use self::irqs::Irqs;
use super::worker::Workers;
use super::{check_cpu, Count, Entry, Load, LoadConfig, Work};
use crate::error::Result;
use crate::place::{run_at, Place};

pub(super) const ENTRY: Entry = Entry {
    load: Load::Stream,
    name: "stream",
    about: "bulk UDP and TCP streams over a second pair of network cards",
    check,
    words: |config| match &config.stream {
        Some(stream) => stream.words(),
        None => "No streams: there is no second pair of interfaces.".into(),
    },
    start: |config| Ok(Box::new(Stream::start(config.stream.as_ref())?)),
};

/// Largest payload of a datagram that fits into a frame of 1,500 bytes.
pub const UDP_PAYLOAD_BYTES: usize = 1_472;

/// One end of the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    /// Its interface.
    pub ifname: String,
    /// Network namespace of the interface; `None` for the caller's own.
    pub netns: Option<String>,
    /// Address of the interface.
    pub addr: IpAddr,
    /// CPU of the threads of this end.
    pub cpu: u32,
}

impl StreamEnd {
    fn place(&self) -> Place {
        Place {
            cpu: Some(self.cpu),
            netns: self.netns.clone(),
            ..Place::default()
        }
    }

    /// In the namespace of the interface, on whatever CPU.
    fn namespace(&self) -> Place {
        Place {
            cpu: None,
            ..self.place()
        }
    }
}

/// The streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Who receives: the measured machine.
    pub server: StreamEnd,
    /// Who sends.
    pub tester: StreamEnd,
    /// CPU of the server's interrupts; those of the tester go to the tester's CPU. `None` leaves all of them
    /// where they are, for interfaces without interrupts.
    pub irq_cpu: Option<u32>,
    /// Port of both receivers.
    pub port: u16,
    /// Rate of the UDP payload, bits a second; 0 leaves that stream out.
    pub udp_bps: u64,
    /// Payload of a datagram, bytes.
    pub udp_payload_bytes: usize,
    /// Highest rate of the TCP payload, bits a second; 0 leaves that stream out.
    pub tcp_bps: u64,
}

impl StreamConfig {
    /// One stream of each kind, 200 Mbps.
    pub fn new(server: StreamEnd, tester: StreamEnd, irq_cpu: Option<u32>) -> Self {
        Self {
            server,
            tester,
            irq_cpu,
            port: 7800,
            udp_bps: 200_000_000,
            udp_payload_bytes: UDP_PAYLOAD_BYTES,
            tcp_bps: 200_000_000,
        }
    }

    pub(crate) fn words(&self) -> String {
        let mbps = |bps: u64| bps as f64 / 1e6;
        let interrupts = match self.irq_cpu {
            Some(cpu) => format!("its interrupts on CPU {cpu}"),
            None => "its interrupts where they were".into(),
        };
        let udp = (self.udp_bps > 0).then(|| {
            let (mbps, bytes) = (mbps(self.udp_bps), self.udp_payload_bytes);
            format!("UDP at {mbps} Mbps in datagrams of {bytes} bytes")
        });
        let tcp = (self.tcp_bps > 0).then(|| format!("TCP at {} Mbps at most", mbps(self.tcp_bps)));
        let streams: Vec<String> = udp.into_iter().chain(tcp).collect();
        format!(
            "Streams to {} ({interrupts}, receivers on CPU {}): {}.",
            self.server.ifname,
            self.server.cpu,
            streams.join(", ")
        )
    }
}

fn check(config: &LoadConfig) -> std::result::Result<(), String> {
    let Some(stream) = &config.stream else {
        return Err(
            "there is no second pair of interfaces: name one (in the lab, a machine with --nics 4 has eth2 and eth3)"
                .into(),
        );
    };
    if stream.server.netns == stream.tester.netns {
        return Err(format!(
            "{} and {} are in one network namespace, so the kernel would take the short way over lo: move one of them",
            stream.server.ifname, stream.tester.ifname
        ));
    }
    if stream.udp_bps == 0 && stream.tcp_bps == 0 {
        return Err("both rates are 0".into());
    }
    if stream.port == 0 {
        return Err("a stream needs a port that both ends know: 1 to 65535".into());
    }
    if !(1..=65_507).contains(&stream.udp_payload_bytes) {
        return Err(format!(
            "a datagram can't hold {} bytes: 1 to 65507",
            stream.udp_payload_bytes
        ));
    }
    for end in [&stream.server, &stream.tester] {
        check_cpu(end.cpu)?;
        run_at(&end.namespace(), || {
            kbp_core::Host::system().interface(&end.ifname)?;
            Ok(())
        })
        .map_err(|error| error.to_string())?;
    }
    stream.irq_cpu.map_or(Ok(()), check_cpu)
}

/// What one stream counts.
#[derive(Debug, Clone, Default)]
struct Tally {
    /// Bytes of payload that arrived.
    delivered: Arc<AtomicU64>,
    /// Bytes of payload that were due and not sent, because the sender fell behind or the kernel would not take them.
    skipped: Arc<AtomicU64>,
}

fn add(total: &AtomicU64, bytes: u64) {
    total.fetch_add(bytes, Ordering::Relaxed);
}

/// The fields are dropped in this order: senders first, then receivers, then the interrupts go back.
#[derive(Debug)]
struct Stream {
    senders: Workers,
    receivers: Workers,
    irqs: Irqs,
    udp: Option<Tally>,
    tcp: Option<Tally>,
}

impl Stream {
    fn start(config: Option<&StreamConfig>) -> Result<Self> {
        let Some(config) = config else {
            return Err(super::failed(
                Load::Stream,
                "there is no second pair of interfaces",
            ));
        };
        let mut stream = Self {
            senders: Workers::default(),
            receivers: Workers::default(),
            irqs: Irqs::pin(config)?,
            udp: (config.udp_bps > 0).then(Tally::default),
            tcp: (config.tcp_bps > 0).then(Tally::default),
        };
        if let Some(tally) = stream.udp.clone() {
            ends::start_udp(config, &tally, &mut stream.senders, &mut stream.receivers)?;
        }
        if let Some(tally) = stream.tcp.clone() {
            ends::start_tcp(config, &tally, &mut stream.senders, &mut stream.receivers)?;
        }
        Ok(stream)
    }
}

impl Work for Stream {
    fn counts(&self) -> Result<Vec<Count>> {
        let of = |tally: &Option<Tally>, delivered, skipped| {
            tally
                .iter()
                .flat_map(move |tally| {
                    [
                        Count::proof(delivered, tally.delivered.load(Ordering::Relaxed)),
                        Count::note(skipped, tally.skipped.load(Ordering::Relaxed)),
                    ]
                })
                .collect::<Vec<_>>()
        };
        let mut counts = of(&self.udp, "udp_bytes", "udp_skipped_bytes");
        counts.extend(of(&self.tcp, "tcp_bytes", "tcp_skipped_bytes"));
        Ok(counts)
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        let sent = self.senders.end();
        let received = self.receivers.end();
        self.irqs.release()?;
        sent.and(received)
    }
}

#[cfg(test)]
mod tests;
