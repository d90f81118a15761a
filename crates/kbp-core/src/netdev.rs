// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What /sys/class/net says about interfaces.
//!
//! Addresses, routes and link settings are not here; nothing of ours needs them.

use serde::Serialize;

use crate::error::Error;
use crate::host::{Host, HostError};

/// Longest name of an interface, in bytes (`IFNAMSIZ` without its end).
pub const IFNAME_LEN_MAX: usize = 15;

/// Kinds of interfaces that hand what they have unpacked to the stack again, under their own name.
const UNPACKING: [&str; 4] = ["bridge", "vxlan", "geneve", "macsec"];

/// A network interface of the namespace that /sys shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Number in its network namespace.
    pub ifindex: u32,
    /// How many receive queues it has now.
    pub rx_queues: u32,
    /// Whether mainline's threaded NAPI is on; `None` where the kernel has no such switch.
    pub threaded: Option<bool>,
    /// Name of the device behind it on its bus (`0000:00:03.0`, `virtio0`); `None` for a virtual
    /// interface.
    pub device: Option<String>,
    /// Name of that device's driver.
    pub driver: Option<String>,
    /// Message-signalled interrupts of the device, or of the bus device that carries it.
    pub msi_irqs: Vec<u32>,
    /// Line-based interrupt of the device, when it has one.
    pub irq: Option<u32>,
}

/// Packets of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

/// Whether the text can be the name of an interface, by the kernel's rules.
pub fn is_ifname(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !name.is_empty()
        && name.len() <= IFNAME_LEN_MAX
        && name != "."
        && name != ".."
        && !name.contains(odd)
}

impl Host {
    /// The interface with this name in the caller's network namespace.
    pub fn interface(&self, name: &str) -> Result<Interface, Error> {
        if !is_ifname(name) {
            return Err(Error::Usage(format!(
                "'{name}' is not the name of an interface"
            )));
        }
        let base = format!("sys/class/net/{name}");
        if !self.exists(&format!("{base}/ifindex")) {
            return Err(Error::UnknownInterface { name: name.into() });
        }
        let threaded = self.read_optional(&format!("{base}/threaded"))?;
        Ok(Interface {
            name: name.into(),
            ifindex: self.read_number(&format!("{base}/ifindex"))?,
            rx_queues: self.rx_queues(&base)?,
            // 2 is "busy-poll" on kernels that have it: a thread serves the device as well.
            threaded: threaded.map(|text| text != "0"),
            device: self.link_name(&format!("{base}/device")),
            driver: self.link_name(&format!("{base}/device/driver")),
            msi_irqs: self.msi_irqs(&base)?,
            irq: self.line_irq(&base)?,
        })
    }

    /// How many packets the interface received and sent since it was made.
    pub fn packet_counts(&self, name: &str) -> Result<PacketCounts, HostError> {
        let base = format!("sys/class/net/{name}/statistics");
        Ok(PacketCounts {
            received: self.read_number(&format!("{base}/rx_packets"))?,
            sent: self.read_number(&format!("{base}/tx_packets"))?,
        })
    }

    /// Whether the interface with this name is up, with or without a carrier.
    pub fn is_up(&self, name: &str) -> Result<bool, HostError> {
        let file = format!("sys/class/net/{name}/flags");
        let text = self.read_trimmed(&file)?;
        let flags = text
            .strip_prefix("0x")
            .map(|digits| u32::from_str_radix(digits, 16));
        match flags {
            Some(Ok(flags)) => Ok(flags & libc::IFF_UP as u32 != 0),
            _ => Err(self.malformed(&file, &format!("'{text}' are no flags"))),
        }
    }

    /// The names of all interfaces of the caller's network namespace.
    pub fn interface_names(&self) -> Result<Vec<String>, HostError> {
        let names = self.list("sys/class/net")?;
        // `bonding_masters` is a file among the interfaces.
        Ok(names
            .into_iter()
            .filter(|name| self.exists(&format!("sys/class/net/{name}/ifindex")))
            .collect())
    }

    /// The interface with this number in the caller's network namespace; `None` when there is none (any more).
    pub fn interface_with_index(&self, ifindex: u32) -> Result<Option<String>, HostError> {
        for name in self.interface_names()? {
            let index = self.read_optional(&format!("sys/class/net/{name}/ifindex"))?;
            if index.and_then(|text| text.parse().ok()) == Some(ifindex) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The ports of a bridge, by name; `None` for what is no bridge.
    pub fn bridge_ports(&self, name: &str) -> Result<Option<Vec<String>>, HostError> {
        match self.exists(&format!("sys/class/net/{name}/bridge")) {
            true => self.list(&format!("sys/class/net/{name}/brif")).map(Some),
            false => Ok(None),
        }
    }

    /// The interfaces through which a virtual one receives without the stack looking at its packets again (VLAN,
    /// bond, macvlan); none for the others. A tunnel unpacks what it receives, so it is one of the others, although
    /// the kernel links it to an interface below it too.
    pub fn received_by(&self, name: &str) -> Result<Vec<String>, HostError> {
        let base = format!("sys/class/net/{name}");
        let uevent = self.read_optional(&format!("{base}/uevent"))?;
        let kind = uevent
            .as_deref()
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("DEVTYPE=")));
        if kind.is_some_and(|kind| UNPACKING.contains(&kind)) {
            return Ok(Vec::new());
        }
        let names = self.list(&base)?;
        let lower = names.iter().filter_map(|name| name.strip_prefix("lower_"));
        Ok(lower.map(Into::into).collect())
    }

    fn rx_queues(&self, base: &str) -> Result<u32, HostError> {
        let queues = self.list(&format!("{base}/queues"))?;
        Ok(queues.iter().filter(|name| name.starts_with("rx-")).count() as u32)
    }

    /// A virtio device has its vectors one level up, at the PCI function that carries it.
    fn msi_irqs(&self, base: &str) -> Result<Vec<u32>, HostError> {
        for directory in ["device/msi_irqs", "device/../msi_irqs"] {
            let mut irqs: Vec<u32> = self
                .list(&format!("{base}/{directory}"))?
                .iter()
                .filter_map(|name| name.parse().ok())
                .collect();
            if !irqs.is_empty() {
                irqs.sort_unstable();
                return Ok(irqs);
            }
        }
        Ok(Vec::new())
    }

    /// The kernel writes 0 where there is no line-based interrupt.
    fn line_irq(&self, base: &str) -> Result<Option<u32>, HostError> {
        for file in ["device/irq", "device/../irq"] {
            if let Some(text) = self.read_optional(&format!("{base}/{file}"))? {
                return Ok(text.parse().ok().filter(|&irq| irq > 0));
            }
        }
        Ok(None)
    }
}
