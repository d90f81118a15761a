// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By what a network card is known again when interfaces have other names after a restart: the address that it was
//! made with, or its place on its bus. Virtual interfaces have neither, and are known by their names.
//!
//! Asking the kernel for the address is in [`crate::ethtool`].

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::client::Control;
use crate::error::Error;
use crate::host::{Host, HostError};

/// What tells a card from all others; each may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Card {
    /// The hardware address that it was made with, in small letters (`52:54:00:4b:50:00`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Kind of its bus, and its place there (`pci/0000:00:03.0`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
}

/// An interface that is there, with its card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Present {
    pub(crate) ifname: String,
    pub(crate) card: Card,
}

/// Where a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Under the name that was expected.
    AsNamed,
    /// Under another name.
    Renamed(String),
    /// Perhaps under another name and in another place: only its address says so, which a card that is not there yet may
    /// have too.
    Elsewhere(Present),
    /// Nowhere; the name belongs to another card.
    Replaced(Card),
    /// Nowhere, and the name is not there either.
    Missing,
    /// It can't be told which of these it is.
    Several(Vec<String>),
}

impl Place {
    /// The name that a card has now which was called `name`, as far as there is one.
    pub(crate) fn ifname<'n>(&'n self, name: &'n str) -> Option<&'n str> {
        match self {
            Self::AsNamed => Some(name),
            Self::Renamed(other) => Some(other),
            Self::Elsewhere(other) => Some(&other.ifname),
            Self::Replaced(_) | Self::Missing | Self::Several(_) => None,
        }
    }
}

impl Card {
    fn is_unknown(&self) -> bool {
        self.mac.is_none() && self.bus.is_none()
    }

    /// The address decides; without one, the place on the bus.
    fn is(&self, other: &Self) -> bool {
        match &self.mac {
            Some(_) => self.mac == other.mac,
            None => self.bus.is_some() && self.bus == other.bus,
        }
    }
}

impl std::fmt::Display for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.mac, &self.bus) {
            (Some(mac), Some(bus)) => write!(f, "address {mac}, at {bus}"),
            (Some(mac), None) => write!(f, "address {mac}"),
            (None, Some(bus)) => write!(f, "at {bus}"),
            (None, None) => write!(f, "without a card"),
        }
    }
}

/// Looks for a card that was called `name`. An address that several interfaces have, as a virtual function and the
/// interface that stands for it in a cloud, is told apart by the bus.
pub(crate) fn place(name: &str, wanted: &Card, present: &[Present]) -> Place {
    let named = present.iter().find(|one| one.ifname == name);
    if wanted.is_unknown() {
        return named.map_or(Place::Missing, |_| Place::AsNamed);
    }
    let mut same: Vec<&Present> = present.iter().filter(|one| wanted.is(&one.card)).collect();
    if same.len() > 1 && same.iter().any(|one| one.card.bus == wanted.bus) {
        same.retain(|one| one.card.bus == wanted.bus);
    }
    let names: Vec<String> = same.iter().map(|one| one.ifname.clone()).collect();
    match (names.as_slice(), named) {
        (names, _) if names.iter().any(|other| other == name) => Place::AsNamed,
        ([_], _) if wanted.bus.is_some() && wanted.bus != same[0].card.bus => {
            Place::Elsewhere(same[0].clone())
        }
        ([other], _) => Place::Renamed(other.clone()),
        ([], Some(named)) => Place::Replaced(named.card.clone()),
        ([], None) => Place::Missing,
        (_, _) => Place::Several(names),
    }
}

impl Host {
    /// Kind and place of the bus on which the device of an interface is; `None` for a virtual one. A virtio device is
    /// known by what carries it, because its own number depends on the order in which drivers were loaded.
    pub fn bus_place(&self, ifname: &str) -> Option<String> {
        let device = self.path(&format!("sys/class/net/{ifname}/device"));
        let mut device = fs::canonicalize(device).ok()?;
        while bus_of(&device)? == "virtio" {
            device = device.parent()?.to_owned();
        }
        let (bus, place) = (bus_of(&device)?, last_name(&device)?);
        Some(format!("{bus}/{place}"))
    }

    /// Every interface of the caller's network namespace, with its card.
    pub(crate) fn present(&self, control: &mut dyn Control) -> Result<Vec<Present>, Error> {
        let mut present = Vec::new();
        for ifname in self.interface_names()? {
            let mut address = |name: &str| control.permanent_address(name);
            // One that goes while it is looked at is not there.
            if let Ok(card) = self.card(&ifname, &mut address) {
                present.push(Present { ifname, card });
            }
        }
        Ok(present)
    }

    /// The card of an interface; `address` asks the kernel for the address that it was made with.
    pub(crate) fn card(
        &self,
        ifname: &str,
        address: &mut dyn FnMut(&str) -> Result<Option<String>, HostError>,
    ) -> Result<Card, HostError> {
        let bus = self.bus_place(ifname);
        let mac = match &bus {
            Some(_) => address(ifname)?,
            None => None,
        };
        Ok(Card { mac, bus })
    }
}

fn last_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn bus_of(device: &Path) -> Option<String> {
    let subsystem: PathBuf = fs::canonicalize(device.join("subsystem")).ok()?;
    last_name(&subsystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(mac: &str, bus: &str) -> Card {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Card {
            mac: text(mac),
            bus: text(bus),
        }
    }

    fn present(all: &[(&str, &str, &str)]) -> Vec<Present> {
        let one = |&(ifname, mac, bus): &(&str, &str, &str)| Present {
            ifname: ifname.into(),
            card: card(mac, bus),
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn a_card_is_found_under_whatever_name() {
        let there = present(&[
            ("eth0", "a", "pci/1"),
            ("eth1", "b", "pci/2"),
            ("lo", "", ""),
        ]);
        let renamed = |name: &str| Place::Renamed(name.into());
        for (name, wanted, expected) in [
            ("eth0", card("a", "pci/1"), Place::AsNamed),
            ("eth0", card("b", "pci/2"), renamed("eth1")),
            ("lan", card("b", ""), renamed("eth1")),
            // In another slot it is the same card.
            ("eth0", card("a", "pci/9"), Place::AsNamed),
            ("eth0", card("", "pci/2"), renamed("eth1")),
            // With another name as well it may be a second card with that address.
            (
                "lan",
                card("b", "pci/9"),
                Place::Elsewhere(there[1].clone()),
            ),
            // Another card in the same slot is another card.
            (
                "eth0",
                card("c", "pci/1"),
                Place::Replaced(card("a", "pci/1")),
            ),
            ("eth7", card("c", "pci/7"), Place::Missing),
            ("eth1", card("", ""), Place::AsNamed),
            ("eth7", card("", ""), Place::Missing),
            ("lo", card("", ""), Place::AsNamed),
        ] {
            assert_eq!(place(name, &wanted, &there), expected, "{name} {wanted}");
        }
    }

    #[test]
    fn one_address_on_two_interfaces_is_told_apart_by_the_bus() {
        let there = present(&[("eth0", "a", "vmbus/1"), ("eth1", "a", "pci/2")]);
        let find = |name: &str, bus: &str| place(name, &card("a", bus), &there);
        assert_eq!(find("eth0", "vmbus/1"), Place::AsNamed);
        assert_eq!(find("eth0", "pci/2"), Place::Renamed("eth1".into()));
        assert_eq!(find("eth0", ""), Place::AsNamed);
        let both = vec!["eth0".to_owned(), "eth1".to_owned()];
        assert_eq!(find("eth5", ""), Place::Several(both));
    }

    #[test]
    fn a_virtio_device_is_known_by_what_carries_it() {
        let root = tempfile::tempdir().unwrap();
        let path = |file: &str| root.path().join(file);
        for directory in [
            "sys/devices/pci0/0000:00:03.0/virtio1",
            "sys/bus/pci",
            "sys/bus/virtio",
            "sys/class/net/eth0",
            "sys/class/net/lo",
        ] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(path(to), path(at)).unwrap();
        link("sys/bus/pci", "sys/devices/pci0/0000:00:03.0/subsystem");
        link(
            "sys/bus/virtio",
            "sys/devices/pci0/0000:00:03.0/virtio1/subsystem",
        );
        link(
            "sys/devices/pci0/0000:00:03.0/virtio1",
            "sys/class/net/eth0/device",
        );
        let host = Host::at(root.path());
        assert_eq!(host.bus_place("eth0").as_deref(), Some("pci/0000:00:03.0"));
        assert_eq!(host.bus_place("lo"), None);
    }
}
