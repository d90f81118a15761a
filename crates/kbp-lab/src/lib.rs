// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A laboratory of stock Debian kernels: it boots them in QEMU and runs a script in them.
//!
//! Kernels and QEMU come from the mirror that apt uses, are unpacked beside the system and never installed. The guest's
//! clock can be *virtual*: one executed instruction is one nanosecond, so microsecond figures repeat on any machine.
//!
//! ```no_run
//! # fn main() -> Result<(), kbp_lab::Error> {
//! use kbp_lab::{Lab, MachineSpec, Verdict};
//! let lab = Lab::open(None)?;
//! let spec = MachineSpec { script: Some("lab/tests/00-boot.sh".into()), ..MachineSpec::default() };
//! let outcome = lab.run(&spec, || Box::new(std::io::stdout()))?;
//! assert_eq!(outcome.verdict, Verdict::Pass);
//! # Ok(())
//! # }
//! ```
//!
//! Not here: anything about what the scripts test. This crate knows no KBP, no pollers, no packets.

mod abi;
mod apt;
mod boots;
mod cache;
pub mod cli;
mod clock;
mod command;
mod config;
mod cpio;
mod disk;
mod emulator;
mod error;
mod hostcpu;
mod initramfs;
mod kbuild;
mod kernel;
mod lab;
mod libs;
mod machine;
mod modinfo;
mod nested;
mod packages;
mod parallel;
mod payload;
mod qemu;
mod qmp;
mod root;
mod run;
mod snapshot;
mod source;
pub mod topo;
mod wire;

pub use cache::{Cache, Clean};
pub use clock::{Clock, TurnCheck, BACK_NS_LIMIT, TURN_NS_LIMIT};
pub use config::{find_lab_dir, Compiler, Config, Guest, KernelConfig, RootConfig};
pub use error::{Error, Result};
pub use kernel::Kernel;
pub use lab::{KernelState, Lab};
pub use payload::GuestFile;
pub use qemu::{Accelerator, Nics, NICS_MAX};
pub use run::{MachineSpec, Outcome, Verdict};
pub use source::SourceKernel;
