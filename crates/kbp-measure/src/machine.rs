// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a result was made: begun inside the machine, completed outside.
//!
//! Inside, the kernel and the clock are known. What only the lab knows (QEMU, how it was
//! started, the check of the virtual clock) it leaves as `machine.json` beside the result
//! when the run is over.
//!
//! Not here: the check of the virtual clock itself; the lab makes it.

use std::path::Path;
use std::time::SystemTime;

use kbp_core::Host;
use kbp_lab::BACK_NS_LIMIT;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::result::{Config, ResultFile, SCHEMA};

/// Longest turn of a virtual CPU with which figures still mean something, nanoseconds.
pub const TURN_NS_MAX: u64 = 20_000;

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
/// virtual clock was not fair.
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

/// The longest turn of a virtual CPU that the lab saw, nanoseconds.
pub fn longest_turn_ns(machine: &Value) -> Option<u64> {
    machine["turns"]["turn_ns_max"].as_u64()
}

/// By how much one CPU's clock was seen behind another's, nanoseconds.
pub fn apart_ns(machine: &Value) -> Option<u64> {
    machine["turns"]["back_ns_max"].as_u64()
}

fn unfair(file: &ResultFile, machine: &Value) -> Option<String> {
    match file.clock.as_str() {
        "virtual" => {}
        "parallel" => return apart(machine),
        _ => return None,
    }
    match longest_turn_ns(machine) {
        None => Some("it has no check of the virtual clock".into()),
        Some(turn_ns) if turn_ns > TURN_NS_MAX => Some(format!(
            "a virtual CPU kept its turn for {turn_ns} ns, above {TURN_NS_MAX} ns: the clock was \
             not fair, and its figures would mean nothing"
        )),
        Some(_) => None,
    }
}

/// The CPUs of the parallel clock may be apart by a little.
fn apart(machine: &Value) -> Option<String> {
    match apart_ns(machine) {
        None => Some("it has no check of the parallel clock".into()),
        Some(back_ns) if back_ns > BACK_NS_LIMIT => Some(format!(
            "a virtual CPU's clock was {back_ns} ns behind another's, above {BACK_NS_LIMIT} ns: figures across CPUs \
             would mean nothing"
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
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
            r#"{{"clock":"virtual","kernel":"{kernel}","qemu":"10.0.2","turns":{{"turn_ns_max":{turn_ns}}}}}"#
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
            format!(r#"{{"turns":{{"turn_ns_max":4000000,"back_ns_max":{back_ns}}}}}"#)
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
        assert_eq!(longest_turn_ns(&file.machine), Some(20_000));
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
