// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends damaged messages to the generic netlink family `kbp` and looks whether it survives.
//!
//! For the lab's virtual machine only: a mistake in the module takes the kernel with it. It wants
//! a loaded module without pollers, creates pollers only on the CPUs that it is given, and removes
//! them. Whether the kernel complained (a splat in the log) is the lab script's business; this
//! program fails when the family stops answering, when something without privilege succeeds, or
//! when something is left behind.

mod generate;

use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Parser;
use kbp_core::model::PollerSpec;
use kbp_core::netlink::{open_socket, resolve};
use kbp_core::uapi::{FAMILY_NAME, FAMILY_VERSION};
use kbp_core::{Class, Client, CpuList, Host};
use netlink_sys::Socket;

use generate::{Datagram, Generator, Surroundings};

/// One in this many messages is sent without privilege.
const UNPRIVILEGED_SHARE: u64 = 20;
/// After this many messages the family is asked something well-formed.
const PROBE_EVERY: u64 = 10_000;
/// The user `nobody`.
const NOBODY: u32 = 65_534;
/// What differs between the seeds of the privileged and the unprivileged messages.
const UNPRIVILEGED_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Sends damaged messages to the netlink family kbp and looks whether it survives.
#[derive(Parser)]
#[command(name = "kbp-fuzz", version)]
struct Args {
    /// How many messages.
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Where the random numbers start; the same seed gives the same messages.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CPUs on which pollers may be created, in list format.
    #[arg(long, value_name = "LIST")]
    cpus: CpuList,
    /// The part that runs without privilege; used by the program itself.
    #[arg(long, hide = true)]
    unprivileged: bool,
}

/// How the kernel answered.
#[derive(Default)]
struct Tally {
    sent: u64,
    objects: u64,
    silent: u64,
    abandoned: u64,
    answers: BTreeMap<i32, u64>,
    unsent: BTreeMap<i32, u64>,
}

impl Tally {
    /// Count the messages of a datagram of the kernel.
    fn count(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let code = rest
                .get(16..20)
                .map_or(0, |b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            match u16::from_ne_bytes([rest[4], rest[5]]) {
                2 | 3 => *self.answers.entry(-code).or_default() += 1,
                _ => self.objects += 1,
            }
            rest = rest
                .get(length.max(16).next_multiple_of(4)..)
                .unwrap_or_default();
        }
    }

    fn print(&self, title: &str) {
        println!(
            "{title}: {} sent, {} objects received, {} without an answer, {} answers abandoned",
            self.sent, self.objects, self.silent, self.abandoned
        );
        for (what, counts) in [
            ("answered", &self.answers),
            ("not accepted by send", &self.unsent),
        ] {
            for (errno, count) in counts {
                println!("  {count:>8}  {what}: {}", describe(*errno));
            }
        }
    }
}

fn describe(errno: i32) -> String {
    match errno {
        0 => "done (0)".into(),
        _ => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Send one datagram and read what the kernel says to it. The kernel answers inside of the system
/// call, so nothing has to be waited for.
fn exchange(
    socket: &mut Socket,
    datagram: &Datagram,
    tally: &mut Tally,
    buffer: &mut Vec<u8>,
) -> Outcome<()> {
    tally.sent += 1;
    if let Err(error) = socket.send(&datagram.bytes, libc::MSG_DONTWAIT) {
        *tally
            .unsent
            .entry(error.raw_os_error().unwrap_or(0))
            .or_default() += 1;
    }
    if datagram.abandon {
        tally.abandoned += 1;
        *socket = open_socket()?;
        return Ok(());
    }
    let mut answers = 0;
    loop {
        buffer.clear();
        match socket.recv(buffer, libc::MSG_DONTWAIT) {
            Ok(_) => tally.count(buffer),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(_) => break,
        }
        answers += 1;
    }
    tally.silent += u64::from(answers == 0);
    Ok(())
}

fn surroundings(host: &Host, cpus: &CpuList) -> Outcome<Option<Surroundings>> {
    let socket = open_socket()?;
    let Some(family) = resolve(&socket, FAMILY_NAME, FAMILY_VERSION)? else {
        return Ok(None);
    };
    let mut interfaces = vec![("kbp-none".to_owned(), 1_000_000)];
    for name in host.interface_names()? {
        let ifindex = host.interface(&name)?.ifindex;
        interfaces.push((name, ifindex));
    }
    Ok(Some(Surroundings {
        family: family.id,
        version: family.version,
        cpus: cpus.iter().collect(),
        online: host.online_cpus()?.iter().collect(),
        interfaces,
    }))
}

fn fuzz(args: &Args, around: Surroundings) -> Outcome<Tally> {
    let seed = if args.unprivileged {
        args.seed ^ UNPRIVILEGED_SEED
    } else {
        args.seed
    };
    let mut generator = Generator::new(seed, around, args.unprivileged);
    let mut socket = open_socket()?;
    let mut buffer = Vec::with_capacity(1 << 16);
    let mut tally = Tally::default();
    for number in 1..=args.messages {
        exchange(&mut socket, &generator.next(), &mut tally, &mut buffer)?;
        if number % PROBE_EVERY == 0 {
            let pollers = Client::connect()?.pollers()?.len();
            println!("seed {seed}: {number} messages, {pollers} pollers now");
        }
    }
    Ok(tally)
}

/// The share without privilege, in a process of its own: the kernel looks at the sender's rights
/// and at those of who opened the socket.
fn run_unprivileged(args: &Args, messages: u64) -> Outcome<bool> {
    let status = Command::new(std::env::current_exe()?)
        .args(["--unprivileged", "--messages", &messages.to_string()])
        .args([
            "--seed",
            &args.seed.to_string(),
            "--cpus",
            &args.cpus.to_string(),
        ])
        .uid(NOBODY)
        .gid(NOBODY)
        .status()?;
    Ok(status.success())
}

fn unprivileged_main(args: &Args, around: Surroundings) -> Outcome<bool> {
    let tally = fuzz(args, around)?;
    tally.print("without privilege");
    let succeeded = tally.answers.get(&0).copied().unwrap_or(0);
    if succeeded > 0 {
        eprintln!("kbp-fuzz: {succeeded} requests succeeded without privilege");
    }
    Ok(succeeded == 0)
}

/// The pollers that stay; the first CPU's comes and goes with the messages.
fn create_pollers(args: &Args) -> Outcome<()> {
    let mut client = Client::connect()?;
    if !client.pollers()?.is_empty() {
        return Err(
            "there are pollers already, which damaged messages could hit; delete them first".into(),
        );
    }
    for cpu in args.cpus.iter().skip(1) {
        client.poller_new(&PollerSpec::new(cpu))?;
    }
    Ok(())
}

/// Remove what is left and ask whether anything remains.
fn clean_up() -> Outcome<()> {
    let mut client = Client::connect()?;
    for poller in client.pollers()? {
        client.poller_del(poller.cpu)?;
    }
    let (pollers, napis) = (client.pollers()?.len(), client.napis()?.len());
    if pollers + napis > 0 {
        return Err(format!("{pollers} pollers and {napis} attachments can't be removed").into());
    }
    Ok(())
}

fn privileged_main(args: &Args, around: Surroundings) -> Outcome<bool> {
    let start = Instant::now();
    create_pollers(args)?;
    let unprivileged = (args.messages / UNPRIVILEGED_SHARE).max(1);
    let refused = run_unprivileged(args, unprivileged);
    let privileged = Args {
        messages: args.messages.saturating_sub(unprivileged),
        cpus: args.cpus.clone(),
        ..*args
    };
    let tally = fuzz(&privileged, around);
    // Whatever happened, nothing of ours stays behind.
    let cleaned = clean_up();
    tally?.print("with privilege");
    cleaned?;
    println!(
        "seed {}: {} messages in {:.1} s; the family answers",
        args.seed,
        args.messages,
        start.elapsed().as_secs_f64()
    );
    refused
}

fn run(args: &Args) -> Outcome<ExitCode> {
    let host = Host::system();
    for cpu in args.cpus.iter() {
        host.require_online(cpu)?;
    }
    if args.cpus.is_empty() {
        return Err("--cpus names no CPU".into());
    }
    let Some(around) = surroundings(&host, &args.cpus)? else {
        eprintln!(
            "kbp-fuzz: the kbp module is not loaded; this program is for the lab's virtual machine"
        );
        return Ok(ExitCode::from(Class::NotLoaded.exit_code()));
    };
    if !args.unprivileged {
        println!("seed {}", args.seed);
    }
    let good = if args.unprivileged {
        unprivileged_main(args, around)?
    } else {
        privileged_main(args, around)?
    };
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kbp-fuzz: seed {}: {error}", args.seed);
            ExitCode::FAILURE
        }
    }
}
