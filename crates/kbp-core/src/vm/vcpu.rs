// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which threads of a QEMU process run its vCPUs.
//!
//! With `-name ...,debug-threads=on`, which libvirt always gives and newer versions of QEMU take for granted, their
//! names say it: `CPU 0/KVM`. Without it all threads are called like the program. Those of KVM can still be told while
//! they are in the system call in which KVM runs a vCPU: the file that they name there is that of the vCPU. (The kernel
//! does not say it of one that is on a processor at that moment.) Those of TCG can't be told.
//!
//! Not here: how these threads are placed ([`super::read`]).

use crate::host::{Host, HostError};
use crate::vm::model::Role;

/// The request of ioctl(2) by which KVM runs a vCPU (KVM_RUN).
const KVM_RUN: u64 = 0xae80;
/// How the file of a vCPU is called.
const VCPU_FILE: &str = "anon_inode:kvm-vcpu:";
/// How often it is looked whether threads without names are in that system call.
const LOOKS: usize = 20;
/// The time between two looks, microseconds.
const LOOK_EVERY_US: u64 = 500;

/// The vCPU threads of a process.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Role, number and name of each, in the order of the vCPUs.
    pub vcpus: Vec<(Role, u32, String)>,
    /// How many vCPUs of KVM the process has open.
    pub open_vcpus: u32,
    /// Why some are missing, with the way out.
    pub unknown: Option<String>,
}

fn role_of(comm: &str) -> Option<Role> {
    let (cpus, accelerator) = comm.split_once('/')?;
    // A name has 15 characters at most, so that the end of a long one is cut.
    if accelerator.is_empty() || !accelerator.chars().all(|c| c.is_ascii_uppercase()) {
        return None;
    }
    match cpus.strip_prefix("CPU ") {
        Some(index) => Some(Role::Vcpu {
            index: index.parse().ok()?,
        }),
        None => (cpus == "ALL CPUs").then_some(Role::AllVcpus),
    }
}

/// The vCPU threads among the threads of a process.
pub(super) fn find(host: &Host, pid: u32, threads: &[(u32, String)]) -> Result<Found, HostError> {
    let open = open_vcpus(host, pid);
    let open_vcpus = open.len() as u32;
    let named = threads
        .iter()
        .filter_map(|(tid, comm)| Some((role_of(comm)?, *tid, comm.clone())));
    let mut vcpus: Vec<_> = named.collect();
    vcpus.sort();
    if !vcpus.is_empty() {
        return Ok(Found {
            vcpus,
            open_vcpus,
            unknown: None,
        });
    }
    let vcpus = match open.is_empty() {
        true => Vec::new(),
        false => running(host, pid, threads, &open),
    };
    let unknown = unknown(vcpus.len(), open.len());
    Ok(Found {
        vcpus,
        open_vcpus,
        unknown,
    })
}

fn unknown(known: usize, open: usize) -> Option<String> {
    const WAY_OUT: &str =
        "start QEMU with `-name guest=NAME,debug-threads=on`, which gives them names";
    match open {
        0 => Some(format!("its vCPU threads can't be told from its other threads: {WAY_OUT}")),
        _ if known < open => Some(format!(
            "{} of its {open} vCPU threads can't be told from its other threads, because they are busy in the guest: try \
             again, or {WAY_OUT}",
            open - known
        )),
        _ => None,
    }
}

/// The vCPUs of KVM that a process has open: file descriptor and number. None without the right to see them.
fn open_vcpus(host: &Host, pid: u32) -> Vec<(u64, u32)> {
    let directory = format!("proc/{pid}/fd");
    let descriptors = host.list(&directory).unwrap_or_default();
    let vcpu = |descriptor: String| {
        let target = std::fs::read_link(host.path(&format!("{directory}/{descriptor}"))).ok()?;
        let index = target.to_str()?.strip_prefix(VCPU_FILE)?.parse().ok()?;
        Some((descriptor.parse().ok()?, index))
    };
    descriptors.into_iter().filter_map(vcpu).collect()
}

/// The threads that are in the system call in which KVM runs a vCPU.
fn running(
    host: &Host,
    pid: u32,
    threads: &[(u32, String)],
    open: &[(u64, u32)],
) -> Vec<(Role, u32, String)> {
    let mut found: Vec<(Role, u32, String)> = Vec::new();
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(std::time::Duration::from_micros(LOOK_EVERY_US));
        }
        for (tid, comm) in threads {
            if found.iter().any(|(_, known, _)| known == tid) {
                continue;
            }
            let call = host.read(&format!("proc/{pid}/task/{tid}/syscall"));
            let descriptor = call.ok().and_then(|text| running_vcpu(&text));
            let vcpu = open.iter().find(|(open, _)| Some(*open) == descriptor);
            found.extend(vcpu.map(|(_, index)| (Role::Vcpu { index: *index }, *tid, comm.clone())));
        }
        if found.len() >= open.len() {
            break;
        }
    }
    found.sort();
    found
}

/// The file descriptor of the vCPU that a thread runs, by its /proc/PID/task/TID/syscall: the number of the call, then
/// its arguments.
fn running_vcpu(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip(1);
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (descriptor, request) = (hex()?, hex()?);
    (request == KVM_RUN).then_some(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_vcpu_threads() {
        for (comm, role) in [
            ("CPU 0/KVM", Some(Role::Vcpu { index: 0 })),
            ("CPU 113/TCG", Some(Role::Vcpu { index: 113 })),
            ("ALL CPUs/TCG", Some(Role::AllVcpus)),
            ("qemu-system-x86", None),
            ("IO mon_iothread", None),
            ("CPU x/KVM", None),
            ("kworker/0:1", None),
        ] {
            assert_eq!(role_of(comm), role, "{comm}");
        }
    }

    #[test]
    fn the_call_that_runs_a_vcpu() {
        let text = "16 0x1b 0xae80 0x0 0x0 0x0 0x0 0x7ffe 0x7fff\n";
        assert_eq!(running_vcpu(text), Some(0x1b));
        assert_eq!(running_vcpu("16 0x1b 0xae01 0x0"), None);
        assert_eq!(running_vcpu("running\n"), None);
        assert_eq!(running_vcpu("-1 0x7ffe 0x7fff\n"), None);
    }
}
