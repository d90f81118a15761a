// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp man` and `kbp completion`: manual pages and shell completions, made of the command line
//! itself, for packages. Both commands are hidden, because a user finds `man kbp` and needs neither.
//!
//! Not here: the texts; they are the comments and examples of the arguments.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// `kbp man`
#[derive(Args)]
pub struct ManArgs {
    /// Directory for a page of each command; without it, the page of `kbp` is printed.
    dir: Option<PathBuf>,
}

/// `kbp completion`
#[derive(Args)]
pub struct CompletionArgs {
    /// The shell that completes.
    shell: Shell,
}

/// Writes the manual pages of `command` and of every visible command below it: `kbp.1`,
/// `kbp-measure.1`, `kbp-measure-demo.1`, as git has them.
pub fn man(command: Command, args: &ManArgs) -> Result<()> {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return Ok(std::io::stdout().write_all(&page)?);
    };
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    clap_mangen::generate_to(command, dir)
        .with_context(|| format!("write manual pages into {}", dir.display()))
}

/// Prints the completions of `command` for a shell.
pub fn completion(mut command: Command, args: &CompletionArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "kbp", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
