// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check`, live patches and module files, on files as kernels show them.

mod common;

use std::fs;

use common::Machine;
use kbp_core::check::{check, Report, Verdict};
use kbp_core::module::{self, ModuleError};
use kbp_core::{modfile, Class, Error};
use object::write::{Object, StandardSection, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

const KALLSYMS: &str = "\
0000000000000000 T __napi_schedule
0000000000000000 T __napi_schedule_irqoff
0000000000000000 t napi_watchdog
0000000000000000 t napi_watchdog\t[other_module]
0000000000000000 T raise_softirq_irqoff
0000000000000000 t busy_poll_stop
0000000000000000 t busy_poll_stop
0000000000000000 t __napi_poll.constprop.0
";

/// A machine on which everything is as it should be.
fn good() -> Machine {
    let machine = Machine::new();
    machine.write("proc/kallsyms", KALLSYMS);
    machine.write("proc/sys/kernel/modules_disabled", "0\n");
    machine.write("sys/kernel/livepatch/other/enabled", "1\n");
    machine.write("sys/kernel/livepatch/other/transition", "0\n");
    machine.write(
        "sys/kernel/livepatch/other/vmlinux/cmdline_proc_show,1/stack_order",
        "1\n",
    );
    machine.write(
        "sys/kernel/security/lockdown",
        "[none] integrity confidentiality\n",
    );
    machine.write("sys/module/module/parameters/sig_enforce", "N\n");
    machine.write(
        "sys/kernel/tracing/available_filter_functions",
        "__napi_schedule\n__napi_schedule_irqoff\nnapi_watchdog\nnapi_watchdog [other_module]\n",
    );
    machine
}

fn failed(report: &Report) -> Vec<&str> {
    report
        .items
        .iter()
        .filter(|i| i.verdict == Verdict::Fail)
        .map(|i| i.detail.as_str())
        .collect()
}

/// A module file with the given `.modinfo` entries and undefined symbols.
fn module_file(machine: &Machine, modinfo: &[&str], symbols: &[&str]) -> std::path::PathBuf {
    let mut elf = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    elf.section_id(StandardSection::Text);
    let section = elf.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::ReadOnlyData);
    let entries: Vec<u8> = modinfo
        .iter()
        .flat_map(|entry| [entry.as_bytes(), &[0]].concat())
        .collect();
    elf.append_section_data(section, &entries, 1);
    for name in symbols {
        elf.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value: 0,
            size: 0,
            kind: SymbolKind::Text,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        });
    }
    let path = machine.host.path("kbp.ko");
    fs::write(&path, elf.write().unwrap()).unwrap();
    path
}

#[test]
fn the_kernel_command_line_can_keep_it_out() {
    let machine = good();
    for (cmdline, out) in [
        ("BOOT_IMAGE=/vmlinuz quiet kbp.enable=0\n", true),
        ("kbp.enable=off\n", true),
        ("kbp.enable=0 kbp.enable=1\n", false),
        ("kbp.enable=1 xkbp.enable=0\n", false),
    ] {
        machine.write("proc/cmdline", cmdline);
        let report = check(&machine.host, None).unwrap();
        assert_eq!(report.possible, !out, "{cmdline}: {:?}", failed(&report));
        let loaded = module::load(
            &machine.host,
            Some("no-such-file.ko".as_ref()),
            std::time::Duration::ZERO,
            &mut |_| {},
        );
        let refused = matches!(loaded, Err(ModuleError::SwitchedOff));
        assert_eq!(refused, out, "{cmdline}");
    }
}

#[test]
fn what_else_makes_packets_late_is_a_remark() {
    let machine = good();
    assert_eq!(check(&machine.host, None).unwrap().remarks, [""; 0]);
    for (enabled, remarks) in [("Y\n", 1), ("N\n", 0)] {
        machine.write("sys/module/damon_stat/parameters/enabled", enabled);
        let report = check(&machine.host, None).unwrap();
        assert!(report.possible);
        assert_eq!(report.remarks.len(), remarks, "{enabled}");
    }
    // Who may not read it gets a report without the remark.
    let unreadable = good();
    fs::create_dir_all(
        unreadable
            .host
            .path("sys/module/damon_stat/parameters/enabled"),
    )
    .unwrap();
    assert_eq!(check(&unreadable.host, None).unwrap().remarks, [""; 0]);
}

#[test]
fn a_good_kernel_passes_every_condition() {
    let report = check(&good().host, None).unwrap();
    assert!(
        report
            .items
            .iter()
            .all(|item| item.verdict == Verdict::Pass),
        "{report:?}"
    );
    assert!(report.possible);
}

#[test]
fn each_condition_fails_with_its_reason() {
    for (file, text, words) in [
        (
            "proc/sys/kernel/modules_disabled",
            "1\n",
            "modules_disabled",
        ),
        (
            "proc/kallsyms",
            &KALLSYMS.replace("t napi_watchdog\n", "t napi_watchdog.isra.0\n"),
            "napi_watchdog.isra.0",
        ),
        (
            "proc/kallsyms",
            &KALLSYMS.replace("busy_poll_stop", "napi_watchdog"),
            "3 times",
        ),
        (
            "proc/kallsyms",
            &KALLSYMS.replace("T __napi_schedule\n", "T gone\n"),
            "__napi_schedule is not in this kernel",
        ),
        (
            "sys/kernel/tracing/available_filter_functions",
            "__napi_schedule\nnapi_watchdog\n",
            "__napi_schedule_irqoff can't be traced",
        ),
        (
            "sys/kernel/livepatch/other/vmlinux/napi_watchdog,1/stack_order",
            "1\n",
            "other replaces napi_watchdog too",
        ),
        (
            "sys/kernel/livepatch/other/transition",
            "1\n",
            "other is in transition",
        ),
    ] {
        let machine = good();
        machine.write(file, text);
        let report = check(&machine.host, None).unwrap();
        let failures = failed(&report);
        assert!(
            !report.possible && failures.len() == 1 && failures[0].contains(words),
            "{words}: {failures:?}"
        );
        assert!(report.reason().contains(words));
    }
}

#[test]
fn a_kernel_without_live_patching_is_refused_before_loading() {
    let machine = Machine::new();
    machine.write("proc/kallsyms", KALLSYMS);
    let report = check(&machine.host, None).unwrap();
    assert!(failed(&report)[0].contains("CONFIG_LIVEPATCH"));
    let unknown = report
        .items
        .iter()
        .filter(|item| item.verdict == Verdict::Unknown)
        .count();
    assert_eq!(
        unknown, 3,
        "without tracefs nothing is claimed about tracing"
    );
    let error =
        module::load(&machine.host, None, std::time::Duration::ZERO, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ModuleError::NoLivepatch), "{error}");
}

#[test]
fn a_module_file_is_checked_against_the_kernel() {
    let machine = good();
    let path = module_file(
        &machine,
        &[
            "license=GPL",
            "kbp_replaces=__napi_schedule",
            "vermagic=6.1.0-54-amd64 SMP preempt mod_unload modversions ",
        ],
        &[
            ".klp.sym.vmlinux.raise_softirq_irqoff,0",
            ".klp.sym.vmlinux.busy_poll_stop,0",
            "printk",
        ],
    );
    let file = modfile::read(&path).unwrap();
    assert_eq!(file.replaces, ["__napi_schedule"]);
    assert_eq!(file.needs.len(), 2);
    assert!(!file.signed);
    machine.write("sys/module/module/parameters/sig_enforce", "Y\n");
    let report = check(&machine.host, Some(&path)).unwrap();
    let failures = failed(&report).join("\n");
    for words in [
        "built for 6.1.0-54-amd64, but 6.1.0-55-amd64 runs",
        "busy_poll_stop is there 2 times",
        "the module has none",
    ] {
        assert!(failures.contains(words), "{words}: {failures}");
    }
    assert!(!failures.contains("raise_softirq_irqoff"), "{failures}");
    fs::write(&path, "not a module").unwrap();
    assert!(matches!(
        check(&machine.host, Some(&path)),
        Err(Error::Host(_))
    ));
}

#[test]
fn blocking_tasks_are_those_of_the_other_state() {
    let machine = Machine::new();
    for (pid, comm, state) in [
        (1, "init", 1),
        (40, "sleeper", 0),
        (41, "done", 1),
        (42, "none", -1),
    ] {
        machine.write(&format!("proc/{pid}/task/{pid}/comm"), &format!("{comm}\n"));
        machine.write(
            &format!("proc/{pid}/task/{pid}/patch_state"),
            &format!("{state}\n"),
        );
        machine.write(
            &format!("proc/{pid}/task/{pid}/stack"),
            "[<0>] napi_watchdog+0x1/0x2\n[<0>] kthread+0x1/0x2\n",
        );
    }
    let to_patched = machine.host.blocking_tasks(true).unwrap();
    assert_eq!(to_patched.len(), 1);
    assert_eq!(
        to_patched[0].to_string(),
        "sleeper (pid 40) in napi_watchdog"
    );
    let back: Vec<u32> = machine
        .host
        .blocking_tasks(false)
        .unwrap()
        .iter()
        .map(|b| b.task.tid)
        .collect();
    assert_eq!(back, [1, 41]);
}

#[test]
fn the_states_of_the_module() {
    let machine = good();
    let status = module::status(&machine.host).unwrap();
    assert!(!status.loaded && status.livepatch.is_none());
    let error = module::unload(&machine.host, std::time::Duration::ZERO, &mut |_| {}).unwrap_err();
    assert_eq!(error.class(), Class::NotLoaded);
    let error =
        module::load(&machine.host, None, std::time::Duration::ZERO, &mut |_| {}).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no kbp module for kernel 6.1.0-55-amd64"),
        "{error}"
    );

    machine.write("sys/module/kbp/refcnt", "0\n");
    machine.write("sys/kernel/livepatch/kbp/enabled", "1\n");
    machine.write("sys/kernel/livepatch/kbp/transition", "0\n");
    let again = module::load(&machine.host, None, std::time::Duration::ZERO, &mut |_| {}).unwrap();
    assert_eq!(again.path, None, "loading twice is no error");
    machine.write("sys/kernel/livepatch/kbp/enabled", "0\n");
    let error =
        module::load(&machine.host, None, std::time::Duration::ZERO, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ModuleError::HalfUnloaded), "{error}");
}

#[test]
fn a_stuck_unload_names_the_task_and_says_what_holds() {
    let machine = good();
    machine.write("sys/module/kbp/refcnt", "1\n");
    machine.write("sys/kernel/livepatch/kbp/enabled", "1\n");
    machine.write("sys/kernel/livepatch/kbp/transition", "1\n");
    machine.write("proc/77/task/77/comm", "stubborn\n");
    machine.write("proc/77/task/77/patch_state", "1\n");
    let error = module::unload(&machine.host, std::time::Duration::ZERO, &mut |_| {}).unwrap_err();
    assert_eq!(machine.read("sys/kernel/livepatch/kbp/enabled"), "0");
    assert_eq!(error.class(), Class::TimedOut);
    let words = error.to_string();
    assert!(
        words.contains("stubborn (pid 77)") && words.contains("stock path"),
        "{words}"
    );
}
