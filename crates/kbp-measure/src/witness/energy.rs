// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Energy of the machine: from the counters of its processor packages (powercap), else from the power readings of its
//! management controller (IPMI), else none.
//!
//! The controller says what power it measured last, so its energy is the mean of two such readings times the time
//! between them: rough for rows shorter than a few seconds.
//! Not here: an estimate from anything else.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kbp_core::powercap::Zone;
use kbp_core::Host;

use crate::error::Result;
use crate::result::Energy;

/// What is said where nothing counts energy.
pub const NO_COUNTER: &str = "no energy counter on this machine";

/// How long `ipmitool` may take; one that takes longer disturbs more than it tells.
const IPMI_LIMIT: Duration = Duration::from_secs(2);
const IPMI_DEVICES: [&str; 3] = ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"];

/// Where energy is read.
#[derive(Debug, Clone)]
pub(super) enum Meter {
    /// Packages.
    Powercap(Vec<Zone>),
    /// The management controller.
    Ipmi,
    /// Nowhere.
    None,
}

/// One reading of a meter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Level {
    /// Counters of the packages, microjoules.
    Counters(Vec<u64>),
    /// Power, watts.
    Watts(f64),
    /// Nothing.
    None,
}

impl Meter {
    /// The best meter of this machine.
    ///
    /// # Errors
    /// When there is a counter that can't be read.
    pub(super) fn find(host: &Host) -> Result<Self> {
        let zones = host.energy_zones().map_err(kbp_core::Error::from)?;
        if !zones.is_empty() {
            return Ok(Self::Powercap(zones));
        }
        let has_controller = IPMI_DEVICES.iter().any(|device| host.exists(device));
        if host.is_system() && has_controller && ipmi_watts().is_some() {
            return Ok(Self::Ipmi);
        }
        Ok(Self::None)
    }

    /// Reads it.
    ///
    /// # Errors
    /// When a counter can't be read.
    pub(super) fn read(&self, host: &Host) -> Result<Level> {
        match self {
            Self::Powercap(zones) => {
                let read = |zone: &Zone| zone.energy_uj(host).map_err(kbp_core::Error::from);
                let counters = zones
                    .iter()
                    .map(read)
                    .collect::<std::result::Result<_, _>>()?;
                Ok(Level::Counters(counters))
            }
            Self::Ipmi => Ok(ipmi_watts().map_or(Level::None, Level::Watts)),
            Self::None => Ok(Level::None),
        }
    }

    /// What was used between two readings.
    pub(super) fn used(&self, before: &Level, after: &Level, span_ns: u64) -> Energy {
        match (self, before, after) {
            (Self::Powercap(zones), Level::Counters(before), Level::Counters(after)) => {
                let used = zones.iter().zip(before.iter().zip(after));
                let uj: u64 = used
                    .map(|(zone, (&before, &after))| zone.used_uj(before, after))
                    .sum();
                let names: Vec<&str> = zones.iter().map(|zone| zone.name.as_str()).collect();
                Energy {
                    joules: Some(uj as f64 / 1e6),
                    source: format!("powercap: {}", names.join(" + ")),
                }
            }
            (Self::Ipmi, Level::Watts(before), Level::Watts(after)) => Energy {
                joules: Some((before + after) / 2.0 * span_ns as f64 / 1e9),
                source: "IPMI: mean of the power before and after, times the time".into(),
            },
            (Self::Ipmi, ..) => Energy {
                joules: None,
                source: "the management controller (IPMI) stopped answering".into(),
            },
            _ => Energy {
                joules: None,
                source: NO_COUNTER.into(),
            },
        }
    }
}

/// The power that the management controller measured last; `None` without an answer in time.
fn ipmi_watts() -> Option<f64> {
    let mut child = Command::new("ipmitool")
        .args(["dcmi", "power", "reading"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if begin.elapsed() < IPMI_LIMIT => {
                std::thread::sleep(Duration::from_millis(5))
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let output = child.wait_with_output().ok()?;
    parse_ipmi_watts(&String::from_utf8_lossy(&output.stdout))
}

/// The first line of `ipmitool dcmi power reading` that has a present power: "Instantaneous power reading: 212 Watts".
fn parse_ipmi_watts(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.trim().starts_with("Instantaneous power reading"))?;
    let watts: f64 = line
        .split(':')
        .nth(1)?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    // Controllers without a sensor say 0.
    (watts > 0.0).then_some(watts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_up_over_their_wrap() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        let set = |zone: usize, file: &str, text: &str| {
            let base = host.path(&format!("sys/class/powercap/intel-rapl:{zone}"));
            std::fs::create_dir_all(&base).unwrap();
            std::fs::write(base.join(file), text).unwrap();
        };
        for (zone, energy) in [(0, "9000000"), (1, "1000000")] {
            set(zone, "name", &format!("package-{zone}\n"));
            set(zone, "max_energy_range_uj", "10000000\n");
            set(zone, "energy_uj", energy);
        }
        let meter = Meter::find(&host).unwrap();
        let before = meter.read(&host).unwrap();
        set(0, "energy_uj", "500000");
        set(1, "energy_uj", "3000000");
        let after = meter.read(&host).unwrap();
        let used = meter.used(&before, &after, 1);
        assert_eq!(used.joules, Some(3.5));
        assert_eq!(used.source, "powercap: package-0 + package-1");
    }

    #[test]
    fn power_times_time_and_no_counter_at_all() {
        let reading = "\n    Instantaneous power reading:                   212 Watts\n    Minimum during sampling period: 4 Watts\n";
        assert_eq!(parse_ipmi_watts(reading), Some(212.0));
        assert_eq!(
            parse_ipmi_watts("Instantaneous power reading: 0 Watts"),
            None
        );
        assert_eq!(parse_ipmi_watts("DCMI request failed"), None);
        let used = Meter::Ipmi.used(&Level::Watts(100.0), &Level::Watts(200.0), 2_000_000_000);
        assert_eq!(used.joules, Some(300.0));
        assert_eq!(
            Meter::Ipmi.used(&Level::Watts(1.0), &Level::None, 1).joules,
            None
        );
        let host = Host::at("/nonexistent");
        let meter = Meter::find(&host).unwrap();
        let level = meter.read(&host).unwrap();
        let none = meter.used(&level, &level, 1);
        assert_eq!((none.joules, none.source.as_str()), (None, NO_COUNTER));
    }
}
