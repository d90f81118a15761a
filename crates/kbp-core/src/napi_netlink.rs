// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NAPI instances of interfaces, as the kernel's own generic netlink family `netdev` has them.
//!
//! Numbers are those of include/uapi/linux/netdev.h, which the kernel makes of
//! Documentation/netlink/specs/netdev.yaml. Only what is used here is named. The family shows the
//! network namespace of the thread that opened it. Undo is not here; see [`crate::busy_poll`].

use crate::attr::{Attr, Attrs, DecodeError};
use crate::error::Class;
use crate::netlink::{Connection, Failure, Refusal};

/// Name of the family.
const FAMILY_NAME: &str = "netdev";
/// Its version.
const FAMILY_VERSION: u8 = 1;
/// `NETDEV_CMD_NAPI_GET`.
const NAPI_GET: u8 = 11;
/// `NETDEV_CMD_NAPI_SET`.
const NAPI_SET: u8 = 14;
/// `NETDEV_A_NAPI_IFINDEX`.
const A_IFINDEX: u16 = 1;
/// `NETDEV_A_NAPI_ID`.
const A_ID: u16 = 2;
/// `NETDEV_A_NAPI_IRQ`.
const A_IRQ: u16 = 3;
/// `NETDEV_A_NAPI_PID`.
const A_PID: u16 = 4;
/// `NETDEV_A_NAPI_THREADED`.
const A_THREADED: u16 = 8;
/// No NAPI instance has this id: the kernel gives ids above the number of CPUs.
const NO_NAPI: u32 = 0;

/// Who polls a NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Threading {
    /// Softirq.
    Off = 0,
    /// A thread that sleeps while there is nothing to do.
    Thread = 1,
    /// A thread that polls all the time.
    BusyPoll = 2,
}

impl Threading {
    /// The value with this number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Off),
            1 => Some(Self::Thread),
            2 => Some(Self::BusyPoll),
            _ => None,
        }
    }
}

impl std::fmt::Display for Threading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "softirq",
            Self::Thread => "threaded",
            Self::BusyPoll => "threaded busy-poll",
        })
    }
}

/// A NAPI instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NapiInfo {
    /// Its id.
    pub id: u32,
    /// Number of its interface.
    pub ifindex: u32,
    /// Its interrupt, where the driver told the kernel.
    pub irq: Option<u32>,
    /// Its thread, when it has one.
    pub pid: Option<u32>,
    /// Who polls it; `None` where the kernel does not say.
    pub threading: Option<Threading>,
}

/// A request to the family failed.
#[derive(Debug, thiserror::Error)]
pub enum NetdevError {
    /// The caller may not do this.
    #[error("cannot {what}: that needs CAP_NET_ADMIN; run it as root")]
    NoPrivilege {
        /// What was tried.
        what: String,
    },
    /// The kernel refused.
    #[error("cannot {what}: the kernel's netdev family says: {}", words(.refusal))]
    Refused {
        /// What was tried.
        what: String,
        /// What the kernel said.
        refusal: Refusal,
    },
    /// The socket or the answer failed.
    #[error("cannot {what}: {failure}")]
    Transport {
        /// What was tried.
        what: String,
        /// What failed.
        failure: Failure,
    },
}

fn words(refusal: &Refusal) -> String {
    let reason = std::io::Error::from_raw_os_error(refusal.errno).to_string();
    refusal.message.clone().unwrap_or(reason)
}

impl NetdevError {
    fn new(what: impl Into<String>, failure: Failure) -> Self {
        let what = what.into();
        match failure {
            Failure::Refused(refusal) if refusal.errno == libc::EPERM => Self::NoPrivilege { what },
            Failure::Refused(refusal) => Self::Refused { what, refusal },
            failure => Self::Transport { what, failure },
        }
    }

    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::NoPrivilege { .. } => Class::NoPrivilege,
            Self::Refused { refusal, .. } => Class::of_errno(refusal.errno),
            Self::Transport { .. } => Class::Failure,
        }
    }

    /// Whether the object that the request names does not exist (any more).
    pub fn is_missing(&self) -> bool {
        let gone = [libc::ENOENT, libc::ENODEV];
        matches!(self, Self::Refused { refusal, .. } if gone.contains(&refusal.errno))
    }

    /// Whether this kernel's family has no such request.
    fn is_unknown_request(&self) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.errno == libc::EOPNOTSUPP)
    }
}

fn decode(attrs: &Attrs) -> Result<NapiInfo, DecodeError> {
    let threading = match attrs.optional_uint(A_THREADED)? {
        Some(raw) => {
            let raw = u32::try_from(raw).map_err(|_| DecodeError::Malformed(A_THREADED))?;
            // A later kind of thread is a thread too.
            Some(Threading::from_raw(raw).unwrap_or(Threading::Thread))
        }
        None => None,
    };
    Ok(NapiInfo {
        id: attrs.u32(A_ID)?,
        ifindex: attrs.u32(A_IFINDEX)?,
        irq: attrs.optional_u32(A_IRQ)?,
        pid: attrs.optional_u32(A_PID)?,
        threading,
    })
}

fn threading_attrs(id: u32, raw: u32) -> Vec<Attr> {
    vec![Attr::u32(A_ID, id), Attr::u32(A_THREADED, raw)]
}

/// The family, in the network namespace of the thread that opened it.
pub struct Netdev {
    connection: Connection,
}

impl Netdev {
    /// Opens the family; `None` on a kernel that has none.
    pub fn open() -> Result<Option<Self>, NetdevError> {
        let connection = Connection::open(FAMILY_NAME, FAMILY_VERSION)
            .map_err(|failure| NetdevError::new("reach the kernel's netdev family", failure))?;
        Ok(connection.map(|connection| Self { connection }))
    }

    /// The NAPI instances of all interfaces that are up, by id; none on a kernel whose family does not
    /// list them.
    pub fn napis(&mut self) -> Result<Vec<NapiInfo>, NetdevError> {
        let what = "list NAPI instances";
        let messages = self.connection.dump(NAPI_GET);
        let messages = match messages.map_err(|failure| NetdevError::new(what, failure)) {
            Ok(messages) => messages,
            Err(error) if error.is_unknown_request() => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let napis: Result<Vec<NapiInfo>, _> = messages.iter().map(|m| decode(&m.attrs)).collect();
        let mut napis = napis.map_err(|error| NetdevError::new(what, error.into()))?;
        napis.sort_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// Those of one interface.
    pub fn napis_of(&mut self, ifindex: u32) -> Result<Vec<NapiInfo>, NetdevError> {
        let mut napis = self.napis()?;
        napis.retain(|napi| napi.ifindex == ifindex);
        Ok(napis)
    }

    /// Says who is to poll an instance, as the kernel numbers it ([`Threading`]).
    pub fn set_threading(&mut self, id: u32, raw: u32) -> Result<(), NetdevError> {
        let what = format!("set the threading of NAPI instance {id}");
        let done = self.connection.request(NAPI_SET, threading_attrs(id, raw));
        done.map(drop)
            .map_err(|failure| NetdevError::new(what, failure))
    }

    /// Whether the kernel has threaded busy-poll. It is asked to set it for an instance that does not
    /// exist: a kernel that knows it misses the instance, another one stumbles over the request.
    pub fn has_busy_poll(&mut self) -> Result<bool, NetdevError> {
        match self.set_threading(NO_NAPI, Threading::BusyPoll as u32) {
            Err(error) if error.is_missing() => Ok(true),
            Err(NetdevError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{encode, Family};

    /// As `ynl --family netdev --do napi-set` sends it: header, command, two attributes of 32 bits.
    #[test]
    fn a_request_has_the_bytes_of_the_spec() {
        let family = Family {
            id: 0x1f,
            version: FAMILY_VERSION,
            groups: Vec::new(),
        };
        let bytes = encode(&family, 7, NAPI_SET, threading_attrs(8193, 2), 5);
        let mut want = Vec::new();
        want.extend(36u32.to_ne_bytes());
        want.extend(0x1fu16.to_ne_bytes());
        want.extend(5u16.to_ne_bytes());
        want.extend(7u32.to_ne_bytes());
        want.extend(0u32.to_ne_bytes());
        want.extend([14, 1, 0, 0]);
        for (attr, value) in [(2u16, 8193u32), (8, 2)] {
            want.extend(8u16.to_ne_bytes());
            want.extend(attr.to_ne_bytes());
            want.extend(value.to_ne_bytes());
        }
        assert_eq!(bytes, want);
    }

    #[test]
    fn an_answer_is_read_with_either_length_of_number() {
        let answer = |threaded: &[u8]| {
            let mut bytes = Vec::new();
            for (attr, value) in [(A_ID, 8193u32), (A_IFINDEX, 3), (A_PID, 99)] {
                bytes.extend(8u16.to_ne_bytes());
                bytes.extend(attr.to_ne_bytes());
                bytes.extend(value.to_ne_bytes());
            }
            bytes.extend((4 + threaded.len() as u16).to_ne_bytes());
            bytes.extend(A_THREADED.to_ne_bytes());
            bytes.extend(threaded);
            decode(&Attrs::parse(&bytes).unwrap())
        };
        let want = NapiInfo {
            id: 8193,
            ifindex: 3,
            irq: None,
            pid: Some(99),
            threading: Some(Threading::BusyPoll),
        };
        assert_eq!(answer(&2u32.to_ne_bytes()).unwrap(), want);
        assert_eq!(answer(&2u64.to_ne_bytes()).unwrap(), want);
        assert_eq!(
            answer(&[2]).unwrap_err(),
            DecodeError::Malformed(A_THREADED)
        );
    }
}
