// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The payload of a frame of the open loop: 18 bytes, so that it fits the smallest Ethernet
//! frame over IPv4; the rest is filler.
//!
//! | bytes | what | form |
//! |---|---|---|
//! | 0-1 | `kO` | |
//! | 2-5 | tag of the run | little endian |
//! | 6-11 | sequence number, from 0 | little endian |
//! | 12-17 | when the frame was due, ns after the start of the run | little endian |
//!
//! Not here: which of them are expected ([`super::ledger`]).

use crate::rng::SplitMix64;

/// Bytes of a payload that carry something.
pub const PROBE_LEN: usize = 18;

const MAGIC: &[u8; 2] = b"kO";
const BITS_48: u64 = (1 << 48) - 1;

/// What a frame says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The run that it belongs to; frames of an earlier run are told by it.
    pub tag: u32,
    /// Number within the run; 48 bits.
    pub seq: u64,
    /// When it was due, nanoseconds after the start of the run; 48 bits (78 hours).
    pub due_ns: u64,
}

impl Probe {
    /// Writes the header into the start of `payload`; a payload shorter than [`PROBE_LEN`] is
    /// left as it is, which no caller of this crate ever makes.
    pub fn write(self, payload: &mut [u8]) {
        let Some(header) = payload.first_chunk_mut::<PROBE_LEN>() else {
            return;
        };
        header[..2].copy_from_slice(MAGIC);
        header[2..6].copy_from_slice(&self.tag.to_le_bytes());
        header[6..12].copy_from_slice(&self.seq.to_le_bytes()[..6]);
        header[12..18].copy_from_slice(&self.due_ns.to_le_bytes()[..6]);
    }

    /// Reads the header of `payload`; `None` when it is no frame of ours.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let header = payload.first_chunk::<PROBE_LEN>()?;
        if &header[..2] != MAGIC {
            return None;
        }
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Some(Self {
            tag: word(2) as u32,
            seq: word(6) & BITS_48,
            due_ns: word(10) >> 16,
        })
    }
}

/// A tag for a run that starts now: of two runs with the same seed each has its own, so that
/// what the first one left on its way does not count for the second.
pub(super) fn fresh_tag(seed: u64, now_ns: u64) -> u32 {
    let mixed = SplitMix64::new(seed ^ now_ns.rotate_left(20)).next_u64();
    (mixed ^ u64::from(std::process::id())) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_wire_and_refuses_what_is_not_ours() {
        let mut rng = SplitMix64::new(5);
        for round in 0..1_000 {
            let probe = Probe {
                tag: rng.next_u64() as u32,
                seq: rng.next_u64() & BITS_48,
                due_ns: rng.next_u64() & BITS_48,
            };
            let mut payload = [0xAA; 40];
            probe.write(&mut payload);
            assert_eq!(Probe::read(&payload), Some(probe), "round {round}");
            assert_eq!(payload[PROBE_LEN], 0xAA, "the filler is left alone");
            assert_eq!(Probe::read(&payload[..PROBE_LEN - 1]), None);
            payload[1] ^= 1;
            assert_eq!(Probe::read(&payload), None);
        }
    }

    #[test]
    fn repeated_runs_have_their_own_tags() {
        let tags: std::collections::HashSet<u32> =
            (0..1_000).map(|ms| fresh_tag(1, ms * 1_000_000)).collect();
        assert!(tags.len() > 990, "{}", tags.len());
    }
}
