// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report: one or many result files as one self-contained HTML page, which loads nothing from
//! anywhere and reads on a phone and on a desk, in light and in dark; as JSON; as CSV.
//!
//! Tables, percentile bars and sentences are plain HTML. Distributions, tails and timelines are drawn
//! in the browser by uPlot, which the page holds (assets/uplot), from JSON that the page holds too.
//! Not here: the judging of the demo ([`crate::check`]), intervals ([`crate::stats`]).

mod boxes;
mod cell;
pub mod comparison;
pub mod csv;
mod data;
mod headline;
pub mod markdown;
mod matrix;
mod names;
mod ratio;
pub mod run;
mod scale;
mod section;
mod snapshot;
mod table;
pub mod text;

use std::fmt::Write;
use std::path::Path;

use crate::check::Bar;
use crate::error::{Error, Result};
pub use cell::groups;
use cell::Group;
pub use names::row as row_name;
use run::Run;
use text::escape;

const CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const UPLOT: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../../assets/uplot/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("../../assets/uplot/LICENSE");

/// The browser itself refuses whatever would leave the page.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Writes the page of `runs` to `path`, whole or not at all; `bars` are the demo's, a list for each
/// run, or empty.
///
/// # Errors
/// When the page can't be written.
pub fn write(runs: &[Run], bars: &[Vec<Bar>], path: &Path) -> Result<()> {
    let page = page(runs, bars);
    let failed = |e| Error::file("write", path, e);
    // A terminal, a pipe or a device is written to; nothing may take its place.
    if path.exists() && !path.is_file() {
        return std::fs::write(path, page).map_err(failed);
    }
    let part = path.with_extension("html.part");
    std::fs::write(&part, page)
        .and_then(|()| std::fs::rename(&part, path))
        .map_err(|e| {
            // On a full disk half a page would only stand in the way.
            let _ = std::fs::remove_file(&part);
            failed(e)
        })
}

/// The whole page.
pub fn page(runs: &[Run], bars: &[Vec<Bar>]) -> String {
    let groups = groups(runs);
    let mut body = head(runs);
    body += "<main>\n";
    body += &summary(runs, &groups);
    body += &demo_bars(runs, bars);
    body += &section::all(runs, &groups);
    body += &snapshot::sections(runs);
    body += "</main>\n";
    body += &scripts(&groups);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>KBP: packet latency, measured</title>\n<style>\n{UPLOT_CSS}\n{CSS}</style>\n\
         <noscript><style>.scripted {{ display: none; }}</style></noscript>\n</head>\n\
         <body>\n{body}</body>\n</html>\n"
    )
}

fn head(runs: &[Run]) -> String {
    let mut lines = String::new();
    for run in runs {
        let file = &run.file;
        let machine = file
            .qemu
            .iter()
            .map(|version| format!(" · QEMU {}", escape(version)));
        let _ = writeln!(
            lines,
            "<p class=\"meta\">Linux {}{} · {} clock · {} · revision {}</p>",
            escape(&file.kernel),
            machine.collect::<String>(),
            escape(&file.clock),
            escape(&file.date),
            escape(&file.git)
        );
    }
    format!("<header>\n<h1>KBP: packet latency, measured</h1>\n{lines}</header>\n")
}

fn summary(runs: &[Run], groups: &[Group]) -> String {
    let contests = ratio::contests(groups);
    let mut html = String::from("<section id=\"summary\">\n<ul class=\"headline\">\n");
    for sentence in headline::sentences(runs, groups, &contests) {
        let _ = writeln!(html, "<li>{}</li>", escape(&sentence));
    }
    html += "</ul>\n";
    html +=
        "<noscript><p class=\"note\">The charts need JavaScript, which is off here. Tables and \
             percentile bars do not.</p></noscript>\n";
    html + &matrix::of(runs, &contests) + "</section>\n"
}

fn demo_bars(runs: &[Run], bars: &[Vec<Bar>]) -> String {
    let mut html = String::new();
    for (run, bars) in runs.iter().zip(bars) {
        let name = if runs.len() > 1 {
            format!(": {}", escape(&run.label))
        } else {
            String::new()
        };
        let _ = writeln!(
            html,
            "<h2>What the demo has to show{name}</h2>\n<ul class=\"bars\">"
        );
        for bar in bars {
            let class = if bar.pass { "pass" } else { "fail" };
            let _ = writeln!(
                html,
                "<li class=\"{class}\">{}<div class=\"found\">{}</div></li>",
                escape(&bar.demand),
                escape(&bar.found)
            );
        }
        html += "</ul>\n<p class=\"soft\">Figures of a mode with two rounds are their mean.</p>\n";
    }
    html
}

fn scripts(groups: &[Group]) -> String {
    format!(
        "<script type=\"application/json\" id=\"data\">{}</script>\n\
         <script>\n/*\n{UPLOT_LICENCE}\n*/\n{UPLOT}</script>\n<script>\n{SCRIPT}</script>\n",
        data::json(groups)
    )
}

#[cfg(test)]
pub(crate) mod tests;
