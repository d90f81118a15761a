// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second witness: Debian's `sockperf`, server and client, unmodified.
//!
//! Its ping-pong sends the next ping when the answer is there, without a pause: its
//! pauses would be spun away without PAUSE, which on the lab's virtual clock takes time
//! from every other CPU. It prints percentiles only, so its rows have no histogram.
//!
//! Not here: its other modes.

use std::net::SocketAddr;
use std::time::Duration;

use super::program::{self, Program, Protocol};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::result::{Row, RttNs, TOOL_SOCKPERF};

/// Time that a client may need beyond what it was asked for.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A sockperf ping-pong to run.
#[derive(Debug, Clone)]
pub struct Sockperf {
    /// Address that the server serves and the client asks.
    pub server: SocketAddr,
    /// Where the server runs.
    pub server_place: Place,
    /// Where the client runs.
    pub client_place: Place,
    /// UDP payload, bytes.
    pub payload_len: usize,
    /// Length of the run, seconds; sockperf leaves about 1.1 s of it out of its figures.
    pub seconds: u32,
}

/// What sockperf found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SockperfReport {
    /// Round trips in its figures.
    pub n: u64,
    /// Messages without an answer.
    pub lost: u64,
    /// Messages answered twice.
    pub dup: u64,
    /// The length that its figures cover, nanoseconds.
    pub span_ns: u64,
    /// Its round trips.
    pub rtt_ns: RttNs,
}

impl Sockperf {
    /// Starts the server, runs the client, stops the server.
    ///
    /// `on_ready` is called when the server is bound, right before the client starts.
    ///
    /// # Errors
    /// When sockperf is not installed, does not end, or prints something else than
    /// percentiles.
    pub fn run(&self, on_ready: impl FnOnce() -> Result<()>) -> Result<SockperfReport> {
        program::require_free(
            TOOL_SOCKPERF,
            &self.server_place,
            Protocol::Udp,
            self.server,
        )?;
        let mut server = self.start(&self.server_place, "server", &[])?;
        server.wait_bound(Protocol::Udp, self.server)?;
        on_ready()?;
        let seconds = self.seconds.to_string();
        let arguments = ["-t", &seconds, "--full-rtt", "--no-rdtsc"];
        let client = self.start(&self.client_place, "ping-pong", &arguments)?;
        let limit = Duration::from_secs(u64::from(self.seconds)) + END_LIMIT;
        let output = client.wait_end(limit)?;
        parse(&output.stdout).map_err(|why| {
            let said = without_colours(&program::ended(&output));
            program_error(format!("{why}; the client {said}"))
        })
    }

    fn start(&self, place: &Place, role: &'static str, more: &[&str]) -> Result<Program> {
        let (ip, port) = (self.server.ip().to_string(), self.server.port().to_string());
        let size = self.payload_len.to_string();
        let mut arguments = vec![role, "-i", &ip, "-p", &port, "-m", &size];
        arguments.extend_from_slice(more);
        Program::start(TOOL_SOCKPERF, place, &arguments)
    }
}

impl SockperfReport {
    /// The row of a run. Mechanism, load, path and round are the caller's to name.
    pub fn row(&self, payload_len: usize) -> Row {
        Row {
            tool: TOOL_SOCKPERF.into(),
            n: self.n,
            lost: self.lost,
            dup: self.dup,
            span_ns: self.span_ns,
            rtt_ns: self.rtt_ns,
            traffic: TOOL_SOCKPERF.into(),
            size_bytes: payload_len as u64,
            ..Row::default()
        }
    }
}

fn program_error(why: String) -> Error {
    program::error(TOOL_SOCKPERF, why)
}

fn parse(text: &str) -> std::result::Result<SockperfReport, String> {
    let text = without_colours(text);
    if text.contains("No messages were received from the server") {
        return Err("the server did not answer".into());
    }
    if text.contains("No valid observations found") {
        return Err(
            "it leaves more than a second of a run out of its figures, and nothing was left: \
                    run it for at least 2 seconds"
                .into(),
        );
    }
    let ns = |label: &str| number_after(&text, label).map(|us| (us * 1e3).round() as u64);
    let whole = |label: &str| number_after(&text, label).map(|value| value as u64);
    let span_s = number_after(&text, "[Valid Duration] RunTime=")?;
    Ok(SockperfReport {
        n: whole("sockperf: Total ")?,
        lost: whole("dropped messages =")?,
        dup: whole("duplicated messages =")?,
        span_ns: (span_s * 1e9) as u64,
        rtt_ns: RttNs {
            min: ns("<MIN> observation =")?,
            p50: ns("percentile 50.000 =")?,
            p90: ns("percentile 90.000 =")?,
            p99: ns("percentile 99.000 =")?,
            p999: ns("percentile 99.900 =")?,
            max: ns("<MAX> observation =")?,
            mean: number_after(&text, "Summary: Round trip is")? * 1e3,
            sd: None,
        },
    })
}

fn number_after(text: &str, label: &str) -> std::result::Result<f64, String> {
    let missing = || format!("its output has no number behind \"{label}\"");
    let (_, rest) = text.split_once(label).ok_or_else(missing)?;
    let rest = rest.trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest[..end].parse().map_err(|_| missing())
}

/// Removes the escape sequences that sockperf prints even into a pipe.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = behind.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What sockperf 3.7-1 of Debian 12 printed over loopback, shortened by lines that
    /// are not read.
    const OUTPUT: &str = "\
sockperf: \u{1b}[2;35m== version #3.7-no.git == \u{1b}[0m
sockperf: [Total Run] RunTime=2.000 sec; Warm up time=400 msec; SentMessages=105751; ReceivedMessages=105750
sockperf: [Valid Duration] RunTime=0.875 sec; SentMessages=36808; ReceivedMessages=36808
sockperf: \u{1b}[2;35m====> avg-rtt=23.655 (std-dev=23.346)\u{1b}[0m
sockperf: # dropped messages = 1; # duplicated messages = 2; # out-of-order messages = 0
sockperf: Summary: Round trip is 23.655 usec
sockperf: \u{1b}[2;35mTotal 36808 observations\u{1b}[0m; each percentile contains 368.08 observations
sockperf: ---> <MAX> observation = 3392.914
sockperf: ---> percentile 99.999 = 3392.914
sockperf: ---> percentile 99.990 =  174.816
sockperf: ---> percentile 99.900 =   80.162
sockperf: ---> percentile 99.000 =   42.846
sockperf: ---> percentile 90.000 =   29.477
sockperf: ---> percentile 75.000 =   24.837
sockperf: ---> percentile 50.000 =   21.749
sockperf: ---> percentile 25.000 =   20.327
sockperf: ---> <MIN> observation =   14.261
";

    #[test]
    fn its_output_is_understood() {
        let report = parse(OUTPUT).unwrap();
        let rtt_ns = RttNs {
            min: 14_261,
            p50: 21_749,
            p90: 29_477,
            p99: 42_846,
            p999: 80_162,
            max: 3_392_914,
            mean: 23_655.0,
            sd: None,
        };
        let want = SockperfReport {
            n: 36_808,
            lost: 1,
            dup: 2,
            span_ns: 875_000_000,
            rtt_ns,
        };
        assert_eq!(report, want);
    }

    #[test]
    fn other_output_is_an_error_that_names_the_gap() {
        let error = parse(&OUTPUT.replace("99.900", "99.9")).unwrap_err();
        assert!(error.contains("percentile 99.900"), "{error}");
        let silent = "sockperf: No messages were received from the server. Is the server down?";
        assert!(parse(silent).unwrap_err().contains("did not answer"));
        let short = "sockperf: No valid observations found. Try tune parameters: --time";
        assert!(parse(short).unwrap_err().contains("at least 2 seconds"));
    }
}
