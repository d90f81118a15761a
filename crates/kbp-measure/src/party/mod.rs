// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers for unmodified programs of third parties, which confirm what our own tester says.
//!
//! Not here: our own tester ([`crate::tester`]).

pub mod sockperf;
