// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table; who can run on machines that are not this one; and the mechanisms that this machine can set up, for
//! real, in network namespaces of their own.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kbp_core::ethtool::{set_offload, Offload};
use kbp_core::process::Process;
use kbp_core::Class;

use super::family::{memory, Bench};
use super::*;
use crate::compare::rig::Link;
use crate::result::{Cpus, Row, Witness};

const REFERENCE: &str = include_str!("../../../../docs/reference/mechanisms.md");

#[test]
fn the_table_is_consistent_and_documented() {
    let mut names: Vec<&str> = MECHANISMS.iter().map(|m| m.name).collect();
    assert_eq!(names[0], "softirq", "everything is compared with the first");
    for mechanism in MECHANISMS {
        let heading = format!("## `{}`", mechanism.name);
        assert!(REFERENCE.contains(&heading), "no section {heading}");
        assert_eq!(find(mechanism.name).unwrap(), mechanism);
        let undoable = mechanism.changes == Changes::NONE || mechanism.changes_machine;
        assert!(undoable, "{} changes and does not say so", mechanism.name);
    }
    // Whatever the module serves in a mode of its own is a mechanism.
    for mode in Mode::ALL.iter().filter(|mode| **mode != Mode::Softirq) {
        find(&format!("kbp-{mode}")).unwrap();
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), MECHANISMS.len());
    let error = find("no-such").unwrap_err().to_string();
    assert!(error.contains("threaded-fifo"), "{error}");
}

/// A machine as a tree of files.
fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let dir = tempfile::tempdir().unwrap();
    let base = [
        ("proc/cmdline", "root=/dev/vda quiet\n"),
        ("proc/1/task/1/comm", "init\n"),
        ("proc/sys/kernel/osrelease", "any\n"),
        ("proc/kallsyms", ""),
    ];
    for (file, text) in base.iter().chain(files) {
        write(dir.path(), file, text);
    }
    let host = Host::at(dir.path());
    (dir, host)
}

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn answer(host: &Host, name: &str) -> std::result::Result<(), String> {
    let site = Site {
        host,
        links: &[],
        cpu: 2,
    };
    find(name).unwrap().can_run_at(&site)
}

fn refusal(host: &Host, name: &str) -> String {
    answer(host, name).unwrap_err()
}

#[test]
fn a_machine_without_it_says_what_is_missing() {
    let (_dir, bare) = machine(&[]);
    assert_eq!(answer(&bare, "softirq"), Ok(()));
    assert!(refusal(&bare, "busy-read").contains("PREEMPT_RT has none"));
    assert!(refusal(&bare, "preempt-rt").contains("no PREEMPT_RT"));
    assert!(refusal(&bare, "backlog-threads").contains("has to be booted with thread_backlog_napi"));
    assert!(refusal(&bare, "kbp-busy").contains("CONFIG_LIVEPATCH"));
    let frequency = refusal(&bare, "kbp-sleep+freq");
    assert!(
        frequency.contains("CPU 2 has no frequency to choose"),
        "{frequency}"
    );
    let (_dir, old) = machine(&[("proc/cmdline", "thread_backlog_napi quiet")]);
    assert!(refusal(&old, "backlog-threads").contains("does not know it"));
    let (_dir, foreign) = machine(&[("sys/module/kbp/refcnt", "0\n")]);
    assert!(refusal(&foreign, "kbp-busy").contains("`kbp unload`"));
}

#[test]
fn a_machine_with_it_can_run_it() {
    let (_dir, rich) = machine(&[
        ("proc/cmdline", "thread_backlog_napi"),
        ("proc/30/task/30/comm", "backlog_napi/2\n"),
        ("proc/sys/net/core/busy_read", "0\n"),
        ("proc/sys/net/core/busy_poll", "0\n"),
        (
            "proc/version",
            "Linux version 7.3.4 (gcc) #1 SMP PREEMPT_RT Debian\n",
        ),
    ]);
    for name in ["backlog-threads", "busy-read", "preempt-rt"] {
        assert_eq!(answer(&rich, name), Ok(()), "{name}");
    }
}

/// Two namespaces and a veth between them. Gone with it, whatever happens.
struct Wire {
    names: [String; 2],
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("ip of iproute2 can be run");
    assert!(
        output.status.success(),
        "ip {arguments}: {} (these tests need root)",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Wire {
    /// Both ends are called `wire0`; `napi` gives them NAPI instances.
    fn new(tag: &str, napi: bool) -> Self {
        let names = ["a", "b"].map(|end| format!("kbpmech{}{tag}{end}", std::process::id()));
        for name in &names {
            ip(&format!("netns add {name}"));
        }
        let wire = Self { names };
        let [a, b] = &wire.names;
        ip(&format!(
            "-n {a} link add wire0 type veth peer name wire0 netns {b}"
        ));
        for (name, address) in [(a, "10.77.0.1/24"), (b, "10.77.0.2/24")] {
            ip(&format!("-n {name} address add {address} dev wire0"));
            ip(&format!("-n {name} link set wire0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        if napi {
            wire.links().iter().for_each(|link| {
                link.run(|ifname| {
                    set_offload(ifname, Offload::Receive, true).unwrap();
                    set_offload(ifname, Offload::Segmentation, false).unwrap();
                    Ok(())
                })
                .unwrap();
            });
        }
        wire
    }

    fn links(&self) -> Vec<Link> {
        let link = |name: &String| Link {
            ifname: "wire0".into(),
            netns: Some(name.clone()),
            has_interrupts: false,
        };
        self.names.iter().map(link).collect()
    }

    fn rig(&self) -> Rig {
        Rig::set_up(self.links(), None, cpus()).unwrap()
    }

    /// A datagram there and back.
    fn exchange(&self) {
        let socket = |index: usize, address: &'static str| {
            let bound = self.links()[index].run(|_| Ok(UdpSocket::bind(address).unwrap()));
            let socket: UdpSocket = bound.unwrap();
            let limit = Some(Duration::from_secs(5));
            socket.set_read_timeout(limit).unwrap();
            socket
        };
        let (near, far) = (socket(0, "10.77.0.1:7701"), socket(1, "10.77.0.2:7701"));
        let mut buffer = [0; 8];
        near.send_to(b"there", "10.77.0.2:7701").unwrap();
        assert_eq!(far.recv(&mut buffer).unwrap(), 5);
        far.send_to(b"back", "10.77.0.1:7701").unwrap();
        assert_eq!(near.recv(&mut buffer).unwrap(), 4);
    }

    /// A file of both ends' interface.
    fn read(&self, file: &str) -> [String; 2] {
        let read = |link: &Link| {
            link.run(|ifname| {
                let file = format!("sys/class/net/{ifname}/{file}");
                Ok(Host::system().read_trimmed(&file).unwrap())
            })
        };
        let links = self.links();
        [read(&links[0]).unwrap(), read(&links[1]).unwrap()]
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn cpus() -> Cpus {
    Cpus {
        housekeeping: 0,
        tester: 0,
        poller: 0,
        application: 0,
    }
}

/// Mechanisms of one machine take turns: the tests of this process by this lock, other processes by waiting.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits while another process, that of another test, has a mechanism set up.
fn in_turn<T>(mut try_it: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match try_it() {
            Err(error) if error.class() == Class::Conflict && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

fn set_up<'a>(name: &str, rig: &'a Rig, config: &'a MechanismConfig) -> Result<Active<'a>> {
    in_turn(|| Active::set_up(find(name)?, rig, config))
}

fn row_of(active: &Active<'_>, work: impl FnOnce()) -> Row {
    let (host, watch) = (Host::system(), active.watch());
    let before = watch.read(&host).unwrap();
    work();
    let between = watch.read(&host).unwrap().since(&before);
    Row {
        n: 1,
        witness: between.witness,
        ..Row::default()
    }
}

#[test]
fn threaded_napi_of_two_interfaces_of_one_name() {
    let _turn = turn();
    let wire = Wire::new("t", true);
    let (rig, config) = (wire.rig(), MechanismConfig::default());
    let active = set_up("threaded-fifo", &rig, &config).unwrap();
    let threads = active.watch().mode_threads;
    assert_eq!(
        threads.len(),
        2,
        "one for each end, although both have one name"
    );
    assert_eq!(wire.read("threaded"), ["1", "1"]);
    let row = row_of(&active, || wire.exchange());
    active.verify_row(&row).unwrap();
    let idle = Row {
        witness: Witness::default(),
        ..row
    };
    let error = active.verify_row(&idle).unwrap_err().to_string();
    assert!(error.contains("no CPU time"), "{error}");
    active.undo().unwrap();
    assert_eq!(wire.read("threaded"), ["0", "0"]);
    assert!(memory().unwrap().state.threaded.is_empty());
}

#[test]
fn plain_veth_has_the_stock_path_only_and_says_why() {
    let _turn = turn();
    let wire = Wire::new("p", false);
    let (rig, config) = (wire.rig(), MechanismConfig::default());
    for name in ["threaded", "busy-read"] {
        let why = find(name).unwrap().can_run(&rig).unwrap_err();
        assert!(why.contains("ethtool -K DEV gro on"), "{name}: {why}");
    }
    // On this host it is refused for want of live patching or for the path; never accepted.
    find("kbp-busy").unwrap().can_run(&rig).unwrap_err();
    let why = find("defer-irqs").unwrap().can_run(&rig).unwrap_err();
    assert!(
        why.contains("no interface of this path has interrupts"),
        "{why}"
    );
    let active = set_up("softirq", &rig, &config).unwrap();
    let row = row_of(&active, || wire.exchange());
    active.verify_row(&row).unwrap();
    // Something else changes what serves an interface: the stock path is not believed any more.
    wire.links()[1]
        .run(|ifname| {
            set_offload(ifname, Offload::Receive, true).unwrap();
            let file = format!("sys/class/net/{ifname}/threaded");
            Host::system().write(&file, "1").unwrap();
            Ok(())
        })
        .unwrap();
    let error = active.verify().unwrap_err().to_string();
    assert!(error.contains("threaded NAPI of wire0 is on"), "{error}");
}

#[test]
fn polling_sockets_are_switched_on_and_off() {
    let _turn = turn();
    let wire = Wire::new("s", true);
    let config = MechanismConfig {
        busy_read_us: 37,
        ..MechanismConfig::default()
    };
    let rig = wire.rig();
    let value = || Host::system().sysctl("net/core/busy_read").unwrap();
    let active = set_up("busy-read", &rig, &config).unwrap();
    assert_eq!(value(), "37");
    let error = set_up_at_once("threaded", &rig, &config);
    assert!(error.contains("busy-read is set up by process"), "{error}");
    // The other way of leaving: what is dropped is undone.
    drop(active);
    assert_eq!(value(), "0");
}

fn set_up_at_once(name: &str, rig: &Rig, config: &MechanismConfig) -> String {
    let refused = Active::set_up(find(name).unwrap(), rig, config);
    refused.unwrap_err().to_string()
}

/// The process that had the turn is dead: it had steered packets in two namespaces, one of which is gone.
#[test]
fn leftovers_of_a_process_that_died_are_undone_by_the_next() {
    let _turn = turn();
    let (wire, gone) = (Wire::new("l", false), Wire::new("g", false));
    let (rig, gone_rig, config) = (wire.rig(), gone.rig(), MechanismConfig::default());
    let before = wire.read("queues/rx-0/rps_cpus");
    in_turn(|| leftover::begin("backlog-threads")).unwrap();
    let bench = |rig| Bench {
        name: "backlog-threads",
        rig,
        config: &config,
    };
    steer::to_poller(&bench(&rig)).unwrap();
    steer::to_poller(&bench(&gone_rig)).unwrap();
    steer::verify(&bench(&rig)).unwrap();
    assert_ne!(wire.read("queues/rx-0/rps_cpus"), before);
    drop(gone);
    {
        let mut state = memory().unwrap();
        let own = Process::own(&Host::system()).unwrap();
        let process = Process {
            started_ticks: own.started_ticks - 1,
            ..own
        };
        state.state.mechanism.as_mut().unwrap().process = process;
        state.save().unwrap();
    }
    let undone = leftover::recover().unwrap().unwrap();
    assert!(undone.contains("backlog-threads"), "{undone}");
    assert_eq!(wire.read("queues/rx-0/rps_cpus"), before);
    let state = memory().unwrap().state.clone();
    assert!(state.settings.is_empty() && state.mechanism.is_none());
}
