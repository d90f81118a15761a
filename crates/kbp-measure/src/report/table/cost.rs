// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a mechanism costs, as others than itself counted it: CPU time, softirqs, interrupts, drops,
//! energy; and the rest of the account of its pings.
//!
//! Not here: round trips ([`super::latency`]).

use std::collections::BTreeMap;

use super::{none, Table};
use crate::report::cell::{Cell, Group};
use crate::report::text::{count, escape, micros, share, time};
use crate::result::{CpuUse, Row};

const HEADINGS: [&str; 17] = [
    "mechanism",
    "rounds",
    "p99 of each, µs",
    "late",
    "duplicates",
    "skipped slots",
    "NET_RX softirqs",
    "receive interrupts",
    "CPU of mechanism",
    "CPU of ksoftirqd",
    "CPU of server",
    "CPU of client",
    "context switches",
    "softirqs",
    "interrupts",
    "drops",
    "energy",
];

/// Counts of one kind that are named in a cell; the largest come first, the rest is summed up.
const NAMED_MAX: usize = 6;

/// The table of a group, folded.
pub fn of(group: &Group) -> String {
    let mut table = Table::new(&HEADINGS);
    for cell in &group.cells {
        table.row(cell.mode, cell.mode, &columns(cell));
    }
    format!(
        "<details class=\"cost\"><summary>CPU time, softirqs, interrupts, drops, energy</summary>\n\
         {}</details>\n",
        table.html()
    )
}

fn columns(cell: &Cell) -> Vec<String> {
    let rounds = cell.rows.iter().map(|row| micros(row.rtt_ns.p99 as f64));
    let mut columns = vec![
        cell.rows.len().to_string(),
        rounds.collect::<Vec<_>>().join(", "),
        count(cell.sum(|row| row.late)),
        count(cell.sum(|row| row.dup)),
        count(cell.sum(|row| row.skipped)),
        count(cell.sum(|row| row.witness.net_rx_softirqs)),
        count(cell.sum(|row| row.witness.hard_irqs)),
        cell.cpu_share().map_or_else(none, share),
    ];
    columns.extend(cpu(cell));
    columns.push(named(&cell.counts(|row| by_name(&row.softirqs))));
    columns.push(named(&cell.counts(|row| by_name(&row.interrupts))));
    columns.push(named(&cell.counts(|row| {
        let drops = row.drops.iter();
        drops.map(|(place, lost)| (place.clone(), *lost)).collect()
    })));
    columns.push(energy(cell));
    columns
}

fn by_name(counts: &BTreeMap<String, BTreeMap<u32, u64>>) -> Vec<(String, u64)> {
    let sums = counts.iter();
    sums.map(|(name, cpus)| (name.clone(), cpus.values().sum()))
        .collect()
}

/// CPU time as shares of one CPU, and the context switches.
fn cpu(cell: &Cell) -> Vec<String> {
    let span = cell.sum(|row| row.cpu.as_ref().map_or(0, |_| row.span_ns));
    if span == 0 {
        let ksoftirqd = cell.sum(|row| row.witness.ksoftirqd_ns) as f64;
        let all = cell.sum(|row| row.span_ns).max(1) as f64;
        return vec![share(ksoftirqd / all), none(), none(), none()];
    }
    let sum = |pick: fn(&CpuUse) -> u64| cell.sum(|row| row.cpu.as_ref().map_or(0, pick));
    let of_one = |ns: u64| share(ns as f64 / span as f64);
    vec![
        of_one(sum(|cpu| cpu.ksoftirqd_ns)),
        of_one(sum(|cpu| cpu.server_ns)),
        of_one(sum(|cpu| cpu.client_ns)),
        count(sum(|cpu| cpu.context_switches)),
    ]
}

/// "NET_RX 6 000, TIMER 200", the largest first.
fn named(counts: &BTreeMap<String, u64>) -> String {
    let mut counts: Vec<(&str, u64)> = counts
        .iter()
        .map(|(name, sum)| (name.as_str(), *sum))
        .filter(|(_, sum)| *sum > 0)
        .collect();
    if counts.is_empty() {
        return none();
    }
    counts.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    let rest = counts.split_off(counts.len().min(NAMED_MAX));
    let name = |(name, sum): &(&str, u64)| format!("{} {}", escape(name), count(*sum));
    let mut words: Vec<String> = counts.iter().map(name).collect();
    if !rest.is_empty() {
        let sum = rest.iter().map(|(_, sum)| sum).sum();
        words.push(format!("{} others {}", rest.len(), count(sum)));
    }
    list(&words.join(", "))
}

fn energy(cell: &Cell) -> String {
    let read = |row: &Row| row.energy.as_ref().and_then(|energy| energy.joules);
    let source = cell
        .rows
        .iter()
        .filter_map(|row| row.energy.as_ref())
        .next_back();
    match (cell.mean(read), source) {
        (Some(joules), Some(energy)) => {
            let span_ns = cell.sum(|row| row.span_ns) as f64 / cell.rows.len() as f64;
            let words = format!("{joules:.2} J in {} ({})", time(span_ns), energy.source);
            list(&escape(&words))
        }
        (None, Some(energy)) => {
            let watts = |row: &Row| Some(row.energy.as_ref()?.estimate.as_ref()?.watts);
            let estimate = cell.mean(watts).map_or(String::new(), |watts| {
                format!("; estimate: {watts:.1} W more than at rest")
            });
            list(&escape(&(energy.source.clone() + &estimate)))
        }
        _ => none(),
    }
}

/// Text that may take several lines of its cell.
fn list(html: &str) -> String {
    format!("<span class=\"list\">{html}</span>")
}
