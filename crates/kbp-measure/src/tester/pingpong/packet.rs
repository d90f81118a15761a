// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The payload of a ping: magic, seed, sequence number, filler.
//!
//! Not here: any time stamp. Only the client's own clock counts, and it keeps the send
//! time itself.

/// Bytes of a payload that carry something; the rest is filler.
pub const HEADER_LEN: usize = 24;
/// Largest payload: what fits one Ethernet frame of 1500 bytes behind IPv4 and UDP.
pub const PAYLOAD_LEN_MAX: usize = 1472;

const MAGIC: &[u8; 8] = b"kbp-ping";

/// What a ping says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Seed of the run it belongs to: replies of an earlier run are told by it.
    pub seed: u64,
    /// Number within the run, from 0.
    pub seq: u64,
}

impl Ping {
    /// Writes the header into the start of `payload`.
    ///
    /// A payload shorter than [`HEADER_LEN`] is left as it is; the callers of this
    /// module never make one.
    pub fn write(self, payload: &mut [u8]) {
        if payload.len() < HEADER_LEN {
            return;
        }
        payload[..8].copy_from_slice(MAGIC);
        payload[8..16].copy_from_slice(&self.seed.to_le_bytes());
        payload[16..24].copy_from_slice(&self.seq.to_le_bytes());
    }

    /// Reads the header of `payload`; `None` when it is not a ping of ours.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let rest = payload.strip_prefix(MAGIC)?;
        let (seed, rest) = rest.split_first_chunk::<8>()?;
        let (seq, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            seed: u64::from_le_bytes(*seed),
            seq: u64::from_le_bytes(*seq),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_wire_and_refuses_what_is_not_ours() {
        let ping = Ping {
            seed: u64::MAX - 1,
            seq: 42,
        };
        let mut payload = [0xAA; 64];
        ping.write(&mut payload);
        assert_eq!(Ping::read(&payload), Some(ping));
        assert_eq!(Ping::read(&payload[..HEADER_LEN]), Some(ping));
        assert_eq!(Ping::read(&payload[..HEADER_LEN - 1]), None);
        payload[0] ^= 1;
        assert_eq!(Ping::read(&payload), None);
    }
}
