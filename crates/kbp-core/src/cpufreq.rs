// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel counted of the frequencies of CPUs: /sys/devices/system/cpu/cpuN/cpufreq.
//!
//! These are the frequencies that were asked for. What a CPU really ran at only its own clocks say
//! ([`crate::msr_pmu`]). Nothing here sets a frequency.

use std::collections::BTreeMap;

use crate::host::{Host, HostError};

/// Length of a unit of `time_in_state`, nanoseconds: the kernel's `USER_HZ` is 100.
pub const STATE_TICK_NS: u64 = 10_000_000;

/// What cpufreq has about a CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frequencies {
    /// Name of its driver (`acpi-cpufreq`).
    pub driver: String,
    /// How often the frequency was changed since boot; `None` where the driver keeps no statistics.
    pub changes: Option<u64>,
    /// Time at each frequency (kHz) since boot, in units of [`STATE_TICK_NS`], idle time included; `None` as above.
    pub times: Option<BTreeMap<u64, u64>>,
}

/// Read the text of `time_in_state`: lines with a frequency in kHz and a time. `None` when it is something else.
fn parse_times(text: &str) -> Option<BTreeMap<u64, u64>> {
    let lines = text.lines().map(|line| {
        let (khz, ticks) = line.split_once(' ')?;
        Some((khz.parse().ok()?, ticks.trim().parse().ok()?))
    });
    lines.collect()
}

impl Host {
    /// The frequencies of a CPU; `None` where the kernel does not control them.
    ///
    /// # Errors
    /// When they are there and can't be read.
    pub fn frequencies(&self, cpu: u32) -> Result<Option<Frequencies>, HostError> {
        let base = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
        let Some(driver) = self.read_optional(&format!("{base}/scaling_driver"))? else {
            return Ok(None);
        };
        let file = format!("{base}/stats/time_in_state");
        let times = match self.read_optional(&file)? {
            Some(text) => Some(parse_times(&text).ok_or_else(|| {
                self.malformed(&file, "its lines are not a frequency and a time each")
            })?),
            None => None,
        };
        let file = format!("{base}/stats/total_trans");
        let changes = match self.exists(&file) {
            true => Some(self.read_number(&file)?),
            false => None,
        };
        Ok(Some(Frequencies {
            driver,
            changes,
            times,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_statistics() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        let write = |file: &str, text: &str| {
            let path = host.path(&format!("sys/devices/system/cpu/cpu1/cpufreq/{file}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(host.frequencies(1).unwrap(), None);
        write("scaling_driver", "intel_pstate\n");
        let found = host.frequencies(1).unwrap().unwrap();
        assert_eq!((found.changes, found.times), (None, None));
        write("stats/total_trans", "17\n");
        write("stats/time_in_state", "2800000 40\n1200000 2\n");
        let found = host.frequencies(1).unwrap().unwrap();
        assert_eq!(found.changes, Some(17));
        assert_eq!(
            found.times.unwrap(),
            [(1_200_000, 2), (2_800_000, 40)].into()
        );
        write("stats/time_in_state", "fast\n");
        let error = host.frequencies(1).unwrap_err().to_string();
        assert!(error.contains("time_in_state"), "{error}");
    }
}
