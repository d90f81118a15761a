// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures as HTML tables, which need no script: [`latency`], [`cost`], and those of traffic that
//! is counted instead of timed, [`rate`].
//!
//! Not here: which groups are shown together ([`super::section`]).

pub mod cost;
pub mod latency;
pub mod rate;

use std::fmt::Write;

use super::cell::is_ours;
use super::ratio::Compared;
use super::text::{escape, ratio};
use crate::stats::Verdict;

/// A table that is filled row by row. Headings and cells are HTML.
pub struct Table {
    head: String,
    body: String,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        let head = headings.iter().fold(String::new(), |mut head, name| {
            let _ = write!(head, "<th scope=\"col\">{name}</th>");
            head
        });
        Self {
            head,
            body: String::new(),
        }
    }

    /// Adds a row that begins with a name; rows of our mechanisms are marked.
    pub fn row(&mut self, mode: &str, name: &str, cells: &[String]) {
        let class = if is_ours(mode) { " class=\"ours\"" } else { "" };
        let _ = write!(
            self.body,
            "<tr{class}><th scope=\"row\">{}</th>",
            escape(name)
        );
        for cell in cells {
            let _ = write!(self.body, "<td>{cell}</td>");
        }
        self.body += "</tr>\n";
    }

    /// The HTML.
    pub fn html(&self) -> String {
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table>\n\
             <thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
            self.head, self.body
        )
    }
}

/// What stands in a cell without a figure.
pub fn none() -> String {
    "–".into()
}

/// A ratio with its interval, or the words that no difference is shown.
pub fn compared(compared: Option<Compared>) -> String {
    let Some(compared) = compared else {
        return none();
    };
    let value = ratio(compared.value, 1.0);
    let under = match (compared.verdict, compared.low, compared.high) {
        (Some(verdict @ (Verdict::NoDifferenceShown | Verdict::TooFew)), ..) => {
            verdict.words().into()
        }
        (_, Some(low), Some(high)) => interval(compared.value, low, high),
        (_, None, Some(high)) => format!("at most {}", ratio(high, 1.0)),
        (_, Some(low), None) => format!("at least {}", ratio(low, 1.0)),
        _ => return value,
    };
    format!("{value}<span class=\"sure\">{under}</span>")
}

/// "1.003 to 1.081 ×", "1/210 to 1/140": in the form of the ratio itself, and near 1 with the digit
/// that tells on which side an end is.
fn interval(value: f64, low: f64, high: f64) -> String {
    let near = |end: f64| (end - 1.0).abs() < 0.1;
    if near(low) || near(high) {
        return format!("{low:.3} to {high:.3} ×");
    }
    if !ratio(value, 1.0).starts_with("1/") {
        return format!("{low:.2} to {high:.2} ×");
    }
    let part = |end: f64| match 1.0 / end {
        times if times < 9.95 => format!("1/{times:.1}"),
        times => format!("1/{times:.0}"),
    };
    format!("{} to {}", part(low), part(high))
}

#[cfg(test)]
mod tests {
    use super::interval;

    #[test]
    fn an_interval_has_the_form_of_its_ratio() {
        assert_eq!(
            interval(1.0 / 170.0, 1.0 / 210.0, 1.0 / 140.0),
            "1/210 to 1/140"
        );
        assert_eq!(interval(0.48, 0.385, 0.58), "0.39 to 0.58 ×");
        assert_eq!(interval(0.39, 0.2, 0.5), "1/5.0 to 1/2.0");
    }

    #[test]
    fn an_interval_says_on_which_side_of_one_it_ends() {
        assert_eq!(interval(1.02, 1.003, 1.058), "1.003 to 1.058 ×");
        assert_eq!(interval(0.5, 0.3, 0.996), "0.300 to 0.996 ×");
    }
}
