// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a result was made: begun inside the machine, completed outside.
//!
//! Inside, the kernel and the clock are known. What only the lab knows (QEMU, how it was
//! started, the check of the virtual clock) it leaves as `machine.json` beside the result
//! when the run is over.
//!
//! Not here: the check of the clock itself, and its limits; the lab has them.

use std::path::Path;
use std::time::SystemTime;

use clap::ValueEnum;
use kbp_core::Host;
use kbp_lab::{Clock, TurnCheck};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::result::{Config, ResultFile, SCHEMA};

/// Begins a result on the machine that is measured.
///
/// `clock` is what the lab says about it; without a lab it is a real one.
///
/// # Errors
/// When the kernel does not say what it is.
pub fn begin_result(clock: Option<&str>, git: Option<&str>, config: Config) -> Result<ResultFile> {
    Ok(ResultFile {
        config: Some(config),
        ..begin_rows(clock, git)?
    })
}

/// The same for rows that say themselves how they were measured.
///
/// # Errors
/// When the kernel does not say what it is.
pub fn begin_rows(clock: Option<&str>, git: Option<&str>) -> Result<ResultFile> {
    let host = Host::system();
    Ok(ResultFile {
        schema: SCHEMA.into(),
        clock: clock.unwrap_or("real").into(),
        kernel: host.kernel_release().map_err(kbp_core::Error::from)?,
        qemu: None,
        cmdline: host
            .read_trimmed("proc/cmdline")
            .map_err(kbp_core::Error::from)?,
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        git: git.unwrap_or("unknown").into(),
        machine: Value::Null,
        config: None,
        partial: false,
        not_run: Vec::new(),
        rows: Vec::new(),
    })
}

/// Completes a result with the lab's `machine.json`.
///
/// # Errors
/// When that file can't be read, is of another machine than the result, or says that the
/// clock was not fair.
pub fn complete_result(file: &mut ResultFile, machine_path: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(machine_path).map_err(|e| Error::file("read", machine_path, e))?;
    let refuse = |why: String| Error::Schema {
        path: machine_path.to_owned(),
        why,
    };
    let machine: Value =
        serde_json::from_str(&text).map_err(|e| refuse(format!("this is not JSON: {e}")))?;
    for (key, ours) in [("kernel", &file.kernel), ("clock", &file.clock)] {
        if machine[key].as_str() != Some(ours) {
            let why = format!(
                "its {key} is {}, that of the result is {ours}",
                machine[key]
            );
            return Err(refuse(why));
        }
    }
    if let Some(why) = unfair(file, &machine) {
        return Err(refuse(why));
    }
    file.qemu = machine["qemu"].as_str().map(str::to_owned);
    file.machine = machine;
    Ok(())
}

/// The lab's check of a clock that counts instructions; `None` where there was none.
pub fn turns(machine: &Value) -> Option<TurnCheck> {
    serde_json::from_value(machine["turns"].clone()).ok()
}

/// What the lab would refuse is not completed, whoever brings the file.
fn unfair(file: &ResultFile, machine: &Value) -> Option<String> {
    let clock = Clock::from_str(&file.clock, false).ok()?;
    if !clock.counts_instructions() {
        return None;
    }
    let cpus = machine["cpus"]
        .as_u64()
        .and_then(|cpus| cpus.try_into().ok());
    match (turns(machine), cpus) {
        (Some(turns), Some(cpus)) => turns
            .refusal(clock, cpus)
            .map(|why| format!("the clock was not fair: {why}")),
        _ => Some(format!("it has no check of the {clock} clock")),
    }
}

#[cfg(test)]
mod tests {
    use kbp_lab::BACK_NS_LIMIT;

    use super::*;
    use crate::result::tests::sample;

    fn complete(text: &str) -> Result<ResultFile> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine.json");
        std::fs::write(&path, text).unwrap();
        let mut file = ResultFile {
            qemu: None,
            machine: Value::Null,
            ..sample()
        };
        complete_result(&mut file, &path).map(|()| file)
    }

    fn machine(kernel: &str, turn_ns: u64) -> String {
        format!(
            r#"{{"clock":"virtual","kernel":"{kernel}","qemu":"10.0.2","cpus":4,
               "turns":{{"turn_ns_max":{turn_ns},"gap_ns_max":0,"back_ns_max":0,"cpus":4}}}}"#
        )
    }

    #[test]
    fn cpus_of_the_parallel_clock_may_be_apart_by_a_little() {
        let file = ResultFile {
            clock: "parallel".into(),
            ..sample()
        };
        let refusal = |turns: &str| unfair(&file, &serde_json::from_str(turns).unwrap());
        let apart = |back_ns: u64| {
            format!(
                r#"{{"cpus":4,"turns":{{"turn_ns_max":4000000,"gap_ns_max":0,"back_ns_max":{back_ns},"cpus":4}}}}"#
            )
        };
        assert_eq!(refusal(&apart(BACK_NS_LIMIT)), None);
        assert!(refusal(&apart(BACK_NS_LIMIT + 1))
            .unwrap()
            .contains("501 ns behind"));
        assert!(refusal("{}").unwrap().contains("no check"));
    }

    #[test]
    fn the_labs_record_completes_the_result() {
        let kernel = sample().kernel;
        let file = complete(&machine(&kernel, 20_000)).unwrap();
        assert_eq!(file.qemu.as_deref(), Some("10.0.2"));
        assert_eq!(turns(&file.machine).unwrap().turn_ns_max, 20_000);
    }

    #[test]
    fn another_machine_or_an_unfair_clock_is_refused() {
        let refusal = |text: &str| complete(text).unwrap_err().to_string();
        let kernel = sample().kernel;
        let unfair = refusal(&machine(&kernel, 20_001));
        assert!(unfair.contains("not fair"), "{unfair}");
        let other = refusal(&machine("9.9", 1_000));
        assert!(other.contains("kernel is \"9.9\""), "{other}");
        let unchecked = refusal(&format!(r#"{{"clock":"virtual","kernel":"{kernel}"}}"#));
        assert!(unchecked.contains("no check"), "{unchecked}");
    }

    #[test]
    fn a_machine_without_a_lab_is_a_real_one() {
        let file = begin_result(None, None, sample().config.unwrap()).unwrap();
        assert_eq!(
            (file.clock.as_str(), file.git.as_str()),
            ("real", "unknown")
        );
        assert_eq!(file.kernel, Host::system().kernel_release().unwrap());
        assert!(file.date.ends_with('Z'), "{}", file.date);
    }
}
