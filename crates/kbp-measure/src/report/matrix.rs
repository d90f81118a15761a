// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The summary: for each path, load and run, the p99 of our mechanism as a ratio, on a coloured
//! ground; and the p99 of every mechanism side by side where there are several runs.
//!
//! Not here: the figures behind the ratios ([`super::table::latency`]).

use std::fmt::Write;

use super::cell::{in_order, is_ours, Cell, Group};
use super::names;
use super::ratio::{Compared, Contest};
use super::run::Run;
use super::text::{escape, micros, ratio};
use crate::stats::Verdict;

/// Ratio whose colour is the strongest; 1/8 or 8.
const FULL_COLOUR_RATIO: f64 = 8.0;

/// The table of ratios; empty without any of our mechanisms.
pub fn of(runs: &[Run], contests: &[Contest]) -> String {
    if contests.is_empty() {
        return String::new();
    }
    let mut rows: Vec<(String, Vec<&Contest>)> = Vec::new();
    for contest in contests {
        let name = row_name(contest);
        match rows.iter_mut().find(|(other, _)| *other == name) {
            Some((_, of_row)) => of_row.push(contest),
            None => rows.push((name, vec![contest])),
        }
    }
    // A machine without our mechanism has nothing to say here.
    let has_ours = |run: &usize| contests.iter().any(|contest| contest.group.key.run == *run);
    let columns: Vec<usize> = (0..runs.len()).filter(has_ours).collect();
    let mut html = head(runs, &columns);
    for (name, of_row) in rows {
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th>");
        for &run in &columns {
            let contest = of_row.iter().find(|contest| contest.group.key.run == run);
            html += &heat(
                contest
                    .and_then(|contest| contest.stock.as_ref())
                    .map(|found| (None, found.1)),
            );
            html += &heat(
                contest
                    .and_then(|contest| contest.rival.as_ref())
                    .map(|found| (Some(found.0.mode), found.1)),
            );
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n<p class=\"soft\">p99 of the round trip, ours divided by the \
            other's: below 1 (green) ours is faster, 1/8 means an eighth of the time. A ratio whose \
            95 % interval holds 1 is grey: no difference is shown. The best rival is the mechanism \
            with the lowest p99 that is not ours and was measured on the same machine.</p>\n"
}

fn row_name(contest: &Contest) -> String {
    let key = &contest.group.key;
    let mut name = format!("{} · {}", escape(key.path), escape(key.load));
    if key.traffic != "ping-pong" {
        let _ = write!(name, " · {}", escape(&names::traffic(key)));
    }
    if contest.ours.mode != "kbp-busy" {
        let _ = write!(name, " · {}", escape(contest.ours.mode));
    }
    name
}

fn head(runs: &[Run], shown: &[usize]) -> String {
    let mut kernels = String::new();
    let mut columns = String::new();
    for run in shown.iter().map(|run| &runs[*run]) {
        let _ = write!(
            kernels,
            "<th scope=\"colgroup\" colspan=\"2\">{}</th>",
            escape(&run.label)
        );
        columns += "<th scope=\"col\">÷ softirq</th><th scope=\"col\">÷ best rival</th>";
    }
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table of ratios\"><table class=\"heat\">\n\
         <thead><tr><th scope=\"col\" rowspan=\"2\">p99 of kbp</th>{kernels}</tr><tr>{columns}</tr></thead>\n<tbody>\n"
    )
}

/// A ratio on its ground: green below 1, red above, stronger with the distance.
fn heat(found: Option<(Option<&str>, Compared)>) -> String {
    let Some((rival, compared)) = found else {
        return "<td class=\"soft\">–</td>".into();
    };
    let strength = (compared.value.max(1e-9).ln().abs() / FULL_COLOUR_RATIO.ln()).min(1.0);
    let class = match compared.is_lower() {
        Some(true) => "lower",
        Some(false) => "higher",
        None => "level",
    };
    let interval = match (compared.low, compared.high) {
        (Some(low), Some(high)) => format!("95 % interval {low:.3} to {high:.3}"),
        (None, Some(high)) => format!("95 % interval up to {high:.3}"),
        (Some(low), None) => format!("95 % interval from {low:.3}"),
        (None, None) => "no interval".into(),
    };
    let rival = rival.map_or_else(String::new, |mode| {
        format!("<span class=\"sure\">{}</span>", escape(mode))
    });
    let few = match compared.verdict {
        Some(Verdict::TooFew) => "<span class=\"sure\">too few to say</span>",
        _ => "",
    };
    format!(
        "<td class=\"{class}\" style=\"--heat:{:.0}%\" title=\"{interval}\">{}{rival}{few}</td>",
        8.0 + 47.0 * strength,
        ratio(compared.value, 1.0)
    )
}

/// The p99 of every mechanism of one path and load, a column a run that has it, each with its ratio to the stock
/// path of its own run; empty below two runs. It is where mechanisms of different boots meet.
pub fn side_by_side(runs: &[Run], groups: &[&Group]) -> String {
    let shown: Vec<&Group> = groups
        .iter()
        .copied()
        .filter(|group| group.is_headline() && group.key.traffic == "ping-pong")
        .collect();
    if shown.len() < 2 || runs.len() < 2 {
        return String::new();
    }
    let all = shown.iter().flat_map(|group| &group.cells);
    let modes = in_order(all.map(|cell| cell.mode));
    let mut html = String::from(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"p99 of every run\">\
         <table class=\"narrow\">\n<thead><tr><th scope=\"col\">p99, µs</th>",
    );
    for group in &shown {
        let label = escape(&runs[group.key.run].label);
        let _ = write!(html, "<th scope=\"col\">{label}</th>");
    }
    html += "</tr></thead>\n<tbody>\n";
    for mode in modes {
        let class = if is_ours(mode) { " class=\"ours\"" } else { "" };
        let _ = write!(html, "<tr{class}><th scope=\"row\">{}</th>", escape(mode));
        for group in &shown {
            html += &p99(group, mode);
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

/// One p99; the lowest of its run is marked.
fn p99(group: &Group, mode: &str) -> String {
    let with_p99 = |cell: &&Cell| cell.has_round_trips();
    let Some(cell) = group.of_mode(mode).filter(with_p99) else {
        return "<td>–</td>".into();
    };
    let own = cell.rtt_ns.p99;
    let others = group.cells.iter().filter(with_p99);
    let is_lowest = others.map(|cell| cell.rtt_ns.p99).min() == Some(own);
    let class = if is_lowest { " class=\"lowest\"" } else { "" };
    let stock = group.stock().filter(|stock| stock.mode != mode);
    let share = stock.map_or_else(String::new, |stock| {
        let share = ratio(own as f64, stock.rtt_ns.p99 as f64);
        format!("<span class=\"sure\">{share}</span>")
    });
    format!("<td{class}>{}{share}</td>", micros(own as f64))
}
