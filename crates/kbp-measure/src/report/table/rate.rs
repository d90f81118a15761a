// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traffic that is counted: the account of an open loop, the throughput of RFC 2544, the packet rate
//! of one direction, bulk transfers.
//!
//! Not here: round trips, which an open loop has too ([`super::latency`]).

use super::{none, Table};
use crate::compare::rates::Rates;
use crate::report::cell::{is_ours, Cell, Group, STOCK};
use crate::report::names;
use crate::report::text::{bits, count, escape, share, time};
use crate::result::OpenLoop;

/// The accounts of the open loops among these groups, empty without any.
pub fn open_loop(groups: &[&Group]) -> String {
    let mut table = Table::new(&[
        "mechanism",
        "bytes",
        "rate",
        "sent",
        "came back",
        "lost",
        "share",
        "duplicated",
        "reordered",
        "latest send",
    ]);
    let mut found = false;
    for (group, cell) in cells(groups) {
        let accounts: Vec<&OpenLoop> = cell
            .rows
            .iter()
            .filter_map(|row| row.open_loop.as_ref())
            .collect();
        let Some(latest) = accounts.iter().map(|open| open.send_late_ns_max).max() else {
            continue;
        };
        found = true;
        let sum = |pick: fn(&OpenLoop) -> u64| accounts.iter().map(|open| pick(open)).sum::<u64>();
        let (sent, lost) = (sum(|open| open.sent), cell.sum(|row| row.lost));
        let columns = [
            count(group.key.size_bytes),
            names::offered(&group.key).map_or_else(none, |offered| escape(&offered)),
            count(sent),
            count(cell.n()),
            count(lost),
            share(lost as f64 / sent.max(1) as f64),
            count(sum(|open| open.duplicated)),
            count(sum(|open| open.reordered)),
            time(latest as f64),
        ];
        table.row(cell.mode, cell.mode, &columns);
    }
    titled(
        found,
        "Open loop: the account of the frames",
        &table,
        OPEN_LOOP_NOTE,
    )
}

const OPEN_LOOP_NOTE: &str = "Frames are sent when they are due, whatever comes back; their round \
    trips count from the moment at which a frame was due, so queueing counts and a late sender \
    shows as delay. Those of memcached count from when a request left.";

/// The throughput of RFC 2544 among these groups, empty without any.
pub fn throughput(groups: &[&Group]) -> String {
    let mut table = Table::new(&[
        "mechanism",
        "bytes",
        "frames/s",
        "rate",
        "÷ softirq",
        "÷ best rival",
        "trials",
        "trial",
        "resolution",
        "limit",
    ]);
    let mut found = false;
    for (group, cell) in cells(groups) {
        if let Some(columns) = throughput_columns(group, cell) {
            found = true;
            table.row(cell.mode, cell.mode, &columns);
        }
    }
    let title = "Throughput without loss (RFC 2544, 26.1)";
    titled(found, title, &table, "Several rounds are averaged.")
}

fn throughput_columns(group: &Group, cell: &Cell) -> Option<Vec<String>> {
    let last = cell
        .rows
        .iter()
        .filter_map(|row| row.throughput)
        .next_back()?;
    let found = Rates::of(&cell.rows)?;
    let rivals = group.cells.iter().filter(|cell| !is_ours(cell.mode));
    let best = rivals
        .filter_map(|cell| Some((cell.mode, Rates::of(&cell.rows)?)))
        .max_by(|a, b| a.1.mean.total_cmp(&b.1.mean));
    let stock = group.stock();
    let stock = stock.and_then(|cell| Some((STOCK, Rates::of(&cell.rows)?)));
    Some(vec![
        count(group.key.size_bytes),
        count(found.mean.round() as u64),
        bits(cell.mean(|row| row.throughput.map(|found| found.bps))?),
        to_other(cell, &found, stock),
        to_other(cell, &found, best),
        count(found.trials),
        time(last.trial_ns as f64),
        format!("{} %", last.resolution_percent),
        found.limit().into(),
    ])
}

fn to_other(cell: &Cell, found: &Rates, other: Option<(&str, Rates)>) -> String {
    let other = other.filter(|(mode, _)| *mode != cell.mode);
    let by = other.and_then(|(_, other)| found.by(&other));
    by.map_or_else(none, |by| escape(&by.words()))
}

/// The rates of one direction among these groups, empty without any.
pub fn one_way(groups: &[&Group]) -> String {
    let mut table = Table::new(&[
        "sent by",
        "mechanism",
        "bytes",
        "burst",
        "sent/s",
        "received/s",
        "not received",
    ]);
    let mut found = false;
    for (group, cell) in cells(groups) {
        let sent = cell.mean(|row| Some(row.one_way?.sent_per_s));
        let received = cell.mean(|row| Some(row.one_way?.received_per_s));
        let (Some(sent), Some(received)) = (sent, received) else {
            continue;
        };
        found = true;
        let columns = [
            escape(cell.mode),
            count(group.key.size_bytes),
            group.key.burst.map_or_else(none, |burst| burst.to_string()),
            count(sent.round() as u64),
            count(received.round() as u64),
            share(1.0 - (received / sent.max(1e-9)).min(1.0)),
        ];
        table.row(cell.mode, group.key.tool, &columns);
    }
    let note = "Received packets are counted over the middle of the run.";
    titled(found, "Packets of one direction", &table, note)
}

/// The bulk transfers among these groups, empty without any.
pub fn bulk(groups: &[&Group]) -> String {
    let mut table = Table::new(&[
        "sent by",
        "traffic",
        "mechanism",
        "sent",
        "received",
        "segments sent again",
        "jitter",
    ]);
    let mut found = false;
    for (group, cell) in cells(groups) {
        let sent = cell.mean(|row| Some(row.bulk?.sent_bps));
        let received = cell.mean(|row| Some(row.bulk?.received_bps));
        let (Some(sent), Some(received)) = (sent, received) else {
            continue;
        };
        found = true;
        let again = cell.mean(|row| Some(row.bulk?.retransmits? as f64));
        let jitter = cell.mean(|row| Some(row.bulk?.jitter_ns? as f64));
        let columns = [
            escape(group.key.traffic),
            escape(cell.mode),
            bits(sent),
            bits(received),
            again.map_or_else(none, |again| count(again.round() as u64)),
            jitter.map_or_else(none, time),
        ];
        table.row(cell.mode, group.key.tool, &columns);
    }
    let note = "Payload, as the program that sent it says; several rounds are averaged.";
    titled(found, "Bulk transfers", &table, note)
}

fn cells<'a>(groups: &'a [&Group<'a>]) -> impl Iterator<Item = (&'a Group<'a>, &'a Cell<'a>)> {
    let pair = |group: &'a Group<'a>| group.cells.iter().map(move |cell| (group, cell));
    groups.iter().flat_map(move |group| pair(group))
}

fn titled(found: bool, title: &str, table: &Table, note: &str) -> String {
    if !found {
        return String::new();
    }
    format!(
        "<h5>{title}</h5>\n{}<p class=\"soft\">{note}</p>\n",
        table.html()
    )
}
