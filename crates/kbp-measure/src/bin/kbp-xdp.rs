// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts an XDP program at an interface until it is told to end: for the lab's tests, as a user of XDP beside the pollers.
//!
//! The program does one thing with the frames that `kbp measure sockets send raw` sends, counts them, and lets
//! everything else go on.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use kbp_measure::tester::sockets::{act, Action, Hook};
use kbp_measure::{interrupt, Error, Result};

/// How often it looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Puts an XDP program at an interface, says `attached`, and prints how many frames it saw when it is told to end.
#[derive(Parser)]
#[command(name = "kbp-xdp", version)]
struct Args {
    /// The interface.
    dev: String,
    /// Where the program runs.
    hook: HookName,
    /// What it does with the frames.
    action: ActionName,
    /// The interface that `redirect` sends them to.
    #[arg(required_if_eq("action", "redirect"))]
    to: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum HookName {
    Generic,
    Native,
}

#[derive(Clone, Copy, ValueEnum)]
enum ActionName {
    Pass,
    Drop,
    Return,
    Redirect,
}

fn run(args: &Args) -> Result<()> {
    interrupt::catch()?;
    let hook = match args.hook {
        HookName::Generic => Hook::Generic,
        HookName::Native => Hook::Native,
    };
    let action = match (args.action, &args.to) {
        (ActionName::Pass, _) => Action::Pass,
        (ActionName::Drop, _) => Action::Drop,
        (ActionName::Return, _) => Action::Return,
        (ActionName::Redirect, Some(to)) => Action::Redirect(to.clone()),
        (ActionName::Redirect, None) => {
            return Err(Error::Invalid("redirect needs an interface".into()))
        }
    };
    let acting = act(&args.dev, hook, &action)?;
    println!("attached");
    while !interrupt::requested() {
        std::thread::sleep(LOOK_EVERY);
    }
    println!("frames={}", acting.count()?);
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kbp-xdp: {error}");
            ExitCode::FAILURE
        }
    }
}
