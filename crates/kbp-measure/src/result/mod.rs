// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result file, schema `kbp.result/1`: what a run measured, on what, and how.
//!
//! `docs/reference/result.md` describes every key; a test keeps the two together.
//! Not here: judging ([`crate::check`]) and showing ([`crate::report`]).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::compare::plan::Plan;
use crate::error::{Error, Result};

mod row;
mod usage;

pub use row::{Bulk, LoadDone, OneWay, OpenLoop, PollerDelta, Row, RttNs, Throughput, Witness};
pub use usage::{CpuTimes, CpuUse, Energy, EnergyEstimate, FrequencyUse, IdleUse};

/// The schema that this version writes and reads.
pub const SCHEMA: &str = "kbp.result/1";

/// Name of our own ping-pong in [`Row::tool`].
pub const TOOL_KBP: &str = "kbp";
/// Name of Debian's sockperf in [`Row::tool`].
pub const TOOL_SOCKPERF: &str = "sockperf";

/// Name of Debian's memcached in [`Row::tool`], also that of its traffic.
pub const TOOL_MEMCACHED: &str = "memcached";
/// Name of Debian's SIP proxy in [`Row::tool`].
pub const TOOL_KAMAILIO: &str = "kamailio";

/// What [`Row::traffic`] says of SIP messages through a proxy.
pub const TRAFFIC_SIP: &str = "sip";

/// Whether traffic is that of a service which is measured instead of the ping-pong.
pub fn is_service(traffic: &str) -> bool {
    [TOOL_MEMCACHED, TRAFFIC_SIP].contains(&traffic)
}

/// Whether the round trips of a tool are those of a mechanism that is compared: our own tester's, and those of services
/// that are measured instead of it. A witness such as sockperf confirms them and is shown apart.
pub fn is_measured(tool: &str) -> bool {
    [TOOL_KBP, TOOL_MEMCACHED, TOOL_KAMAILIO].contains(&tool)
}

/// What [`Row::traffic`] says of a row in which nothing was sent.
pub const NO_TRAFFIC: &str = "none";

/// One run: where it was made, its configuration, and a row for each measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// [`SCHEMA`].
    pub schema: String,
    /// `virtual` (guest time is the number of executed instructions, 1 ns each) or `real`.
    pub clock: String,
    /// Release and version of the kernel that was measured.
    pub kernel: String,
    /// Version of QEMU; `null` on a real machine.
    pub qemu: Option<String>,
    /// The kernel's command line.
    pub cmdline: String,
    /// When the run began, UTC, ISO 8601.
    pub date: String,
    /// Revision of the source, with `-dirty` where it was changed.
    pub git: String,
    /// Everything else that the lab says about the machine, as it said it.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub machine: serde_json::Value,
    /// How it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Config>,
    /// Whether the run was cut off, or still goes on.
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
    /// What was to be measured and was not, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<NotRun>,
    /// The measurements in the order in which they were made.
    pub rows: Vec<Row>,
}

/// Cells that have no rows: a mechanism under a load on a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRun {
    /// The topology.
    pub path: String,
    /// The load.
    pub load: String,
    /// The mechanism.
    pub mode: String,
    /// The round that failed; absent where it can't run in any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// The reason, a sentence.
    pub why: String,
    /// Whether it can run here and failed. A run that is continued tries it again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub failed: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How it was measured. Times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Seed of all send times and of the storm.
    pub seed: u64,
    /// UDP payload, bytes.
    pub payload_len: usize,
    /// Mean distance of two pings.
    pub period_ns: u64,
    /// Uniform jitter of that distance, ± percent.
    pub jitter_percent: u64,
    /// A ping without a reply for this long is lost.
    pub timeout_ns: u64,
    /// First pings of a row that stay out of its figures.
    pub warmup_pings: u64,
    /// Length of the measured part of a row.
    pub row_ns: RowNs,
    /// Who runs on which CPU.
    pub cpus: Cpus,
    /// CPU that receives the replies to an open loop, and polls the tester's card on the path `nic`; absent: the tester's, and
    /// the mechanism has both cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replies_cpu: Option<u32>,
    /// `SCHED_FIFO` priority of client and server.
    pub app_fifo_priority: u8,
    /// `SCHED_FIFO` priority of the poller and of `threaded-fifo`, which on PREEMPT_RT has 49 at most.
    pub poller_fifo_priority: u8,
    /// Packets of a poll of class normal in the modes `kbp-*-rt`; results of before it was an option have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rt_budget: Option<u32>,
    /// What the load `storm` is made of, in words.
    pub storm: String,
    /// The command that made this file.
    pub command: String,
    /// What was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// What the loads of the plan are made of, in words.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loads: BTreeMap<String, String>,
    /// CPU to which interfaces without interrupts steer their packets (RPS), for every mechanism alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps_cpu: Option<u32>,
    /// What sets the frequency of the poller's CPU where no mechanism does, in words; absent without cpufreq.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpufreq: Option<String>,
    /// What that CPU's idle states are, in words; absent without cpuidle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuidle: Option<String>,
    /// Size of the rule set of paths that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<u32>,
    /// Nothing was sent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_traffic: bool,
    /// Services that were measured instead of the ping-pong, and what each was asked, in words.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, String>,
    /// Frames that were sent instead of pings: open loops, or searches for the highest rate without loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<FramesSetting>,
}

/// Frames of one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FramesSetting {
    /// Length with header and FCS.
    pub frame_bytes: u32,
    /// Bits of the frames a second; the highest of a search.
    pub rate_bps: u64,
    /// Which times the frames of an open loop are due at; absent where they are constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
    /// Frames of an open loop before those that are measured; absent for a search, and in results of before 2026-11-23.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_frames: Option<u64>,
    /// How the highest rate without loss is searched; absent for an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchSetting>,
}

/// How a search is made. Times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SearchSetting {
    /// Length of a trial.
    pub trial_ns: u64,
    /// How long frames are waited for after it.
    pub drain_ns: u64,
    /// How long the path is left alone then.
    pub settle_ns: u64,
    /// Where the search ends, percent of the highest rate.
    pub resolution_percent: f64,
    /// Trials in a row without loss that the rate needs.
    pub confirm: u32,
}

/// Length of the measured part of a row by load, nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowNs {
    /// Of an idle row.
    pub idle: u64,
    /// Of a row under the storm or another load.
    pub storm: u64,
    /// Of rows under these loads instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_load: BTreeMap<String, u64>,
}

impl RowNs {
    /// Of a row under `load`.
    pub fn of(&self, load: &str) -> u64 {
        let others = match load {
            "idle" => self.idle,
            _ => self.storm,
        };
        self.by_load.get(load).copied().unwrap_or(others)
    }
}

/// Who runs on which CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// Everything else.
    pub housekeeping: u32,
    /// The client.
    pub tester: u32,
    /// Receive interrupts of both interfaces, or with `replies_cpu` of the server's card alone, their NAPI threads, the poller.
    pub poller: u32,
    /// The echo server.
    pub application: u32,
}

impl ResultFile {
    /// Reads a result file.
    ///
    /// # Errors
    /// When it can't be read, is not a result, is one of another schema, or contradicts
    /// itself.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::file("read", path, e))?;
        Self::parse(&text).map_err(|why| Error::Schema {
            path: path.to_owned(),
            why,
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| format!("this is not JSON: {e}"))?;
        match value.get("schema").and_then(|schema| schema.as_str()) {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(format!(
                    "this result has the schema {other}, and this kbp reads {SCHEMA}: \
                     use the version of kbp that wrote it"
                ))
            }
            None => {
                return Err(format!(
                    "this is no result of kbp: it names no schema ({SCHEMA})"
                ))
            }
        }
        let file: Self = serde_json::from_value(value)
            .map_err(|e| format!("this result does not keep to {SCHEMA}: {e}"))?;
        for row in &file.rows {
            if let Some(why) = row.contradiction() {
                return Err(format!("row {} contradicts itself: {why}", row.name()));
            }
        }
        Ok(file)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = self
            .text()
            .map_err(|e| Error::file("write", path, e.into()))?;
        let part = path.with_extension("json.part");
        std::fs::write(&part, text).map_err(|e| {
            // On a full disk half a file would only stand in the way.
            let _ = std::fs::remove_file(&part);
            Error::file("write", &part, e)
        })?;
        std::fs::rename(&part, path).map_err(|e| Error::file("write", path, e))
    }

    /// The file as text: the run to be read, then a line for each row. A comparison writes it after every cell, on a
    /// slow machine, and indented histograms are three quarters blanks.
    fn text(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(&self.head())?;
        // The rows are the last key, and here they are none.
        text.truncate(text.trim_end_matches(['}', ']', '\n']).len());
        for (place, row) in self.rows.iter().enumerate() {
            text += if place == 0 { "\n    " } else { ",\n    " };
            text += &serde_json::to_string(row)?;
        }
        text += if self.rows.is_empty() {
            "]\n}\n"
        } else {
            "\n  ]\n}\n"
        };
        Ok(text)
    }

    fn head(&self) -> Self {
        Self {
            schema: self.schema.clone(),
            clock: self.clock.clone(),
            kernel: self.kernel.clone(),
            qemu: self.qemu.clone(),
            cmdline: self.cmdline.clone(),
            date: self.date.clone(),
            git: self.git.clone(),
            machine: self.machine.clone(),
            config: self.config.clone(),
            partial: self.partial,
            not_run: self.not_run.clone(),
            rows: vec![],
        }
    }

    /// The rows of a load and mode that `tool` measured, in order.
    pub fn rows_of<'a>(
        &'a self,
        load: &'a str,
        mode: &'a str,
        tool: &'a str,
    ) -> impl Iterator<Item = &'a Row> {
        self.rows
            .iter()
            .filter(move |row| row.load == load && row.mode == mode && row.tool == tool)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tester::pingpong::RoundTrips;

    /// A result with every field filled, made of real histograms.
    pub(crate) fn sample() -> ResultFile {
        let row = |mode: &str, load: &str, round, scale_ns: u64| {
            let mut rtts = RoundTrips::new();
            let mut rng = crate::rng::SplitMix64::new(scale_ns);
            (0..2_000).for_each(|_| rtts.record(rng.in_range(scale_ns, scale_ns * 2)));
            let kbp = mode == "kbp-busy";
            Row {
                mode: mode.into(),
                load: load.into(),
                round,
                tool: TOOL_KBP.into(),
                n: 2_000,
                lost: 0,
                late: 0,
                dup: 0,
                warmup_lost: 0,
                skipped: 3,
                span_ns: 3_000_000_000,
                rtt_ns: RttNs::from(&rtts),
                witness: Witness {
                    net_rx_softirqs: if kbp { 0 } else { 6_000 },
                    hard_irqs: if kbp { 0 } else { 8_000 },
                    ksoftirqd_ns: 1_000,
                    mode_threads_ns: if kbp { 2_900_000_000 } else { 0 },
                    mode_threads_sleeps: None,
                },
                poller: kbp.then_some(PollerDelta {
                    busy_ns: 2_900_000_000,
                    polls: 1_000_000,
                    packets: 4_000,
                    ..PollerDelta::default()
                }),
                histogram_ns: rtts.cells(),
                path: "nic".into(),
                traffic: "ping-pong".into(),
                size_bytes: 64,
                ..Row::default()
            }
        };
        let rows = vec![
            row("softirq", "idle", 1, 43_000),
            row("threaded", "idle", 1, 50_000),
            row("threaded-fifo", "idle", 1, 51_000),
            row("kbp-busy", "idle", 1, 42_000),
            row("softirq", "idle", 2, 43_500),
            row("softirq", "storm", 1, 12_000_000),
            row("threaded", "storm", 1, 900_000),
            row("threaded-fifo", "storm", 1, 210_000),
            row("kbp-busy", "storm", 1, 200_000),
            row("softirq", "storm", 2, 12_100_000),
        ];
        ResultFile {
            schema: SCHEMA.into(),
            clock: "virtual".into(),
            kernel: "6.1.0-55-amd64".into(),
            qemu: Some("10.0.2".into()),
            cmdline: "console=ttyS0 <quoted> & more".into(),
            date: "2025-01-02T03:04:05Z".into(),
            git: "abc1234".into(),
            machine: serde_json::json!({ "cpus": 4, "turns": { "turn_ns_max": 9_000, "gap_ns_max": 0, "back_ns_max": 0, "cpus": 4 } }),
            config: Some(sample_config()),
            partial: false,
            not_run: vec![],
            rows,
        }
    }

    fn sample_config() -> Config {
        Config {
            seed: 7,
            payload_len: 64,
            period_ns: 1_000_000,
            jitter_percent: 50,
            timeout_ns: 500_000_000,
            warmup_pings: 20,
            row_ns: RowNs {
                idle: 1_000_000_000,
                storm: 3_000_000_000,
                by_load: BTreeMap::new(),
            },
            cpus: Cpus {
                housekeeping: 0,
                tester: 1,
                poller: 2,
                application: 3,
            },
            replies_cpu: None,
            app_fifo_priority: 40,
            poller_fifo_priority: 50,
            rt_budget: Some(2),
            storm: "bursts".into(),
            command: "kbp compare --preset demo".into(),
            plan: Some(Plan {
                paths: vec!["nic".into()],
                loads: vec![vec!["idle".into()], vec!["storm".into()]],
                mechanisms: ["softirq", "threaded", "threaded-fifo", "kbp-busy"]
                    .map(String::from)
                    .to_vec(),
                rounds: 1,
                third_party: vec!["softirq".into(), "kbp-busy".into()],
            }),
            loads: [("idle", "Nothing."), ("storm", "Bursts.")]
                .map(|(name, words)| (name.into(), words.into()))
                .into(),
            rps_cpu: Some(2),
            cpufreq: Some("acpi-cpufreq, governor performance".into()),
            cpuidle: Some("acpi_idle, governor menu".into()),
            rules: Some(100),
            no_traffic: false,
            services: [("memcached", "Requests.")]
                .map(|(name, words)| (name.into(), words.into()))
                .into(),
            frames: vec![FramesSetting {
                frame_bytes: 64,
                rate_bps: 80_000_000,
                arrivals: None,
                warmup_frames: None,
                search: Some(SearchSetting {
                    trial_ns: 60_000_000,
                    drain_ns: 20_000_000,
                    settle_ns: 5_000_000,
                    resolution_percent: 4.0,
                    confirm: 2,
                }),
            }],
        }
    }

    #[test]
    fn comes_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.json");
        let file = sample();
        file.save(&path).unwrap();
        assert_eq!(ResultFile::load(&path).unwrap(), file);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no part is left"
        );
    }

    fn refusal(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut value = serde_json::to_value(sample()).unwrap();
        change(&mut value);
        ResultFile::parse(&value.to_string()).unwrap_err()
    }

    #[test]
    fn what_is_not_ours_is_refused_with_a_sentence() {
        let other = refusal(|v| v["schema"] = "kbp.result/2".into());
        assert!(
            other.contains("kbp.result/2") && other.contains("version of kbp"),
            "{other}"
        );
        let none = refusal(|v| drop(v.as_object_mut().unwrap().remove("schema")));
        assert!(none.contains("no result of kbp"), "{none}");
        let hole = refusal(|v| drop(v["rows"][0].as_object_mut().unwrap().remove("rtt_ns")));
        assert!(hole.contains("rtt_ns"), "{hole}");
        let order = refusal(|v| v["rows"][0]["rtt_ns"]["p50"] = 1.into());
        assert!(order.contains("do not ascend"), "{order}");
        let cells = refusal(|v| v["rows"][0]["n"] = 1.into());
        assert!(cells.contains("histogram"), "{cells}");
        assert!(ResultFile::parse("{").unwrap_err().contains("not JSON"));
    }

    fn keys(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
                found.insert(key.clone());
                keys(value, found);
            }),
            serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }

    #[test]
    fn the_reference_names_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/result.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut file = sample();
        file.machine = serde_json::json!({});
        file.partial = true;
        file.not_run = vec![NotRun {
            failed: true,
            round: Some(1),
            ..NotRun::default()
        }];
        file.rows[0].note = Some("read this".into());
        let mut found = std::collections::BTreeSet::new();
        keys(&serde_json::to_value(file).unwrap(), &mut found);
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

    /// The report's sample has every optional key and every kind of traffic.
    #[test]
    fn the_reference_names_every_optional_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/result.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut file = crate::report::tests::full();
        file.machine = serde_json::json!({});
        let mut found = std::collections::BTreeSet::new();
        keys(&serde_json::to_value(file).unwrap(), &mut found);
        // Vectors, lines, CPUs and places are the machine's names.
        let names = ["NET_RX", "eth0-rx-0", "2", "socket", "C6"];
        let missing: Vec<_> = found
            .iter()
            .filter(|key| !names.contains(&key.as_str()) && !text.contains(&format!("`{key}`")))
            .collect();
        assert!(
            missing.is_empty(),
            "result.md does not describe {missing:?}"
        );
    }
}
