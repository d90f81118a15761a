// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One row of a result: a measurement and what was counted while it was made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::usage::{CpuUse, Energy, FrequencyUse, IdleUse};
use super::TOOL_KBP;
use crate::tester::pingpong::{ClientReport, RoundTrips};

/// One measurement: a mode under a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The mechanism: `softirq`, `threaded`, `threaded-fifo`, `kbp-busy`.
    pub mode: String,
    /// The load: `idle`, `storm`.
    pub load: String,
    /// 1 for the first row of this mode, load and tool, 2 for its repetition.
    pub round: u32,
    /// Who measured: [`TOOL_KBP`] or the name of a third party's program.
    pub tool: String,
    /// The topology that the packets took.
    #[serde(default = "nic")]
    pub path: String,
    /// What was sent: `ping-pong`, `open-loop`, `rfc2544`, `one-way`, `none`, or a program's own traffic.
    #[serde(default = "ping_pong")]
    pub traffic: String,
    /// Payload of a datagram, or length of a frame where `traffic` counts frames; bytes.
    #[serde(default)]
    pub size_bytes: u64,
    /// Offered rate where one was set, bits of the frames a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Which times frames were due at: `poisson`, `onoff:ON_MS:OFF_MS`, `trace:FILE#CHECKSUM`; absent where they were
    /// constant, and for what is no open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
    /// Round trips in the figures.
    pub n: u64,
    /// Pings without a reply in time.
    pub lost: u64,
    /// Of the lost: the reply came after the limit.
    #[serde(default)]
    pub late: u64,
    /// Further replies to an answered ping.
    #[serde(default)]
    pub dup: u64,
    /// Pings lost in the warm-up, which are in no other figure.
    #[serde(default)]
    pub warmup_lost: u64,
    /// Send slots that passed while an answer was awaited.
    #[serde(default)]
    pub skipped: u64,
    /// Length of the measured part, nanoseconds.
    pub span_ns: u64,
    /// The round trips.
    pub rtt_ns: RttNs,
    /// What is to be known before this row is believed, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What others than the mechanism itself counted.
    pub witness: Witness,
    /// The poller's own counters; `null` where no poller of ours served.
    pub poller: Option<PollerDelta>,
    /// Filled cells of the HDR histogram, `[upper end in ns, count]`; empty for sockperf.
    #[serde(default)]
    pub histogram_ns: Vec<[u64; 2]>,
    /// Round trips in the order in which they were made, `[sent after the start of the row, round trip]`, thinned to
    /// the longest of each of at most 500 equal slices of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline_ns: Vec<[u64; 2]>,
    /// What the row cost in CPU time; absent where it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuUse>,
    /// Softirqs by vector and CPU (/proc/softirqs); those that did not run are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub softirqs: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Interrupts by line and CPU (/proc/interrupts); those that did not come are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub interrupts: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Packets dropped, by the place that counted them; places without drops are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
    /// Frequency of the poller's CPU; absent where cpufreq keeps no statistics of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency: Option<FrequencyUse>,
    /// Idle states of the poller's CPU by name; absent without a cpuidle driver.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub idle_states: BTreeMap<String, IdleUse>,
    /// Energy of the row; absent where it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    /// The account of an open loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<OpenLoop>,
    /// The highest rate without loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// The packet rate of one direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way: Option<OneWay>,
    /// The rates of a bulk transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk: Option<Bulk>,
    /// What the load did meanwhile; absent for one that counts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_done: Option<LoadDone>,
}

fn nic() -> String {
    "nic".into()
}

fn ping_pong() -> String {
    "ping-pong".into()
}

/// What a load did beside a row, from before the row's warm-up to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadDone {
    /// How long that was, nanoseconds.
    pub span_ns: u64,
    /// The load's own counts of it: `packets`, `udp_bytes`, and what else docs/reference/loads.md names.
    pub counts: BTreeMap<String, u64>,
}

/// The account of an open loop: frames sent when they are due, whatever comes back. `n` of the row
/// is the number of different frames that came back, `lost` that of those that did not; the round trips count from
/// the moment at which a frame was *due*, so a late sender shows as delay and is not hidden.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenLoop {
    /// Frames sent in the measured part.
    pub sent: u64,
    /// Frames that came back more than once, further copies counted.
    pub duplicated: u64,
    /// Frames that came back after one with a higher sequence number (RFC 4737).
    pub reordered: u64,
    /// Longest time between the moment at which a frame was due and that at which it was handed to the kernel,
    /// nanoseconds.
    pub send_late_ns_max: u64,
    /// Longest round trip, counted from when its frame was handed to the kernel, nanoseconds: without the sender's own
    /// lateness. Testers before this field, and those of services, do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_sent_ns_max: Option<u64>,
}

/// The highest rate at which no frame was lost, found as RFC 2544, section 26.1, asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// That rate, frames a second; 0 when even the lowest rate lost frames.
    pub frames_per_s: f64,
    /// The same, bits of the frames a second.
    pub bps: f64,
    /// Length of a trial, nanoseconds.
    pub trial_ns: u64,
    /// The search ends when the bounds are this close, percent of the highest rate.
    pub resolution_percent: f64,
    /// The same as frames a second: a frame was lost at less than this above the rate that was found. On a path whose
    /// losses scatter, another search may find another rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_frames_per_s: Option<f64>,
    /// Trials that were made.
    pub trials: u32,
    /// The tester, and not the path, set the limit: the figure is a lower bound.
    pub limited_by_tester: bool,
}

/// Packets of one direction, counted where they arrive, over the middle of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OneWay {
    /// Packets that the sender handed to the kernel, a second.
    pub sent_per_s: f64,
    /// Packets that the receiver took, a second.
    pub received_per_s: f64,
    /// Packets of one call.
    pub burst: u32,
}

/// A bulk transfer, as the program that made it says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bulk {
    /// Payload that the sender handed to the kernel, bits a second.
    pub sent_bps: f64,
    /// Payload that the receiver took, bits a second.
    pub received_bps: f64,
    /// TCP segments that were sent again; absent for UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// Jitter of the datagrams (RFC 1889), nanoseconds; absent for TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
}

/// Round-trip times, nanoseconds. Percentiles have three digits, the others are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RttNs {
    /// Shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest.
    pub max: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation, to the nanosecond; absent where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sd: Option<f64>,
}

impl From<&RoundTrips> for RttNs {
    fn from(rtts: &RoundTrips) -> Self {
        Self {
            min: rtts.min_ns(),
            p50: rtts.percentile_ns(50.0),
            p90: rtts.percentile_ns(90.0),
            p99: rtts.percentile_ns(99.0),
            p999: rtts.percentile_ns(99.9),
            max: rtts.max_ns(),
            mean: rtts.mean_ns(),
            sd: (rtts.count() > 0).then(|| rtts.sd_ns().round()),
        }
    }
}

/// Differences of the kernel's own counters over the measured part of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// `NET_RX` softirqs on the poller's CPU (/proc/softirqs).
    pub net_rx_softirqs: u64,
    /// Interrupts of the receive vectors of the interfaces that the mode serves, any CPU (/proc/interrupts).
    pub hard_irqs: u64,
    /// CPU time of ksoftirqd on the poller's CPU, nanoseconds.
    #[serde(default)]
    pub ksoftirqd_ns: u64,
    /// CPU time of the threads that the mode brings (NAPI threads, poller), nanoseconds.
    #[serde(default)]
    pub mode_threads_ns: u64,
    /// Times these threads gave up their CPU by themselves; absent where there are none, or it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_threads_sleeps: Option<u64>,
}

/// Differences of the poller's counters over the measured part of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollerDelta {
    /// Time spent polling, nanoseconds.
    pub busy_ns: u64,
    /// Calls of a NAPI poll function.
    pub polls: u64,
    /// Work that poll functions reported, packets.
    pub packets: u64,
    /// Times the watchdog handed the poll list back to softirq.
    pub handbacks: u64,
    /// Times it slept because it had nothing to poll.
    #[serde(default)]
    pub sleeps: u64,
    /// Times a schedule request (an interrupt) woke it.
    #[serde(default)]
    pub wakeups: u64,
    /// Polls of what is attached to it that found nothing; absent where it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_polls: Option<u64>,
    /// Rounds of polls that found nothing, on nothing that it holds; absent where it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_rounds: Option<u64>,
    /// Times it lowered the frequency of its CPU; absent where that does not follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdowns: Option<u64>,
    /// Times it raised the frequency again; absent in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedups: Option<u64>,
}

impl Row {
    /// A row of our own ping-pong.
    pub fn of_client(mode: &str, load: &str, round: u32, report: &ClientReport) -> Self {
        Self {
            mode: mode.into(),
            load: load.into(),
            round,
            tool: TOOL_KBP.into(),
            path: nic(),
            traffic: ping_pong(),
            n: report.measured.answered,
            lost: report.measured.lost,
            late: report.measured.late,
            dup: report.measured.dup,
            warmup_lost: report.warmup.lost,
            skipped: report.skipped,
            span_ns: report.span_ns,
            rtt_ns: RttNs::from(&report.rtts),
            witness: Witness::default(),
            poller: None,
            histogram_ns: report.rtts.cells(),
            timeline_ns: report.timeline.points(),
            ..Self::default()
        }
    }

    /// Thins the timeline to this many slices of time; of each the longest round trip stays, as in the whole.
    pub fn thin_timeline(&mut self, slices: usize) {
        let points = &self.timeline_ns;
        let length = points.len().div_ceil(slices.max(1)).max(1);
        let longest = |slice: &[[u64; 2]]| slice.iter().copied().max_by_key(|[_, rtt]| *rtt);
        self.timeline_ns = points.chunks(length).filter_map(longest).collect();
    }

    /// How a person calls this row.
    pub fn name(&self) -> String {
        format!(
            "{}/{} round {} ({})",
            self.load, self.mode, self.round, self.tool
        )
    }

    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let rtt = &self.rtt_ns;
        let order = [rtt.min, rtt.p50, rtt.p90, rtt.p99, rtt.p999, rtt.max];
        if !order.is_sorted() {
            return Some("its percentiles do not ascend");
        }
        let in_cells: u64 = self.histogram_ns.iter().map(|cell| cell[1]).sum();
        if !self.histogram_ns.is_empty() && in_cells != self.n {
            return Some("its histogram does not hold n round trips");
        }
        if !self.histogram_ns.iter().map(|cell| cell[0]).is_sorted() {
            return Some("the cells of its histogram do not ascend");
        }
        (self.late > self.lost).then_some("it has more late pings than lost ones")
    }
}
