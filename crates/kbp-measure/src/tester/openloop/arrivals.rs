// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which times frames are due at, as it is asked for and as a result names it, and the file of recorded gaps.
//!
//! Not here: the times themselves ([`super::schedule`], [`super::cycle`]).

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use super::cycle::{Cycle, CYCLE_FRAMES_MAX};
use crate::error::{Error, Result};
use crate::rng::SplitMix64;

/// Longest time without a frame that can be asked for: an hour.
const GAP_NS_MAX: u64 = 3_600_000_000_000;
const GAP_MS_MAX: u32 = 3_600_000;

/// Which times frames are due at. The first one is always due at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// All gaps are alike.
    #[default]
    Constant,
    /// Exponential gaps, drawn by the seed of the run; the rate is their mean.
    Poisson,
    /// Frames at constant gaps, then none, again and again. The rate is the mean of both.
    OnOff {
        /// How long frames come, milliseconds, 1 to an hour.
        on_ms: u32,
        /// How long none come, milliseconds, 1 to an hour.
        off_ms: u32,
    },
    /// Recorded gaps, in a circle; they have a rate of their own.
    Trace(Trace),
}

/// Recorded gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The file's name without its folders, and a checksum of the gaps: files of one name may differ.
    name: String,
    pub(super) cycle: Arc<Cycle>,
}

impl Arrivals {
    /// What a command line asks for: `constant`, `poisson`, `onoff:ON_MS:OFF_MS` or `trace:FILE`. The file is read here,
    /// and not again for each run.
    ///
    /// # Errors
    /// When it is none of these, a time is out of its range, or the file can't be read or holds no gaps.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "constant" => Ok(Self::Constant),
            None if text == "poisson" => Ok(Self::Poisson),
            Some(("onoff", times)) => on_off(text, times),
            Some(("trace", file)) => Trace::read(Path::new(file)).map(Self::Trace),
            _ => Err(Error::Invalid(format!(
                "frames can't arrive as '{text}': write constant, poisson, onoff:ON_MS:OFF_MS or trace:FILE"
            ))),
        }
    }

    /// The rate that a trace has of itself, bits of frames of `frame_bytes` a second; `None` where the rate can be set.
    pub fn own_rate_bps(&self, frame_bytes: u32) -> Option<u64> {
        match self {
            Self::Trace(trace) => Some(trace.rate_bps(frame_bytes)),
            _ => None,
        }
    }

    /// How a result names them; `None` for constant ones, so that their rows are those of before there were others.
    pub fn name(&self) -> Option<String> {
        (*self != Self::Constant).then(|| self.to_string())
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => write!(f, "constant"),
            Self::Poisson => write!(f, "poisson"),
            Self::OnOff { on_ms, off_ms } => write!(f, "onoff:{on_ms}:{off_ms}"),
            Self::Trace(trace) => write!(f, "trace:{}", trace.name),
        }
    }
}

fn on_off(text: &str, times: &str) -> Result<Arrivals> {
    let ms = |time: &str| {
        let ms = time.parse().ok()?;
        (1..=GAP_MS_MAX).contains(&ms).then_some(ms)
    };
    let both = times
        .split_once(':')
        .and_then(|(on, off)| Some((ms(on)?, ms(off)?)));
    match both {
        Some((on_ms, off_ms)) => Ok(Arrivals::OnOff { on_ms, off_ms }),
        None => Err(Error::Invalid(format!(
            "'{text}': on and off have to be whole milliseconds from 1 to {GAP_MS_MAX}, as in onoff:1:9"
        ))),
    }
}

impl Trace {
    fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::file("read", path, error);
        let gaps_ns = gaps(BufReader::new(File::open(path).map_err(failed)?))
            .map_err(failed)?
            .map_err(|why| Error::Invalid(format!("{}: {why}", path.display())))?;
        let cycle = Cycle::of_gaps(&gaps_ns).ok_or_else(|| {
            Error::Invalid(format!(
                "{}: it holds no gap longer than 0: write one a line, in nanoseconds",
                path.display()
            ))
        })?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: format!("{file}#{:08x}", checksum(&gaps_ns)),
            cycle: Arc::new(cycle),
        })
    }

    fn rate_bps(&self, frame_bytes: u32) -> u64 {
        let bits = u128::from(self.cycle.frames()) * u128::from(frame_bytes) * 8;
        let rate_bps = bits * 1_000_000_000 / u128::from(self.cycle.length_ns());
        u64::try_from(rate_bps).unwrap_or(u64::MAX)
    }
}

/// The gaps of a trace, or what is wrong with it in a sentence.
fn gaps(lines: impl BufRead) -> std::io::Result<std::result::Result<Vec<u64>, String>> {
    let mut gaps_ns = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line?;
        let text = line.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        match text.parse() {
            Ok(gap_ns) if gap_ns <= GAP_NS_MAX => gaps_ns.push(gap_ns),
            Ok(_) => return Ok(Err(format!("the gap of line {number} is more than an hour"))),
            Err(_) => {
                return Ok(Err(format!(
                    "line {number}, '{text}', is no gap: write whole nanoseconds, or a # before a comment"
                )))
            }
        }
        if gaps_ns.len() > CYCLE_FRAMES_MAX {
            return Ok(Err(format!(
                "it has more than {CYCLE_FRAMES_MAX} gaps: take a part of it"
            )));
        }
    }
    Ok(Ok(gaps_ns))
}

/// Tells two lists apart, unless somebody wants it not to.
fn checksum(gaps_ns: &[u64]) -> u32 {
    let mix = |sum: u64, gap_ns: &u64| SplitMix64::new(sum ^ gap_ns).next_u64();
    (gaps_ns.iter().fold(0, mix) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Result<Arrivals> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Arrivals::parse(&format!("trace:{}", file.path().display()))
    }

    #[test]
    fn what_is_asked_for_is_what_is_named() {
        for text in ["constant", "poisson", "onoff:1:9", "onoff:3600000:1"] {
            let arrivals = Arrivals::parse(text).unwrap();
            assert_eq!(arrivals.to_string(), text);
            assert_eq!(arrivals.own_rate_bps(64), None);
            assert_eq!(arrivals.name().is_none(), text == "constant");
        }
    }

    #[test]
    fn a_trace_has_a_rate_and_a_name_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let file = folder.path().join("web.txt");
            std::fs::write(&file, text).unwrap();
            Arrivals::parse(&format!("trace:{}", file.display())).unwrap()
        };
        let first = read("# recorded\n1000000\n\n 0 # at once\n2000000\n");
        assert_eq!(
            first.own_rate_bps(64),
            Some(512_000),
            "1000 frames a second"
        );
        let name = first.name().unwrap();
        assert!(name.starts_with("trace:web.txt#"), "{name}");
        assert_eq!(read("1000000\n0\n2000000"), first, "comments are no gaps");
        // The same rate, and yet other traffic.
        assert_ne!(read("0\n1000000\n2000000").name(), Some(name));
    }

    #[test]
    fn nonsense_is_refused_in_a_sentence() {
        let refusal = |text: &str| match Arrivals::parse(text) {
            Err(Error::Invalid(why)) => why,
            other => panic!("{text}: {other:?}"),
        };
        for text in [
            "",
            "Poisson",
            "poisson:",
            "poisson:3",
            "constant:1",
            "on:1:9",
            "1:9",
        ] {
            assert!(refusal(text).contains("write constant, poisson"), "{text}");
        }
        for text in [
            "onoff",
            "onoff:",
            "onoff:1",
            "onoff:0:1",
            "onoff:1:0",
            "onoff:-1:9",
            "onoff:1:-9",
            "onoff:NaN:1",
            "onoff:1.5:1",
            "onoff:1:9:1",
            "onoff:3600001:1",
            "onoff:1:99999999999",
        ] {
            let why = refusal(text);
            assert!(
                why.contains("onoff:1:9") || why.contains("onoff:ON_MS"),
                "{why}"
            );
        }
        let missing = Arrivals::parse("trace:/nowhere/gaps.txt").unwrap_err();
        assert!(matches!(missing, Error::File { .. }), "{missing}");
        assert!(missing
            .to_string()
            .contains("read /nowhere/gaps.txt: No such file"));
        for (text, why) in [
            ("", "no gap longer than 0"),
            ("# nothing\n\n", "no gap longer than 0"),
            ("0\n0\n", "no gap longer than 0"),
            ("1000\n-5\n", "line 2, '-5'"),
            ("NaN\n", "line 1, 'NaN'"),
            ("1000\n2000 3000\n", "line 2"),
            ("1.5\n", "line 1"),
            ("99999999999999999999\n", "line 1"),
            ("3600000000001\n", "the gap of line 1 is more than an hour"),
        ] {
            let error = trace(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        assert!(trace("3600000000000\n").is_ok());
        let long = "1\n".repeat(CYCLE_FRAMES_MAX + 1);
        assert!(trace(&long)
            .unwrap_err()
            .to_string()
            .contains("take a part"));
        assert!(trace(&long[2..]).is_ok());
    }
}
