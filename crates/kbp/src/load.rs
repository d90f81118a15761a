// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp load` and `kbp unload`, with their progress line.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kbp_core::module::{self, Progress};
use kbp_core::{plan, state, Error};

use crate::context::Context;
use crate::print;

/// How many blocking tasks the progress line names.
const TASKS_SHOWN: usize = 3;

/// Arguments of `kbp load`.
#[derive(Args)]
pub struct LoadArgs {
    /// The module file; without it, the one installed for this kernel.
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitArgs,
}

/// Arguments of `kbp unload`.
#[derive(Args)]
pub struct UnloadArgs {
    #[command(flatten)]
    limit: LimitArgs,
}

#[derive(Args)]
struct LimitArgs {
    /// How long to wait until every task has changed over.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// A line on standard error that is overwritten on a terminal.
struct ProgressLine {
    what: &'static str,
    terminal: bool,
    shown: bool,
}

impl ProgressLine {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            terminal: io::stderr().is_terminal(),
            shown: false,
        }
    }

    fn show(&mut self, progress: &Progress) {
        let text = format!(
            "{} {} of {} s: {}",
            self.what,
            progress.elapsed.as_secs(),
            progress.limit.as_secs(),
            describe(progress)
        );
        let ends = if self.terminal {
            ("\r\x1b[K", "")
        } else {
            ("", "\n")
        };
        self.shown = true;
        // A progress line that can't be printed is no reason to stop.
        let _ = write!(io::stderr().lock(), "{}{text}{}", ends.0, ends.1);
    }
}

fn describe(progress: &Progress) -> String {
    let count = progress.blocking.len();
    let tasks: Vec<String> = progress
        .blocking
        .iter()
        .take(TASKS_SHOWN)
        .map(ToString::to_string)
        .collect();
    match count {
        0 => "waiting for idle CPUs".into(),
        _ if count > TASKS_SHOWN => format!("{count} tasks to go: {}, ...", tasks.join(", ")),
        _ => format!("{count} tasks to go: {}", tasks.join(", ")),
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown && self.terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

/// Run `kbp load`.
pub fn load(args: LoadArgs, context: &Context) -> Result<()> {
    let mut progress = ProgressLine::new("loading,");
    let loaded = module::load(
        &context.host,
        args.module.as_deref(),
        args.limit.timeout,
        &mut |p| progress.show(p),
    );
    drop(progress);
    let loaded = loaded.map_err(Error::from)?;
    if context.json {
        return print::json(context, &loaded);
    }
    print::line(match &loaded.path {
        Some(path) => format!(
            "loaded {} in {} ms; no packet is treated differently yet",
            path.display(),
            loaded.transition_ms
        ),
        None => "the kbp module is loaded already".into(),
    })
}

/// Run `kbp unload`.
pub fn unload(args: UnloadArgs, context: &Context) -> Result<()> {
    let remembered = state::peek(&context.host)?;
    module::refuse_held(&context.host, &remembered).map_err(Error::from)?;
    // An interrupt that can't be put back must not keep the module in the kernel.
    let undone = plan::undo_everything(&context.host);
    let mut progress = ProgressLine::new("unloading,");
    let unloaded = module::unload(&context.host, args.limit.timeout, &mut |p| progress.show(p));
    drop(progress);
    unloaded.map_err(Error::from)?;
    let released = undone?;
    if context.json {
        return print::json(context, &released);
    }
    print::lines(&released)?;
    print::line("the kbp module is unloaded")
}
