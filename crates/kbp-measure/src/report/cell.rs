// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows put together: all rounds of one mechanism under one load are a cell, the cells that are
//! compared with each other a group.
//!
//! Round trips of several rounds are pooled: their histograms have the same bounds, so the sum is
//! exact, and so are its percentiles to the three digits of a cell. Rows of third parties have no
//! histogram; their percentiles are averaged over the rounds.
//! Not here: how sure a ratio is ([`super::ratio`]), and every form of output.

use std::collections::BTreeMap;

use super::run::Run;
use crate::result::{is_measured, Row, RttNs};
use crate::stats::rank;

/// The mechanism that every other is compared with.
pub const STOCK: &str = "softirq";

/// Whether a mechanism is one of ours.
pub fn is_ours(mode: &str) -> bool {
    mode.starts_with("kbp-")
}

/// What the rows of a group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    /// Index of the run.
    pub run: usize,
    /// The topology.
    pub path: &'a str,
    /// The load.
    pub load: &'a str,
    /// What was sent.
    pub traffic: &'a str,
    /// Who measured.
    pub tool: &'a str,
    /// Payload of a datagram or length of a frame, bytes.
    pub size_bytes: u64,
    /// Offered rate, bits a second.
    pub rate_bps: Option<u64>,
    /// Which times frames were due at; `None` where they were constant.
    pub arrivals: Option<&'a str>,
    /// Packets of one call, in one-way rows.
    pub burst: Option<u32>,
}

impl<'a> Key<'a> {
    fn of(run: usize, row: &'a Row) -> Self {
        Self {
            run,
            path: &row.path,
            load: &row.load,
            traffic: &row.traffic,
            tool: &row.tool,
            size_bytes: row.size_bytes,
            rate_bps: row.rate_bps,
            arrivals: row.arrivals.as_deref(),
            burst: row.one_way.map(|one_way| one_way.burst),
        }
    }
}

/// All rounds of one mechanism.
#[derive(Debug, Clone)]
pub struct Cell<'a> {
    /// The mechanism.
    pub mode: &'a str,
    /// Its rounds, in order.
    pub rows: Vec<&'a Row>,
    /// The round trips of all of them, nanoseconds.
    pub rtt_ns: RttNs,
    /// The pooled histogram, `[upper end in ns, count]`, ascending; empty where a round has none.
    pub histogram_ns: Vec<[u64; 2]>,
}

impl<'a> Cell<'a> {
    fn new(mode: &'a str, rows: Vec<&'a Row>) -> Self {
        let histogram_ns = pooled_histogram(&rows);
        let rtt_ns = pooled_rtt(&rows, &histogram_ns);
        Self {
            mode,
            rows,
            rtt_ns,
            histogram_ns,
        }
    }

    /// The sum of a count over the rounds.
    pub fn sum(&self, count: impl Fn(&Row) -> u64) -> u64 {
        self.rows.iter().map(|row| count(row)).sum()
    }

    /// The mean of a figure over the rounds that have it.
    pub fn mean(&self, figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        let figures: Vec<f64> = self.rows.iter().filter_map(|row| figure(row)).collect();
        (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
    }

    /// Round trips in the figures.
    pub fn n(&self) -> u64 {
        self.sum(|row| row.n)
    }

    /// What was lost, the warm-up included.
    pub fn lost(&self) -> u64 {
        self.sum(|row| row.lost + row.warmup_lost)
    }

    /// Whether there are round trips to speak of.
    pub fn has_round_trips(&self) -> bool {
        self.n() > 0 && self.rtt_ns.max > 0
    }

    /// CPU time of the threads that the mechanism brings, as a share of one CPU; `None` where it
    /// brings none or none was read.
    pub fn cpu_share(&self) -> Option<f64> {
        let (used, span) = (
            self.sum(|row| row.witness.mode_threads_ns),
            self.sum(|row| row.span_ns),
        );
        (used > 0 && span > 0).then(|| used as f64 / span as f64)
    }

    /// Named counts summed over the rounds.
    pub fn counts(&self, pick: impl Fn(&Row) -> Vec<(String, u64)>) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in self.rows.iter().flat_map(|row| pick(row)) {
            *sums.entry(name).or_insert(0) += count;
        }
        sums
    }
}

fn pooled_histogram(rows: &[&Row]) -> Vec<[u64; 2]> {
    // A round in which nothing came back has no histogram, and nothing to add.
    if rows
        .iter()
        .any(|row| row.n > 0 && row.histogram_ns.is_empty())
    {
        return Vec::new();
    }
    let mut cells = BTreeMap::new();
    for [end, count] in rows.iter().flat_map(|row| &row.histogram_ns) {
        *cells.entry(*end).or_insert(0) += count;
    }
    cells.into_iter().map(|(end, count)| [end, count]).collect()
}

/// The round trip that a share of all does not exceed, nanoseconds; 0 without any.
pub fn quantile_ns(cells: &[[u64; 2]], share: f64) -> u64 {
    let all: u64 = cells.iter().map(|cell| cell[1]).sum();
    let wanted = rank(share, all);
    let mut seen = 0;
    for [end, count] in cells {
        seen += count;
        if seen >= wanted {
            return *end;
        }
    }
    cells.last().map_or(0, |cell| cell[0])
}

fn pooled_rtt(rows: &[&Row], histogram_ns: &[[u64; 2]]) -> RttNs {
    if let [row] = rows {
        return row.rtt_ns;
    }
    let answered: Vec<&&Row> = rows.iter().filter(|row| row.n > 0).collect();
    let n: u64 = answered.iter().map(|row| row.n).sum();
    if n == 0 {
        return RttNs::default();
    }
    let weighted = |row: &&&Row| row.rtt_ns.mean * row.n as f64;
    let mean = answered.iter().map(weighted).sum::<f64>() / n as f64;
    let averaged = |pick: fn(&RttNs) -> u64| {
        answered.iter().map(|row| pick(&row.rtt_ns)).sum::<u64>() / answered.len() as u64
    };
    let at = |share: f64, pick: fn(&RttNs) -> u64| match histogram_ns {
        [] => averaged(pick),
        cells => quantile_ns(cells, share),
    };
    RttNs {
        min: answered.iter().map(|row| row.rtt_ns.min).min().unwrap_or(0),
        p50: at(0.5, |rtt| rtt.p50),
        p90: at(0.9, |rtt| rtt.p90),
        p99: at(0.99, |rtt| rtt.p99),
        p999: at(0.999, |rtt| rtt.p999),
        max: answered.iter().map(|row| row.rtt_ns.max).max().unwrap_or(0),
        mean,
        sd: pooled_sd(&answered, mean),
    }
}

/// Of all round trips of rows together, about their common mean; `None` if a row has none.
fn pooled_sd(rows: &[&&Row], mean: f64) -> Option<f64> {
    let (mut squares, mut n) = (0.0, 0);
    for row in rows {
        let away = row.rtt_ns.mean - mean;
        squares += row.n as f64 * (row.rtt_ns.sd?.powi(2) + away.powi(2));
        n += row.n;
    }
    Some((squares / n as f64).sqrt())
}

/// Cells that are compared with each other.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// What they have in common.
    pub key: Key<'a>,
    /// A cell for each mechanism, in the order of first appearance.
    pub cells: Vec<Cell<'a>>,
}

impl<'a> Group<'a> {
    /// The cell of a mechanism.
    pub fn of_mode(&self, mode: &str) -> Option<&Cell<'a>> {
        self.cells.iter().find(|cell| cell.mode == mode)
    }

    /// The stock path.
    pub fn stock(&self) -> Option<&Cell<'a>> {
        self.of_mode(STOCK)
    }

    /// The mechanism with the lowest p99 that is not ours.
    pub fn best_rival(&self) -> Option<&Cell<'a>> {
        self.cells
            .iter()
            .filter(|cell| !is_ours(cell.mode) && cell.has_round_trips())
            .min_by_key(|cell| cell.rtt_ns.p99)
    }

    /// Our mechanisms.
    pub fn ours(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.cells.iter().filter(|cell| is_ours(cell.mode))
    }

    /// Whether its figures are round trips, and not a rate.
    pub fn is_latency(&self) -> bool {
        let has_rate =
            |row: &&Row| row.throughput.is_some() || row.one_way.is_some() || row.bulk.is_some();
        !self.cells.iter().flat_map(|cell| &cell.rows).any(has_rate)
    }

    /// Whether the headline is about it: round trips that our own tester measured, or those of a service instead.
    pub fn is_headline(&self) -> bool {
        is_measured(self.key.tool) && self.is_latency()
    }
}

/// The rows of a group by mechanism, while it is put together.
type ByMode<'a> = Vec<(&'a str, Vec<&'a Row>)>;

/// All groups of all runs, in the order of first appearance.
pub fn groups(runs: &[Run]) -> Vec<Group<'_>> {
    let mut found: Vec<(Key, ByMode)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        for row in &run.file.rows {
            let key = Key::of(index, row);
            let place = found.iter().position(|(other, _)| *other == key);
            let place = place.unwrap_or_else(|| {
                found.push((key, Vec::new()));
                found.len() - 1
            });
            let modes = &mut found[place].1;
            match modes.iter_mut().find(|(mode, _)| *mode == row.mode) {
                Some((_, rows)) => rows.push(row),
                None => modes.push((&row.mode, vec![row])),
            }
        }
    }
    let cell = |(mode, rows)| Cell::new(mode, rows);
    found
        .into_iter()
        .map(|(key, modes)| Group {
            key,
            cells: modes.into_iter().map(cell).collect(),
        })
        .collect()
}

/// Every different name once, in the order of first appearance.
pub fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::run::merge;
    use crate::result::tests::sample;
    use crate::rng::SplitMix64;
    use crate::tester::pingpong::RoundTrips;

    fn row_of(times: &[u64]) -> Row {
        let mut rtts = RoundTrips::new();
        times.iter().for_each(|ns| rtts.record(*ns));
        Row {
            n: rtts.count(),
            rtt_ns: RttNs::from(&rtts),
            histogram_ns: rtts.cells(),
            ..Row::default()
        }
    }

    /// Rounds pooled from histograms against all times in one list, sorted.
    #[test]
    fn pooled_rounds_are_as_good_as_one_long_row() {
        for seed in 1..=200 {
            let mut rng = SplitMix64::new(seed);
            let times = |rng: &mut SplitMix64| -> Vec<u64> {
                (0..rng.in_range(1, 900))
                    .map(|_| 1 << rng.in_range(0, 24))
                    .collect()
            };
            let rounds: Vec<Vec<u64>> = (0..rng.in_range(1, 4)).map(|_| times(&mut rng)).collect();
            let rows: Vec<Row> = rounds.iter().map(|times| row_of(times)).collect();
            let cell = Cell::new("softirq", rows.iter().collect());
            let mut all = rounds.concat();
            all.sort_unstable();
            let exact = |share: f64| all[((share * all.len() as f64).ceil() as usize).max(1) - 1];
            let rtt = cell.rtt_ns;
            assert_eq!(
                (rtt.min, rtt.max),
                (all[0], all[all.len() - 1]),
                "seed {seed}"
            );
            for (found, share) in [
                (rtt.p50, 0.5),
                (rtt.p90, 0.9),
                (rtt.p99, 0.99),
                (rtt.p999, 0.999),
            ] {
                let wanted = exact(share);
                // A cell of three digits ends at most 0.1 % above what is in it.
                assert!(
                    (wanted..=wanted + wanted / 1_000 + 1).contains(&found),
                    "seed {seed}, {share}: {found} instead of {wanted}"
                );
            }
            let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
            assert!((rtt.mean - mean).abs() < 1e-6 * mean, "seed {seed}");
        }
    }

    #[test]
    fn rounds_of_third_parties_are_averaged() {
        let rtt = |p50, max| RttNs {
            min: 1,
            p50,
            p90: p50,
            p99: max,
            p999: max,
            max,
            mean: 5.0,
            sd: Some(1.0),
        };
        let row = |p50, max| Row {
            n: 10,
            rtt_ns: rtt(p50, max),
            ..Row::default()
        };
        let rows = [row(10, 30), row(20, 50)];
        let cell = Cell::new("softirq", rows.iter().collect());
        assert_eq!(
            (cell.rtt_ns.p50, cell.rtt_ns.p99, cell.rtt_ns.max),
            (15, 40, 50)
        );
        assert!(cell.histogram_ns.is_empty());
    }

    #[test]
    fn what_is_compared_has_all_in_common_but_the_mechanism() {
        let mut file = sample();
        let mut open = file.rows[0].clone();
        open.traffic = "open-loop".into();
        open.rate_bps = Some(80_000_000);
        file.rows.push(open.clone());
        open.arrivals = Some("poisson".into());
        file.rows.push(open);
        let runs = merge(vec![("a".into(), file)]);
        let groups = groups(&runs);
        assert_eq!(groups.len(), 4, "idle, storm, two open loops");
        let idle = &groups[0];
        let modes: Vec<&str> = idle.cells.iter().map(|cell| cell.mode).collect();
        assert_eq!(modes, ["softirq", "threaded", "threaded-fifo", "kbp-busy"]);
        assert_eq!(idle.stock().unwrap().rows.len(), 2, "both rounds");
        assert_eq!(idle.best_rival().unwrap().mode, "softirq");
        assert_eq!(groups[1].best_rival().unwrap().mode, "threaded-fifo");
        assert_eq!(idle.ours().count(), 1);
    }
}
