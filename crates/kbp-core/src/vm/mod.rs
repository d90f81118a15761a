// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines of this host: their vCPU threads and vhost workers, placed on CPUs, prioritised, and put back.
//!
//! * [`model`]: a machine and its threads, and how a thread is placed. [`read`] finds them in /proc, [`vcpu`] tells
//!   which threads are vCPUs, [`select`] knows a machine by its name or number.
//! * [`request`]: what is asked for and which thread gets which CPU; [`plan`] makes changes of it and checks it,
//!   [`isolation`] says what else is on those CPUs, [`cpuset`] which CPUs a thread's cgroup has.
//! * [`apply`], [`undo`], [`record`]: carried out as a whole, remembered, put back. [`governor`] does that for frequencies.
//! * [`verify`]: what was requested beside what is so.
//!
//! Not here: the pollers that packets of such a machine may have; they are attached like any other. Nothing of this needs
//! the kernel module.

pub mod apply;
mod cpuset;
pub mod governor;
mod isolation;
pub mod model;
pub mod plan;
pub mod read;
pub mod record;
pub mod request;
pub mod select;
pub mod undo;
mod vcpu;
pub mod verify;
