// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bulk traffic: Debian's `iperf3`, server and client, unmodified, read from its JSON.
//!
//! Not here: what the bulk competes with.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::program::{self, Program, Protocol};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::result::{Bulk, Row};

/// What [`Row::tool`] says of it, and what the program and its package are called.
pub const TOOL: &str = "iperf3";
/// Time that a client may need beyond what it was asked for.
const END_LIMIT: Duration = Duration::from_secs(15);

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// One TCP connection, as fast as it goes.
    Tcp,
    /// UDP datagrams.
    Udp {
        /// Offered rate, bits of payload a second; `None` is as fast as it goes.
        rate_bps: Option<u64>,
        /// Payload, bytes.
        payload_len: u16,
    },
}

/// A run of iperf3.
#[derive(Debug, Clone)]
pub struct Iperf3 {
    /// Address that the server serves; TCP also carries the control of a UDP run.
    pub server: SocketAddr,
    /// Where the server, which receives, runs.
    pub server_place: Place,
    /// Where the client, which sends, runs.
    pub client_place: Place,
    /// What is sent.
    pub traffic: Traffic,
    /// Length of the run, seconds.
    pub seconds: u32,
}

/// What iperf3 found.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Iperf3Report {
    /// Both ends' figures.
    pub bulk: Bulk,
    /// Datagrams sent; 0 for TCP.
    pub packets: u64,
    /// Datagrams lost; 0 for TCP.
    pub lost: u64,
    /// Length of the run as the receiver saw it, nanoseconds.
    pub span_ns: u64,
}

impl Iperf3 {
    /// Starts the server, runs the client, stops the server.
    ///
    /// # Errors
    /// When iperf3 is not installed, does not end, or says that something failed.
    pub fn run(&self) -> Result<Iperf3Report> {
        program::require_free(TOOL, &self.server_place, Protocol::Tcp, self.server)?;
        let (ip, port) = (self.server.ip().to_string(), self.server.port().to_string());
        let serve = ["-s", "-1", "-B", &ip, "-p", &port];
        let mut server = Program::start(TOOL, &self.server_place, &serve)?;
        server.wait_bound(Protocol::Tcp, self.server)?;
        let arguments = self.client_arguments();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let client = Program::start(TOOL, &self.client_place, &arguments)?;
        let output = client.wait_end(Duration::from_secs(self.seconds.into()) + END_LIMIT)?;
        parse(&output.stdout, self.traffic).map_err(|why| {
            program::error(
                TOOL,
                format!("{why}; the client {}", program::ended(&output)),
            )
        })
    }

    fn client_arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = ["-c", &self.server.ip().to_string(), "--json", "-p"]
            .map(str::to_owned)
            .into();
        arguments.push(self.server.port().to_string());
        arguments.extend(["-t".into(), self.seconds.to_string()]);
        if let Traffic::Udp {
            rate_bps,
            payload_len,
        } = self.traffic
        {
            // 0 means "as fast as it goes" to iperf3.
            let rate_bps = rate_bps.unwrap_or(0).to_string();
            let payload_len = payload_len.to_string();
            let more = ["-u", "-b", &rate_bps, "-l", &payload_len];
            arguments.extend(more.map(str::to_owned));
        }
        arguments
    }

    /// The row of a run. Mechanism, load, path and round are the caller's to name.
    pub fn row(&self, report: &Iperf3Report) -> Row {
        let (traffic, rate_bps, size_bytes) = match self.traffic {
            Traffic::Tcp => ("iperf3-tcp", None, 0),
            Traffic::Udp {
                rate_bps,
                payload_len,
            } => ("iperf3-udp", rate_bps, payload_len.into()),
        };
        Row {
            tool: TOOL.into(),
            traffic: traffic.into(),
            rate_bps,
            size_bytes,
            lost: report.lost,
            span_ns: report.span_ns,
            bulk: Some(report.bulk),
            ..Row::default()
        }
    }
}

/// What iperf3's JSON says. It ends with status 0 also when it failed, so the text decides.
fn parse(text: &str, traffic: Traffic) -> std::result::Result<Iperf3Report, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| format!("its output is not JSON ({e})"))?;
    if let Some(error) = value["error"].as_str() {
        return Err(format!("it failed: {error}"));
    }
    let number = |path: &str| {
        let found = value.pointer(path).and_then(Value::as_f64);
        found.ok_or_else(|| format!("its JSON has no number at {path}"))
    };
    let span_s = number("/end/sum_received/seconds")?;
    let sent_bps = number("/end/sum_sent/bits_per_second")?;
    let mut report = Iperf3Report {
        bulk: Bulk {
            sent_bps,
            ..Bulk::default()
        },
        span_ns: (span_s * 1e9) as u64,
        ..Iperf3Report::default()
    };
    match traffic {
        Traffic::Tcp => {
            report.bulk.received_bps = number("/end/sum_received/bits_per_second")?;
            report.bulk.retransmits = Some(number("/end/sum_sent/retransmits")? as u64);
        }
        Traffic::Udp { payload_len, .. } => {
            // Older versions count the sender's bytes as received ones: the packets do not lie.
            report.packets = number("/end/sum/packets")? as u64;
            report.lost = number("/end/sum/lost_packets")?.max(0.0) as u64;
            let received = report.packets.saturating_sub(report.lost) as f64;
            if span_s <= 0.0 {
                return Err("it says that the run took no time".into());
            }
            report.bulk.received_bps = received * f64::from(payload_len) * 8.0 / span_s;
            report.bulk.jitter_ns = Some((number("/end/sum/jitter_ms")? * 1e6) as u64);
        }
    }
    Ok(report)
}

/// Checks what a person may have said.
///
/// # Errors
/// When the length of the run is none.
pub fn check_seconds(seconds: u32) -> Result<()> {
    match seconds {
        0 => Err(Error::Invalid("a run of 0 seconds: at least 1".into())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What iperf 3.12 of Debian 12 printed, shortened to what is read.
    const UDP: &str = r#"{"end":{
        "sum":{"seconds":1.0,"jitter_ms":0.0038817,"lost_packets":15,"packets":19515},
        "sum_sent":{"bits_per_second":9990800.8},
        "sum_received":{"seconds":2.0,"bits_per_second":9980142.9}}}"#;
    const TCP: &str = r#"{"end":{
        "sum_sent":{"bits_per_second":18135199533.7,"retransmits":3},
        "sum_received":{"seconds":1.003446,"bits_per_second":18035223802.7}}}"#;

    #[test]
    fn its_output_is_understood() {
        let udp = Traffic::Udp {
            rate_bps: None,
            payload_len: 64,
        };
        let report = parse(UDP, udp).unwrap();
        assert_eq!((report.packets, report.lost), (19_515, 15));
        assert_eq!(report.bulk.received_bps, 19_500.0 * 64.0 * 8.0 / 2.0);
        assert_eq!(report.bulk.jitter_ns, Some(3_881));
        let report = parse(TCP, Traffic::Tcp).unwrap();
        assert_eq!(report.bulk.received_bps, 18_035_223_802.7);
        assert_eq!(report.bulk.retransmits, Some(3));
        assert_eq!(report.span_ns, 1_003_446_000);
    }

    #[test]
    fn a_failure_is_an_error_although_it_ends_with_0() {
        let failed = r#"{"end":{},"error":"unable to connect to server: Connection refused"}"#;
        let why = parse(failed, Traffic::Tcp).unwrap_err();
        assert!(why.contains("Connection refused"), "{why}");
        let why = parse(&TCP.replace("retransmits", "x"), Traffic::Tcp).unwrap_err();
        assert!(why.contains("/end/sum_sent/retransmits"), "{why}");
        assert!(parse("", Traffic::Tcp).unwrap_err().contains("not JSON"));
    }
}
