// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ethtool(8) knows of an interface: who drives it, and which offloads are on. A veth has NAPI
//! instances only while it merges what it receives, and uses them only for what its peer sends without
//! segmentation offload (drivers/net/veth.c, `veth_skb_is_eligible_for_gro()`).
//!
//! The names are those of the calling thread's network namespace. Nothing is remembered for an undo here.

use std::ffi::c_char;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use crate::host::HostError;
use crate::netdev::is_ifname;

/// `ETHTOOL_GDRVINFO` of linux/ethtool.h.
const GET_DRIVER: u32 = 0x03;
/// Length of `struct ethtool_drvinfo`, in 32-bit words.
const DRIVER_WORDS: usize = 49;
/// Length of the driver's name, which follows the command, bytes.
const DRIVER_NAME_LEN: usize = 32;

/// Sends one command; the buffer begins with its number and receives the answer.
fn ask(ifname: &str, what: &str, buffer: &mut [u32]) -> Result<(), HostError> {
    let failed = |source: io::Error| HostError::Call {
        what: format!("ask {ifname} for {what}"),
        source,
    };
    if !is_ifname(ifname) {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    let socket = UnixDatagram::unbound().map_err(failed)?;
    // SAFETY: a structure of numbers and of pointers that may be null.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(ifname.bytes()) {
        *to = from as c_char;
    }
    request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: both live until the call returns; the kernel writes to `buffer` what the command says,
    // and the callers have made it that long.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    match result {
        0 => Ok(()),
        _ => Err(failed(io::Error::last_os_error())),
    }
}

/// Name of the driver of an interface (`e1000e`, `veth`, `vxlan`); `None` for one that has no name for
/// it, as lo has.
pub fn driver(ifname: &str) -> Result<Option<String>, HostError> {
    let mut buffer = [0; DRIVER_WORDS];
    buffer[0] = GET_DRIVER;
    match ask(ifname, "its driver", &mut buffer) {
        Ok(()) => {}
        Err(HostError::Call { source, .. }) if is_unsupported(&source) => return Ok(None),
        Err(error) => return Err(error),
    }
    let bytes: Vec<u8> = buffer[1..].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let name = bytes[..DRIVER_NAME_LEN]
        .iter()
        .take_while(|&&byte| byte != 0);
    let name = String::from_utf8_lossy(&name.copied().collect::<Vec<u8>>()).into_owned();
    Ok(Some(name).filter(|name| !name.is_empty()))
}

/// Whether a virtual interface has a NAPI instance for each of its receive queues. Of those that Debian's kernels
/// have it is the veth, while it merges what it receives. With an XDP program alone it has them too, which nothing that
/// is asked here shows. Tunnels have instances as well, but one for each CPU, which must stay there (`gro_cells`).
pub fn has_queue_napis(ifname: &str) -> Result<bool, HostError> {
    match driver(ifname)?.as_deref() {
        Some("veth") => offload(ifname, Offload::Receive),
        _ => Ok(false),
    }
}

/// `ETHTOOL_GPERMADDR`.
const GET_PERMANENT_ADDRESS: u32 = 0x20;
/// Longest hardware address (`MAX_ADDR_LEN`), bytes.
const ADDRESS_LEN_MAX: usize = 32;

/// The hardware address that an interface was made with, whatever it has now, in small letters; `None` for one that
/// has none, as virtual ones.
pub fn permanent_address(ifname: &str) -> Result<Option<String>, HostError> {
    let mut buffer = [0; 2 + ADDRESS_LEN_MAX / size_of::<u32>()];
    buffer[0] = GET_PERMANENT_ADDRESS;
    buffer[1] = ADDRESS_LEN_MAX as u32;
    match ask(ifname, "its permanent address", &mut buffer) {
        Ok(()) => {}
        Err(HostError::Call { source, .. }) if is_unsupported(&source) => return Ok(None),
        Err(error) => return Err(error),
    }
    let bytes: Vec<u8> = buffer[2..].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let bytes = &bytes[..ADDRESS_LEN_MAX.min(buffer[1] as usize)];
    let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let is_set = bytes.iter().any(|byte| *byte != 0);
    Ok(is_set.then(|| words.join(":")))
}

/// An offload that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Merging of received packets (`gro`).
    Receive,
    /// Sending of packets that are cut later (`tso`).
    Segmentation,
}

impl Offload {
    /// The commands that read and set it: `ETHTOOL_GGRO`, `ETHTOOL_GTSO` and the one after each.
    fn commands(self) -> (u32, u32) {
        match self {
            Self::Receive => (0x2b, 0x2c),
            Self::Segmentation => (0x1e, 0x1f),
        }
    }
}

/// Whether an offload is on.
pub fn offload(ifname: &str, offload: Offload) -> Result<bool, HostError> {
    let mut buffer = [offload.commands().0, 0];
    ask(ifname, "an offload", &mut buffer)?;
    Ok(buffer[1] != 0)
}

/// Switches an offload.
pub fn set_offload(ifname: &str, offload: Offload, on: bool) -> Result<(), HostError> {
    let mut buffer = [offload.commands().1, u32::from(on)];
    ask(ifname, "another offload", &mut buffer)
}

/// `ETHTOOL_GCHANNELS` and the one that sets.
const CHANNELS: (u32, u32) = (0x3c, 0x3d);

/// How many queues an interface uses, and how many it could (`struct ethtool_channels`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Most of them: receive, transmit, other, combined.
    pub max: [u32; 4],
    /// Those in use, in the same order.
    pub count: [u32; 4],
}

/// The queues of an interface; an error for a driver that does not say.
pub fn channels(ifname: &str) -> Result<Channels, HostError> {
    let mut buffer = [0; 9];
    buffer[0] = CHANNELS.0;
    ask(ifname, "its queues", &mut buffer)?;
    let [_, a, b, c, d, e, f, g, h] = buffer;
    Ok(Channels {
        max: [a, b, c, d],
        count: [e, f, g, h],
    })
}

/// Uses another number of queues.
pub fn set_channels(ifname: &str, channels: Channels) -> Result<(), HostError> {
    let ([a, b, c, d], [e, f, g, h]) = (channels.max, channels.count);
    let mut buffer = [CHANNELS.1, a, b, c, d, e, f, g, h];
    ask(ifname, "other numbers of queues", &mut buffer)
}

fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_driver_and_answers_about_offload() {
        assert_eq!(driver("lo").unwrap(), None);
        offload("lo", Offload::Receive).unwrap();
        assert!(!has_queue_napis("lo").unwrap());
        let error = driver("no-such-dev").unwrap_err().to_string();
        assert!(error.contains("no-such-dev"), "{error}");
        assert!(driver("a/b").is_err());
    }
}
