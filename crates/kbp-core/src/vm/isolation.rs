// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What else is on the CPUs of a virtual machine: interrupts, tasks of others, pollers, limits of real-time threads.
//!
//! Each finding is a sentence with the way out. Pollers refuse, the rest is said. Not here: changing any of it.

use crate::error::Error;
use crate::host::Host;
use crate::model::Schedule;
use crate::pollers::IRQ_THREAD_PRIORITY;
use crate::vm::cpuset;
use crate::vm::model::Vm;
use crate::vm::plan::ThreadPlan;
use crate::vm::record::VmRecord;
use crate::vm::request::TuneRequest;
use crate::CpuList;

/// How many interrupts are named one by one.
const IRQS_SHOWN: usize = 8;

/// Refuses CPUs that have pollers; with `force` the sentence is returned instead.
pub(super) fn refuse_pollers(
    request: &TuneRequest,
    pollers: &[u32],
    force: bool,
) -> Result<Option<String>, Error> {
    let cpus = request.cpus();
    let taken: CpuList = pollers
        .iter()
        .copied()
        .filter(|cpu| cpus.contains(*cpu))
        .collect();
    if taken.is_empty() {
        return Ok(None);
    }
    let words = format!(
        "CPU {taken} has a kbp poller: a vCPU with a real-time priority like the poller's or above keeps it from running, \
         and with a lower one never runs while it polls"
    );
    match force {
        true => Ok(Some(words)),
        false => Err(Error::Conflict(format!(
            "{words}; name other CPUs, delete it with `kbp poller del`, or have it so with --force"
        ))),
    }
}

/// Real-time threads that get no CPUs may come to those of pollers.
pub(super) fn strays(
    request: &TuneRequest,
    threads: &[ThreadPlan],
    pollers: &[u32],
) -> Option<String> {
    let roams = |one: &&ThreadPlan| {
        let (has_cpus, schedule) = request.of(one.thread.role);
        !has_cpus && schedule.is_some() && one.to.scheduling.is_real_time()
    };
    let roaming: Vec<&ThreadPlan> = threads.iter().filter(roams).collect();
    let reaches = |cpu: &u32| roaming.iter().any(|one| one.to.affinity.contains(*cpu));
    let reached: CpuList = pollers.iter().copied().filter(reaches).collect();
    (!reached.is_empty()).then(|| {
        format!(
            "real-time threads without CPUs of their own may run on CPU {reached}, which has a kbp poller, and wait for it or \
             keep it waiting; name CPUs in --vcpu-cpus or --vhost-cpus"
        )
    })
}

/// Everything that a person should know about the CPUs of this wish. `others`: what other machines have.
pub(super) fn notes(
    host: &Host,
    vm: &Vm,
    request: &TuneRequest,
    others: &[&VmRecord],
) -> Result<Vec<String>, Error> {
    let cpus = request.cpus();
    let mut notes = shared_cpus(vm, request, others);
    notes.extend(limits(host, request));
    if !cpus.is_empty() {
        notes.extend(not_isolated(host, &cpus));
        notes.extend(interrupts(host, &cpus)?);
    }
    Ok(notes)
}

fn common(one: &CpuList, other: &CpuList) -> CpuList {
    one.iter().filter(|cpu| other.contains(*cpu)).collect()
}

/// CPUs that more than one of these threads is to have.
fn shared_cpus(vm: &Vm, request: &TuneRequest, others: &[&VmRecord]) -> Vec<String> {
    let mut notes = Vec::new();
    let (vcpus, vhosts) = (request.vcpu_list(), request.vhost_list());
    let both = common(&vcpus, &vhosts);
    if !both.is_empty() {
        notes.push(format!(
            "vCPUs and vhost workers share CPU {both}: a vCPU with a real-time priority that does not sleep keeps the worker \
             from its packets; name CPUs of their own in --vhost-cpus"
        ));
    }
    let (count, has) = (vm.vcpus().count(), vcpus.len());
    if has > 0 && count > has {
        notes.push(format!(
            "{count} vCPUs share CPU {vcpus}: with SCHED_FIFO one waits until the other sleeps; --vcpu-cpus with {count} CPUs \
             gives each one of its own"
        ));
    }
    let (count, has) = (vm.vhost_workers().count(), vhosts.len());
    if has > 0 && count > has {
        notes.push(format!(
            "{count} vhost workers share CPU {vhosts}; --vhost-cpus with {count} CPUs gives each one of its own"
        ));
    }
    if has > 0 && count == 0 {
        notes.push(
            "it has no vhost worker now; the same command again tunes those that come, `kbp vm verify` names them".into(),
        );
    }
    for other in others {
        let both = common(&request.cpus(), &other.requested.cpus());
        if !both.is_empty() {
            notes.push(format!("{} has CPU {both}, too", other.label()));
        }
    }
    notes
}

/// Where kernels since 6.12 say how much of a CPU others get beside real-time threads.
const FAIR_SERVER: &str = "sys/kernel/debug/sched/fair_server";

/// What kernels since 6.12 do with a real-time thread that does not sleep: others have a share of the CPU all the same,
/// and kernel.sched_rt_runtime_us has no meaning for that any more. `None` on older ones, and where debugfs is not in sight.
fn fair_server(host: &Host, cpus: &CpuList) -> Option<String> {
    let cpus = match cpus.is_empty() {
        true => host.online_cpus().ok()?,
        false => cpus.clone(),
    };
    let number =
        |cpu: u32, name: &str| host.read_number::<u64>(&format!("{FAIR_SERVER}/cpu{cpu}/{name}"));
    let first = cpus.iter().next()?;
    let (runtime_ns, period_ns) = (
        number(first, "runtime").ok()?,
        number(first, "period").ok()?,
    );
    let is_off = cpus
        .iter()
        .all(|cpu| number(cpu, "runtime").is_ok_and(|ns| ns == 0));
    Some(match is_off {
        true => format!(
            "the kernel's fair server is off on CPU {cpus}: a real-time vCPU that does not sleep keeps everything else from its \
             CPU, threads of the kernel too"
        ),
        false => format!(
            "the kernel's fair server has up to {} of {} us of CPU {first} for tasks that a real-time vCPU would keep waiting; \
             `echo 0 > /{FAIR_SERVER}/cpu{first}/runtime` ends that, for each CPU",
            runtime_ns / 1000,
            period_ns / 1000
        ),
    })
}

/// The same on older kernels, and where it can't be found out.
fn throttling(host: &Host) -> Option<String> {
    let number = |name: &str| host.read_number::<i64>(&format!("proc/sys/kernel/{name}"));
    match (number("sched_rt_runtime_us").ok()?, number("sched_rt_period_us").ok()?) {
        (-1, _) => Some(
            "kernel.sched_rt_runtime_us is -1: a real-time vCPU that does not sleep is never stopped, and keeps everything else, \
             threads of the kernel too, from its CPU"
                .into(),
        ),
        (runtime_us, period_us) if runtime_us < period_us => Some(format!(
            "kernel.sched_rt_runtime_us is {runtime_us} of {period_us} us: real-time threads that do not sleep may be stopped \
             for {} us of each period; `sysctl kernel.sched_rt_runtime_us=-1` ends that, for all CPUs",
            period_us - runtime_us
        )),
        _ => None,
    }
}

/// What the kernel does with real-time threads that do not sleep, and they with it.
fn limits(host: &Host, request: &TuneRequest) -> Vec<String> {
    if !request.is_real_time() {
        return Vec::new();
    }
    let limit = fair_server(host, &request.cpus()).or_else(|| throttling(host));
    let mut notes: Vec<String> = limit.into_iter().collect();
    let schedules = [request.priority, request.vhost_priority]
        .into_iter()
        .flatten();
    let highest = schedules.filter_map(|schedule| match schedule {
        Schedule::Fifo { priority } => Some(priority),
        Schedule::Other { .. } => None,
    });
    let highest = highest.max().unwrap_or_default();
    if highest >= IRQ_THREAD_PRIORITY && host.is_preempt_rt() {
        notes.push(format!(
            "with priority {highest} these threads keep the threads that handle interrupts on this PREEMPT_RT kernel \
             (SCHED_FIFO {IRQ_THREAD_PRIORITY}) from their CPUs"
        ));
    }
    notes
}

/// CPUs to which the scheduler moves other tasks, too, and those of the others that have a tick.
fn not_isolated(host: &Host, cpus: &CpuList) -> Vec<String> {
    let read = |name: &str| {
        let list = host.read_cpu_list(&format!("sys/devices/system/cpu/{name}"));
        // Where there are none the file holds "(null)" on some kernels.
        list.unwrap_or_default()
    };
    let (domains, partitions, tickless) =
        (read("isolated"), cpuset::isolated(host), read("nohz_full"));
    let is_isolated = |cpu: u32| domains.contains(cpu) || partitions.contains(cpu);
    let open: CpuList = cpus.iter().filter(|cpu| !is_isolated(*cpu)).collect();
    let ticks = cpus
        .iter()
        .filter(|cpu| is_isolated(*cpu) && !tickless.contains(*cpu));
    let ticks: CpuList = ticks.collect();
    let mut notes = Vec::new();
    if !open.is_empty() {
        notes.push(format!(
            "CPU {open} is not isolated: the scheduler puts other tasks there, too; `isolcpus=domain,managed_irq,{cpus} \
             nohz_full={cpus} rcu_nocbs={cpus}` on the kernel command line, or an isolated cpuset partition, keeps them away"
        ));
    }
    if !ticks.is_empty() {
        notes.push(format!(
            "CPU {ticks} is isolated and has the kernel's tick; `nohz_full={ticks} rcu_nocbs={ticks}` on the kernel command \
             line stops it while one thread runs there"
        ));
    }
    notes
}

/// Interrupts of devices that go to these CPUs.
fn interrupts(host: &Host, cpus: &CpuList) -> Result<Vec<String>, Error> {
    let others: CpuList = host
        .online_cpus()?
        .iter()
        .filter(|cpu| !cpus.contains(*cpu))
        .collect();
    let mut notes = Vec::new();
    let mut more = 0;
    for line in host.interrupts()?.lines {
        let Some(irq) = line.irq.filter(|_| !line.actions.is_empty()) else {
            continue;
        };
        // Those that end meanwhile, and those that have no affinity, are in nobody's way.
        let Ok(asked) = host.irq_affinity(irq) else {
            continue;
        };
        let is_pinned = !asked.is_empty() && asked.iter().all(|cpu| cpus.contains(cpu));
        // What it really goes to follows with the next interrupt, so what was asked for counts, too.
        let real = host.irq_effective_affinity(irq).ok().flatten();
        let real = real.filter(|real| !real.is_empty() && !is_pinned);
        let goes = real.unwrap_or(asked);
        let hit = common(&goes, cpus);
        if hit.is_empty() {
            continue;
        }
        if notes.len() == IRQS_SHOWN {
            more += 1;
            continue;
        }
        let how = if is_pinned { "is pinned to" } else { "goes to" };
        let way_out = match others.is_empty() {
            true => String::new(),
            false => format!("; `echo {others} > /proc/irq/{irq}/smp_affinity_list` moves it"),
        };
        notes.push(format!(
            "interrupt {} {how} CPU {hit}{way_out}",
            line.name()
        ));
    }
    if more > 0 {
        notes.push(format!(
            "{more} more interrupts go to CPU {cpus}; /proc/interrupts has them"
        ));
    }
    Ok(notes)
}
