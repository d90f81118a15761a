// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which CPUs the cgroup of a thread has, and which CPUs an isolated partition keeps from the others.
//!
//! The kernel takes what a cgroup lacks silently out of an affinity, so it is looked at before. Not here: changing a cgroup.

use crate::host::Host;
use crate::CpuList;

/// How deep partitions are looked for below the root: machine.slice, a scope, a group of libvirt, and some.
const DEPTH_MAX: usize = 5;
/// How many cgroups are looked at for that.
const GROUPS_MAX: usize = 4096;

/// The CPUs of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cpuset {
    /// The file that says it.
    pub file: String,
    /// The CPUs.
    pub cpus: CpuList,
}

/// Where the kernel has the cpusets mounted, from the root of the host, and whether that is cgroup v2.
fn mount(host: &Host) -> Option<(String, bool)> {
    let mounts = host.mounts().ok()?;
    let below_root = |point: &str| point.trim_start_matches('/').to_owned();
    let first = mounts.iter().find(|mount| {
        mount.kind == "cgroup" && mount.options.iter().any(|option| option == "cpuset")
    });
    if let Some(mount) = first {
        return Some((below_root(&mount.point), false));
    }
    let second = mounts.iter().find(|mount| mount.kind == "cgroup2")?;
    Some((below_root(&second.point), true))
}

/// The path of a thread's cgroup in the text of /proc/PID/cgroup: lines `number:controllers:path`.
fn path_in(text: &str, is_second: bool) -> Option<&str> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = match is_second {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|name| name == "cpuset"),
        };
        is_it.then_some(path)
    })
}

/// The CPUs that the cgroup of a thread has; `None` where there are no cpusets, or it can't be found out.
pub(super) fn of(host: &Host, tid: u32) -> Option<Cpuset> {
    let (mount, is_second) = mount(host)?;
    let text = host.read(&format!("proc/{tid}/cgroup")).ok()?;
    let mut path = path_in(&text, is_second)?.trim_matches('/').to_owned();
    let name = match is_second {
        true => "cpuset.cpus.effective",
        false => "cpuset.effective_cpus",
    };
    // A group without the controller has the CPUs of the next one above that has it.
    loop {
        let file = match path.is_empty() {
            true => format!("{mount}/{name}"),
            false => format!("{mount}/{path}/{name}"),
        };
        if let Ok(cpus) = host.read_cpu_list(&file) {
            return Some(Cpuset { file, cpus });
        }
        if path.is_empty() {
            return None;
        }
        path = path
            .rsplit_once('/')
            .map_or("", |(above, _)| above)
            .to_owned();
    }
}

/// The CPUs of all isolated partitions.
pub(super) fn isolated(host: &Host) -> CpuList {
    let Some((mount, true)) = mount(host) else {
        return CpuList::default();
    };
    // Kernels since 6.8 have the sum.
    if let Ok(cpus) = host.read_cpu_list(&format!("{mount}/cpuset.cpus.isolated")) {
        return cpus;
    }
    let mut found: Vec<u32> = Vec::new();
    let (mut level, mut looked) = (vec![mount], 0);
    for _ in 0..DEPTH_MAX {
        let mut next = Vec::new();
        for group in &level {
            for name in host.list(group).unwrap_or_default() {
                let below = format!("{group}/{name}");
                if looked >= GROUPS_MAX || !host.path(&below).is_dir() {
                    continue;
                }
                looked += 1;
                let kind = host.read_trimmed(&format!("{below}/cpuset.cpus.partition"));
                if kind.is_ok_and(|kind| kind == "isolated") {
                    let cpus = host.read_cpu_list(&format!("{below}/cpuset.cpus.effective"));
                    found.extend(cpus.unwrap_or_default().iter());
                }
                next.push(below);
            }
        }
        level = next;
    }
    found.into_iter().collect()
}
