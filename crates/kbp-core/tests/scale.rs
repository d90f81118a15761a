// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues dealt out to several pollers, with their interrupts and the CPUs that send through them: what is written,
//! remembered, put back, and refused.

mod common;

use common::{request, Family, Machine};
use kbp_core::irq_pin;
use kbp_core::plan::{AttachRequest, Session, Target};
use kbp_core::queue_cpus::Outcome;
use kbp_core::state::{self, StateFile, User};
use kbp_core::{Class, CpuList, Error};

fn family() -> Family {
    Family {
        pollers: vec![2, 3],
        ifindex: [("eth1".to_owned(), 3)].into(),
        ..Family::default()
    }
}

/// A NIC with three queues, whose vectors are 30, 31 and 32; `xps` is what its transmit queues hold.
fn machine(xps: &[&str]) -> Machine {
    let machine = Machine::new();
    let line = |irq: u32, queue: u32| {
        format!(" {irq}:  0  0  0  0  PCI-MSI {irq}-edge      eth1-TxRx-{queue}\n")
    };
    let lines = line(30, 0) + &line(31, 1) + &line(32, 2);
    machine.write("proc/interrupts", &(common::E1000E.to_owned() + &lines));
    machine.add_nic("eth1", "0000:00:04.0", 3, 3, &[30, 31, 32]);
    machine.add_transmit_queues("eth1", xps);
    machine
}

fn is_clean(machine: &Machine) {
    let state = state::peek(&machine.host).unwrap();
    assert!(state.irqs.is_empty() && state.queue_cpus.is_empty() && state.backlogs.is_empty());
    assert!(state.irqbalance.is_none());
}

#[test]
fn queues_go_in_turn_to_the_pollers_and_back() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2, 3])).unwrap();
    let changes = plan.changes(&machine.host);
    assert_eq!(changes.len(), 9, "{changes:#?}");
    assert!(
        changes[2].contains("eth1 queue 1") && changes[2].contains("CPU 3"),
        "{}",
        changes[2]
    );
    assert!(
        changes[7].contains("write '8'") && changes[7].contains("tx-1/xps_cpus (now '0')"),
        "{}",
        changes[7]
    );
    assert_eq!(
        machine.xps("eth1", 3),
        ["0", "0", "0"],
        "a plan changes nothing"
    );

    let report = session.attach(&plan).unwrap();
    let cpus: Vec<u32> = report.attached.iter().map(|one| one.napi.cpu).collect();
    assert_eq!(cpus, [2, 3, 2]);
    assert_eq!(
        [30, 31, 32].map(|irq| machine.affinity(irq)),
        ["2", "3", "2"]
    );
    assert_eq!(machine.xps("eth1", 3), ["4", "8", "4"]);
    drop(session);

    // Another process takes one queue back, and then a poller goes with the others.
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_detach(&"eth1:1".parse().unwrap()).unwrap();
    let detached = session.detach(&plan).unwrap();
    let outcome = &detached[0].freed.queues[0].outcome;
    assert_eq!(*outcome, Outcome::Restored { to: "0".into() });
    assert_eq!(machine.xps("eth1", 3), ["4", "0", "4"]);
    assert_eq!(machine.affinity(31), "0-3");
    let deleted = session.delete_poller(2).unwrap();
    assert_eq!(deleted.detached.len(), 2);
    drop(session);
    assert_eq!(machine.xps("eth1", 3), ["0", "0", "0"]);
    assert!([30, 31, 32]
        .iter()
        .all(|irq| machine.affinity(*irq) == "0-3"));
    is_clean(&machine);
}

#[test]
fn other_cpus_keep_the_transmit_queues_that_the_driver_gave_them() {
    let (machine, mut family) = (machine(&["00000001", "00000002", "00000004"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1:0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    assert_eq!(machine.xps("eth1", 3), ["5", "00000002", "0"]);
    session.undo_all().unwrap();
    drop(session);
    assert_eq!(machine.xps("eth1", 3), ["00000001", "00000002", "00000004"]);
    is_clean(&machine);
}

#[test]
fn chosen_queues_and_no_touching_of_transmit_queues() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let wish = AttachRequest {
        queues: vec![2, 0],
        set_xps: false,
        ..request("eth1", &[3, 2])
    };
    let plan = session.plan_attach(&wish).unwrap();
    let report = session.attach(&plan).unwrap();
    let dealt: Vec<_> = report
        .attached
        .iter()
        .map(|one| (one.napi.queue.unwrap(), one.napi.cpu))
        .collect();
    assert_eq!(dealt, [(2, 3), (0, 2)]);
    assert_eq!(machine.xps("eth1", 3), ["0", "0", "0"]);
    assert!(report.written.is_empty());
}

#[test]
fn one_interrupt_of_several_queues_goes_to_one_cpu_and_that_is_said() {
    let (machine, mut family) = (machine(&[]), family());
    let shared = " 30:  0  0  0  0  PCI-MSI 30-edge      eth1\n";
    machine.write("proc/interrupts", &(common::E1000E.to_owned() + shared));
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2, 3])).unwrap();
    assert!(
        plan.notes[0].contains("serves several queues; it goes to CPU 2"),
        "{:?}",
        plan.notes
    );
    let report = session.attach(&plan).unwrap();
    assert_eq!(report.attached[1].napi.cpu, 3);
    assert_eq!(report.attached[1].irq_cpu, Some(2));
    assert_eq!(machine.affinity(30), "2");
    // It stays for the queue that is left, and goes back with the last.
    session.delete_poller(2).unwrap();
    assert_eq!(machine.affinity(30), "2");
    session.delete_poller(3).unwrap();
    assert_eq!(machine.affinity(30), "0-3");
}

#[test]
fn bad_wishes_are_refused_before_anything_changes() {
    let (machine, mut family) = (machine(&["0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let with = |target: &str, cpus: &[u32], queues: &[u32]| AttachRequest {
        queues: queues.to_vec(),
        ..request(target, cpus)
    };
    for (wish, class, words) in [
        (
            with("eth1", &[2], &[0, 9]),
            Class::NotFound,
            "no receive queue 9",
        ),
        (with("eth1", &[2], &[1, 1]), Class::Usage, "twice"),
        (with("eth1", &[], &[]), Class::Usage, "no CPU"),
        (
            with("eth1", &[2, 3, 2], &[]),
            Class::Usage,
            "CPU 2 is named twice",
        ),
        (
            with("eth1", &[2, 1], &[]),
            Class::NotFound,
            "kbp poller add --cpu 1",
        ),
        (
            with("eth1", &[2, 8], &[]),
            Class::NotFound,
            "online CPUs are 0-3",
        ),
        (with("eth1:0", &[2], &[1]), Class::Usage, "named twice"),
    ] {
        let error = session.plan_attach(&wish).unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let wish = AttachRequest {
        target: Target::NapiId(8200),
        ..request("eth1", &[2, 3])
    };
    let error = session.plan_attach(&wish).unwrap_err();
    assert_eq!(error.class(), Class::Usage, "{error}");
    drop(session);
    is_clean(&machine);
}

#[test]
fn a_transmit_queue_that_can_not_be_written_undoes_everything() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2, 3])).unwrap();
    // It holds something that is no mask by now.
    machine.write("sys/class/net/eth1/queues/tx-2/xps_cpus", "what\n");
    let error = session.attach(&plan).unwrap_err();
    assert!(matches!(error, Error::RolledBack { .. }), "{error}");
    assert!(error.to_string().contains("is no mask"), "{error}");
    drop(session);
    assert!(family.napis.is_empty());
    assert!([30, 31, 32]
        .iter()
        .all(|irq| machine.affinity(*irq) == "0-3"));
    assert_eq!(machine.xps("eth1", 3), ["0", "0", "what"]);
    is_clean(&machine);
}

#[test]
fn what_somebody_else_wrote_is_left_alone() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2])).unwrap();
    session.attach(&plan).unwrap();
    machine.write("sys/class/net/eth1/queues/tx-1/xps_cpus", "2\n");
    let undone = session.undo_all().unwrap();
    let found = Outcome::LeftAlone { found: "2".into() };
    assert!(
        undone.queues.iter().any(|one| one.outcome == found),
        "{undone:?}"
    );
    drop(session);
    assert_eq!(machine.xps("eth1", 3), ["0", "2", "0"]);
    is_clean(&machine);
}

#[test]
fn what_was_remembered_and_not_yet_written_when_a_process_died_needs_nothing() {
    let (machine, mut family) = (machine(&["0", "3", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2])).unwrap();
    session.attach(&plan).unwrap();
    drop(session);
    // As if it had died before the last writes.
    machine.write("sys/class/net/eth1/queues/tx-1/xps_cpus", "3\n");
    machine.write("sys/class/net/eth1/queues/tx-2/xps_cpus", "0\n");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let undone = session.undo_all().unwrap();
    drop(session);
    assert_eq!(undone.queues.len(), 1, "{undone:?}");
    assert_eq!(machine.xps("eth1", 3), ["0", "3", "0"]);
    is_clean(&machine);
}

#[test]
fn queues_that_are_attached_already_conflict() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1:1", &[3])).unwrap();
    session.attach(&plan).unwrap();
    let error = session.plan_attach(&request("eth1", &[2, 3])).unwrap_err();
    assert!(
        matches!(error, Error::AlreadyAttached { cpu: 3, .. }),
        "{error}"
    );
}

/// A process that died after it had remembered what a second attach writes, and before it wrote that.
#[test]
fn a_process_that_died_between_two_attaches_has_lost_no_original() {
    let (machine, mut family) = (machine(&["00000004", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1:1", &[2])).unwrap();
    session.attach(&plan).unwrap();
    drop(session);
    assert_eq!(machine.xps("eth1", 3), ["0", "4", "0"]);
    let path = "sys/class/net/eth1/queues/tx-0/xps_cpus";
    {
        let mut memory = StateFile::open(&machine.host).unwrap();
        let mask = memory.state.queue_cpus[0].files.values_mut().next();
        let mask = mask.unwrap();
        assert_eq!((mask.original.as_str(), &mask.before), ("00000004", &None));
        mask.before = Some(std::mem::replace(&mut mask.set, "8".into()));
        let irq = memory.state.irqs.get_mut(&31).unwrap();
        irq.before = Some(std::mem::replace(&mut irq.set, CpuList::one(3)));
        memory.save().unwrap();
    }
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    session.undo_all().unwrap();
    drop(session);
    assert_eq!(machine.read(path), "00000004");
    assert_eq!(machine.affinity(31), "0-3");
    is_clean(&machine);
}

/// The state as it is on disk when the write happens: a second attach that can't write is such a moment.
#[test]
fn what_we_wrote_before_is_remembered_until_the_next_text_is_written() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let shared = " 30:  0  0  0  0  PCI-MSI 30-edge      eth1\n";
    machine.write("proc/interrupts", &(common::E1000E.to_owned() + shared));
    let vector = machine.host.interface("eth1").unwrap();
    let vector = machine.host.queue_vector(&vector, 0).unwrap();
    let mut memory = StateFile::open(&machine.host).unwrap();
    let user = |name: &str| User::Other(name.into());
    irq_pin::pin(&machine.host, &mut memory, &vector, &user("one"), 2).unwrap();
    irq_pin::pin(&machine.host, &mut memory, &vector, &user("two"), 3).unwrap();
    let record = memory.state.irqs[&30].clone();
    assert_eq!((record.set, record.before), (CpuList::one(3), None));
    // As the process that dies in the second pin leaves it.
    let record = memory.state.irqs.get_mut(&30).unwrap();
    record.before = Some(CpuList::one(2));
    machine.write("proc/irq/30/smp_affinity_list", "2\n");
    irq_pin::release(&machine.host, &mut memory, &user("one")).unwrap();
    irq_pin::release(&machine.host, &mut memory, &user("two")).unwrap();
    assert_eq!(machine.affinity(30), "0-3");
    drop((memory, family.pollers.pop()));
    is_clean(&machine);
}

#[test]
fn files_that_somebody_else_wrote_stay_when_another_queue_leaves() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2, 3])).unwrap();
    session.attach(&plan).unwrap();
    machine.write("sys/class/net/eth1/queues/tx-0/xps_cpus", "2\n");
    let plan = session.plan_detach(&"eth1:1".parse().unwrap()).unwrap();
    session.detach(&plan).unwrap();
    assert_eq!(machine.xps("eth1", 3), ["2", "0", "4"]);
    // The next attach says what it writes over, and puts that back.
    let plan = session.plan_attach(&request("eth1:1", &[3])).unwrap();
    let changes = plan.changes(&machine.host);
    assert!(
        changes
            .iter()
            .any(|change| change.contains("tx-0/xps_cpus (now '2')")),
        "{changes:#?}"
    );
    let report = session.attach(&plan).unwrap();
    let adopted = Outcome::Adopted {
        to: "6".into(),
        original: "2".into(),
    };
    assert!(
        report.written.iter().any(|one| one.outcome == adopted),
        "{:?}",
        report.written
    );
    assert_eq!(machine.xps("eth1", 3), ["6", "8", "4"]);
    session.undo_all().unwrap();
    drop(session);
    assert_eq!(machine.xps("eth1", 3), ["2", "0", "0"]);
    is_clean(&machine);
}

#[test]
fn one_file_that_can_not_be_put_back_does_not_keep_the_others() {
    let (machine, mut family) = (machine(&["0", "0", "0"]), family());
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1", &[2])).unwrap();
    session.attach(&plan).unwrap();
    // It can't be read: a directory answers with EISDIR.
    let file = "sys/class/net/eth1/queues/tx-1/xps_cpus";
    machine.remove(file);
    machine.write(&format!("{file}/x"), "");
    let error = session.undo_all().unwrap_err();
    assert!(error.to_string().contains("tx-1/xps_cpus"), "{error}");
    let others = [0, 2].map(|queue: u32| {
        let file = format!("sys/class/net/eth1/queues/tx-{queue}/xps_cpus");
        machine.read(&file)
    });
    assert_eq!(others, ["0", "0"]);
    // It is tried again when it can be read.
    machine.rename(file, "away");
    machine.write(file, "4\n");
    session.undo_all().unwrap();
    drop(session);
    assert_eq!(machine.xps("eth1", 3), ["0", "0", "0"]);
    is_clean(&machine);
}

#[test]
fn an_interrupt_that_an_earlier_attachment_shares_stays_with_it() {
    let (machine, mut family) = (machine(&[]), family());
    let shared = " 30:  0  0  0  0  PCI-MSI 30-edge      eth1\n";
    machine.write("proc/interrupts", &(common::E1000E.to_owned() + shared));
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth1:0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    let plan = session.plan_attach(&request("eth1:1", &[3])).unwrap();
    assert!(plan.notes[0].contains("goes to CPU 2"), "{:?}", plan.notes);
    session.attach(&plan).unwrap();
    assert_eq!(machine.affinity(30), "2");
}
