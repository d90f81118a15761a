// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our own load generators and their recording.
//!
//! * [`pingpong`]: one ping at a time.
//! * [`sockets`]: packet rates of one direction, by the way in which packets are handed over.
//!
//! Not here: programs of third parties ([`crate::party`]), and which mechanism serves ([`crate::mechanism`]).

pub mod pingpong;
pub mod sockets;
