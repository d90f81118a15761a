// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Energy counters of the machine, from /sys/class/powercap (Linux `power/powercap`, RAPL).
//!
//! A processor has several zones, some of which are in others: the cores are in their package, memory (`dram`) is not,
//! and the platform (`psys`) holds both. The same counters may also be there a second time, over memory-mapped
//! registers (`intel-rapl-mmio`). Which zones may be added up is decided here, in [`Standing`]. What an interval
//! means and how it is printed is not here, and nothing here limits any power.

use crate::host::{Host, HostError};

/// Directory of the zones, from the root of the host.
const DIRECTORY: &str = "sys/class/powercap";
/// The control type whose counters are taken where several have the same ones.
const PREFERRED: &str = "intel-rapl";

/// What a zone counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneKind {
    /// A whole processor package, or one die of it.
    Package,
    /// The cores of a package.
    Core,
    /// What else is on a package, the graphics for instance.
    Uncore,
    /// Memory; no package has it in its own counter.
    Dram,
    /// The platform, packages and memory included.
    Psys,
    /// Anything else.
    Other,
}

impl ZoneKind {
    fn of(name: &str) -> Self {
        match name {
            _ if name.starts_with("package") => Self::Package,
            "core" => Self::Core,
            "uncore" => Self::Uncore,
            "dram" => Self::Dram,
            "psys" => Self::Psys,
            _ => Self::Other,
        }
    }
}

/// How a zone stands to the others: whether it may be added to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in no other zone: the total is the sum of these.
    Apart,
    /// It is a part of the zone with this name.
    PartOf(String),
    /// It holds packages and memory.
    Around,
    /// It is the counter of the zone in this folder once more.
    SameAs(String),
    /// Nobody says what it is in.
    Unknown,
}

/// A zone whose energy is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its folder (`intel-rapl:0:2`), which no other zone has.
    pub entry: String,
    /// Its name (`package-0`, `dram`), which several may have.
    pub name: String,
    /// What it counts.
    pub kind: ZoneKind,
    /// Name of the zone above it (`package-0`); `None` at the top.
    pub above: Option<String>,
    /// Whether it may be added to others.
    pub standing: Standing,
    /// Where the counter begins anew, microjoules.
    pub range_uj: u64,
}

impl Zone {
    /// The counter now, microjoules.
    pub fn energy_uj(&self, host: &Host) -> Result<u64, HostError> {
        host.read_number(&format!("{DIRECTORY}/{}/energy_uj", self.entry))
    }

    /// What was used between two readings, microjoules. The counter may have begun anew once in between; more often
    /// can't be told, see [`Zone::may_wrap_unseen`].
    pub fn used_uj(&self, before_uj: u64, after_uj: u64) -> u64 {
        if after_uj >= before_uj {
            return after_uj - before_uj;
        }
        self.range_uj.saturating_sub(before_uj) + after_uj
    }

    /// Whether the counter can have gone round once without a trace between two readings that are this far apart, if
    /// the zone drew this power all the time.
    pub fn may_wrap_unseen(&self, gap_ns: u64, watts: f64) -> bool {
        watts * gap_ns as f64 / 1e3 >= self.range_uj as f64
    }

    /// A name that tells it from all others: `core of package-0`.
    pub fn label(&self) -> String {
        match &self.above {
            Some(above) => format!("{} of {above}", self.name),
            None => self.name.clone(),
        }
    }

    /// Whether it is a package that is counted for the first time.
    pub fn is_package(&self) -> bool {
        self.kind == ZoneKind::Package && self.standing == Standing::Apart
    }
}

/// What a zone used over any number of readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    last_uj: u64,
    /// Energy since the first reading, microjoules.
    pub used_uj: u64,
    /// How often the counter began anew.
    pub wraps: u32,
}

impl Tally {
    /// Begins with a reading of the counter, microjoules.
    pub fn begin(now_uj: u64) -> Self {
        Self {
            last_uj: now_uj,
            used_uj: 0,
            wraps: 0,
        }
    }

    /// Adds what was used since the last reading.
    pub fn add(&mut self, zone: &Zone, now_uj: u64) {
        self.used_uj += zone.used_uj(self.last_uj, now_uj);
        self.wraps += u32::from(now_uj < self.last_uj);
        self.last_uj = now_uj;
    }
}

/// The control type of a folder and the places of the zone in it: `intel-rapl`, [0, 2].
fn place(entry: &str) -> Option<(&str, Vec<u32>)> {
    let mut parts = entry.split(':');
    let control = parts.next()?;
    let places: Option<Vec<u32>> = parts.map(|part| part.parse().ok()).collect();
    Some((control, places.filter(|places| !places.is_empty())?))
}

fn standing(kind: ZoneKind, name: &str, above: Option<&str>, found: &[Zone]) -> Standing {
    let same = |zone: &&Zone| zone.name == name && zone.above.as_deref() == above;
    if let Some(first) = found.iter().find(same) {
        return Standing::SameAs(first.entry.clone());
    }
    match (kind, above) {
        (ZoneKind::Package | ZoneKind::Dram, _) => Standing::Apart,
        (ZoneKind::Psys, _) => Standing::Around,
        (_, Some(above)) => Standing::PartOf(above.into()),
        (_, None) => Standing::Unknown,
    }
}

impl Host {
    /// The zones of this machine whose energy is counted, each before those in it; none where there is no powercap.
    ///
    /// # Errors
    /// When the zones are there and what they are can't be read.
    pub fn energy_zones(&self) -> Result<Vec<Zone>, HostError> {
        let entries = self.list(DIRECTORY)?;
        let mut places: Vec<_> = entries.iter().filter_map(|entry| place(entry)).collect();
        places.sort_by_key(|(control, places)| (*control != PREFERRED, *control, places.clone()));
        let mut zones = Vec::new();
        for (control, places) in places {
            zones.extend(self.energy_zone(control, &places, &zones)?);
        }
        Ok(zones)
    }

    /// One zone; `None` for a folder that counts no energy (DTPM), or is empty (a container's).
    fn energy_zone(
        &self,
        control: &str,
        places: &[u32],
        found: &[Zone],
    ) -> Result<Option<Zone>, HostError> {
        let folder = |places: &[u32]| {
            places.iter().fold(control.to_owned(), |entry, place| {
                format!("{entry}:{place}")
            })
        };
        let name_of = |entry: &str| self.read_optional(&format!("{DIRECTORY}/{entry}/name"));
        let entry = folder(places);
        let Some(name) = name_of(&entry)? else {
            return Ok(None);
        };
        if !self.exists(&format!("{DIRECTORY}/{entry}/energy_uj")) {
            return Ok(None);
        }
        let above = match places {
            [above @ .., _] if !above.is_empty() => name_of(&folder(above))?,
            _ => None,
        };
        let kind = ZoneKind::of(&name);
        Ok(Some(Zone {
            standing: standing(kind, &name, above.as_deref(), found),
            range_uj: self.read_number(&format!("{DIRECTORY}/{entry}/max_energy_range_uj"))?,
            entry,
            name,
            kind,
            above,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: [(&str, &str); 10] = [
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl:2", "package-1"),
        ("intel-rapl:2:0", "core"),
        ("intel-rapl:10", "gizmo"),
        ("intel-rapl-mmio:0", "package-0"),
        ("intel-rapl-mmio:0:0", "dram"),
        ("intel-rapl-mmio:0:1", "uncore"),
    ];

    fn machine(zones: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        for (number, (entry, name)) in zones.iter().enumerate() {
            let base = dir.path().join(DIRECTORY).join(entry);
            std::fs::create_dir_all(&base).unwrap();
            for (file, text) in [
                ("name", (*name).to_owned()),
                ("energy_uj", number.to_string()),
                ("max_energy_range_uj", "1000".into()),
            ] {
                std::fs::write(base.join(file), format!("{text}\n")).unwrap();
            }
        }
        let host = Host::at(dir.path());
        (dir, host)
    }

    #[test]
    fn every_zone_is_there_and_none_counts_twice() {
        let (dir, host) = machine(&ZONES);
        // The folder of a control type, and a zone that only limits power.
        for entry in ["intel-rapl", "dtpm:0"] {
            let base = dir.path().join(DIRECTORY).join(entry);
            std::fs::create_dir_all(&base).unwrap();
            std::fs::write(base.join("name"), "other\n").unwrap();
        }
        let zones = host.energy_zones().unwrap();
        let part = |above: &str| Standing::PartOf(above.into());
        let same = |entry: &str| Standing::SameAs(entry.into());
        let found: Vec<_> = zones
            .iter()
            .map(|zone| (zone.label(), zone.standing.clone()))
            .collect();
        let want = [
            ("package-0", Standing::Apart),
            ("core of package-0", part("package-0")),
            ("dram of package-0", Standing::Apart),
            ("psys", Standing::Around),
            ("package-1", Standing::Apart),
            ("core of package-1", part("package-1")),
            ("gizmo", Standing::Unknown),
            ("package-0", same("intel-rapl:0")),
            ("dram of package-0", same("intel-rapl:0:1")),
            ("uncore of package-0", part("package-0")),
        ];
        assert_eq!(found, want.map(|(label, how)| (label.to_owned(), how)));
        let packages: Vec<_> = zones.iter().filter(|zone| zone.is_package()).collect();
        let read: Vec<_> = packages
            .iter()
            .map(|zone| zone.energy_uj(&host).unwrap())
            .collect();
        assert_eq!(read, [0, 4]);
    }

    #[test]
    fn packages_behind_memory_registers_alone_are_packages() {
        let (_dir, host) = machine(&[("intel-rapl-mmio:0", "package-0")]);
        assert!(host.energy_zones().unwrap()[0].is_package());
        assert_eq!(Host::at("/nonexistent").energy_zones().unwrap(), []);
    }

    /// Against a counter that is advanced a microjoule at a time, and read whenever it went less than once round.
    #[test]
    fn energy_survives_every_wrap() {
        let (_dir, host) = machine(&[("intel-rapl:0", "package-0")]);
        let zone = Zone {
            range_uj: 50,
            ..host.energy_zones().unwrap().remove(0)
        };
        for start in 0..50 {
            for step in 1..50 {
                let mut tally = Tally::begin(start);
                for used in (step..500).step_by(step as usize) {
                    tally.add(&zone, (start + used) % 50);
                    assert_eq!(tally.used_uj, used, "from {start} in steps of {step}");
                    assert_eq!(u64::from(tally.wraps), (start + used) / 50);
                }
            }
        }
    }

    #[test]
    fn what_can_go_round_unseen_is_known() {
        let (_dir, host) = machine(&[("intel-rapl:0", "package-0")]);
        let zone = host.energy_zones().unwrap().remove(0);
        // 1,000 µJ are used in 1 ms at 1 W.
        assert!(!zone.may_wrap_unseen(999_999, 1.0));
        assert!(zone.may_wrap_unseen(1_000_000, 1.0));
        assert!(zone.may_wrap_unseen(500_000, 2.0));
    }
}
