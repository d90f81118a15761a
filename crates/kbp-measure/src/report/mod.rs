// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report: a result file as one self-contained HTML page, which loads nothing from
//! anywhere and reads on a phone and on a desk, in light and in dark.
//!
//! Not here: the pictures ([`chart`]), the judging ([`crate::check`]).

mod chart;
mod snapshot;
mod table;
pub mod text;

use std::fmt::Write;
use std::path::Path;

use crate::check::{check_demo, mean_figure, Figure};
use crate::error::{Error, Result};
use crate::result::{ResultFile, Row, TOOL_KBP};
use chart::{Kind, Line};
pub use table::name as row_name;
use text::{count, escape, ratio, time};

const CSS: &str = include_str!("page.css");
/// Colours that the style sheet has; further modes share the last.
const COLOURS: usize = 6;

/// Writes the report of `file` to `path`.
///
/// # Errors
/// When the page can't be written.
pub fn write(file: &ResultFile, path: &Path) -> Result<()> {
    std::fs::write(path, page(file)).map_err(|e| Error::file("write", path, e))
}

/// The whole page.
pub fn page(file: &ResultFile) -> String {
    let loads = in_order(file.rows.iter().map(|row| row.load.as_str()));
    let mut body = head(file);
    body += &cards(file);
    for load in &loads {
        body += &load_section(file, load);
    }
    body += &bars(file);
    body += &snapshot::sections(file);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>KBP: round trips under load</title>\n<style>\n{CSS}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n"
    )
}

/// Every different name once, in the order of first appearance.
fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// Colour class of a mode: the same in every chart and load of the page.
fn colour(file: &ResultFile, mode: &str) -> String {
    let modes = in_order(file.rows.iter().map(|row| row.mode.as_str()));
    let place = modes.iter().position(|name| *name == mode).unwrap_or(0);
    format!("m{}", place.min(COLOURS - 1))
}

fn head(file: &ResultFile) -> String {
    let machine = match &file.qemu {
        Some(version) => format!("QEMU {}", escape(version)),
        None => "real machine".into(),
    };
    format!(
        "<h1>KBP: round trips of an unmodified UDP server</h1>\n\
         <p class=\"meta\">Linux {} · {machine} · {} clock · {} · revision {}</p>\n",
        escape(&file.kernel),
        escape(&file.clock),
        escape(&file.date),
        escape(&file.git)
    )
}

fn card(what: &str, big: &str, how: &str) -> String {
    format!(
        "<div class=\"card\"><div class=\"what\">{what}</div><div class=\"big\">{big}</div>\
         <div class=\"how\">{how}</div></div>\n"
    )
}

/// The headline figures, for what the file holds.
fn cards(file: &ResultFile) -> String {
    let wanted = [
        ("idle", Figure::P50, "Idle, median"),
        ("storm", Figure::P50, "Storm, median"),
        ("storm", Figure::P99, "Storm, p99"),
        ("storm", Figure::Max, "Storm, longest"),
    ];
    let mut cards = String::new();
    for (load, figure, what) in wanted {
        let stock = mean_figure(file, load, "softirq", figure);
        let ours = mean_figure(file, load, "kbp-busy", figure);
        if let (Some(stock), Some(ours)) = (stock, ours) {
            let how = format!("kbp-busy {}, softirq {}", time(ours), time(stock));
            cards += &card(what, &ratio(ours, stock), &how);
        }
    }
    let kbp: Vec<&Row> = file
        .rows
        .iter()
        .filter(|row| row.mode.starts_with("kbp-"))
        .collect();
    if !kbp.is_empty() {
        let lost: u64 = kbp.iter().map(|row| row.lost + row.warmup_lost).sum();
        let answered: u64 = kbp.iter().map(|row| row.n).sum();
        cards += &card(
            "Lost with KBP",
            &count(lost),
            &format!("of {} pings", count(answered + lost)),
        );
    }
    if let Some(row) = file.rows_of("idle", "kbp-busy", TOOL_KBP).next() {
        let how = format!(
            "and {} receive interrupts, idle kbp-busy row",
            row.witness.hard_irqs
        );
        cards += &card("NET_RX softirqs", &count(row.witness.net_rx_softirqs), &how);
    }
    format!("<div class=\"cards\">\n{cards}</div>\n")
}

fn load_section(file: &ResultFile, load: &str) -> String {
    let rows: Vec<&Row> = file.rows.iter().filter(|row| row.load == load).collect();
    let drawn: Vec<&Row> = rows
        .iter()
        .copied()
        .filter(|r| !r.histogram_ns.is_empty())
        .collect();
    let mut section = format!("<h2>Load: {}</h2>\n", escape(load));
    let _ = writeln!(section, "<p class=\"soft\">{}</p>", load_words(file, load));
    if !drawn.is_empty() {
        section += &legend(file, &drawn);
        section += "<div class=\"charts\">\n";
        for (kind, caption) in [
            (Kind::Cdf, "Share of round trips that took no longer"),
            (
                Kind::Tail,
                "Share of round trips that took longer: the tail",
            ),
        ] {
            let svg = chart::draw(kind, &format!("{load}: {caption}"), &lines(file, &drawn));
            let _ = write!(
                section,
                "<figure>\n{svg}<figcaption>{caption}</figcaption></figure>\n"
            );
        }
        section += "</div>\n";
    }
    section + &table::of(&rows)
}

fn load_words(file: &ResultFile, load: &str) -> String {
    let storm = file.config.as_ref().map(|config| config.storm.as_str());
    match (load, storm) {
        ("idle", _) => "Nothing else runs.".into(),
        ("storm", Some(storm)) => escape(storm),
        _ => String::new(),
    }
}

fn line_class(file: &ResultFile, row: &Row) -> String {
    let again = if row.round > 1 { " again" } else { "" };
    let ours = if row.mode.starts_with("kbp-") {
        " ours"
    } else {
        ""
    };
    format!("{}{again}{ours}", colour(file, &row.mode))
}

fn line_name(row: &Row) -> String {
    match row.round {
        1 => row.mode.clone(),
        round => format!("{}, round {round}", row.mode),
    }
}

fn lines<'a>(file: &ResultFile, rows: &[&'a Row]) -> Vec<Line<'a>> {
    // What is drawn last lies on top: ours.
    let (ours, others): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.mode.starts_with("kbp-"));
    let draw = |row: &'a Row| Line {
        name: line_name(row),
        class: line_class(file, row),
        cells: &row.histogram_ns,
    };
    others.into_iter().chain(ours).map(draw).collect()
}

fn legend(file: &ResultFile, rows: &[&Row]) -> String {
    let mut items = String::new();
    for row in rows {
        let _ = writeln!(
            items,
            "<li><svg viewBox=\"0 0 32 10\" aria-hidden=\"true\"><path class=\"line {}\" \
             d=\"M0 6H32\"/></svg>{}</li>",
            line_class(file, row),
            escape(&line_name(row))
        );
    }
    format!("<ul class=\"legend\">\n{items}</ul>\n")
}

fn bars(file: &ResultFile) -> String {
    if file.rows_of("idle", "kbp-busy", TOOL_KBP).next().is_none() {
        return String::new();
    }
    let mut items = String::new();
    for bar in check_demo(file, None) {
        let class = if bar.pass { "pass" } else { "fail" };
        let _ = writeln!(
            items,
            "<li class=\"{class}\">{}<div class=\"found\">{}</div></li>",
            escape(&bar.demand),
            escape(&bar.found)
        );
    }
    format!(
        "<h2>What the demo has to show</h2>\n<ul class=\"bars\">\n{items}</ul>\n\
         <p class=\"soft\">Figures of a mode with two rounds are their mean.</p>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let file = sample();
        let page = page(&file);
        // Two charts a load, a line a row, both loads.
        assert_eq!(page.matches("<svg viewBox=\"0 0 560").count(), 4);
        assert_eq!(page.matches("<path class=\"line m0 again\"").count(), 2 * 3);
        assert_eq!(page.matches("<tbody>").count(), 2);
        for row in &file.rows {
            assert!(
                page.contains(&text::micros(row.rtt_ns.p99 as f64)),
                "{}",
                row.name()
            );
        }
        assert!(page.contains("class=\"pass\"") && !page.contains("class=\"fail\""));
        assert!(
            page.contains("&lt;quoted&gt; &amp; more"),
            "the command line is escaped"
        );
        for outside in ["http", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside} would load something");
        }
        let opened = page.matches("<div").count();
        assert_eq!(opened, page.matches("</div>").count());
    }

    #[test]
    fn a_bar_that_fails_is_shown_as_failed() {
        let mut file = sample();
        file.rows
            .iter_mut()
            .filter(|r| r.mode == "kbp-busy")
            .for_each(|row| row.lost = 1);
        assert_eq!(page(&file).matches("<li class=\"fail\">").count(), 1);
    }

    #[test]
    fn a_result_without_rows_is_a_page_too() {
        let mut file = sample();
        file.rows.clear();
        file.config = None;
        assert!(page(&file).ends_with("</html>\n"));
    }
}
