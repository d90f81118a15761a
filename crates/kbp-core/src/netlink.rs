// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transport to a generic netlink family: requests, replies, the kernel's own words
//! about an error.
//!
//! What the family's messages mean is not here; [`crate::client`] knows that. Framing and the
//! controller's messages come from the netlink-packet crates.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink_packet_core::{
    DecodeError as PacketError, Emitable, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, ParseableParametrized, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP,
    NLM_F_DUMP_INTR, NLM_F_REQUEST,
};
use netlink_packet_generic::ctrl::nlas::{GenlCtrlAttrs, McastGrpAttrs};
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use crate::attr::{Attr, Attrs, DecodeError};

/// Room for one datagram; the kernel fills dumps in pieces of at most 32 KiB.
const DATAGRAM_LEN_MAX: usize = 1 << 16;

/// How long a request may stay unanswered, seconds. The kernel answers inside the system call,
/// so only a fault gets here.
const ANSWER_TIMEOUT_S: i64 = 60;

/// How often a dump is started again when objects changed in the middle of it.
const DUMP_TRIES: u32 = 5;

/// Length of a netlink message header, bytes.
const HEADER_LEN: usize = 16;

/// Attribute of an error message: the kernel's sentence (`NLMSGERR_ATTR_MSG`).
const ERROR_ATTR_MESSAGE: u16 = 1;
/// Attribute of an error message: where in the request it is (`NLMSGERR_ATTR_OFFS`).
const ERROR_ATTR_OFFSET: u16 = 2;
/// Attribute of an error message: the attribute that is missing (`NLMSGERR_ATTR_MISS_TYPE`).
const ERROR_ATTR_MISSING: u16 = 5;

/// A message of the family: its command and its attributes.
#[derive(Clone, Debug)]
pub struct Message {
    /// Number of the command.
    pub command: u8,
    /// Its attributes.
    pub attrs: Attrs,
}

/// A request in the form that the packet crates can send.
#[derive(Debug)]
struct Request {
    command: u8,
    version: u8,
    attrs: Vec<Attr>,
}

impl GenlFamily for Request {
    fn family_name() -> &'static str {
        crate::uapi::FAMILY_NAME
    }
    fn command(&self) -> u8 {
        self.command
    }
    fn version(&self) -> u8 {
        self.version
    }
}

impl Emitable for Request {
    fn buffer_len(&self) -> usize {
        self.attrs.as_slice().buffer_len()
    }
    fn emit(&self, buffer: &mut [u8]) {
        self.attrs.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, PacketError> {
        let attrs = Attrs::parse(buffer).map_err(|e| PacketError::from(e.to_string()))?;
        Ok(Self {
            command: header.cmd,
            attrs,
        })
    }
}

/// What the kernel said when it refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error number, positive.
    pub errno: i32,
    /// The kernel's own sentence, when it gave one.
    pub message: Option<String>,
    /// Where in the request the attribute in question starts, bytes.
    pub offset: Option<u32>,
    /// Number of the attribute that the kernel missed.
    pub missing: Option<u32>,
}

/// A request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The kernel refused it.
    #[error("refused with error {}", .0.errno)]
    Refused(Refusal),
    /// The socket failed.
    #[error("cannot {what}: {source}")]
    Socket {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The answer makes no sense.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The kernel did not answer in time.
    #[error("the kernel did not answer within {ANSWER_TIMEOUT_S} s")]
    NoAnswer,
    /// A dump never came out consistent.
    #[error("objects changed while they were listed, {DUMP_TRIES} times in a row")]
    DumpInterrupted,
}

fn socket_failure(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::Socket { what, source }
}

/// Read what an error message carries behind its code.
///
/// The kernel echoes the request, or only its header when the message is "capped", and puts its
/// attributes after that.
fn parse_refusal(header: &NetlinkHeader, code: i32, echo: &[u8]) -> Refusal {
    let mut refusal = Refusal {
        errno: code.saturating_abs(),
        message: None,
        offset: None,
        missing: None,
    };
    if header.flags & NLM_F_ACK_TLVS == 0 {
        return refusal;
    }
    let echoed = if header.flags & NLM_F_CAPPED != 0 {
        HEADER_LEN
    } else {
        let length = echo
            .first_chunk::<4>()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        (length as usize).next_multiple_of(4)
    };
    refusal.read_attributes(echo.get(echoed..).unwrap_or_default());
    refusal
}

impl Refusal {
    /// The attributes are an explanation only; without them the error number still stands.
    fn read_attributes(&mut self, buffer: &[u8]) {
        let attrs = Attrs::parse(buffer).unwrap_or_default();
        self.message = attrs
            .optional_string(ERROR_ATTR_MESSAGE)
            .filter(|text| !text.is_empty());
        self.offset = attrs.optional_u32(ERROR_ATTR_OFFSET).unwrap_or_default();
        self.missing = attrs.optional_u32(ERROR_ATTR_MISSING).unwrap_or_default();
    }
}

/// What one datagram says about a request.
#[derive(Debug, Default)]
struct Batch {
    messages: Vec<Message>,
    finished: bool,
    interrupted: bool,
}

impl Batch {
    /// Read the messages of a datagram that answer the request with this sequence number; all of
    /// them with `None`.
    fn read(&mut self, datagram: &[u8], sequence: Option<u32>) -> Result<(), Failure> {
        let mut rest = datagram;
        while rest.len() >= HEADER_LEN {
            let length = NetlinkBuffer::new_checked(rest)
                .map_err(DecodeError::from)?
                .length() as usize;
            let message = NetlinkMessage::<GenlMessage<Message>>::deserialize(rest)
                .map_err(DecodeError::from)?;
            rest = rest
                .get(length.max(HEADER_LEN).next_multiple_of(4)..)
                .unwrap_or_default();
            if sequence.is_none_or(|number| number == message.header.sequence_number) {
                self.take(message)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, message: NetlinkMessage<GenlMessage<Message>>) -> Result<(), Failure> {
        let (header, payload) = message.into_parts();
        self.interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
        match payload {
            NetlinkPayload::InnerMessage(inner) => self.messages.push(inner.payload),
            NetlinkPayload::Error(error) if error.raw_code() == 0 => self.finished = true,
            NetlinkPayload::Error(error) => {
                return Err(Failure::Refused(parse_refusal(
                    &header,
                    error.raw_code(),
                    &error.header,
                )));
            }
            NetlinkPayload::Done(done) if done.code < 0 => {
                let mut refusal = parse_refusal(&NetlinkHeader::default(), done.code, &[]);
                refusal.read_attributes(&done.extended_ack);
                return Err(Failure::Refused(refusal));
            }
            NetlinkPayload::Done(_) => self.finished = true,
            _ => {}
        }
        Ok(())
    }
}

/// A socket that talks to one generic netlink family.
pub struct Connection {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    family: Family,
}

/// A family as the controller describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its message type.
    pub id: u16,
    /// Version of the family's messages that are sent.
    pub version: u8,
    /// Its multicast groups.
    pub groups: Vec<(String, u32)>,
}

/// A socket to generic netlink, connected to the kernel, with the kernel's explanations on.
pub fn open_socket() -> Result<Socket, Failure> {
    let mut socket =
        Socket::new(NETLINK_GENERIC).map_err(socket_failure("open a netlink socket"))?;
    socket
        .bind_auto()
        .map_err(socket_failure("bind a netlink socket"))?;
    socket
        .connect(&SocketAddr::new(0, 0))
        .map_err(socket_failure("connect a netlink socket"))?;
    socket
        .set_ext_ack(true)
        .map_err(socket_failure("ask for explanations of errors"))?;
    socket
        .set_cap_ack(true)
        .map_err(socket_failure("ask for short errors"))?;
    let limit = TimeVal::new(ANSWER_TIMEOUT_S, 0);
    setsockopt(&socket.as_fd(), sockopt::ReceiveTimeout, &limit)
        .map_err(|e| socket_failure("set a time limit for answers")(e.into()))?;
    Ok(socket)
}

fn family_of(attrs: Vec<GenlCtrlAttrs>, version: u8) -> Option<Family> {
    let mut id = None;
    let mut groups = Vec::new();
    for attr in attrs {
        match attr {
            GenlCtrlAttrs::FamilyId(number) => id = Some(number),
            GenlCtrlAttrs::McastGroups(list) => {
                groups.extend(list.into_iter().filter_map(group_of))
            }
            _ => {}
        }
    }
    Some(Family {
        id: id?,
        version,
        groups,
    })
}

fn group_of(attrs: Vec<McastGrpAttrs>) -> Option<(String, u32)> {
    let (mut name, mut id) = (None, None);
    for attr in attrs {
        match attr {
            McastGrpAttrs::Name(text) => name = Some(text),
            McastGrpAttrs::Id(number) => id = Some(number),
        }
    }
    Some((name?, id?))
}

/// Ask the controller for a family; `None` when no loaded code has registered it.
pub fn resolve(socket: &Socket, name: &str, version: u8) -> Result<Option<Family>, Failure> {
    let question = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(name.into())],
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, GenlMessage::from_payload(question).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket
        .send(&bytes, 0)
        .map_err(socket_failure("ask for the family"))?;
    let mut answer = Vec::with_capacity(DATAGRAM_LEN_MAX);
    socket
        .recv(&mut answer, 0)
        .map_err(socket_failure("read the answer about the family"))?;
    let answer =
        NetlinkMessage::<GenlMessage<GenlCtrl>>::deserialize(&answer).map_err(DecodeError::from)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(inner) => Ok(family_of(inner.payload.nlas, version)),
        NetlinkPayload::Error(error) if error.raw_code() == -libc::ENOENT => Ok(None),
        NetlinkPayload::Error(error) => Err(Failure::Refused(parse_refusal(
            &answer.header,
            error.raw_code(),
            &error.header,
        ))),
        _ => Err(DecodeError::Packet("the controller did not describe the family".into()).into()),
    }
}

/// The bytes of a request to a family.
pub(crate) fn encode(
    family: &Family,
    sequence: u32,
    command: u8,
    attrs: Vec<Attr>,
    flags: u16,
) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let genl = GenlHeader {
        cmd: command,
        version: family.version,
    };
    let request = Request {
        command,
        version: family.version,
        attrs,
    };
    let message = GenlMessage::new(genl, request, family.id);
    let mut message = NetlinkMessage::new(header, message.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

impl Connection {
    /// Connect to a family; `None` when no loaded code has registered it.
    pub fn open(name: &str, version: u8) -> Result<Option<Self>, Failure> {
        let socket = open_socket()?;
        let family = resolve(&socket, name, version)?;
        Ok(family.map(|family| Self {
            socket,
            buffer: Vec::with_capacity(DATAGRAM_LEN_MAX),
            sequence: 0,
            family,
        }))
    }

    /// Send a request and collect its replies until the kernel's acknowledgement.
    pub fn request(&mut self, command: u8, attrs: Vec<Attr>) -> Result<Vec<Message>, Failure> {
        Ok(self.transact(command, attrs, NLM_F_ACK)?.messages)
    }

    /// Ask for all objects of a kind. A list that objects changed under is asked for again.
    pub fn dump(&mut self, command: u8) -> Result<Vec<Message>, Failure> {
        for _ in 0..DUMP_TRIES {
            let batch = self.transact(command, Vec::new(), NLM_F_DUMP)?;
            if !batch.interrupted {
                return Ok(batch.messages);
            }
        }
        Err(Failure::DumpInterrupted)
    }

    fn transact(&mut self, command: u8, attrs: Vec<Attr>, flags: u16) -> Result<Batch, Failure> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let sequence = self.sequence;
        let bytes = encode(
            &self.family,
            sequence,
            command,
            attrs,
            NLM_F_REQUEST | flags,
        );
        self.socket
            .send(&bytes, 0)
            .map_err(socket_failure("send a request to the kernel"))?;
        let mut batch = Batch::default();
        while !batch.finished {
            self.receive()?;
            batch.read(&self.buffer, Some(sequence))?;
        }
        Ok(batch)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        self.buffer.clear();
        loop {
            match self.socket.recv(&mut self.buffer, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Failure::NoAnswer)
                }
                Err(source) => {
                    return Err(Failure::Socket {
                        what: "read the kernel's answer",
                        source,
                    })
                }
            }
        }
    }

    /// Subscribe to a multicast group of the family; `false` when it has no such group.
    pub fn join(&mut self, group: &str) -> Result<bool, Failure> {
        let Some((_, id)) = self.family.groups.iter().find(|(name, _)| name == group) else {
            return Ok(false);
        };
        self.socket
            .add_membership(*id)
            .map_err(socket_failure("subscribe to events"))?;
        Ok(true)
    }

    /// Wait for notifications; an empty list when `limit` passed without one. `None` waits for
    /// ever.
    pub fn notifications(&mut self, limit: Option<Duration>) -> Result<Vec<Message>, Failure> {
        let timeout = match limit {
            Some(limit) => PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let count = nix::poll::poll(&mut ready, timeout).map_err(|e| Failure::Socket {
            what: "wait for events",
            source: e.into(),
        })?;
        if count == 0 {
            return Ok(Vec::new());
        }
        self.receive()?;
        let mut batch = Batch::default();
        batch.read(&self.buffer, None)?;
        Ok(batch.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error message as the kernel sends it with NETLINK_CAP_ACK and NETLINK_EXT_ACK.
    fn refusal_datagram(capped: bool) -> Vec<u8> {
        let text = b"CPU 9 is not online\0";
        let echo_len = if capped { 16 } else { 28 };
        let total = 16 + 4 + echo_len + 4 + text.len() + 8;
        let flags = if capped { 0x300u16 } else { 0x200 };
        let mut bytes = Vec::new();
        bytes.extend((total as u32).to_ne_bytes());
        bytes.extend(2u16.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend((-libc::ENODEV).to_ne_bytes());
        bytes.extend(28u32.to_ne_bytes());
        bytes.resize(16 + 4 + echo_len, 0);
        bytes.extend((4 + text.len() as u16).to_ne_bytes());
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(text);
        bytes.extend([8, 0, 2, 0, 20, 0, 0, 0]);
        bytes
    }

    #[test]
    fn the_kernels_sentence_is_kept_verbatim() {
        for capped in [true, false] {
            let error = Batch::default()
                .read(&refusal_datagram(capped), Some(7))
                .unwrap_err();
            let Failure::Refused(refusal) = error else {
                panic!("{error}")
            };
            assert_eq!(refusal.errno, libc::ENODEV);
            assert_eq!(
                refusal.message.as_deref(),
                Some("CPU 9 is not online"),
                "capped: {capped}"
            );
            assert_eq!(refusal.offset, Some(20));
        }
    }

    #[test]
    fn answers_to_other_requests_are_passed_over() {
        let mut batch = Batch::default();
        batch.read(&refusal_datagram(true), Some(8)).unwrap();
        assert!(!batch.finished && batch.messages.is_empty());
    }

    #[test]
    fn every_truncation_is_an_error_or_nothing_but_never_a_panic() {
        let whole = refusal_datagram(true);
        for length in 0..whole.len() {
            let mut batch = Batch::default();
            let _ = batch.read(&whole[..length], Some(7));
            assert!(batch.messages.is_empty());
            let _ = Attrs::parse(&whole[..length]);
        }
    }
}
