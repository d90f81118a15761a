// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What sets the frequency of a CPU and how it rests, in words for the result: under these every mechanism was measured.
//!
//! Not here: what became of them in a row ([`crate::witness`]).

use kbp_core::Host;

use crate::error::Result;

/// Drivers that only tests bring, and what they are not.
const TEST_DRIVERS: [(&str, &str); 2] = [
    (
        "kbp_testfreq",
        "A driver for tests: it counts changes and takes their time, and the CPU is as fast at every frequency",
    ),
    (
        "kbp_testidle",
        "A driver for tests: leaving a state takes its time, and no state saves anything",
    ),
];

fn said_of(driver: &str) -> String {
    let known = TEST_DRIVERS.iter().find(|(name, _)| *name == driver);
    known.map_or(String::new(), |(_, words)| format!(". {words}"))
}

/// The frequency of a CPU; `None` without a cpufreq driver.
///
/// # Errors
/// When what is there can't be read.
pub fn frequency(host: &Host, cpu: u32) -> Result<Option<String>> {
    let file = |name: &str| format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}");
    let read = |name: &str| -> Result<Option<String>> {
        let text = host.read_optional(&file(name));
        Ok(text.map_err(kbp_core::Error::from)?)
    };
    let Some(driver) = read("scaling_driver")? else {
        return Ok(None);
    };
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let latency_ns: Option<u64> =
        read("cpuinfo_transition_latency")?.and_then(|ns| ns.parse().ok());
    let latency = latency_ns.map_or(String::new(), |ns| {
        format!(", a change takes {} µs", ns as f64 / 1e3)
    });
    Ok(Some(format!(
        "CPU {cpu}: {driver}, governor {} where no mechanism brings its own, {} to {} kHz{latency}{}",
        or_unknown(read("scaling_governor")?),
        or_unknown(read("scaling_min_freq")?),
        or_unknown(read("scaling_max_freq")?),
        said_of(&driver)
    )))
}

/// The idle states of a CPU; `None` without a cpuidle driver.
///
/// # Errors
/// When what is there can't be read.
pub fn idle(host: &Host, cpu: u32) -> Result<Option<String>> {
    let Some(states) = host.idle_states(cpu).map_err(kbp_core::Error::from)? else {
        return Ok(None);
    };
    let read = |file: &str| -> Result<String> {
        let text = host.read_optional(&format!("sys/devices/system/cpu/cpuidle/{file}"));
        let text = text.map_err(kbp_core::Error::from)?;
        Ok(text.unwrap_or_else(|| "unknown".into()))
    };
    let driver = read("current_driver")?;
    let names: Vec<&str> = states.iter().map(|state| state.name.as_str()).collect();
    Ok(Some(format!(
        "CPU {cpu}: {driver}, governor {}, states {}{}",
        read("current_governor_ro")?,
        names.join(", "),
        said_of(&driver)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_is_said_and_a_driver_for_tests_is_called_one() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::at(dir.path());
        assert_eq!(frequency(&host, 2).unwrap(), None);
        assert_eq!(idle(&host, 2).unwrap(), None);
        for (file, text) in [
            ("cpu2/cpufreq/scaling_driver", "kbp_testfreq"),
            ("cpu2/cpufreq/scaling_governor", "performance"),
            ("cpu2/cpufreq/scaling_min_freq", "800000"),
            ("cpu2/cpufreq/scaling_max_freq", "2400000"),
            ("cpu2/cpufreq/cpuinfo_transition_latency", "20000"),
            ("cpu2/cpuidle/state0/name", "C1"),
            ("cpu2/cpuidle/state0/usage", "1"),
            ("cpu2/cpuidle/state0/time", "1"),
            ("cpuidle/current_driver", "acpi_idle"),
            ("cpuidle/current_governor_ro", "menu"),
        ] {
            let path = host.path(&format!("sys/devices/system/cpu/{file}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let words = frequency(&host, 2).unwrap().unwrap();
        assert!(words.contains("governor performance"), "{words}");
        assert!(
            words.contains("a change takes 20 µs. A driver for tests"),
            "{words}"
        );
        let words = idle(&host, 2).unwrap().unwrap();
        assert_eq!(words, "CPU 2: acpi_idle, governor menu, states C1");
    }
}
