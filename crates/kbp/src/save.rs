// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp save` and `kbp restore`: what is attached, to a file and back.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kbp_core::netns;
use kbp_core::plan::Session;
use kbp_core::restore::{self, Failure, Options, Restored};
use kbp_core::setup::{self, SetupError};
use kbp_core::setup_read::{self, SetupFile};
use kbp_core::Error;
use serde_json::{json, Value};

use crate::attach::{print_attached_and_steered, print_backlog, report_values};
use crate::context::Context;
use crate::print;

/// Shown below the options of `kbp save`.
pub const EXAMPLES: &str = "\
Examples:
  kbp save                        to /etc/kbp/kbp.toml, from which kbp-restore.service restores it at boot
  kbp save --dry-run              what would be written
  kbp save before.toml            to another file
  kbp save -                      to standard output";

/// Shown below the options of `kbp restore`.
pub const RESTORE_EXAMPLES: &str = "\
Examples:
  kbp restore                     what /etc/kbp/kbp.toml says and is not so
  kbp restore --dry-run           what that would change
  kbp restore --wait 30s          wait for interfaces that are not there or not up yet
  kbp restore before.toml         what another file says";

/// What stands for standard input and output.
const STANDARD: &str = "-";

/// Arguments of `kbp save`.
#[derive(Args)]
pub struct SaveArgs {
    /// The file; `-` is standard output.
    #[arg(value_name = "FILE", default_value = setup::PATH)]
    file: PathBuf,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `kbp restore`.
#[derive(Args)]
pub struct RestoreArgs {
    /// The file; `-` is standard input.
    #[arg(value_name = "FILE", default_value = setup::PATH)]
    file: PathBuf,
    /// Print every change and make none.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for interfaces, network namespaces and CPUs that are not there yet.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
}

/// A file names the network namespaces itself, and what stands there without one is the host's. So from the view of
/// another namespace, by -n or by `ip netns exec`, it would be another machine's.
fn refuse_netns(context: &Context, command: &str) -> Result<(), Error> {
    let words = match (context.is_in_netns, netns::is_of_host()) {
        (true, _) => format!("`kbp {command}` works on all network namespaces at once; run it without -n"),
        (false, Some(false)) => format!(
            "`kbp {command}` works on all network namespaces at once, and this is not that of the host; run it there: \
             `nsenter -t 1 -m -n kbp {command}`"
        ),
        (false, _) => return Ok(()),
    };
    Err(Error::Usage(words))
}

/// Run `kbp save`.
pub fn save(args: SaveArgs, context: &Context) -> Result<()> {
    refuse_netns(context, "save")?;
    let mut client = context.client()?;
    let requested = Session::open(&context.host, &mut client)?.requested()?;
    let setup = &requested.setup;
    let release = context.host.kernel_release().map_err(Error::from)?;
    let origin = format!(
        "`kbp save`, version {}, on kernel {release}",
        env!("CARGO_PKG_VERSION")
    );
    let text = setup.text(&origin);
    let is_printed = args.dry_run || args.file == Path::new(STANDARD);
    if !is_printed {
        setup::write(&args.file, &text).map_err(Error::from)?;
    }
    let (pollers, attachments) = (setup.pollers.len(), setup.attachments.len());
    match (context.json, is_printed) {
        (true, _) => {
            let file = Some(&args.file).filter(|_| !is_printed);
            let left_out = &requested.left_out;
            let value = json!({ "version": setup::VERSION, "file": file, "setup": setup, "left_out": left_out });
            print::json(context, &value)?;
        }
        (false, true) => print::lines(text.lines())?,
        (false, false) => print::line(format!(
            "{}: {}, {}",
            args.file.display(),
            count(pollers, "poller"),
            count(attachments, "attachment")
        ))?,
    }
    requested.left_out.iter().for_each(print::note);
    match requested.left_out.len() {
        0 => Ok(()),
        left => Err(Error::Incomplete(format!(
            "{} could not be saved; the rest is",
            count(left, "attachment")
        ))
        .into()),
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn read(path: &Path) -> Result<SetupFile, Error> {
    if path != Path::new(STANDARD) {
        return Ok(setup_read::read(path)?);
    }
    let mut text = String::new();
    let name = "standard input";
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|source| SetupError::Io {
            what: "read",
            path: name.into(),
            source,
        })?;
    Ok(setup_read::parse(name, &text)?)
}

/// Run `kbp restore`.
pub fn restore(args: RestoreArgs, context: &Context) -> Result<()> {
    refuse_netns(context, "restore")?;
    let file = read(&args.file)?;
    // Without the module there is nothing to try, even if the file asks for nothing.
    drop(context.client()?);
    let options = Options {
        wait: args.wait,
        is_dry: args.dry_run,
    };
    let mut waits = |missing: &[String]| {
        let time = humantime::format_duration(args.wait);
        print::note(format!("waiting up to {time} for {}", missing.join(", ")));
    };
    let restored = restore::restore(
        &context.host,
        &mut restore::Kernel,
        &file,
        options,
        &mut waits,
    );
    restored.notes.iter().for_each(print::note);
    match context.json {
        true => print::json(context, &value(&restored, &file)?)?,
        false => print_restored(context, &restored, &file)?,
    }
    for failure in &restored.failed {
        print::note(describe(&file, failure));
    }
    Ok(restored.verdict(&file, options)?)
}

fn describe(file: &SetupFile, failure: &Failure) -> String {
    let (name, line, what, reason) = (&file.name, failure.line, &failure.what, &failure.reason);
    format!("{name}:{line}: {what}: {reason}")
}

fn value(restored: &Restored, file: &SetupFile) -> Result<Value> {
    let mut attached = Vec::new();
    for report in &restored.reports {
        attached.extend(report_values(report)?);
    }
    Ok(json!({
        "file": file.name,
        "pollers": restored.pollers,
        "backlogs": restored.backlogs,
        "attached": attached,
        "changes": restored.changes,
        "unchanged": restored.unchanged,
        "notes": restored.notes,
        "failed": restored.failed,
    }))
}

fn print_restored(context: &Context, restored: &Restored, file: &SetupFile) -> Result<()> {
    print::lines(&restored.changes)?;
    for poller in &restored.pollers {
        print::line(format!(
            "poller of CPU {}: created, {}",
            poller.cpu, poller.schedule
        ))?;
    }
    for poller in &restored.backlogs {
        print_backlog(context, poller)?;
    }
    for report in &restored.reports {
        print_attached_and_steered(report)?;
    }
    for label in &restored.unchanged {
        print::line(format!("{label}: so already"))?;
    }
    let is_whole = restored.failed.is_empty() && restored.stopped.is_none();
    match restored.is_unchanged() && is_whole {
        true => print::line(format!(
            "nothing to do: everything is as {} says",
            file.name
        )),
        false => Ok(()),
    }
}
