// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measuring a machine that is a folder, whose counters move while it is measured.

use super::*;

const CPU: &str = "sys/devices/system/cpu/cpu1";

struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        machine.write("sys/devices/system/cpu/online", "0-1\n");
        machine.write("sys/class/net/eth0/ifindex", "2\n");
        machine.ticks(100, 100);
        machine.interrupts(0);
        machine
    }

    fn host(&self) -> Host {
        Host::at(self.dir.path())
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn remove(&self, folder: &str) {
        std::fs::remove_dir_all(self.dir.path().join(folder)).unwrap();
    }

    /// CPU time of CPU 1; CPU 0 stands still.
    fn ticks(&self, busy: u64, idle: u64) {
        let text =
            format!("cpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 {busy} 0 0 {idle} 0 0 0 0 0 0\nctxt {busy}\n");
        self.write("proc/stat", &text);
    }

    fn interrupts(&self, more: u64) {
        let text = format!(
            "  CPU0 CPU1\n 26: 5 {}  PCI-MSI 1-edge      eth0-rx-0\nLOC: 1 {}  Local timer interrupts\n\
             RES: 1 {}  Rescheduling interrupts\nERR: 9\n",
            more,
            100 + 2 * more,
            100 + 3 * more
        );
        self.write("proc/interrupts", &text);
    }

    fn packets(&self, received: u64, sent: u64) {
        for (file, number) in [("rx", received), ("tx", sent)] {
            let file = format!("sys/class/net/eth0/statistics/{file}_packets");
            self.write(&file, &number.to_string());
        }
    }

    fn zone(&self, entry: &str, name: &str, energy_uj: u64) {
        let base = format!("sys/class/powercap/{entry}");
        self.write(&format!("{base}/name"), name);
        self.write(&format!("{base}/max_energy_range_uj"), "100000000000");
        self.write(&format!("{base}/energy_uj"), &energy_uj.to_string());
    }

    fn idle(&self, state: u32, name: &str, time_us: u64, entries: u64) {
        let base = format!("{CPU}/cpuidle/state{state}");
        self.write(&format!("{base}/name"), name);
        self.write(&format!("{base}/time"), &time_us.to_string());
        self.write(&format!("{base}/usage"), &entries.to_string());
        self.write(&format!("{base}/disable"), "0");
    }

    /// Measures CPU 1 and eth0 while `run` moves counters, and takes 100 ms at least.
    fn measure(&self, run: impl FnOnce(&Self)) -> PowerReport {
        let request = Request {
            interval: Duration::from_secs(60),
            cpus: CpuList::one(1),
            interfaces: vec!["eth0".into()],
            model: None,
        };
        let begin = std::time::Instant::now();
        let (report, done) = measure(&self.host(), &request, || {
            run(self);
            std::thread::sleep(Duration::from_millis(100));
            Ok(17)
        })
        .unwrap();
        assert_eq!(done, 17);
        assert!(report.span_seconds >= 0.1 && report.span_seconds <= begin.elapsed().as_secs_f64());
        report
    }
}

fn near(found: f64, want: f64) -> bool {
    (found - want).abs() <= want.abs() * 1e-9
}

#[test]
fn zones_are_labelled_and_added_up_once() {
    let machine = Machine::new();
    machine.packets(1_000, 5);
    let zones = [
        ("intel-rapl:0", "package-0", 99_999_000_000, 4_000_000, 5.0),
        ("intel-rapl:0:0", "core", 10, 3_000_010, 3.0),
        ("intel-rapl:0:1", "dram", 0, 2_000_000, 2.0),
        ("intel-rapl:1", "psys", 0, 11_000_000, 11.0),
        (
            "intel-rapl-mmio:0",
            "package-0",
            99_999_000_000,
            4_000_000,
            5.0,
        ),
    ];
    for (entry, name, before, ..) in zones {
        machine.zone(entry, name, before);
    }
    let report = machine.measure(|machine| {
        for (entry, name, _, after, _) in zones {
            machine.zone(entry, name, after);
        }
        machine.packets(1_350, 7);
    });
    for (zone, (entry, _, _, _, joules)) in report.energy.zones.iter().zip(zones) {
        let used = zone.used.get().unwrap();
        assert_eq!((zone.zone.as_str(), used.energy_joules), (entry, joules));
        assert_eq!(used.wraps, u32::from(zone.label == "package-0"), "{entry}");
    }
    let total = report.energy.total.get().unwrap();
    assert_eq!(total.zones, ["package-0", "dram of package-0"]);
    assert_eq!(total.energy_joules, 7.0);
    assert!(total.power_watts > 0.0 && total.power_watts <= 70.0);
    assert_eq!(report.energy.estimate, None, "energy is counted");
    let packets = report.packets.unwrap();
    let per_packet = packets.per_packet.get().unwrap();
    assert!(near(per_packet.energy_per_received_packet_joules, 0.02));
    assert!(per_packet
        .energy_source
        .starts_with("powercap: package-0 + dram"));
    assert_eq!(
        packets.interfaces[0].packets,
        Known::Is(Packets {
            received_packets: 350,
            sent_packets: 2
        })
    );
}

#[test]
fn what_goes_away_is_said_and_not_zero() {
    let machine = Machine::new();
    machine.packets(1_000, 5);
    machine.zone("intel-rapl:0", "package-0", 1);
    machine.zone("intel-rapl:1", "package-1", 1);
    machine.idle(0, "C1", 0, 0);
    let report = machine.measure(|machine| {
        machine.ticks(103, 101);
        machine.remove("sys/class/powercap/intel-rapl:1");
        machine.remove("sys/devices");
        machine.packets(10, 5);
    });
    let why = report.energy.total.why_not().unwrap();
    assert!(
        why.starts_with("package-1") && why.contains("energy_uj"),
        "{why}"
    );
    assert!(report.energy.zones[0].used.get().is_some());
    // Nothing whole is counted, so there is the estimate: three quarters of a CPU.
    let estimate = report.energy.estimate.unwrap();
    let estimate = estimate.get().unwrap();
    assert_eq!(estimate.busy_cpus, 0.75);
    assert!(near(
        estimate.extra_power_watts,
        0.75 * estimate.polling_cpu_watts
    ));
    let cpu = &report.cpus[0];
    let why = cpu.idle.why_not().unwrap();
    assert!(why.contains("cpuidle"), "{why}");
    assert!(cpu.frequency.why_not().unwrap().contains("cpufreq"));
    assert!(cpu.task_runs.why_not().unwrap().contains("schedstat"));
    let packets = report.packets.unwrap();
    let why = packets.interfaces[0].packets.why_not().unwrap();
    assert!(why.contains("began anew"), "{why}");
    assert!(packets.per_packet.why_not().unwrap().contains("eth0"));
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[test]
fn rests_and_interrupts_are_shares_and_rates() {
    let machine = Machine::new();
    machine.packets(0, 0);
    machine.idle(0, "POLL", 500, 7);
    machine.idle(1, "C6", 1_000, 100);
    machine.write(&format!("{CPU}/cpufreq/scaling_driver"), "acpi-cpufreq\n");
    let times = format!("{CPU}/cpufreq/stats/time_in_state");
    machine.write(&times, "2000000 10\n1000000 10\n");
    machine.write(&format!("{CPU}/cpufreq/stats/total_trans"), "3\n");
    machine.write("proc/schedstat", "version 15\ncpu1 0 0 0 0 0 0 0 0 40\n");
    let report = machine.measure(|machine| {
        machine.ticks(120, 180);
        machine.interrupts(10);
        machine.idle(0, "POLL", 10_500, 9);
        // Longer than the measurement: the rest began before it.
        machine.idle(1, "C6", 3_600_000_000, 104);
        machine.write(&times, "2000000 40\n1000000 20\n");
        machine.write(&format!("{CPU}/cpufreq/stats/total_trans"), "13\n");
        machine.write("proc/schedstat", "version 15\ncpu1 0 0 0 0 0 0 0 0 60\n");
    });
    let (cpu, span) = (&report.cpus[0], report.span_seconds);
    let time = cpu.time.get().unwrap();
    assert!(near(time.busy_ratio, 0.2) && near(time.idle_ratio, 0.8));
    let idle = cpu.idle.get().unwrap();
    assert!(near(idle.states[0].residency_ratio, 0.01 / span));
    assert_eq!(idle.states[1].residency_ratio, 1.0);
    assert!(near(idle.states[1].entries_per_second, 4.0 / span));
    assert!(near(idle.wakeups_per_second, 6.0 / span));
    assert_eq!(idle.uncounted_ratio, 0.0);
    let frequency = cpu.frequency.get().unwrap();
    // 30 ticks at 2 GHz and 10 at 1 GHz.
    assert!(near(frequency.mean_hz, 1.75e9), "{frequency:?}");
    assert!(frequency.source.contains("idle time included"));
    assert!(near(
        cpu.frequency_changes.get().unwrap().per_second,
        10.0 / span
    ));
    assert!(near(cpu.task_runs.get().unwrap().per_second, 20.0 / span));
    let rates = cpu.interrupts.get().unwrap();
    assert!(near(rates.device_per_second, 10.0 / span));
    assert!(near(rates.local_timer_per_second, 20.0 / span));
    assert!(near(rates.other_per_second, 30.0 / span));
    assert!(near(report.context_switches_per_second, 20.0 / span));
    let why = report.packets.unwrap().per_packet;
    assert_eq!(why.why_not(), Some("no packet was received"));
}

#[test]
fn a_counter_that_may_have_gone_round_is_said() {
    let machine = Machine::new();
    machine.packets(0, 0);
    machine.zone("intel-rapl:0", "package-0", 1);
    machine.write(
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj",
        "40000000000",
    );
    let report = machine.measure(|_| ());
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    // 400 J are 100 ms at 4 kW: the measurement takes a little longer than that.
    machine.write(
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj",
        "400000000",
    );
    let report = machine.measure(|_| ());
    assert!(report.notes[0].contains("package-0"), "{:?}", report.notes);
}

#[test]
fn what_is_not_there_is_refused_before() {
    let machine = Machine::new();
    let request = |cpu, name: &str| Request {
        interval: Duration::from_secs(1),
        cpus: CpuList::one(cpu),
        interfaces: vec![name.into()],
        model: None,
    };
    let refused = |request| {
        let ran = measure(&machine.host(), &request, || -> Result<()> {
            panic!("it was refused")
        });
        ran.unwrap_err()
    };
    for (error, word) in [
        (refused(request(1, "eth9")), "eth9"),
        (refused(request(2, "eth0")), "CPU 2"),
    ] {
        assert_eq!(error.class(), kbp_core::Class::NotFound);
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// Ticks and residency of this very machine, whatever it has: nothing is above the whole.
#[test]
fn this_machine_has_figures_or_reasons() {
    let host = Host::system();
    let request = Request {
        interval: Duration::from_millis(50),
        cpus: host.online_cpus().unwrap(),
        interfaces: Vec::new(),
        model: Some(Model::load(None).unwrap()),
    };
    let run = || {
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    };
    let (report, ()) = measure(&host, &request, run).unwrap();
    assert!(report.packets.is_none());
    for cpu in &report.cpus {
        if let Some(time) = cpu.time.get() {
            assert!(time.busy_ratio + time.idle_ratio <= 1.0 + 1e-9, "{cpu:?}");
        }
        if let Some(frequency) = cpu.frequency.get() {
            assert!(
                frequency.mean_hz > 1e7 && frequency.mean_hz < 1e10,
                "{cpu:?}"
            );
        }
    }
    let estimate = report.energy.estimate.unwrap();
    assert!(estimate.get().unwrap().busy_cpus <= report.cpus.len() as f64);
}

#[test]
fn a_controller_that_misses_one_reading_is_still_believed() {
    let readings = Ok(vec![Some(100.0), None, Some(200.0)]);
    let Known::Is(ipmi) = span::ipmi(&readings, 2_000_000_000) else {
        panic!("nothing is known");
    };
    assert_eq!((ipmi.power_watts, ipmi.energy_joules), (150.0, 300.0));
    assert_eq!((ipmi.readings, ipmi.missed), (2, 1));
}
