// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: server, client and the reading of all counters right around the
//! measured part.
//!
//! Not here: the mode and the load, which are up when a row is measured.

use std::net::SocketAddr;
use std::sync::mpsc;

use kbp_core::Host;

use crate::error::{Error, Result};
use crate::party::sockperf::Sockperf;
use crate::place::Place;
use crate::result::{Row, TOOL_SOCKPERF};
use crate::tester::pingpong::{run_client, ClientConfig, ClientReport, EchoServer};
use crate::witness::{Between, Watch};

/// The two ends of a ping-pong.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Address that the server serves.
    pub server: SocketAddr,
    /// Where the server runs; its namespace has to be the caller's.
    pub server_place: Place,
    /// Where the client runs.
    pub client_place: Place,
}

/// What a row is called.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// The mechanism.
    pub mode: &'static str,
    /// The load.
    pub load: &'static str,
    /// 1, or 2 for the repetition.
    pub round: u32,
}

/// Measures a row with our own ping-pong.
///
/// # Errors
/// When an end can't be placed or reached, or a counter can't be read.
pub fn ping_pong(ends: &Ends, client: &ClientConfig, watch: &Watch, label: Label) -> Result<Row> {
    let server = EchoServer::start(ends.server, ends.server_place.clone())?;
    let measured = watched_client(&ends.client_place, client, watch);
    let echoed = server.stop();
    let (report, between) = measured?;
    echoed?;
    let row = Row::of_client(label.mode, label.load, label.round, &report);
    Ok(Row {
        size_bytes: client.payload_len as u64,
        span_ns: between.span_ns,
        witness: between.witness,
        poller: between.poller,
        ..row
    })
}

/// Runs the client on a thread of its own. It stops after the warm-up until the counters
/// were read here, on the housekeeping CPU, so that the reading does not disturb its CPU.
fn watched_client(
    place: &Place,
    config: &ClientConfig,
    watch: &Watch,
) -> Result<(ClientReport, Between)> {
    let host = Host::system();
    let (warm_tx, warm_rx) = mpsc::channel::<()>();
    let (go_tx, go_rx) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            place.apply()?;
            run_client(config, || {
                let gone = |_| Error::Panicked("measuring");
                warm_tx.send(()).map_err(|e| gone(e.to_string()))?;
                go_rx.recv().map_err(|e| gone(e.to_string()))
            })
        });
        // An error here means that the client ended in its warm-up; it says why.
        let before = match warm_rx.recv() {
            Ok(()) => Some(watch.read(&host)),
            Err(_) => None,
        };
        // Without a first reading the client need not go on: this ends its wait.
        match &before {
            Some(Ok(_)) => drop(go_tx.send(())),
            _ => drop(go_tx),
        }
        let report = client.join().map_err(|_| Error::Panicked("client"))?;
        match before {
            Some(before) => {
                let before = before?;
                let after = watch.read(&host)?;
                Ok((report?, after.since(&before)))
            }
            None => Err(report.err().unwrap_or(Error::Panicked("client"))),
        }
    })
}

/// Measures a row with sockperf. The counters cover the client's whole run.
///
/// # Errors
/// Those of [`Sockperf::run`], or a counter that can't be read.
pub fn sockperf(
    ends: &Ends,
    payload_len: usize,
    seconds: u32,
    watch: &Watch,
    label: Label,
) -> Result<Row> {
    let host = Host::system();
    let tool = Sockperf {
        server: ends.server,
        server_place: ends.server_place.clone(),
        client_place: ends.client_place.clone(),
        payload_len,
        seconds,
    };
    let mut before = None;
    let report = tool.run(|| {
        before = Some(watch.read(&host)?);
        Ok(())
    })?;
    let after = watch.read(&host)?;
    let before = before.ok_or(Error::Panicked("sockperf"))?;
    let between = after.since(&before);
    Ok(Row {
        mode: label.mode.into(),
        load: label.load.into(),
        round: label.round,
        tool: TOOL_SOCKPERF.into(),
        n: report.n,
        lost: report.lost,
        late: 0,
        dup: report.dup,
        warmup_lost: 0,
        skipped: 0,
        span_ns: between.span_ns,
        rtt_ns: report.rtt_ns,
        witness: between.witness,
        poller: between.poller,
        path: "nic".into(),
        traffic: TOOL_SOCKPERF.into(),
        size_bytes: payload_len as u64,
        ..Row::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tester::pingpong::Stop;

    fn ends() -> Ends {
        // A port of the range that the kernel does not hand out by itself.
        Ends {
            server: "127.0.0.1:18519".parse().unwrap(),
            server_place: Place::default(),
            client_place: Place::default(),
        }
    }

    fn watch() -> Watch {
        Watch {
            cpu: 0,
            receive_irqs: vec![],
            mode_threads: vec![],
            has_poller: false,
        }
    }

    const LABEL: Label = Label {
        mode: "softirq",
        load: "idle",
        round: 1,
    };

    /// Over loopback every packet is a NET_RX softirq; which CPU runs it follows the
    /// sender, so both ends are put on CPU 0.
    #[test]
    fn the_witness_sees_the_packets_of_the_measured_part() {
        let place = Place {
            cpu: Some(0),
            ..Place::default()
        };
        let ends = Ends {
            server_place: place.clone(),
            client_place: place,
            ..ends()
        };
        let config = ClientConfig {
            stop: Stop::Pings(200),
            period_ns: 100_000,
            ..ClientConfig::new(ends.server, 3)
        };
        let row = ping_pong(&ends, &config, &watch(), LABEL).unwrap();
        assert_eq!((row.n, row.lost), (200, 0));
        assert!(row.witness.net_rx_softirqs >= 200, "{:?}", row.witness);
        assert!(row.span_ns >= 10_000_000, "{}", row.span_ns);
    }

    #[test]
    fn a_reading_that_fails_ends_the_row_with_its_reason() {
        let watch = Watch {
            receive_irqs: vec![999_999],
            ..watch()
        };
        let ends = Ends {
            server: "127.0.0.1:18520".parse().unwrap(),
            ..ends()
        };
        let config = ClientConfig::new(ends.server, 3);
        let error = ping_pong(&ends, &config, &watch, LABEL).unwrap_err();
        assert!(error.to_string().contains("interrupt 999999"), "{error}");
    }
}
