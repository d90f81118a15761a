// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measuring and proving: load generators, HDR recording, the demo's run plan, the JSON
//! result and the HTML report.
//!
//! Not here: what acts on packets (the kernel module), how a host is changed
//! (kbp-core), and the machine it runs in (kbp-lab).

pub mod check;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod error;
pub mod functions;
pub mod hold;
pub mod interrupt;
pub mod load;
pub mod machine;
pub mod mechanism;
pub mod party;
pub mod place;
pub mod power;
pub mod progress;
pub mod report;
pub mod result;
pub mod rng;
pub mod stats;
pub mod tester;
pub mod trace;
mod turns;
pub mod witness;

pub use error::{Error, Result};
