// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked for a machine, and which of its threads gets which CPU.
//!
//! Only decisions on values are here: nothing is read and nothing is changed.

use serde::{Deserialize, Serialize};

use crate::model::Schedule;
use crate::sched::Scheduling;
use crate::vm::model::{Placement, Role, Vm, VmThread};
use crate::vm::record::VmRecord;
use crate::CpuList;

/// The priority of vCPU threads that get CPUs, where none was named: above all that is not real-time, below pollers.
pub const DEFAULT_PRIORITY: u32 = 1;
/// The governor of the CPUs, where none was named.
pub const DEFAULT_GOVERNOR: &str = "performance";
/// In place of a governor: none is chosen.
pub const KEEP_GOVERNOR: &str = "keep";

/// A wish for a machine; what is `None` is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneRequest {
    /// CPUs of the vCPU threads, in the order of the vCPUs.
    #[serde(default)]
    pub vcpu_cpus: Option<Vec<u32>>,
    /// CPUs of the vhost workers.
    #[serde(default)]
    pub vhost_cpus: Option<Vec<u32>>,
    /// How vCPU threads are scheduled.
    #[serde(default)]
    pub priority: Option<Schedule>,
    /// How vhost workers are scheduled.
    #[serde(default)]
    pub vhost_priority: Option<Schedule>,
    /// The governor of all these CPUs.
    #[serde(default)]
    pub governor: Option<String>,
}

impl TuneRequest {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This wish where it says something, an earlier one where it does not.
    pub fn over(&self, earlier: &Self) -> Self {
        let new = self.clone();
        Self {
            vcpu_cpus: new.vcpu_cpus.or_else(|| earlier.vcpu_cpus.clone()),
            vhost_cpus: new.vhost_cpus.or_else(|| earlier.vhost_cpus.clone()),
            priority: new.priority.or(earlier.priority),
            vhost_priority: new.vhost_priority.or(earlier.vhost_priority),
            governor: new.governor.or_else(|| earlier.governor.clone()),
        }
    }

    /// The wish with what goes without saying.
    pub fn completed(mut self) -> Self {
        if self.vcpu_cpus.is_some() && self.priority.is_none() {
            self.priority = Some(Schedule::Fifo {
                priority: DEFAULT_PRIORITY,
            });
        }
        let has_cpus = self.vcpu_cpus.is_some() || self.vhost_cpus.is_some();
        if has_cpus && self.governor.is_none() {
            self.governor = Some(DEFAULT_GOVERNOR.into());
        }
        self
    }

    /// The CPUs of the vCPU threads.
    pub fn vcpu_list(&self) -> CpuList {
        self.vcpu_cpus.iter().flatten().copied().collect()
    }

    /// The CPUs of the vhost workers.
    pub fn vhost_list(&self) -> CpuList {
        self.vhost_cpus.iter().flatten().copied().collect()
    }

    /// All CPUs that it names.
    pub fn cpus(&self) -> CpuList {
        self.vcpu_list()
            .iter()
            .chain(self.vhost_list().iter())
            .collect()
    }

    /// The governor that is to be chosen; `None` to leave it.
    pub fn chosen_governor(&self) -> Option<&str> {
        self.governor
            .as_deref()
            .filter(|name| *name != KEEP_GOVERNOR)
    }

    /// What is asked for threads of this role: whether they get CPUs, and how they are scheduled.
    pub fn of(&self, role: Role) -> (bool, Option<Schedule>) {
        match role.is_vcpu() {
            true => (self.vcpu_cpus.is_some(), self.priority),
            false => (self.vhost_cpus.is_some(), self.vhost_priority),
        }
    }

    /// Whether anything is asked for threads of this role.
    pub fn is_about(&self, role: Role) -> bool {
        self.of(role) != (false, None)
    }

    /// Whether threads get a real-time policy.
    pub fn is_real_time(&self) -> bool {
        let is_fifo = |schedule| matches!(schedule, Some(Schedule::Fifo { .. }));
        is_fifo(self.priority) || is_fifo(self.vhost_priority)
    }
}

/// Each thread with how it is to be, in the order of the machine's threads.
pub fn assign<'v>(
    vm: &'v Vm,
    request: &TuneRequest,
    record: Option<&VmRecord>,
) -> Vec<(&'v VmThread, Placement)> {
    let vcpus: Vec<&VmThread> = vm.vcpus().collect();
    let vhosts: Vec<&VmThread> = vm.vhost_workers().collect();
    let vcpu_cpus = request.vcpu_cpus.as_deref();
    let vhost_cpus = request.vhost_cpus.as_deref();
    let vcpu_places = vcpu_cpus.map(|cpus| by_number(cpus, &vcpus));
    let vhost_places = vhost_cpus.map(|cpus| kept_or_free(cpus, &vhosts, record));
    let placed = |threads: Vec<&'v VmThread>, places: Option<Vec<CpuList>>, schedule| {
        threads.into_iter().enumerate().map(move |(place, thread)| {
            let affinity = places.as_ref().map(|places| places[place].clone());
            (thread, wanted(&thread.placement, affinity, schedule))
        })
    };
    placed(vcpus, vcpu_places, request.priority)
        .chain(placed(vhosts, vhost_places, request.vhost_priority))
        .collect()
}

fn wanted(now: &Placement, affinity: Option<CpuList>, schedule: Option<Schedule>) -> Placement {
    let (scheduling, nice) = match schedule {
        None => (now.scheduling, now.nice),
        Some(Schedule::Fifo { priority }) => (Scheduling::fifo(priority as i32), now.nice),
        Some(Schedule::Other { nice }) => (Scheduling::other(), nice),
    };
    Placement {
        affinity: affinity.unwrap_or_else(|| now.affinity.clone()),
        scheduling,
        nice,
    }
}

/// One CPU for each, in turn, where there are enough; else all of them for each.
fn in_turn(cpus: &[u32], count: usize) -> Vec<CpuList> {
    match count <= cpus.len() {
        true => cpus[..count].iter().copied().map(CpuList::one).collect(),
        false => vec![cpus.iter().copied().collect(); count],
    }
}

/// Each vCPU the CPU at its place in the list, also where one before it is not plugged in; in turn where the list is too
/// short for that.
fn by_number(cpus: &[u32], vcpus: &[&VmThread]) -> Vec<CpuList> {
    let place = |thread: &&VmThread| match thread.role {
        Role::Vcpu { index } => cpus.get(index as usize).copied().map(CpuList::one),
        _ => cpus.first().copied().map(CpuList::one),
    };
    let places: Option<Vec<CpuList>> = vcpus.iter().map(place).collect();
    places.unwrap_or_else(|| in_turn(cpus, vcpus.len()))
}

/// The same for threads that come and go: who has one of these CPUs alone keeps it, the others get those that are free.
fn kept_or_free(cpus: &[u32], threads: &[&VmThread], record: Option<&VmRecord>) -> Vec<CpuList> {
    if threads.len() > cpus.len() {
        return in_turn(cpus, threads.len());
    }
    let mut free = cpus.to_vec();
    let mut places: Vec<Option<u32>> = Vec::new();
    for thread in threads {
        let known = record.and_then(|record| record.thread(thread.thread));
        let had = known.and_then(|known| only(&known.set.affinity));
        let at = free.iter().position(|cpu| Some(*cpu) == had);
        places.push(at.map(|at| free.remove(at)));
    }
    let mut free = free.into_iter();
    let place = |kept: Option<u32>| kept.or_else(|| free.next()).into_iter().collect();
    places.into_iter().map(place).collect()
}

fn only(cpus: &CpuList) -> Option<u32> {
    cpus.iter().next().filter(|_| cpus.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use crate::vm::model::{Accelerator, Thread};
    use crate::vm::record::VmThreadRecord;

    fn thread(role: Role, tid: u32) -> VmThread {
        VmThread {
            role,
            thread: Thread {
                tid,
                started_ticks: 5,
            },
            comm: String::new(),
            placement: placement("0-7"),
        }
    }

    fn placement(cpus: &str) -> Placement {
        Placement {
            affinity: cpus.parse().unwrap(),
            scheduling: Scheduling::other(),
            nice: 3,
        }
    }

    fn vm(vcpus: u32, workers: &[u32]) -> Vm {
        let vcpu = |index| thread(Role::Vcpu { index }, 100 + index);
        let workers = workers.iter().map(|tid| thread(Role::Vhost, *tid));
        Vm {
            process: PROCESS,
            name: None,
            accelerator: Accelerator::Kvm,
            threads: (0..vcpus).map(vcpu).chain(workers).collect(),
            unknown_vcpus: None,
        }
    }

    const PROCESS: Process = Process {
        pid: 100,
        started_ticks: 5,
    };

    fn request(vcpus: &[u32], vhosts: &[u32]) -> TuneRequest {
        TuneRequest {
            vcpu_cpus: Some(vcpus.to_vec()),
            vhost_cpus: Some(vhosts.to_vec()),
            ..TuneRequest::default()
        }
        .completed()
    }

    fn places(vm: &Vm, request: &TuneRequest, record: Option<&VmRecord>) -> Vec<String> {
        assign(vm, request, record)
            .iter()
            .map(|(_, to)| to.affinity.to_string())
            .collect()
    }

    #[test]
    fn vcpus_get_cpus_in_the_order_of_the_list_or_share_them() {
        let machine = vm(2, &[200]);
        assert_eq!(
            places(&machine, &request(&[3, 2], &[5]), None),
            ["3", "2", "5"]
        );
        assert_eq!(
            places(&machine, &request(&[2, 3, 4], &[5]), None),
            ["2", "3", "5"]
        );
        assert_eq!(
            places(&vm(3, &[]), &request(&[2, 3], &[]), None),
            ["2-3", "2-3", "2-3"]
        );
    }

    #[test]
    fn a_vcpu_keeps_its_cpu_when_one_before_it_is_plugged_in() {
        let mut machine = vm(3, &[]);
        let middle = machine.threads.remove(1);
        assert_eq!(
            places(&machine, &request(&[2, 3, 4], &[]), None),
            ["2", "4"]
        );
        assert_eq!(places(&machine, &request(&[2, 3], &[]), None), ["2", "3"]);
        machine.threads.insert(1, middle);
        assert_eq!(
            places(&machine, &request(&[2, 3, 4], &[]), None),
            ["2", "3", "4"]
        );
    }

    #[test]
    fn a_worker_keeps_its_cpu_while_others_come_and_go() {
        let known = |tid, cpu: &str| VmThreadRecord {
            thread: Thread {
                tid,
                started_ticks: 5,
            },
            role: Role::Vhost,
            original: placement("0-7"),
            set: placement(cpu),
            before: None,
        };
        let record = VmRecord {
            process: PROCESS,
            name: None,
            requested: TuneRequest::default(),
            forced: false,
            threads: vec![known(200, "4"), known(201, "5")],
        };
        let wish = request(&[2], &[4, 5]);
        assert_eq!(places(&vm(1, &[201]), &wish, Some(&record)), ["2", "5"]);
        assert_eq!(
            places(&vm(1, &[201, 202]), &wish, Some(&record)),
            ["2", "5", "4"]
        );
        let all = places(&vm(1, &[200, 201, 202]), &wish, Some(&record));
        assert_eq!(all, ["2", "4-5", "4-5", "4-5"]);
    }

    #[test]
    fn what_is_not_asked_for_stays() {
        let machine = vm(1, &[200]);
        let only_priority = TuneRequest {
            priority: Some(Schedule::Fifo { priority: 7 }),
            ..TuneRequest::default()
        };
        let wish = only_priority.completed();
        assert_eq!(wish.governor, None, "no CPUs, no governor");
        let assigned = assign(&machine, &wish, None);
        assert_eq!(assigned[0].1.scheduling, Scheduling::fifo(7));
        assert_eq!(
            (assigned[0].1.nice, assigned[1].1.clone()),
            (3, placement("0-7"))
        );
    }

    #[test]
    fn a_second_wish_changes_what_it_says() {
        let first = request(&[2], &[4]);
        let second = TuneRequest {
            vhost_cpus: Some(vec![5]),
            governor: Some(KEEP_GOVERNOR.into()),
            ..TuneRequest::default()
        };
        let both = second.over(&first).completed();
        assert_eq!(
            (both.vcpu_cpus.clone(), both.vhost_cpus.clone()),
            (Some(vec![2]), Some(vec![5]))
        );
        assert_eq!(
            both.priority,
            Some(Schedule::Fifo {
                priority: DEFAULT_PRIORITY
            })
        );
        assert_eq!(both.chosen_governor(), None);
        assert_eq!(TuneRequest::default().over(&first), first);
    }
}
