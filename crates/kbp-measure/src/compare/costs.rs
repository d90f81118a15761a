// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a mechanism cost in its rows: interrupts, CPU time, sleeps, empty polls, changes of the frequency, and an estimate
//! of its energy. All of them but the poller's own counts (`wakeups_per_s`, `empty_polls_per_s`) come from others.
//!
//! Not here: round trips ([`super::table`]).

use serde::Serialize;

use crate::result::{EnergyEstimate, Row};

/// Means over the rounds; what was not read in any of them is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Costs {
    /// Receive interrupts.
    pub hard_irqs_per_s: Option<f64>,
    /// CPU time of the threads that the mechanism brings, percent of one CPU.
    pub threads_percent: Option<f64>,
    /// Times that these threads slept.
    pub sleeps_per_s: Option<f64>,
    /// Times that an interrupt woke the poller, by its own count.
    pub wakeups_per_s: Option<f64>,
    /// Polls of the poller that found nothing, by its own count.
    pub empty_polls_per_s: Option<f64>,
    /// Times that the poller's CPU left an idle state.
    pub idle_exits_per_s: Option<f64>,
    /// Changes of the frequency of the poller's CPU.
    pub freq_changes_per_s: Option<f64>,
    /// Mean frequency of that CPU, MHz.
    pub mean_mhz: Option<f64>,
    /// Estimate of what the CPUs of the receiving machine drew more than at rest, watts.
    pub estimated_watts: Option<f64>,
}

/// The sum of a figure by that of the time, over the rows that have it, a second.
fn per_s(rows: &[&Row], figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let found = rows
        .iter()
        .filter_map(|row| Some((figure(row)?, row.span_ns)));
    let (sum, span_ns) = found.fold((0.0, 0), |(sum, span_ns), (one, ns)| {
        (sum + one, span_ns + ns)
    });
    (span_ns > 0).then(|| sum * 1e9 / span_ns as f64)
}

/// The mean of a figure over time.
fn over_time(rows: &[&Row], figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    per_s(rows, |row| Some(figure(row)? * row.span_ns as f64 / 1e9))
}

fn estimate(row: &Row) -> Option<&EnergyEstimate> {
    row.energy.as_ref()?.estimate.as_ref()
}

fn idle_exits(row: &Row) -> Option<f64> {
    let states = row.idle_states.values();
    let exits: u64 = states.map(|state| state.entries).sum();
    (!row.idle_states.is_empty()).then_some(exits as f64)
}

impl Costs {
    /// Those of the rounds of a mechanism.
    pub fn of(rows: &[&Row]) -> Self {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        let threads_ns = |row: &Row| match row.witness.mode_threads_ns {
            // Where there is a thread, also one that did nothing is a figure.
            0 => row.witness.mode_threads_sleeps.map(|_| 0.0),
            ns => Some(ns as f64),
        };
        Self {
            hard_irqs_per_s: per_s(rows, |row| Some(row.witness.hard_irqs as f64)),
            threads_percent: per_s(rows, threads_ns).map(|ns_per_s| ns_per_s / 1e7),
            sleeps_per_s: per_s(rows, |row| count(row.witness.mode_threads_sleeps)),
            wakeups_per_s: per_s(rows, |row| Some(row.poller?.wakeups as f64)),
            empty_polls_per_s: per_s(rows, |row| count(row.poller?.empty_polls)),
            idle_exits_per_s: per_s(rows, idle_exits),
            freq_changes_per_s: per_s(rows, |row| Some(row.frequency?.changes as f64)),
            mean_mhz: over_time(rows, |row| Some(row.frequency?.mean_khz? / 1e3)),
            estimated_watts: over_time(rows, |row| Some(estimate(row)?.watts)),
        }
    }
}

/// The line above those of [`line`].
pub fn heading() -> String {
    format!(
        "  {:<19} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11} {:>12} {:>9} {:>12}",
        "what it cost, a s",
        "hardIRQ",
        "threads %",
        "sleeps",
        "wake-ups",
        "empty polls",
        "idle exits",
        "freq changes",
        "mean MHz",
        "estimated W"
    )
}

/// The costs of a mechanism as a line of a terminal.
pub fn line(mode: &str, costs: &Costs) -> String {
    let whole = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.0}"));
    let fine = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.1}"));
    format!(
        "  {mode:<19} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11} {:>12} {:>9} {:>12}",
        whole(costs.hard_irqs_per_s),
        fine(costs.threads_percent),
        whole(costs.sleeps_per_s),
        whole(costs.wakeups_per_s),
        whole(costs.empty_polls_per_s),
        whole(costs.idle_exits_per_s),
        whole(costs.freq_changes_per_s),
        whole(costs.mean_mhz),
        fine(costs.estimated_watts)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{FrequencyUse, IdleUse, PollerDelta, Witness};

    fn row(span_ns: u64, changes: Option<u64>) -> Row {
        Row {
            span_ns,
            witness: Witness {
                hard_irqs: 500,
                mode_threads_ns: span_ns / 4,
                mode_threads_sleeps: Some(100),
                ..Witness::default()
            },
            poller: Some(PollerDelta::default()),
            frequency: changes.map(|changes| FrequencyUse {
                changes,
                mean_khz: Some(changes as f64 * 1e4),
            }),
            ..Row::default()
        }
    }

    /// Rounds of other lengths count by their lengths, and a round without a figure counts for none of it.
    #[test]
    fn rates_are_over_the_rows_that_have_the_figure() {
        let rows = [
            row(1_000_000_000, Some(80)),
            row(3_000_000_000, Some(160)),
            row(1_000_000_000, None),
        ];
        let costs = Costs::of(&rows.iter().collect::<Vec<_>>());
        assert_eq!(costs.hard_irqs_per_s, Some(300.0));
        assert_eq!(costs.threads_percent, Some(25.0));
        assert_eq!(costs.sleeps_per_s, Some(60.0));
        assert_eq!(costs.freq_changes_per_s, Some(60.0));
        assert_eq!(costs.mean_mhz, Some(1_400.0));
        assert_eq!(costs.wakeups_per_s, Some(0.0));
        let unread = (
            costs.empty_polls_per_s,
            costs.idle_exits_per_s,
            costs.estimated_watts,
        );
        assert_eq!(unread, (None, None, None));
        assert_eq!(Costs::of(&[]), Costs::default());
    }

    #[test]
    fn lines_stay_in_their_columns_and_what_was_not_read_is_no_zero() {
        let mut row = row(1_000_000_000, None);
        row.idle_states = [(
            "C1".to_owned(),
            IdleUse {
                entries: 7,
                time_ns: 1,
            },
        )]
        .into();
        let line = line("kbp-sleep+freq-on", &Costs::of(&[&row]));
        assert_eq!(line.chars().count(), heading().chars().count());
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words[1..],
            ["500", "25.0", "100", "0", "–", "7", "–", "–", "–"]
        );
    }
}
