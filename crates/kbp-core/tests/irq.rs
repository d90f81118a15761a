// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vector of a receive queue, on /proc/interrupts in the forms that kernels and drivers print.

use kbp_core::irq::{queue_vector, vectors};
use kbp_core::netdev::Interface;
use kbp_core::procfs::parse_interrupts;

/// A kernel of the 6.1 line: virtio-net and e1000e, both with MSI-X.
const DEBIAN_6_1: &str = "\
           CPU0       CPU1
  9:          0          0   IO-APIC   9-fasteoi   acpi
 24:          0          0   PCI-MSI 49152-edge      virtio0-config
 25:         44       1021   PCI-MSI 49153-edge      virtio0-input.0
 26:          0        998   PCI-MSI 49154-edge      virtio0-output.0
 27:          7          0   PCI-MSI 49155-edge      virtio0-input.1
 28:          0          1   PCI-MSI 49156-edge      virtio0-output.1
 30:     220104          0   PCI-MSI 65536-edge      eth1-rx-0
 31:     110011          0   PCI-MSI 65537-edge      eth1-tx-0
 32:          2          0   PCI-MSI 65538-edge      eth1
NMI:          0          0   Non-maskable interrupts
ERR:          0
";

/// Later kernels name the chip after the device.
const LATER: &str = "\
            CPU0       CPU1
  24:          0          0 PCI-MSIX-0000:00:02.0   0-edge      virtio0-config
  25:         44       1021 PCI-MSIX-0000:00:02.0   1-edge      virtio0-input.0
  26:          0        998 PCI-MSIX-0000:00:02.0   2-edge      virtio0-output.0
";

/// An Arm machine, where a word for the trigger stands alone.
const ARM: &str = "\
           CPU0       CPU1
 11:      10000      10000     GICv3  27 Level     arch_timer
 49:          5          0   ITS-MSI 524288 Edge      eth0-rxtx-0
 50:          5          0   ITS-MSI 524289 Edge      eth0-rxtx-1
";

/// One vector for everything, shared on a line with a USB controller, and one with MSI.
const SINGLE: &str = "\
           CPU0       CPU1
 11:       4242          0   IO-APIC  11-fasteoi   uhci_hcd:usb1, eth0
 40:        100          0   PCI-MSI 81920-edge      eth1
";

/// Drivers with many queues and names of their own.
const MANY: &str = "\
           CPU0       CPU1
 60:          1          0  PCI-MSI 0-edge      ens1-TxRx-0
 61:          1          0  PCI-MSI 1-edge      ens1-TxRx-1
 69:          1          0  PCI-MSI 9-edge      ens1-TxRx-10
 70:          1          0  PCI-MSI 16-edge      ens1
 71:          1          0  PCI-MSI 20-edge      i40e-ens2-TxRx-0
 72:          1          0  PCI-MSI 21-edge      i40e-ens2-TxRx-1
 73:          1          0  PCI-MSI 22-edge      i40e-0000:02:00.0:misc
 80:          1          0  PCI-MSI 30-edge      mlx5_async0@pci:0000:03:00.0
 81:          1          0  PCI-MSI 31-edge      mlx5_comp0@pci:0000:03:00.0
 82:          1          0  PCI-MSI 32-edge      mlx5_comp1@pci:0000:03:00.0
 90:          1          0  PCI-MSI 40-edge      ens10-rx-0
 91:          1          0  PCI-MSI 41-edge      ens10-rx-0
";

fn interface(name: &str, device: Option<&str>, msi_irqs: &[u32]) -> Interface {
    Interface {
        name: name.into(),
        ifindex: 2,
        rx_queues: 16,
        threaded: None,
        device: device.map(Into::into),
        driver: None,
        msi_irqs: msi_irqs.into(),
        irq: None,
    }
}

/// The number of the vector, or the words of the error.
fn vector(text: &str, interface: &Interface, queue: u32) -> Result<u32, String> {
    let found = queue_vector(&parse_interrupts(text), interface, queue);
    found
        .map(|vector| vector.irq)
        .map_err(|error| error.to_string())
}

#[test]
fn every_form_finds_its_receiving_vector() {
    let virtio = interface("eth0", Some("virtio0"), &[]);
    let e1000e = interface("eth1", Some("0000:00:03.0"), &[30, 31, 32]);
    let arm = interface("eth0", Some("0001:01:00.0"), &[]);
    let ixgbe = interface("ens1", Some("0000:01:00.0"), &[60, 61, 69, 70]);
    let i40e = interface("ens2", Some("0000:02:00.0"), &[71, 72, 73]);
    let mlx5 = interface("ens3", Some("0000:03:00.0"), &[80, 81, 82]);
    for (text, interface, queue, irq) in [
        (DEBIAN_6_1, &virtio, 0, 25),
        (DEBIAN_6_1, &virtio, 1, 27),
        (DEBIAN_6_1, &e1000e, 0, 30),
        (LATER, &virtio, 0, 25),
        (ARM, &arm, 1, 50),
        (MANY, &ixgbe, 1, 61),
        (MANY, &ixgbe, 10, 69),
        (MANY, &i40e, 1, 72),
        (MANY, &mlx5, 0, 81),
        (MANY, &mlx5, 1, 82),
    ] {
        assert_eq!(
            vector(text, interface, queue),
            Ok(irq),
            "{} queue {queue}",
            interface.name
        );
    }
}

#[test]
fn what_only_sends_or_configures_is_among_the_vectors_too() {
    let found = |text, name, device, msi_irqs: &[u32], rx_queues| {
        let interface = Interface {
            rx_queues,
            ..interface(name, device, msi_irqs)
        };
        let vectors =
            vectors(&parse_interrupts(text), &interface).map_err(|error| error.to_string())?;
        let all: Vec<u32> = vectors.all.iter().map(|vector| vector.irq).collect();
        Ok::<_, String>((vectors.receive, all))
    };
    let virtio = found(
        DEBIAN_6_1,
        "eth0",
        Some("virtio0"),
        &[24, 25, 26, 27, 28, 29],
        2,
    );
    assert_eq!(virtio, Ok((vec![25, 27], vec![25, 27, 24, 26, 28])));
    // Renamed since its handlers were named.
    let e1000e = found(DEBIAN_6_1, "lan", Some("0000:00:03.0"), &[30, 31, 32], 1);
    assert_eq!(e1000e, Ok((vec![30], vec![30, 31, 32])));
    // One vector for both queues, on a line that others share.
    let line = found(SINGLE, "eth0", Some("0000:00:04.0"), &[], 2);
    assert_eq!(line, Ok((vec![11], vec![11])));
    // Known by the names of its handlers alone.
    let named = found(DEBIAN_6_1, "eth9", Some("virtio0"), &[], 1);
    assert_eq!(named, Ok((vec![25], vec![25, 24, 26, 27, 28])));
    let virtual_one = found(DEBIAN_6_1, "veth1", None, &[], 1).unwrap_err();
    assert!(virtual_one.contains("has no interrupt"), "{virtual_one}");
}

#[test]
fn a_single_vector_serves_every_queue_and_is_shared() {
    let (line, msi) = (
        interface("eth0", Some("0000:00:04.0"), &[]),
        interface("eth1", Some("0000:00:05.0"), &[40]),
    );
    for queue in [0, 3] {
        assert_eq!(vector(SINGLE, &line, queue), Ok(11));
        assert_eq!(vector(SINGLE, &msi, queue), Ok(40));
    }
    assert!(
        queue_vector(&parse_interrupts(SINGLE), &line, 0)
            .unwrap()
            .shared
    );
}

#[test]
fn a_renamed_interface_is_found_by_the_vectors_of_its_device() {
    let renamed = interface("lan0", Some("0000:00:03.0"), &[30, 31, 32]);
    assert_eq!(vector(DEBIAN_6_1, &renamed, 0), Ok(30));
}

#[test]
fn no_guess_where_nothing_fits() {
    let e1000e = interface("eth1", Some("0000:00:03.0"), &[30, 31, 32]);
    let down = interface("eth7", Some("0000:00:07.0"), &[]);
    let veth = interface("veth0", None, &[]);
    let twice = interface("ens10", Some("0000:04:00.0"), &[90, 91]);
    for (text, interface, queue, words) in [
        (DEBIAN_6_1, &e1000e, 1, "names receive queue 1"),
        (DEBIAN_6_1, &down, 0, "has to be up"),
        (DEBIAN_6_1, &veth, 0, "virtual interface"),
        (MANY, &twice, 0, "two interrupts"),
    ] {
        let error = vector(text, interface, queue).unwrap_err();
        assert!(
            error.contains(words) && error.contains("--no-irq"),
            "{error}"
        );
    }
}

#[test]
fn a_longer_name_is_another_interface() {
    let text = "           CPU0\n 24:  1  PCI-MSI 1-edge      eth10-rx-0\n 25:  1  PCI-MSI 2-edge      eth1-rx-0\n";
    assert_eq!(
        vector(text, &interface("eth1", Some("0000:00:03.0"), &[]), 0),
        Ok(25)
    );
}

#[test]
fn counts_are_read_by_cpu() {
    let interrupts = parse_interrupts(DEBIAN_6_1);
    assert_eq!(interrupts.total(25), Some(1065));
    assert_eq!(interrupts.count(25, 1), Some(1021));
    assert_eq!(interrupts.count(25, 7), None);
    let without_handler =
        parse_interrupts("           CPU0\n 24:          0   PCI-MSI 1-edge    \n");
    assert!(without_handler.get(24).unwrap().actions.is_empty());
}
