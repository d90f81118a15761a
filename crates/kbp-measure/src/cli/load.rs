// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure load`: a load alone, bounded in time, and what it counted; or the list of loads and whether they can run.
//!
//! Not here: the loads ([`crate::load`]).

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::error::{Error, Result};
use crate::interrupt;
use crate::load::stream::UDP_PAYLOAD_BYTES;
use crate::load::{
    Load, LoadConfig, MemoryConfig, Progress, Running, SoftirqConfig, StormConfig, StreamConfig,
    StreamEnd, Vector, LOADS,
};
use crate::report::text::count;

/// How often a running load looks whether it shall end.
const LOOK: Duration = Duration::from_millis(10);

/// `kbp measure load`
#[derive(Debug, Args)]
#[command(
    after_help = "Example: a tasklet of 200 us, 1000 times a second on CPU 2, for 3 seconds:
  kbp measure load softirq --seconds 3 --modules /tmp/ko --cpu 2 --rate-hz 1000 --length-us 200"
)]
pub struct LoadArgs {
    /// Which load; without one, all are listed with what keeps them from running here
    #[arg(value_parser = load_by_name)]
    load: Option<Load>,
    /// How long it runs
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// CPU that is pressed: of the modules, the readers, the interrupts of the streams' receiver, and of a hog if none is named
    #[arg(long, default_value_t = 0, value_name = "N")]
    cpu: u32,
    /// A hog for each CPU (hogs, storm)
    #[arg(long, value_delimiter = ',', value_name = "N,N")]
    hogs: Vec<u32>,
    /// Directory that holds storm.ko and softirq.ko
    #[arg(long, env = "MODULES", default_value = ".", value_name = "DIR")]
    modules: PathBuf,
    #[command(flatten, next_help_heading = "storm")]
    storm: StormArgs,
    #[command(flatten, next_help_heading = "softirq")]
    softirq: SoftirqArgs,
    #[command(flatten, next_help_heading = "stream")]
    stream: StreamArgs,
    #[command(flatten, next_help_heading = "memory")]
    memory: MemoryArgs,
}

#[derive(Debug, Args)]
struct StormArgs {
    /// Packets of a burst
    #[arg(long, default_value_t = 3_200, value_name = "N")]
    burst: u32,
    /// Work of a packet, ns
    #[arg(long, default_value_t = 3_100, value_name = "NS")]
    packet_ns: u32,
    /// Mean distance of two bursts, ms
    #[arg(long, default_value_t = 20, value_name = "MS")]
    period_ms: u32,
    /// Seed of the distances
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

#[derive(Debug, Args)]
struct SoftirqArgs {
    /// Softirq vector of the work
    #[arg(long, default_value = "tasklet")]
    vector: Vector,
    /// How often a second
    #[arg(long, default_value_t = 500, value_name = "HZ")]
    rate_hz: u32,
    /// How long, µs
    #[arg(long, default_value_t = 400, value_name = "US", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    length_us: u32,
}

#[derive(Debug, Args)]
struct StreamArgs {
    /// Receiving interface
    #[arg(long, value_name = "DEV", requires_all = ["server_addr", "tester_dev", "tester_ns", "tester_addr"])]
    server_dev: Option<String>,
    /// Its address
    #[arg(long, value_name = "ADDR")]
    server_addr: Option<IpAddr>,
    /// Sending interface
    #[arg(long, value_name = "DEV")]
    tester_dev: Option<String>,
    /// Network namespace of the sending interface
    #[arg(long, value_name = "NAME")]
    tester_ns: Option<String>,
    /// Its address
    #[arg(long, value_name = "ADDR")]
    tester_addr: Option<IpAddr>,
    /// CPU of the receiving programs
    #[arg(long, default_value_t = 0, value_name = "N")]
    receiver_cpu: u32,
    /// CPU of the senders
    #[arg(long, default_value_t = 0, value_name = "N")]
    sender_cpu: u32,
    /// Leave the interrupts where they are, for interfaces that have none
    #[arg(long)]
    no_irq: bool,
    /// Port of both streams
    #[arg(long, default_value_t = 7_800)]
    port: u16,
    /// Rate of the UDP stream, Mbps of payload; 0 leaves it out
    #[arg(long, default_value_t = 200, value_name = "MBPS")]
    udp_mbps: u32,
    /// Payload of a datagram, bytes
    #[arg(long, default_value_t = UDP_PAYLOAD_BYTES, value_name = "BYTES")]
    udp_size: usize,
    /// Highest rate of the TCP stream, Mbps of payload; 0 leaves it out
    #[arg(long, default_value_t = 200, value_name = "MBPS")]
    tcp_mbps: u32,
}

#[derive(Debug, Args)]
struct MemoryArgs {
    /// Cgroups with a process each
    #[arg(long, default_value_t = 32, value_name = "N")]
    groups: u32,
    /// How often memory.stat is read, µs
    #[arg(long, default_value_t = 1_000, value_name = "US")]
    read_period_us: u32,
    /// Directory on a disk for a file that is read through the page cache again and again
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Size of that file, MiB
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_024))]
    file_mib: u64,
}

fn load_by_name(name: &str) -> std::result::Result<Load, String> {
    Load::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = LOADS.iter().map(|entry| entry.name).collect();
        format!("there is no such load; the loads are {}", names.join(", "))
    })
}

impl LoadArgs {
    fn config(&self) -> LoadConfig {
        LoadConfig {
            hog_cpus: match self.hogs[..] {
                [] => vec![self.cpu],
                _ => self.hogs.clone(),
            },
            storm: StormConfig {
                burst_packets: self.storm.burst,
                packet_ns: self.storm.packet_ns,
                period_ms: self.storm.period_ms,
                ..StormConfig::new(self.modules.join("storm.ko"), self.cpu, self.storm.seed)
            },
            stream: self.stream.config(self.cpu),
            softirq: SoftirqConfig {
                vector: self.softirq.vector,
                rate_hz: self.softirq.rate_hz,
                length_ns: self.softirq.length_us * 1_000,
                ..SoftirqConfig::new(self.modules.join("softirq.ko"), self.cpu)
            },
            memory: MemoryConfig {
                groups: self.memory.groups,
                read_period_us: self.memory.read_period_us,
                files: self.memory.files.clone(),
                file_bytes: self.memory.file_mib << 20,
                ..MemoryConfig::new(self.cpu)
            },
        }
    }

    fn length(&self) -> Result<Duration> {
        match Duration::try_from_secs_f64(self.seconds) {
            Ok(length) if length <= Duration::from_secs(86_400) => Ok(length),
            _ => Err(Error::Invalid(format!(
                "{} seconds: it has to be 0 to 86400",
                self.seconds
            ))),
        }
    }
}

impl StreamArgs {
    fn config(&self, cpu: u32) -> Option<StreamConfig> {
        let server = StreamEnd {
            ifname: self.server_dev.clone()?,
            netns: None,
            addr: self.server_addr?,
            cpu: self.receiver_cpu,
        };
        let tester = StreamEnd {
            ifname: self.tester_dev.clone()?,
            netns: self.tester_ns.clone(),
            addr: self.tester_addr?,
            cpu: self.sender_cpu,
        };
        let irq_cpu = (!self.no_irq).then_some(cpu);
        Some(StreamConfig {
            port: self.port,
            udp_bps: u64::from(self.udp_mbps) * 1_000_000,
            udp_payload_bytes: self.udp_size,
            tcp_bps: u64::from(self.tcp_mbps) * 1_000_000,
            ..StreamConfig::new(server, tester, irq_cpu)
        })
    }
}

pub(super) fn run(args: &LoadArgs, json: bool) -> Result<u8> {
    let config = args.config();
    let Some(load) = args.load else {
        list(&config, json);
        return Ok(0);
    };
    let length = args.length()?;
    interrupt::catch()?;
    let running = Running::start(load, &config)?;
    let before = running.progress()?;
    let begin = Instant::now();
    while begin.elapsed() < length && !interrupt::requested() {
        std::thread::sleep(LOOK.min(length.saturating_sub(begin.elapsed())));
    }
    let seconds = begin.elapsed().as_secs_f64();
    // Who interrupts a load early wants its account, not a verdict.
    let did = match interrupt::requested() {
        true => running.progress().map(|now| now.since(&before)),
        false => running.require_moved_since(&before),
    };
    running.stop()?;
    print(load, &config, seconds, &did?, json);
    Ok(0)
}

fn print(load: Load, config: &LoadConfig, seconds: f64, did: &Progress, json: bool) {
    if json {
        let totals: serde_json::Map<_, _> = did
            .counts
            .iter()
            .map(|count| (count.name.to_owned(), count.total.into()))
            .collect();
        let object = serde_json::json!({
            "load": load.name(),
            "what": load.words(config),
            "seconds": seconds,
            "totals": totals,
        });
        println!("{object}");
        return;
    }
    println!("{}: {}", load.name(), load.words(config));
    for total in &did.counts {
        let per_second = total.total as f64 / seconds;
        println!(
            "  {:<18} {:>14}   {per_second:.1} a second",
            total.name,
            count(total.total)
        );
    }
}

fn list(config: &LoadConfig, json: bool) {
    let reasons = LOADS
        .iter()
        .map(|entry| (entry, entry.load.can_run(config).err()));
    if json {
        let loads: Vec<_> = reasons
            .map(|(entry, why)| serde_json::json!({ "load": entry.name, "about": entry.about, "cannot_run": why }))
            .collect();
        println!("{}", serde_json::json!({ "loads": loads }));
        return;
    }
    for (entry, why) in reasons {
        println!("{:<8} {}", entry.name, entry.about);
        if let Some(why) = why {
            println!("{:<8} cannot run here: {why}", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn parse(words: &str) -> std::result::Result<LoadArgs, clap::Error> {
        Ok(Cli::try_parse_from(words.split(' '))?.load)
    }

    #[test]
    fn arguments_become_the_load_that_was_meant() {
        let args =
            parse("x softirq --cpu 2 --vector hi --rate-hz 9 --length-us 7 --modules /m").unwrap();
        let config = args.config();
        assert_eq!(args.load, Some(Load::Softirq));
        assert_eq!((config.softirq.cpu, config.softirq.length_ns), (2, 7_000));
        assert_eq!(config.softirq.module, PathBuf::from("/m/softirq.ko"));
        assert_eq!((config.hog_cpus, config.stream), (vec![2], None));
        let stream = "x stream --cpu 2 --server-dev eth2 --server-addr 10.0.0.1 --tester-dev eth3 --tester-ns t \
                      --tester-addr 10.0.0.2 --udp-mbps 5";
        let words = stream.split_whitespace().collect::<Vec<_>>().join(" ");
        let config = parse(&words).unwrap().config().stream.unwrap();
        assert_eq!((config.irq_cpu, config.udp_bps), (Some(2), 5_000_000));
    }

    #[test]
    fn half_a_stream_and_unknown_names_are_refused() {
        assert!(parse("x stream --server-dev eth2")
            .unwrap_err()
            .to_string()
            .contains("tester"));
        assert!(parse("x tornado")
            .unwrap_err()
            .to_string()
            .contains("storm"));
        for bad in ["-1", "nan", "1e9"] {
            let args = parse(&format!("x idle --seconds={bad}")).unwrap();
            assert!(args.length().is_err(), "{bad}");
        }
    }
}
