// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The services that `kbp compare` measures instead of the ping-pong, and how often each is asked.
//!
//! Not here: starting and asking them ([`crate::compare::service`]).

use clap::{Args, ValueEnum};

use crate::compare::row::Traffic;
use crate::compare::service::Service;
use crate::party::memcached::{LoadConfig, Pace};
use crate::party::sip::SipLoad;

/// A service by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// memcached: response times of GETs
    Memcached,
    /// kamailio between two sipp: forward delays of SIP messages
    Sip,
}

/// Which services, and how often.
#[derive(Debug, Args)]
pub struct ServicesArgs {
    /// Measure Debian's programs instead of the ping-pong, a row of each
    #[arg(long, value_delimiter = ',', value_enum, value_name = "NAME", conflicts_with_all = ["open_loop", "throughput", "no_traffic"])]
    service: Vec<Name>,
    /// Requests to memcached, at random times that follow from --seed
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    requests_per_s: u64,
    /// SIP calls, of which each is six messages through the proxy
    #[arg(long, default_value_t = 160, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    calls_per_s: u32,
}

impl ServicesArgs {
    /// Those that were named, each once; their lengths are set later.
    pub(super) fn traffics(&self, seed: u64) -> Vec<Traffic> {
        let is_first = |(place, name): &(usize, &Name)| !self.service[..*place].contains(name);
        let named = self.service.iter().enumerate().filter(is_first);
        named
            .map(|(_, name)| {
                Traffic::Service(match name {
                    Name::Memcached => Service::Memcached(LoadConfig {
                        pace: Pace::Poisson {
                            gap_ns_mean: 1_000_000_000 / self.requests_per_s,
                        },
                        ..LoadConfig::new(0, seed)
                    }),
                    Name::Sip => Service::Sip(SipLoad {
                        calls_per_s: self.calls_per_s,
                        span_ns: 0,
                    }),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: super::super::frames::FramesArgs,
    }

    fn names(words: &[&str]) -> Result<Vec<&'static str>, clap::Error> {
        let line = std::iter::once("compare").chain(words.iter().copied());
        let args = Line::try_parse_from(line)?.args;
        let traffics = args.traffics(1, 1).unwrap();
        let services = traffics.iter().filter_map(Traffic::service);
        Ok(services.map(Service::name).collect())
    }

    #[test]
    fn services_are_rows_of_their_own() {
        assert_eq!(names(&[]).unwrap(), [""; 0]);
        assert_eq!(
            names(&["--service", "sip,memcached,sip"]).unwrap(),
            ["sip", "memcached"]
        );
        assert!(names(&["--service", "smtp"]).is_err());
        let both = names(&["--service", "sip", "--open-loop", "1000fps"]);
        assert!(both.is_err());
    }
}
