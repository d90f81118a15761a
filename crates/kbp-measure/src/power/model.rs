// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model of an estimate: named figures, each with where it is from.
//!
//! Not here: any figure in the code; the default is a file too ([`DEFAULT`]).

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::report::{CpuReport, Estimate, Known};
use crate::error::{Error, Result};

/// The model that is taken unless another is given.
pub const DEFAULT: &str = include_str!("../../assets/power-model.toml");

/// More than a CPU can draw, watts.
const CPU_WATTS_MAX: f64 = 1_000.0;

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Power of a CPU that is busy all the time over that of one at rest, watts.
    pub polling_cpu_watts: Constant,
}

/// A figure of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// The figure.
    pub value: f64,
    /// Where it is from.
    pub source: String,
}

impl Model {
    /// Reads a model's text; `place` is what an error calls it.
    ///
    /// # Errors
    /// When it is no model, or a figure makes no sense or has no source.
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        let wrong = |what: String| {
            Error::Invalid(format!(
                "{place} is no power model: {what}; `kbp measure power --print-model` prints one"
            ))
        };
        let model: Self = toml::from_str(text).map_err(|e| wrong(e.message().to_owned()))?;
        let Constant { value, source } = &model.polling_cpu_watts;
        if !(*value > 0.0 && *value <= CPU_WATTS_MAX) {
            return Err(wrong(format!(
                "polling_cpu_watts is {value}, and has to be above 0 and at most {CPU_WATTS_MAX}"
            )));
        }
        if source.trim().is_empty() {
            return Err(wrong("polling_cpu_watts does not say its source".into()));
        }
        Ok(model)
    }

    /// Reads a model's file, or the default.
    ///
    /// # Errors
    /// See [`Model::parse`]; also when the file can't be read.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Self::parse(DEFAULT, "the default model");
        };
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::Core(kbp_core::Error::NotFound(format!(
                "there is no power model {}; `kbp measure power --print-model` prints one",
                path.display()
            ))),
            _ => Error::file("read", path, e),
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// What busy CPUs draw more than resting ones, by this model.
    pub fn estimate(&self, cpus: &[CpuReport], span_seconds: f64) -> Known<Estimate> {
        let mut busy_cpus = 0.0;
        for cpu in cpus {
            match &cpu.time {
                Known::Is(time) => busy_cpus += time.busy_ratio,
                Known::Not { why_not } => {
                    return Known::not(format!(
                        "how busy CPU {} was is not known: {why_not}",
                        cpu.cpu
                    ));
                }
            }
        }
        Known::Is(self.of_busy(busy_cpus, span_seconds))
    }

    /// The same for this sum of the busy shares of CPUs.
    pub fn of_busy(&self, busy_cpus: f64, span_seconds: f64) -> Estimate {
        let watts = busy_cpus * self.polling_cpu_watts.value;
        Estimate {
            extra_power_watts: watts,
            extra_energy_joules: watts * span_seconds,
            busy_cpus,
            polling_cpu_watts: self.polling_cpu_watts.value,
            model: self.name.clone(),
            source: self.polling_cpu_watts.source.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_model_with_sources() {
        let model = Model::load(None).unwrap();
        assert!(model.polling_cpu_watts.source.contains("section 5.1"));
    }

    #[test]
    fn what_is_no_model_is_refused_with_its_fault() {
        let good = "name = 'x'\n[polling_cpu_watts]\nvalue = 4\nsource = 'my meter'\n";
        assert_eq!(
            Model::parse(good, "x").unwrap().polling_cpu_watts.value,
            4.0
        );
        for (from, to, fault) in [
            ("value = 4", "value = 0", "above 0"),
            ("value = 4", "value = nan", "above 0"),
            ("value = 4", "value = 'much'", "invalid type"),
            ("value = 4", "", "value"),
            ("'my meter'", "' '", "source"),
            ("name", "idle_watts = 3\nname", "idle_watts"),
            ("[polling", "[sleeping", "sleeping_cpu_watts"),
            ("= 'x'", "=", "name"),
        ] {
            let text = good.replacen(from, to, 1);
            let error = Model::parse(&text, "my.toml").unwrap_err();
            let said = error.to_string();
            assert_eq!(error.class(), kbp_core::Class::Usage);
            assert!(
                said.contains("my.toml") && said.contains("--print-model"),
                "{said}"
            );
            if fault != "name" {
                assert!(said.contains(fault), "{fault}: {said}");
            }
        }
        let missing = Path::new("/nonexistent/model.toml");
        let error = Model::load(Some(missing)).unwrap_err();
        assert_eq!(error.class(), kbp_core::Class::NotFound);
    }
}
