// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The governor of a poller's CPU on a host of plain files: chosen, remembered, put back, left alone, refused.

mod common;

use common::{Family, Machine};
use kbp_core::governor::{self, Outcome};
use kbp_core::model::PollerSpec;
use kbp_core::module::{refuse_held, ModuleError};
use kbp_core::plan::{release_all, Session};
use kbp_core::state::{self, StateFile};
use kbp_core::uapi::Freq;
use kbp_core::{Class, Error};

fn file(cpu: u32, name: &str) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}")
}

/// CPUs 2 and 3, each with a frequency of its own, or both with one.
fn machine(shared: bool) -> Machine {
    let machine = Machine::new();
    for cpu in [2, 3] {
        let own = cpu.to_string();
        let related = if shared { "2 3" } else { own.as_str() };
        for (name, text) in [
            ("scaling_governor", "userspace"),
            ("scaling_driver", "acpi-cpufreq"),
            ("scaling_available_governors", "kbp userspace schedutil"),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "2400000"),
            ("scaling_setspeed", "1600000"),
            ("related_cpus", related),
        ] {
            machine.write(&file(cpu, name), &format!("{text}\n"));
        }
    }
    machine
}

fn wish(cpu: u32, shared: bool) -> PollerSpec {
    PollerSpec {
        freq: Some(Freq::Auto),
        freq_shared: shared.then_some(true),
        ..PollerSpec::new(cpu)
    }
}

fn add(machine: &Machine, family: &mut Family, spec: &PollerSpec) -> Result<Vec<String>, Error> {
    let mut session = Session::open(&machine.host, family)?;
    let plan = session.plan_poller(spec)?;
    session.add_poller(&plan)?;
    Ok(plan.changes())
}

fn governor(machine: &Machine, cpu: u32) -> String {
    machine.read(&file(cpu, "scaling_governor"))
}

#[test]
fn it_comes_back_with_the_frequency_that_was_set_by_hand() {
    let (machine, mut family) = (machine(false), Family::default());
    let before = machine.files();
    let changes = add(&machine, &mut family, &wish(2, false)).unwrap();
    assert_eq!(
        changes[0],
        "write 'kbp' to /sys/devices/system/cpu/cpu2/cpufreq/scaling_governor ('userspace' now)"
    );
    assert_eq!(governor(&machine, 2), "kbp");
    // As the kernel forgets it.
    machine.write(&file(2, "scaling_setspeed"), "<unsupported>\n");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let gone = session.delete_poller(2).unwrap().gone;
    assert_eq!(gone.governors.len(), 1);
    assert_eq!(machine.files(), before);
}

#[test]
fn a_shared_one_goes_with_the_last_poller_and_a_dead_process_changes_nothing() {
    let (machine, mut family) = (machine(true), Family::default());
    let refused = add(&machine, &mut family, &wish(2, false)).unwrap_err();
    assert_eq!(refused.class(), Class::Conflict);
    assert!(refused.to_string().contains("--force"), "{refused}");
    add(&machine, &mut family, &wish(2, true)).unwrap();
    // One policy has one file.
    machine.write(&file(3, "scaling_governor"), "kbp\n");
    add(&machine, &mut family, &wish(3, true)).unwrap();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    assert!(session.delete_poller(3).unwrap().gone.governors.is_empty());
    assert_eq!(governor(&machine, 2), "kbp");
    drop(session);
    // Another process, after the module has gone.
    let mut memory = StateFile::open(&machine.host).unwrap();
    let undone = release_all(&machine.host, &mut memory).unwrap();
    assert_eq!(undone.governors.len(), 1);
    assert_eq!(governor(&machine, 2), "userspace");
    assert!(memory.state.governors.is_empty());
}

#[test]
fn what_somebody_else_chose_is_left_alone_and_what_cannot_be_read_is_tried_again() {
    let (machine, mut family) = (machine(false), Family::default());
    add(&machine, &mut family, &wish(2, false)).unwrap();
    machine.write(&file(2, "scaling_governor"), "performance\n");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let outcome = session.delete_poller(2).unwrap().gone.governors[0]
        .outcome
        .clone();
    let found = "performance".to_owned();
    assert_eq!(outcome, Outcome::LeftAlone { found });
    assert_eq!(governor(&machine, 2), "performance");
    drop(session);

    add(&machine, &mut family, &wish(3, false)).unwrap();
    let path = machine.host.path(&file(3, "scaling_governor"));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let error = session.delete_poller(3).unwrap_err();
    assert_eq!(error.class(), Class::LeftChanged, "{error}");
    std::fs::remove_dir(&path).unwrap();
    machine.write(&file(3, "scaling_governor"), "kbp\n");
    assert_eq!(session.undo_all().unwrap().governors.len(), 1);
    assert_eq!(governor(&machine, 3), "userspace");
}

#[test]
fn a_second_poller_takes_nothing_from_the_first_and_one_that_died_is_cleaned_up_behind() {
    let (machine, mut family) = (machine(false), Family::default());
    add(&machine, &mut family, &wish(2, false)).unwrap();
    let error = add(&machine, &mut family, &wish(2, false)).unwrap_err();
    assert_eq!(error.class(), Class::Conflict);
    assert_eq!(governor(&machine, 2), "kbp");
    // Somebody else deletes the poller.
    family.pollers.clear();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    assert_eq!(
        session.delete_poller(2).unwrap_err().class(),
        Class::NotFound
    );
    assert_eq!(governor(&machine, 2), "userspace");
    drop(session);
    machine.write(&file(2, "scaling_governor"), "kbp\n");
    let error = add(&machine, &mut family, &wish(2, false)).unwrap_err();
    assert!(error.to_string().contains("not known"), "{error}");
}

#[test]
fn what_cannot_follow_is_refused_and_nothing_is_changed() {
    let cases: [(&str, &str, &str); 3] = [
        (
            "scaling_available_governors",
            "performance powersave",
            "active mode",
        ),
        ("scaling_min_freq", "2400000", "leave one frequency"),
        ("scaling_governor", "", "no cpufreq driver"),
    ];
    for (name, text, words) in cases {
        let (machine, mut family) = (machine(false), Family::default());
        machine.write("sys/devices/system/cpu/amd_pstate/status", "active\n");
        machine.write(&file(2, "scaling_driver"), "amd-pstate-epp\n");
        match text {
            "" => machine.remove(&file(2, name)),
            text => machine.write(&file(2, name), text),
        }
        let before = machine.files();
        let error = add(&machine, &mut family, &wish(2, false)).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(machine.files(), before);
        assert!(family.pollers.is_empty());
    }
}

/// Before the module is there nothing offers its governor, and everything else can be said already.
#[test]
fn what_keeps_it_from_following_is_known_before_the_module_is_loaded() {
    let free = machine(false);
    free.write(
        &file(2, "scaling_available_governors"),
        "userspace schedutil\n",
    );
    let before = free.files();
    governor::can_follow(&free.host, 2).unwrap();
    assert_eq!(free.files(), before, "asking changes nothing");
    let mut family = Family::default();
    assert!(add(&free, &mut family, &wish(2, false)).is_err());

    let refusal = |machine: &Machine| {
        governor::can_follow(&machine.host, 2)
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(&machine(true)).contains("one frequency with CPU 3"));
    free.write(&file(2, "scaling_min_freq"), "2400000\n");
    assert!(refusal(&free).contains("leave one frequency"));
    free.write(&file(2, "scaling_driver"), "amd-pstate-epp\n");
    free.write("sys/devices/system/cpu/amd_pstate/status", "active\n");
    assert!(refusal(&free).contains("chooses frequencies by itself"));
    let none = governor::can_follow(&free.host, 9).unwrap_err();
    assert_eq!(none.class(), Class::Unsupported);
}

#[test]
fn an_unload_is_refused_while_somebody_else_has_the_governor() {
    let (machine, mut family) = (machine(true), Family::default());
    let held = |machine: &Machine| {
        let remembered = state::peek(&machine.host).unwrap();
        match refuse_held(&machine.host, &remembered) {
            Err(ModuleError::Governs { cpus, first }) => Some((cpus.to_string(), first)),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        }
    };
    assert_eq!(held(&machine), None);
    // A poller's own choice is no reason; it is remembered with the first of those that share it, here an offline one.
    add(&machine, &mut family, &wish(3, true)).unwrap();
    machine.write(&file(3, "scaling_governor"), "kbp\n");
    machine.write("sys/devices/system/cpu/online", "0-1,3\n");
    assert_eq!(held(&machine), None);
    machine.write("sys/devices/system/cpu/online", "0-3\n");
    for (name, text) in [("scaling_governor", "kbp"), ("related_cpus", "1")] {
        machine.write(&file(1, name), &format!("{text}\n"));
    }
    assert_eq!(held(&machine), Some(("1".to_string(), 1)));
}
