// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a result that is there may be continued: only the same measurement on the same machine.
//!
//! Not here: what of it is done ([`super::engine`]).

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::result::ResultFile;

/// The file to measure into: the one at `path` if it was begun as `fresh` would be, or `fresh` if there is none.
///
/// # Errors
/// When the file at `path` is no result or one of another measurement; the sentence names what differs.
pub fn continued(path: &Path, fresh: ResultFile) -> Result<ResultFile> {
    if !path.exists() {
        return Ok(fresh);
    }
    let found = ResultFile::load(path)?;
    let differences = differences(&found, &fresh);
    if differences.is_empty() {
        return Ok(found);
    }
    Err(Error::Invalid(format!(
        "{} holds another measurement; it differs in {}: give another --out, or --restart to discard it",
        path.display(),
        differences.join(", ")
    )))
}

/// What keeps one file from being continued as the other, or from being one file with it; the paths are no difference
/// for the latter and are compared apart.
fn differences(found: &ResultFile, fresh: &ResultFile) -> Vec<String> {
    let mut names = Vec::new();
    for (name, found, fresh) in [
        ("kernel", &found.kernel, &fresh.kernel),
        ("clock", &found.clock, &fresh.clock),
        ("cmdline", &found.cmdline, &fresh.cmdline),
        ("git", &found.git, &fresh.git),
    ] {
        if found != fresh {
            names.push(format!("{name} ({found} there, {fresh} now)"));
        }
    }
    let (found, fresh) = (configuration(found), configuration(fresh));
    collect("config", &found, &fresh, &mut names);
    names
}

/// The configuration without the command, which may be written in more ways than one.
pub(super) fn configuration(file: &ResultFile) -> Value {
    let mut value = serde_json::to_value(&file.config).unwrap_or(Value::Null);
    if let Some(object) = value.as_object_mut() {
        object.remove("command");
    }
    value
}

fn collect(name: &str, found: &Value, fresh: &Value, names: &mut Vec<String>) {
    match (found, fresh) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let null = Value::Null;
                let (a, b) = (a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null));
                collect(&format!("{name}.{key}"), a, b, names);
            }
        }
        (a, b) if a != b => names.push(format!("{name} ({a} there, {b} now)")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn only_the_same_measurement_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.json");
        let fresh = || ResultFile {
            rows: vec![],
            ..sample()
        };
        assert_eq!(continued(&path, fresh()).unwrap(), fresh());
        sample().save(&path).unwrap();
        let mut again = fresh();
        again.config.as_mut().unwrap().command = "another way to say it".into();
        assert_eq!(continued(&path, again).unwrap().rows, sample().rows);

        let mut other = fresh();
        other.config.as_mut().unwrap().plan.as_mut().unwrap().rounds = 9;
        let error = continued(&path, other).unwrap_err().to_string();
        assert!(
            error.contains("config.plan.rounds (1 there, 9 now)"),
            "{error}"
        );
        assert!(error.contains("--restart"), "{error}");
        let mut other = fresh();
        other.kernel = "9.9".into();
        let error = continued(&path, other).unwrap_err().to_string();
        assert!(error.contains("kernel ("), "{error}");
        std::fs::write(&path, "{").unwrap();
        assert!(continued(&path, fresh()).is_err());
    }
}
