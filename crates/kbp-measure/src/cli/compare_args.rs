// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments of `kbp compare`, and what they mean: a plan, options, and the configuration for the result.
//!
//! Not here: doing it ([`super::compare`]).

use std::path::PathBuf;

use clap::Args;
use kbp_core::pollers::DEFAULT_PRIORITY;
use kbp_core::Host;

use super::frames::{self, FramesArgs};
use super::study::StudyArgs;
use crate::compare::bench::Options;
use crate::compare::cpu_words;
use crate::compare::place_of::{self, PathOptions};
use crate::compare::plan::Plan;
use crate::compare::preset::{self, Preset};
use crate::compare::row::Traffic;
use crate::compare::streams::{self, StreamOptions};
use crate::compare::tables;
use crate::error::{Error, Result};
use crate::load::{Load, LoadConfig};
use crate::mechanism::{KeepModule, MechanismConfig, RT_BUDGET};
use crate::result::{Config, Cpus, RowNs};
use crate::tester::pingpong::ClientConfig;

/// A ping is lost after this long: far above every round trip that a busy but working
/// machine was seen to make.
const TIMEOUT_NS: u64 = 500_000_000;

const EXAMPLES: &str = "\
Examples:
  kbp compare --paths veth --loads idle,hogs --mechanisms softirq,busy-read --out /tmp/veth
  kbp compare --paths nic,vxlan --loads idle,storm --rounds 2 --dry-run
  kbp compare --preset demo --out out/demo
  kbp compare study lab/studies/bench.toml --out out/bench

The result is OUT/result.json (docs/reference/result.md); `kbp report` makes a page of it. A run that was
interrupted is continued by the same command.";

/// `kbp compare`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Run comparisons in virtual machines instead of on this machine
    #[command(subcommand)]
    pub(super) study: Option<CompareCommand>,
    /// Start from a named comparison; the other options change it
    #[arg(long, default_value = "default", value_name = "NAME")]
    preset: String,
    /// Topologies, see `kbp topo list`
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    paths: Vec<String>,
    /// Loads: all of them with each mechanism while it is set up
    #[arg(long, value_delimiter = ',', value_name = "LOAD")]
    loads: Vec<String>,
    /// Mechanisms, the first is the one that is repeated last; `all` for all
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    mechanisms: Vec<String>,
    /// How often each cell is measured
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Length of the measured part of a row, ms
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=3_600_000))]
    row_ms: Option<u32>,
    /// The same for rows under a load other than idle [default: as --row-ms]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=3_600_000))]
    loaded_row_ms: Option<u32>,
    /// The same for rows under one load: storm=300
    #[arg(long, value_delimiter = ',', value_name = "LOAD=MS", value_parser = load_ms)]
    row_ms_of: Vec<(String, u32)>,
    /// Mean distance of two pings, µs
    #[arg(long, default_value_t = 1_000, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    period_us: u64,
    /// UDP payload, bytes
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    size: usize,
    #[command(flatten)]
    frames: FramesArgs,
    /// Seed of the order, of all send times and of the loads
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Directory for result.json
    #[arg(long, env = "OUT", value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory with kbp.ko and the modules of the loads
    #[arg(long, env = "MODULES", default_value = ".", value_name = "DIR")]
    modules: PathBuf,
    /// Network cards of the path nic: the server's, the tester's
    #[arg(
        long,
        default_value = "eth0,eth1",
        value_delimiter = ',',
        num_args = 2,
        value_name = "DEV"
    )]
    nics: Vec<String>,
    /// Network cards of the load stream: the receiver's, the sender's
    #[arg(
        long,
        default_value = "eth2,eth3",
        value_delimiter = ',',
        num_args = 2,
        value_name = "DEV"
    )]
    stream_nics: Vec<String>,
    /// CPU of the interrupts of the streams' receiver [default: the poller's]
    #[arg(long, value_name = "N")]
    stream_cpu: Option<u32>,
    /// Rate of the UDP stream, Mbps of payload; 0 leaves it out
    #[arg(long, default_value_t = 200, value_name = "MBPS")]
    stream_udp_mbps: u32,
    /// Highest rate of the TCP stream, Mbps of payload; 0 leaves it out
    #[arg(long, default_value_t = 200, value_name = "MBPS")]
    stream_tcp_mbps: u32,
    /// CPU of the storm's NAPI instance; its hogs stay where they are [default: the poller's]
    #[arg(long, value_name = "N")]
    storm_cpu: Option<u32>,
    /// CPUs of housekeeping, tester, poller and application [default: 0,1,2,3, or what there is]
    #[arg(long, value_delimiter = ',', num_args = 4, value_name = "N")]
    cpus: Vec<u32>,
    /// A CPU of its own for receiving the replies to --open-loop and --throughput, where the socket also polls the tester's
    /// card, so that no mechanism serves that; else the tester's CPU sees one that comes while it sends after that
    #[arg(long, value_name = "N")]
    replies_cpu: Option<u32>,
    /// CPU to which interfaces without interrupts steer their packets, for all mechanisms alike: poller, none, or a number
    #[arg(long, default_value = "poller", value_name = "CPU")]
    rps: String,
    /// Size of the rule set of paths that have one
    #[arg(long, default_value_t = 100, value_name = "N")]
    rules: u32,
    /// UDP port of the server
    #[arg(long, default_value_t = 7_700, value_name = "PORT")]
    port: u16,
    /// SCHED_FIFO priority of client and server
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u8).range(1..=98))]
    app_priority: u8,
    /// SCHED_FIFO priority of the poller, and of threads that serve instead of it (on PREEMPT_RT 49 at most)
    #[arg(long, default_value_t = DEFAULT_PRIORITY, value_parser = clap::value_parser!(u8).range(1..=98), value_name = "P")]
    poller_priority: u8,
    /// Packets of a poll of class normal in the modes kbp-*-rt: a packet of class rt waits for one such poll at most, and
    /// each poll costs the bulk traffic
    #[arg(long, default_value_t = RT_BUDGET, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    rt_budget: u32,
    /// Mechanisms whose idle cells sockperf measures too, in the first round; `none` for none
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    third_party: Vec<String>,
    /// Length of a sockperf row, seconds
    #[arg(long, default_value_t = 1)]
    sockperf_seconds: u32,
    /// Also trace rows of the first and the last mechanism under each load into OUT
    #[arg(long)]
    pub(super) trace: bool,
    /// Discard a result that is there instead of continuing it
    #[arg(long)]
    pub(super) restart: bool,
    /// Print what would be measured, in order, and how long it takes; change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Revision of the source, for the result
    #[arg(long, env = "KBP_GIT")]
    git: Option<String>,
    /// What the machine's time is, for the result: virtual, parallel or real
    #[arg(long, env = "LAB_CLOCK")]
    clock: Option<String>,
}

/// `kbp compare …`
#[derive(Debug, clap::Subcommand)]
pub enum CompareCommand {
    /// Run the comparisons of a study in virtual machines, and continue it where it was
    Study(StudyArgs),
}

impl CompareArgs {
    /// What is compared.
    pub(super) fn plan(&self) -> Result<Plan> {
        let preset = preset::find(&self.preset)?;
        let plan = Plan {
            paths: or(&self.paths, preset.paths),
            loads: match self.loads.is_empty() {
                true => preset.loads.iter().map(|block| or(&[], block)).collect(),
                false => vec![self.loads.clone()],
            },
            mechanisms: self.mechanisms(preset),
            rounds: self.rounds.unwrap_or(preset.rounds),
            third_party: self.third_party(preset),
        };
        plan.paths
            .iter()
            .try_for_each(|path| place_of::known(path))?;
        for load in plan.loads.concat() {
            tables::load(&load)?;
        }
        for mode in plan.mechanisms.iter().chain(&plan.third_party) {
            tables::mechanism(mode)?;
        }
        Ok(plan)
    }

    /// The mechanisms that sockperf measures, too.
    fn third_party(&self, preset: &Preset) -> Vec<String> {
        match self.third_party.first().map(String::as_str) {
            Some("none") => vec![],
            _ => or(&self.third_party, preset.third_party),
        }
    }

    fn mechanisms(&self, preset: &Preset) -> Vec<String> {
        let named = or(&self.mechanisms, preset.mechanisms);
        match named.first().map(String::as_str) {
            None | Some("all") => or(&[], &tables::mechanisms()),
            _ => named,
        }
    }

    /// How it is measured.
    pub(super) fn options(&self) -> Result<Options> {
        let cpus = self.cpus()?;
        if self.stream_udp_mbps == 0 && self.stream_tcp_mbps == 0 {
            return Err(Error::Invalid(
                "--stream-udp-mbps and --stream-tcp-mbps are both 0: leave out the load stream instead".into(),
            ));
        }
        let any = "0.0.0.0:0"
            .parse()
            .map_err(|_| Error::Panicked("parsing"))?;
        let frames = self.frames.traffics(u64::from(self.seed), TIMEOUT_NS)?;
        Ok(Options {
            path: PathOptions {
                nics: pair(&self.nics, "--nics")?,
                rules: self.rules,
                rps_cpu: self.rps_cpu(cpus)?,
                cpus,
                replies_cpu: self.replies_cpu(cpus, &frames)?,
                port: self.port,
                app_priority: self.app_priority,
            },
            client: ClientConfig {
                timeout_ns: TIMEOUT_NS,
                period_ns: self.period_us * 1_000,
                payload_len: self.size,
                // The counters are read when the last reply is there, not after a silence.
                linger_ns: 0,
                ..ClientConfig::new(any, u64::from(self.seed))
            },
            frames,
            row_ns: self.row_ns(preset::find(&self.preset)?),
            mechanisms: MechanismConfig {
                fifo_priority: self.poller_priority,
                rt_budget: self.rt_budget,
                module: self.module(),
                keep_module: KeepModule::WhileOurs,
                ..MechanismConfig::default()
            },
            virtual_clock: self.clock() == Some("virtual"),
            loads: self.loads(cpus),
            streams: StreamOptions {
                nics: pair(&self.stream_nics, "--stream-nics")?,
                irq_cpu: self.stream_cpu.unwrap_or(cpus.poller),
                udp_bps: u64::from(self.stream_udp_mbps) * 1_000_000,
                tcp_bps: u64::from(self.stream_tcp_mbps) * 1_000_000,
            },
            third_party_s: self.sockperf_seconds,
            traces: self.trace.then(|| self.out()).transpose()?,
        })
    }

    /// Where the result goes.
    pub(super) fn out(&self) -> Result<PathBuf> {
        let missing =
            || Error::Invalid("where shall the result go? Name a directory with --out".into());
        let out = self.out.clone().ok_or_else(missing)?;
        std::fs::create_dir_all(&out).map_err(|e| Error::file("create", &out, e))?;
        Ok(out)
    }

    /// What the machine's time is, as the lab said.
    pub(super) fn clock(&self) -> Option<&str> {
        self.clock.as_deref()
    }

    /// The revision of the source.
    pub(super) fn git(&self) -> Option<&str> {
        self.git.as_deref()
    }

    fn row_ns(&self, preset: &Preset) -> RowNs {
        let ns = |ms: u32| u64::from(ms) * 1_000_000;
        let idle = self.row_ms.unwrap_or(preset.row_ms);
        let loaded = self
            .loaded_row_ms
            .or(self.row_ms)
            .unwrap_or(preset.loaded_row_ms);
        RowNs {
            idle: ns(idle),
            storm: ns(loaded),
            by_load: self
                .row_ms_of
                .iter()
                .map(|(load, ms)| (load.clone(), ns(*ms)))
                .collect(),
        }
    }

    fn cpus(&self) -> Result<Cpus> {
        if let [housekeeping, tester, poller, application] = self.cpus[..] {
            return Ok(Cpus {
                housekeeping,
                tester,
                poller,
                application,
            });
        }
        let online = Host::system()
            .online_cpus()
            .map_err(kbp_core::Error::from)?;
        Ok(spread(&online.iter().collect::<Vec<_>>()))
    }

    /// One that nobody else of the path has, and that has something to do.
    fn replies_cpu(&self, cpus: Cpus, frames: &[Traffic]) -> Result<Option<u32>> {
        let Some(cpu) = self.replies_cpu else {
            return Ok(None);
        };
        let of_path = [
            cpus.housekeeping,
            cpus.tester,
            cpus.poller,
            cpus.application,
        ];
        let of_loads = [self.rps_cpu(cpus)?, self.storm_cpu, self.stream_cpu];
        if of_path.contains(&cpu) || of_loads.contains(&Some(cpu)) {
            return Err(Error::Invalid(format!(
                "--replies-cpu {cpu}: it has to be one that nothing else of the run has (--cpus, --rps, --storm-cpu, --stream-cpu): what spins there takes all of it"
            )));
        }
        let is_open_loop = |t: &Traffic| matches!(t, Traffic::OpenLoop(_) | Traffic::Throughput(_));
        if !frames.iter().any(is_open_loop) {
            return Err(Error::Invalid(
                "--replies-cpu is for --open-loop and --throughput: the client of a ping-pong does nothing but wait for its reply".into(),
            ));
        }
        if self.trace || !self.third_party(preset::find(&self.preset)?).is_empty() {
            return Err(Error::Invalid(
                "--replies-cpu with --trace or --third-party: their clients do not poll the tester's card, whose interrupts are deferred".into(),
            ));
        }
        Host::system().require_online(cpu)?;
        Ok(Some(cpu))
    }

    fn rps_cpu(&self, cpus: Cpus) -> Result<Option<u32>> {
        match self.rps.as_str() {
            "poller" => Ok(Some(cpus.poller)),
            "none" => Ok(None),
            number => number.parse().map(Some).map_err(|_| {
                Error::Invalid(format!(
                    "--rps {number}: it has to be poller, none, or the number of a CPU"
                ))
            }),
        }
    }

    /// The module beside those of the loads, or else the one that is installed.
    fn module(&self) -> Option<PathBuf> {
        Some(self.modules.join("kbp.ko")).filter(|file| file.exists())
    }

    fn loads(&self, cpus: Cpus) -> LoadConfig {
        let mut loads = LoadConfig {
            hog_cpus: vec![cpus.poller, cpus.poller, cpus.application, cpus.application],
            ..LoadConfig::against(cpus.poller, &self.modules, self.seed)
        };
        loads.storm.cpu = self.storm_cpu.unwrap_or(cpus.poller);
        loads
    }

    /// All of it, for the result.
    ///
    /// # Errors
    /// When what sets the poller's CPU's frequency can't be read.
    pub(super) fn config(&self, plan: &Plan, options: &Options) -> Result<Config> {
        let (host, client) = (Host::system(), &options.client);
        let poller = options.path.cpus.poller;
        Ok(Config {
            seed: client.seed,
            payload_len: client.payload_len,
            period_ns: client.period_ns,
            jitter_percent: client.jitter_percent,
            timeout_ns: client.timeout_ns,
            warmup_pings: client.warmup_pings,
            row_ns: options.row_ns.clone(),
            cpus: options.path.cpus,
            replies_cpu: options.path.replies_cpu,
            app_fifo_priority: self.app_priority,
            poller_fifo_priority: self.poller_priority,
            rt_budget: Some(self.rt_budget),
            storm: Load::Storm.words(&options.loads),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            loads: plan
                .loads
                .concat()
                .into_iter()
                .filter_map(|name| {
                    let words = match Load::from_name(&name)? {
                        Load::Stream => streams::words(&options.streams, options.path.cpus),
                        load => load.words(&options.loads),
                    };
                    Some((name, words))
                })
                .collect(),
            plan: Some(plan.clone()),
            rps_cpu: options.path.rps_cpu,
            cpufreq: cpu_words::frequency(&host, poller)?,
            cpuidle: cpu_words::idle(&host, poller)?,
            rules: Some(options.path.rules),
            no_traffic: options
                .frames
                .iter()
                .any(|frames| matches!(frames, Traffic::Nothing(_))),
            services: options
                .frames
                .iter()
                .filter_map(Traffic::service)
                .map(|service| (service.name().into(), service.words()))
                .collect(),
            frames: options.frames.iter().filter_map(frames::setting).collect(),
        })
    }
}

/// `LOAD=MS`.
fn load_ms(text: &str) -> std::result::Result<(String, u32), String> {
    let (load, ms) = text
        .split_once('=')
        .ok_or("it has to be a load and milliseconds: storm=300")?;
    tables::load(load).map_err(|error| error.to_string())?;
    match ms.parse() {
        Ok(ms) if (10..=3_600_000).contains(&ms) => Ok((load.into(), ms)),
        _ => Err(format!("{ms} ms: it has to be 10 to 3600000")),
    }
}

fn pair(names: &[String], option: &str) -> Result<[String; 2]> {
    <[String; 2]>::try_from(names.to_vec()).map_err(|_| {
        Error::Invalid(format!(
            "{option} takes two interfaces: who receives, who asks"
        ))
    })
}

/// What was named, or else what the preset has.
fn or(named: &[String], preset: &[&str]) -> Vec<String> {
    if named.is_empty() {
        preset.iter().map(|name| (*name).into()).collect()
    } else {
        named.to_vec()
    }
}

/// Who runs where by default: everybody on a CPU of their own; with fewer than four, the poller alone as long as it
/// goes, since it takes all that there is.
fn spread(online: &[u32]) -> Cpus {
    let at = |place: usize| online.get(place).or(online.first()).copied().unwrap_or(0);
    let [tester, poller, application] = match online.len() {
        0 | 1 => [0, 0, 0],
        2 => [0, 1, 0],
        3 => [0, 1, 2],
        _ => [1, 2, 3],
    };
    Cpus {
        housekeeping: at(0),
        tester: at(tester),
        poller: at(poller),
        application: at(application),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn args(words: &[&str]) -> CompareArgs {
        let line = std::iter::once("compare").chain(words.iter().copied());
        Line::try_parse_from(line).unwrap().args
    }

    /// `make demo` shows what it showed before there was `kbp compare`: the same rows in the same order.
    #[test]
    fn the_demo_is_a_preset() {
        let demo = args(&["--preset", "demo", "--out", "x"]);
        let cells = demo.plan().unwrap().cells(1).unwrap();
        let names: Vec<String> = cells
            .iter()
            .map(|c| {
                format!(
                    "{} {} {}{}",
                    c.load,
                    c.mode,
                    c.round,
                    if c.third_party { "+" } else { "" }
                )
            })
            .collect();
        let one = |load: &str, plus: &str| {
            [
                format!("{load} softirq 1{plus}"),
                format!("{load} threaded 1"),
                format!("{load} threaded-fifo 1"),
                format!("{load} kbp-busy 1{plus}"),
                format!("{load} softirq 2"),
            ]
        };
        assert_eq!(names, [one("idle", "+"), one("storm", "")].concat());
    }

    #[test]
    fn a_load_can_have_rows_of_its_own_length() {
        let args_of = |of: &str| {
            Line::try_parse_from([
                "compare",
                "--row-ms",
                "150",
                "--row-ms-of",
                of,
                "--out",
                "x",
            ])
        };
        let options = args_of("storm=300").unwrap().args.options().unwrap();
        let ms = |load: &str| options.row_ns.of(load) / 1_000_000;
        assert_eq!([ms("idle"), ms("storm"), ms("stream")], [150, 300, 150]);
        assert!(args_of("rain=300").is_err());
        assert!(args_of("storm").is_err());
    }

    #[test]
    fn the_streams_have_the_rates_that_they_are_given() {
        let mbps = |udp: &str, tcp: &str| {
            let of = ["--stream-udp-mbps", udp, "--stream-tcp-mbps", tcp];
            args(&of).options().map(|options| options.streams)
        };
        let streams = mbps("0", "10000").unwrap();
        assert_eq!((streams.udp_bps, streams.tcp_bps), (0, 10_000_000_000));
        let both = mbps("0", "0").unwrap_err().to_string();
        assert!(both.contains("leave out"), "{both}");
        let usual = args(&[]).options().unwrap().streams;
        assert_eq!((usual.udp_bps, usual.tcp_bps), (200_000_000, 200_000_000));
    }

    #[test]
    fn options_change_a_preset_and_names_are_checked() {
        let changed = args(&[
            "--preset",
            "demo",
            "--mechanisms",
            "softirq,threaded",
            "--loads",
            "idle,storm",
        ]);
        let plan = changed.plan().unwrap();
        assert_eq!(plan.mechanisms, ["softirq", "threaded"]);
        assert_eq!(plan.loads, [["idle", "storm"]]);
        assert_eq!(
            args(&["--mechanisms", "all"]).plan().unwrap().mechanisms,
            tables::mechanisms()
        );
        for wrong in [
            ["--paths", "wifi"],
            ["--loads", "rain"],
            ["--mechanisms", "magic"],
        ] {
            let error = args(&wrong).plan().unwrap_err().to_string();
            assert!(error.contains("there are"), "{error}");
        }
        assert_eq!(
            args(&["--third-party", "none"]).plan().unwrap().third_party,
            [""; 0]
        );
    }

    #[test]
    fn everybody_has_a_cpu_as_far_as_they_go() {
        let of = |online: &[u32]| {
            let cpus = spread(online);
            [
                cpus.housekeeping,
                cpus.tester,
                cpus.poller,
                cpus.application,
            ]
        };
        assert_eq!(of(&[0, 1, 2, 3, 4]), [0, 1, 2, 3]);
        assert_eq!(of(&[0, 2, 5]), [0, 0, 2, 5]);
        assert_eq!(of(&[0, 1]), [0, 0, 1, 0]);
        assert_eq!(of(&[3]), [3, 3, 3, 3]);
    }

    #[test]
    fn the_storm_goes_where_it_is_sent_and_its_hogs_do_not() {
        let cpus = spread(&[0, 1, 2, 3]);
        let here = args(&[]).loads(cpus);
        let away = args(&["--storm-cpu", "0"]).loads(cpus);
        assert_eq!((here.storm.cpu, away.storm.cpu), (2, 0));
        assert_eq!(here.hog_cpus, away.hog_cpus);
    }

    #[test]
    fn replies_have_a_cpu_of_their_own_where_there_are_any() {
        let refused = |more: &[&str]| {
            let words = [&["--cpus", "0", "0", "0", "0", "--replies-cpu"], more].concat();
            args(&words).options().unwrap_err().to_string()
        };
        let taken = refused(&["0", "--open-loop", "1000fps"]);
        assert!(taken.contains("nothing else"), "{taken}");
        let of_load = refused(&["1", "--storm-cpu", "1", "--open-loop", "1000fps"]);
        assert!(of_load.contains("--storm-cpu"), "{of_load}");
        let idle = refused(&["1"]);
        assert!(idle.contains("--open-loop"), "{idle}");
        let sockperf = refused(&["1", "--open-loop", "1000fps", "--third-party", "softirq"]);
        assert!(sockperf.contains("deferred"), "{sockperf}");
        let away = refused(&["9999", "--throughput", "1000fps"]);
        assert!(away.contains("9999"), "{away}");
    }
}
