// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The body of the page: a section a path, in it one a load, in it a block a run and kind of
//! traffic, with one legend for all of its charts.
//!
//! Not here: the summary above ([`super::matrix`]), the machines below ([`super::snapshot`]).

use std::fmt::Write;

use super::cell::{in_order, is_ours, Group};
use super::data::{block_id, has_lines};
use super::run::Run;
use super::table::{cost, latency, rate};
use super::text::escape;
use super::{boxes, matrix, names};
use crate::result::NotRun;

/// The charts that a script draws: kind, title, and what a reader sees in it.
const CHARTS: [(&str, &str, &str); 3] = [
    (
        "cdf",
        "Distribution",
        "Share of round trips that took no longer.",
    ),
    (
        "tail",
        "Tail",
        "Share of round trips that took longer, both axes logarithmic.",
    ),
    (
        "time",
        "In time",
        "Longest round trip of each slice of time, rounds one after the other; rings mark the ten worst.",
    ),
];

const SIDE_BY_SIDE_NOTE: &str =
    "<p class=\"soft\">Below each p99 its ratio to softirq of the same \
    machine; green is the lowest of its machine.</p>\n";

/// All paths.
pub fn all(runs: &[Run], groups: &[Group]) -> String {
    let skipped = || runs.iter().flat_map(|run| &run.file.not_run);
    let of_rows = groups.iter().map(|group| group.key.path);
    let paths = in_order(of_rows.chain(skipped().map(|cell| cell.path.as_str())));
    let mut html = picker(runs);
    for path in paths {
        let words = names::path_words(path);
        let _ = write!(
            html,
            "<section class=\"path\" id=\"path-{name}\">\n<h2>Path: {name}</h2>\n<p class=\"soft\">{words}</p>\n",
            name = escape(path)
        );
        let of_rows = groups
            .iter()
            .filter(|group| group.key.path == path)
            .map(|group| group.key.load);
        let of_skipped = skipped()
            .filter(|cell| cell.path == path)
            .map(|cell| cell.load.as_str());
        for load in in_order(of_rows.chain(of_skipped)) {
            html += &load_section(runs, groups, path, load);
        }
        html += "</section>\n";
    }
    html
}

/// Which run the blocks below show; a script makes it work, without one all are there.
fn picker(runs: &[Run]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let mut html = String::from("<fieldset class=\"picker\" hidden><legend>Show</legend>\n");
    for (index, run) in runs.iter().enumerate() {
        let checked = if index == 0 { " checked" } else { "" };
        let _ = writeln!(
            html,
            "<label><input type=\"radio\" name=\"run\" value=\"{index}\"{checked}>{}</label>",
            escape(&run.label)
        );
    }
    html + "<label><input type=\"radio\" name=\"run\" value=\"all\">all</label></fieldset>\n"
}

fn load_section(runs: &[Run], groups: &[Group], path: &str, load: &str) -> String {
    let here: Vec<(usize, &Group)> = groups
        .iter()
        .enumerate()
        .filter(|(_, group)| group.key.path == path && group.key.load == load)
        .collect();
    let config = here
        .first()
        .and_then(|(_, group)| runs[group.key.run].file.config.as_ref());
    let mut html = format!(
        "<section class=\"load\">\n<h3>{} · {}</h3>\n<p class=\"soft\">{}</p>\n",
        escape(path),
        escape(load),
        escape(names::load_words(load, config))
    );
    let plain: Vec<&Group> = here.iter().map(|(_, group)| *group).collect();
    let side_by_side = matrix::side_by_side(runs, &plain);
    if !side_by_side.is_empty() {
        html += &side_by_side;
        html += SIDE_BY_SIDE_NOTE;
    }
    for (index, run) in runs.iter().enumerate() {
        let blocks = run_blocks(run, index, &here, path, load);
        if blocks.is_empty() {
            continue;
        }
        let _ = writeln!(html, "<div class=\"run\" data-run=\"{index}\">");
        if runs.len() > 1 {
            let _ = writeln!(html, "<h4>{}</h4>", escape(&run.label));
        }
        html += &blocks;
        html += "</div>\n";
    }
    html + "</section>\n"
}

fn run_blocks(run: &Run, index: usize, here: &[(usize, &Group)], path: &str, load: &str) -> String {
    let of_run: Vec<(usize, &Group)> = here
        .iter()
        .copied()
        .filter(|(_, group)| group.key.run == index)
        .collect();
    let mut html = String::new();
    for (number, group) in of_run.iter().filter(|(_, group)| group.is_latency()) {
        html += &block(*number, group, of_run.len() > 1);
    }
    let plain: Vec<&Group> = of_run.iter().map(|(_, group)| *group).collect();
    html += &rate::open_loop(&plain);
    html += &rate::throughput(&plain);
    html += &rate::one_way(&plain);
    html += &rate::bulk(&plain);
    let skipped = run
        .file
        .not_run
        .iter()
        .filter(|cell| cell.path == path && cell.load == load);
    html + &not_run(&skipped.collect::<Vec<_>>())
}

fn block(number: usize, group: &Group, titled: bool) -> String {
    let mut html = format!("<div class=\"block\" id=\"{}\">\n", block_id(number));
    if titled {
        let title = names::traffic(&group.key);
        let mut letters = title.chars();
        let first = letters
            .next()
            .map(|c| c.to_uppercase().to_string())
            .unwrap_or_default();
        let _ = writeln!(html, "<h5>{}{}</h5>", first, escape(letters.as_str()));
    }
    html += &notes(group);
    if has_lines(group) {
        html += &legend(group);
        html += "<div class=\"charts\">\n";
        for (kind, title, caption) in CHARTS {
            if kind != "time" || has_timeline(group) {
                html += &chart(kind, title, caption, group);
            }
        }
        html += &boxes::of(group);
        html += "</div>\n";
    }
    html += &latency::of(group);
    html += &cost::of(group);
    html + "</div>\n"
}

fn has_timeline(group: &Group) -> bool {
    group
        .cells
        .iter()
        .flat_map(|cell| &cell.rows)
        .any(|row| !row.timeline_ns.is_empty())
}

fn chart(kind: &str, title: &str, caption: &str, group: &Group) -> String {
    let label = format!("{title}, {}, {}", group.key.path, group.key.load);
    format!(
        "<figure class=\"scripted\"><div class=\"title\">{title}</div>\
         <div class=\"chart\" data-kind=\"{kind}\" role=\"img\" aria-label=\"{}\"></div>\
         <figcaption><span class=\"caption\">{caption}</span><span class=\"read\"></span></figcaption></figure>\n",
        escape(&label)
    )
}

/// One button a mechanism: it shows and hides its lines in all charts of the block.
fn legend(group: &Group) -> String {
    let mut html =
        String::from("<div class=\"legend\" role=\"group\" aria-label=\"mechanisms\">\n");
    for (line, cell) in group.cells.iter().enumerate() {
        let ours = if is_ours(cell.mode) { " ours" } else { "" };
        let _ = writeln!(
            html,
            "<button type=\"button\" class=\"key c{}{ours}\" data-line=\"{line}\" aria-pressed=\"true\">\
             <i></i>{}</button>",
            names::colour(cell.mode),
            escape(cell.mode)
        );
    }
    html + "</div>\n"
}

/// What has to be known before some of the rows are believed.
fn notes(group: &Group) -> String {
    let notes = group.cells.iter().flat_map(|cell| {
        cell.rows
            .iter()
            .filter_map(|row| Some(format!("{}: {}", cell.mode, row.note.as_ref()?)))
    });
    let all: Vec<String> = notes.collect();
    in_order(all.iter().map(String::as_str))
        .into_iter()
        .map(|note| format!("<p class=\"note\">{}</p>\n", escape(note)))
        .collect()
}

/// What could not be measured, with the reasons; the same reason once.
fn not_run(cells: &[&NotRun]) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut html =
        String::from("<details class=\"notrun\" open><summary>Not measured</summary>\n<dl>\n");
    for why in in_order(cells.iter().map(|cell| cell.why.as_str())) {
        let of_reason = cells.iter().filter(|cell| cell.why == why);
        let modes = in_order(of_reason.clone().map(|cell| cell.mode.as_str())).join(", ");
        let failed = if of_reason.clone().any(|cell| cell.failed) {
            "failed: "
        } else {
            ""
        };
        let _ = writeln!(
            html,
            "<dt>{}</dt><dd>{failed}{}</dd>",
            escape(&modes),
            escape(why)
        );
    }
    html + "</dl></details>\n"
}
