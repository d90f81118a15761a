// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When each frame is due: exact, in integers, without drift. Pure.
//!
//! *Size* is that of the Ethernet frame with header and FCS, as the papers count 64, 512 and
//! 1518 bytes. *Rate* is the bits of these frames a second, without preamble and gap: paper 000,
//! section 5.1.2, has 64-byte frames every 0.5 µs at 1 Gbps, and 64 · 8 bits at 1 Gbps are 0.512 µs
//! (with preamble and gap it would be 0.672 µs).
//!
//! Not here: sending ([`super::run`]).

use std::fmt;
use std::str::FromStr;

/// Smallest frame of Ethernet, bytes with FCS.
pub const FRAME_BYTES_MIN: u32 = 64;
/// Largest frame of Ethernet without jumbo frames and tags, bytes with FCS.
pub const FRAME_BYTES_MAX: u32 = 1518;
/// Bytes of a frame around a UDP payload over IPv4: Ethernet 14, IPv4 20, UDP 8, FCS 4.
pub const OVERHEAD_V4: u32 = 46;
/// The same over IPv6, whose header has 40 bytes.
pub const OVERHEAD_V6: u32 = 66;

const NS_PER_S: u64 = 1_000_000_000;
/// Highest rate that can be asked for: the arithmetic below stays exact far beyond it.
const RATE_BPS_MAX: u64 = 1_000_000_000_000;
/// Lowest rate that can be asked for: a small frame every half a second.
pub const RATE_BPS_MIN: u64 = 1_000;

/// A rate of frames, bits a second: `80M`, `1G`, `2.5G`, `64000`, or frames a second: `1000fps`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Bits of the frames a second.
    Bits(u64),
    /// Frames a second.
    Frames(u64),
}

impl Rate {
    /// Bits a second for frames of `frame_bytes`.
    pub fn bps(self, frame_bytes: u32) -> u64 {
        match self {
            Self::Bits(bps) => bps,
            Self::Frames(frames) => frames.saturating_mul(u64::from(frame_bytes) * 8),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no rate: write 80M, 1G, 2.5G (bit/s) or 1000fps");
        if let Some(frames) = text.strip_suffix("fps") {
            return frames.parse().map(Self::Frames).map_err(|_| wrong());
        }
        let (number, factor) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (&text[..at], 1e3),
            Some((at, 'M')) => (&text[..at], 1e6),
            Some((at, 'G')) => (&text[..at], 1e9),
            _ => (text, 1.0),
        };
        let value: f64 = number.parse().map_err(|_| wrong())?;
        let bps = value * factor;
        if !bps.is_finite() || !(RATE_BPS_MIN as f64..=RATE_BPS_MAX as f64).contains(&bps) {
            return Err(format!("'{text}': a rate has to be from 1k to 1000G bit/s"));
        }
        Ok(Self::Bits(bps.round() as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits(bps) => write!(f, "{}", bits(*bps as f64)),
            Self::Frames(frames) => write!(f, "{frames}fps"),
        }
    }
}

/// A rate for people: `80 Mbit/s`.
pub fn bits(bps: f64) -> String {
    let (value, unit) = match bps {
        bps if bps >= 1e9 => (bps / 1e9, "Gbit/s"),
        bps if bps >= 1e6 => (bps / 1e6, "Mbit/s"),
        bps => (bps / 1e3, "kbit/s"),
    };
    let text = format!("{value:.3}");
    format!(
        "{} {unit}",
        text.trim_end_matches('0').trim_end_matches('.')
    )
}

/// The send times of a run: frame `k` is due `floor(k · period)` after the start, where the
/// period is the rational number `frame bits / rate`. With a burst of `b` the frames of a group of
/// `b` are all due with the first of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    rate_bps: u64,
    /// Nanosecond-bits of a frame; divided by the rate they are the period.
    frame_ns_bits: u64,
    whole_ns: u64,
    rest: u64,
    burst: u64,
}

impl Schedule {
    /// That of frames of `frame_bytes` at `rate_bps`, in groups of `burst`.
    ///
    /// # Errors
    /// A rate, size or burst out of its range, in one sentence.
    pub fn new(frame_bytes: u32, rate_bps: u64, burst: u32) -> Result<Self, String> {
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Err(format!(
                "a frame of {frame_bytes} bytes: it has to be {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} (with header and FCS)"
            ));
        }
        if !(RATE_BPS_MIN..=RATE_BPS_MAX).contains(&rate_bps) {
            return Err(format!(
                "{rate_bps} bit/s: a rate has to be from {RATE_BPS_MIN} to {RATE_BPS_MAX}"
            ));
        }
        if !(1..=1024).contains(&burst) {
            return Err(format!("a burst of {burst} frames: it has to be 1 to 1024"));
        }
        let frame_ns_bits = u64::from(frame_bytes) * 8 * NS_PER_S;
        Ok(Self {
            rate_bps,
            frame_ns_bits,
            whole_ns: frame_ns_bits / rate_bps,
            rest: frame_ns_bits % rate_bps,
            burst: u64::from(burst),
        })
    }

    /// When frame `seq` is due, nanoseconds after the start.
    pub fn due_ns(&self, seq: u64) -> u64 {
        let seq = if self.burst == 1 {
            seq
        } else {
            seq - seq % self.burst
        };
        match seq.checked_mul(self.rest) {
            Some(rests) => seq
                .saturating_mul(self.whole_ns)
                .saturating_add(rests / self.rate_bps),
            None => {
                let exact = u128::from(seq) * u128::from(self.frame_ns_bits);
                u64::try_from(exact / u128::from(self.rate_bps)).unwrap_or(u64::MAX)
            }
        }
    }

    /// How many frames are due within `span_ns`: those whose time is below it.
    pub fn frames_in(&self, span_ns: u64) -> u64 {
        let exact = u128::from(span_ns) * u128::from(self.rate_bps);
        let frames = exact.div_ceil(u128::from(self.frame_ns_bits));
        u64::try_from(frames).unwrap_or(u64::MAX)
    }

    /// The rate, bits of the frames a second.
    pub fn rate_bps(&self) -> u64 {
        self.rate_bps
    }

    /// Bits of one frame.
    pub fn frame_bits(&self) -> u64 {
        self.frame_ns_bits / NS_PER_S
    }

    /// The rate of `frames` in `span_ns`, bits a second.
    pub fn bps_of(&self, frames: u64, span_ns: u64) -> f64 {
        (frames * self.frame_bits()) as f64 * NS_PER_S as f64 / span_ns.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    #[test]
    fn rates_are_those_of_the_papers() {
        let due = |bytes, rate: &str, seq| {
            let bps = rate.parse::<Rate>().unwrap().bps(bytes);
            Schedule::new(bytes, bps, 1).unwrap().due_ns(seq)
        };
        assert_eq!(due(64, "1G", 1), 512);
        assert_eq!(due(64, "80M", 1), 6_400);
        assert_eq!(due(1518, "1G", 1), 12_144);
        assert_eq!(due(512, "1000fps", 3), 3_000_000);
    }

    #[test]
    fn times_are_exact_and_never_drift() {
        for seed in 0..2_000 {
            let mut rng = SplitMix64::new(seed);
            let bytes = rng.in_range(64, 1518) as u32;
            let (rate_bits, seq_bits) = (rng.in_range(11, 39), rng.in_range(1, 31));
            let bps = rng.in_range(RATE_BPS_MIN, 1 << rate_bits);
            let seq = rng.in_range(0, 1 << seq_bits);
            let schedule = Schedule::new(bytes, bps, 1).unwrap();
            let exact = u128::from(seq) * u128::from(bytes) * 8 * 1_000_000_000 / u128::from(bps);
            assert_eq!(u128::from(schedule.due_ns(seq)), exact, "seed {seed}");
            // The frames of a span are those that are due before its end.
            let span_ns = schedule.due_ns(seq);
            let frames = schedule.frames_in(span_ns);
            assert!(schedule.due_ns(frames) >= span_ns, "seed {seed}");
            assert!(
                frames == 0 || schedule.due_ns(frames - 1) < span_ns,
                "seed {seed}"
            );
            let burst = rng.in_range(1, 64);
            let grouped = Schedule::new(bytes, bps, burst as u32).unwrap();
            assert_eq!(grouped.due_ns(seq), schedule.due_ns(seq / burst * burst));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "M", "fast", "1T", "-5M", "0", "NaN", "1e30", "xfps"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert!(Schedule::new(63, 1_000_000, 1).is_err());
        assert!(Schedule::new(1519, 1_000_000, 1).is_err());
        assert!(Schedule::new(64, 0, 1).is_err());
        assert!(Schedule::new(64, 1_000_000, 0).is_err());
        assert_eq!("2.5G".parse::<Rate>().unwrap().to_string(), "2.5 Gbit/s");
    }
}
