// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a result was made: what the lab left in `machine.json`, completed by the machine
//! itself.
//!
//! Not here: the self-check of the virtual clock; the lab makes it and writes it down.

use std::path::Path;

use kbp_core::Host;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::result::{Config, ResultFile, SCHEMA};

/// Longest turn of a virtual CPU with which figures are still reported, nanoseconds.
const TURN_NS_MAX: u64 = 20_000;

/// What the caller knows and the machine does not.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// Revision of the source.
    pub git: Option<String>,
    /// When the run began, UTC, ISO 8601.
    pub date: Option<String>,
}

/// Begins a result in `dir`, where the lab may have left `machine.json`.
///
/// # Errors
/// When that file can't be understood, or says that the virtual clock is not fair.
pub fn begin_result(dir: &Path, origin: &Origin, config: Config) -> Result<ResultFile> {
    let machine = read_machine(&dir.join("machine.json"))?;
    let host = Host::system();
    let text = |key: &str| machine.get(key).and_then(Value::as_str).map(str::to_owned);
    let kernel = match text("kernel") {
        Some(kernel) => kernel,
        None => host.kernel_release().map_err(kbp_core::Error::from)?,
    };
    let cmdline = host
        .read_trimmed("proc/cmdline")
        .map_err(kbp_core::Error::from)?;
    let unknown = || "unknown".to_owned();
    Ok(ResultFile {
        schema: SCHEMA.into(),
        clock: text("clock").unwrap_or_else(|| "real".into()),
        kernel,
        qemu: text("qemu"),
        cmdline,
        date: origin
            .date
            .clone()
            .or_else(|| text("date"))
            .unwrap_or_else(unknown),
        git: origin
            .git
            .clone()
            .or_else(|| text("git"))
            .unwrap_or_else(unknown),
        machine,
        config: Some(config),
        rows: Vec::new(),
    })
}

/// A missing file is no error: a real machine has none.
fn read_machine(path: &Path) -> Result<Value> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(e) => return Err(Error::file("read", path, e)),
    };
    let schema = |why: String| Error::Schema {
        path: path.to_owned(),
        why,
    };
    let machine: Value =
        serde_json::from_str(&text).map_err(|e| schema(format!("this is not JSON: {e}")))?;
    let turn_ns = machine
        .get("longest_turn_ns")
        .and_then(Value::as_u64)
        .unwrap_or(0);
    if turn_ns > TURN_NS_MAX {
        return Err(schema(format!(
            "the longest turn of a virtual CPU is {turn_ns} ns, above {TURN_NS_MAX} ns: the clock \
             is not fair, and its figures would mean nothing"
        )));
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    fn begin(machine: Option<&str>) -> Result<ResultFile> {
        let dir = tempfile::tempdir().unwrap();
        if let Some(text) = machine {
            std::fs::write(dir.path().join("machine.json"), text).unwrap();
        }
        let origin = Origin {
            git: Some("abc".into()),
            date: None,
        };
        begin_result(dir.path(), &origin, sample().config.unwrap())
    }

    #[test]
    fn the_lab_is_believed_and_the_rest_is_read() {
        let text = r#"{"clock":"virtual","kernel":"6.1.0-55-amd64","qemu":"10.0.2","date":"d"}"#;
        let file = begin(Some(text)).unwrap();
        assert_eq!(
            (file.clock.as_str(), file.qemu.as_deref()),
            ("virtual", Some("10.0.2"))
        );
        assert_eq!((file.git.as_str(), file.date.as_str()), ("abc", "d"));
        let real = begin(None).unwrap();
        assert_eq!(
            (real.clock.as_str(), real.qemu, real.machine),
            ("real", None, Value::Null)
        );
        assert_eq!(real.kernel, Host::system().kernel_release().unwrap());
    }

    #[test]
    fn an_unfair_clock_is_refused() {
        let error = begin(Some(r#"{"longest_turn_ns": 3000000}"#)).unwrap_err();
        assert!(error.to_string().contains("not fair"), "{error}");
        assert!(begin(Some(r#"{"longest_turn_ns": 20000}"#)).is_ok());
    }
}
