// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's `memcached`, unmodified, loaded as in paper 003, section 4: GET and SET at 9 to 1, keys
//! of 64 bytes, values of 1,024 bytes, at random intervals.
//!
//! * [`protocol`]: requests, answers, and what a value has to be. * [`client`]: the load.
//!
//! Not here: memaslap, the paper's client, which is no longer packaged; ours takes its place.

use std::net::SocketAddr;

use super::program::{self, Program, Protocol};
use crate::error::Result;
use crate::place::{run_at, Place};
use crate::result::{Row, RttNs};

pub mod client;
pub mod protocol;

pub use client::{LoadConfig, LoadReport, Pace};

/// What [`Row::tool`] says of it, and what the program and its package are called.
pub const TOOL: &str = "memcached";

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
        program::require_free(TOOL, &self.server_place, Protocol::Tcp, self.server)?;
        let (ip, port) = (self.server.ip().to_string(), self.server.port().to_string());
        // As root it wants to hear who it shall be; it stays who it is, in its namespace.
        let arguments = ["-u", "root", "-l", &ip, "-p", &port, "-U", "0"];
        let mut server = Program::start(TOOL, &self.server_place, &arguments)?;
        server.wait_bound(Protocol::Tcp, self.server)?;
        run_at(&self.client_place, || {
            client::load(self.server, &self.load, on_warm)
        })
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
            rtt_ns: RttNs::from(&report.gets),
            histogram_ns: report.gets.cells(),
            ..Row::default()
        }
    }
}
