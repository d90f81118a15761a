// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines on a host of plain files: found, told apart, planned for, refused. `vm_threads.rs` has real threads.

mod common;

use std::os::unix::fs::symlink;

use common::{Family, Machine};
use kbp_core::model::{PollerSpec, Schedule};
use kbp_core::plan::Session;
use kbp_core::process::Process;
use kbp_core::state::{State, StateFile};
use kbp_core::vm::model::{Accelerator, Role, Vm};
use kbp_core::vm::plan::{plan, TunePlan};
use kbp_core::vm::record::VmRecord;
use kbp_core::vm::request::TuneRequest;
use kbp_core::{Class, Error};

const KERNEL_THREAD: u64 = 0x0020_0000;

fn thread(machine: &Machine, pid: u32, tid: u32, comm: &str, flags: u64) {
    machine.write(&format!("proc/{pid}/task/{tid}/comm"), &format!("{comm}\n"));
    let stat = format!(
        "{tid} ({comm}) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n",
        tid + 1000
    );
    machine.write(&format!("proc/{tid}/stat"), &stat);
    machine.write(
        &format!("proc/{tid}/status"),
        "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n",
    );
}

/// A process of QEMU with these threads beside its first.
fn qemu(machine: &Machine, pid: u32, line: &str, threads: &[(u32, &str)]) {
    thread(machine, pid, pid, "qemu-system-x86", 0);
    for (tid, comm) in threads {
        thread(machine, pid, *tid, comm, 0);
    }
    let line = format!("qemu-system-x86_64 {line}").replace(' ', "\0") + "\0";
    machine.write(&format!("proc/{pid}/cmdline"), &line);
    let exe = machine.host.path(&format!("proc/{pid}/exe"));
    symlink("/usr/bin/qemu-system-x86_64", exe).unwrap();
}

const NAMED: &str = "-name guest=demo,debug-threads=on -smp 2";

/// A machine `demo` of process 100 with two vCPUs and a worker of vhost, on a host with frequencies.
fn demo() -> Machine {
    let machine = Machine::new();
    qemu(
        &machine,
        100,
        NAMED,
        &[
            (102, "CPU 1/KVM"),
            (101, "CPU 0/KVM"),
            (103, "IO mon_iothread"),
        ],
    );
    thread(&machine, 200, 200, "vhost-100", KERNEL_THREAD);
    machine.write("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
    machine.write("proc/sys/kernel/sched_rt_period_us", "1000000\n");
    machine.write("sys/devices/system/cpu/isolated", "\n");
    for cpu in 0..4 {
        let file = |name| format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}");
        machine.write(&file("scaling_governor"), "schedutil\n");
        machine.write(
            &file("scaling_available_governors"),
            "performance schedutil\n",
        );
        machine.write(&file("related_cpus"), &format!("{cpu}\n"));
    }
    for (irq, cpu) in [(1, 0), (24, 0), (25, 0), (26, 2), (27, 0)] {
        machine.write(
            &format!("proc/irq/{irq}/smp_affinity_list"),
            &format!("{cpu}\n"),
        );
    }
    machine
}

fn the_vm(machine: &Machine) -> Vm {
    let mut vms = machine.host.vms().unwrap();
    assert_eq!(vms.len(), 1, "{vms:?}");
    vms.remove(0)
}

fn wish(vcpus: &[u32], vhosts: &[u32]) -> TuneRequest {
    let some = |cpus: &[u32]| Some(cpus.to_vec()).filter(|cpus| !cpus.is_empty());
    TuneRequest {
        vcpu_cpus: some(vcpus),
        vhost_cpus: some(vhosts),
        ..TuneRequest::default()
    }
}

fn planned(
    machine: &Machine,
    wish: &TuneRequest,
    pollers: &[u32],
    force: bool,
) -> Result<TunePlan, Error> {
    let vm = the_vm(machine);
    plan(&machine.host, &State::default(), &vm, wish, pollers, force)
}

fn has_note(plan: &TunePlan, words: &[&str]) -> bool {
    plan.notes
        .iter()
        .any(|note| words.iter().all(|word| note.contains(word)))
}

#[test]
fn a_poller_and_a_machine_do_not_get_the_same_cpu_in_either_order() {
    let machine = demo();
    let on_2 = TuneRequest {
        vcpu_cpus: Some(vec![1, 2]),
        ..TuneRequest::default()
    };
    let refused = planned(&machine, &on_2, &[2], false).unwrap_err();
    assert_eq!(refused.class(), Class::Conflict);
    let mut memory = StateFile::open(&machine.host).unwrap();
    memory.state.vms.push(VmRecord {
        process: the_vm(&machine).process,
        name: Some("demo".into()),
        requested: on_2,
        forced: false,
        threads: Vec::new(),
    });
    memory.save().unwrap();
    drop(memory);
    let mut family = Family::default();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let refused = session.plan_poller(&PollerSpec::new(2)).unwrap_err();
    assert_eq!(refused.class(), Class::Conflict);
    assert!(refused.to_string().contains("demo"), "{refused}");
    session.plan_poller(&PollerSpec::new(3)).unwrap();
    drop(session);
    // Somebody wants both there.
    let mut memory = StateFile::open(&machine.host).unwrap();
    memory.state.vms[0].forced = true;
    memory.save().unwrap();
    drop(memory);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    session.plan_poller(&PollerSpec::new(2)).unwrap();
    drop(session);
    let mut memory = StateFile::open(&machine.host).unwrap();
    memory.state.vms[0].forced = false;
    memory.save().unwrap();
    drop(memory);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    std::fs::remove_dir_all(machine.host.path("proc/100")).unwrap();
    session.plan_poller(&PollerSpec::new(2)).unwrap();
}

#[test]
fn real_time_threads_that_may_come_to_a_poller_are_said() {
    let machine = demo();
    let wish = |schedule: &str| TuneRequest {
        priority: Some(schedule.parse().unwrap()),
        ..TuneRequest::default()
    };
    let words = ["CPU 3", "kbp poller"];
    let plan = planned(&machine, &wish("f:60"), &[3, 9], false).unwrap();
    assert!(has_note(&plan, &words), "{:?}", plan.notes);
    let plan = planned(&machine, &wish("o:0"), &[3], false).unwrap();
    assert!(!has_note(&plan, &words), "{:?}", plan.notes);
}

#[test]
fn threads_are_told_apart_on_old_and_new_kernels() {
    let machine = demo();
    // A process of somebody that is merely called so, and a worker of another machine.
    thread(&machine, 300, 300, "vhost-100", 0);
    thread(&machine, 301, 301, "vhost-99", KERNEL_THREAD);
    // Since Linux 6.4 a worker is a thread of the process.
    thread(&machine, 100, 104, "vhost-100", 0);
    let vm = the_vm(&machine);
    assert_eq!(
        (vm.name.as_deref(), vm.accelerator),
        (Some("demo"), Accelerator::Kvm)
    );
    assert_eq!(vm.process.pid, 100);
    let roles: Vec<_> = vm
        .threads
        .iter()
        .map(|one| (one.role, one.thread.tid))
        .collect();
    let want = [
        (Role::Vcpu { index: 0 }, 101),
        (Role::Vcpu { index: 1 }, 102),
        (Role::Vhost, 104),
        (Role::Vhost, 200),
    ];
    assert_eq!(roles, want);
    assert_eq!(vm.threads[0].placement.to_string(), "CPU 0-3, SCHED_OTHER");
}

#[test]
fn vcpus_without_names_are_told_by_the_call_that_runs_them() {
    let machine = Machine::new();
    let comm = "qemu-system-x86";
    qemu(
        &machine,
        100,
        "-name plain -enable-kvm",
        &[(101, comm), (102, comm), (103, comm)],
    );
    std::fs::create_dir_all(machine.host.path("proc/100/fd")).unwrap();
    for (descriptor, index) in [(27, 1), (28, 0)] {
        let link = machine.host.path(&format!("proc/100/fd/{descriptor}"));
        symlink(format!("anon_inode:kvm-vcpu:{index}"), link).unwrap();
    }
    machine.write("proc/100/task/101/syscall", "271 0x5 0xae80 0x0\n");
    machine.write(
        "proc/100/task/102/syscall",
        "16 0x1b 0xae80 0x0 0x0 0x0 0x0 0x1 0x2\n",
    );
    machine.write("proc/100/task/103/syscall", "running\n");
    let vm = the_vm(&machine);
    assert_eq!(vm.accelerator, Accelerator::Kvm);
    let known: Vec<_> = vm
        .threads
        .iter()
        .map(|one| (one.role, one.thread.tid))
        .collect();
    assert_eq!(known, [(Role::Vcpu { index: 1 }, 102)]);
    let reason = vm.unknown_vcpus.unwrap();
    assert!(
        reason.contains("1 of its 2 vCPU threads") && reason.contains("debug-threads=on"),
        "{reason}"
    );
    machine.write(
        "proc/100/task/103/syscall",
        "16 0x1c 0xae80 0x0 0x0 0x0 0x0 0x1 0x2\n",
    );
    let vm = the_vm(&machine);
    let known: Vec<_> = vm.threads.iter().map(|one| one.thread.tid).collect();
    assert_eq!((known, vm.unknown_vcpus), (vec![103, 102], None));
}

#[test]
fn a_plan_says_every_change_and_what_else_is_on_these_cpus() {
    let machine = demo();
    let plan = planned(&machine, &wish(&[2, 3], &[3]), &[], false).unwrap();
    let base = "write 'performance' to /sys/devices/system/cpu";
    let want = [
        format!("{base}/cpu2/cpufreq/scaling_governor ('schedutil' now)"),
        format!("{base}/cpu3/cpufreq/scaling_governor ('schedutil' now)"),
        "bind vCPU 0 (thread 101) to CPU 2 (now 0-3)".into(),
        "set vCPU 0 (thread 101) to SCHED_FIFO 1 (now SCHED_OTHER)".into(),
        "bind vCPU 1 (thread 102) to CPU 3 (now 0-3)".into(),
        "set vCPU 1 (thread 102) to SCHED_FIFO 1 (now SCHED_OTHER)".into(),
        "bind vhost worker (thread 200) to CPU 3 (now 0-3)".into(),
    ];
    assert_eq!(plan.changes(), want);
    for words in [
        [
            "interrupt 26 eth0-tx-0 is pinned to CPU 2",
            "echo 0-1 > /proc/irq/26",
        ],
        ["share CPU 3", "--vhost-cpus"],
        ["CPU 2-3 is not isolated", "isolcpus="],
        ["950000 of 1000000 us", "50000 us"],
    ] {
        assert!(has_note(&plan, &words), "{words:?}: {:#?}", plan.notes);
    }
    machine.write("sys/devices/system/cpu/isolated", "2-3\n");
    machine.write("proc/irq/26/smp_affinity_list", "0-3\n");
    machine.write("proc/irq/26/effective_affinity_list", "0\n");
    machine.write("proc/sys/kernel/sched_rt_runtime_us", "-1\n");
    let plan = planned(&machine, &wish(&[2, 3], &[1]), &[], false).unwrap();
    assert!(
        has_note(&plan, &["CPU 1 is not isolated"]),
        "{:#?}",
        plan.notes
    );
    assert!(
        has_note(&plan, &["CPU 2-3 is isolated and has the kernel's tick"]),
        "{:#?}",
        plan.notes
    );
    assert!(
        has_note(&plan, &["never stopped"]) && !has_note(&plan, &["interrupt"]),
        "{:#?}",
        plan.notes
    );
    for (name, ns) in [("runtime", "50000000\n"), ("period", "1000000000\n")] {
        machine.write(
            &format!("sys/kernel/debug/sched/fair_server/cpu1/{name}"),
            ns,
        );
    }
    let plan = planned(&machine, &wish(&[2, 3], &[1]), &[], false).unwrap();
    assert!(
        has_note(&plan, &["up to 50000 of 1000000 us of CPU 1"])
            && !has_note(&plan, &["never stopped"]),
        "{:#?}",
        plan.notes
    );
    let one_cpu = planned(&machine, &wish(&[2], &[]), &[], false).unwrap();
    assert!(
        has_note(&one_cpu, &["2 vCPUs share CPU 2"]),
        "{:#?}",
        one_cpu.notes
    );
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() {
    let machine = demo();
    let refused = |wish: &TuneRequest, pollers: &[u32], class: Class, words: &str| {
        let error = planned(&machine, wish, pollers, false).unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(&wish(&[], &[]), &[], Class::Usage, "--vcpu-cpus");
    refused(&wish(&[2, 4], &[]), &[], Class::NotFound, "CPU 4");
    refused(
        &wish(&[2], &[3]),
        &[3],
        Class::Conflict,
        "CPU 3 has a kbp poller",
    );
    let named = TuneRequest {
        governor: Some("ondemand".into()),
        ..wish(&[2], &[])
    };
    refused(&named, &[], Class::Unsupported, "--governor keep");
    let no_cpus = TuneRequest {
        governor: Some("performance".into()),
        ..TuneRequest::default()
    };
    refused(&no_cpus, &[], Class::Usage, "--vhost-cpus");
    machine.write("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    machine.write("proc/101/cgroup", "0::/machine.slice/demo/libvirt\n");
    machine.write("sys/fs/cgroup/machine.slice/cpuset.cpus.effective", "0-2\n");
    refused(&wish(&[3], &[]), &[], Class::Conflict, "lacks CPU 3");
    planned(&machine, &wish(&[2], &[]), &[], false).unwrap();
    let forced = planned(&machine, &wish(&[2], &[]), &[2], true).unwrap();
    assert!(
        has_note(&forced, &["CPU 2 has a kbp poller"]),
        "{:#?}",
        forced.notes
    );
}

#[test]
fn governors_that_are_so_shared_missing_or_a_pollers() {
    let machine = demo();
    let cpufreq = |cpu: u32, name: &str| format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}");
    machine.write(&cpufreq(0, "scaling_governor"), "kbp\n");
    machine.write(&cpufreq(1, "scaling_governor"), "performance\n");
    for cpu in [2, 3] {
        machine.write(&cpufreq(cpu, "related_cpus"), "2 3\n");
    }
    let writes = |wish: &TuneRequest| {
        let plan = planned(&machine, wish, &[], false).unwrap();
        let changes = plan
            .changes()
            .into_iter()
            .filter(|change| change.starts_with("write"));
        (changes.count(), plan)
    };
    let (count, plan) = writes(&wish(&[0, 1], &[2]));
    assert_eq!(count, 1, "{:#?}", plan.changes());
    assert!(
        has_note(&plan, &["CPU 0 follows a poller"]),
        "{:#?}",
        plan.notes
    );
    assert!(
        has_note(&plan, &["CPU 3 has one frequency with CPU 2"]),
        "{:#?}",
        plan.notes
    );
    machine.remove(&cpufreq(1, "scaling_governor"));
    let (count, plan) = writes(&wish(&[2, 3], &[1]));
    assert_eq!(count, 1, "{:#?}", plan.changes());
    assert!(
        has_note(&plan, &["CPU 1 has no frequency to choose"]),
        "{:#?}",
        plan.notes
    );
    let kept = TuneRequest {
        governor: Some("keep".into()),
        priority: Some(Schedule::Other { nice: 2 }),
        ..wish(&[2, 3], &[])
    };
    assert_eq!(writes(&kept).0, 0);
}

#[test]
fn machines_by_name_and_by_process() {
    let machine = demo();
    qemu(
        &machine,
        110,
        "-name guest=twin,debug-threads=on",
        &[(111, "CPU 0/TCG")],
    );
    qemu(
        &machine,
        120,
        "-name guest=twin,debug-threads=on",
        &[(121, "CPU 0/TCG")],
    );
    // One that is called like the process of another.
    qemu(
        &machine,
        130,
        "-name guest=120,debug-threads=on",
        &[(131, "CPU 0/TCG")],
    );
    thread(&machine, 140, 140, "bash", 0);
    let vms = machine.host.vms().unwrap();
    let find = |name: &str| {
        let name: kbp_core::vm::select::VmName = name.parse().unwrap();
        name.running(&machine.host, &vms).map(|vm| vm.process.pid)
    };
    assert_eq!((find("demo").unwrap(), find("110").unwrap()), (100, 110));
    assert_eq!(find("120").unwrap(), 130, "a name goes before a number");
    let error = find("twin").unwrap_err();
    assert_eq!(error.class(), Class::Usage);
    assert!(
        error
            .to_string()
            .contains("(process 110), VM twin (process 120)"),
        "{error}"
    );
    let error = find("nosuch").unwrap_err();
    assert_eq!(error.class(), Class::NotFound);
    assert!(
        error.to_string().contains("VM demo (process 100)"),
        "{error}"
    );
    let error = find("140").unwrap_err();
    assert!(
        error.to_string().contains("is no virtual machine"),
        "{error}"
    );
}

#[test]
fn another_machine_on_the_same_cpus_is_said_while_it_runs() {
    let machine = demo();
    qemu(
        &machine,
        110,
        "-name guest=twin,debug-threads=on",
        &[(111, "CPU 0/TCG")],
    );
    let vms = machine.host.vms().unwrap();
    let mut state = State::default();
    state.vms.push(VmRecord {
        process: vms[1].process,
        name: Some("twin".into()),
        requested: wish(&[3], &[]),
        forced: false,
        threads: Vec::new(),
    });
    let notes = |state: &State| {
        plan(
            &machine.host,
            state,
            &vms[0],
            &wish(&[2, 3], &[]),
            &[],
            false,
        )
        .unwrap()
    };
    assert!(has_note(
        &notes(&state),
        &["VM twin (process 110) has CPU 3, too"]
    ));
    state.vms[0].process = Process {
        started_ticks: 1,
        ..vms[1].process
    };
    assert!(
        !has_note(&notes(&state), &["has CPU 3, too"]),
        "an earlier process of that number"
    );
}
