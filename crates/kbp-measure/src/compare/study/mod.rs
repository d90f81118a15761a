// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Comparisons in virtual machines: a file names machines and runs, each run of a machine is a unit that is done once.
//!
//! * [`file`]: the study file, and the units that it means.
//! * [`run`]: units in machines, a few at once; what is done already is left out.
//! * [`merge`]: the results of a machine's units as one file.
//!
//! Not here: what happens inside a machine: that is `kbp compare` again, started by `lab/bench.sh`.

pub mod file;
pub mod merge;
pub mod run;
