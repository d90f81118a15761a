// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A study file: machines, and the runs that are made on each.
//!
//! ```toml
//! [run.nic]                     # a run: arguments of `kbp compare`
//! args = ["--paths", "nic", "--loads", "idle,storm"]
//!
//! [[machine]]
//! name = "6.1"                  # folder of its results
//! kernel = "6.1"                # id in kernels.toml
//! nics = "2"
//! modules = ["kmod"]
//! runs = ["nic"]
//! args = ["--rounds", "2"]      # more arguments for each of its runs
//! ```
//!
//! Not here: running it ([`super::run`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use kbp_lab::{Clock, Nics};
use serde::{Deserialize, Serialize};

use crate::compare::plan::Plan;
use crate::error::{Error, Result};

/// A study.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Runs by name.
    pub run: BTreeMap<String, Run>,
    /// Machines.
    #[serde(rename = "machine")]
    pub machines: Vec<Machine>,
}

/// A run: what `kbp compare` is told.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Arguments of `kbp compare`.
    pub args: Vec<String>,
    /// Name of the result that it is a part of; runs of one result differ in their paths only.
    #[serde(default = "result")]
    pub result: String,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name, also of the folder of its results.
    pub name: String,
    /// The kernel's id in `kernels.toml`.
    pub kernel: String,
    /// `virtual` or `real`.
    #[serde(default = "virtual_clock")]
    pub clock: String,
    /// CPUs.
    #[serde(default = "four")]
    pub cpus: u32,
    /// Memory, MiB.
    #[serde(default = "memory")]
    pub memory_mib: u32,
    /// Network cards, as `kbp lab run --nics` takes them.
    #[serde(default = "two_nics")]
    pub nics: String,
    /// More words for the kernel's command line.
    #[serde(default)]
    pub append: String,
    /// Folders of modules to build.
    #[serde(default)]
    pub modules: Vec<PathBuf>,
    /// Debian packages.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Time limit of a run, seconds of the host.
    #[serde(default = "half_an_hour")]
    pub timeout_s: u64,
    /// Names of its runs.
    pub runs: Vec<String>,
    /// More arguments of `kbp compare` for each of its runs.
    #[serde(default)]
    pub args: Vec<String>,
}

fn result() -> String {
    "result".into()
}

fn virtual_clock() -> String {
    "virtual".into()
}

fn four() -> u32 {
    4
}

fn memory() -> u32 {
    256
}

fn two_nics() -> String {
    "2".into()
}

fn half_an_hour() -> u64 {
    1_800
}

/// A run on a machine: what is done once, and the least that is done again after a break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The machine.
    pub machine: Machine,
    /// Name of the run.
    pub run: String,
    /// Name of the result that it is a part of.
    pub result: String,
    /// Arguments of `kbp compare`.
    pub args: Vec<String>,
    /// How many cells that is.
    pub cells: usize,
}

impl Unit {
    /// `MACHINE/RUN`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.machine.name, self.run)
    }

    /// Everything that its figures depend on, in a form that is compared.
    pub fn identity(&self) -> serde_json::Value {
        let machine = Machine {
            // Neither changes what one run measures.
            runs: vec![],
            timeout_s: 0,
            ..self.machine.clone()
        };
        serde_json::json!({ "machine": machine, "args": self.args })
    }
}

impl Study {
    /// Reads a study file and checks everything that can be checked without a machine.
    ///
    /// # Errors
    /// When it can't be read, has keys that there are not, or names what there is not.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::file("read", path, e))?;
        let wrong = |why: String| Error::Invalid(format!("{}: {why}", path.display()));
        let study: Self = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        study.check().map_err(wrong)?;
        Ok(study)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let mut seen = std::collections::BTreeSet::new();
        for machine in &self.machines {
            let name = &machine.name;
            if !is_folder_name(name) {
                return Err(format!(
                    "the machine '{name}' needs a name that a folder can have"
                ));
            }
            if !seen.insert(name) {
                return Err(format!("there are two machines '{name}'"));
            }
            Clock::from_str(&machine.clock, false)
                .map_err(|why| format!("machine {name}: clock: {why}"))?;
            machine
                .nics
                .parse::<Nics>()
                .map_err(|why| format!("machine {name}: nics: {why}"))?;
            for run in &machine.runs {
                if !self.run.contains_key(run) {
                    return Err(format!("machine {name}: there is no run '{run}'"));
                }
            }
        }
        let odd = self
            .run
            .iter()
            .find(|(name, run)| !is_folder_name(name) || !is_folder_name(&run.result));
        odd.map_or(Ok(()), |(name, _)| {
            Err(format!("the run '{name}' needs names that a file can have"))
        })
    }

    /// The units, the machines' first runs first: so something of every machine is there early.
    ///
    /// `plan` reads the arguments of `kbp compare`.
    ///
    /// # Errors
    /// Those of `plan`, with the unit's name.
    pub fn units(&self, plan: impl Fn(&[String]) -> Result<Plan>) -> Result<Vec<Unit>> {
        let most = self
            .machines
            .iter()
            .map(|m| m.runs.len())
            .max()
            .unwrap_or(0);
        let mut units = Vec::new();
        for place in 0..most {
            for machine in self.machines.iter().filter(|m| place < m.runs.len()) {
                let name = &machine.runs[place];
                let run = &self.run[name];
                let args = [run.args.as_slice(), &machine.args].concat();
                let cells = plan(&args)
                    .and_then(|plan| plan.cells(1))
                    .map_err(|error| Error::Invalid(format!("{}/{name}: {error}", machine.name)))?;
                units.push(Unit {
                    machine: machine.clone(),
                    run: name.clone(),
                    result: run.result.clone(),
                    args,
                    cells: cells.len(),
                });
            }
        }
        Ok(units)
    }
}

fn is_folder_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = r#"
        [run.nic]
        args = ["--paths", "nic"]
        [run.veth]
        args = ["--paths", "veth"]
        [[machine]]
        name = "old"
        kernel = "a"
        runs = ["nic", "veth"]
        [[machine]]
        name = "new"
        kernel = "b"
        clock = "real"
        runs = ["nic"]
        args = ["--rounds", "3"]
    "#;

    fn load(text: &str) -> Result<Study> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("study.toml");
        std::fs::write(&path, text).unwrap();
        Study::load(&path)
    }

    fn plan(_: &[String]) -> Result<Plan> {
        Ok(crate::compare::plan::tests::plan(1, &[1], 3, 2))
    }

    #[test]
    fn units_are_the_runs_of_the_machines() {
        let units = load(STUDY).unwrap().units(plan).unwrap();
        let names: Vec<String> = units.iter().map(Unit::name).collect();
        assert_eq!(names, ["old/nic", "new/nic", "old/veth"]);
        assert_eq!(units[1].args, ["--paths", "nic", "--rounds", "3"]);
        assert_eq!(units[0].cells, 7);
        assert_ne!(units[0].identity(), units[1].identity());
        let mut slower = units[0].clone();
        slower.machine.timeout_s = 9;
        assert_eq!(slower.identity(), units[0].identity());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal =
            |from: &str, to: &str| load(&STUDY.replace(from, to)).unwrap_err().to_string();
        assert!(refusal("\"real\"", "\"sundial\"").contains("machine new: clock"));
        assert!(refusal("\"new\"", "\"old\"").contains("two machines 'old'"));
        assert!(refusal("\"new\"", "\"../x\"").contains("folder"));
        assert!(refusal("[\"nic\"]", "[\"wire\"]").contains("no run 'wire'"));
        assert!(refusal("clock =", "watch =").contains("watch"));
        let error = load(STUDY)
            .unwrap()
            .units(|_| Err(Error::Invalid("no".into())));
        assert_eq!(error.unwrap_err().to_string(), "old/nic: no");
    }
}
