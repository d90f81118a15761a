// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaching, detaching and undoing on a host of plain files: what is changed, remembered, put
//! back, and left alone.

mod common;

use common::{request, Family, Machine, E1000E};
use kbp_core::irq::QueueVector;
use kbp_core::irq_pin::{self, Outcome};
use kbp_core::plan::{release_all, AttachRequest, Session, Target};
use kbp_core::state::{self, StateFile, User};
use kbp_core::uapi::Mode;
use kbp_core::{Class, Error};

fn family() -> Family {
    Family {
        pollers: vec![2],
        ..Family::default()
    }
}

/// A NIC with three queues, whose vectors are 30, 31 and 32.
fn three_queues(machine: &Machine) {
    let line = |irq: u32, queue: u32| {
        format!(" {irq}:  0  0  0  0  PCI-MSI {irq}-edge      eth1-TxRx-{queue}\n")
    };
    let lines = line(30, 0) + &line(31, 1) + &line(32, 2);
    machine.write("proc/interrupts", &(common::E1000E.to_owned() + &lines));
    machine.add_nic("eth1", "0000:00:04.0", 3, 3, &[30, 31, 32]);
}

#[test]
fn attach_moves_the_interrupt_and_detach_puts_it_back() {
    let (machine, mut family) = (Machine::new(), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    let changes = plan.changes(&machine.host);
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(
        changes[0].contains("eth0 queue 0") && changes[0].contains("CPU 2"),
        "{}",
        changes[0]
    );
    assert!(
        changes[1].contains("irq/25/smp_affinity_list") && changes[1].contains("0-3"),
        "{}",
        changes[1]
    );
    assert_eq!(machine.affinity(25), "0-3", "planning changes nothing");

    let attached = session.attach(&plan).unwrap().attached;
    assert_eq!(attached[0].vector.as_ref().unwrap().name, "eth0-rx-0");
    assert_eq!(machine.affinity(25), "2");
    assert_eq!(machine.affinity(26), "0-3", "the sending vector stays");
    drop(session);

    // Another process detaches: what has to be undone is read from the file.
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let napis = session.plan_detach(&"eth0:0".parse().unwrap()).unwrap();
    let detached = session.detach(&napis).unwrap();
    assert_eq!(
        detached[0].freed.irqs[0].outcome,
        Outcome::Restored {
            to: "0-3".parse().unwrap()
        }
    );
    assert_eq!(machine.affinity(25), "0-3");
    drop(session);
    assert!(state::peek(&machine.host).unwrap().irqs.is_empty());
    assert!(family.napis.is_empty());
}

#[test]
fn a_failed_step_undoes_the_earlier_ones() {
    let machine = Machine::new();
    three_queues(&machine);
    // The kernel refuses the last queue.
    let mut refusing = Family {
        refuse_queue: Some(2),
        ..family()
    };
    let mut session = Session::open(&machine.host, &mut refusing).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2])).unwrap();
    let error = session.attach(&plan).unwrap_err();
    drop(session);
    assert!(matches!(error, Error::RolledBack { .. }), "{error}");
    assert_eq!(error.class(), Class::Unsupported);
    assert!(
        error
            .to_string()
            .contains("no NAPI instance for this queue"),
        "{error}"
    );
    assert!(refusing.napis.is_empty());

    // The last interrupt can't be moved.
    let mut family = family();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2])).unwrap();
    machine.remove("proc/irq/32/smp_affinity_list");
    let error = session.attach(&plan).unwrap_err();
    drop(session);
    assert!(matches!(error, Error::RolledBack { .. }), "{error}");
    assert!(family.napis.is_empty());
    for irq in [30, 31] {
        assert_eq!(machine.affinity(irq), "0-3");
    }
    assert!(state::peek(&machine.host).unwrap().irqs.is_empty());
}

#[test]
fn a_failed_undo_says_what_is_left() {
    let machine = Machine::new();
    three_queues(&machine);
    let mut family = Family {
        refuse_queue: Some(1),
        refuse_detach: true,
        ..family()
    };
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2])).unwrap();
    let error = session.attach(&plan).unwrap_err();
    assert_eq!(error.class(), Class::LeftChanged);
    assert!(
        error.to_string().contains("detach refused by the test"),
        "{error}"
    );
}

#[test]
fn bad_wishes_are_refused_before_anything_changes() {
    let (machine, mut family) = (Machine::new(), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let mut refused =
        |target: &str, cpu: u32| session.plan_attach(&request(target, &[cpu])).unwrap_err();
    for (target, cpu, class, words) in [
        ("eth9", 2, Class::NotFound, "no interface 'eth9'"),
        ("eth0:7", 2, Class::NotFound, "no receive queue 7"),
        ("eth0", 9, Class::NotFound, "online CPUs are 0-3"),
        ("eth0", 3, Class::NotFound, "kbp poller add --cpu 3"),
    ] {
        let error = refused(target, cpu);
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    session
        .plan_attach(&request("eth0", &[2]))
        .map(|plan| session.attach(&plan).unwrap())
        .unwrap();
    let error = session.plan_attach(&request("eth0:0", &[2])).unwrap_err();
    assert_eq!(error.class(), Class::Conflict, "{error}");
    let error = session.plan_detach(&"eth0:5".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::UnknownQueue { .. }), "{error}");
    assert!("eth0:x".parse::<Target>().is_err() && "a/b".parse::<Target>().is_err());
}

#[test]
fn a_shared_interrupt_goes_back_with_its_last_user() {
    let machine = Machine::new();
    machine.write(
        "proc/interrupts",
        &(common::E1000E.to_owned() + " 30:  0  0  0  0  PCI-MSI 30-edge      eth1\n"),
    );
    machine.add_nic("eth1", "0000:00:04.0", 3, 2, &[30]);
    let mut family = family();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    for queue in ["eth1:0", "eth1:1"] {
        let plan = session.plan_attach(&request(queue, &[2])).unwrap();
        session.attach(&plan).unwrap();
    }
    let mut detach = |queue: &str| {
        let napis = session.plan_detach(&queue.parse().unwrap()).unwrap();
        session.detach(&napis).unwrap()[0].freed.irqs[0]
            .outcome
            .clone()
    };
    assert_eq!(detach("eth1:0"), Outcome::Kept);
    assert_eq!(machine.affinity(30), "2");
    assert_eq!(
        detach("eth1:1"),
        Outcome::Restored {
            to: "0-3".parse().unwrap()
        }
    );
    assert_eq!(machine.affinity(30), "0-3");
}

#[test]
fn an_interrupt_is_its_devices_whatever_its_handler_is_called() {
    for (device, affinity) in [("0000:00:03.0", "0-3"), ("0000:00:04.0", "2")] {
        let (machine, mut family) = (Machine::new(), family());
        let has = |device: &str| format!("sys/bus/pci/devices/{device}/msi_irqs/25");
        machine.write(&has("0000:00:03.0"), "msix\n");
        let mut session = Session::open(&machine.host, &mut family).unwrap();
        let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
        session.attach(&plan).unwrap();
        // The interface has got another name, went down and came up; or the number has gone to another card.
        machine.write("proc/interrupts", &E1000E.replace("eth0-rx", "lan1-rx"));
        std::fs::remove_file(machine.host.path(&has("0000:00:03.0"))).unwrap();
        machine.write(&has(device), "msix\n");
        session.delete_poller(2).unwrap();
        assert_eq!(machine.affinity(25), affinity);
    }
}

#[test]
fn what_somebody_else_changed_is_left_alone() {
    let (machine, mut family) = (Machine::new(), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    machine.write("proc/irq/25/smp_affinity_list", "1\n");
    let deleted = session.delete_poller(2).unwrap();
    let outcome = &deleted.detached[0].freed.irqs[0].outcome;
    assert!(
        matches!(outcome, Outcome::LeftAlone { reason } if reason.contains("CPU 1")),
        "{outcome:?}"
    );
    assert_eq!(machine.affinity(25), "1");
}

#[test]
fn what_went_away_by_itself_is_put_back_and_another_boot_is_forgotten() {
    let (machine, mut family) = (Machine::new(), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    assert!(
        session.forget_gone().unwrap().is_empty(),
        "it is still attached"
    );
    drop(session);
    family.napis.clear();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    assert_eq!(session.forget_gone().unwrap().irqs.len(), 1);
    assert_eq!(machine.affinity(25), "0-3");

    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    drop(session);
    machine.write("proc/sys/kernel/random/boot_id", "boot-two\n");
    let mut file = StateFile::open(&machine.host).unwrap();
    assert!(release_all(&machine.host, &mut file).unwrap().is_empty());
    assert_eq!(
        machine.affinity(25),
        "2",
        "numbers of another boot mean nothing"
    );
}

#[test]
fn deleting_a_poller_puts_back_what_vanished_in_another_namespace() {
    let (machine, mut family) = (Machine::new(), family());
    let elsewhere = User::Queue {
        ifindex: 5,
        queue: 0,
        netns_cookie: Some(4097),
    };
    let vector = QueueVector {
        irq: 26,
        name: "eth0-tx-0".into(),
        shared: false,
    };
    let mut file = StateFile::open(&machine.host).unwrap();
    irq_pin::pin(&machine.host, &mut file, &vector, &elsewhere, 2).unwrap();
    let vector = QueueVector {
        irq: 27,
        name: "eth0".into(),
        shared: false,
    };
    irq_pin::pin(
        &machine.host,
        &mut file,
        &vector,
        &User::Other("test".into()),
        2,
    )
    .unwrap();
    drop(file);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    assert!(
        session.forget_gone().unwrap().is_empty(),
        "another namespace's may be there still"
    );
    let deleted = session.delete_poller(2).unwrap();
    assert_eq!(deleted.gone.irqs.len(), 1);
    assert_eq!(machine.affinity(26), "0-3");
    assert_eq!(machine.affinity(27), "2", "what is not an attachment stays");
}

#[test]
fn a_mode_is_active_only_when_the_kernel_says_so() {
    for (slow, active) in [(3, Mode::Busy), (u32::MAX, Mode::Softirq)] {
        let machine = Machine::new();
        let mut family = Family { slow, ..family() };
        let mut session = Session::open(&machine.host, &mut family).unwrap();
        let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
        let attached = session.attach(&plan).unwrap().attached;
        assert_eq!(attached[0].napi.mode_requested, Mode::Busy);
        assert_eq!(attached[0].napi.mode_active, active);
    }
}

#[test]
fn undo_all_leaves_nothing() {
    let machine = Machine::new();
    three_queues(&machine);
    let mut family = family();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    for target in ["eth0", "eth1"] {
        let plan = session.plan_attach(&request(target, &[2])).unwrap();
        session.attach(&plan).unwrap();
    }
    assert_eq!(session.undo_all().unwrap().irqs.len(), 4);
    drop(session);
    assert!(family.pollers.is_empty());
    assert!([25, 30, 31, 32]
        .iter()
        .all(|irq| machine.affinity(*irq) == "0-3"));
}

#[test]
fn by_id_without_a_known_queue_the_interrupt_stays_and_that_is_said() {
    let (machine, mut family) = (Machine::new(), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let wish = AttachRequest {
        target: Target::NapiId(8200),
        ..request("eth0", &[2])
    };
    let plan = session.plan_attach(&wish).unwrap();
    let attached = session.attach(&plan).unwrap().attached;
    assert!(attached[0].vector.is_none() && attached[0].note.is_some());
    assert_eq!(machine.affinity(25), "0-3");
    let napis = session.plan_detach(&Target::NapiId(8200)).unwrap();
    session.detach(&napis).unwrap();
    assert!(matches!(
        session.plan_detach(&Target::NapiId(8200)),
        Err(Error::NotAttached { .. })
    ));
}

#[test]
fn a_damaged_state_file_is_not_guessed_at() {
    let machine = Machine::new();
    machine.write(
        "run/kbp/state.json",
        "{\"version\": 7, \"boot_id\": \"boot-one\"}",
    );
    let error = StateFile::open(&machine.host).unwrap_err();
    assert!(error.to_string().contains("version 7"), "{error}");
}
