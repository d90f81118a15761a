// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure demo`: arguments into a bench and a plan, rows onto the terminal.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::compare::demo::Demo;
use crate::compare::rig::{Link, Rig};
use crate::compare::row::Ends;
use crate::error::{Error, Result};
use crate::load::StormConfig;
use crate::machine::begin_result;
use crate::mechanism::ModeConfig;
use crate::place::Place;
use crate::progress;
use crate::result::{Config, Cpus, ResultFile, RowNs};
use crate::tester::pingpong::ClientConfig;

/// `kbp measure demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Directory for result.json
    #[arg(long, env = "OUT", value_name = "DIR")]
    out: PathBuf,
    /// Directory that holds kbp.ko and storm.ko
    #[arg(long, env = "MODULES", value_name = "DIR")]
    modules: PathBuf,
    /// Interface of the server
    #[arg(long, default_value = "eth0", value_name = "DEV")]
    server_dev: String,
    /// Interface of the tester
    #[arg(long, default_value = "eth1", value_name = "DEV")]
    tester_dev: String,
    /// Network namespace that the tester's interface is in
    #[arg(long, default_value = "tester", value_name = "NAME")]
    tester_ns: String,
    /// Address that the server serves
    #[arg(long, default_value = "10.9.0.1:7700", value_name = "ADDR")]
    server: SocketAddr,
    /// CPUs of housekeeping, tester, poller and application
    #[arg(
        long,
        default_value = "0,1,2,3",
        value_delimiter = ',',
        num_args = 4,
        value_name = "N"
    )]
    cpus: Vec<u32>,
    /// SCHED_FIFO priority of client and server
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u8).range(1..=98))]
    app_priority: u8,
    /// SCHED_FIFO priority of the poller and of threaded-fifo
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=98))]
    poller_priority: u8,
    /// Length of the measured part of an idle row, ms
    #[arg(long, default_value_t = 500)]
    idle_ms: u32,
    /// Length of the measured part of a storm row, ms
    #[arg(long, default_value_t = 800)]
    storm_ms: u32,
    /// Length of a sockperf row, seconds; 0 leaves these rows out
    #[arg(long, default_value_t = 1)]
    sockperf_seconds: u32,
    /// Seed of all send times and of the storm
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Also trace a storm row of softirq and of kbp-busy into OUT
    #[arg(long)]
    trace: bool,
    /// Revision of the source, for the result
    #[arg(long, env = "KBP_GIT")]
    git: Option<String>,
    /// What the machine's time is, for the result: virtual or real
    #[arg(long, env = "LAB_CLOCK")]
    clock: Option<String>,
}

/// A ping is lost after this long: far above every round trip that a busy but working
/// machine was seen to make.
const TIMEOUT_NS: u64 = 500_000_000;

impl DemoArgs {
    fn cpus(&self) -> Result<Cpus> {
        let [housekeeping, tester, poller, application] = self.cpus[..] else {
            return Err(Error::Invalid(
                "--cpus takes four CPUs: housekeeping, tester, poller, application".into(),
            ));
        };
        Ok(Cpus {
            housekeeping,
            tester,
            poller,
            application,
        })
    }

    fn links(&self) -> Vec<Link> {
        vec![
            Link {
                ifname: self.server_dev.clone(),
                netns: None,
                has_interrupts: true,
            },
            Link {
                ifname: self.tester_dev.clone(),
                netns: Some(self.tester_ns.clone()),
                has_interrupts: true,
            },
        ]
    }

    fn ends(&self, cpus: Cpus) -> Ends {
        let fifo_priority = Some(self.app_priority);
        Ends {
            server: self.server,
            server_place: Place {
                cpu: Some(cpus.application),
                fifo_priority,
                netns: None,
            },
            client_place: Place {
                cpu: Some(cpus.tester),
                fifo_priority,
                netns: Some(self.tester_ns.clone()),
            },
        }
    }

    fn row_ns(&self) -> RowNs {
        let ns = |ms: u32| u64::from(ms) * 1_000_000;
        RowNs {
            idle: ns(self.idle_ms),
            storm: ns(self.storm_ms),
        }
    }

    fn client(&self) -> ClientConfig {
        ClientConfig {
            timeout_ns: TIMEOUT_NS,
            ..ClientConfig::new(self.server, u64::from(self.seed))
        }
    }

    fn storm(&self, cpus: Cpus) -> StormConfig {
        StormConfig {
            module: self.modules.join("storm.ko"),
            cpu: cpus.poller,
            burst_packets: 3_200,
            packet_ns: 3_100,
            period_ms: 20,
            seed: self.seed,
            hog_cpus: vec![cpus.poller, cpus.poller, cpus.application, cpus.application],
        }
    }

    fn config(&self, cpus: Cpus, client: &ClientConfig, storm: &StormConfig) -> Config {
        Config {
            seed: client.seed,
            payload_len: client.payload_len,
            period_ns: client.period_ns,
            jitter_percent: client.jitter_percent,
            timeout_ns: client.timeout_ns,
            warmup_pings: client.warmup_pings,
            row_ns: self.row_ns(),
            cpus,
            app_fifo_priority: self.app_priority,
            poller_fifo_priority: self.poller_priority,
            storm: storm.words(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}

pub(super) fn run(args: &DemoArgs) -> Result<u8> {
    let cpus = args.cpus()?;
    let (client, storm) = (args.client(), args.storm(cpus));
    let config = args.config(cpus, &client, &storm);
    let mut result = begin_result(args.clock.as_deref(), args.git.as_deref(), config)?;
    // Everything of this process that is not placed elsewhere keeps out of the way.
    Place {
        cpu: Some(cpus.housekeeping),
        ..Place::default()
    }
    .apply()?;
    let demo = Demo {
        rig: Rig::set_up(args.links(), cpus)?,
        ends: args.ends(cpus),
        client,
        modes: ModeConfig {
            fifo_priority: args.poller_priority,
            module: args.modules.join("kbp.ko"),
        },
        storm,
        row_ns: args.row_ns(),
        sockperf_s: args.sockperf_seconds,
        traces: args.trace.then(|| args.out.clone()),
        result_path: args.out.join("result.json"),
    };
    println!("{}", progress::heading());
    let measured = demo.run(&mut result, |row| println!("{}", progress::line(row)));
    let taken_down = demo.rig.take_down();
    measured.and(taken_down)?;
    summarize(&result, &demo);
    Ok(0)
}

fn summarize(result: &ResultFile, demo: &Demo) {
    println!("\n{}", progress::summary(result));
    println!("{}: {} rows", demo.result_path.display(), result.rows.len());
}
