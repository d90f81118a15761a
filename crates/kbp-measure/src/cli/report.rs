// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp report`: result files into a page, JSON or CSV.
//!
//! Not here: what these hold ([`crate::report`]).

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{print_bars, EXIT_NOT_MET};
use crate::check::{check_demo, Bar};
use crate::error::{Error, Result};
use crate::report::{self, comparison, csv, markdown, run};

const EXAMPLES: &str = "\
Examples:
  kbp report out/demo/result.json -o demo.html      a page of one run
  kbp report out/bench/*/result.json                kernels side by side: report.html
  kbp report before.json after.json --json          the merged comparison
  kbp report result.json --csv > rows.csv           a line a row
  kbp report docs/results/*.json --tables tables.md all tables as Markdown

The page needs no network. docs/reference/report.md describes it, the JSON and the CSV.";

/// The page when no other is named.
const PAGE: &str = "report.html";

/// `kbp report`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Result files; those of one machine are put together, others stand side by side
    #[arg(required = true, value_name = "RESULT")]
    pub results: Vec<PathBuf>,
    /// The page to write; report.html, or none with --json, --csv or --tables
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write all tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,
    /// Print the rows as comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Also judge the results by the demo's bars, as `kbp measure check-demo` does
    #[arg(long, conflicts_with = "csv")]
    pub check: bool,
}

/// Runs `kbp report`; returns its exit code. With `json` the comparison is printed, indented with
/// `pretty`.
///
/// # Errors
/// When a result can't be read or the page can't be written.
pub fn run_report(args: &ReportArgs, json: bool, pretty: bool) -> Result<u8> {
    let runs = run::load(&args.results)?;
    let bars: Vec<Vec<Bar>> = match args.check {
        true => runs.iter().map(|run| check_demo(&run.file, None)).collect(),
        false => Vec::new(),
    };
    if let Some(path) = &args.tables {
        std::fs::write(path, markdown::of(&runs)).map_err(|e| Error::file("write", path, e))?;
    }
    let prints = json || args.csv || args.tables.is_some();
    let page = match &args.output {
        Some(page) => Some(page.as_path()),
        None => (!prints).then_some(Path::new(PAGE)),
    };
    if let Some(page) = page {
        report::write(&runs, &bars, page)?;
    }
    let failed = bars.iter().flatten().filter(|bar| !bar.pass).count();
    if args.csv {
        print(&csv::of(&runs))?;
    } else if json {
        let groups = report::groups(&runs);
        let comparison = comparison::of(&runs, &groups, &bars);
        let text = match pretty {
            true => serde_json::to_string_pretty(&comparison),
            false => serde_json::to_string(&comparison),
        };
        print(&(text.map_err(|e| Error::sys("make JSON of the comparison", e))? + "\n"))?;
    } else if let Some(page) = page {
        let rows: usize = runs.iter().map(|run| run.file.rows.len()).sum();
        print(&format!(
            "{}: {rows} rows of {} runs\n",
            page.display(),
            runs.len()
        ))?;
        if args.check {
            let all: Vec<Bar> = bars.into_iter().flatten().collect();
            print_bars(&all, failed);
        }
    }
    Ok(if failed == 0 { 0 } else { EXIT_NOT_MET })
}

/// Prints, and takes a reader that has gone as the end of its interest.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Error::sys("write to standard output", e)),
    }
}
