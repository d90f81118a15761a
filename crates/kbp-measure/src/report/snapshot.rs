// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of the page: how to read it, how it was measured, on what, how to repeat it.
//!
//! Not here: any figure of a row.

use std::fmt::Write;

use kbp_lab::{BACK_NS_LIMIT, TURN_NS_LIMIT};

use super::run::Run;
use super::text::{escape, time};
use crate::machine::turns;
use crate::result::{Config, ResultFile};

/// The closing sections.
pub fn sections(runs: &[Run]) -> String {
    let mut page = reading(runs);
    for run in runs {
        page += &machine(run, runs.len() > 1);
    }
    page + GLOSSARY
}

/// The words of the page, as docs/concepts/glossary.md has them.
const GLOSSARY: &str = "<h2>Words</h2>\n\
    <p><strong>p99</strong>: 99 of 100 round trips take no longer. <strong>NAPI</strong>: what the \
    kernel polls to receive packets, usually one for each receive queue. <strong>softirq</strong>: \
    the kernel's deferred work after an interrupt; <strong>NET_RX</strong> polls scheduled NAPI \
    instances. <strong>ksoftirqd</strong>: the thread that runs softirqs when there are too many. \
    <strong>Poller</strong>: KBP's thread on a CPU, which does there what NET_RX would do. \
    <strong>Rival</strong>: a mechanism that is not KBP's.</p>\n";

fn reading(runs: &[Run]) -> String {
    let has = |clock: &str| runs.iter().any(|run| run.file.clock == clock);
    let mut html = String::from("<h2>How to read it</h2>\n");
    if has("virtual") {
        html += "<p>Where the clock is <strong>virtual</strong>, guest time is the number of executed \
                 instructions, one nanosecond each. There are no caches, no sleep states and no \
                 frequency in that machine. It shows instructions, waiting and order, repeats on any \
                 host, and is not a claim about hardware. A mechanism that spins without the \
                 instruction PAUSE looks worse on it than it is: such rows carry a note, and of two \
                 figures the one of the real clock is to be believed.</p>\n";
    }
    if has("parallel") {
        html += "<p>Where the clock is <strong>parallel</strong>, guest time is counted in instructions as well, \
                 one nanosecond each, but each CPU's time goes on with its own instructions only: CPUs that work at \
                 the same time do not make each other slower, and a mechanism may spin without PAUSE. There are no \
                 caches, no sleep states and no frequency in that machine either.</p>\n";
    }
    if has("real") {
        html += "<p>Where the clock is <strong>real</strong>, what else the machine did is in the \
                 figures too.</p>\n";
    }
    html + "<p>Client and server are plain programs that block in <code>recv</code>; only what serves \
            the receive path differs between the lines. Pings are sent at seeded times, the same for \
            every mechanism. A slot that passes while an answer is awaited is skipped and counted, so \
            a slow mechanism is asked less often and its percentiles flatter it. Rounds of one \
            mechanism are pooled; lost pings are in no percentile.</p>\n\
            <p>Ratios of percentiles have a 95 % interval by bootstrap, with rounds as blocks. Where \
            it holds 1, <em>no difference is shown</em>. Softirqs in the tables are NET_RX on the \
            poller's CPU, interrupts those of the receive vectors; the kernel counted both. CPU time \
            is a share of one CPU: a busy poller takes all of its CPU, that is its price. Rows of \
            <code>sockperf</code> are of the unmodified program, which sends without a pause.</p>\n\
            <p class=\"scripted\">Drag across a chart to zoom, double-click to see all again. The \
            buttons above the charts show and hide mechanisms.</p>\n"
}

type Definition = (&'static str, String);

fn definitions(list: &[Definition]) -> String {
    let mut items = String::new();
    for (term, text) in list {
        let _ = writeln!(items, "<dt>{term}</dt><dd>{}</dd>", escape(text));
    }
    format!("<dl>\n{items}</dl>\n")
}

fn machine(run: &Run, named: bool) -> String {
    let name = if named {
        format!(": {}", escape(&run.label))
    } else {
        String::new()
    };
    let mut html = format!("<section class=\"machine\">\n<h2>Machine{name}</h2>\n");
    html += &definitions(&snapshot(run));
    if let Some(config) = &run.file.config {
        html += "<h3>How it was measured</h3>\n";
        html += &definitions(&configuration(config));
    }
    html += &repeating(run);
    if !run.file.machine.is_null() {
        let text = serde_json::to_string_pretty(&run.file.machine).unwrap_or_default();
        let _ = write!(
            html,
            "<details><summary>All that the lab says about the machine</summary>\n<pre>{}</pre></details>\n",
            escape(&text)
        );
    }
    html + "</section>\n"
}

fn configuration(config: &Config) -> Vec<Definition> {
    let cpus = &config.cpus;
    let ping = format!("UDP, {} bytes of payload", config.payload_len);
    let period = time(config.period_ns as f64);
    let (idle, storm) = (config.row_ns.idle as f64, config.row_ns.storm as f64);
    let (app, poller) = (config.app_fifo_priority, config.poller_fifo_priority);
    let mut list = vec![
        ("Ping", ping),
        ("Period", format!("{period} ± {} %, uniform", config.jitter_percent)),
        ("Lost after", time(config.timeout_ns as f64)),
        ("Left out", format!("the first {} pings of a row", config.warmup_pings)),
        ("Row", format!("idle {}, under load {}", time(idle), time(storm))),
        (
            "CPUs",
            format!(
                "{} housekeeping, {} client, {} receive interrupts, NAPI threads and poller, {} server",
                cpus.housekeeping, cpus.tester, cpus.poller, cpus.application
            ),
        ),
        (
            "Priorities",
            format!("client and server SCHED_FIFO {app}, threaded-fifo (on PREEMPT_RT 49 at most) and poller SCHED_FIFO {poller}"),
        ),
        ("Storm", config.storm.clone()),
        ("Seed", config.seed.to_string()),
    ];
    if let Some(cpu) = config.replies_cpu {
        let words = format!(
            "replies to an open loop are received by CPU {cpu}, which polls the tester's card on the path nic"
        );
        list.push(("Replies", words));
    }
    if let Some(cpu) = config.rps_cpu {
        let words =
            format!("RPS to CPU {cpu} on interfaces without interrupts, for every mechanism");
        list.push(("Steering", words));
    }
    let words = [
        ("Frequency", &config.cpufreq),
        ("Idle states", &config.cpuidle),
    ];
    for (name, words) in words {
        list.extend(words.clone().map(|words| (name, words)));
    }
    if let Some(rules) = config.rules {
        list.push(("Rule set", format!("{rules} rules, on paths that have one")));
    }
    list
}

fn snapshot(run: &Run) -> Vec<Definition> {
    let file: &ResultFile = &run.file;
    let no_qemu = || "none: a real machine, or not said".into();
    let sources: Vec<String> = run
        .sources
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let mut list = vec![
        ("Kernel", file.kernel.clone()),
        ("QEMU", file.qemu.clone().unwrap_or_else(no_qemu)),
        ("Clock", file.clock.clone()),
        ("Kernel command line", file.cmdline.clone()),
    ];
    if let Some(package) = file.machine["kernel_package"].as_str() {
        list.push(("Kernel package", package.into()));
    }
    if let Some(cpus) = file.machine["cpus"].as_u64() {
        list.push(("CPUs", cpus.to_string()));
    }
    if let Some(turns) = turns(&file.machine) {
        let (what, seen_ns, limit_ns) = match file.clock.as_str() {
            "parallel" => ("CPUs apart by up to", turns.back_ns_max, BACK_NS_LIMIT),
            _ => ("Longest turn of a CPU", turns.turn_ns_max, TURN_NS_LIMIT),
        };
        let (seen, limit) = (time(seen_ns as f64), time(limit_ns as f64));
        list.push((what, format!("{seen}, limit {limit}")));
    }
    list.push(("Date", file.date.clone()));
    list.push(("Revision", file.git.clone()));
    list.push(("Result", sources.join(", ")));
    list
}

fn repeating(run: &Run) -> String {
    let mut html = format!(
        "<h3>How to repeat it</h3>\n<p>On that machine, with <code>kbp</code> of revision {}:</p>\n",
        escape(&run.file.git)
    );
    for command in &run.commands {
        let _ = writeln!(html, "<pre>{}</pre>", escape(command));
    }
    if run.commands.is_empty() {
        html += "<p>The result does not say which command made it.</p>\n";
    }
    if run.file.qemu.is_some() {
        html += "<p>The machine is one of the lab: in a checkout of that revision, \
                 <code>make demo</code> boots it for the demo and <code>make bench</code> for the \
                 comparison.</p>\n";
    }
    html
}
