// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers for unmodified programs of third parties, which confirm what our own tester says.
//!
//! * [`sockperf`]: UDP ping-pong. * [`iperf3`]: TCP and UDP bulk. * [`memcached`], [`sip`]: real servers.
//! * [`agree`]: our ping-pong beside sockperf's. * [`program`]: starting and ending them.
//!
//! Not here: our own tester ([`crate::tester`]).

pub mod agree;
pub mod iperf3;
pub mod memcached;
pub mod program;
pub mod sip;
pub mod sockperf;
