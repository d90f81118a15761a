// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp stats`: one row a counter, as the table generated from the spec lists them.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kbp_core::model::Stats;
use kbp_core::waits::Waits;
use kbp_core::{Client, Error};
use serde::Serialize;

use crate::context::Context;
use crate::print;

/// Arguments of `kbp stats`.
#[derive(Args)]
pub struct StatsArgs {
    /// Print what was counted in every interval of this many seconds.
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<u64>,
    /// End after this many intervals.
    #[arg(short, long, value_name = "N", requires = "watch")]
    count: Option<u64>,
    /// Print how long NAPI instances waited from being scheduled to being polled, by their class, instead of counters.
    ///
    /// On PREEMPT_RT also (bh) how long the poller waited for others of its CPU that had bottom halves off.
    #[arg(long)]
    waits: bool,
}

/// The counters of one object.
#[derive(Clone, Serialize)]
struct Counted {
    name: String,
    #[serde(flatten)]
    key: Key,
    stats: Stats,
}

/// What tells one object from another of the same name.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Key {
    Cpu(u32),
    NapiId(u32),
}

/// How long what a poller serves waited for its poll, and the poller for others that have bottom halves off.
#[derive(Clone, Serialize)]
struct Waited {
    cpu: u32,
    rt: Waits,
    normal: Waits,
    #[serde(skip_serializing_if = "Option::is_none")]
    bh: Option<Waits>,
}

#[derive(Serialize)]
struct Snapshot {
    pollers: Vec<Counted>,
    napis: Vec<Counted>,
    waits: Vec<Waited>,
}

fn read(client: &mut Client) -> Result<Snapshot, Error> {
    let pollers = client.pollers()?;
    let waits = pollers.iter().map(|poller| Waited {
        cpu: poller.cpu,
        rt: poller.rt_waits.clone(),
        normal: poller.normal_waits.clone(),
        bh: poller.bh_waits.clone(),
    });
    let waits = waits.collect();
    let pollers = pollers.into_iter().map(|poller| Counted {
        name: format!("CPU {}", poller.cpu),
        key: Key::Cpu(poller.cpu),
        stats: poller.stats,
    });
    let napis = client.napis()?.into_iter().map(|napi| Counted {
        name: napi.label(),
        key: Key::NapiId(napi.napi_id),
        stats: napi.stats,
    });
    Ok(Snapshot {
        pollers: pollers.collect(),
        napis: napis.collect(),
        waits,
    })
}

fn waits_since(now: &[Waited], before: &[Waited]) -> Vec<Waited> {
    let difference = |waited: &Waited| {
        let earlier = before.iter().find(|other| other.cpu == waited.cpu);
        let new = |earlier: &Waited| Waited {
            cpu: waited.cpu,
            rt: waited.rt.since(&earlier.rt),
            normal: waited.normal.since(&earlier.normal),
            bh: waited.bh.as_ref().map(|now| {
                let before = earlier.bh.clone().unwrap_or_default();
                now.since(&before)
            }),
        };
        earlier.map_or_else(|| waited.clone(), new)
    };
    now.iter().map(difference).collect()
}

fn since(now: &[Counted], before: &[Counted]) -> Vec<Counted> {
    let difference = |counted: &Counted| {
        let earlier = before.iter().find(|other| other.key == counted.key);
        let stats =
            earlier.map_or_else(|| counted.stats.clone(), |e| counted.stats.since(&e.stats));
        Counted {
            stats,
            ..counted.clone()
        }
    };
    now.iter().map(difference).collect()
}

/// Run `kbp stats`.
pub fn run(args: StatsArgs, context: &Context) -> Result<()> {
    let mut client = context.client()?;
    let mut before = read(&mut client)?;
    let Some(seconds) = args.watch else {
        return print_snapshot(context, &args, &before);
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        sleep(Duration::from_secs(seconds));
        let now = read(&mut client)?;
        let difference = Snapshot {
            pollers: since(&now.pollers, &before.pollers),
            napis: since(&now.napis, &before.napis),
            waits: waits_since(&now.waits, &before.waits),
        };
        print_snapshot(context, &args, &difference)?;
        before = now;
        left -= 1;
    }
    Ok(())
}

fn print_snapshot(context: &Context, args: &StatsArgs, snapshot: &Snapshot) -> Result<()> {
    if context.json {
        return print::json(context, snapshot);
    }
    if args.waits {
        return print_waits(&snapshot.waits);
    }
    print_counters("POLLER", &snapshot.pollers)?;
    print_counters("NAPI", &snapshot.napis)
}

/// A row a power of two, from the shortest to the longest wait that any poller has counted.
fn print_waits(waits: &[Waited]) -> Result<()> {
    let named = |one: &Waited| {
        let classes = [("rt", one.rt.clone()), ("normal", one.normal.clone())];
        let bh = one.bh.clone().map(|bh| ("bh", bh));
        let cpu = one.cpu;
        let all = classes.into_iter().chain(bh);
        all.map(move |(name, waits)| (cpu, name, waits))
    };
    let columns: Vec<(u32, &str, Waits)> = waits.iter().flat_map(named).collect();
    let mut limits: Vec<Option<u64>> = columns
        .iter()
        .flat_map(|(_, _, waits)| waits.iter().map(|wait| wait.below_ns))
        .collect();
    limits.sort_by_key(|limit| limit.unwrap_or(u64::MAX));
    limits.dedup();
    let names: Vec<String> = columns
        .iter()
        .map(|(cpu, class, _)| format!("CPU {cpu} {class}"))
        .collect();
    let header: Vec<&str> = std::iter::once("WAITED")
        .chain(names.iter().map(String::as_str))
        .collect();
    let row = |limit: &Option<u64>| {
        let count = |waits: &Waits| waits.iter().find(|wait| wait.below_ns == *limit);
        let counts = columns
            .iter()
            .map(|(_, _, waits)| count(waits).map_or(0, |wait| wait.count).to_string());
        std::iter::once(describe_limit(*limit))
            .chain(counts)
            .collect()
    };
    print::table(&header, limits.iter().map(row).collect(), 1)?;
    print::line("")
}

fn describe_limit(below_ns: Option<u64>) -> String {
    match below_ns {
        None => "longer".into(),
        Some(ns @ 0..1_000) => format!("< {ns} ns"),
        Some(ns @ 1_000..1_000_000) => format!("< {:.1} us", ns as f64 / 1e3),
        Some(ns) => format!("< {:.1} ms", ns as f64 / 1e6),
    }
}

fn print_counters(title: &str, counted: &[Counted]) -> Result<()> {
    let Some(first) = counted.first() else {
        return Ok(());
    };
    let header: Vec<&str> = std::iter::once(title)
        .chain(counted.iter().map(|c| c.name.as_str()))
        .collect();
    let row = |name: &str| {
        let values = counted.iter().map(|c| print::or_dash(c.stats.get(name)));
        std::iter::once(name.to_owned()).chain(values).collect()
    };
    print::table(
        &header,
        first
            .stats
            .iter()
            .map(|(counter, _)| row(counter.name))
            .collect(),
        1,
    )?;
    print::line("")
}
