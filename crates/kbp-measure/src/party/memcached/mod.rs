// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's `memcached`, unmodified, loaded as in paper 003, section 4: GET and SET at 9 to 1, keys
//! of 64 bytes, values of 1,024 bytes, at random intervals.
//!
//! * [`protocol`]: requests, answers, and what a value has to be. * [`schedule`]: which requests, and when.
//! * [`client`]: the load. * [`wire`]: when its bytes left and came.
//!
//! Not here: memaslap, the paper's client, which is no longer packaged; ours takes its place.

use std::net::SocketAddr;

use super::program::{self, Program, Protocol};
use crate::error::Result;
use crate::place::{run_at, Place};
use crate::result::{OpenLoop, Row, RttNs, TOOL_MEMCACHED};

pub mod client;
pub mod protocol;
pub mod schedule;
pub mod wire;

pub use client::{LoadConfig, LoadReport, Pace, Timed};

/// What [`Row::tool`] says of it, and what the program and its package are called.
pub const TOOL: &str = TOOL_MEMCACHED;

/// The note of a row whose times are not the kernel's.
const CLIENTS_TIMES: &str = "times are those of the client's program, from when a request was due: the kernel does not say \
                             when its frames go to the driver of this interface or come from it";

/// A memcached server and its load.
#[derive(Debug, Clone)]
pub struct Memcached {
    /// Address that the server serves.
    pub server: SocketAddr,
    /// Where the server runs, with all its threads.
    pub server_place: Place,
    /// Where the client runs.
    pub client_place: Place,
    /// What the client asks, and when.
    pub load: LoadConfig,
}

impl Memcached {
    /// Starts the server, fills it, loads it, stops it.
    ///
    /// `on_warm` is called on the client's thread between the filling and the first request that
    /// counts.
    ///
    /// # Errors
    /// When memcached is not installed, does not answer, or answers with something else than what
    /// was stored.
    pub fn run(&self, on_warm: impl FnOnce() -> Result<()> + Send) -> Result<LoadReport> {
        self.load.check()?;
        let mut server = Self::start(self.server, &self.server_place)?;
        let report = run_at(&self.client_place, || {
            client::load(self.server, &self.load, on_warm)
        });
        server.explain(report)
    }

    /// Starts the server; its port is bound when this returns.
    ///
    /// # Errors
    /// When memcached is not installed, or the port is in use.
    pub fn start(at: SocketAddr, place: &Place) -> Result<Program> {
        program::require_free(TOOL, place, Protocol::Tcp, at)?;
        let (ip, port) = (at.ip().to_string(), at.port().to_string());
        // As root it wants to hear who it shall be; it stays who it is, in its namespace.
        let arguments = ["-u", "root", "-l", &ip, "-p", &port, "-U", "0"];
        let mut server = Program::start(TOOL, place, &arguments)?;
        server.wait_bound(Protocol::Tcp, at)?;
        Ok(server)
    }

    /// The row of a run, whose round trips are those of the GETs, as in paper 003, Fig. 9.
    /// Mechanism, load, path and round are the caller's to name.
    pub fn row(report: &LoadReport) -> Row {
        Row {
            tool: TOOL.into(),
            traffic: TOOL.into(),
            size_bytes: protocol::VALUE_LEN as u64,
            n: report.gets.count(),
            span_ns: report.span_ns,
            open_loop: report.is_open.then_some(OpenLoop {
                sent: report.gets.count() + report.sets.count(),
                send_late_ns_max: report.send_late_ns_max,
                ..OpenLoop::default()
            }),
            note: (report.timed == Timed::ByClient).then(|| CLIENTS_TIMES.into()),
            arrivals: report.is_poisson.then(|| "poisson".into()),
            rtt_ns: RttNs::from(&report.gets),
            histogram_ns: report.gets.cells(),
            ..Row::default()
        }
    }
}
