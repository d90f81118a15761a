// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the charts of the page are drawn from: JSON inside the page, thinned to what can be seen.
//!
//! A line keeps the cells at which it crosses a grid of shares, linear for the distribution and
//! logarithmic for its tail, and those of the percentiles of the tables. Every kept cell has its
//! exact count, so the percentiles of a thinned line are those of the whole one.
//! Not here: the drawing (`page.js`).

use std::collections::BTreeSet;

use serde::Serialize;

use super::cell::{is_ours, Cell, Group};
use super::names;
use crate::stats::rank;

/// Points of a line, at most.
const LINE_POINTS_MAX: usize = 400;
/// Points of a line that a page with very many lines still has.
const LINE_POINTS_MIN: usize = 120;
/// Points of all lines of a page, at about ten bytes each, where the lines allow it.
const PAGE_POINTS_MAX: usize = 100_000;
/// Shares whose cells are always kept.
const PERCENTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// One line of the charts of a block.
#[derive(Debug, Serialize)]
struct Line<'a> {
    name: &'a str,
    colour: usize,
    ours: bool,
    n: u64,
    /// Upper ends of the kept cells, nanoseconds.
    x: Vec<u64>,
    /// Round trips up to there.
    c: Vec<u64>,
    /// When the sent times of the timeline were, nanoseconds; rounds follow one another.
    t: Vec<u64>,
    /// The round trips of the timeline, nanoseconds.
    r: Vec<u64>,
}

/// The charts of one group.
#[derive(Debug, Serialize)]
struct Block<'a> {
    id: String,
    lines: Vec<Line<'a>>,
}

/// Whether a group has anything for charts.
pub fn has_lines(group: &Group) -> bool {
    group.cells.iter().any(|cell| !cell.histogram_ns.is_empty())
}

/// The data of all groups, as JSON that is safe inside `<script>`: no `<`, `>` or `&` in it.
pub fn json(groups: &[Group]) -> String {
    let drawn = || {
        groups
            .iter()
            .enumerate()
            .filter(|(_, group)| has_lines(group))
    };
    let lines: usize = drawn().map(|(_, group)| group.cells.len()).sum();
    // Half of a line's points are for the distribution, half for the timeline.
    let points = (PAGE_POINTS_MAX / 2 / lines.max(1)).clamp(LINE_POINTS_MIN, LINE_POINTS_MAX);
    let blocks: Vec<Block> = drawn()
        .map(|(index, group)| Block {
            id: block_id(index),
            lines: group.cells.iter().map(|cell| line(cell, points)).collect(),
        })
        .collect();
    let text = serde_json::to_string(&blocks).expect("strings and numbers have a JSON form");
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// The element of a group in the page.
pub fn block_id(index: usize) -> String {
    format!("b{index}")
}

fn line<'a>(cell: &Cell<'a>, points: usize) -> Line<'a> {
    let stair = thin(&cell.histogram_ns, points);
    let timeline = timeline(cell, points);
    Line {
        name: cell.mode,
        colour: names::colour(cell.mode),
        ours: is_ours(cell.mode),
        n: cell.histogram_ns.iter().map(|cell| cell[1]).sum(),
        x: stair.iter().map(|step| step[0]).collect(),
        c: stair.iter().map(|step| step[1]).collect(),
        t: timeline.iter().map(|point| point[0]).collect(),
        r: timeline.iter().map(|point| point[1]).collect(),
    }
}

/// Cells as a stair of at most `limit` steps, `[upper end, count up to there]`.
fn thin(cells: &[[u64; 2]], limit: usize) -> Vec<[u64; 2]> {
    let mut seen = 0;
    let stair: Vec<[u64; 2]> = cells
        .iter()
        .map(|[end, count]| {
            seen += count;
            [*end, seen]
        })
        .collect();
    if stair.len() <= limit {
        return stair;
    }
    let grid = (limit - PERCENTILES.len() - 2) / 2;
    let all = seen as f64;
    let even = (1..=grid).map(|i| i as f64 / grid as f64);
    let tail = (1..=grid).map(|i| 1.0 - all.powf(-(i as f64) / grid as f64));
    let mut kept = BTreeSet::from([0, stair.len() - 1]);
    for share in PERCENTILES.into_iter().chain(even).chain(tail) {
        let wanted = rank(share, seen);
        kept.insert(
            stair
                .partition_point(|step| step[1] < wanted)
                .min(stair.len() - 1),
        );
    }
    kept.into_iter().map(|index| stair[index]).collect()
}

/// The timelines of a cell's rounds, one after the other, thinned to the longest of equal parts.
fn timeline(cell: &Cell, limit: usize) -> Vec<[u64; 2]> {
    let mut points = Vec::new();
    let mut begun_ns = 0;
    for row in &cell.rows {
        points.extend(
            row.timeline_ns
                .iter()
                .map(|[at, rtt]| [begun_ns + at, *rtt]),
        );
        begun_ns += row.span_ns;
    }
    let part = points.len().div_ceil(limit).max(1);
    points
        .chunks(part)
        .filter_map(|chunk| chunk.iter().max_by_key(|point| point[1]).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::cell::quantile_ns;
    use crate::rng::SplitMix64;

    #[test]
    fn a_thinned_line_keeps_its_percentiles() {
        for seed in 1..=300 {
            let mut rng = SplitMix64::new(seed);
            let mut end = 0;
            let cells: Vec<[u64; 2]> = (0..rng.in_range(1, 3_000))
                .map(|_| {
                    end += rng.in_range(1, 900);
                    [end, 1 << rng.in_range(0, 9)]
                })
                .collect();
            let limit = rng.in_range(120, 400) as usize;
            let stair = thin(&cells, limit);
            assert!(stair.len() <= limit, "seed {seed}: {} points", stair.len());
            let all: u64 = cells.iter().map(|cell| cell[1]).sum();
            assert_eq!(
                stair.last(),
                Some(&[end, all]),
                "seed {seed}: the longest is kept"
            );
            for share in PERCENTILES {
                let wanted = ((share * all as f64).ceil() as u64).max(1);
                let shown = stair.iter().find(|step| step[1] >= wanted).unwrap()[0];
                assert_eq!(shown, quantile_ns(&cells, share), "seed {seed}, {share}");
            }
            // Between kept steps nothing is missing that could be seen.
            for pair in stair.windows(2) {
                let gap = (pair[1][1] - pair[0][1]) as f64 / all as f64;
                let largest = cells.iter().map(|cell| cell[1]).max().unwrap() as f64 / all as f64;
                assert!(
                    gap <= 3.0 / limit as f64 + largest,
                    "seed {seed}: a gap of {gap}"
                );
            }
        }
    }

    #[test]
    fn a_thinned_timeline_keeps_its_worst_samples() {
        let row = crate::result::Row {
            span_ns: 1_000_000,
            timeline_ns: (0..500)
                .map(|i| [i * 2_000, if i == 333 { 9_999 } else { i }])
                .collect(),
            ..Default::default()
        };
        let rows = [row.clone(), row];
        let key = "softirq";
        let cell = Cell {
            mode: key,
            rows: rows.iter().collect(),
            rtt_ns: Default::default(),
            histogram_ns: vec![],
        };
        let points = timeline(&cell, 120);
        assert!(points.len() <= 120);
        let worst: Vec<_> = points.iter().filter(|point| point[1] == 9_999).collect();
        assert_eq!(worst, [&[666_000, 9_999], &[1_666_000, 9_999]]);
    }
}
