// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Netlink attributes: building them, and reading them without trusting them.
//!
//! Which attribute means what is in [`crate::uapi`] and [`crate::model`].

use netlink_packet_core::{DecodeError as PacketError, Nla, NlasIterator};

/// A message of the kernel that does not have the form that the spec gives it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// An attribute that the spec promises is not there.
    #[error("attribute {0} is missing")]
    Missing(u16),
    /// An attribute has the wrong length or holds something else than text.
    #[error("attribute {0} has a wrong length")]
    Malformed(u16),
    /// An enumeration has a value that this program does not know.
    #[error(
        "attribute {attr} has the unknown value {value}; the module is newer than this program"
    )]
    UnknownValue {
        /// Number of the attribute.
        attr: u16,
        /// What was found.
        value: u32,
    },
    /// The message is cut off or not netlink at all.
    #[error("the message is malformed: {0}")]
    Packet(String),
}

impl From<PacketError> for DecodeError {
    fn from(error: PacketError) -> Self {
        Self::Packet(error.to_string())
    }
}

/// An attribute to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    kind: u16,
    value: Vec<u8>,
}

impl Attr {
    /// An attribute with raw contents.
    pub fn bytes(kind: u16, value: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            value: value.into(),
        }
    }

    /// A 32-bit number in the machine's byte order.
    pub fn u32(kind: u16, value: u32) -> Self {
        Self::bytes(kind, value.to_ne_bytes())
    }

    /// A signed 32-bit number in the machine's byte order.
    pub fn s32(kind: u16, value: i32) -> Self {
        Self::bytes(kind, value.to_ne_bytes())
    }

    /// A text with the zero byte at its end that the kernel's policy wants.
    pub fn string(kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        Self::bytes(kind, bytes)
    }
}

impl Nla for Attr {
    fn value_len(&self) -> usize {
        self.value.len()
    }
    fn kind(&self) -> u16 {
        self.kind
    }
    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.value);
    }
}

/// Received attributes of one set.
#[derive(Clone, Debug, Default)]
pub struct Attrs(Vec<(u16, Vec<u8>)>);

impl Attrs {
    /// Split a buffer into attributes.
    pub fn parse(buffer: &[u8]) -> Result<Self, DecodeError> {
        let mut attrs = Vec::new();
        for nla in NlasIterator::new(buffer) {
            let nla = nla?;
            attrs.push((nla.kind(), nla.value().to_vec()));
        }
        Ok(Self(attrs))
    }

    /// The contents of the first attribute with this number.
    pub fn get(&self, attr: u16) -> Option<&[u8]> {
        self.0
            .iter()
            .find(|(kind, _)| *kind == attr)
            .map(|(_, value)| value.as_slice())
    }

    fn array<const N: usize>(&self, attr: u16) -> Result<Option<[u8; N]>, DecodeError> {
        let bytes = self.get(attr).map(<[u8; N]>::try_from).transpose();
        bytes.map_err(|_| DecodeError::Malformed(attr))
    }

    /// A 32-bit number, or `None` when the attribute is absent.
    pub fn optional_u32(&self, attr: u16) -> Result<Option<u32>, DecodeError> {
        Ok(self.array(attr)?.map(u32::from_ne_bytes))
    }

    /// A signed 32-bit number, or `None` when the attribute is absent.
    pub fn optional_s32(&self, attr: u16) -> Result<Option<i32>, DecodeError> {
        Ok(self.array(attr)?.map(i32::from_ne_bytes))
    }

    /// A 64-bit number, or `None` when the attribute is absent.
    pub fn optional_u64(&self, attr: u16) -> Result<Option<u64>, DecodeError> {
        Ok(self.array(attr)?.map(u64::from_ne_bytes))
    }

    /// A number that the kernel writes with 32 or 64 bits as it needs (`uint` of the specs), or `None` when
    /// the attribute is absent.
    pub fn optional_uint(&self, attr: u16) -> Result<Option<u64>, DecodeError> {
        match self.get(attr).map(<[u8]>::len) {
            Some(4) => Ok(self.optional_u32(attr)?.map(u64::from)),
            _ => self.optional_u64(attr),
        }
    }

    /// A text, or `None` when the attribute is absent.
    pub fn optional_string(&self, attr: u16) -> Option<String> {
        let bytes = self.get(attr)?;
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// A 32-bit number that has to be there.
    pub fn u32(&self, attr: u16) -> Result<u32, DecodeError> {
        self.optional_u32(attr)?.ok_or(DecodeError::Missing(attr))
    }

    /// A value of an enumeration that has to be there.
    pub fn value<T>(&self, attr: u16, from_raw: fn(u32) -> Option<T>) -> Result<T, DecodeError> {
        let value = self.u32(attr)?;
        from_raw(value).ok_or(DecodeError::UnknownValue { attr, value })
    }

    /// The attributes inside of a nest; none when the attribute is absent.
    pub fn nested(&self, attr: u16) -> Result<Self, DecodeError> {
        self.get(attr)
            .map_or_else(|| Ok(Self::default()), Self::parse)
    }
}
