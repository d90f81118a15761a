// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host as a model: read it, plan changes, apply them, verify them, undo them.
//!
//! * [`host`], [`procfs`], [`netdev`], [`livepatch`]: readers of /proc and /sys under a root that can be replaced, so
//!   that they are tested without a kernel and without privilege.
//! * [`powercap`], [`cpuidle`], [`cpufreq`], [`msr_pmu`]: more of these: what CPUs used, how they rested, how
//!   fast they ran.
//! * [`irq`]: which interrupt vector belongs to a receive queue.
//! * [`client`]: the typed client of the generic netlink family `kbp` ([`uapi`] has its numbers,
//!   [`netlink`] and [`attr`] the transport, [`model`] the objects).
//! * [`plan`], [`apply`], [`undo`], [`state`]: attach and detach as a list of changes that can be shown before, rolled
//!   back, remembered and undone. What they change besides the module: [`irq_pin`], [`queue_cpus`],
//!   [`irqbalance`]. [`threaded`], [`busy_poll`] do the same for mainline's threaded NAPI,
//!   [`setting`] for single files, [`placed`] for other kernel threads, and [`process`] says who did it.
//! * [`setup`], [`setup_read`]: pollers and attachments as a file has them that outlives a restart; [`requested`] finds
//!   out what it is to say, [`restore`] makes it so with the plans above, [`card`] knows a card again.
//! * [`vm`]: the vCPU threads and vhost workers of virtual machines, placed and put back.
//! * [`companions`]: what else wants the NAPI instances of an interface, and what is said of that.
//! * [`napi_netlink`], [`ethtool`]: what the kernel says about NAPI instances and interfaces.
//! * [`module`], [`check`], [`overview`]: the kernel module's coming and going, whether it can work
//!   on this kernel, and what is there now.
//!
//! Nothing here prints, parses a command line or ends the process; that is crate `kbp`. Nothing
//! here makes load or measures; that is crate `kbp-measure`.

pub mod apply;
pub mod attr;
pub mod backlog;
pub mod busy_poll;
pub mod card;
pub mod check;
pub mod client;
pub mod companions;
pub mod cpufreq;
pub mod cpuidle;
pub mod cpulist;
pub mod cstates;
mod differences;
pub mod error;
pub mod ethtool;
pub mod governor;
pub mod host;
mod imagined;
pub mod irq;
pub mod irq_pin;
pub mod irqbalance;
pub mod kmsg;
pub mod livepatch;
pub mod model;
pub mod modfile;
pub mod module;
pub mod msr_pmu;
pub mod napi_netlink;
pub mod netdev;
pub mod netlink;
pub mod netns;
pub mod overview;
mod page_lists;
pub mod placed;
pub mod plan;
pub mod pollers;
pub mod powercap;
pub mod process;
pub mod procfs;
pub mod queue_cpus;
mod queue_goals;
pub mod requested;
pub mod restore;
pub mod sched;
pub mod service;
pub mod setting;
pub mod setup;
pub mod setup_read;
pub mod state;
pub mod steer;
pub mod target;
pub mod threaded;
pub mod uapi;
pub mod undo;
pub mod vm;
pub mod waits;

pub use client::Client;
pub use cpulist::CpuList;
pub use error::{Class, Error};
pub use host::Host;
