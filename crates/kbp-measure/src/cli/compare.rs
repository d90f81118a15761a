// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp compare`: arguments into a plan and a bench, rows and the table onto the terminal.
//!
//! Not here: the comparison itself ([`crate::compare`]), and its arguments ([`super::compare_args`]).

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::compare_args::CompareArgs;
use crate::compare::bench::{Machine, Options};
use crate::compare::engine::{End, Engine, Progress};
use crate::compare::plan::{Cell, Plan};
use crate::compare::{place_of, rates, resume, table};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::machine::begin_result;
use crate::mechanism::leftover;
use crate::place::Place;
use crate::progress;
use crate::result::ResultFile;

/// Only one comparison at a time changes a machine.
const LOCK: &str = "/run/kbp-compare.lock";
/// Exit code of a run that an interrupt ended: the result is there, and partial.
const EXIT_INTERRUPTED: u8 = 130;
/// Exit code of a run in which a cell failed that could have run.
const EXIT_FAILED: u8 = 1;

/// Runs `kbp compare` without a subcommand; returns its exit code.
///
/// # Errors
/// What kept it from its end. What was measured before is in the result file.
pub(super) fn run(args: &CompareArgs, json: bool) -> Result<u8> {
    let (plan, options) = (args.plan()?, args.options()?);
    let cells = plan.cells(options.client.seed)?;
    if args.dry_run {
        show_plan(&cells, &plan, &options, json);
        return Ok(0);
    }
    let _lock = lock()?;
    interrupt::catch()?;
    // First what a mechanism changed, while the interfaces are still where it found them, and before the machine is
    // described.
    if let Some(undone) = leftover::recover()? {
        eprintln!("kbp: undone what a run that died has left: {undone}");
    }
    let config = args.config(&plan, &options)?;
    let fresh = begin_result(args.clock(), args.git(), config)?;
    let path = args.out()?.join("result.json");
    if args.restart {
        discard(&path)?;
    }
    let mut file = resume::continued(&path, fresh)?;
    place_of::remove_left()?;
    // Everything of this process that is not placed elsewhere keeps out of the way.
    Place {
        cpu: Some(options.path.cpus.housekeeping),
        ..Place::default()
    }
    .apply()?;
    let end = measure(&mut file, &cells, &options, &path, json)?;
    if end == End::Complete && args.trace {
        trace(&plan, &options)?;
    }
    print_result(&file, &path, json);
    Ok(exit_code(end, &file))
}

fn measure(
    file: &mut ResultFile,
    cells: &[Cell],
    options: &Options,
    path: &Path,
    json: bool,
) -> Result<End> {
    if !json {
        println!("{:>9} {}", "", progress::heading());
    }
    Engine {
        cells,
        interrupted: &interrupt::requested,
        save: &mut |file| file.save(path),
        progress: &mut |step| show_progress(step, json),
    }
    .run(file, &mut Machine::new(options))
}

fn show_progress(step: &Progress, json: bool) {
    let count = format!("[{}/{}]", step.over, step.all);
    let lines: Vec<String> = match &step.outcome {
        Ok(rows) => rows.iter().map(progress::line).collect(),
        Err(not_run) => vec![format!(
            "{:<16} {:<8} {:<28} {}: {}",
            not_run.path,
            not_run.load,
            not_run.mode,
            if not_run.failed { "FAILED" } else { "not here" },
            not_run.why
        )],
    };
    let left = match step.left {
        left if left > Duration::ZERO => format!("  {} left", seconds(left)),
        _ => String::new(),
    };
    for line in lines {
        if json {
            eprintln!("{count:>9} {line}{left}");
        } else {
            println!("{count:>9} {line}{left}");
        }
    }
}

fn seconds(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs().max(1))).to_string()
}

fn trace(plan: &Plan, options: &Options) -> Result<()> {
    let last = |modes: &Vec<String>| modes.last().cloned().unwrap_or_default();
    let modes = [plan.mechanisms[0].clone(), last(&plan.mechanisms)];
    let modes: Vec<&str> = modes.iter().map(String::as_str).collect();
    let loads = plan.loads.concat();
    let loaded = loads.iter().map(String::as_str).filter(|l| *l != "idle");
    let loads: Vec<&str> = loaded.collect();
    let mut machine = Machine::new(options);
    let traced = machine.trace(&plan.paths[0], &loads, &modes);
    let finished = crate::compare::engine::Bench::finish(&mut machine);
    traced.and(finished)
}

fn print_result(file: &ResultFile, path: &Path, json: bool) {
    let groups = table::groups(file);
    if json {
        let result = json!({
            "result": path,
            "partial": file.partial,
            "groups": groups,
            "rates": rates::groups(file),
            "not_run": file.not_run,
        });
        println!("{result}");
    } else {
        println!("{}", table::text(&groups, file));
        println!("{}: {} rows", path.display(), file.rows.len());
    }
}

fn exit_code(end: End, file: &ResultFile) -> u8 {
    match end {
        End::Interrupted => EXIT_INTERRUPTED,
        End::Complete if file.not_run.iter().any(|cell| cell.failed) => EXIT_FAILED,
        End::Complete => 0,
    }
}

fn show_plan(cells: &[Cell], plan: &Plan, options: &Options, json: bool) {
    let estimate = options.estimate(cells);
    if json {
        let names: Vec<_> = cells
            .iter()
            .map(|c| json!({ "path": c.path, "load": c.load, "mode": c.mode, "round": c.round }))
            .collect();
        let plan = json!({ "plan": plan, "cells": names, "estimate_s": estimate.as_secs() });
        println!("{plan}");
        return;
    }
    for (number, cell) in (1..).zip(cells) {
        let also = if cell.third_party {
            ", and sockperf"
        } else {
            ""
        };
        println!("{number:>4} {}{also}", cell.name());
    }
    println!(
        "{} cells, about {} of this machine's own time (on the lab's virtual clock each second takes 5 to 25 of the host)",
        cells.len(),
        seconds(estimate)
    );
}

/// The lock on this machine; it ends with the process.
fn lock() -> Result<File> {
    let path = Path::new(LOCK);
    let file = File::create(path).map_err(|e| Error::file("create", path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Invalid(format!(
            "another `kbp compare` is measuring on this machine (it holds {LOCK}): wait for its end"
        ))),
        Err(std::fs::TryLockError::Error(error)) => Err(Error::file("lock", path, error)),
    }
}

fn discard(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path, error))
        }
        _ => Ok(()),
    }
}
