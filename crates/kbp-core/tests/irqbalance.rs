// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What irqbalance is told when interrupts are moved, and that it is told otherwise later. Its side of the socket is
//! played here as its source has it; `lab/tests/28-scale.sh` talks to the real one.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread;

use common::{request, Family, Machine};
use kbp_core::plan::Session;
use kbp_core::state;

const PID: u32 = 77;

fn family() -> Family {
    Family {
        pollers: vec![2],
        ..Family::default()
    }
}

/// One message a connection: what it asks, or the new list; the connection ends with the answer.
fn play_irqbalance(machine: &Machine, banned: &[u32]) -> Arc<Mutex<Vec<u32>>> {
    machine.add_process(PID, "irqbalance");
    machine.write("run/irqbalance/none", "");
    let path = machine
        .host
        .path(&format!("run/irqbalance/irqbalance{PID}.sock"));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    let list = Arc::new(Mutex::new(banned.to_vec()));
    let shared = Arc::clone(&list);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 500];
            let length = stream.read(&mut buffer).unwrap();
            let text = std::str::from_utf8(&buffer[..length]).unwrap();
            let mut banned = shared.lock().unwrap();
            if text == "setup" {
                let irq = |irq: &u32| format!("IRQ {irq} LOAD 0 DIFF 0 CLASS 4 ");
                let irqs: String = banned.iter().map(irq).collect();
                let answer = format!("SLEEP 10 {irqs}BANNED 00000000");
                stream.write_all(answer.as_bytes()).unwrap();
            } else if let Some(irqs) = text.strip_prefix("settings ban irqs ") {
                *banned = irqs
                    .split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect();
            }
        }
    });
    list
}

#[test]
fn it_leaves_the_interrupt_alone_while_the_queue_is_attached() {
    let (machine, mut family) = (Machine::new(), family());
    let list = play_irqbalance(&machine, &[9]);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    let changes = plan.changes(&machine.host);
    assert!(
        changes[1].contains("irqbalance (process 77)")
            && changes[1].contains("'settings ban irqs 9 25'"),
        "{changes:#?}"
    );
    assert!(plan.notes[0].contains("--banirq=25"), "{:?}", plan.notes);
    assert_eq!(*list.lock().unwrap(), [9], "a plan changes nothing");
    session.attach(&plan).unwrap();
    assert_eq!(*list.lock().unwrap(), [9, 25]);
    drop(session);

    // Somebody tells it more meanwhile; that stays.
    list.lock().unwrap().push(31);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_detach(&"eth0".parse().unwrap()).unwrap();
    let detached = session.detach(&plan).unwrap();
    assert_eq!(detached[0].freed.irqbalance, [25]);
    assert_eq!(*list.lock().unwrap(), [9, 31]);
    drop(session);
    assert!(state::peek(&machine.host).unwrap().irqbalance.is_none());
}

#[test]
fn what_the_user_told_it_stays_with_the_user() {
    let (machine, mut family) = (Machine::new(), family());
    let list = play_irqbalance(&machine, &[25]);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    assert!(plan.irqbalance.is_none() && plan.notes.is_empty());
    session.attach(&plan).unwrap();
    session.undo_all().unwrap();
    assert_eq!(*list.lock().unwrap(), [25]);
}

#[test]
fn the_last_ban_goes_too_and_another_irqbalance_is_not_told() {
    let (machine, mut family) = (Machine::new(), family());
    let list = play_irqbalance(&machine, &[]);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    assert_eq!(*list.lock().unwrap(), [25]);
    session.undo_all().unwrap();
    assert!(list.lock().unwrap().is_empty());
    drop(session);

    family.pollers = vec![2];
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    session.attach(&plan).unwrap();
    // It is started again, with an interrupt on its command line.
    *list.lock().unwrap() = vec![25];
    let stat = machine.read("proc/77/stat").replace("4711", "5000");
    machine.write("proc/77/stat", &stat);
    session.undo_all().unwrap();
    assert_eq!(*list.lock().unwrap(), [25]);
    drop(session);
    assert!(state::peek(&machine.host).unwrap().irqbalance.is_none());
}

#[test]
fn one_that_can_not_be_told_is_a_note_with_the_line_for_its_configuration() {
    let (machine, mut family) = (Machine::new(), family());
    machine.add_process(PID, "irqbalance");
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    assert!(
        plan.notes[0].contains("IRQBALANCE_ARGS=\"--banirq=25\""),
        "{:?}",
        plan.notes
    );
    session.attach(&plan).unwrap();
    assert_eq!(machine.affinity(25), "2");

    // It moves the interrupt, which the next command sees.
    machine.write("proc/irq/25/smp_affinity_list", "1\n");
    machine.add_virtual("near", 7, 1);
    let plan = session.plan_attach(&request("near", &[2])).unwrap();
    let report = session.attach(&plan).unwrap();
    assert_eq!(
        report.notes,
        ["interrupt 25 of eth0 queue 0 is on CPU 1, not on CPU 2: something moved it (irqbalance runs)"]
    );
}

#[test]
fn one_that_does_not_listen_any_more_when_it_is_told_is_a_note() {
    let (machine, mut family) = (Machine::new(), family());
    play_irqbalance(&machine, &[]);
    let mut session = Session::open(&machine.host, &mut family).unwrap();
    let plan = session.plan_attach(&request("eth0", &[2])).unwrap();
    assert!(plan.irqbalance.is_some());
    machine.remove(&format!("run/irqbalance/irqbalance{PID}.sock"));
    let report = session.attach(&plan).unwrap();
    let note = &report.notes[0];
    assert!(note.contains("can't be told") && note.contains("--banirq=25"));
    drop(session);
    assert!(state::peek(&machine.host).unwrap().irqbalance.is_none());
}
