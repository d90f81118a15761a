// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine as this host sees it: a process, its vCPU threads, its vhost workers.
//!
//! Not here: where this is read ([`super::read`]) and what is changed ([`super::plan`]).

use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::sched::Scheduling;
use crate::CpuList;

/// Where a thread may run and how it is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The CPUs that it may run on.
    pub affinity: CpuList,
    /// Policy and real-time priority.
    #[serde(flatten)]
    pub scheduling: Scheduling,
    /// Its nice value, which a real-time policy keeps and does not use.
    pub nice: i32,
}

impl Placement {
    /// Policy, priority and, where it matters or is not the usual one, the nice value.
    pub fn schedule(&self) -> String {
        match self.nice {
            0 => self.scheduling.to_string(),
            nice => format!("{}, nice {nice}", self.scheduling),
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CPU {}, {}", self.affinity, self.schedule())
    }
}

/// What a thread does for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Role {
    /// It runs the guest on this vCPU.
    Vcpu {
        /// Number of the vCPU.
        index: u32,
    },
    /// It emulates all vCPUs in turn, as QEMU without KVM does where it counts instructions.
    AllVcpus,
    /// It moves packets between the guest's queues and the host's network: a worker of vhost.
    Vhost,
}

impl Role {
    /// Whether it runs guest code.
    pub fn is_vcpu(self) -> bool {
        self != Self::Vhost
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vcpu { index } => write!(f, "vCPU {index}"),
            Self::AllVcpus => write!(f, "all vCPUs"),
            Self::Vhost => write!(f, "vhost worker"),
        }
    }
}

/// A thread of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmThread {
    /// What it does.
    #[serde(flatten)]
    pub role: Role,
    /// Its number with the time of its start, so that another one with that number is not taken for it.
    #[serde(flatten)]
    pub thread: Thread,
    /// Its name.
    pub comm: String,
    /// How it is placed now.
    #[serde(flatten)]
    pub placement: Placement,
}

/// A thread of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// When it was started, in clock ticks after boot.
    pub started_ticks: u64,
}

impl std::fmt::Display for VmThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (thread {})", self.role, self.thread.tid)
    }
}

/// What executes guest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor, by the kernel's KVM.
    Kvm,
    /// QEMU itself, by translation.
    Tcg,
}

impl std::fmt::Display for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// The process.
    #[serde(flatten)]
    pub process: Process,
    /// The name that its command line gives it.
    pub name: Option<String>,
    /// What executes guest code.
    pub accelerator: Accelerator,
    /// The vCPU threads in the order of the vCPUs, then the vhost workers in the order of their numbers.
    pub threads: Vec<VmThread>,
    /// Why not all vCPU threads are there, with the way out.
    pub unknown_vcpus: Option<String>,
}

impl Vm {
    /// What a person calls it.
    pub fn label(&self) -> String {
        label(self.name.as_deref(), self.process.pid)
    }

    /// The threads that run guest code.
    pub fn vcpus(&self) -> impl Iterator<Item = &VmThread> {
        self.threads.iter().filter(|one| one.role.is_vcpu())
    }

    /// The vhost workers.
    pub fn vhost_workers(&self) -> impl Iterator<Item = &VmThread> {
        self.threads.iter().filter(|one| !one.role.is_vcpu())
    }
}

/// What a person calls a machine.
pub(crate) fn label(name: Option<&str>, pid: u32) -> String {
    match name {
        Some(name) => format!("VM {name} (process {pid})"),
        None => format!("VM of process {pid}"),
    }
}
