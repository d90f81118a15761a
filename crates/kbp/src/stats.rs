// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp stats`: one row a counter, as the table generated from the spec lists them.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kbp_core::model::Stats;
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

#[derive(Serialize)]
struct Snapshot {
    pollers: Vec<Counted>,
    napis: Vec<Counted>,
}

fn read(client: &mut Client) -> Result<Snapshot, Error> {
    let pollers = client.pollers()?.into_iter().map(|poller| Counted {
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
    })
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
        return print_snapshot(context, &before);
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        sleep(Duration::from_secs(seconds));
        let now = read(&mut client)?;
        let difference = Snapshot {
            pollers: since(&now.pollers, &before.pollers),
            napis: since(&now.napis, &before.napis),
        };
        print_snapshot(context, &difference)?;
        before = now;
        left -= 1;
    }
    Ok(())
}

fn print_snapshot(context: &Context, snapshot: &Snapshot) -> Result<()> {
    if context.json {
        return print::json(context, snapshot);
    }
    print_counters("POLLER", &snapshot.pollers)?;
    print_counters("NAPI", &snapshot.napis)
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
