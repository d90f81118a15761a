// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Energy of the machine: from the counters of its processor packages (powercap), else from the power readings of its
//! management controller (IPMI), else none.
//!
//! The controller says what power it measured last, so its energy is the mean of two such readings times the time
//! between them: rough for rows shorter than a few seconds.
//! Where nothing counts, there is the estimate of a model, which is kept apart.
//! Not here: the model, and the other zones of powercap ([`crate::power`]).

use kbp_core::powercap::Zone;
use kbp_core::Host;

use crate::error::Result;
use crate::power::ipmi;
use crate::power::model::Model;
use crate::power::PLAUSIBLE_WATTS;
use crate::result::{CpuUse, Energy, EnergyEstimate};

/// What is said where nothing counts energy.
pub const NO_COUNTER: &str = "no energy counter on this machine";

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
        let mut zones = host.energy_zones().map_err(kbp_core::Error::from)?;
        zones.retain(Zone::is_package);
        if !zones.is_empty() {
            return Ok(Self::Powercap(zones));
        }
        match ipmi::find(host) {
            Ok(_) => Ok(Self::Ipmi),
            Err(_) => Ok(Self::None),
        }
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
            Self::Ipmi => Ok(ipmi::watts().map_or(Level::None, Level::Watts)),
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
                let wraps = |zone: &Zone| zone.may_wrap_unseen(span_ns, PLAUSIBLE_WATTS);
                if zones.iter().any(wraps) {
                    return Energy {
                        joules: None,
                        source: format!(
                            "powercap: a counter of {} can go round unseen in a row of {} s; a shorter --row-ms helps",
                            names.join(" + "),
                            span_ns / 1_000_000_000
                        ),
                        estimate: None,
                    };
                }
                Energy {
                    joules: Some(uj as f64 / 1e6),
                    source: format!("powercap: {}", names.join(" + ")),
                    estimate: None,
                }
            }
            (Self::Ipmi, Level::Watts(before), Level::Watts(after)) => Energy {
                joules: Some((before + after) / 2.0 * span_ns as f64 / 1e9),
                source: "IPMI: mean of the power before and after, times the time".into(),
                estimate: None,
            },
            (Self::Ipmi, ..) => Energy {
                joules: None,
                source: "the management controller (IPMI) stopped answering".into(),
                estimate: None,
            },
            _ => Energy {
                joules: None,
                source: NO_COUNTER.into(),
                estimate: None,
            },
        }
    }
}

/// What the model says of these CPUs. A CPU is busy while it is neither idle nor taken by the host of this virtual
/// machine: idle time is exact to a tick, the kernel's account of the rest is a sample at each tick.
pub(super) fn estimate(model: &Model, cpu: &CpuUse, of: &[u32], span_ns: u64) -> EnergyEstimate {
    let span = span_ns.max(1) as f64;
    let times = of.iter().filter_map(|number| cpu.cpus.get(number));
    let busy = times.map(|times| {
        let at_rest = (times.idle_ns + times.steal_ns) as f64 / span;
        (1.0 - at_rest).max(0.0)
    });
    let estimate = model.of_busy(busy.sum(), span / 1e9);
    EnergyEstimate {
        joules: estimate.extra_energy_joules,
        watts: estimate.extra_power_watts,
        busy_cpus: estimate.busy_cpus,
        of_cpus: of.to_vec(),
        model: estimate.model,
    }
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
        // 10 J are gone through in 2.5 ms at most.
        let long = meter.used(&before, &after, 3_000_000);
        assert_eq!(long.joules, None);
        assert!(long.source.contains("unseen"), "{}", long.source);
    }

    #[test]
    fn an_estimate_is_of_the_cpus_that_were_asked_for() {
        let model = Model::load(None).unwrap();
        let idle = |idle_ns| crate::result::CpuTimes {
            idle_ns,
            ..Default::default()
        };
        let cpu = CpuUse {
            // Of CPU 2 the ticks say more than the time that went by.
            cpus: [
                (1, idle(0)),
                (2, idle(1_010_000_000)),
                (3, idle(250_000_000)),
            ]
            .into(),
            ..CpuUse::default()
        };
        let found = estimate(&model, &cpu, &[2, 3], 1_000_000_000);
        assert_eq!((found.busy_cpus, found.of_cpus), (0.75, vec![2, 3]));
        assert_eq!(found.joules, 0.75 * model.polling_cpu_watts.value);
    }

    #[test]
    fn power_times_time_and_no_counter_at_all() {
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
