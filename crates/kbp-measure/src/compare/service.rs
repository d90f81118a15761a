// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of somebody else as what is measured: their server at the server's end, requests from the client's end, a row
//! of response times or forward delays instead of round trips of pings.
//!
//! Not here: what the programs are told ([`crate::party`]).

use super::row::{watched, Ends, Label, OnWarm};
use crate::error::Result;
use crate::party::memcached::{self, client, LoadConfig, Memcached, Pace};
use crate::party::program;
use crate::party::sip::{self, Proxy, SipLoad};
use crate::place::Place;
use crate::result::{Row, TOOL_MEMCACHED, TRAFFIC_SIP};
use crate::witness::{Counted, Watch};

/// A service and what it is asked.
#[derive(Debug, Clone)]
pub enum Service {
    /// memcached, with GET and SET over one TCP connection.
    Memcached(LoadConfig),
    /// A SIP proxy, with calls over UDP.
    Sip(SipLoad),
}

impl Service {
    /// What [`Row::traffic`] says of it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memcached(_) => TOOL_MEMCACHED,
            Self::Sip(_) => TRAFFIC_SIP,
        }
    }

    /// The programs that it needs.
    fn programs(&self) -> &'static [&'static str] {
        match self {
            Self::Memcached(_) => &[memcached::TOOL],
            Self::Sip(_) => &[sip::TOOL, sip::TESTER],
        }
    }

    /// What it is asked, in words.
    pub fn words(&self) -> String {
        match self {
            Self::Memcached(load) => format!(
                "Debian's memcached over one TCP connection: {} of 100 requests are GETs, keys of {} bytes, values of {} \
                 bytes, {}. The row holds the GETs, by the kernel's times at the client's interface unless its note says otherwise.",
                load.get_percent,
                memcached::protocol::KEY_LEN,
                memcached::protocol::VALUE_LEN,
                pace(load.pace)
            ),
            Self::Sip(load) => format!(
                "Debian's kamailio as a stateful proxy over UDP, between two of Debian's sipp: {} calls a second at random \
                 times, of which each has {} messages that are forwarded. The row holds their forward delays, by the \
                 kernel's times at the callers' interface.",
                load.calls_per_s,
                sip::MESSAGES_OF_A_CALL
            ),
        }
    }

    /// The same for so long.
    pub fn lasting(&self, span_ns: u64) -> Self {
        match self.clone() {
            Self::Memcached(load) => Self::Memcached(LoadConfig { span_ns, ..load }),
            Self::Sip(load) => Self::Sip(SipLoad { span_ns, ..load }),
        }
    }

    /// How long it is asked, nanoseconds.
    pub fn span_ns(&self) -> u64 {
        match self {
            Self::Memcached(load) => load.span_ns,
            Self::Sip(load) => load.span_ns,
        }
    }

    /// Whether it can be measured between these ends.
    ///
    /// # Errors
    /// One sentence that says why not.
    pub fn can_run(&self, ends: &Ends) -> std::result::Result<(), String> {
        if ends.container.is_some() {
            let why =
                "the server's end is a container, in which kbp starts its own echo server only";
            return Err(format!("{}: {why}", self.name()));
        }
        if matches!(self, Self::Sip(_)) && ends.bind != ends.target {
            return Err(format!(
                "sip: the proxy would be at {} and is asked at {}: addresses in SIP messages are not translated on the way",
                ends.bind, ends.target
            ));
        }
        self.programs()
            .iter()
            .try_for_each(|name| program::can_run(name))
    }

    /// Starts it, asks it, ends it.
    ///
    /// # Errors
    /// When it can't be started, dies, or gives a wrong answer.
    pub fn row(&self, ends: &Ends, watch: &Watch, label: Label) -> Result<Row> {
        let row = match self {
            Self::Memcached(load) => memcached_row(load, ends, watch)?,
            Self::Sip(load) => sip_row(load, ends, watch)?,
        };
        Ok(Row {
            mode: label.mode.into(),
            load: label.load.into(),
            round: label.round,
            path: label.path.into(),
            ..row
        })
    }
}

fn pace(pace: Pace) -> String {
    match pace {
        Pace::Closed => "the next one when the answer is there".into(),
        Pace::Open {
            gap_ns_min,
            gap_ns_max,
        } => format!("at uniform intervals of {gap_ns_min} to {gap_ns_max} ns"),
        Pace::Poisson { gap_ns_mean } => {
            format!("at exponential intervals with a mean of {gap_ns_mean} ns")
        }
    }
}

fn memcached_row(load: &LoadConfig, ends: &Ends, watch: &Watch) -> Result<Row> {
    load.check()?;
    let mut server = Memcached::start(ends.bind, &ends.server_place)?;
    let watch = Watch {
        server: vec![Counted::Process(server.pid())],
        ..watch.clone()
    };
    let measured = watched(&ends.client_place, watch, |on_warm: OnWarm| {
        client::load(ends.target, load, on_warm).map(|report| (Memcached::row(&report), ()))
    });
    let (row, between) = server.explain(measured)?;
    Ok(between.fill(row))
}

/// The thread that drives the calls stays where this one is; only the programs are on the tester's CPU.
fn sip_row(load: &SipLoad, ends: &Ends, watch: &Watch) -> Result<Row> {
    let mut proxy = Proxy::start(ends.bind, &ends.server_place, &ends.client_place)?;
    let watch = Watch {
        server: proxy.pids().into_iter().map(Counted::Process).collect(),
        ..watch.clone()
    };
    let (row, between) = watched(&Place::default(), watch, |on_warm: OnWarm| {
        let report = proxy.load(load, &ends.client_place, on_warm)?;
        Ok((report.row(), ()))
    })?;
    Ok(between.fill(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(bind: &str, target: &str) -> Ends {
        Ends {
            bind: bind.parse().unwrap(),
            target: target.parse().unwrap(),
            server_place: Place::default(),
            client_place: Place::default(),
            replies: None,
            container: None,
        }
    }

    fn sip() -> Service {
        Service::Sip(SipLoad {
            calls_per_s: 160,
            span_ns: 1,
        })
    }

    #[test]
    fn addresses_that_are_translated_are_nothing_for_sip() {
        let why = sip()
            .can_run(&ends("10.1.0.2:7700", "10.0.0.1:7700"))
            .unwrap_err();
        assert!(
            why.contains("10.1.0.2:7700") && why.contains("10.0.0.1:7700"),
            "{why}"
        );
    }

    #[test]
    fn a_row_has_its_own_length_and_the_words_say_the_rest() {
        let load = LoadConfig {
            pace: Pace::Poisson {
                gap_ns_mean: 1_000_000,
            },
            ..LoadConfig::new(5, 1)
        };
        for service in [sip(), Service::Memcached(load)] {
            let longer = service.lasting(77);
            assert_eq!((longer.span_ns(), longer.name()), (77, service.name()));
            assert_eq!(
                longer.words(),
                service.words(),
                "the length is said elsewhere"
            );
        }
        assert!(sip().words().contains("160 calls a second"));
    }
}
