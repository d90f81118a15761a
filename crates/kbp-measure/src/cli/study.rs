// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp compare study`: a study file into units, units into results, results into a summary.
//!
//! Not here: the study itself ([`crate::compare::study`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use kbp_lab::Lab;
use serde_json::json;

use super::compare_args::CompareArgs;
use crate::compare::plan::Plan;
use crate::compare::study::file::{Study, Unit};
use crate::compare::study::merge::merge;
use crate::compare::study::run::{Report, StudyRun};
use crate::compare::table;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::result::ResultFile;

/// Exit code of a study that an interrupt ended.
const EXIT_INTERRUPTED: u8 = 130;

const EXAMPLES: &str = "\
Example:
  kbp compare study lab/studies/bench.toml --out out/bench

Each run of a machine is done once: its result is OUT/MACHINE/RUN/result.json. A study that was interrupted is
continued by the same command. The results of a machine are merged into OUT/MACHINE/result.json.";

/// `kbp compare study`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StudyArgs {
    /// The study file
    study: PathBuf,
    /// Directory for everything
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Machines at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// Only this machine, or this run of it; more than once for more
    #[arg(long, value_name = "MACHINE[/RUN]")]
    only: Vec<String>,
    /// Discard results that are there instead of continuing
    #[arg(long)]
    restart: bool,
    /// Print the units and their cells; start nothing
    #[arg(long)]
    dry_run: bool,
    /// Revision of the source, for the results
    #[arg(long, env = "KBP_GIT", default_value = "unknown")]
    git: String,
    /// The folder with kernels.toml (default: lab/, searched from here upwards)
    #[arg(long, value_name = "DIR")]
    lab: Option<PathBuf>,
}

/// The arguments of `kbp compare` in a study file.
#[derive(Parser)]
#[command(name = "kbp compare", no_binary_name = true)]
struct Line {
    #[command(flatten)]
    args: CompareArgs,
}

pub(super) fn run(args: &StudyArgs, json: bool) -> Result<u8> {
    let all = Study::load(&args.study)?.units(plan)?;
    let units = wanted(&all, &args.only)?;
    if args.dry_run {
        show(&units, json);
        return Ok(0);
    }
    let lab = Lab::open(args.lab.as_deref())?;
    if args.restart {
        discard(&args.out, &units)?;
    }
    interrupt::catch()?;
    let study = StudyRun {
        lab: &lab,
        out: &args.out,
        jobs: args.jobs.into(),
        git: &args.git,
    };
    let report = study.run(&units)?;
    let merged = merged(&study, &all, &units)?;
    summarize(args, &merged, &report, json)?;
    Ok(match () {
        () if interrupt::requested() => EXIT_INTERRUPTED,
        () if report.failed.is_empty() => 0,
        () => 1,
    })
}

/// The units that were asked for: all of them, or those of `MACHINE` and `MACHINE/RUN`.
fn wanted(all: &[Unit], only: &[String]) -> Result<Vec<Unit>> {
    let is = |unit: &Unit, name: &String| unit.machine.name == *name || unit.name() == *name;
    for name in only {
        if !all.iter().any(|unit| is(unit, name)) {
            let there: Vec<String> = all.iter().map(Unit::name).collect();
            return Err(Error::Invalid(format!(
                "the study has no machine or run '{name}'; it has: {}",
                there.join(", ")
            )));
        }
    }
    let picked = |unit: &&Unit| only.is_empty() || only.iter().any(|name| is(unit, name));
    Ok(all.iter().filter(picked).cloned().collect())
}

fn plan(args: &[String]) -> Result<Plan> {
    let line = Line::try_parse_from(args).map_err(|e| Error::Invalid(e.to_string()))?;
    line.args.plan()
}

fn show(units: &[Unit], json: bool) {
    let cells: usize = units.iter().map(|unit| unit.cells).sum();
    if json {
        let units: Vec<_> = units
            .iter()
            .map(|unit| json!({ "unit": unit.name(), "cells": unit.cells, "args": unit.args }))
            .collect();
        println!("{}", json!({ "units": units, "cells": cells }));
        return;
    }
    for unit in units {
        println!(
            "{:<28} {:>4} cells  {}",
            unit.name(),
            unit.cells,
            unit.args.join(" ")
        );
    }
    println!("{} units, {cells} cells", units.len());
}

fn discard(out: &Path, units: &[Unit]) -> Result<()> {
    for unit in units {
        for name in ["unit.json", "result.json"] {
            let path = out.join(&unit.machine.name).join(&unit.run).join(name);
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file("remove", &path, e))
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The results that `units` are a part of, as `OUT/MACHINE/RESULT.json`: partial while another unit of it is not done.
fn merged(study: &StudyRun, all: &[Unit], units: &[Unit]) -> Result<BTreeMap<PathBuf, ResultFile>> {
    let result = |unit: &Unit| (unit.machine.name.clone(), unit.result.clone());
    let touched: BTreeSet<_> = units.iter().map(result).collect();
    let mut files: BTreeMap<PathBuf, (Vec<ResultFile>, bool)> = BTreeMap::new();
    for unit in all.iter().filter(|unit| touched.contains(&result(unit))) {
        let name = format!("{}.json", unit.result);
        let path = study.out.join(&unit.machine.name).join(name);
        let (files, partial) = files.entry(path).or_default();
        match study.result_of(unit)? {
            Some(file) => files.push(file),
            None => *partial = true,
        }
    }
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let mut merged = BTreeMap::new();
    for (path, (files, partial)) in files {
        if let Some(mut file) = merge(&files, &command)? {
            file.partial |= partial;
            file.save(&path)?;
            merged.insert(path, file);
        }
    }
    Ok(merged)
}

fn summarize(
    args: &StudyArgs,
    merged: &BTreeMap<PathBuf, ResultFile>,
    report: &Report,
    json: bool,
) -> Result<()> {
    let mut text = String::new();
    for (path, file) in merged {
        let groups = table::groups(file);
        text += &format!(
            "== {} ({}, {} clock)\n",
            path.display(),
            file.kernel,
            file.clock
        );
        text += &table::text(&groups, file);
        text += "\n";
    }
    let path = args.out.join("summary.txt");
    std::fs::create_dir_all(&args.out).map_err(|e| Error::file("create", &args.out, e))?;
    std::fs::write(&path, &text).map_err(|e| Error::file("write", &path, e))?;
    if json {
        let results: Vec<_> = merged.keys().collect();
        println!(
            "{}",
            json!({ "results": results, "done": report.done, "left": report.left, "failed": report.failed })
        );
        return Ok(());
    }
    print!("{text}");
    for (name, why) in &report.failed {
        println!("failed: {name}: {why}");
    }
    println!(
        "{} units done, {} failed, {} left; {}",
        report.done,
        report.failed.len(),
        report.left,
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_runs_can_be_picked() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/studies/bench.toml");
        let all = Study::load(&path).unwrap().units(plan).unwrap();
        let names = |only: &[&str]| -> Result<Vec<String>> {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            Ok(wanted(&all, &only)?.iter().map(Unit::name).collect())
        };
        assert_eq!(names(&[]).unwrap().len(), all.len());
        assert_eq!(names(&["6.1/paths"]).unwrap(), ["6.1/paths"]);
        let more = names(&["6.1-rt", "6.1/nic"]).unwrap();
        assert!(more.contains(&"6.1/nic".into()) && more.contains(&"6.1-rt/rt-nic".into()));
        assert!(!more.contains(&"6.1/vxlan".into()), "{more:?}");
        let error = names(&["6.1/nonsense"]).unwrap_err().to_string();
        assert!(error.contains("6.1/vxlan"), "{error}");
    }

    /// The studies that are shipped have to be runnable without a machine being asked.
    #[test]
    fn the_shipped_studies_can_be_planned() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/studies");
        let names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.contains(&"energy.toml".into()), "{names:?}");
        for name in &names {
            let units = Study::load(&folder.join(name))
                .unwrap()
                .units(plan)
                .unwrap();
            assert!(units.len() > 1, "{name}: {}", units.len());
            for unit in &units {
                assert!(unit.cells > 0, "{name}: {}", unit.name());
            }
        }
    }
}
