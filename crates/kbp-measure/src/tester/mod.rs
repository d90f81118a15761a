// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our own load generators and their recording.
//!
//! * [`pingpong`]: one ping at a time
//! * [`openloop`]: frames when they are due, whatever comes back
//! * [`throughput`]: the highest rate without loss
//! * [`backend`]: how the last two get on the path
//! * [`selftest`]: what this machine can tell apart at all
//! * [`sockets`]: packet rates of one direction, by the way in which packets are handed over
//!
//! Not here: programs of third parties ([`crate::party`]), and which mechanism serves ([`crate::mechanism`]).

pub mod backend;
pub mod openloop;
pub mod pingpong;
pub mod selftest;
pub mod sockets;
pub mod throughput;
pub mod timeline;
