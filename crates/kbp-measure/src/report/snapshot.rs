// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of the page: how to read it, how it was measured, on what, how to repeat it.
//!
//! Not here: any figure of a row.

use std::fmt::Write;

use super::text::{escape, time};
use crate::machine::{longest_turn_ns, TURN_NS_MAX};
use crate::result::{Config, ResultFile};

/// The closing sections.
pub fn sections(file: &ResultFile) -> String {
    let mut page = reading(file);
    if let Some(config) = &file.config {
        page += "<h2>How it was measured</h2>\n";
        page += &definitions(&configuration(config));
    }
    page += "<h2>Machine</h2>\n";
    page += &definitions(&machine(file));
    page += &repeating(file);
    page
}

fn reading(file: &ResultFile) -> String {
    let clock = if file.clock == "virtual" {
        "<p>The clock is <strong>virtual</strong>: guest time is the number of executed \
         instructions, one nanosecond each. There are no caches, no sleep states and no frequency \
         in this machine. It shows instructions, waiting and order, repeats on any host, and is \
         not a claim about hardware.</p>\n"
    } else {
        "<p>The clock is a real one: what else the machine did is in these figures too.</p>\n"
    };
    format!(
        "<h2>How to read it</h2>\n{clock}\
         <p>Client and server are plain programs that block in <code>recv</code>; only what serves \
         the receive path differs between the lines. Pings are sent at seeded times, the same for \
         every mode. A slot that passes while an answer is awaited is skipped and counted, so a \
         slow mode is asked less often and its percentiles flatter it.</p>\n{}",
        super::table::NOTES
    )
}

type Definition = (&'static str, String);

fn definitions(list: &[Definition]) -> String {
    let mut items = String::new();
    for (term, text) in list {
        let _ = writeln!(items, "<dt>{term}</dt><dd>{}</dd>", escape(text));
    }
    format!("<dl>\n{items}</dl>\n")
}

fn configuration(config: &Config) -> Vec<Definition> {
    let cpus = &config.cpus;
    vec![
        ("Ping", format!("UDP, {} bytes of payload", config.payload_len)),
        (
            "Period",
            format!("{} ± {} %, uniform", time(config.period_ns as f64), config.jitter_percent),
        ),
        ("Lost after", time(config.timeout_ns as f64)),
        ("Left out", format!("the first {} pings of a row", config.warmup_pings)),
        (
            "Row",
            format!(
                "idle {}, storm {}",
                time(config.row_ns.idle as f64),
                time(config.row_ns.storm as f64)
            ),
        ),
        (
            "CPUs",
            format!(
                "{} housekeeping, {} client, {} receive interrupts, NAPI threads and poller, {} server",
                cpus.housekeeping, cpus.tester, cpus.poller, cpus.application
            ),
        ),
        (
            "Priorities",
            format!(
                "client and server SCHED_FIFO {}, threaded-fifo and poller SCHED_FIFO {}",
                config.app_fifo_priority, config.poller_fifo_priority
            ),
        ),
        ("Storm", config.storm.clone()),
        ("Seed", config.seed.to_string()),
    ]
}

fn machine(file: &ResultFile) -> Vec<Definition> {
    let mut list = vec![
        ("Kernel", file.kernel.clone()),
        (
            "QEMU",
            file.qemu
                .clone()
                .unwrap_or_else(|| "none: a real machine".into()),
        ),
        ("Clock", file.clock.clone()),
        ("Kernel command line", file.cmdline.clone()),
    ];
    let number = |key: &str| file.machine.get(key).and_then(|value| value.as_u64());
    if let Some(cpus) = number("cpus") {
        list.push(("CPUs", cpus.to_string()));
    }
    if let Some(turn_ns) = longest_turn_ns(&file.machine) {
        let words = format!(
            "{}, limit {}",
            time(turn_ns as f64),
            time(TURN_NS_MAX as f64)
        );
        list.push(("Longest turn of a CPU", words));
    }
    list.push(("Date", file.date.clone()));
    list.push(("Revision", file.git.clone()));
    list
}

fn repeating(file: &ResultFile) -> String {
    let command = file
        .config
        .as_ref()
        .map_or("", |config| config.command.as_str());
    let inside = if command.is_empty() {
        String::new()
    } else {
        format!(
            "<p>Inside the machine, this ran:</p>\n<pre>{}</pre>\n",
            escape(command)
        )
    };
    format!(
        "<h2>How to repeat it</h2>\n<p>In a checkout of revision {}:</p>\n<pre>make demo</pre>\n{inside}",
        escape(&file.git)
    )
}
