// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a measurement or a mechanism is held around: a command, or a time. An interrupt ends either.
//!
//! Not here: what is held, and what is said of it afterwards.

use std::io;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::interrupt;

/// How often a wait looks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a command may take to end by itself after an interrupt.
const HAND_ON_AFTER: Duration = Duration::from_secs(1);
/// Exit code of a command that was ended by a signal, added to the signal's number, as shells do.
const EXIT_SIGNAL: i32 = 128;

/// Waits this long, or until an interrupt.
pub fn for_time(limit: Duration) {
    let start = Instant::now();
    while !interrupt::requested() {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// A command of its words.
///
/// # Errors
/// When there are none.
pub fn command(words: &[String]) -> Result<Command> {
    let [program, arguments @ ..] = words else {
        return Err(Error::Invalid("there is no command to run".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// An interrupt of the terminal reaches the command too, which then ends by itself. One that was for this process
/// alone is handed on after a while, once.
#[derive(Debug, Default)]
struct Patience {
    asked: Option<Instant>,
    told: bool,
}

impl Patience {
    fn is_over(&mut self) -> bool {
        if self.told || !interrupt::requested() {
            return false;
        }
        let asked = *self.asked.get_or_insert_with(Instant::now);
        self.told = asked.elapsed() >= HAND_ON_AFTER;
        self.told
    }
}

fn failed(program: &str, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::Core(kbp_core::Error::NotFound(format!(
            "there is no command '{program}' in PATH; name one that is installed, or give its path"
        ))),
        _ => Error::sys(format!("run {program}"), source),
    }
}

/// Runs a command to its end; returns its exit code, or 128 and the number of the signal that ended it.
///
/// # Errors
/// When it can't be started.
pub fn while_runs(mut command: Command) -> Result<u8> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|e| failed(&program, e))?;
    let mut patience = Patience::default();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| failed(&program, e))? {
            return Ok(exit_code(status));
        }
        if patience.is_over() {
            let pid = nix::unistd::Pid::from_raw(child.id() as i32);
            // A command that ended meanwhile needs no signal.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| EXIT_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Result<u8> {
        let words: Vec<String> = words.iter().map(|word| (*word).into()).collect();
        while_runs(command(&words)?)
    }

    #[test]
    fn the_exit_code_is_that_of_the_command() {
        assert_eq!(run(&["sh", "-c", "exit 7"]).unwrap(), 7);
        assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).unwrap(), 128 + 15);
        let error = run(&["no-such-command-here"]).unwrap_err();
        assert_eq!(error.class(), kbp_core::Class::NotFound);
        assert!(
            error.to_string().contains("no-such-command-here"),
            "{error}"
        );
        assert_eq!(run(&[]).unwrap_err().class(), kbp_core::Class::Usage);
    }
}
