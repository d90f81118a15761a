// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine with two cards and some veths, and what restoring a setup on it comes to.

use std::collections::BTreeMap;

use kbp_core::netns::NetnsError;
use kbp_core::plan::Session;
use kbp_core::restore::{restore, Options, Reach, Restored, Work};
use kbp_core::setup::Setup;
use kbp_core::setup_read::{parse, SetupFile};
use kbp_core::Error;

use super::{Family, Machine, E1000E};

/// The family in the one network namespace that there is. `meanwhile` happens before each thing that is tried.
pub struct Here<'f> {
    pub family: &'f mut Family,
    pub meanwhile: &'f mut dyn FnMut(&mut Family),
}

impl Reach for Here<'_> {
    fn reach(&mut self, netns: Option<&str>, work: Work<'_>) -> Result<(), Error> {
        (self.meanwhile)(self.family);
        match netns {
            Some(name) => Err(NetnsError::Unknown { name: name.into() }.into()),
            None => work(self.family),
        }
    }
}

pub fn restore_with(
    machine: &Machine,
    family: &mut Family,
    file: &SetupFile,
    options: Options,
) -> Restored {
    let mut here = Here {
        family,
        meanwhile: &mut |_| {},
    };
    restore(&machine.host, &mut here, file, options, &mut |_| {})
}

pub fn now(machine: &Machine, family: &mut Family, text: &str) -> Restored {
    let file = parse("kbp.toml", text).unwrap();
    restore_with(machine, family, &file, Options::default())
}

pub fn requested(machine: &Machine, family: &mut Family) -> Setup {
    let mut session = Session::open(&machine.host, family).unwrap();
    let requested = session.requested().unwrap();
    assert!(requested.left_out.is_empty(), "{:?}", requested.left_out);
    requested.setup
}

pub fn failures(restored: &Restored) -> Vec<String> {
    let failed = restored.failed.iter();
    failed
        .map(|one| format!("{}: {}: {}", one.line, one.what, one.reason))
        .collect()
}

/// Four CPUs; eth1 with four queues, which all have a vector and a transmit queue, eth0 with one, and three veths.
pub fn machine() -> Machine {
    let machine = Machine::new();
    let lines: String = (0..4)
        .map(|queue| {
            let irq = 30 + queue;
            format!(" {irq}:  0  0  0  0  PCI-MSI {irq}-edge      eth1-TxRx-{queue}\n")
        })
        .collect();
    machine.write("proc/interrupts", &(E1000E.to_owned() + &lines));
    machine.write("sys/devices/system/cpu/possible", "0-3\n");
    machine.add_nic("eth1", "0000:00:04.0", 3, 4, &[30, 31, 32, 33]);
    machine.add_transmit_queues("eth1", &["1", "2", "4", "8"]);
    for (name, ifindex) in [("near", 7), ("next", 8), ("a\"b", 9)] {
        machine.add_virtual(name, ifindex, 2);
    }
    for name in ["eth0", "eth1"] {
        machine.write(&format!("sys/class/net/{name}/flags"), "0x1003\n");
        machine.set_bus(name, "pci");
    }
    machine
}

pub fn family() -> Family {
    let text = |texts: &[(&str, &str)]| -> BTreeMap<String, String> {
        let owned = texts.iter().map(|(a, b)| (a.to_string(), b.to_string()));
        owned.collect()
    };
    Family {
        ifindex: [("eth1".to_owned(), 3)].into(),
        addresses: text(&[("eth0", "52:54:00:00:00:01"), ("eth1", "52:54:00:00:00:02")]),
        ..Family::default()
    }
}
