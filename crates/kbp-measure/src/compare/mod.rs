// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mechanism beside mechanism: which cells are measured in which order, and their measurement.
//!
//! * [`demo`]: the plan of the demo.
//! * [`rig`]: what all rows of a run share: interfaces, interrupts, CPUs.
//! * [`row`]: one row: both ends of the traffic, and the counters right around it.
//!
//! Not here: what serves the packets ([`crate::mechanism`]), what disturbs them ([`crate::load`]).

pub mod demo;
pub mod rig;
pub mod row;
