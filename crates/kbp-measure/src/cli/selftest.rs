// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp measure selftest`: what the tester can tell apart on this machine.
//!
//! Not here: the measuring ([`crate::tester::selftest`]).

use clap::Args;

use crate::error::Result;
use crate::place::{run_at, Place};
use crate::report::text::micros;
use crate::tester::backend::Kind;
use crate::tester::selftest::Floor;

const EXAMPLES: &str = "\
Example, as the tester will run:
  kbp measure selftest --cpu 1 --fifo 40

`kbp measure openloop`, `throughput` and `pingpong client` refuse a median below the floor.";

/// `kbp measure selftest`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SelftestArgs {
    /// The back ends; `ring` needs CAP_NET_RAW
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "udp,ring,wire"
    )]
    backend: Vec<Kind>,
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Run as SCHED_FIFO with this priority
    #[arg(long, value_name = "PRIO", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
}

pub(super) fn run(args: &SelftestArgs, json: bool) -> Result<u8> {
    let place = Place {
        cpu: args.cpu,
        fifo_priority: args.fifo,
        netns: None,
    };
    let floors = run_at(&place, || {
        let kinds = args.backend.iter();
        kinds
            .map(|kind| Floor::of(*kind))
            .collect::<Result<Vec<_>>>()
    })?;
    if json {
        println!("{}", serde_json::json!({ "floors": floors }));
    } else {
        print!("{}", as_table(&floors));
    }
    Ok(0)
}

fn as_table(floors: &[Floor]) -> String {
    let us = |ns: u64| micros(ns as f64);
    let mut text = format!(
        "{:<8} {:>10} {:>10} {:>10} {:>10} {:>12} {:>12} {:>12}\n",
        "", "floor µs", "p50", "p99.9", "max", "clock ns", "away p99.9", "away max µs"
    );
    for floor in floors {
        text += &format!(
            "{:<8} {:>10} {:>10} {:>10} {:>10} {:>12} {:>12} {:>12}\n",
            floor.backend.to_string(),
            us(floor.self_ns.min),
            us(floor.self_ns.p50),
            us(floor.self_ns.p999),
            us(floor.self_ns.max),
            floor.resolution_ns(),
            us(floor.gap_ns_p999),
            us(floor.gap_ns_max)
        );
    }
    text
}
