// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tuning and its undo with threads of this test, which are bound for real; the rest of the host is plain files.
//!
//! Policies need privilege and are tested in the lab, with a real QEMU (`lab/tests/56-vm-tune.sh`).

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kbp_core::process::Process;
use kbp_core::sched::{self, Scheduling};
use kbp_core::state::{State, StateFile};
use kbp_core::vm::model::{Accelerator, Placement, Role, Thread, Vm, VmThread};
use kbp_core::vm::plan::plan;
use kbp_core::vm::request::TuneRequest;
use kbp_core::vm::undo::{untune, Outcome, Untuned};
use kbp_core::vm::{apply, plan::TunePlan};
use kbp_core::{CpuList, Error, Host};
use tempfile::TempDir;

/// A CPU that no machine that runs this has, and that the files say is online.
const NO_CPU: u32 = 1000;

struct Worker {
    tid: u32,
    end: Option<Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    fn start() -> Self {
        let (said, hear): (Sender<u32>, Receiver<u32>) = channel();
        let (end, ended) = channel();
        let handle = std::thread::spawn(move || {
            said.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            // Ends when the sender goes.
            let _: Result<(), _> = ended.recv();
        });
        Self {
            tid: hear.recv().unwrap(),
            end: Some(end),
            handle: Some(handle),
        }
    }

    fn end(&mut self) {
        // To end it has to run, wherever there is room.
        let _ = sched::set_affinity(self.tid, &sched::affinity(0).unwrap());
        self.end = None;
        if let Some(handle) = self.handle.take() {
            handle.join().unwrap();
            self.wait_until_gone();
        }
    }

    /// Who joins a thread is woken before the kernel has taken it from /proc.
    fn wait_until_gone(&self) {
        let task = format!("/proc/self/task/{}", self.tid);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Path::new(&task).exists() {
            assert!(Instant::now() < deadline, "thread {} stays", self.tid);
            std::thread::yield_now();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

const GOVERNOR: &str = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

/// The real /proc beside a /sys of files: every CPU is online, CPU 0 has a frequency.
fn host() -> (TempDir, Host) {
    let dir = TempDir::new().unwrap();
    symlink("/proc", dir.path().join("proc")).unwrap();
    let host = Host::at(dir.path());
    let write = |file: &str, text: &str| {
        let path = host.path(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("sys/devices/system/cpu/online", "0-1023\n");
    write(GOVERNOR, "ondemand\n");
    let cpufreq = "sys/devices/system/cpu/cpu0/cpufreq";
    write(
        &format!("{cpufreq}/scaling_available_governors"),
        "ondemand performance\n",
    );
    write(&format!("{cpufreq}/related_cpus"), "0\n");
    write(
        "sys/devices/system/cpu/cpufreq/ondemand/up_threshold",
        "71\n",
    );
    (dir, host)
}

fn vm_thread(host: &Host, tid: u32, role: Role) -> VmThread {
    let process = Process::with_pid(host, tid).unwrap().unwrap();
    VmThread {
        role,
        thread: Thread {
            tid,
            started_ticks: process.started_ticks,
        },
        comm: String::new(),
        placement: Placement {
            affinity: sched::affinity(tid).unwrap(),
            scheduling: Scheduling::other(),
            nice: 0,
        },
    }
}

/// This process as a machine with these threads.
fn vm(host: &Host, workers: &[&Worker]) -> Vm {
    let thread = |(index, worker): (usize, &&Worker)| {
        let index = index as u32;
        vm_thread(host, worker.tid, Role::Vcpu { index })
    };
    Vm {
        process: Process::own(host).unwrap(),
        name: Some("demo".into()),
        accelerator: Accelerator::Tcg,
        threads: workers.iter().enumerate().map(thread).collect(),
        unknown_vcpus: None,
    }
}

/// CPUs for the vCPUs, and no policy.
fn wish(cpus: &[u32]) -> TuneRequest {
    TuneRequest {
        vcpu_cpus: Some(cpus.to_vec()),
        priority: Some("o:0".parse().unwrap()),
        ..TuneRequest::default()
    }
}

fn planned(host: &Host, state: &State, workers: &[&Worker], cpus: &[u32]) -> TunePlan {
    plan(host, state, &vm(host, workers), &wish(cpus), &[], false).unwrap()
}

fn tune(host: &Host, workers: &[&Worker], cpus: &[u32]) -> Result<apply::Tuned, Error> {
    let mut memory = StateFile::open(host).unwrap();
    let plan = planned(host, &memory.state, workers, cpus);
    apply::tune(host, &mut memory, &plan)
}

fn undo(host: &Host) -> Untuned {
    let mut memory = StateFile::open(host).unwrap();
    let record = memory.state.vms[0].clone();
    let untuned = untune(host, &mut memory, &record).unwrap();
    assert!(memory.state.vms.is_empty() && memory.state.vm_governors.is_empty());
    untuned
}

fn governor(host: &Host) -> String {
    host.read_trimmed(GOVERNOR).unwrap()
}

#[test]
fn everything_goes_back_to_how_it_was_first() {
    let (_dir, host) = host();
    let (one, other) = (Worker::start(), Worker::start());
    let all = sched::affinity(0).unwrap();
    let last = all.iter().last().unwrap();
    tune(&host, &[&one, &other], &[0]).unwrap();
    assert_eq!(sched::affinity(one.tid).unwrap(), CpuList::one(0));
    assert_eq!(governor(&host), "performance");
    // The kernel makes a governor's files anew when it comes back.
    let tunable = "sys/devices/system/cpu/cpufreq/ondemand/up_threshold";
    host.write(tunable, "95").unwrap();
    tune(&host, &[&one, &other], &[last]).unwrap();
    assert_eq!(sched::affinity(other.tid).unwrap(), CpuList::one(last));
    let untuned = undo(&host);
    assert_eq!(untuned.threads.len(), 2);
    for worker in [&one, &other] {
        assert_eq!(sched::affinity(worker.tid).unwrap(), all);
    }
    assert_eq!(governor(&host), "ondemand");
    if last != 0 {
        // CPU 0 was given up by the second wish, and its governor with it.
        assert!(untuned.governors.is_empty(), "{untuned:?}");
    }
    assert_eq!(host.read_trimmed(tunable).unwrap(), "71");
}

#[test]
fn a_failed_step_leaves_nothing_changed() {
    let (_dir, host) = host();
    let (one, other) = (Worker::start(), Worker::start());
    let all = sched::affinity(one.tid).unwrap();
    let before = StateFile::open(&host).unwrap().state;
    let error = tune(&host, &[&one, &other], &[0, NO_CPU]).unwrap_err();
    assert!(matches!(error, Error::RolledBack { .. }), "{error}");
    assert!(error.to_string().contains("to CPUs 1000"), "{error}");
    for worker in [&one, &other] {
        assert_eq!(sched::affinity(worker.tid).unwrap(), all);
    }
    assert_eq!(governor(&host), "ondemand");
    assert_eq!(StateFile::open(&host).unwrap().state, before);
}

#[test]
fn what_could_not_be_undone_stays_remembered() {
    let (_dir, host) = host();
    let (one, other) = (Worker::start(), Worker::start());
    let mut memory = StateFile::open(&host).unwrap();
    let mut machine = vm(&host, &[&one, &other]);
    // Where it was, it can't be any more.
    machine.threads[0].placement.affinity = CpuList::one(NO_CPU);
    let wish = wish(&[0, NO_CPU]);
    let plan = plan(&host, &memory.state, &machine, &wish, &[], false).unwrap();
    let error = apply::tune(&host, &mut memory, &plan).unwrap_err();
    assert!(matches!(error, Error::LeftChanged { .. }), "{error}");
    drop(memory);
    let state = StateFile::open(&host).unwrap().state;
    let known = &state.vms[0].threads[0];
    assert_eq!(known.thread.tid, one.tid);
    assert_eq!(known.original.affinity, CpuList::one(NO_CPU));
}

#[test]
fn the_first_governor_comes_back_when_the_process_died_before_the_second_was_written() {
    let (_dir, host) = host();
    let worker = Worker::start();
    tune(&host, &[&worker], &[0]).unwrap();
    let mut memory = StateFile::open(&host).unwrap();
    let record = memory.state.vm_governors.get_mut(&0).unwrap();
    assert_eq!(
        (record.set.as_str(), &record.before),
        ("performance", &None)
    );
    record.set = "powersave".into();
    record.before = Some("performance".into());
    memory.save().unwrap();
    drop(memory);
    // Also where it is tuned again first.
    tune(&host, &[&worker], &[0]).unwrap();
    undo(&host);
    assert_eq!(governor(&host), "ondemand");
}

#[test]
fn what_somebody_else_changed_is_left_alone() {
    let (_dir, host) = host();
    let worker = Worker::start();
    let all = sched::affinity(worker.tid).unwrap();
    let last = all.iter().last().unwrap();
    tune(&host, &[&worker], &[0]).unwrap();
    sched::set_affinity(worker.tid, &CpuList::one(last)).unwrap();
    host.write(GOVERNOR, "powersave").unwrap();
    let untuned = undo(&host);
    let is_alone = matches!(&untuned.threads[0].outcome, Outcome::LeftAlone { what, .. } if what == "affinity");
    // With a single CPU there is no other to be moved to.
    assert_eq!(is_alone, last != 0, "{untuned:?}");
    assert!(untuned
        .sentences()
        .join("\n")
        .contains("something else chose powersave"));
    assert_eq!(governor(&host), "powersave");
}

#[test]
fn threads_and_machines_that_end_are_no_failure() {
    let (_dir, host) = host();
    let (mut one, other) = (Worker::start(), Worker::start());
    let mut memory = StateFile::open(&host).unwrap();
    let plan = planned(&host, &memory.state, &[&one, &other], &[0]);
    one.end();
    let tuned = apply::tune(&host, &mut memory, &plan).unwrap();
    assert!(
        tuned.notes[0].contains("has ended meanwhile"),
        "{:?}",
        tuned.notes
    );
    assert_eq!(tuned.threads.len(), 1);
    // The record of a machine whose number another process has now.
    memory.state.vms[0].process.started_ticks -= 1;
    memory.state.vm_governors.get_mut(&0).unwrap().users[0].started_ticks -= 1;
    let record = memory.state.vms[0].clone();
    let untuned = untune(&host, &mut memory, &record).unwrap();
    assert!(
        untuned.has_ended && untuned.threads.is_empty(),
        "{untuned:?}"
    );
    assert_eq!(governor(&host), "ondemand");
    assert_eq!(
        sched::affinity(other.tid).unwrap(),
        CpuList::one(0),
        "it is not that machine's"
    );
    assert!(memory.state.vms.is_empty());
}
