// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns of the virtual CPUs of a guest of the lab: long ones while nothing is timed, because short ones cost its host
//! much more (docs/decisions/007-lab-clocks.md). The lab names the commands; where it does not, nothing is done.

use std::env;

use crate::error::{Error, Result};
use crate::hold;

/// The command after which turns are long.
const LONG: &str = "LAB_TURNS_LONG";
/// The command after which they are as long as the script wants them: short enough to measure, where it has said nothing.
const CHOSEN: &str = "LAB_TURNS_CHOSEN";

/// Does something with long turns, and then has those again that the script has chosen.
///
/// # Errors
/// What the work returns, and when the turns can't be changed: what is measured after that would be wrong.
pub(crate) fn quickly<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    switch(LONG)?;
    let done = work();
    switch(CHOSEN).and(done)
}

fn switch(name: &str) -> Result<()> {
    let words = env::var(name).unwrap_or_default();
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() {
        return Ok(());
    }
    let output = hold::command(&words)?.output();
    let output = output.map_err(|e| Error::sys(format!("run ${name}"), e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "${name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}
