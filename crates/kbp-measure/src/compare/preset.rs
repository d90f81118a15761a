// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Comparisons with a name: what is compared when the command line does not say.
//!
//! Not here: the command line ([`crate::cli`]).

use crate::error::{Error, Result};

/// A comparison with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Topologies.
    pub paths: &'static [&'static str],
    /// Loads in blocks.
    pub loads: &'static [&'static [&'static str]],
    /// Mechanisms; none means all that there are.
    pub mechanisms: &'static [&'static str],
    /// Rounds.
    pub rounds: u32,
    /// Length of an idle row, milliseconds.
    pub row_ms: u32,
    /// Length of a row under a load, milliseconds.
    pub loaded_row_ms: u32,
    /// Mechanisms that sockperf measures too.
    pub third_party: &'static [&'static str],
}

/// All of them; the first is what a command without a preset means.
pub const PRESETS: [Preset; 2] = [
    Preset {
        name: "default",
        about: "every mechanism on the path nic, idle, two rounds",
        paths: &["nic"],
        loads: &[&["idle"]],
        mechanisms: &[],
        rounds: 2,
        row_ms: 300,
        loaded_row_ms: 300,
        third_party: &[],
    },
    Preset {
        name: "demo",
        about:
            "what `make demo` shows: idle and in a storm, each mechanism once, sockperf beside it",
        paths: &["nic"],
        loads: &[&["idle"], &["storm"]],
        mechanisms: &["softirq", "threaded", "threaded-fifo", "kbp-busy"],
        rounds: 1,
        row_ms: 500,
        loaded_row_ms: 800,
        third_party: &["softirq", "kbp-busy"],
    },
];

/// A preset by its name.
///
/// # Errors
/// A sentence with the names that there are.
pub fn find(name: &str) -> Result<&'static Preset> {
    let found = PRESETS.iter().find(|preset| preset.name == name);
    found.ok_or_else(|| {
        let all: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        let all = all.join(", ");
        Error::Invalid(format!("there is no preset '{name}'; there are: {all}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{place_of, tables};

    #[test]
    fn presets_name_what_there_is() {
        for preset in &PRESETS {
            assert_eq!(find(preset.name).unwrap(), preset);
            for path in preset.paths {
                place_of::known(path).unwrap();
            }
            for load in preset.loads.concat() {
                tables::load(load).unwrap();
            }
            for mode in preset.mechanisms.iter().chain(preset.third_party) {
                tables::mechanism(mode).unwrap();
            }
        }
        assert!(find("none").unwrap_err().to_string().contains("demo"));
    }
}
