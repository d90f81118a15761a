// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Energy counters of the processor packages, from /sys/class/powercap (Linux `power/powercap`, RAPL).
//!
//! Only whole packages: their parts (core, uncore) are in them, and memory is a zone of its own that few machines have.
//! The same counters over memory-mapped registers (`intel-rapl-mmio`) would count the packages twice. What an interval
//! means and how it is printed is not here.

use crate::host::{Host, HostError};

/// Directory of the zones, from the root of the host.
const DIRECTORY: &str = "sys/class/powercap";

/// A package whose energy is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name (`package-0`).
    pub name: String,
    /// Where the counter begins anew, microjoules.
    pub range_uj: u64,
    file: String,
}

impl Zone {
    /// The counter now, microjoules.
    pub fn energy_uj(&self, host: &Host) -> Result<u64, HostError> {
        host.read_number(&self.file)
    }

    /// What was used between two readings, microjoules. The counter may have begun anew once in between; more often
    /// can't be told, and takes most of an hour at the power of a server.
    pub fn used_uj(&self, before_uj: u64, after_uj: u64) -> u64 {
        if after_uj >= before_uj {
            return after_uj - before_uj;
        }
        self.range_uj.saturating_sub(before_uj) + after_uj
    }
}

impl Host {
    /// The packages of this machine whose energy is counted; none where there is no powercap.
    pub fn energy_zones(&self) -> Result<Vec<Zone>, HostError> {
        let mut zones = Vec::new();
        for entry in self.list(DIRECTORY)? {
            if !entry.starts_with("intel-rapl:") {
                continue;
            }
            let base = format!("{DIRECTORY}/{entry}");
            let Some(name) = self.read_optional(&format!("{base}/name"))? else {
                continue;
            };
            if name.starts_with("package") {
                zones.push(Zone {
                    name,
                    range_uj: self.read_number(&format!("{base}/max_energy_range_uj"))?,
                    file: format!("{base}/energy_uj"),
                });
            }
        }
        Ok(zones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_count_and_each_once() {
        let dir = tempfile::tempdir().unwrap();
        let zones = [
            ("intel-rapl", "", "0"),
            ("intel-rapl:0", "package-0", "100"),
            ("intel-rapl:0:0", "core", "60"),
            ("intel-rapl:1", "package-1", "7"),
            ("intel-rapl-mmio:0", "package-0", "100"),
        ];
        for (entry, name, energy) in zones {
            let base = dir.path().join(DIRECTORY).join(entry);
            std::fs::create_dir_all(&base).unwrap();
            for (file, text) in [
                ("name", name),
                ("energy_uj", energy),
                ("max_energy_range_uj", "1000"),
            ] {
                std::fs::write(base.join(file), format!("{text}\n")).unwrap();
            }
        }
        let host = Host::at(dir.path());
        let found = host.energy_zones().unwrap();
        let read: Vec<_> = found
            .iter()
            .map(|zone| (zone.name.as_str(), zone.energy_uj(&host).unwrap()))
            .collect();
        assert_eq!(read, [("package-0", 100), ("package-1", 7)]);
        assert_eq!(Host::at("/nonexistent").energy_zones().unwrap(), []);
    }

    /// Against a counter that is advanced a microjoule at a time.
    #[test]
    fn an_interval_survives_the_wrap() {
        let zone = Zone {
            name: "package-0".into(),
            range_uj: 50,
            file: String::new(),
        };
        for start in 0..50 {
            let mut counter = start;
            for used in 0..50 {
                assert_eq!(zone.used_uj(start, counter), used, "from {start}");
                counter = (counter + 1) % 50;
            }
        }
    }
}
