// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A synchronous rtnetlink socket: one request, its answers, and the kernel's own words about an error.
//!
//! Requests are built here, a fixed header and attributes (rtnetlink(7)): the crate that has a type for each of them costs
//! as much time to build as the rest of this one. Of answers only fixed headers and a few attributes are read, so that
//! an attribute of a newer kernel can't make reading fail.
//!
//! Not here: what to ask for ([`super::link`]).

use std::fmt;

use netlink_packet_core::{NlasIterator, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::error::{Error, Result};

/// Room for one datagram; the kernel fills dumps in pieces of at most 32 KiB.
const DATAGRAM_LEN_MAX: usize = 1 << 16;
/// Length of a netlink message header, bytes.
const HEADER_LEN: usize = 16;
/// Length of an attribute's header, bytes.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Mark of an attribute that contains attributes.
const NLA_F_NESTED: u16 = libc::NLA_F_NESTED as u16;
/// Types of netlink's own messages (linux/netlink.h).
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
/// Attribute of an error message: the kernel's sentence (`NLMSGERR_ATTR_MSG`).
const ERROR_ATTR_MESSAGE: u16 = 1;

/// What the kernel said when it refused a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error number, positive.
    pub errno: i32,
    /// The kernel's own sentence, when it gave one.
    pub message: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = std::io::Error::from_raw_os_error(self.errno);
        match &self.message {
            Some(message) => write!(f, "{message} ({reason})"),
            None => write!(f, "{reason}"),
        }
    }
}

/// A request: its type, the fixed header of that type, attributes. Numbers are in the machine's byte order, except those
/// that go over a network.
#[derive(Debug, Clone)]
pub(super) struct Request {
    kind: u16,
    body: Vec<u8>,
}

impl Request {
    /// A request without attributes; `header` has a length that is a multiple of 4.
    pub(super) fn new(kind: u16, header: &[u8]) -> Request {
        Request {
            kind,
            body: header.to_vec(),
        }
    }

    /// With an attribute.
    pub(super) fn with(mut self, attribute: u16, value: &[u8]) -> Request {
        let length = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
        self.body.extend(length.to_ne_bytes());
        self.body.extend(attribute.to_ne_bytes());
        self.body.extend(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self
    }

    /// With a number.
    pub(super) fn with_u32(self, attribute: u16, value: u32) -> Request {
        self.with(attribute, &value.to_ne_bytes())
    }

    /// With a text that ends with a zero.
    pub(super) fn with_text(self, attribute: u16, value: &str) -> Request {
        let bytes: Vec<u8> = value.bytes().chain([0]).collect();
        self.with(attribute, &bytes)
    }

    /// With an attribute whose value is the header and the attributes of another request.
    pub(super) fn with_nested(self, attribute: u16, inner: Request) -> Request {
        self.with(attribute | NLA_F_NESTED, &inner.body)
    }

    fn to_bytes(&self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = (HEADER_LEN + self.body.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The port number: the kernel's is 0.
        bytes.extend([0; 4]);
        bytes.extend(&self.body);
        bytes
    }
}

/// A socket to rtnetlink in the network namespace of the thread that opened it.
pub(super) struct Rtnl {
    socket: Socket,
    sequence: u32,
}

impl Rtnl {
    /// Opens a socket in the calling thread's network namespace.
    pub(super) fn open() -> Result<Rtnl> {
        let failed = || Error::sys("open a socket to rtnetlink");
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed())?;
        socket.bind_auto().map_err(failed())?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed())?;
        socket.set_ext_ack(true).map_err(failed())?;
        socket.set_cap_ack(true).map_err(failed())?;
        Ok(Rtnl {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request and returns the payloads of its answers, without netlink's headers.
    ///
    /// # Errors
    /// [`Error::Refused`] with the kernel's reason; [`Error::System`] when the socket fails.
    pub(super) fn request(&mut self, request: &Request, flags: u16) -> Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let bytes = request.to_bytes(flags, self.sequence);
        self.socket
            .send(&bytes, 0)
            .map_err(Error::sys("send a request to rtnetlink"))?;
        let mut payloads = Vec::new();
        let mut datagram = Vec::with_capacity(DATAGRAM_LEN_MAX);
        loop {
            datagram.clear();
            self.socket
                .recv(&mut datagram, 0)
                .map_err(Error::sys("read rtnetlink's answer"))?;
            if read_datagram(&datagram, self.sequence, &mut payloads)? {
                return Ok(payloads);
            }
        }
    }
}

/// Bytes of a number; zeros where the answer is too short.
pub(super) fn number_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..at + N)
        .and_then(|part| part.try_into().ok())
        .unwrap_or([0; N])
}

/// Takes the answers to the request with that number out of a datagram; true when they are complete.
fn read_datagram(datagram: &[u8], sequence: u32, payloads: &mut Vec<Vec<u8>>) -> Result<bool> {
    let mut rest = datagram;
    while rest.len() >= HEADER_LEN {
        let length = u32::from_ne_bytes(number_at(rest, 0)) as usize;
        let length = length.clamp(HEADER_LEN, rest.len());
        let (message, behind) = rest.split_at(length);
        rest = behind
            .get(length.next_multiple_of(4) - length..)
            .unwrap_or_default();
        if u32::from_ne_bytes(number_at(message, 8)) != sequence {
            continue;
        }
        let payload = &message[HEADER_LEN..];
        let flags = u16::from_ne_bytes(number_at(message, 6));
        match u16::from_ne_bytes(number_at(message, 4)) {
            NLMSG_ERROR | NLMSG_DONE => return finish(payload, flags).map(|()| true),
            _ => payloads.push(payload.to_vec()),
        }
    }
    Ok(false)
}

/// Reads the end of an answer: a code, and behind it the request's header and the kernel's explanation.
fn finish(payload: &[u8], flags: u16) -> Result<()> {
    let code = i32::from_ne_bytes(number_at(payload, 0));
    if code >= 0 {
        return Ok(());
    }
    let echoed = match flags & NLM_F_CAPPED {
        0 => u32::from_ne_bytes(number_at(payload, 4)) as usize,
        _ => HEADER_LEN,
    };
    let explanation = payload
        .get(4 + echoed.next_multiple_of(4)..)
        .filter(|_| flags & NLM_F_ACK_TLVS != 0);
    Err(Error::Refused(Refusal {
        errno: code.saturating_abs(),
        message: explanation.and_then(|attributes| text_of(attributes, ERROR_ATTR_MESSAGE)),
    }))
}

/// The value of an attribute in a list of attributes.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    NlasIterator::new(attributes)
        .map_while(std::result::Result::ok)
        .find(|nla| nla.kind() == kind)
        .map(|nla| nla.value().to_vec())
}

fn text_of(attributes: &[u8], kind: u16) -> Option<String> {
    let value = attribute(attributes, kind)?;
    let text = String::from_utf8_lossy(&value);
    let text = text.trim_end_matches('\0');
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let length = (HEADER_LEN + payload.len()) as u32;
        let mut bytes = Vec::new();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn answers_are_told_from_those_to_older_requests() {
        let mut datagram = message(16, 0, 6, b"old");
        datagram.extend(message(16, 0, 7, b"first"));
        datagram.extend(message(16, 0, 7, b"second"));
        let mut payloads = Vec::new();
        assert!(!read_datagram(&datagram, 7, &mut payloads).unwrap());
        let end = message(NLMSG_DONE, 0, 7, &0i32.to_ne_bytes());
        assert!(read_datagram(&end, 7, &mut payloads).unwrap());
        assert_eq!(payloads, [b"first".to_vec(), b"second".to_vec()]);
    }

    #[test]
    fn the_kernels_own_words_are_kept() {
        let mut payload = (-22i32).to_ne_bytes().to_vec();
        payload.extend([0; HEADER_LEN]);
        payload.extend(10u16.to_ne_bytes());
        payload.extend(ERROR_ATTR_MESSAGE.to_ne_bytes());
        payload.extend(b"wrong\0");
        let flags = NLM_F_CAPPED | NLM_F_ACK_TLVS;
        let datagram = message(NLMSG_ERROR, flags, 1, &payload);
        let error = read_datagram(&datagram, 1, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("wrong (Invalid"), "{error}");
    }

    #[test]
    fn broken_answers_do_not_panic() {
        for length in 0..40u8 {
            let bytes = vec![length; usize::from(length)];
            let _ = read_datagram(&bytes, 1, &mut Vec::new());
            let _ = finish(&bytes, NLM_F_ACK_TLVS);
        }
    }
}
