// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Readings of made trees, and one of this machine.

use super::*;

/// What a made tree counts.
#[derive(Clone, Copy, Default)]
struct Counts {
    net_rx: u64,
    irqs: u64,
    thread_ns: u64,
    user_ticks: u64,
    missed: u64,
    energy_uj: u64,
}

/// A captured tree with ksoftirqd/2 as task 30, and one thread of the mode, the server and the client as tasks 40 to 42.
fn tree(dir: &std::path::Path, counts: Counts) -> Host {
    let write = |file: &str, text: String| {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let (net_rx, irqs) = (counts.net_rx, counts.irqs);
    write(
        "proc/softirqs",
        format!("      CPU0  CPU2\n NET_RX:  7  {net_rx}\n  TIMER:  1  1\n"),
    );
    write(
        "proc/interrupts",
        format!(
            "      CPU0  CPU2\n 26:  1  {irqs}  PCI-MSI 65536-edge      eth0-rx-0\n \
             29:  0  4  PCI-MSI 81920-edge      eth1-rx-0\n LOC:  5  {irqs}  Local timer interrupts\n"
        ),
    );
    let user = counts.user_ticks;
    write(
        "proc/stat",
        format!("cpu 0\ncpu2 {user} 0 1 2 3 4 5 6 0 0\nctxt {user}7\n"),
    );
    write("proc/30/task/30/comm", "ksoftirqd/2\n".into());
    let sleeps = 4 + counts.irqs * 2 / 5;
    write(
        "proc/40/status",
        format!(
            "Name:\tkbp/2\nvoluntary_ctxt_switches:\t{sleeps}\nnonvoluntary_ctxt_switches:\t1\n"
        ),
    );
    rest(&write, counts);
    write(
        "proc/30/schedstat",
        format!("{} 1 2\n", 500 + counts.thread_ns / 2),
    );
    for tid in [40, 41, 42] {
        write(
            &format!("proc/{tid}/schedstat"),
            format!("{} 1 2\n", counts.thread_ns * (tid - 39)),
        );
    }
    write("proc/net/snmp", "Udp: InErrors\nUdp: 3\n".into());
    write(
        "proc/net/softnet_stat",
        "1 2 0 0 0 0 0 0 0 0 0 0 2\n".into(),
    );
    write(
        "sys/class/net/eth0/statistics/rx_missed_errors",
        format!("{}\n", counts.missed),
    );
    write("sys/class/powercap/intel-rapl:0/name", "package-0\n".into());
    write(
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj",
        "1000000000000".into(),
    );
    write(
        "sys/class/powercap/intel-rapl:0/energy_uj",
        counts.energy_uj.to_string(),
    );
    Host::at(dir)
}

/// CPU 2 changes its frequency and rests as often as it has interrupts; it is at 800 MHz in the ticks of the user.
fn rest(write: &dyn Fn(&str, String), counts: Counts) {
    let Counts {
        irqs, user_ticks, ..
    } = counts;
    for (file, text) in [
        ("cpufreq/scaling_driver", "any".into()),
        ("cpufreq/stats/total_trans", irqs.to_string()),
        (
            "cpufreq/stats/time_in_state",
            format!("800000 {user_ticks}\n2400000 {}", 3 * user_ticks),
        ),
        ("cpuidle/state0/name", "C1".into()),
        ("cpuidle/state0/usage", irqs.to_string()),
        ("cpuidle/state0/time", (irqs * 100).to_string()),
    ] {
        let file = format!("sys/devices/system/cpu/cpu2/{file}");
        write(&file, text + "\n");
    }
}

fn watch() -> Watch {
    Watch {
        cpu: 2,
        served_cpus: vec![2],
        receive_irqs: vec![26, 29],
        mode_threads: vec![40],
        server: vec![Counted::Thread(41)],
        client: vec![Counted::Thread(42)],
        ports: vec![Port {
            ifname: "eth0".into(),
            netns: None,
        }],
        ..Watch::default()
    }
}

const BEFORE: Counts = Counts {
    net_rx: 100,
    irqs: 10,
    thread_ns: 1_000,
    user_ticks: 5,
    missed: 0,
    energy_uj: 999_999_000_000,
};
const AFTER: Counts = Counts {
    net_rx: 160,
    irqs: 25,
    thread_ns: 4_000,
    user_ticks: 9,
    missed: 8,
    energy_uj: 1_500_000,
};

#[test]
fn differences_cover_the_right_cpu_vectors_threads_and_places() {
    let dir = tempfile::tempdir().unwrap();
    let watch = watch();
    let before = watch.read(&tree(dir.path(), BEFORE)).unwrap();
    let after = watch.read(&tree(dir.path(), AFTER)).unwrap();
    let row = after.since(&before).fill(Row::default());
    let want = Witness {
        net_rx_softirqs: 60,
        hard_irqs: 15,
        ksoftirqd_ns: 1_500,
        mode_threads_ns: 3_000,
        mode_threads_sleeps: Some(6),
    };
    assert_eq!((row.witness, row.poller), (want, None));
    let cpu = row.cpu.unwrap();
    assert_eq!(
        (cpu.cpus[&2].user_ns, cpu.cpus[&2].idle_ns),
        (40_000_000, 0)
    );
    assert_eq!(cpu.context_switches, 40);
    let of_threads = (
        cpu.poller_ns,
        cpu.ksoftirqd_ns,
        cpu.server_ns,
        cpu.client_ns,
    );
    assert_eq!(of_threads, (0, 1_500, 6_000, 9_000));
    let by_cpu = |name: &str, cpu: u32, count: u64| (name.to_owned(), [(cpu, count)].into());
    assert_eq!(row.softirqs, [by_cpu("NET_RX", 2, 60)].into());
    assert_eq!(
        row.interrupts,
        [by_cpu("26 eth0-rx-0", 2, 15), by_cpu("LOC", 2, 15)].into()
    );
    assert_eq!(
        row.drops,
        [("nic/eth0/rx_missed_errors".to_owned(), 8)].into()
    );
    let energy = row.energy.unwrap();
    assert_eq!((energy.joules, energy.estimate), (Some(2.5), None));
    let frequency = row.frequency.unwrap();
    assert_eq!(
        (frequency.changes, frequency.mean_khz),
        (15, Some(2_000_000.0))
    );
    let c1 = row.idle_states["C1"];
    assert_eq!((c1.entries, c1.time_ns), (15, 1_500_000));
}

#[test]
fn what_does_not_exist_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let host = tree(dir.path(), BEFORE);
    let refusal = |watch: Watch| watch.read(&host).unwrap_err().to_string();
    let no_cpu = refusal(Watch { cpu: 9, ..watch() });
    assert!(no_cpu.contains("NET_RX of CPU 9"), "{no_cpu}");
    let no_irq = refusal(Watch {
        receive_irqs: vec![77],
        ..watch()
    });
    assert!(no_irq.contains("interrupt 77"), "{no_irq}");
    let no_thread = refusal(Watch {
        server: vec![Counted::Thread(99)],
        ..watch()
    });
    assert!(no_thread.contains("thread 99 ended"), "{no_thread}");
    let no_process = refusal(Watch {
        // Above the highest number that the kernel gives.
        client: vec![Counted::Process(1 << 23)],
        ..watch()
    });
    assert!(no_process.contains("process 8388608 ended"), "{no_process}");
}

/// This thread works for a while on this machine: the time is its own, and of some CPU.
#[test]
fn the_work_of_this_thread_is_seen() {
    let host = Host::system();
    let watch = Watch {
        cpu: 0,
        server: vec![Counted::this_thread()],
        client: vec![Counted::Process(std::process::id())],
        ..Watch::default()
    };
    let before = watch.read(&host).unwrap();
    let begin = std::time::Instant::now();
    let mut spent = watch.read(&host).unwrap().since(&before);
    while spent.cpu.server_ns < 20_000_000 && begin.elapsed().as_secs() < 10 {
        std::hint::black_box((0..1_000_000).sum::<u64>());
        spent = watch.read(&host).unwrap().since(&before);
    }
    assert!(spent.cpu.server_ns >= 20_000_000, "{spent:?}");
    // The kernel brings the time of a thread up to date at its ticks only.
    let tick_ns = 10_000_000;
    assert!(spent.span_ns + tick_ns >= spent.cpu.server_ns, "{spent:?}");
    assert!(
        spent.cpu.client_ns + tick_ns >= spent.cpu.server_ns,
        "{spent:?}"
    );
    assert!(
        !spent.interrupts.is_empty() && !spent.softirqs.is_empty(),
        "{spent:?}"
    );
    assert!(
        spent.energy.joules.is_some() || spent.energy.source == NO_COUNTER,
        "{spent:?}"
    );
}
