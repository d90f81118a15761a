// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The account of every frame: returned, lost, duplicated, reordered, foreign. Pure, exact, in
//! one bit a frame.
//!
//! Not here: time. What has not come back when the account is closed is lost.

use super::probe::Probe;
use super::schedule::Schedule;

/// Most frames of a run: their account takes a quarter of a GiB.
pub const FRAMES_MAX: u64 = 1 << 31;

/// What became of the frames of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Frames sent.
    pub sent: u64,
    /// Different frames that came back.
    pub returned: u64,
    /// Frames that did not come back.
    pub lost: u64,
    /// Further copies of frames that had come back.
    pub duplicated: u64,
    /// Frames whose first copy came after one with a higher number (RFC 4737, section 3.3).
    pub reordered: u64,
    /// Datagrams that are not of this run: other tag, other length, a number that was not sent, or
    /// a due time that is not that of the number.
    pub foreign: u64,
}

impl Account {
    /// The sum of two runs.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            returned: self.returned + other.returned,
            lost: self.lost + other.lost,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            foreign: self.foreign + other.foreign,
        }
    }
}

/// What a datagram turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A frame that comes back for the first time.
    First {
        /// Its number.
        seq: u64,
        /// When it had been due, nanoseconds after the start.
        due_ns: u64,
    },
    /// A further copy.
    Duplicate,
    /// Nothing of this run.
    Foreign,
}

/// The account of one run while it is open.
#[derive(Debug)]
pub struct Ledger<'a> {
    tag: u32,
    payload_len: usize,
    schedule: &'a Schedule,
    seen: Vec<u64>,
    highest: Option<u64>,
    account: Account,
}

impl<'a> Ledger<'a> {
    /// An account for up to `frames` frames with the tag `tag`, each of `payload_len` bytes.
    ///
    /// The memory is touched here, so that no frame waits for a page.
    pub fn new(tag: u32, frames: u64, payload_len: usize, schedule: &'a Schedule) -> Self {
        let mut seen = vec![0; frames.div_ceil(64) as usize];
        // A zeroed vector has no pages yet; a write that the compiler may not skip gives it some.
        for word in seen.iter_mut().step_by(512) {
            *std::hint::black_box(word) = 0;
        }
        Self {
            tag,
            payload_len,
            schedule,
            seen,
            highest: None,
            account: Account::default(),
        }
    }

    /// The next frame to send; [`Ledger::sent`] books it when it is on its way.
    pub fn next_probe(&self) -> Probe {
        let seq = self.account.sent;
        Probe {
            tag: self.tag,
            seq,
            due_ns: self.schedule.due_ns(seq),
        }
    }

    /// Books the next frame as sent; to be called before its reply is booked.
    pub fn sent(&mut self) {
        self.account.sent += 1;
    }

    /// Books a datagram that came.
    pub fn received(&mut self, payload: &[u8]) -> Seen {
        let Some(probe) = self.own(payload) else {
            self.account.foreign += 1;
            return Seen::Foreign;
        };
        let (word, bit) = ((probe.seq / 64) as usize, 1 << (probe.seq % 64));
        if self.seen[word] & bit != 0 {
            self.account.duplicated += 1;
            return Seen::Duplicate;
        }
        self.seen[word] |= bit;
        self.account.returned += 1;
        match self.highest {
            Some(highest) if probe.seq < highest => self.account.reordered += 1,
            _ => self.highest = Some(probe.seq),
        }
        Seen::First {
            seq: probe.seq,
            due_ns: probe.due_ns,
        }
    }

    /// The probe in a datagram, if it is one that this run has sent.
    fn own(&self, payload: &[u8]) -> Option<Probe> {
        let probe = Probe::read(payload)?;
        let ours = probe.tag == self.tag
            && payload.len() == self.payload_len
            && probe.seq < self.account.sent
            && probe.due_ns == self.schedule.due_ns(probe.seq);
        // `seen` has a bit for each frame that may be sent.
        (ours && probe.seq < 64 * self.seen.len() as u64).then_some(probe)
    }

    /// Whether every frame that was sent is back.
    pub fn is_complete(&self) -> bool {
        self.account.returned == self.account.sent
    }

    /// Closes the account: what is not back is lost.
    pub fn close(self) -> Account {
        Account {
            lost: self.account.sent - self.account.returned,
            ..self.account
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Arrivals;
    use super::*;
    use crate::rng::SplitMix64;

    const TAG: u32 = 0x1234_5678;
    const LEN: usize = 20;

    fn payload(probe: Probe) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        probe.write(&mut bytes);
        bytes
    }

    /// What comes back, in order: dropped, doubled, shuffled, with foreign ones in between.
    fn deal(rng: &mut SplitMix64, sent: &[Probe]) -> Vec<Vec<u8>> {
        let mut arrivals: Vec<(u64, Vec<u8>)> = Vec::new();
        for probe in sent {
            for _ in 0..[0, 1, 1, 1, 2, 3][rng.in_range(0, 5) as usize] {
                arrivals.push((probe.seq + rng.in_range(0, 4), payload(*probe)));
            }
            let mut wrong = *probe;
            let mut bytes = payload(wrong);
            match rng.in_range(0, 20) {
                0 => wrong.tag ^= 1 << 31,
                1 => wrong.seq = sent.len() as u64 + rng.in_range(0, 1 << 40),
                2 => wrong.due_ns += 1,
                3 => bytes.push(0),
                4 => bytes.truncate(17),
                _ => continue,
            }
            if wrong != *probe {
                bytes = payload(wrong);
            }
            arrivals.push((probe.seq, bytes));
        }
        arrivals.sort_by_key(|arrival| arrival.0);
        arrivals.into_iter().map(|arrival| arrival.1).collect()
    }

    /// The obvious account: a list of everything, searched from its start each time.
    fn model(sent: &[Probe], arrivals: &[Vec<u8>]) -> Account {
        let mut account = Account {
            sent: sent.len() as u64,
            ..Account::default()
        };
        let mut came: Vec<u64> = Vec::new();
        for bytes in arrivals {
            let Some(probe) = sent.iter().find(|probe| payload(**probe) == *bytes) else {
                account.foreign += 1;
                continue;
            };
            if came.contains(&probe.seq) {
                account.duplicated += 1;
                continue;
            }
            account.returned += 1;
            account.reordered += u64::from(came.iter().any(|seq| *seq > probe.seq));
            came.push(probe.seq);
        }
        account.lost = sent
            .iter()
            .filter(|probe| !came.contains(&probe.seq))
            .count() as u64;
        account
    }

    #[test]
    fn agrees_with_a_list_of_everything() {
        for seed in 0..300 {
            let mut rng = SplitMix64::new(seed);
            let steady = Schedule::new(64, rng.in_range(1_000_000, 1 << 30), 1).unwrap();
            let frames = rng.in_range(0, 150);
            let arrivals = [Arrivals::Constant, Arrivals::Poisson][seed as usize % 2].clone();
            let schedule = steady.arriving(&arrivals, seed, 0, frames).unwrap();
            let mut ledger = Ledger::new(TAG, frames, LEN, &schedule);
            let sent: Vec<Probe> = (0..frames)
                .map(|_| {
                    let probe = ledger.next_probe();
                    ledger.sent();
                    probe
                })
                .collect();
            let arrivals = deal(&mut rng, &sent);
            for bytes in &arrivals {
                ledger.received(bytes);
            }
            let account = ledger.close();
            assert_eq!(account, model(&sent, &arrivals), "seed {seed}");
        }
    }

    #[test]
    fn a_frame_that_was_not_sent_yet_is_foreign() {
        let schedule = Schedule::new(64, 1_000_000, 1).unwrap();
        let mut ledger = Ledger::new(TAG, 10, LEN, &schedule);
        let early = payload(ledger.next_probe());
        assert_eq!(ledger.received(&early), Seen::Foreign);
        ledger.sent();
        assert_eq!(ledger.received(&early), Seen::First { seq: 0, due_ns: 0 });
        assert!(ledger.is_complete());
    }
}
