// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interfaces without NAPI instances: steered to the backlog of a poller's CPU, which is attached for them and goes
//! back with the last.

mod common;

use common::{request, Family, Machine};
use kbp_core::client::Control;
use kbp_core::plan::{AttachRequest, Session};
use kbp_core::queue_cpus::Outcome;
use kbp_core::state;
use kbp_core::uapi::{Backlog, Mode};
use kbp_core::{Class, Error};

/// Two veths and lo; pollers on CPU 2 and 3.
fn set_up() -> (Machine, Family) {
    let machine = Machine::new();
    for (name, ifindex) in [("lo", 1), ("near", 7), ("next", 8)] {
        machine.add_virtual(name, ifindex, 1);
    }
    let family = Family {
        pollers: vec![2, 3],
        ..Family::default()
    };
    (machine, family)
}

fn attach(machine: &Machine, family: &mut Family, target: &str, cpu: u32) {
    let mut session = Session::open(&machine.host, family).unwrap();
    let plan = session.plan_attach(&request(target, &[cpu])).unwrap();
    session.attach(&plan).unwrap();
}

fn detach(machine: &Machine, family: &mut Family, target: &str) -> Vec<u32> {
    let mut session = Session::open(&machine.host, family).unwrap();
    let plan = session.plan_detach(&target.parse().unwrap()).unwrap();
    let detached = session.detach(&plan).unwrap();
    detached
        .iter()
        .flat_map(|one| one.backlogs.clone())
        .collect()
}

fn backlog(family: &mut Family, cpu: u32) -> Backlog {
    family.poller_get(cpu).unwrap().backlog_requested
}

fn is_clean(machine: &Machine) {
    let state = state::peek(&machine.host).unwrap();
    assert!(
        state.queue_cpus.is_empty() && state.backlogs.is_empty(),
        "{state:?}"
    );
}

#[test]
fn what_goes_through_a_backlog_is_polled_all_the_time_or_refused() {
    let (machine, mut family) = set_up();
    for mode in [Mode::Sleep, Mode::Adaptive] {
        let mut session = Session::open(&machine.host, &mut family).unwrap();
        let request = AttachRequest {
            service: mode.into(),
            ..request("near", &[2])
        };
        let error = session.plan_attach(&request).unwrap_err();
        assert!(error.to_string().contains("mode busy"), "{error}");
    }
    is_clean(&machine);
}

#[test]
fn a_backlog_is_attached_with_the_first_interface_and_goes_back_with_the_last() {
    let (machine, mut family) = set_up();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("near", &[2])).unwrap();
    let changes = plan.changes(&machine.host);
    assert_eq!(changes.len(), 2, "{changes:#?}");
    assert!(changes[0].contains("the backlog of CPU 2 is attached (now owned)"));
    assert!(changes[1].contains("write '4'") && changes[1].contains("near/queues/rx-0/rps_cpus"));
    let report = session.attach(&plan).unwrap();
    assert!(report.attached.is_empty() && report.steered[0].is_active());
    drop(session);
    assert_eq!(machine.rps("near", 0), "4");
    assert_eq!(backlog(&mut family, 2), Backlog::Attached);

    attach(&machine, &mut family, "lo", 2);
    assert!(detach(&machine, &mut family, "near").is_empty());
    assert_eq!(
        backlog(&mut family, 2),
        Backlog::Attached,
        "lo still needs it"
    );
    assert_eq!(machine.rps("near", 0), "0");
    assert_eq!(detach(&machine, &mut family, "lo"), [2]);
    assert_eq!(backlog(&mut family, 2), Backlog::Owned);
    is_clean(&machine);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let error = session.plan_detach(&"lo".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NotAttached { .. }), "{error}");
}

#[test]
fn a_backlog_that_the_user_attached_stays() {
    let (machine, mut family) = set_up();
    family.backlog.insert(2, Backlog::Attached);
    attach(&machine, &mut family, "near", 2);
    assert!(detach(&machine, &mut family, "near").is_empty());
    assert_eq!(backlog(&mut family, 2), Backlog::Attached);

    // Attached for an interface first, then by the user too.
    attach(&machine, &mut family, "near", 3);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    assert!(session.adopt_backlog(3).unwrap().is_some());
    assert!(
        session.adopt_backlog(3).unwrap().is_none(),
        "it is his by now"
    );
    drop(session);
    assert!(detach(&machine, &mut family, "near").is_empty());
    assert_eq!(backlog(&mut family, 3), Backlog::Attached);
    is_clean(&machine);
}

#[test]
fn the_pollers_go_and_nothing_is_left() {
    let (machine, mut family) = set_up();
    attach(&machine, &mut family, "near", 2);
    attach(&machine, &mut family, "next", 3);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let deleted = session.delete_poller(2).unwrap();
    let restored = Outcome::Restored { to: "0".into() };
    assert_eq!(deleted.gone.queues[0].outcome, restored);
    drop(session);
    assert_eq!(
        (machine.rps("near", 0), machine.rps("next", 0)),
        ("0".into(), "8".into())
    );
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    session.undo_all().unwrap();
    drop(session);
    assert_eq!(machine.rps("next", 0), "0");
    is_clean(&machine);
}

#[test]
fn a_kernel_that_keeps_its_backlog_refuses_and_nothing_is_changed() {
    let (machine, mut family) = set_up();
    family.refuse_backlog = true;
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("near", &[2])).unwrap();
    let error = session.attach(&plan).unwrap_err();
    assert_eq!(error.class(), Class::Unsupported, "{error}");
    assert!(error.to_string().contains("leave its backlog"), "{error}");
    drop(session);
    assert_eq!(machine.rps("near", 0), "0");
    is_clean(&machine);
}

#[test]
fn a_veth_with_napi_instances_is_attached_by_them() {
    let (machine, mut family) = set_up();
    family.veths_with_napi = vec!["near".into()];
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("near", &[2])).unwrap();
    assert!(plan.interfaces.is_empty() && plan.backlogs.is_empty());
    assert_eq!(session.attach(&plan).unwrap().attached.len(), 1);
}

#[test]
fn a_bridge_is_its_ports() {
    let (machine, mut family) = set_up();
    machine.add_virtual("br0", 9, 1);
    machine.write("sys/class/net/br0/bridge/stp_state", "0\n");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let error = session.plan_attach(&request("br0", &[2])).unwrap_err();
    assert_eq!(error.class(), Class::NotFound, "{error}");

    for port in ["near", "next", "eth0"] {
        machine.write(&format!("sys/class/net/br0/brif/{port}/state"), "3\n");
    }
    let wish = AttachRequest {
        queues: vec![0],
        ..request("br0", &[2])
    };
    assert_eq!(
        session.plan_attach(&wish).unwrap_err().class(),
        Class::Usage
    );
    let plan = session.plan_attach(&request("br0", &[2, 3])).unwrap();
    assert!(
        plan.notes[0].contains("ports that join later are not"),
        "{:?}",
        plan.notes
    );
    let report = session.attach(&plan).unwrap();
    assert_eq!(report.attached[0].napi.ifname.as_deref(), Some("eth0"));
    drop(session);
    assert_eq!(
        (machine.rps("near", 0), machine.rps("next", 0)),
        ("8".into(), "4".into())
    );
    assert_eq!(machine.rps("br0", 0), "0");

    // A port more: the others stay as they are.
    machine.add_virtual("late", 10, 1);
    machine.write("sys/class/net/br0/brif/late/state", "3\n");
    attach(&machine, &mut family, "br0", 3);
    assert_eq!(
        (machine.rps("late", 0), machine.rps("next", 0)),
        ("8".into(), "4".into())
    );
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let error = session.plan_attach(&request("br0", &[2])).unwrap_err();
    assert!(matches!(error, Error::AlreadyAttached { .. }), "{error}");
    drop(session);

    assert_eq!(detach(&machine, &mut family, "br0").len(), 2);
    assert!(family.napis.is_empty());
    assert_eq!(machine.affinity(25), "0-3");
    is_clean(&machine);
}

#[test]
fn what_another_interface_receives_is_attached_there() {
    let (machine, mut family) = set_up();
    machine.add_virtual("vlan5", 11, 1);
    machine.write(
        "sys/class/net/vlan5/uevent",
        "DEVTYPE=vlan\nINTERFACE=vlan5\n",
    );
    machine.write("sys/class/net/vlan5/lower_eth0", "");
    machine.add_virtual("vx", 12, 1);
    machine.write("sys/class/net/vx/uevent", "DEVTYPE=vxlan\nINTERFACE=vx\n");
    machine.write("sys/class/net/vx/lower_near", "");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let error = session.plan_attach(&request("vlan5", &[2])).unwrap_err();
    assert_eq!(error.class(), Class::Unsupported, "{error}");
    assert!(
        error.to_string().contains("eth0 receives; attach that"),
        "{error}"
    );
    // A tunnel hands on what it unpacks under its own name.
    assert_eq!(
        session
            .plan_attach(&request("vx", &[2]))
            .unwrap()
            .interfaces
            .len(),
        1
    );
}

#[test]
fn an_interface_may_be_renamed_or_go() {
    let (machine, mut family) = set_up();
    attach(&machine, &mut family, "near", 2);
    machine.rename("sys/class/net/near", "sys/class/net/far");
    assert_eq!(detach(&machine, &mut family, "far"), [2]);
    assert_eq!(machine.rps("far", 0), "0");

    attach(&machine, &mut family, "next", 2);
    machine.rename("sys/class/net/next", "gone");
    // A new one of that name has another number and files of its own.
    machine.add_virtual("next", 20, 1);
    machine.write("sys/class/net/next/queues/rx-0/rps_cpus", "3\n");
    attach(&machine, &mut family, "eth0", 3);
    assert_eq!(backlog(&mut family, 2), Backlog::Owned);
    attach(&machine, &mut family, "lo", 2);
    machine.rename("sys/class/net/lo", "gone-too");
    detach(&machine, &mut family, "eth0");
    assert_eq!(machine.rps("next", 0), "3");
    assert_eq!(backlog(&mut family, 2), Backlog::Owned);
    is_clean(&machine);
}

#[test]
fn a_backlog_that_was_attached_for_an_interface_that_went_serves_the_next_one() {
    let (machine, mut family) = set_up();
    attach(&machine, &mut family, "next", 2);
    machine.rename("sys/class/net/next", "gone");
    attach(&machine, &mut family, "near", 2);
    assert_eq!(backlog(&mut family, 2), Backlog::Attached);
    assert_eq!(detach(&machine, &mut family, "near"), [2]);
    assert_eq!(backlog(&mut family, 2), Backlog::Owned);
    is_clean(&machine);
}

#[test]
fn what_somebody_else_wrote_is_left_alone() {
    let (machine, mut family) = set_up();
    attach(&machine, &mut family, "near", 2);
    machine.write("sys/class/net/near/queues/rx-0/rps_cpus", "00000002\n");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_detach(&"near:0".parse().unwrap()).unwrap();
    let detached = session.detach(&plan).unwrap();
    drop(session);
    let found = "00000002".into();
    assert_eq!(
        detached[0].freed.queues[0].outcome,
        Outcome::LeftAlone { found }
    );
    assert_eq!(machine.rps("near", 0), "00000002");
    is_clean(&machine);
}

#[test]
fn rfs_is_said_to_be_in_the_way() {
    let (machine, mut family) = set_up();
    machine.write("proc/sys/net/core/rps_sock_flow_entries", "32768\n");
    machine.write("sys/class/net/near/queues/rx-0/rps_flow_cnt", "4096\n");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("near", &[2])).unwrap();
    assert!(plan.notes[0].contains("RFS is on"), "{:?}", plan.notes);
    // A network namespace other than the first does not show the table.
    machine.remove("proc/sys/net/core/rps_sock_flow_entries");
    let plan = session.plan_attach(&request("near", &[2])).unwrap();
    assert!(plan.notes[0].contains("RFS is on"), "{:?}", plan.notes);
}

#[test]
fn a_cpu_to_which_the_kernel_steers_nothing_is_refused_in_the_plan() {
    let (machine, mut family) = set_up();
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let file = |name: &str| format!("sys/devices/system/cpu/{name}");
    machine.write(&file("nohz_full"), "(null)\n");
    machine.write(&file("isolated"), "\n");
    session.plan_attach(&request("near", &[2])).unwrap();
    for (isolated, nohz_full) in [("2-3", "(null)"), ("", "1-2")] {
        machine.write(&file("isolated"), &format!("{isolated}\n"));
        machine.write(&file("nohz_full"), &format!("{nohz_full}\n"));
        let error = session.plan_attach(&request("near", &[2])).unwrap_err();
        assert_eq!(error.class(), Class::Unsupported, "{error}");
        assert!(error.to_string().contains("kbp attach backlog"), "{error}");
        // What has a NAPI instance needs no steering.
        session.plan_attach(&request("eth0", &[2])).unwrap();
    }
    machine.write(&file("nohz_full"), "0\n");
    session.plan_attach(&request("near", &[2])).unwrap();
}
