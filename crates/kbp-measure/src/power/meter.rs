// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Energy while something else goes on: the zones of powercap, which have to be read before they go round twice, and
//! the management controller. Each is read by a thread of its own.
//!
//! Not here: the sum of zones, and what it means ([`super::span`]).

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use kbp_core::powercap::{Tally, Zone};
use kbp_core::Host;

use super::ipmi;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};

/// How often the management controller is asked; asking takes CPU time, and its sensor is slow.
const IPMI_PERIOD: Duration = Duration::from_secs(10);

/// Does `step` every `period` in a thread of its own, as long as `during` runs.
///
/// # Errors
/// When `step` panicked.
fn meanwhile<T>(
    period: Duration,
    mut step: impl FnMut() + Send,
    during: impl FnOnce() -> T,
) -> Result<T> {
    let (stop, stopped) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                step();
            }
        });
        let done = during();
        drop(stop);
        thread.join().map_err(|_| Error::Panicked("power meter"))?;
        Ok(done)
    })
}

/// The zones of a machine and what they used since the first reading.
#[derive(Debug, Clone)]
pub(super) struct Zones {
    /// Zones; with each what it used, or why it can't be read (any more).
    pub zones: Vec<(Zone, std::result::Result<Tally, String>)>,
    /// How often they were read.
    pub readings: u32,
    /// The longest time between two readings, nanoseconds.
    pub longest_gap_ns: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Zones {
    /// Finds them and reads them for the first time.
    ///
    /// # Errors
    /// When there are zones and what they are can't be read, or there is no clock.
    pub fn begin(host: &Host) -> Result<Self> {
        let zones = host.energy_zones().map_err(kbp_core::Error::from)?;
        let read = |zone: Zone| {
            let first = zone.energy_uj(host);
            let tally = first.map(Tally::begin).map_err(|e| e.to_string());
            (zone, tally)
        };
        let now_ns = monotonic_ns()?;
        let zones: Vec<_> = zones.into_iter().map(read).collect();
        Ok(Self {
            readings: u32::from(!zones.is_empty()),
            zones,
            longest_gap_ns: 0,
            first_ns: now_ns,
            last_ns: now_ns,
        })
    }

    /// Reads them again, at this time. A zone that can't be read once is lost: what it uses meanwhile is not known.
    pub fn read(&mut self, host: &Host, now_ns: u64) {
        for (zone, used) in &mut self.zones {
            let Ok(tally) = used else { continue };
            match zone.energy_uj(host) {
                Ok(now_uj) => tally.add(zone, now_uj),
                Err(error) => *used = Err(format!("it stopped to be readable: {error}")),
            }
        }
        self.readings += u32::from(!self.zones.is_empty());
        self.longest_gap_ns = self.longest_gap_ns.max(now_ns.saturating_sub(self.last_ns));
        self.last_ns = now_ns;
    }

    /// Time between the first and the last reading, nanoseconds.
    pub fn span_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// Reads them every `interval` while `during` runs, and once afterwards.
    ///
    /// # Errors
    /// When there is no clock, or the thread that reads panicked.
    pub fn watch<T>(
        &mut self,
        host: &Host,
        interval: Duration,
        during: impl FnOnce() -> T,
    ) -> Result<T> {
        if self.zones.is_empty() {
            return Ok(during());
        }
        let step = || {
            // Without a clock, the reading at the end says so.
            if let Ok(now_ns) = monotonic_ns() {
                self.read(host, now_ns);
            }
        };
        let done = meanwhile(interval, step, during)?;
        self.read(host, monotonic_ns()?);
        Ok(done)
    }
}

/// What the management controller said: watts, `None` where it did not answer in time; or why it says nothing.
pub(super) type Readings = std::result::Result<Vec<Option<f64>>, String>;

/// Asks the management controller before, meanwhile and after.
///
/// # Errors
/// When the thread that asks panicked.
pub(super) fn watch_ipmi<T>(host: &Host, during: impl FnOnce() -> T) -> Result<(T, Readings)> {
    let first = match ipmi::find(host) {
        Ok(watts) => watts,
        Err(why) => return Ok((during(), Err(why))),
    };
    let mut readings = vec![Some(first)];
    let done = meanwhile(IPMI_PERIOD, || readings.push(ipmi::watts()), during)?;
    readings.push(ipmi::watts());
    Ok((done, Ok(readings)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        set(&host, "name", "package-0\n");
        set(&host, "max_energy_range_uj", "1000\n");
        (dir, host)
    }

    fn set(host: &Host, file: &str, text: &str) {
        let base = host.path("sys/class/powercap/intel-rapl:0");
        std::fs::create_dir_all(&base).unwrap();
        // As a kernel does it, with no moment at which there is nothing to read.
        std::fs::write(base.join("new"), text).unwrap();
        std::fs::rename(base.join("new"), base.join(file)).unwrap();
    }

    fn used(zones: &Zones) -> u64 {
        zones.zones[0].1.as_ref().unwrap().used_uj
    }

    #[test]
    fn a_counter_that_goes_round_several_times_is_followed() {
        let (_dir, host) = machine();
        set(&host, "energy_uj", "900");
        let mut zones = Zones::begin(&host).unwrap();
        let start_ns = zones.first_ns;
        for reading in 1..=10_u64 {
            set(
                &host,
                "energy_uj",
                &((900 + reading * 700) % 1_000).to_string(),
            );
            zones.read(&host, start_ns + reading * 5 + reading / 10 * 20);
        }
        assert_eq!(used(&zones), 7_000);
        assert_eq!((zones.readings, zones.span_ns()), (11, 70));
        assert_eq!(zones.longest_gap_ns, 25);
    }

    #[test]
    fn it_is_read_while_something_else_goes_on() {
        let (_dir, host) = machine();
        set(&host, "energy_uj", "10");
        let mut zones = Zones::begin(&host).unwrap();
        // Twice round: what the two readings alone would never tell.
        let seen = zones.watch(&host, Duration::from_millis(1), || {
            for now_uj in ["900", "100", "990", "50"] {
                set(&host, "energy_uj", now_uj);
                std::thread::sleep(Duration::from_millis(100));
            }
            17
        });
        assert_eq!((seen.unwrap(), used(&zones)), (17, 2_040));
    }

    #[test]
    fn a_zone_that_goes_is_lost_and_not_zero() {
        let (dir, host) = machine();
        let zones = Zones::begin(&host).unwrap();
        assert!(zones.zones.is_empty(), "a zone without a counter is none");
        set(&host, "energy_uj", "10");
        let mut zones = Zones::begin(&host).unwrap();
        std::fs::remove_dir_all(dir.path().join("sys")).unwrap();
        zones.read(&host, zones.first_ns + 1);
        let why = zones.zones[0].1.as_ref().unwrap_err();
        assert!(why.contains("energy_uj"), "{why}");
        // It does not come back: what it used meanwhile is not known.
        set(&host, "energy_uj", "20");
        zones.read(&host, zones.first_ns + 2);
        assert!(zones.zones[0].1.is_err());
        let none = Zones::begin(&Host::at("/nonexistent")).unwrap();
        assert_eq!((none.zones.len(), none.readings), (0, 0));
    }
}
