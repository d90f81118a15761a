// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The merged comparison as JSON, schema `kbp.comparison/1`: `kbp report --json`.
//!
//! `docs/reference/report.md` describes every key; a test keeps the two together.
//! Not here: the rows themselves; they stay in the result files.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cell::{Cell, Group};
use super::headline::sentences;
use super::ratio::{compare, contests, Compared, Percentile};
use super::run::Run;
use crate::check::Bar;
use crate::result::{NotRun, RttNs};

/// The schema that is written.
pub const SCHEMA: &str = "kbp.comparison/1";

/// All runs, and every cell with its ratios.
#[derive(Debug, Serialize)]
pub struct Comparison<'a> {
    schema: &'static str,
    /// The result in plain words.
    headline: Vec<String>,
    runs: Vec<RunHead<'a>>,
    cells: Vec<CellFigures<'a>>,
}

#[derive(Debug, Serialize)]
struct RunHead<'a> {
    label: &'a str,
    files: Vec<String>,
    kernel: &'a str,
    clock: &'a str,
    qemu: Option<&'a str>,
    cmdline: &'a str,
    date: &'a str,
    git: &'a str,
    commands: &'a [String],
    partial: bool,
    not_run: &'a [NotRun],
    #[serde(skip_serializing_if = "Option::is_none")]
    bars: Option<&'a [Bar]>,
}

#[derive(Debug, Serialize)]
struct CellFigures<'a> {
    run: usize,
    path: &'a str,
    load: &'a str,
    mode: &'a str,
    tool: &'a str,
    traffic: &'a str,
    size_bytes: u64,
    rate_bps: Option<u64>,
    arrivals: Option<&'a str>,
    burst: Option<u32>,
    rounds: usize,
    n: u64,
    lost: u64,
    warmup_lost: u64,
    late: u64,
    dup: u64,
    skipped: u64,
    span_ns: u64,
    rtt_ns: Option<RttNs>,
    to_softirq: Option<Ratios>,
    to_best_rival: Option<ToRival<'a>>,
    net_rx_softirqs: u64,
    hard_irqs: u64,
    cpu_share: Option<f64>,
    drops: BTreeMap<String, u64>,
    joules: Option<f64>,
    frames_per_s: Option<f64>,
    limited_by_tester: Option<bool>,
    sent_per_s: Option<f64>,
    received_per_s: Option<f64>,
    sent_bps: Option<f64>,
    received_bps: Option<f64>,
    notes: Vec<&'a str>,
}

/// Ratios of percentiles.
#[derive(Debug, Serialize)]
struct Ratios {
    p50: Option<Compared>,
    p99: Option<Compared>,
}

#[derive(Debug, Serialize)]
struct ToRival<'a> {
    mode: &'a str,
    #[serde(flatten)]
    ratios: Ratios,
}

/// The comparison of these runs; `bars` are the demo's, a list for each run, or empty.
pub fn of<'a>(runs: &'a [Run], groups: &'a [Group<'a>], bars: &'a [Vec<Bar>]) -> Comparison<'a> {
    let heads = runs.iter().enumerate();
    Comparison {
        schema: SCHEMA,
        headline: sentences(runs, groups, &contests(groups)),
        runs: heads.map(|(i, run)| head(run, bars.get(i))).collect(),
        cells: groups
            .iter()
            .flat_map(|group| group.cells.iter().map(|cell| figures(group, cell)))
            .collect(),
    }
}

fn head<'a>(run: &'a Run, bars: Option<&'a Vec<Bar>>) -> RunHead<'a> {
    let file = &run.file;
    RunHead {
        label: &run.label,
        files: run
            .sources
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
        kernel: &file.kernel,
        clock: &file.clock,
        qemu: file.qemu.as_deref(),
        cmdline: &file.cmdline,
        date: &file.date,
        git: &file.git,
        commands: &run.commands,
        partial: file.partial,
        not_run: &file.not_run,
        bars: bars.map(Vec::as_slice),
    }
}

fn ratios(cell: &Cell, other: Option<&Cell>) -> Option<Ratios> {
    let other = other.filter(|other| other.mode != cell.mode)?;
    Some(Ratios {
        p50: compare(cell, other, Percentile::P50),
        p99: compare(cell, other, Percentile::P99),
    })
}

fn figures<'a>(group: &Group<'a>, cell: &Cell<'a>) -> CellFigures<'a> {
    let key = &group.key;
    let rival = group.best_rival();
    let throughput = cell.rows.iter().filter_map(|row| row.throughput);
    CellFigures {
        run: key.run,
        path: key.path,
        load: key.load,
        mode: cell.mode,
        tool: key.tool,
        traffic: key.traffic,
        size_bytes: key.size_bytes,
        rate_bps: key.rate_bps,
        arrivals: key.arrivals,
        burst: key.burst,
        rounds: cell.rows.len(),
        n: cell.n(),
        lost: cell.sum(|row| row.lost),
        warmup_lost: cell.sum(|row| row.warmup_lost),
        late: cell.sum(|row| row.late),
        dup: cell.sum(|row| row.dup),
        skipped: cell.sum(|row| row.skipped),
        span_ns: cell.sum(|row| row.span_ns),
        rtt_ns: cell.has_round_trips().then_some(cell.rtt_ns),
        to_softirq: ratios(cell, group.stock()),
        to_best_rival: ratios(cell, rival)
            .zip(rival)
            .map(|(ratios, rival)| ToRival {
                mode: rival.mode,
                ratios,
            }),
        net_rx_softirqs: cell.sum(|row| row.witness.net_rx_softirqs),
        hard_irqs: cell.sum(|row| row.witness.hard_irqs),
        cpu_share: cell.cpu_share(),
        drops: cell.counts(|row| row.drops.clone().into_iter().collect()),
        joules: cell.mean(|row| row.energy.as_ref()?.joules),
        frames_per_s: cell.mean(|row| Some(row.throughput?.frames_per_s)),
        limited_by_tester: throughput
            .map(|found| found.limited_by_tester)
            .reduce(|any, found| any || found),
        sent_per_s: cell.mean(|row| Some(row.one_way?.sent_per_s)),
        received_per_s: cell.mean(|row| Some(row.one_way?.received_per_s)),
        sent_bps: cell.mean(|row| Some(row.bulk?.sent_bps)),
        received_bps: cell.mean(|row| Some(row.bulk?.received_bps)),
        notes: super::cell::in_order(cell.rows.iter().filter_map(|row| row.note.as_deref())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::report::cell::groups;
    use crate::report::run::merge;
    use crate::report::tests::full;

    fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
                found.insert(key.clone());
                // The names of places that drop are the machine's, not ours.
                if key != "drops" {
                    keys(value, found);
                }
            }),
            serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }

    #[test]
    fn the_reference_names_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/report.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let runs = merge(vec![("a".into(), full())]);
        let bars = vec![crate::check::check_demo(&runs[0].file, None)];
        let groups = groups(&runs);
        let value = serde_json::to_value(of(&runs, &groups, &bars)).unwrap();
        let mut found = BTreeSet::new();
        keys(&value, &mut found);
        found.extend(
            super::super::csv::COLUMNS
                .iter()
                .map(|name| name.to_string()),
        );
        let missing: Vec<_> = found
            .iter()
            .filter(|key| !text.contains(&format!("`{key}`")))
            .collect();
        assert!(
            missing.is_empty(),
            "{} does not describe {missing:?}",
            path.display()
        );
    }

    #[test]
    fn ratios_are_those_of_the_figures() {
        let runs = merge(vec![("a".into(), crate::result::tests::sample())]);
        let groups = groups(&runs);
        let value = serde_json::to_value(of(&runs, &groups, &[])).unwrap();
        let cells = value["cells"].as_array().unwrap();
        let kbp = cells
            .iter()
            .find(|c| c["mode"] == "kbp-busy" && c["load"] == "storm")
            .unwrap();
        let stock = cells
            .iter()
            .find(|c| c["mode"] == "softirq" && c["load"] == "storm")
            .unwrap();
        let p99 = |cell: &serde_json::Value| cell["rtt_ns"]["p99"].as_f64().unwrap();
        let ratio = &kbp["to_softirq"]["p99"];
        let value_of = |key: &str| ratio[key].as_f64().unwrap();
        assert_eq!(value_of("value"), p99(kbp) / p99(stock));
        assert!(value_of("low") < value_of("value") && value_of("value") < value_of("high"));
        assert_eq!(ratio["verdict"], "lower");
        assert_eq!(kbp["to_best_rival"]["mode"], "threaded-fifo");
        assert!(
            stock["to_softirq"].is_null(),
            "nothing is compared with itself"
        );
    }
}
