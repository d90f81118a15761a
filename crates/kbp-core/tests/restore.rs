// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is attached, to a file and back: after a restart the same is asked for as before, a second time nothing is
//! done, and what can't be done keeps nothing else from being done.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::restoring::{failures, family, machine, now, requested, restore_with, Here};
use common::{request, Machine};
use kbp_core::card::Card;
use kbp_core::model::{PollerSpec, Schedule};
use kbp_core::plan::{AttachRequest, Session};
use kbp_core::restore::{restore, Options};
use kbp_core::service::{Service, Share, MAX_WAKE_LATENCY_US};
use kbp_core::setup::{Attachment, Setup};
use kbp_core::setup_read::{parse, SetupFile};
use kbp_core::uapi::{Backlog, Mode, Owns, PollClass};
use kbp_core::Class;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn setup_of(file: &SetupFile) -> Setup {
    Setup {
        pollers: file.pollers.iter().map(|at| at.it.clone()).collect(),
        attachments: file.attachments.iter().map(|at| at.it.clone()).collect(),
    }
}

/// Has an interrupt refuse another affinity, also to root, as one does that the kernel manages: its file is one of the
/// running system that nobody may write.
fn refuse_affinity(machine: &Machine, irq: u32) {
    let file = format!("proc/irq/{irq}/smp_affinity_list");
    machine.remove(&file);
    machine.link(&file, "/sys/devices/system/cpu/online");
}

fn card(name: &str) -> Card {
    let (mac, bus) = match name {
        "eth0" => ("52:54:00:00:00:01", "pci/0000:00:03.0"),
        "eth1" => ("52:54:00:00:00:02", "pci/0000:00:04.0"),
        _ => return Card::default(),
    };
    Card {
        mac: Some(mac.into()),
        bus: Some(bus.into()),
    }
}

fn random_poller(random: &mut ChaCha8Rng, cpu: u32) -> PollerSpec {
    let owns = *[Owns::All, Owns::Attached]
        .get(random.random_range(0..2))
        .unwrap();
    let default = if owns == Owns::All {
        Backlog::Owned
    } else {
        Backlog::Softirq
    };
    let backlog = Backlog::ALL[random.random_range(0..Backlog::ALL.len())];
    PollerSpec {
        cpu,
        owns: Some(owns),
        schedule: Some(match random.random_bool(0.5) {
            true => Schedule::Fifo {
                priority: random.random_range(1..99),
            },
            false => Schedule::Other {
                nice: random.random_range(-20..20),
            },
        }),
        budget: Some(random.random_range(1..65)),
        watchdog_ms: Some(random.random_range(1..10_001)),
        // What is the default is not written down.
        backlog: Some(backlog).filter(|backlog| *backlog != default),
        freq: None,
        freq_shared: None,
        max_cstate_latency_us: None,
        deep_exit_us: None,
    }
}

fn random_service(random: &mut ChaCha8Rng) -> Service {
    let modes = Service::modes();
    let mut service = Service::from(modes[random.random_range(0..modes.len())]);
    service.class = PollClass::ALL[random.random_range(0..PollClass::ALL.len())];
    if service.mode == Mode::Adaptive {
        match random.random_range(0..3) {
            0 => {}
            1 => service.cpu_budget = Share::from_permille(random.random_range(1..=1000)),
            _ => service.max_wake_latency_us = Some(random.random_range(MAX_WAKE_LATENCY_US)),
        }
    }
    service
}

/// An interface of which some queues go to random CPUs, as it is written down: the queues of each CPU together.
fn random_attachments(
    random: &mut ChaCha8Rng,
    name: &str,
    queues: u32,
    cpus: &[u32],
) -> Vec<Attachment> {
    let is_card = name.starts_with("eth");
    let (irq, xps) = match is_card {
        true => (
            random.random_bool(0.7),
            name == "eth0" || random.random_bool(0.7),
        ),
        false => (true, true),
    };
    let service = is_card.then(|| random_service(random));
    let mut all: Vec<Attachment> = Vec::new();
    for queue in (0..queues)
        .filter(|_| random.random_bool(0.6))
        .collect::<Vec<_>>()
    {
        let cpu = cpus[random.random_range(0..cpus.len())];
        match all.iter_mut().find(|one| one.cpus == [cpu]) {
            Some(one) => one.queues.push(queue),
            None => all.push(Attachment {
                netns: None,
                device: name.into(),
                card: card(name),
                queues: vec![queue],
                cpus: vec![cpu],
                service,
                irq,
                xps,
            }),
        }
    }
    all
}

fn random_setup(random: &mut ChaCha8Rng) -> Setup {
    let cpus: Vec<u32> = (0..4)
        .filter(|cpu| *cpu == 1 || random.random_bool(0.6))
        .collect();
    let pollers = cpus.iter().map(|cpu| random_poller(random, *cpu)).collect();
    // By name, as they are written down.
    let interfaces = [
        ("a\"b", 2),
        ("eth0", 1),
        ("eth1", 4),
        ("near", 2),
        ("next", 2),
    ];
    let attachments = interfaces
        .iter()
        .flat_map(|(name, queues)| random_attachments(random, name, *queues, &cpus))
        .collect();
    Setup {
        pollers,
        attachments,
    }
}

#[test]
fn random_setups_come_back_after_a_restart_and_go_without_a_trace() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let setup = random_setup(&mut random);
        let text = setup.text("a test");
        let file = parse("kbp.toml", &text).unwrap();
        assert_eq!(setup_of(&file), setup, "seed {seed}\n{text}");

        let (machine, mut family) = (machine(), family());
        let before = machine.files();
        let dry = Options {
            is_dry: true,
            ..Options::default()
        };
        let planned = restore_with(&machine, &mut family, &file, dry);
        assert_eq!(failures(&planned), [""; 0], "seed {seed}\n{text}");
        assert_eq!(planned.changes.is_empty(), planned.is_unchanged());
        assert_eq!(
            machine.files(),
            before,
            "seed {seed}: a dry run changes nothing"
        );
        assert!(family.pollers.is_empty() && family.napis.is_empty());

        let first = restore_with(&machine, &mut family, &file, Options::default());
        assert_eq!(failures(&first), [""; 0], "seed {seed}\n{text}");
        assert_eq!(
            requested(&machine, &mut family),
            setup,
            "seed {seed}\n{text}"
        );
        for change in &planned.changes {
            if let Some((value, rest)) = change
                .strip_prefix("write '")
                .and_then(|rest| rest.split_once("' to "))
            {
                let path = rest.split_once(" (").unwrap().0;
                let now = std::fs::read_to_string(path).unwrap();
                assert_eq!(now.trim(), value, "seed {seed}: {change}");
            }
        }

        let second = restore_with(&machine, &mut family, &file, Options::default());
        assert!(
            second.is_unchanged() && second.failed.is_empty(),
            "seed {seed}: {second:?}"
        );
        let again = restore_with(&machine, &mut family, &file, dry);
        assert!(
            again.is_unchanged() && again.failed.is_empty(),
            "seed {seed}: {again:?}"
        );
        let mut session = Session::open(&machine.host, &mut family).unwrap();
        session.undo_all().unwrap();
        drop(session);
        assert_eq!(machine.files(), before, "seed {seed}");
    }
}

#[test]
fn an_attachment_of_the_command_line_is_written_down() {
    let (machine, mut family) = (machine(), family());
    family.pollers = vec![2, 3];
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let requests = [
        request("eth1", &[2, 3]),
        request("near:0", &[2]),
        AttachRequest {
            move_irq: false,
            ..request("eth0", &[3])
        },
    ];
    for request in requests {
        let plan = session.plan_attach(&request).unwrap();
        session.attach(&plan).unwrap();
    }
    drop(session);
    let text = requested(&machine, &mut family).text("a test");
    for part in [
        "\n[[poller]]\ncpu = 2\nowns = \"all\"\npriority = \"f:50\"\nbudget = 8\nwatchdog_ms = 20\n\n",
        "\n[[attach]]\ndevice = \"eth0\"\nmac = \"52:54:00:00:00:01\"\nbus = \"pci/0000:00:03.0\"\nqueues = \"0\"\n\
         cpus = \"3\"\nmode = \"busy\"\nirq = false\n\n",
        "queues = \"0,2\"\ncpus = \"2\"\n",
        "queues = \"1,3\"\ncpus = \"3\"\n",
        "\n[[attach]]\ndevice = \"near\"\nqueues = \"0\"\ncpus = \"2\"\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    // The backlog is attached for the veth, and not what was asked for.
    assert!(!text.contains("backlog ="), "{text}");
}

#[test]
fn what_no_file_can_say_is_said() {
    let (machine, mut family) = (machine(), family());
    family.pollers = vec![2];
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let by_id = AttachRequest {
        target: kbp_core::plan::Target::NapiId(8300),
        ..request("eth0", &[2])
    };
    let plan = session.plan_attach(&by_id).unwrap();
    session.attach(&plan).unwrap();
    let requested = session.requested().unwrap();
    assert!(requested.setup.attachments.is_empty());
    assert_eq!(requested.left_out.len(), 1);
    assert!(
        requested.left_out[0].contains("attached by its id"),
        "{:?}",
        requested.left_out
    );
}

#[test]
fn a_file_of_a_person_may_say_less() {
    let (machine, mut family) = (machine(), family());
    machine.write("sys/class/net/br0/bridge/bridge_id", "8000.0\n");
    machine.write("sys/class/net/br0/ifindex", "20\n");
    machine.write("sys/class/net/br0/brif/near/port_no", "1\n");
    machine.write("sys/class/net/br0/brif/next/port_no", "2\n");
    let text = "version = 1\n[[poller]]\ncpu = 2\n[[poller]]\ncpu = 3\nbacklog = 'attached'\n\
                [[attach]]\ndevice = 'eth1'\ncpus = '2-3'\n[[attach]]\ndevice = 'br0'\ncpus = '2'\n";
    assert_eq!(failures(&now(&machine, &mut family, text)), [""; 0]);
    assert_eq!(machine.xps("eth1", 4), ["5", "a", "4", "8"]);
    assert_eq!(
        (machine.rps("near", 1), machine.rps("next", 0)),
        ("4".into(), "4".into())
    );
    assert!(now(&machine, &mut family, text).is_unchanged());

    // The user's own backlog: attached for a veth first, and then for good.
    let text = text.replace("cpu = 2\n", "cpu = 2\nbacklog = 'attached'\n");
    let more = now(&machine, &mut family, &text);
    assert_eq!(more.backlogs.len(), 1);
    assert!(now(&machine, &mut family, &text).is_unchanged());
    assert_eq!(
        requested(&machine, &mut family).pollers[0].backlog,
        Some(Backlog::Attached)
    );
}

#[test]
fn what_contradicts_is_refused_and_the_rest_is_done() {
    let (machine, mut family) = (machine(), family());
    let base = "version = 1\n[[poller]]\ncpu = 2\n[[poller]]\ncpu = 3\n";
    now(
        &machine,
        &mut family,
        &format!("{base}[[attach]]\ndevice = 'eth1'\nqueues = '0-1'\ncpus = '2'\n"),
    );
    let text = "version = 1\n[[poller]]\ncpu = 2\nbudget = 9\npriority = 'f:50'\n[[poller]]\ncpu = 3\n\
                [[attach]]\ndevice = 'eth1'\nqueues = '1-3,7'\ncpus = '3'\n[[attach]]\ndevice = 'eth2'\ncpus = '3'\n\
                [[attach]]\nnetns = 'pod'\ndevice = 'eth0'\ncpus = '3'\n\
                [[attach]]\ndevice = 'near'\nqueues = '0'\ncpus = '1'\n[[attach]]\ndevice = 'next'\ncpus = '3'\n";
    let restored = now(&machine, &mut family, text);
    let failed = failures(&restored);
    let expected = [
        "2: the poller of CPU 2: it is there already and has budget 8, not 9",
        "8: eth1 queue 1: it is attached already, but to the poller of CPU 2, not of CPU 3",
        "8: eth1 queue 7: eth1 has no receive queue 7; it has 4",
        "12: eth2: there is no interface 'eth2'",
        "15: eth0 in network namespace pod: there is no network namespace 'pod'",
        "19: near: CPU 1 has no poller",
    ];
    assert_eq!(failed.len(), expected.len(), "{failed:#?}");
    for (failure, words) in failed.iter().zip(expected) {
        assert!(failure.starts_with(words), "{failure}\nis not\n{words}");
    }
    let cpus: Vec<_> = family
        .napis
        .iter()
        .map(|napi| (napi.queue.unwrap(), napi.cpu))
        .collect();
    assert_eq!(cpus, [(0, 2), (1, 2), (2, 3), (3, 3)]);
    assert_eq!(machine.rps("next", 1), "8");
    let file = parse("kbp.toml", text).unwrap();
    assert_eq!(
        restored
            .verdict(&file, Options::default())
            .unwrap_err()
            .class(),
        Class::Incomplete
    );
}

#[test]
fn one_queue_that_the_kernel_refuses_leaves_the_others() {
    let (machine, mut family) = (machine(), family());
    family.refuse_queue = Some(1);
    let text = "version = 1\n[[poller]]\ncpu = 2\n[[attach]]\ndevice = 'eth1'\ncpus = '2'\n";
    let restored = now(&machine, &mut family, text);
    let failed = failures(&restored);
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert!(
        failed[0].contains("eth1 queue 1: ") && failed[0].contains("no NAPI instance"),
        "{failed:#?}"
    );
    assert_eq!(family.napis.len(), 3);
}

#[test]
fn what_is_left_changed_is_told_although_every_queue_fails() {
    let (machine, mut family) = (machine(), family());
    refuse_affinity(&machine, 30);
    refuse_affinity(&machine, 31);
    // Both queues together are taken back, the first of them alone is not.
    family.detaches = Some(1);
    let text = "version = 1\n[[poller]]\ncpu = 2\n\
                [[attach]]\ndevice = 'eth1'\nqueues = '0-1'\ncpus = '2'\n";
    let restored = now(&machine, &mut family, text);
    let file = parse("kbp.toml", text).unwrap();
    let error = restored.verdict(&file, Options::default()).unwrap_err();
    assert_eq!(error.class(), Class::LeftChanged, "{error}");
    assert_eq!(family.napis.len(), 1, "nothing more was tried");
}

#[test]
fn an_interrupt_that_nobody_may_move_keeps_nothing_else_from_being_done() {
    let (machine, mut family) = (machine(), family());
    refuse_affinity(&machine, 31);
    let text = "version = 1\n[[poller]]\ncpu = 2\n[[attach]]\ndevice = 'eth1'\ncpus = '2'\n\
                [[attach]]\ndevice = 'near'\ncpus = '2'\n";
    let restored = now(&machine, &mut family, text);
    let failed = failures(&restored);
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert!(failed[0].starts_with("4: eth1 queue 1: "), "{failed:#?}");
    assert_eq!(
        (family.napis.len(), machine.rps("near", 1)),
        (3, "4".into())
    );
    let file = parse("kbp.toml", text).unwrap();
    let error = restored.verdict(&file, Options::default()).unwrap_err();
    assert_eq!(error.class(), Class::Incomplete);
}

#[test]
fn what_was_done_before_an_error_that_ends_it_all_is_told() {
    let (machine, mut family) = (machine(), family());
    family.lose_privilege = true;
    let text =
        "version = 1\n[[poller]]\ncpu = 2\n[[attach]]\ndevice = 'eth1'\nqueues = '0'\ncpus = '2'\n\
                [[attach]]\ndevice = 'eth0'\ncpus = '2'\n[[attach]]\ndevice = 'near'\ncpus = '2'\n";
    let restored = now(&machine, &mut family, text);
    assert_eq!((restored.pollers.len(), restored.reports.len()), (1, 1));
    assert_eq!(failures(&restored), [""; 0]);
    assert_eq!(machine.rps("near", 0), "0", "nothing more is tried");
    let file = parse("kbp.toml", text).unwrap();
    let error = restored.verdict(&file, Options::default()).unwrap_err();
    assert_eq!(error.class(), Class::NoPrivilege);
}

#[test]
fn a_card_is_known_under_another_name_and_another_one_under_its_name_is_refused() {
    let (machine, mut family) = (machine(), family());
    let text = "version = 1\n[[poller]]\ncpu = 2\n[[attach]]\ndevice = 'eth7'\nmac = '52:54:00:00:00:02'\n\
                queues = '0'\ncpus = '2'\n[[attach]]\ndevice = 'eth0'\nmac = '52:54:00:00:00:99'\ncpus = '2'\n";
    let restored = now(&machine, &mut family, text);
    assert!(restored
        .notes
        .contains(&"eth7 is called eth1 now (address 52:54:00:00:00:02)".to_owned()));
    let attached: Vec<_> = family
        .napis
        .iter()
        .map(|napi| napi.ifname.clone().unwrap())
        .collect();
    assert_eq!(attached, ["eth1"]);
    let failed = failures(&restored);
    assert_eq!(failed.len(), 1, "{failed:#?}");
    let words = "eth0 is another card now (address 52:54:00:00:00:01, at pci/0000:00:03.0)";
    assert!(failed[0].contains(words), "{failed:#?}");
}

#[test]
fn a_card_that_is_late_is_not_taken_for_another_one_with_its_address() {
    // As in a cloud: eth1 has the address of a function that comes later.
    let late = "version = 1\n[[poller]]\ncpu = 2\n[[attach]]\ndevice = 'eth2'\nmac = '52:54:00:00:00:02'\n\
                bus = 'pci/0000:00:05.0'\ncpus = '2'\n";
    let both = format!("{late}[[attach]]\ndevice = 'eth1'\nqueues = '0'\ncpus = '2'\n");
    for comes in [true, false] {
        let (machine, mut family) = (machine(), family());
        family.ifindex.insert("eth2".into(), 4);
        let address = family.addresses["eth1"].clone();
        family.addresses.insert("eth2".into(), address);
        let file = parse("kbp.toml", &both).unwrap();
        let mut tries = 0;
        let mut here = Here {
            family: &mut family,
            meanwhile: &mut |_| {
                tries += 1;
                if tries == 4 && comes {
                    let line = "\n 40: 0 0 0 0 PCI-MSI 40-edge  eth2-rx-0\n";
                    machine.write("proc/interrupts", &(machine.read("proc/interrupts") + line));
                    machine.add_nic("eth2", "0000:00:05.0", 4, 1, &[40]);
                    machine.write("sys/class/net/eth2/flags", "0x1003\n");
                    machine.set_bus("eth2", "pci");
                }
            },
        };
        let wait = Duration::from_millis(if comes { 60_000 } else { 1 });
        let options = Options {
            wait,
            is_dry: false,
        };
        let restored = restore(&machine.host, &mut here, &file, options, &mut |_| {});
        let failed = failures(&restored);
        match comes {
            true => assert_eq!((failed, machine.affinity(40)), (vec![], "2".into())),
            false => assert!(
                failed.len() == 1 && failed[0].contains("eth1 has its address"),
                "{failed:#?}"
            ),
        }
        assert_eq!(restored.notes, [""; 0]);
        assert_eq!(family.napis.len(), if comes { 2 } else { 1 });
    }

    // Nothing else means eth1: in the end it is the card, in another slot and under another name.
    let (machine, mut family) = (machine(), family());
    let restored = now(&machine, &mut family, late);
    assert_eq!(failures(&restored), [""; 0]);
    assert!(restored.notes[0].starts_with("eth2 is called eth1 now"));
}

#[test]
fn what_comes_late_is_waited_for_and_the_rest_is_not_kept() {
    let (machine, mut family) = (machine(), family());
    family.ifindex.insert("eth2".into(), 4);
    let text = "version = 1\n[[attach]]\ndevice = 'eth2'\ncpus = '2'\n[[poller]]\ncpu = 2\n\
                [[attach]]\ndevice = 'eth1'\ncpus = '2'\n";
    let file = parse("kbp.toml", text).unwrap();
    let (mut tries, mut told) = (0, Vec::new());
    let mut here = Here {
        family: &mut family,
        meanwhile: &mut |family| {
            tries += 1;
            match tries {
                // The poller, eth2, eth1.
                1..=3 => assert_eq!(family.napis.len(), 0),
                4 => {
                    assert_eq!(family.napis.len(), 4, "eth1 did not wait");
                    machine.add_nic("eth2", "0000:00:05.0", 4, 1, &[40]);
                    machine.write("sys/class/net/eth2/flags", "0x1002\n");
                }
                5 => {
                    assert_eq!(
                        family.napis.len(),
                        4,
                        "a card that is down has no interrupt yet"
                    );
                    let line = "\n 40: 0 0 0 0 PCI-MSI 40-edge  eth2-rx-0\n";
                    machine.write("proc/interrupts", &(machine.read("proc/interrupts") + line));
                    machine.write("sys/class/net/eth2/flags", "0x1003\n");
                }
                _ => panic!("there is nothing to wait for any more"),
            }
        },
    };
    let options = Options {
        wait: Duration::from_secs(60),
        is_dry: false,
    };
    let restored = restore(&machine.host, &mut here, &file, options, &mut |missing| {
        told.extend(missing.to_vec());
    });
    assert_eq!(told.len(), 1);
    assert!(
        told[0].starts_with("eth2 (there is no interface 'eth2'"),
        "{told:?}"
    );
    assert_eq!(failures(&restored), [""; 0]);
    assert_eq!(machine.affinity(40), "2");

    // What never comes is told, in the time that was given.
    let text = text.replace("eth2", "eth3");
    let file = parse("kbp.toml", &text).unwrap();
    let options = Options {
        wait: Duration::from_millis(1),
        is_dry: false,
    };
    let restored = restore_with(&machine, &mut family, &file, options);
    assert_eq!(failures(&restored).len(), 1);
}

/// A bridge with a veth, eth2, which comes late, a veth whose file can't be written, and one more veth.
fn add_bridge(machine: &Machine) {
    machine.write("sys/class/net/br0/bridge/bridge_id", "8000.0\n");
    machine.write("sys/class/net/br0/ifindex", "20\n");
    machine.add_nic("eth2", "0000:00:05.0", 4, 1, &[40]);
    machine.write("sys/class/net/eth2/flags", "0x1002\n");
    for (number, port) in ["a\"b", "eth2", "near", "next"].iter().enumerate() {
        let file = format!("sys/class/net/br0/brif/{port}/port_no");
        machine.write(&file, &format!("{}\n", number + 1));
    }
    for queue in 0..2 {
        let file = format!("sys/class/net/near/queues/rx-{queue}/rps_cpus");
        machine.remove(&file);
        machine.link(&file, "/sys/devices/system/cpu/kernel_max");
    }
}

#[test]
fn a_port_that_is_late_or_refuses_keeps_no_other_port_from_being_attached() {
    let text = "version = 1\n[[poller]]\ncpu = 2\n[[attach]]\ndevice = 'br0'\ncpus = '2'\n";
    let file = parse("kbp.toml", text).unwrap();
    for is_dry in [true, false] {
        let (machine, mut family) = (machine(), family());
        family.ifindex.insert("eth2".into(), 4);
        add_bridge(&machine);
        let mut tries = 0;
        let mut here = Here {
            family: &mut family,
            meanwhile: &mut |_| {
                tries += 1;
                // The poller, and the bridge three times.
                if tries == 4 {
                    let line = "\n 40: 0 0 0 0 PCI-MSI 40-edge  eth2-rx-0\n";
                    machine.write("proc/interrupts", &(machine.read("proc/interrupts") + line));
                    machine.write("sys/class/net/eth2/flags", "0x1003\n");
                }
            },
        };
        let wait = Duration::from_secs(60);
        let options = Options { wait, is_dry };
        let restored = restore(&machine.host, &mut here, &file, options, &mut |_| {});
        assert_eq!(tries, 4);
        match is_dry {
            true => {
                let once: BTreeSet<_> = restored.changes.iter().collect();
                assert_eq!(once.len(), restored.changes.len(), "{restored:#?}");
                assert!(restored.changes.iter().any(|one| one.contains("next")));
            }
            false => {
                let failed = failures(&restored);
                assert_eq!(failed.len(), 1, "{failed:#?}");
                assert!(failed[0].starts_with("4: near: "), "{failed:#?}");
                assert_eq!(
                    (machine.rps("a\"b", 0), machine.rps("next", 1)),
                    ("4".into(), "4".into())
                );
                assert_eq!(machine.affinity(40), "2");
            }
        }
    }
}
