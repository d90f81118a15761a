// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late each of the newest frames was sent, so that what the path took can be told from what the sender did. Pure.

/// Frames that are remembered: enough for those that are on the way.
const NEWEST: usize = 1 << 12;

/// The lateness of the newest frames.
#[derive(Debug)]
pub struct Lateness {
    /// Number and lateness of a frame, ns, at the number's remainder.
    frames: Vec<(u64, u64)>,
}

impl Lateness {
    /// Of no frame yet.
    pub fn new() -> Self {
        Self {
            frames: vec![(u64::MAX, 0); NEWEST],
        }
    }

    /// Books that frame number `seq` is sent `late_ns` after it was due, nanoseconds.
    pub fn sent(&mut self, seq: u64, late_ns: u64) {
        self.frames[seq as usize % NEWEST] = (seq, late_ns);
    }

    /// What is left of a round trip without the sender's lateness, nanoseconds. All of it, for a frame that is forgotten:
    /// the path is not told to be faster than it was.
    pub fn without(&self, seq: u64, rtt_ns: u64) -> u64 {
        match self.frames[seq as usize % NEWEST] {
            (booked, late_ns) if booked == seq => rtt_ns.saturating_sub(late_ns),
            _ => rtt_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_its_own_lateness() {
        let mut lateness = Lateness::new();
        for seq in 0..NEWEST as u64 {
            lateness.sent(seq, 10 * seq);
        }
        assert_eq!(lateness.without(7, 1_000), 930);
        assert_eq!(lateness.without(NEWEST as u64 - 1, 50_000), 9_050);
        // Never less than nothing.
        assert_eq!(lateness.without(9, 3), 0);
        lateness.sent(NEWEST as u64 + 7, 5);
        assert_eq!(lateness.without(7, 1_000), 1_000);
        assert_eq!(lateness.without(NEWEST as u64 + 7, 1_000), 995);
    }
}
