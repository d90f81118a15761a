// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure party …` and `kbp measure agree`: unmodified programs of third parties, each between
//! two places that are given.
//!
//! Not here: the path between the places.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

use super::{times, EXIT_NOT_MET};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::party::agree::{Agree, Agreement, Bounds, Figure};
use crate::party::iperf3::{check_seconds, Iperf3, Traffic};
use crate::party::memcached::{LoadConfig, Memcached, Pace};
use crate::party::sip::{Proxy, SipLoad};
use crate::party::sockperf::Sockperf;
use crate::place::Place;
use crate::report::text::{count, micros};
use crate::result::{Row, RttNs};

/// `kbp measure party …`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Each is Debian's package of that name. Example, between two namespaces:
  kbp measure party iperf3 10.0.0.2:5201 --server-netns b --client-netns a --udp --rate-bps 80000000")]
pub enum PartyCommand {
    /// UDP ping-pong
    Sockperf(SockperfArgs),
    /// TCP or UDP bulk
    Iperf3(Iperf3Args),
    /// A memcached server under GET and SET, every value checked
    Memcached(MemcachedArgs),
    /// A SIP proxy, kamailio, between two sipp: forward delays
    Sip(SipArgs),
}

/// The two places of a program.
#[derive(Debug, Args)]
pub struct PlacesArgs {
    /// Address and port that the server serves
    server: SocketAddr,
    /// Network namespace of the server, as `ip netns` knows it
    #[arg(long, value_name = "NAME")]
    server_netns: Option<String>,
    /// CPU of the server
    #[arg(long, value_name = "N")]
    server_cpu: Option<u32>,
    /// Network namespace of the client
    #[arg(long, value_name = "NAME")]
    client_netns: Option<String>,
    /// CPU of the client
    #[arg(long, value_name = "N")]
    client_cpu: Option<u32>,
    /// SCHED_FIFO priority of both
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
}

impl PlacesArgs {
    fn server_place(&self) -> Place {
        Place {
            cpu: self.server_cpu,
            fifo_priority: self.fifo,
            netns: self.server_netns.clone(),
        }
    }

    fn client_place(&self) -> Place {
        Place {
            cpu: self.client_cpu,
            fifo_priority: self.fifo,
            netns: self.client_netns.clone(),
        }
    }
}

/// `kbp measure party sockperf`
#[derive(Debug, Args)]
pub struct SockperfArgs {
    #[command(flatten)]
    places: PlacesArgs,
    /// Length of the run, seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// UDP payload, bytes
    #[arg(long, default_value_t = 64)]
    size: usize,
}

/// `kbp measure party iperf3`
#[derive(Debug, Args)]
pub struct Iperf3Args {
    #[command(flatten)]
    places: PlacesArgs,
    /// Length of the run, seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// UDP datagrams instead of a TCP connection
    #[arg(long)]
    udp: bool,
    /// Offered rate, bits of payload a second; as fast as it goes when absent
    #[arg(long, value_name = "BPS", requires = "udp")]
    rate_bps: Option<u64>,
    /// Payload of a datagram, bytes
    #[arg(long, default_value_t = 1_400, requires = "udp", value_parser = clap::value_parser!(u16).range(16..))]
    size: u16,
}

/// `kbp measure party memcached`
#[derive(Debug, Args)]
pub struct MemcachedArgs {
    #[command(flatten)]
    places: PlacesArgs,
    /// Length of the run, seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Ask again when the answer is there, instead of at intervals
    #[arg(long)]
    closed: bool,
    /// Shortest and longest interval, µs
    #[arg(
        long,
        default_value = "1000,10000",
        value_delimiter = ',',
        value_name = "MIN,MAX"
    )]
    interval_us: Vec<u32>,
    /// So many requests a second at exponential intervals instead (a Poisson process)
    #[arg(long, value_name = "N", conflicts_with_all = ["closed", "interval_us"], value_parser = clap::value_parser!(u64).range(1..=100_000))]
    poisson: Option<u64>,
    /// Percent of the requests that are GETs
    #[arg(long, default_value_t = 90)]
    gets: u64,
    /// Number of keys
    #[arg(long, default_value_t = 1_000)]
    keys: u32,
    /// Seed of intervals and keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// `kbp measure party sip`
#[derive(Debug, Args)]
pub struct SipArgs {
    #[command(flatten)]
    places: PlacesArgs,
    /// How long calls begin, seconds
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Calls that begin a second
    #[arg(long, default_value_t = 160, value_name = "N")]
    calls_per_s: u32,
}

/// `kbp measure agree`
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kbp measure agree 10.0.0.2:7700 --server-netns b --client-netns a --rounds 5")]
pub struct AgreeArgs {
    #[command(flatten)]
    places: PlacesArgs,
    /// Rounds of each tester
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Length of a round, seconds
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// UDP payload, bytes
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Largest difference at the median, percent
    #[arg(long, default_value_t = 10.0)]
    p50_bound: f64,
    /// Largest difference at the 99th percentile, percent
    #[arg(long, default_value_t = 25.0)]
    p99_bound: f64,
    /// Seed of our ping-pong
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(command: &PartyCommand, json: bool) -> Result<u8> {
    interrupt::catch()?;
    match command {
        PartyCommand::Sockperf(args) => run_sockperf(args, json),
        PartyCommand::Iperf3(args) => run_iperf3(args, json),
        PartyCommand::Memcached(args) => run_memcached(args, json),
        PartyCommand::Sip(args) => run_sip(args, json),
    }
}

/// A run by hand is of the mechanism that is there, whatever that is.
fn named(row: Row) -> Row {
    Row {
        mode: "as-is".into(),
        load: "as-is".into(),
        path: "as-is".into(),
        round: 1,
        ..row
    }
}

fn print(row: Row, json: bool, words: impl FnOnce(&Row) -> String) {
    if json {
        println!("{}", serde_json::json!(named(row)));
    } else {
        println!("{}", words(&row));
    }
}

fn run_sockperf(args: &SockperfArgs, json: bool) -> Result<u8> {
    check_seconds(args.seconds)?;
    let sockperf = Sockperf {
        server: args.places.server,
        server_place: args.places.server_place(),
        client_place: args.places.client_place(),
        payload_len: args.size,
        seconds: args.seconds,
    };
    let row = sockperf.run(|| Ok(()))?.row(args.size);
    print(row, json, |row| {
        let counts = (count(row.n), count(row.lost), count(row.dup));
        format!(
            "{} round trips, {} lost, {} duplicates\n{}",
            counts.0,
            counts.1,
            counts.2,
            times("round trip", &row.rtt_ns)
        )
    });
    Ok(0)
}

fn run_iperf3(args: &Iperf3Args, json: bool) -> Result<u8> {
    check_seconds(args.seconds)?;
    let traffic = match args.udp {
        true => Traffic::Udp {
            rate_bps: args.rate_bps,
            payload_len: args.size,
        },
        false => Traffic::Tcp,
    };
    let iperf3 = Iperf3 {
        server: args.places.server,
        server_place: args.places.server_place(),
        client_place: args.places.client_place(),
        traffic,
        seconds: args.seconds,
    };
    let report = iperf3.run()?;
    let held = args
        .rate_bps
        .is_none_or(|rate| report.bulk.sent_bps >= rate as f64 * 0.99);
    print(iperf3.row(&report), json, |_| {
        let bulk = &report.bulk;
        let mbps = |bps: f64| format!("{:.1} Mbit/s", bps / 1e6);
        let mut text = format!(
            "sent {}, received {}",
            mbps(bulk.sent_bps),
            mbps(bulk.received_bps)
        );
        if let Some(retransmits) = bulk.retransmits {
            text += &format!(", {} segments sent again", count(retransmits));
        }
        if let Some(jitter_ns) = bulk.jitter_ns {
            text += &format!(
                ", {} of {} datagrams lost, jitter {} µs",
                count(report.lost),
                count(report.packets),
                micros(jitter_ns as f64)
            );
        }
        text
    });
    if held {
        return Ok(0);
    }
    eprintln!("kbp: iperf3 could not hold the rate that was asked for: ask for less");
    Ok(EXIT_NOT_MET)
}

fn run_memcached(args: &MemcachedArgs, json: bool) -> Result<u8> {
    check_seconds(args.seconds)?;
    let [gap_us_min, gap_us_max] = args.interval_us[..] else {
        return Err(Error::Invalid(
            "--interval-us takes two numbers: the shortest and the longest interval".into(),
        ));
    };
    let load = LoadConfig {
        pace: match (args.closed, args.poisson) {
            (true, _) => Pace::Closed,
            (false, Some(per_s)) => Pace::Poisson {
                gap_ns_mean: 1_000_000_000 / per_s,
            },
            (false, None) => Pace::Open {
                gap_ns_min: u64::from(gap_us_min) * 1_000,
                gap_ns_max: u64::from(gap_us_max) * 1_000,
            },
        },
        keys: args.keys,
        get_percent: args.gets,
        ..LoadConfig::new(u64::from(args.seconds) * 1_000_000_000, args.seed)
    };
    let memcached = Memcached {
        server: args.places.server,
        server_place: args.places.server_place(),
        client_place: args.places.client_place(),
        load,
    };
    let report = memcached.run(|| Ok(()))?;
    print(Memcached::row(&report), json, |_| {
        format!(
            "{} GETs, {} SETs, every value right; at most {} on their way, sent up to {} µs late\n{}\n{}",
            count(report.gets.count()),
            count(report.sets.count()),
            count(report.on_the_way_max as u64),
            micros(report.send_late_ns_max as f64),
            times("GET", &RttNs::from(&report.gets)),
            times("SET", &RttNs::from(&report.sets))
        )
    });
    Ok(0)
}

fn run_sip(args: &SipArgs, json: bool) -> Result<u8> {
    check_seconds(args.seconds)?;
    let load = SipLoad {
        calls_per_s: args.calls_per_s,
        span_ns: u64::from(args.seconds) * 1_000_000_000,
    };
    let (server, client) = (args.places.server_place(), args.places.client_place());
    let mut proxy = Proxy::start(args.places.server, &server, &client)?;
    let report = proxy.load(&load, &client, &mut || Ok(()))?;
    print(report.row(), json, |row| {
        let account = &report.account;
        format!(
            "{} calls, {} messages forwarded, {} not; {} sent again, {} forwarded again, {} of the proxy's own\n{}",
            count(report.calls),
            count(row.n),
            count(row.lost),
            count(account.again),
            count(row.dup),
            count(account.own),
            times("forward delay", &row.rtt_ns)
        )
    });
    Ok(0)
}

pub(super) fn run_agree(args: &AgreeArgs, json: bool) -> Result<u8> {
    interrupt::catch()?;
    let agree = Agree {
        server: args.places.server,
        server_place: args.places.server_place(),
        client_place: args.places.client_place(),
        payload_len: args.size,
        rounds: args.rounds,
        seconds: args.seconds,
        seed: args.seed,
        bounds: Bounds {
            p50_percent: args.p50_bound,
            p99_percent: args.p99_bound,
        },
    };
    let agreement = agree.run(|row| {
        if !json {
            let label = format!("round {} {:<8}", row.round, row.tool);
            println!("{}", times(&label, &row.rtt_ns));
        }
    })?;
    print_agreement(&agreement, json);
    Ok(if agreement.is_met() { 0 } else { EXIT_NOT_MET })
}

fn print_agreement(agreement: &Agreement, json: bool) {
    if json {
        let rows: Vec<_> = agreement.rows.iter().cloned().map(named).collect();
        let said = serde_json::json!({
            "agree": agreement.is_met(), "p50": agreement.p50, "p99": agreement.p99, "rows": rows,
        });
        println!("{said}");
        return;
    }
    for (name, figure) in [("p50", &agreement.p50), ("p99", &agreement.p99)] {
        println!("{}", verdict(name, figure));
    }
}

fn verdict(name: &str, figure: &Figure) -> String {
    format!(
        "{}  {name}: ours {} µs, sockperf's {} µs, {:+.1} % (bound ± {} %; sockperf's own rounds lie \
         {:.1} % apart)",
        if figure.is_met() { "agree" } else { "DIFFER" },
        micros(figure.ours_ns as f64),
        micros(figure.theirs_ns as f64),
        figure.difference_percent,
        figure.bound_percent,
        figure.spread_percent
    )
}
