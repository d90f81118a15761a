// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the techniques below IP have to know of an interface: number, link layer address, MTU,
//! receive queues; and the link layer address behind an IPv4 address.
//!
//! All of it is of the calling thread's namespace. Not here: changing any of it.

use std::ffi::CString;
use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;
use std::time::{Duration, Instant};

use kbp_core::Host;

use crate::error::{Error, Result};

/// How long a neighbour may take to answer.
const NEIGHBOUR_LIMIT: Duration = Duration::from_secs(2);

/// A link layer address of Ethernet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("'{text}' is no link layer address like 02:00:00:00:00:01");
        let mut bytes = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2);
            *byte = u8::from_str_radix(part.ok_or_else(wrong)?, 16).map_err(|_| wrong())?;
        }
        match parts.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(wrong()),
        }
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The interface's link layer address.
///
/// # Errors
/// When there is no such interface, or it is not Ethernet.
pub fn mac(dev: &str) -> Result<Mac> {
    let text = attribute(dev, "address")?;
    text.parse().map_err(Error::Invalid)
}

/// The interface's MTU, bytes.
///
/// # Errors
/// When there is no such interface.
pub fn mtu(dev: &str) -> Result<usize> {
    let text = attribute(dev, "mtu")?;
    text.parse()
        .map_err(|_| Error::Invalid(format!("{dev} has the MTU '{text}'")))
}

/// The interface's number.
///
/// # Errors
/// When there is no such interface.
pub fn index(dev: &str) -> Result<u32> {
    let name = CString::new(dev).map_err(|_| unknown(dev))?;
    // SAFETY: the name is a string that ends with 0 and lives until the call returns.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(unknown(dev)),
        index => Ok(index),
    }
}

/// How many receive queues the interface has.
///
/// # Errors
/// When there is no such interface.
pub fn receive_queues(dev: &str) -> Result<usize> {
    let queues = Host::system()
        .list(&format!("sys/class/net/{dev}/queues"))
        .map_err(kbp_core::Error::from)?;
    Ok(queues.iter().filter(|q| q.starts_with("rx-")).count())
}

fn attribute(dev: &str, name: &str) -> Result<String> {
    index(dev)?;
    let text = Host::system().read_trimmed(&format!("sys/class/net/{dev}/{name}"));
    Ok(text.map_err(kbp_core::Error::from)?)
}

fn unknown(dev: &str) -> Error {
    Error::Core(kbp_core::Error::UnknownInterface { name: dev.into() })
}

/// The link layer address behind `addr`: asked for with an empty datagram, read from the
/// kernel's table. IPv4 only.
///
/// # Errors
/// When nobody answers; the way out is to say the address.
pub fn mac_of_neighbour(addr: SocketAddr) -> Result<Mac> {
    let since = Instant::now();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|e| Error::sys("open a UDP socket", e))?;
    while since.elapsed() < NEIGHBOUR_LIMIT {
        let table = std::fs::read_to_string("/proc/thread-self/net/arp").unwrap_or_default();
        if let Some(mac) = neighbour(&table, &addr.ip().to_string()) {
            return Ok(mac);
        }
        // Fails while nobody is known there, which is what is being found out.
        let _ = socket.send_to(&[], addr);
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::Invalid(format!(
        "nobody on this link answers for {}: give the receiver's link layer address with --to-mac",
        addr.ip()
    )))
}

/// The complete entry of an address in a table in the form of /proc/net/arp.
fn neighbour(table: &str, ip: &str) -> Option<Mac> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [address, _, flags, mac, ..] = fields[..] else {
            return None;
        };
        // ATF_COM: the address was answered.
        let complete = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()? & 2 != 0;
        (address == ip && complete).then(|| mac.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let mac: Mac = "02:00:5e:10:00:ff".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        for wrong in [
            "",
            "02:00",
            "02:00:5e:10:00:ff:01",
            "2:0:5e:10:0:ff",
            "zz:00:5e:10:00:ff",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_complete_neighbour_counts() {
        let table =
            "IP address       HW type     Flags       HW address            Mask     Device\n\
            10.0.0.2         0x1         0x0         00:00:00:00:00:00     *        eth0\n\
            10.0.0.3         0x1         0x2         02:00:00:00:00:03     *        eth0\n";
        assert_eq!(neighbour(table, "10.0.0.2"), None);
        assert_eq!(neighbour(table, "10.0.0.3"), Some(Mac([2, 0, 0, 0, 0, 3])));
        assert_eq!(neighbour(table, "10.0.0.4"), None);
    }
}
