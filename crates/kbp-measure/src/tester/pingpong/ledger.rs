// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The account of every ping: sent, answered, lost, late, duplicated. Pure logic.
//!
//! Not here: time. The client decides when a ping is given up.

use std::collections::HashSet;

use super::stats::Counts;

/// What a reply turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// The one that is waited for.
    Awaited,
    /// That of a ping that had been given up.
    Late,
    /// A further one of an answered ping.
    Duplicate,
    /// One for a ping that was never sent.
    Unknown,
}

/// The account of one run. One ping at most is open at any time.
#[derive(Debug)]
pub(super) struct Ledger {
    warmup_pings: u64,
    next_seq: u64,
    open: Option<u64>,
    /// Given up and still unanswered; bounded by the number of lost pings.
    given_up: HashSet<u64>,
    pub(super) warmup: Counts,
    pub(super) measured: Counts,
}

impl Ledger {
    /// An account in which the first `warmup_pings` are kept apart.
    pub(super) fn new(warmup_pings: u64) -> Self {
        Self {
            warmup_pings,
            next_seq: 0,
            open: None,
            given_up: HashSet::new(),
            warmup: Counts::default(),
            measured: Counts::default(),
        }
    }

    fn counts(&mut self, seq: u64) -> &mut Counts {
        if seq < self.warmup_pings {
            &mut self.warmup
        } else {
            &mut self.measured
        }
    }

    /// Whether the next ping belongs to the measured part.
    pub(super) fn is_warm(&self) -> bool {
        self.next_seq >= self.warmup_pings
    }

    /// Opens the next ping and returns its number.
    pub(super) fn send(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.open = Some(seq);
        self.counts(seq).sent += 1;
        seq
    }

    /// Books a reply.
    pub(super) fn reply(&mut self, seq: u64) -> Reply {
        if seq >= self.next_seq {
            return Reply::Unknown;
        }
        if self.open == Some(seq) {
            self.open = None;
            self.counts(seq).answered += 1;
            return Reply::Awaited;
        }
        if self.given_up.remove(&seq) {
            self.counts(seq).late += 1;
            return Reply::Late;
        }
        self.counts(seq).dup += 1;
        Reply::Duplicate
    }

    /// Gives the open ping up: it is lost, whatever comes later.
    pub(super) fn give_up(&mut self) {
        if let Some(seq) = self.open.take() {
            self.given_up.insert(seq);
            self.counts(seq).lost += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ping_has_one_fate() {
        let mut ledger = Ledger::new(1);
        assert!(!ledger.is_warm());
        let warm = ledger.send();
        assert_eq!(ledger.reply(warm), Reply::Awaited);
        assert!(ledger.is_warm());

        let in_time = ledger.send();
        assert_eq!(ledger.reply(in_time), Reply::Awaited);
        assert_eq!(ledger.reply(in_time), Reply::Duplicate);
        let late = ledger.send();
        ledger.give_up();
        let never = ledger.send();
        assert_eq!(ledger.reply(late), Reply::Late);
        assert_eq!(ledger.reply(late), Reply::Duplicate);
        assert_eq!(ledger.reply(warm), Reply::Duplicate);
        assert_eq!(ledger.reply(never + 1), Reply::Unknown);
        ledger.give_up();
        ledger.give_up();

        assert_eq!(
            ledger.warmup,
            Counts {
                sent: 1,
                answered: 1,
                dup: 1,
                ..Counts::default()
            }
        );
        assert_eq!(
            ledger.measured,
            Counts {
                sent: 3,
                answered: 1,
                lost: 2,
                late: 1,
                dup: 2
            }
        );
    }
}
