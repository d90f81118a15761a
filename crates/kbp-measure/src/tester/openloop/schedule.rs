// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When each frame is due: exact, in integers, without drift. Pure.
//!
//! *Size* is that of the Ethernet frame with header and FCS, as the papers count 64, 512 and
//! 1518 bytes. *Rate* is the bits of these frames a second, without preamble and gap: paper 000,
//! section 5.1.2, has 64-byte frames every 0.5 µs at 1 Gbps, and 64 · 8 bits at 1 Gbps are 0.512 µs
//! (with preamble and gap it would be 0.672 µs).
//!
//! Not here: sending ([`super::run`]), and due times that don't follow from a formula ([`super::cycle`]).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::arrivals::Arrivals;
use super::cycle::Cycle;

/// Smallest frame of Ethernet, bytes with FCS.
pub const FRAME_BYTES_MIN: u32 = 64;
/// Largest frame of Ethernet without jumbo frames and tags, bytes with FCS.
pub const FRAME_BYTES_MAX: u32 = 1518;
/// Bytes of a frame around a UDP payload over IPv4: Ethernet 14, IPv4 20, UDP 8, FCS 4.
pub const OVERHEAD_V4: u32 = 46;
/// The same over IPv6, whose header has 40 bytes.
pub const OVERHEAD_V6: u32 = 66;

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
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

/// A distance of frames, a rational number of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    whole_ns: u64,
    rest: u64,
    of: u64,
}

impl Period {
    /// `ns` / `of` nanoseconds, with `of` from 1 to 2⁶³.
    pub fn new(ns: u128, of: u128) -> Self {
        let common = greatest_common_divisor(ns, of);
        let (ns, of) = (ns / common, of / common);
        Self {
            whole_ns: (ns / of) as u64,
            rest: (ns % of) as u64,
            of: of as u64,
        }
    }

    /// So many of them, nanoseconds, rounded down.
    pub fn times(self, count: u64) -> u64 {
        let rests_ns = match count.checked_mul(self.rest) {
            Some(rests) => rests / self.of,
            // A rest is less than one.
            None => (u128::from(count) * u128::from(self.rest) / u128::from(self.of)) as u64,
        };
        count.saturating_mul(self.whole_ns).saturating_add(rests_ns)
    }

    /// So many parts of 2⁻³² of it, nanoseconds, rounded down.
    pub fn times_part(self, parts: u64) -> u64 {
        let parts = u128::from(parts);
        let exact =
            parts * u128::from(self.whole_ns) + parts * u128::from(self.rest) / u128::from(self.of);
        u64::try_from(exact >> 32).unwrap_or(u64::MAX)
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// The send times of a run. Frame `k` of constant arrivals is due `floor(k · period)` after the start, where the
/// period is the rational number `frame bits / rate`. With a burst of `b` the frames of a group of
/// `b` are all due with the first of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    rate_bps: u64,
    frame_bits: u64,
    /// The mean distance of frames.
    period: Period,
    burst: u64,
    times: Times,
}

/// What the due times follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Times {
    /// The period of the schedule.
    Constant,
    /// A period that counts in the on times alone.
    OnOff {
        period: Period,
        on_ns: u64,
        off_ns: u64,
    },
    Cycle(Arc<Cycle>),
}

impl Schedule {
    /// That of frames of `frame_bytes` at `rate_bps` and at constant gaps, in groups of `burst`.
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
        let frame_bits = u64::from(frame_bytes) * 8;
        Ok(Self {
            rate_bps,
            frame_bits,
            period: Period::new(u128::from(frame_bits * NS_PER_S), u128::from(rate_bps)),
            burst: u64::from(burst),
            times: Times::Constant,
        })
    }

    /// The same rate with other arrivals. Of those that are drawn by `seed` there are as many as a run of `span_ns` takes,
    /// and at least `frames_min`; a longer run goes on with the same.
    ///
    /// # Errors
    /// Groups of frames, which only constant arrivals have, in one sentence.
    pub fn arriving(
        self,
        arrivals: &Arrivals,
        seed: u64,
        span_ns: u64,
        frames_min: u64,
    ) -> Result<Self, String> {
        if self.burst > 1 && *arrivals != Arrivals::Constant {
            return Err(format!(
                "a burst of {} frames with arrivals {arrivals}: only constant arrivals have bursts; leave one of them out, \
                 or write the bursts into a trace, as gaps of 0",
                self.burst
            ));
        }
        let times = match arrivals {
            Arrivals::Constant => Times::Constant,
            Arrivals::Poisson => {
                Times::Cycle(Cycle::poisson(self.period, seed, span_ns, frames_min).into())
            }
            Arrivals::OnOff { on_ms, off_ms } => self.on_off(*on_ms, *off_ms),
            Arrivals::Trace(trace) => Times::Cycle(Arc::clone(&trace.cycle)),
        };
        Ok(Self { times, ..self })
    }

    /// All frames of `on_ms` and `off_ms` in the first of them. Nothing restarts with an on time, so that no part of a
    /// period is lost and the mean is exact.
    fn on_off(&self, on_ms: u32, off_ms: u32) -> Times {
        let (on, off) = (u128::from(on_ms), u128::from(off_ms));
        let frame_ns_bits = u128::from(self.frame_bits * NS_PER_S);
        Times::OnOff {
            period: Period::new(frame_ns_bits * on, u128::from(self.rate_bps) * (on + off)),
            on_ns: u64::from(on_ms) * NS_PER_MS,
            off_ns: u64::from(off_ms) * NS_PER_MS,
        }
    }

    /// When frame `seq` is due, nanoseconds after the start.
    pub fn due_ns(&self, seq: u64) -> u64 {
        match self.burst {
            1 => self.single_due_ns(seq),
            burst => self.single_due_ns(seq - seq % burst),
        }
    }

    /// When the first frame after `seq` is due that is not of the same group, nanoseconds after the start.
    pub fn next_due_ns(&self, seq: u64) -> u64 {
        self.due_ns(seq + self.burst)
    }

    /// When frame `seq` is due if it is in no group.
    fn single_due_ns(&self, seq: u64) -> u64 {
        match &self.times {
            Times::Constant => self.period.times(seq),
            Times::OnOff {
                period,
                on_ns,
                off_ns,
            } => {
                let on_time_ns = period.times(seq);
                on_time_ns.saturating_add((on_time_ns / on_ns).saturating_mul(*off_ns))
            }
            Times::Cycle(cycle) => cycle.due_ns(seq),
        }
    }

    /// How many frames are due within `span_ns`: those whose time is below it. Those of a group count as if each had a
    /// time of its own, so that groups don't change the number.
    pub fn frames_in(&self, span_ns: u64) -> u64 {
        // Times ascend: the first frame that is not due within the span is between these two.
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.single_due_ns(middle) < span_ns {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The rate that was to be held until `span_ns` after the start, bits of the frames a second: of constant arrivals the
    /// one that was asked for, else that of the frames that were due by then.
    pub fn rate_until_bps(&self, span_ns: u64) -> u64 {
        match self.times {
            Times::Constant => self.rate_bps,
            _ => self.bps_of(self.frames_in(span_ns), span_ns) as u64,
        }
    }

    /// The rate of `frames` in `span_ns`, bits a second.
    pub fn bps_of(&self, frames: u64, span_ns: u64) -> f64 {
        (frames * self.frame_bits) as f64 * NS_PER_S as f64 / span_ns.max(1) as f64
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

    /// As many frames as the rate asks for in every period, at equal distances, and none in the off times.
    #[test]
    fn on_and_off_are_the_mean_rate_in_every_period() {
        for seed in 0..300 {
            let mut rng = SplitMix64::new(seed);
            let (on_ms, off_ms) = (rng.in_range(1, 50), rng.in_range(1, 50));
            let period_ns = (on_ms + off_ms) * NS_PER_MS;
            let on_ns = on_ms * NS_PER_MS;
            let bps = rng.in_range(100_000, 200_000_000);
            let arrivals = Arrivals::OnOff {
                on_ms: on_ms as u32,
                off_ms: off_ms as u32,
            };
            let steady = Schedule::new(64, bps, 1).unwrap();
            let schedule = steady.clone().arriving(&arrivals, 1, 0, 0).unwrap();
            let mut before = 0;
            for periods in 1..=20 {
                // Just as many as at constant gaps by then: where they fill a period, the same number in each.
                let frames = schedule.frames_in(periods * period_ns);
                assert_eq!(frames, steady.frames_in(periods * period_ns), "seed {seed}");
                let due: Vec<u64> = (before..frames).map(|seq| schedule.due_ns(seq)).collect();
                let is_on = |due_ns: &u64| due_ns % period_ns < on_ns;
                assert!(due.iter().all(is_on), "seed {seed}: {due:?}");
                let gap_ns = 512e9 / bps as f64 * on_ns as f64 / period_ns as f64;
                for pair in due.windows(2) {
                    let found_ns = pair[1] - pair[0];
                    assert!(
                        (found_ns as f64 - gap_ns).abs() <= 1.0,
                        "seed {seed}: {found_ns}"
                    );
                }
                before = frames;
            }
        }
    }

    #[test]
    fn the_rate_of_random_arrivals_is_that_of_what_was_due() {
        let steady = Schedule::new(64, 512_000, 1).unwrap();
        assert_eq!(steady.rate_until_bps(1), 512_000);
        let arrivals = Arrivals::OnOff {
            on_ms: 1,
            off_ms: 9,
        };
        let schedule = steady.arriving(&arrivals, 1, 0, 0).unwrap();
        assert_eq!(
            schedule.rate_until_bps(NS_PER_MS),
            5_120_000,
            "in the on time"
        );
        assert_eq!(schedule.rate_until_bps(10 * NS_PER_MS), 512_000);
    }

    #[test]
    fn only_constant_arrivals_have_groups() {
        let grouped = || Schedule::new(64, 1_000_000, 8).unwrap();
        let why = grouped().arriving(&Arrivals::Poisson, 1, 0, 0).unwrap_err();
        assert!(
            why.contains("a burst of 8 frames with arrivals poisson"),
            "{why}"
        );
        assert_eq!(
            grouped().arriving(&Arrivals::Constant, 1, 0, 0),
            Ok(grouped())
        );
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
