// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which idle states a poller's CPU may enter while packets are to be expected: whether there is anything to limit.
//!
//! The limit is the module's, and ends with the poller; nothing is written here.

use std::ops::RangeInclusive;

use crate::error::Error;
use crate::host::Host;

/// Exit latencies that the module takes, microseconds.
pub const MAX_CSTATE_LATENCY_US: RangeInclusive<u32> = 0..=30_000;

/// How long the exit of the deepest idle state takes that this CPU may enter, microseconds.
///
/// # Errors
/// When it has no idle states, or none whose exit takes longer than `max_us`, so that there is nothing to keep away.
pub fn deep_exit_us(host: &Host, cpu: u32, max_us: u32) -> Result<u32, Error> {
    let Some(deepest_us) = host.deepest_idle_exit_us(cpu)? else {
        return Err(Error::Unsupported(format!(
            "CPU {cpu} has no idle states to choose from here: no cpuidle driver has it, as in most virtual machines, \
             whose hosts choose"
        )));
    };
    if deepest_us <= max_us.into() {
        return Err(Error::Conflict(format!(
            "CPU {cpu} wakes up within {deepest_us} us out of every idle state that it may enter; a limit of {max_us} us keeps \
             none away"
        )));
    }
    let most = *MAX_CSTATE_LATENCY_US.end();
    Ok(u32::try_from(deepest_us).map_or(most, |us| us.min(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_is_the_deepest_that_is_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        let none = deep_exit_us(&host, 2, 20).unwrap_err();
        assert!(none.to_string().contains("no idle states"), "{none}");
        for (number, latency, disable) in [(0, "0", "0"), (1, "200", "0"), (2, "5000000", "1")] {
            let base = host.path(&format!(
                "sys/devices/system/cpu/cpu2/cpuidle/state{number}"
            ));
            std::fs::create_dir_all(&base).unwrap();
            for (file, text) in [("latency", latency), ("disable", disable)] {
                std::fs::write(base.join(file), format!("{text}\n")).unwrap();
            }
        }
        assert_eq!(deep_exit_us(&host, 2, 199).unwrap(), 200);
        let shallow = deep_exit_us(&host, 2, 200).unwrap_err();
        assert!(shallow.to_string().contains("keeps none away"), "{shallow}");
        let disable = "sys/devices/system/cpu/cpu2/cpuidle/state2/disable";
        std::fs::write(host.path(disable), "0\n").unwrap();
        assert_eq!(deep_exit_us(&host, 2, 20).unwrap(), 30_000);
    }
}
