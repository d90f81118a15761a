// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure power`: what this machine uses for a time, or while a command runs.
//!
//! Not here: the measuring ([`crate::power`]), and the text of its report ([`super::power_text`]).

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use kbp_core::{CpuList, Host};

use super::power_text::text;
use crate::error::{Error, Result};
use crate::power::model::{Model, DEFAULT};
use crate::power::report::CommandEnd;
use crate::power::{measure, Request};
use crate::{hold, interrupt};

/// Length of a measurement without a command, seconds.
const SECONDS: f64 = 10.0;
/// The kernel's account of CPU time has ticks of 10 ms: less than ten of them tell nothing.
const SECONDS_MIN: f64 = 0.1;
/// A week.
const SECONDS_MAX: f64 = 7.0 * 86_400.0;
/// Reading more often costs what is to be measured.
const INTERVAL_MIN: f64 = 0.01;
/// A small counter goes round in about a minute at the highest power.
const INTERVAL_MAX: f64 = 60.0;

const EXAMPLES: &str = "\
Examples:
  kbp measure power --seconds 30 --packets eth0         this machine, for half a minute
  kbp measure power --cpus 2-3 -- sockperf ping-pong -i 10.9.0.1   while a command runs
  kbp measure power --print-model                       the figures of the estimate, and where they are from

The exit code is that of the command. docs/reference/power.md describes what is printed.";

/// `kbp measure power`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PowerArgs {
    /// Measure for this long; 10 s unless a command is given
    #[arg(long, value_name = "S", conflicts_with = "command")]
    seconds: Option<f64>,
    /// Read the energy counters this often, seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    interval: f64,
    /// Look at these CPUs (0-3,8); all that are online when absent
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Count the packets of these interfaces, and the energy of one
    #[arg(long, value_name = "INTERFACE", num_args = 1.., value_delimiter = ',')]
    packets: Vec<String>,
    /// Estimate by this model, also where energy is counted
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Print the model of the estimate, and measure nothing
    #[arg(long, conflicts_with_all = ["seconds", "interval", "cpus", "packets", "model", "command"])]
    print_model: bool,
    /// Command that runs meanwhile
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A time in a range; `option` is what it was given by.
fn time(option: &str, seconds: f64, least: f64, most: f64) -> Result<Duration> {
    if (least..=most).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(Error::Invalid(format!(
        "{option} {seconds} makes no sense; give {least} to {most} seconds"
    )))
}

impl PowerArgs {
    fn length(&self) -> Result<Duration> {
        let seconds = self.seconds.unwrap_or(SECONDS);
        time("--seconds", seconds, SECONDS_MIN, SECONDS_MAX)
    }

    fn request(&self, host: &Host) -> Result<Request> {
        let cpus = match &self.cpus {
            Some(cpus) if cpus.is_empty() => {
                return Err(Error::Invalid(
                    "--cpus names no CPU; leave it out for all of them".into(),
                ));
            }
            Some(cpus) => cpus.clone(),
            None => host.online_cpus().map_err(kbp_core::Error::from)?,
        };
        let model = self.model.as_deref();
        Ok(Request {
            interval: time("--interval", self.interval, INTERVAL_MIN, INTERVAL_MAX)?,
            cpus,
            interfaces: self.packets.clone(),
            model: model.map(|path| Model::load(Some(path))).transpose()?,
        })
    }

    /// The command; with `json`, what it prints goes to standard error, so that standard output is one object.
    fn command(&self, json: bool) -> Result<Command> {
        let mut command = hold::command(&self.command)?;
        if json {
            let ours = io::stderr().as_fd().try_clone_to_owned();
            command.stdout(ours.map_err(|e| Error::sys("share standard error", e))?);
        }
        Ok(command)
    }
}

pub(super) fn run(args: &PowerArgs, json: bool) -> Result<u8> {
    if args.print_model {
        print_model(json)?;
        return Ok(0);
    }
    let host = Host::system();
    let (request, length) = (args.request(&host)?, args.length()?);
    interrupt::catch()?;
    let (mut report, code) = measure(&host, &request, || match args.command[..] {
        [] => {
            hold::for_time(length);
            Ok(0)
        }
        _ => hold::while_runs(args.command(json)?),
    })?;
    report.partial = interrupt::requested();
    report.command = (!args.command.is_empty()).then(|| CommandEnd {
        words: args.command.clone(),
        exit_code: code,
    });
    if json {
        println!("{}", serde_json::json!(report));
    } else {
        print!("{}", text(&report));
    }
    Ok(code)
}

fn print_model(json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::json!(Model::load(None)?));
    } else {
        print!("{DEFAULT}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use kbp_core::Class;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        power: PowerArgs,
    }

    fn parse(words: &str) -> std::result::Result<PowerArgs, clap::Error> {
        Ok(Cli::try_parse_from(words.split_whitespace())?.power)
    }

    #[test]
    fn interfaces_end_where_the_command_begins() {
        let args = parse("x --packets eth0 eth1 --interval 2 -- sleep 1").unwrap();
        assert_eq!(args.packets, ["eth0", "eth1"]);
        assert_eq!(args.command, ["sleep", "1"]);
        assert_eq!(parse("x --packets a,b").unwrap().packets, ["a", "b"]);
        assert!(parse("x --seconds 3 -- sleep 1").is_err());
        assert!(parse("x --print-model --seconds 3").is_err());
        Cli::command().debug_assert();
    }

    #[test]
    fn nonsense_is_refused_with_the_way_out() {
        let host = Host::system();
        for (words, fault) in [
            ("x --interval 0", "--interval 0 "),
            ("x --interval=-1", "--interval -1 "),
            ("x --interval nan", "--interval NaN "),
            ("x --interval 61", "0.01 to 60"),
            ("x --seconds 0", "--seconds 0 "),
            ("x --seconds inf", "--seconds inf "),
            ("x --cpus=", "--cpus names no CPU"),
        ] {
            let args = parse(words).unwrap();
            let refused = args.request(&host).and_then(|_| args.length());
            let error = refused.expect_err(words);
            assert!(error.to_string().contains(fault), "{words}: {error}");
            assert_eq!(error.class(), Class::Usage, "{words}");
        }
        assert!(parse("x --cpus a").is_err());
    }
}
