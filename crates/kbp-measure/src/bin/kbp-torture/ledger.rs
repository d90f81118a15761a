// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a packet of the torture looks like, and the account of those that arrived: one bit a packet.
//!
//! Not here: sockets, time, and what was counted as dropped ([`crate::drops`]).

/// Bytes of a packet that carry something; the rest is filler that follows from the number.
pub const HEADER_LEN: usize = 20;
/// Longest payload, bytes: it fits a tunnel over Ethernet.
pub const PAYLOAD_LEN_MAX: usize = 1200;
/// Packets that a flow may have in one phase: their account takes 2 MiB.
pub const PACKETS_MAX: u64 = 1 << 24;

const MAGIC: u32 = 0x6b62_7054;

/// What a packet says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The flow that it belongs to.
    pub flow: u32,
    /// The phase in which it was sent.
    pub phase: u32,
    /// Its number in flow and phase, from 0.
    pub seq: u64,
}

impl Packet {
    /// Its length follows from its number, so that every length occurs.
    fn len(self) -> usize {
        HEADER_LEN
            + (self.seq.wrapping_mul(97) % (PAYLOAD_LEN_MAX - HEADER_LEN + 1) as u64) as usize
    }

    /// Writes the packet to the start of `buffer` and returns its bytes. The buffer has [`PAYLOAD_LEN_MAX`] bytes.
    pub fn write(self, buffer: &mut [u8; PAYLOAD_LEN_MAX]) -> &[u8] {
        let len = self.len();
        buffer[..4].copy_from_slice(&MAGIC.to_le_bytes());
        buffer[4..8].copy_from_slice(&self.flow.to_le_bytes());
        buffer[8..12].copy_from_slice(&self.phase.to_le_bytes());
        buffer[12..20].copy_from_slice(&self.seq.to_le_bytes());
        buffer[HEADER_LEN..len].fill(self.filler());
        &buffer[..len]
    }

    /// Reads a packet; `None` for one that is not ours or not as it was sent.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        if word(0)? != MAGIC {
            return None;
        }
        let packet = Self {
            flow: word(4)?,
            phase: word(8)?,
            seq: u64::from_le_bytes(*bytes.get(12..)?.first_chunk()?),
        };
        let whole = bytes.len() == packet.len()
            && bytes[HEADER_LEN..]
                .iter()
                .all(|&byte| byte == packet.filler());
        whole.then_some(packet)
    }

    fn filler(self) -> u8 {
        (self.seq ^ u64::from(self.flow)) as u8
    }
}

/// What arrived of one flow in one phase.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Different packets that arrived.
    pub received: u64,
    /// Further copies of them.
    pub duplicated: u64,
    /// Packets that arrived after one with a higher number.
    pub reordered: u64,
    /// Datagrams that are none of this flow and phase, or damaged.
    pub foreign: u64,
    highest: Option<u64>,
    seen: Vec<u64>,
}

impl Account {
    /// Books a datagram that came for `flow` in `phase`.
    pub fn book(&mut self, flow: u32, phase: u32, bytes: &[u8]) {
        let ours = Packet::read(bytes)
            .filter(|p| p.flow == flow && p.phase == phase && p.seq < PACKETS_MAX);
        let Some(Packet { seq, .. }) = ours else {
            self.foreign += 1;
            return;
        };
        let (word, bit) = ((seq / 64) as usize, 1u64 << (seq % 64));
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            self.duplicated += 1;
            return;
        }
        self.seen[word] |= bit;
        self.received += 1;
        match self.highest {
            Some(highest) if seq < highest => self.reordered += 1,
            _ => self.highest = Some(seq),
        }
    }

    /// The numbers below `sent` that did not arrive, as ranges; at most `limit` of them.
    pub fn missing(&self, sent: u64, limit: usize) -> Vec<(u64, u64)> {
        let has = |seq: u64| {
            let word = self.seen.get((seq / 64) as usize).copied().unwrap_or(0);
            word & 1 << (seq % 64) != 0
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for seq in (0..sent).filter(|&seq| !has(seq)) {
            let told = ranges.len();
            match ranges.last_mut() {
                Some(last) if last.1 + 1 == seq => last.1 = seq,
                _ if told == limit => break,
                _ => ranges.push((seq, seq)),
            }
        }
        ranges
    }

    /// Whether a packet arrived that was never sent, when `sent` were.
    pub fn is_beyond(&self, sent: u64) -> bool {
        self.highest.is_some_and(|highest| highest >= sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbp_measure::rng::SplitMix64;

    fn bytes(flow: u32, phase: u32, seq: u64) -> Vec<u8> {
        Packet { flow, phase, seq }
            .write(&mut [0; PAYLOAD_LEN_MAX])
            .to_vec()
    }

    #[test]
    fn a_packet_survives_and_a_damaged_one_is_refused() {
        for seq in [0, 1, 63, 64, 5_000, PACKETS_MAX - 1] {
            let mut whole = bytes(3, 9, seq);
            let packet = Packet {
                flow: 3,
                phase: 9,
                seq,
            };
            assert_eq!(Packet::read(&whole), Some(packet));
            assert_eq!(Packet::read(&whole[..whole.len() - 1]), None);
            let last = whole.len() - 1;
            whole[last] ^= 1;
            assert_eq!(Packet::read(&whole), None, "number {seq}");
        }
    }

    /// Against a list of everything, searched from its start each time.
    #[test]
    fn agrees_with_a_list_of_everything() {
        for seed in 0..200 {
            let mut rng = SplitMix64::new(seed);
            let sent = rng.in_range(0, 200);
            let mut arrivals = Vec::new();
            for seq in 0..sent {
                for _ in 0..[0, 1, 1, 1, 2][rng.in_range(0, 4) as usize] {
                    arrivals.push((seq + rng.in_range(0, 5), seq));
                }
            }
            arrivals.sort();
            let (mut account, mut list) = (Account::default(), Vec::new());
            let (mut duplicated, mut reordered) = (0, 0);
            for (_, seq) in arrivals {
                account.book(1, 2, &bytes(1, 2, seq));
                if list.contains(&seq) {
                    duplicated += 1;
                    continue;
                }
                reordered += u64::from(list.iter().any(|&other| other > seq));
                list.push(seq);
            }
            account.book(1, 2, &bytes(1, 1, 0));
            assert_eq!(account.received, list.len() as u64, "seed {seed}");
            assert_eq!(
                (account.duplicated, account.reordered, account.foreign),
                (duplicated, reordered, 1),
                "seed {seed}"
            );
            let missing = account.missing(sent, usize::MAX);
            let lost: u64 = missing.iter().map(|(from, to)| to - from + 1).sum();
            assert_eq!(lost, sent - account.received, "seed {seed}");
            assert!(!account.is_beyond(sent));
        }
    }
}
