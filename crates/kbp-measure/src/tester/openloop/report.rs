// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an open-loop run found, and its row in a result.
//!
//! Not here: running ([`super::run`]) and printing ([`crate::cli`]).

use super::arrivals::Arrivals;
use super::ledger::Account;
use crate::result::{OpenLoop, Row, RttNs, TOOL_KBP};
use crate::tester::backend::Drops;
use crate::tester::pingpong::RoundTrips;
use crate::tester::timeline::Timeline;

/// What a run found. Round trips count from the moment at which a frame was due.
#[derive(Debug, Clone)]
pub struct OpenLoopReport {
    /// The account of the warm-up, which is in no other figure.
    pub warmup: Account,
    /// The account of the measured part.
    pub account: Account,
    /// Round trips of the frames that came back, first copies only.
    pub rtts: RoundTrips,
    /// The longest round trips over time.
    pub timeline: Timeline,
    /// Length of a frame with header and FCS, bytes.
    pub frame_bytes: u32,
    /// The rate that was asked for and held, bits of the frames a second.
    pub rate_bps: u64,
    /// Which times frames were due at.
    pub arrivals: Arrivals,
    /// Longest time between a frame's due time and its handing to the kernel, nanoseconds.
    pub send_late_ns_max: u64,
    /// Longest round trip, counted from when its frame was handed to the kernel, nanoseconds.
    pub since_sent_ns_max: u64,
    /// Length of the measured part, from the first frame to the end of the sending, nanoseconds.
    pub span_ns: u64,
    /// What the tester's own end dropped or could not take.
    pub drops: Drops,
    /// An interrupt ended it before its time.
    pub partial: bool,
}

impl OpenLoopReport {
    /// The row of this run; the caller fills what others counted.
    pub fn row(&self, mode: &str, load: &str, round: u32) -> Row {
        Row {
            mode: mode.into(),
            load: load.into(),
            round,
            tool: TOOL_KBP.into(),
            path: "as-is".into(),
            traffic: "open-loop".into(),
            size_bytes: u64::from(self.frame_bytes),
            rate_bps: Some(self.rate_bps),
            arrivals: self.arrivals.name(),
            n: self.account.returned,
            lost: self.account.lost,
            dup: self.account.duplicated,
            warmup_lost: self.warmup.lost,
            span_ns: self.span_ns,
            rtt_ns: RttNs::from(&self.rtts),
            histogram_ns: self.rtts.cells(),
            timeline_ns: self.timeline.points(),
            open_loop: Some(OpenLoop {
                sent: self.account.sent,
                duplicated: self.account.duplicated,
                reordered: self.account.reordered,
                send_late_ns_max: self.send_late_ns_max,
                since_sent_ns_max: Some(self.since_sent_ns_max),
            }),
            ..Row::default()
        }
    }

    /// The round trips of several runs as one record; counts add up exactly.
    pub fn merged(reports: &[Self]) -> (Account, RoundTrips) {
        let mut account = Account::default();
        let mut rtts = RoundTrips::new();
        for report in reports {
            account = account.plus(report.account);
            rtts.merge(&report.rtts);
        }
        (account, rtts)
    }
}
