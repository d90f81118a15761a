// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long CPUs rested, and how deeply: /sys/devices/system/cpu/cpuN/cpuidle.
//!
//! The kernel counts a rest when it ends, so one that still goes on is in no figure. Nothing here changes or forbids a
//! state.

use crate::host::{Host, HostError};

/// An idle state of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// Its name (`POLL`, `C1E`).
    pub name: String,
    /// Time that the CPU spent in it since boot, microseconds.
    pub time_us: u64,
    /// How often the CPU entered it since boot.
    pub entries: u64,
    /// Whether somebody forbade it.
    pub is_disabled: bool,
}

impl Host {
    /// The idle states of a CPU in the order of their depth; `None` where the kernel has none for it.
    ///
    /// # Errors
    /// When they are there and can't be read.
    pub fn idle_states(&self, cpu: u32) -> Result<Option<Vec<IdleState>>, HostError> {
        let dirs = self.idle_state_dirs(cpu)?;
        if dirs.is_empty() {
            return Ok(None);
        }
        let states = dirs.iter().map(|base| {
            Ok(IdleState {
                name: self.read_trimmed(&format!("{base}/name"))?,
                time_us: self.read_number(&format!("{base}/time"))?,
                entries: self.read_number(&format!("{base}/usage"))?,
                is_disabled: self.is_idle_state_disabled(base)?,
            })
        });
        states.collect::<Result<_, _>>().map(Some)
    }

    /// How long waking a CPU takes out of the deepest idle state that nobody forbade, by its driver, microseconds; `None`
    /// where the kernel has none for it.
    ///
    /// # Errors
    /// When they are there and can't be read.
    pub fn deepest_idle_exit_us(&self, cpu: u32) -> Result<Option<u64>, HostError> {
        let mut deepest_us = None;
        for base in self.idle_state_dirs(cpu)? {
            if !self.is_idle_state_disabled(&base)? {
                deepest_us = deepest_us.max(Some(self.read_number(&format!("{base}/latency"))?));
            }
        }
        Ok(deepest_us)
    }

    fn idle_state_dirs(&self, cpu: u32) -> Result<Vec<String>, HostError> {
        let base = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle");
        let entries = self.list(&base)?;
        let mut numbers: Vec<u32> = entries
            .iter()
            .filter_map(|entry| entry.strip_prefix("state")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let dir = |number| format!("{base}/state{number}");
        Ok(numbers.into_iter().map(dir).collect())
    }

    fn is_idle_state_disabled(&self, base: &str) -> Result<bool, HostError> {
        let text = self.read_optional(&format!("{base}/disable"))?;
        Ok(text.is_some_and(|text| text != "0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_by_their_depth() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        assert_eq!(host.idle_states(3).unwrap(), None);
        for (number, disable) in [(10, "1"), (2, "0")] {
            let base = host.path(&format!(
                "sys/devices/system/cpu/cpu3/cpuidle/state{number}"
            ));
            std::fs::create_dir_all(&base).unwrap();
            for (file, text) in [
                ("name", format!("C{number}")),
                ("time", format!("{number}000")),
                ("usage", number.to_string()),
                ("disable", disable.into()),
            ] {
                std::fs::write(base.join(file), text + "\n").unwrap();
            }
        }
        let state = |number: u64, is_disabled| IdleState {
            name: format!("C{number}"),
            time_us: number * 1_000,
            entries: number,
            is_disabled,
        };
        let states = host.idle_states(3).unwrap();
        assert_eq!(states, Some(vec![state(2, false), state(10, true)]));
        std::fs::remove_file(host.path("sys/devices/system/cpu/cpu3/cpuidle/state2/time")).unwrap();
        assert!(host.idle_states(3).is_err(), "a counter is missing");
    }
}
