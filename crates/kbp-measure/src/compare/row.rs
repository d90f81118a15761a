// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measurement: server, client and the reading of all counters right around the
//! measured part.
//!
//! Not here: the mode and the load, which are up when a row is measured.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use kbp_core::Host;
use kbp_lab::topo::End;

use super::server::Server;
use super::service::Service;
use crate::error::{Error, Result};
use crate::hold;
use crate::party::sockperf::Sockperf;
use crate::place::Place;
use crate::result::{Row, NO_TRAFFIC, TOOL_KBP, TOOL_SOCKPERF};
use crate::tester::backend::{Aside, Backend, Reader, Udp};
use crate::tester::openloop::{self, OpenLoopConfig};
use crate::tester::pingpong::{run_client, ClientConfig};
use crate::tester::throughput::{self, ThroughputConfig};
use crate::witness::{Between, Counted, Watch};

/// The two ends of a ping-pong.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Address that the server binds.
    pub bind: SocketAddr,
    /// Address that the client asks; another one where addresses are translated on the way.
    pub target: SocketAddr,
    /// Where the server runs.
    pub server_place: Place,
    /// Where the client runs.
    pub client_place: Place,
    /// Who receives the replies to an open loop; `None`: its client, where it runs.
    pub replies: Option<Reader>,
    /// The container that the server runs in.
    pub container: Option<End>,
}

/// What a row is called.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// The topology.
    pub path: &'a str,
    /// The mechanism.
    pub mode: &'a str,
    /// The load.
    pub load: &'a str,
    /// From 1; 0 for a row that is in no result.
    pub round: u32,
}

/// What is sent to the server.
#[derive(Debug, Clone)]
pub enum Traffic {
    /// A ping, when the one before is answered.
    PingPong(ClientConfig),
    /// Frames whatever comes back.
    OpenLoop(OpenLoopConfig),
    /// The search for the highest rate without loss.
    Throughput(ThroughputConfig),
    /// Nothing, for so many nanoseconds.
    Nothing(u64),
    /// Requests to a program of somebody else instead of our echo server.
    Service(Service),
}

impl Traffic {
    /// The service that it asks, if there is one.
    pub fn service(&self) -> Option<&Service> {
        match self {
            Self::Service(service) => Some(service),
            _ => None,
        }
    }
}

/// Measures a row with our own tester, or the service that it is asked of.
///
/// # Errors
/// When an end can't be placed or reached, a rate is not held, or a counter can't be read.
pub fn ours(ends: &Ends, traffic: &Traffic, watch: &Watch, label: Label) -> Result<Row> {
    if let Traffic::Service(service) = traffic {
        return service.row(ends, watch, label);
    }
    let server = Server::start(ends)?;
    let watch = Watch {
        server: server.counted().into_iter().collect(),
        ..watch.clone()
    };
    let measured = watched(&ends.client_place, watch, |on_warm| match traffic {
        Traffic::PingPong(config) => Ok((ping_pong(ends, config, label, on_warm)?, None)),
        Traffic::OpenLoop(config) => open_loop(ends, config, label, on_warm),
        Traffic::Throughput(config) => highest_rate(ends, config, label, on_warm),
        Traffic::Nothing(span_ns) => Ok((nothing(*span_ns, label, on_warm)?, None)),
        Traffic::Service(_) => Err(Error::Panicked("choosing a server")),
    });
    let echoed = server.stop();
    let (row, between) = measured?;
    echoed?;
    Ok(Row {
        path: label.path.into(),
        ..between.fill(row)
    })
}

pub(super) type OnWarm<'a> = &'a mut dyn FnMut() -> Result<()>;

fn ping_pong(ends: &Ends, config: &ClientConfig, label: Label, on_warm: OnWarm) -> Result<Row> {
    let config = ClientConfig {
        server: ends.target,
        ..config.clone()
    };
    let report = run_client(&config, on_warm)?;
    Ok(Row {
        size_bytes: config.payload_len as u64,
        ..Row::of_client(label.mode, label.load, label.round, &report)
    })
}

/// The way of an open loop's frames, from the namespace of the calling thread.
fn backend(ends: &Ends) -> Result<Box<dyn Backend>> {
    let socket = Udp::connect(ends.target)?;
    Ok(match &ends.replies {
        Some(reader) => Box::new(Aside::read_by(socket, reader)?),
        None => Box::new(socket),
    })
}

/// A row, and the way that its frames took.
type Sent = (Row, Option<Box<dyn Backend>>);

fn open_loop(ends: &Ends, config: &OpenLoopConfig, label: Label, on_warm: OnWarm) -> Result<Sent> {
    let mut backend = backend(ends)?;
    let report = openloop::run(backend.as_mut(), config, on_warm)?;
    let row = report.row(label.mode, label.load, label.round);
    Ok((row, Some(backend)))
}

/// The counters are read around all trials of the search; each of them has a warm-up of its own.
fn highest_rate(
    ends: &Ends,
    config: &ThroughputConfig,
    label: Label,
    on_warm: OnWarm,
) -> Result<Sent> {
    let mut backend = backend(ends)?;
    on_warm()?;
    let report = throughput::run(backend.as_mut(), config, |_, _| {})?;
    let row = report.row(label.mode, label.load, label.round);
    Ok((row, Some(backend)))
}

/// A client that only waits.
fn nothing(span_ns: u64, label: Label, on_warm: OnWarm) -> Result<Row> {
    on_warm()?;
    hold::for_time(Duration::from_nanos(span_ns));
    Ok(Row {
        mode: label.mode.into(),
        load: label.load.into(),
        round: label.round,
        tool: TOOL_KBP.into(),
        traffic: NO_TRAFFIC.into(),
        ..Row::default()
    })
}

/// What a client says while it runs.
enum Step {
    /// Its warm-up is over, and it waits for the first reading.
    Warm(Counted),
    /// It has measured, and lives until the last reading.
    Done,
}

/// Runs a client on a thread of its own. It stops after the warm-up until the counters were read here, on the
/// housekeeping CPU, so that the reading does not disturb its CPU, and it ends only when they were read again. What it returns
/// with its row lives as long: to end some of that takes a while, in which nothing is measured.
pub(super) fn watched<K>(
    place: &Place,
    watch: Watch,
    client: impl FnOnce(OnWarm) -> Result<(Row, K)> + Send,
) -> Result<(Row, Between)> {
    let host = Host::system();
    // In the silence between warm-up and row it would be long enough for what is measured to take it for one.
    watch.look_for(&host)?;
    let (step_tx, step_rx) = mpsc::channel();
    let (go_tx, go_rx) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            place.apply()?;
            let measured = client(&mut || {
                let gone = |_| Error::Panicked("measuring");
                let warm = Step::Warm(Counted::this_thread());
                step_tx.send(warm).map_err(|e| gone(e.to_string()))?;
                go_rx.recv().map_err(|e| gone(e.to_string()))
            });
            // Nobody waits for this after a reading that failed; then there is nothing to wait for either. A client that
            // failed has no last reading: its server may be gone.
            if measured.is_ok() && step_tx.send(Step::Done).is_ok() {
                let _ = go_rx.recv();
            }
            measured.map(|(row, _)| row)
        });
        let between = readings(&host, watch, &step_rx, &go_tx);
        drop((step_rx, go_tx));
        let row = client.join().map_err(|_| Error::Panicked("client"))?;
        match between {
            Ok(Some(between)) => Ok((row?, between)),
            // It ended in its warm-up, and says why.
            Ok(None) => Err(row.err().unwrap_or(Error::Panicked("client"))),
            Err(error) => Err(error),
        }
    })
}

/// The readings around the measured part; `None` when the client does not get that far.
fn readings(
    host: &Host,
    watch: Watch,
    steps: &mpsc::Receiver<Step>,
    go: &mpsc::Sender<()>,
) -> Result<Option<Between>> {
    let Ok(Step::Warm(client)) = steps.recv() else {
        return Ok(None);
    };
    let watch = Watch {
        client: vec![client],
        ..watch
    };
    let before = watch.read(host)?;
    if go.send(()).is_err() || steps.recv().is_err() {
        return Ok(None);
    }
    Ok(Some(watch.read(host)?.since(&before)))
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
    if ends.bind != ends.target || ends.container.is_some() {
        return Err(Error::Invalid(format!(
            "sockperf's server would be at {}, where its client does not ask: leave --third-party out on this path",
            ends.bind
        )));
    }
    let host = Host::system();
    let tool = Sockperf {
        server: ends.target,
        server_place: ends.server_place.clone(),
        client_place: ends.client_place.clone(),
        payload_len,
        seconds,
    };
    watch.look_for(&host)?;
    let mut before = None;
    let report = tool.run(|| {
        before = Some(watch.read(&host)?);
        Ok(())
    })?;
    let after = watch.read(&host)?;
    let before = before.ok_or(Error::Panicked("sockperf"))?;
    let between = after.since(&before);
    Ok(between.fill(Row {
        mode: label.mode.into(),
        load: label.load.into(),
        round: label.round,
        tool: TOOL_SOCKPERF.into(),
        n: report.n,
        lost: report.lost,
        dup: report.dup,
        rtt_ns: report.rtt_ns,
        path: label.path.into(),
        traffic: TOOL_SOCKPERF.into(),
        size_bytes: payload_len as u64,
        ..Row::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tester::pingpong::Stop;

    fn ends() -> Ends {
        // A port of the range that the kernel does not hand out by itself.
        at("127.0.0.1:18519")
    }

    fn at(server: &str) -> Ends {
        Ends {
            bind: server.parse().unwrap(),
            target: server.parse().unwrap(),
            server_place: Place::default(),
            client_place: Place::default(),
            replies: None,
            container: None,
        }
    }

    fn watch() -> Watch {
        Watch::default()
    }

    const LABEL: Label = Label {
        path: "lo",
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
            ..ClientConfig::new(ends.target, 3)
        };
        let row = ours(&ends, &Traffic::PingPong(config), &watch(), LABEL).unwrap();
        assert_eq!((row.n, row.lost), (200, 0));
        assert!(row.witness.net_rx_softirqs >= 200, "{:?}", row.witness);
        assert!(row.span_ns >= 10_000_000, "{}", row.span_ns);
        let cpu = row.cpu.unwrap();
        assert!(cpu.server_ns > 0 && cpu.client_ns > 0, "{cpu:?}");
    }

    /// What is received elsewhere is in the same account.
    #[test]
    fn replies_are_read_where_they_are_to_be() {
        let ends = Ends {
            replies: Some(Reader::default()),
            ..at("127.0.0.1:18527")
        };
        assert!(format!("{:?}", backend(&ends).unwrap()).starts_with("Aside"));
        assert!(format!("{:?}", backend(&at("127.0.0.1:18527")).unwrap()).starts_with("Udp"));
        let config = OpenLoopConfig {
            span_ns: 100_000_000,
            ..OpenLoopConfig::new(64, 2_560_000)
        };
        let row = ours(&ends, &Traffic::OpenLoop(config), &watch(), LABEL).unwrap();
        assert_eq!((row.n, row.lost), (500, 0));
    }

    #[test]
    fn what_is_read_was_looked_for_before_traffic_waits() {
        let watch = watch();
        let found = watch.found.clone();
        let row = watched(&Place::default(), watch, |on_warm| {
            assert!(!found.is_empty());
            on_warm()?;
            Ok((Row::default(), ()))
        });
        row.unwrap();
    }

    #[test]
    fn a_reading_that_fails_ends_the_row_with_its_reason() {
        let watch = Watch {
            receive_irqs: vec![999_999],
            ..watch()
        };
        let ends = at("127.0.0.1:18520");
        let config = ClientConfig::new(ends.target, 3);
        let error = ours(&ends, &Traffic::PingPong(config), &watch, LABEL).unwrap_err();
        assert!(error.to_string().contains("interrupt 999999"), "{error}");
    }

    /// A search on loopback: what it found, and the witness of all its trials.
    #[test]
    fn the_highest_rate_is_a_row_with_its_witness() {
        let ends = at("127.0.0.1:18521");
        let config = ThroughputConfig::short(512, 2_000 * 512 * 8);
        let row = ours(&ends, &Traffic::Throughput(config), &watch(), LABEL).unwrap();
        assert_eq!((row.traffic.as_str(), row.size_bytes), ("rfc2544", 512));
        let found = row.throughput.unwrap();
        assert!(
            found.limited_by_tester,
            "2000 frames/s are asked for, and loopback has them"
        );
        assert_eq!(found.frames_per_s, 2_000.0);
        assert_eq!(found.resolution_frames_per_s, Some(60.0));
        assert!(row.n > 0 && row.lost == 0, "{row:?}");
        assert!(row.cpu.unwrap().server_ns > 0);
    }
}
