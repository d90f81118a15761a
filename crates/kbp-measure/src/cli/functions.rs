// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure functions`: count kernel functions while a command runs.

use std::process::Command;

use clap::Args;

use crate::error::{Error, Result};
use crate::functions::{Calls, Counter, NETWORK};
use crate::report::text::count;

/// `kbp measure functions`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kbp measure functions --per 1000 -- kbp measure pingpong client 10.9.0.1:7700 --count 980"
)]
pub struct FunctionsArgs {
    /// A kernel function; by default those that tell network paths apart
    #[arg(short, long = "function", value_name = "NAME")]
    functions: Vec<String>,
    /// Also print the calls divided by this number, for instance that of the round trips
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    per: Option<u64>,
    /// The command; the counts cover its run, on all CPUs and for everybody
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(super) fn run(args: &FunctionsArgs, json: bool) -> Result<u8> {
    let wanted: Vec<String> = match &args.functions[..] {
        [] => NETWORK.iter().map(|name| (*name).into()).collect(),
        names => names.to_vec(),
    };
    let counter = Counter::start(&wanted)?;
    let status = Command::new(&args.command[0])
        .args(&args.command[1..])
        .status()
        .map_err(|e| Error::sys(format!("run {}", args.command[0]), e))?;
    let calls = counter.read()?;
    drop(counter);
    if json {
        println!(
            "{}",
            serde_json::json!({ "per": args.per, "functions": calls })
        );
    } else {
        print!("{}", table(&calls, args.per));
    }
    if status.success() {
        return Ok(0);
    }
    Err(Error::Program {
        program: args.command[0].clone(),
        why: format!("it ended with {status}"),
    })
}

fn table(calls: &[Calls], per: Option<u64>) -> String {
    let mut text = format!(
        "{:<28} {:>12} {:>8} {:>8}\n",
        "function", "calls", "each", "missed"
    );
    for one in calls {
        let each = per.map_or(String::new(), |per| {
            format!("{:.2}", one.calls as f64 / per as f64)
        });
        let number = match one.symbol {
            Some(_) => count(one.calls),
            None => "not here".into(),
        };
        text += &format!(
            "{:<28} {number:>12} {each:>8} {:>8}\n",
            one.function, one.missed
        );
    }
    text
}
