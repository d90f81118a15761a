// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds virtual machines in /proc: processes of QEMU, their threads, and the kernel's threads that work for them.
//!
//! A vhost worker is a kernel thread `vhost-PID` beside the process up to Linux 6.3, and a thread of the process with that
//! name since 6.4. Which threads are vCPUs is told in [`super::vcpu`]. What ends while it is looked at is left out.
//!
//! Not here: other monitors than QEMU, whose threads have other names.

use std::collections::BTreeSet;

use crate::host::{Host, HostError};
use crate::process::Process;
use crate::sched::Scheduling;
use crate::vm::model::{Accelerator, Placement, Role, Thread, Vm, VmThread};
use crate::vm::vcpu;
use crate::CpuList;

/// What a kernel thread has among its flags in /proc/PID/stat (PF_KTHREAD).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What /proc/PID/stat says of a thread, as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    flags: u64,
    nice: i32,
    started_ticks: u64,
    scheduling: Scheduling,
}

/// The fields of proc(5), counted from the state, which follows the name.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let word = |field: usize| words.get(field - 3).copied();
    Some(Stat {
        flags: word(9)?.parse().ok()?,
        nice: word(19)?.parse().ok()?,
        started_ticks: word(22)?.parse().ok()?,
        scheduling: Scheduling {
            policy: word(41)?.parse().ok()?,
            priority: word(40)?.parse().ok()?,
        },
    })
}

/// The CPUs that a thread may run on, offline ones included, of which sched_getaffinity(2) says nothing.
fn parse_allowed(status: &str) -> Option<CpuList> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// A thread as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub thread: Thread,
    pub placement: Placement,
    is_kernel: bool,
}

/// How a thread is placed; `None` when it has ended.
///
/// # Errors
/// When it is there and can't be read.
pub(crate) fn see(host: &Host, tid: u32) -> Result<Option<Seen>, HostError> {
    let (stat_file, status_file) = (format!("proc/{tid}/stat"), format!("proc/{tid}/status"));
    let (Some(stat), Some(status)) = (
        host.read_optional(&stat_file)?,
        host.read_optional(&status_file)?,
    ) else {
        return Ok(None);
    };
    let stat = parse_stat(&stat)
        .ok_or_else(|| host.malformed(&stat_file, "it has not the fields of proc(5)"))?;
    let affinity = parse_allowed(&status)
        .ok_or_else(|| host.malformed(&status_file, "it has no Cpus_allowed_list"))?;
    Ok(Some(Seen {
        thread: Thread {
            tid,
            started_ticks: stat.started_ticks,
        },
        placement: Placement {
            affinity,
            scheduling: stat.scheduling,
            nice: stat.nice,
        },
        is_kernel: stat.flags & KERNEL_THREAD != 0,
    }))
}

/// The number in the name of a vhost worker: that of the thread that opened it.
fn vhost_owner(comm: &str) -> Option<u32> {
    comm.strip_prefix("vhost-")?.parse().ok()
}

/// Whether a program of this name runs virtual machines.
fn is_monitor(program: &str) -> bool {
    program.starts_with("qemu-system-") || matches!(program, "qemu-kvm" | "kvm")
}

/// The name of a process's program. A file that was replaced by an update is still that program. Without the right to
/// see the file, the command line has to do.
fn program(host: &Host, pid: u32, arguments: &[String]) -> Option<String> {
    let base = |path: &str| {
        let path = path.trim_end_matches(" (deleted)");
        path.rsplit('/').next().map(str::to_owned)
    };
    match std::fs::read_link(host.path(&format!("proc/{pid}/exe"))) {
        Ok(path) => base(&path.to_string_lossy()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            arguments.first().and_then(|first| base(first))
        }
        Err(_) => None,
    }
}

/// The name in `-name [guest=]NAME[,...]`, where a comma within the name is written twice.
fn guest_name(arguments: &[String]) -> Option<String> {
    let is_option = |argument: &&String| matches!(argument.as_str(), "-name" | "--name");
    let at = arguments.iter().position(|argument| is_option(&argument))?;
    let text = arguments.get(at + 1)?.replace(",,", "\0");
    let mut options = text.split(',').enumerate();
    let name = options.find_map(|(place, option)| match option.split_once('=') {
        Some(("guest", name)) => Some(name),
        None if place == 0 => Some(option),
        _ => None,
    })?;
    Some(name.replace('\0', ",")).filter(|name| !name.is_empty())
}

/// The accelerator, by the names of the vCPU threads, by what the process has open, or by its command line.
fn accelerator(
    vcpus: &[(Role, u32, String)],
    arguments: &[String],
    open_vcpus: u32,
) -> Accelerator {
    let named = vcpus.iter().any(|(_, _, comm)| comm.ends_with("/KVM"));
    let asked = arguments.iter().skip(1).any(|argument| {
        let argument = argument.trim_start_matches('-');
        argument == "enable-kvm"
            || argument
                .split(',')
                .any(|part| matches!(part, "kvm" | "accel=kvm"))
    });
    let unnamed = vcpus.iter().all(|(_, _, comm)| !comm.contains('/'));
    match named || open_vcpus > 0 || (unnamed && asked) {
        true => Accelerator::Kvm,
        false => Accelerator::Tcg,
    }
}

impl Host {
    /// The virtual machines that run here, in the order of their processes.
    ///
    /// # Errors
    /// When /proc can't be read or understood. What ends meanwhile is no error.
    pub fn vms(&self) -> Result<Vec<Vm>, HostError> {
        let tasks = self.processes()?;
        let workers: Vec<(u32, u32, String)> = tasks
            .iter()
            .filter_map(|task| Some((vhost_owner(&task.comm)?, task.tid, task.comm.clone())))
            .collect();
        let mut vms = Vec::new();
        for task in &tasks {
            vms.extend(vm(self, task.pid, &workers)?);
        }
        Ok(vms)
    }
}

/// The words of a process's command line; none for a kernel thread, and for a process that has ended.
fn arguments(host: &Host, pid: u32) -> Vec<String> {
    let text = host.read(&format!("proc/{pid}/cmdline"));
    let text = text.unwrap_or_default();
    let words = text.trim_end_matches('\0').split('\0').map(str::to_owned);
    words.filter(|_| !text.is_empty()).collect()
}

/// The machine of this process, if it is one. `workers`: processes that are called like vhost workers.
fn vm(host: &Host, pid: u32, workers: &[(u32, u32, String)]) -> Result<Option<Vm>, HostError> {
    let arguments = arguments(host, pid);
    if !program(host, pid, &arguments).is_some_and(|name| is_monitor(&name)) {
        return Ok(None);
    }
    let Some(process) = Process::with_pid(host, pid)? else {
        return Ok(None);
    };
    let own = host.threads_of(pid)?;
    let found = vcpu::find(host, pid, &own)?;
    let accelerator = accelerator(&found.vcpus, &arguments, found.open_vcpus);
    let mut threads = Vec::new();
    for (role, tid, comm) in &found.vcpus {
        threads.extend(thread(host, *role, *tid, comm, false)?);
    }
    let tids: BTreeSet<u32> = own.iter().map(|(tid, _)| *tid).collect();
    for (tid, comm) in &own {
        if vhost_owner(comm).is_some_and(|owner| tids.contains(&owner)) {
            threads.extend(thread(host, Role::Vhost, *tid, comm, false)?);
        }
    }
    for (owner, tid, comm) in workers {
        if tids.contains(owner) && !tids.contains(tid) {
            threads.extend(thread(host, Role::Vhost, *tid, comm, true)?);
        }
    }
    Ok(Some(Vm {
        process,
        name: guest_name(&arguments),
        accelerator,
        threads,
        unknown_vcpus: found.unknown,
    }))
}

/// A thread in its role. A process of a user that is merely called like a kernel thread is none.
fn thread(
    host: &Host,
    role: Role,
    tid: u32,
    comm: &str,
    in_kernel: bool,
) -> Result<Option<VmThread>, HostError> {
    let seen = see(host, tid)?;
    Ok(seen
        .filter(|seen| seen.is_kernel || !in_kernel)
        .map(|seen| VmThread {
            role,
            thread: seen.thread,
            comm: comm.into(),
            placement: seen.placement,
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn names_of_guests() {
        for (line, name) in [
            ("qemu -name demo -smp 2", Some("demo")),
            ("qemu -name guest=demo,debug-threads=on", Some("demo")),
            ("qemu --name debug-threads=on,guest=demo", Some("demo")),
            ("qemu -name a,,b,process=x", Some("a,b")),
            ("qemu -name debug-threads=on", None),
            ("qemu -smp 2 -name", None),
            ("qemu -m 16", None),
        ] {
            assert_eq!(guest_name(&words(line)).as_deref(), name, "{line}");
        }
    }

    #[test]
    fn fields_of_stat_behind_an_odd_name() {
        let text = "7 (CPU 0/K) VM) S 1 7 7 0 -1 4194368 1 0 0 0 2 3 0 0 -3 -5 4 0 4711 8 9 10 11 12 13 14 15 16 17 18 19 \
                    20 21 22 17 3 60 1 0 0 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.nice, stat.started_ticks), (-5, 4711));
        assert_eq!(stat.scheduling, Scheduling::fifo(60));
        assert_eq!(parse_stat("7 (cut) S 1"), None);
    }

    #[test]
    fn what_executes_guest_code() {
        let thread = |comm: &str| vec![(Role::Vcpu { index: 0 }, 8, comm.to_owned())];
        let line = words("qemu-system-x86_64 -accel kvm");
        assert_eq!(accelerator(&thread("CPU 0/KVM"), &[], 0), Accelerator::Kvm);
        assert_eq!(
            accelerator(&thread("CPU 0/TCG"), &line, 0),
            Accelerator::Tcg
        );
        assert_eq!(accelerator(&[], &line, 0), Accelerator::Kvm);
        assert_eq!(accelerator(&[], &[], 2), Accelerator::Kvm);
        assert_eq!(
            accelerator(&[], &words("qemu -m kvmless"), 0),
            Accelerator::Tcg
        );
    }

    #[test]
    fn workers_and_monitors_by_their_names() {
        assert_eq!(vhost_owner("vhost-4711"), Some(4711));
        assert_eq!(vhost_owner("vhost-user"), None);
        assert!(is_monitor("qemu-system-x86_64") && is_monitor("qemu-kvm"));
        assert!(!is_monitor("qemu-x86_64") && !is_monitor("qemu-img"));
    }
}
