// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure sockets send`, `receive` and `table`: one way packet rates.
//!
//! Not here: the path; namespaces and interfaces are given.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};

use super::EXIT_NOT_MET;
use crate::clock::{monotonic_ns, sleep_until_ns};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::machine::begin_rows;
use crate::place::{run_at, Place};
use crate::report::text::count;
use crate::result::Row;
use crate::tester::sockets::ends::{self, Counter, Length, Offer};
use crate::tester::sockets::rate::{middle, Sample};
use crate::tester::sockets::{
    self, mac_of_neighbour, Account, Mac, ReceiveAt, Report, Run, SendTo, Technique, TECHNIQUES,
};

const NS_PER_S: f64 = 1e9;
/// What the frames of `send` and `receive` are marked with unless it is said.
const RUN: u32 = 1;

/// `kbp measure sockets …`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Techniques: udp, udp-mmsg, raw, raw-mmsg, ring, xdp-generic, xdp-native; docs/reference/sockets.md
describes them.

Example, with two namespaces at a bridge:
  kbp measure sockets table --tx-netns a --tx-dev eth0 --rx-netns b --rx-dev eth0 \\
      --to 10.0.0.2:7000 --sizes 64,512,1500 --bursts 16,32,64 --out result.json")]
pub enum SocketsCommand {
    /// Send frames as fast as it goes, or at a rate
    Send(SendArgs),
    /// Count frames until the end, or an interrupt
    Receive(ReceiveArgs),
    /// Both ends in one process: techniques × sizes × bursts
    Table(Box<TableArgs>),
}

/// Where one end runs.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Network namespace, as `ip netns` knows it
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Run as SCHED_FIFO with this priority
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
}

impl EndArgs {
    fn place(&self) -> Place {
        Place {
            cpu: self.cpu,
            fifo_priority: self.fifo,
            netns: self.netns.clone(),
        }
    }
}

/// `kbp measure sockets send`
#[derive(Debug, Args)]
pub struct SendArgs {
    /// How to send
    technique: String,
    /// Interface to send by
    #[arg(long, value_name = "DEV")]
    dev: String,
    /// Address and port of the receiver
    #[arg(long, value_name = "ADDR")]
    to: SocketAddr,
    /// The receiver's link layer address, for techniques below IP; asked for on the link when absent
    #[arg(long, value_name = "MAC", value_parser = str::parse::<Mac>)]
    to_mac: Option<Mac>,
    /// Length of a frame, bytes
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Packets of a burst
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    burst: u32,
    /// Packets a second; as fast as it goes when absent
    #[arg(long, value_name = "PPS")]
    rate: Option<f64>,
    /// Length of the run, seconds
    #[arg(long, default_value_t = 3.0, conflicts_with = "count")]
    seconds: f64,
    /// Number of packets, instead of a length
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Mark of the run, which the receiver has to know
    #[arg(long, default_value_t = RUN)]
    run: u32,
    #[command(flatten)]
    end: EndArgs,
}

/// `kbp measure sockets receive`
#[derive(Debug, Args)]
pub struct ReceiveArgs {
    /// How to receive
    technique: String,
    /// Interface that the frames come in by
    #[arg(long, value_name = "DEV")]
    dev: String,
    /// Address and port to serve
    #[arg(long, default_value = "0.0.0.0:7000", value_name = "ADDR")]
    at: SocketAddr,
    /// Most packets of one call
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    burst: u32,
    /// End this many seconds after the first frame
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// End as soon as this many frames are there
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Have the socket poll the device itself for this many microseconds when it waits (SO_BUSY_POLL, preferred to
    /// interrupts)
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..))]
    busy_poll: Option<u32>,
    /// Length of the slices whose rates are compared, ms
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    slice_ms: u64,
    /// Mark of the run, as the sender has it
    #[arg(long, default_value_t = RUN)]
    run: u32,
    #[command(flatten)]
    end: EndArgs,
}

/// `kbp measure sockets table`
#[derive(Debug, Args)]
pub struct TableArgs {
    /// Namespace of the sender
    #[arg(long, value_name = "NAME")]
    tx_netns: Option<String>,
    /// Interface of the sender
    #[arg(long, value_name = "DEV")]
    tx_dev: String,
    /// CPU of the sender
    #[arg(long, value_name = "N")]
    tx_cpu: Option<u32>,
    /// Namespace of the receiver
    #[arg(long, value_name = "NAME")]
    rx_netns: Option<String>,
    /// Interface of the receiver
    #[arg(long, value_name = "DEV")]
    rx_dev: String,
    /// CPU of the receiver
    #[arg(long, value_name = "N")]
    rx_cpu: Option<u32>,
    /// SCHED_FIFO priority of both
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
    /// Address and port of the receiver
    #[arg(long, value_name = "ADDR")]
    to: SocketAddr,
    /// Techniques, by commas; all that work here when absent
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    techniques: Vec<String>,
    /// Lengths of a frame, bytes
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "LIST")]
    sizes: Vec<usize>,
    /// Packets of a burst
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "LIST",
        value_parser = clap::value_parser!(u32).range(1..=1_024))]
    bursts: Vec<u32>,
    /// Packets a second; as fast as it goes when absent
    #[arg(long, value_name = "PPS")]
    rate: Option<f64>,
    /// Length of a run, seconds; the middle third is what counts
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Length of the slices whose rates are compared, ms
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    slice_ms: u64,
    /// Go through the table this many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What the rows say of the mechanism
    #[arg(long, default_value = "softirq")]
    mode: String,
    /// What the rows say of the load
    #[arg(long, default_value = "idle")]
    load: String,
    /// What the rows say of the topology
    #[arg(long, default_value = "bridge")]
    path: String,
    /// Write a result here, after every row
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Revision of the source, for the result
    #[arg(long, env = "KBP_GIT")]
    git: Option<String>,
    /// What the machine's time is, for the result: virtual or real
    #[arg(long, env = "LAB_CLOCK")]
    clock: Option<String>,
}

pub(super) fn run(command: &SocketsCommand, json: bool) -> Result<u8> {
    interrupt::catch()?;
    match command {
        SocketsCommand::Send(args) => run_at(&args.end.place(), || send(args, json)),
        SocketsCommand::Receive(args) => receive(args, json),
        SocketsCommand::Table(args) => table(args, json),
    }
}

fn nanoseconds(seconds: f64) -> Result<u64> {
    if seconds.is_finite() && seconds > 0.0 && seconds <= 1e6 {
        return Ok((seconds * NS_PER_S) as u64);
    }
    Err(Error::Invalid(format!(
        "{seconds} seconds: it has to be above 0 and at most 1000000"
    )))
}

fn send(args: &SendArgs, json: bool) -> Result<u8> {
    let technique = Technique::named(&args.technique)?;
    let offer = Offer {
        burst: args.burst,
        per_s: args.rate,
        length: match args.count {
            Some(packets) => Length::Packets(packets),
            None => Length::ForNs(nanoseconds(args.seconds)?),
        },
    };
    offer.check()?;
    let mac = match args.to_mac {
        Some(mac) => mac,
        None if technique.below_ip => mac_of_neighbour(args.to)?,
        None => Mac::default(),
    };
    let mut sender = technique.sender(&SendTo {
        dev: args.dev.clone(),
        addr: args.to,
        mac,
        frame_len: args.size,
        burst: args.burst,
        run: args.run,
    })?;
    let start_ns = monotonic_ns()?;
    let taken = ends::send(
        &mut *sender,
        &offer,
        &Counter::default(),
        &AtomicBool::new(false),
    )?;
    let span_s = (monotonic_ns()? - start_ns).max(1) as f64 / NS_PER_S;
    let sent_per_s = taken.sent as f64 / span_s;
    let held = offer.is_held(sent_per_s);
    if json {
        let said = serde_json::json!({
            "technique": technique.name, "sent": taken.sent, "refused": taken.refused,
            "seconds": span_s, "sent_per_s": sent_per_s, "offered_per_s": args.rate, "held": held,
        });
        println!("{said}");
    } else {
        println!(
            "{} sent in {span_s:.3} s, {} a second; {} refused by a full queue",
            count(taken.sent),
            count(sent_per_s as u64),
            count(taken.refused)
        );
    }
    Ok(exit_code(held, args.rate, sent_per_s))
}

/// Says so when a rate was not held.
fn exit_code(held: bool, offered_per_s: Option<f64>, sent_per_s: f64) -> u8 {
    if held {
        return 0;
    }
    eprintln!(
        "kbp: {} packets a second were asked for, and the sender came to {}: ask for less, or give \
         it a CPU of its own",
        count(offered_per_s.unwrap_or(0.0) as u64),
        count(sent_per_s as u64)
    );
    EXIT_NOT_MET
}

fn receive(args: &ReceiveArgs, json: bool) -> Result<u8> {
    let technique = Technique::named(&args.technique)?;
    let span_ns = nanoseconds(args.seconds)?;
    let (received, stop) = (Counter::default(), AtomicBool::new(false));
    let (account, drops, samples) = std::thread::scope(|scope| {
        let end = scope.spawn(|| -> Result<(Account, u64)> {
            args.end.place().apply()?;
            let mut receiver = technique.receiver(&ReceiveAt {
                dev: args.dev.clone(),
                addr: args.at,
                burst: args.burst,
                busy_poll_us: args.busy_poll,
            })?;
            let mut account = Account::new(args.run);
            eprintln!("receiving by {}", technique.name);
            ends::receive(&mut *receiver, &mut account, &received, &stop)?;
            Ok((account, receiver.drops()?))
        });
        let samples = sample(&received, span_ns, args.slice_ms * 1_000_000, || {
            end.is_finished() || args.count.is_some_and(|count| received.get() >= count)
        });
        stop.store(true, Ordering::Relaxed);
        let (account, drops) = end.join().map_err(|_| Error::Panicked("receiver"))??;
        Ok::<_, Error>((account, drops, samples?))
    })?;
    let rates = middle(&samples);
    if json {
        let said = serde_json::json!({
            "technique": technique.name, "received": account.received, "foreign": account.foreign,
            "seq_end": account.seq_end, "dropped_at_socket": drops,
            "received_per_s": rates.received_per_s,
            "received_sd_per_s": rates.received_sd_per_s, "slices": rates.slices,
        });
        println!("{said}");
    } else {
        println!(
            "{} received, {} a second (± {}) in the middle of the run; highest number {}, {} \
             dropped at the socket, {} foreign",
            count(account.received),
            count(rates.received_per_s as u64),
            count(rates.received_sd_per_s as u64),
            count(account.seq_end.saturating_sub(1)),
            count(drops),
            count(account.foreign)
        );
    }
    Ok(0)
}

/// Reads the counter slice by slice, from the first frame on.
fn sample(
    received: &Counter,
    span_ns: u64,
    slice_ns: u64,
    is_over: impl Fn() -> bool,
) -> Result<Vec<Sample>> {
    let is_over = || is_over() || interrupt::requested();
    let read = || {
        let received = received.get();
        monotonic_ns().map(|at_ns| Sample {
            at_ns,
            sent: 0,
            received,
        })
    };
    while received.get() == 0 && !is_over() {
        sleep_until_ns(monotonic_ns()? + 1_000_000)?;
    }
    let mut samples = vec![read()?];
    let start_ns = samples[0].at_ns;
    let mut next_ns = start_ns + slice_ns;
    while next_ns <= start_ns + span_ns && !is_over() {
        let now_ns = monotonic_ns()?;
        if now_ns >= next_ns {
            samples.push(read()?);
            while next_ns <= now_ns {
                next_ns += slice_ns;
            }
        }
        sleep_until_ns(next_ns.min(now_ns + 20_000_000))?;
    }
    Ok(samples)
}

impl TableArgs {
    fn techniques(&self) -> Result<Vec<&'static Technique>> {
        if self.techniques.is_empty() {
            return Ok(TECHNIQUES.iter().collect());
        }
        self.techniques
            .iter()
            .map(|n| Technique::named(n))
            .collect()
    }

    fn run(&self, technique: &'static Technique, size: usize, burst: u32) -> Result<Run> {
        let place = |netns: &Option<String>, cpu| Place {
            cpu,
            fifo_priority: self.fifo,
            netns: netns.clone(),
        };
        Ok(Run {
            technique,
            send_place: place(&self.tx_netns, self.tx_cpu),
            receive_place: place(&self.rx_netns, self.rx_cpu),
            send_dev: self.tx_dev.clone(),
            receive_dev: self.rx_dev.clone(),
            addr: self.to,
            frame_len: size,
            offer: Offer {
                burst,
                per_s: self.rate,
                length: Length::ForNs(nanoseconds(self.seconds)?),
            },
            slice_ns: self.slice_ms * 1_000_000,
        })
    }

    /// The cells of one round: size by size, burst by burst, so that the techniques which are
    /// compared stand side by side in time.
    fn cells(&self, techniques: &[&'static Technique]) -> Result<Vec<Run>> {
        let mut cells = Vec::new();
        for &size in &self.sizes {
            for &burst in &self.bursts {
                for technique in techniques {
                    cells.push(self.run(technique, size, burst)?);
                }
            }
        }
        Ok(cells)
    }
}

fn table(args: &TableArgs, json: bool) -> Result<u8> {
    let (techniques, unavailable) = available(args)?;
    let mut result = begin_rows(args.clock.as_deref(), args.git.as_deref())?;
    if !json {
        println!("{}", heading());
    }
    let mut all_held = true;
    result.partial = true;
    'rounds: for round in 1..=args.rounds {
        for run in args.cells(&techniques)? {
            let report = match sockets::run(&run) {
                Err(_) if interrupt::requested() => break 'rounds,
                report => report?,
            };
            let row = Row {
                round,
                mode: args.mode.clone(),
                load: args.load.clone(),
                path: args.path.clone(),
                ..report.row(&run)
            };
            if !json {
                println!("{}", line(&run, &report));
            }
            all_held &= report.held;
            result.rows.push(row);
            if let Some(path) = &args.out {
                result.save(path)?;
            }
        }
    }
    result.partial = interrupt::requested();
    if let Some(path) = &args.out {
        result.save(path)?;
    }
    if json {
        let unavailable: Vec<_> = unavailable
            .iter()
            .map(|(technique, why)| serde_json::json!({"technique": technique.name, "why": why}))
            .collect();
        let said = serde_json::json!({"result": result, "unavailable": unavailable});
        println!("{said}");
    }
    if interrupt::requested() {
        let rows = result.rows.len();
        return Err(Error::Invalid(format!(
            "interrupted: the table has {rows} rows, and is not complete"
        )));
    }
    if !all_held {
        eprintln!("kbp: the sender could not hold the offered rate in the rows marked with !");
        return Ok(EXIT_NOT_MET);
    }
    Ok(0)
}

type Unavailable = Vec<(&'static Technique, String)>;

/// The techniques that can run here. One that was asked for by name has to; of the others, those
/// that can't are named with the reason.
fn available(args: &TableArgs) -> Result<(Vec<&'static Technique>, Unavailable)> {
    let mut unavailable = Vec::new();
    let mut techniques = args.techniques()?;
    let mut error = None;
    techniques.retain(|technique| match can_run(args, technique) {
        Ok(()) => true,
        Err(why) if args.techniques.is_empty() => {
            eprintln!("kbp: without {}: {why}", technique.name);
            unavailable.push((*technique, why.to_string()));
            false
        }
        Err(why) => {
            error.get_or_insert(why);
            false
        }
    });
    match error {
        Some(error) => Err(error),
        None if techniques.is_empty() => Err(Error::Invalid(
            "no technique can run here: the reasons are above".into(),
        )),
        None => Ok((techniques, unavailable)),
    }
}

/// Opens the receiving end and closes it again.
fn can_run(args: &TableArgs, technique: &'static Technique) -> Result<()> {
    let place = Place {
        netns: args.rx_netns.clone(),
        ..Place::default()
    };
    let at = ReceiveAt {
        dev: args.rx_dev.clone(),
        addr: args.to,
        burst: 1,
        busy_poll_us: None,
    };
    run_at(&place, || technique.receiver(&at).map(drop))
}

fn heading() -> String {
    format!(
        "{:<12} {:>5} {:>6} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9}",
        "technique",
        "bytes",
        "burst",
        "offered/s",
        "sent/s",
        "received/s",
        "± sd",
        "refused",
        "dropped"
    )
}

fn line(run: &Run, report: &Report) -> String {
    let rates = &report.rates;
    let offered = run
        .offer
        .per_s
        .map_or_else(|| "most".into(), |rate| count(rate as u64));
    format!(
        "{:<12} {:>5} {:>6} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9}{}",
        run.technique.name,
        run.frame_len,
        run.offer.burst,
        offered,
        count(rates.sent_per_s as u64),
        count(rates.received_per_s as u64),
        count(rates.received_sd_per_s as u64),
        count(report.taken.refused),
        count(report.dropped_at_socket),
        if report.held { "" } else { " !" }
    )
}
