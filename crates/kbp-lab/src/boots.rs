// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job on a machine with a disk: one boot after the other, each with a kernel of its own, on the same disk.
//!
//! The script runs in every boot and is told which one it is. When it has passed, the system goes down in order and the
//! next kernel starts; otherwise the job is over. What the script keeps, it keeps on the disk.
//!
//! Not here: what is on the disk ([`crate::disk`]).

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use crate::config::RootConfig;
use crate::disk::{Recipe, KERNELS_DIR};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::lab::Lab;
use crate::run::{MachineSpec, Outcome, Verdict};

/// For the system's first process: what to start. Cards are called as in all machines of the lab.
const WORDS: &str = "systemd.unit=kbp-lab.target net.ifnames=0";

/// One boot of a disk.
pub(crate) struct Stage<'a> {
    pub root: &'a RootConfig,
    /// This run's copy of the disk.
    pub disk: &'a Path,
    /// Which boot it is, from 1, and of how many.
    pub number: usize,
    pub count: usize,
}

impl Stage<'_> {
    /// Whether another boot follows when the script passes.
    pub(crate) fn is_followed(&self) -> bool {
        self.number < self.count
    }

    /// What the script and the guest's side of the job are told.
    pub(crate) fn settings(&self) -> BTreeMap<&'static str, String> {
        let reboots = if self.is_followed() { "1" } else { "" };
        BTreeMap::from([
            ("LAB_BOOT", self.number.to_string()),
            ("LAB_BOOTS", self.count.to_string()),
            ("LAB_KERNEL_PACKAGES", KERNELS_DIR.to_string()),
            ("JOB_REBOOT", reboots.to_string()),
        ])
    }
}

impl Lab {
    /// Runs a job in all boots of a disk; the outcome is that of the last boot that was made.
    ///
    /// # Errors
    /// As [`Lab::run`], and what keeps the disk from being made.
    pub(crate) fn run_boots(
        &self,
        spec: &MachineSpec,
        name: &str,
        sink: &mut dyn FnMut() -> Box<dyn Write + Send>,
    ) -> Result<Outcome> {
        let root = self.config().root(name)?;
        let ids: Vec<&String> = std::iter::once(&spec.kernel).chain(&spec.then).collect();
        let kernels = self.stock_kernels(&ids)?;
        let recipe = Recipe {
            name,
            root,
            kernels: &kernels,
        };
        let disk = recipe.copy(self.cache(), self.config())?;
        let count = kernels.len();
        for (index, kernel) in kernels.iter().enumerate() {
            let stage = Stage {
                root,
                disk: disk.path(),
                number: index + 1,
                count,
            };
            eprintln!("lab: boot {} of {count}: {}", stage.number, kernel.abi);
            let outcome = self.boot(&spec_of(spec, kernel, &stage), Some(&stage), sink)?;
            if outcome.verdict != Verdict::Pass || !stage.is_followed() {
                return Ok(outcome);
            }
        }
        Err(Error::Argument("no kernel to boot".into()))
    }

    fn stock_kernels(&self, ids: &[&String]) -> Result<Vec<Kernel>> {
        for id in ids {
            if self.config().source.contains_key(*id) {
                return Err(Error::Argument(format!(
                    "the kernel {id} is built from source, so there is no package of it that a Debian on a disk could \
                     install; take a stock kernel"
                )));
            }
        }
        ids.iter().map(|id| self.fetch(id, false)).collect()
    }
}

/// The machine of one boot: what it leaves goes to a folder of its own.
fn spec_of(spec: &MachineSpec, kernel: &Kernel, stage: &Stage) -> MachineSpec {
    let folder = format!("boot-{}", stage.number);
    MachineSpec {
        kernel: kernel.id.clone(),
        append: format!("{WORDS} {}", spec.append).trim_end().to_string(),
        out_dir: spec.out_dir.as_ref().map(|dir| dir.join(folder)),
        ..spec.clone()
    }
}
