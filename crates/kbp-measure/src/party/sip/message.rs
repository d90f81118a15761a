// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much of a SIP message (RFC 3261) as tells it from all others: what it is, and of which transaction. Pure.
//!
//! Not here: pairing them ([`super::pairing`]).

use std::str;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request; its method is that of [`Message::method`].
    Request,
    /// A response with this status.
    Response(u16),
}

/// What tells a message from all others on one path: a proxy changes none of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// Request or response.
    pub kind: Kind,
    /// `Call-ID`.
    pub call_id: String,
    /// Number of `CSeq`.
    pub sequence: u32,
    /// Method of `CSeq`.
    pub method: String,
}

const VERSION: &str = "SIP/2.0";

impl Message {
    /// Reads the start line and the headers that are needed; the body may be anything.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let end = find(bytes, b"\r\n\r\n").unwrap_or(bytes.len());
        let head = str::from_utf8(&bytes[..end]).map_err(|_| "its headers are not UTF-8")?;
        let mut lines = head.split("\r\n");
        let kind = kind(lines.next().unwrap_or_default())?;
        let (mut call_id, mut sequence) = (None, None);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let (name, value) = (name.trim_end(), value.trim());
            // `i` is the compact form; there is none of CSeq.
            if name.eq_ignore_ascii_case("call-id") || name.eq_ignore_ascii_case("i") {
                call_id.get_or_insert(value);
            } else if name.eq_ignore_ascii_case("cseq") {
                sequence.get_or_insert(value);
            }
        }
        let (number, method) = sequence
            .and_then(|value| value.split_once([' ', '\t']))
            .ok_or("it has no CSeq")?;
        Ok(Self {
            kind,
            call_id: call_id.ok_or("it has no Call-ID")?.into(),
            sequence: number.parse().map_err(|_| "its CSeq has no number")?,
            method: method.trim().into(),
        })
    }
}

fn kind(line: &str) -> Result<Kind, &'static str> {
    let mut words = line.split(' ');
    match (words.next(), words.next(), words.next_back()) {
        (Some(VERSION), Some(status), _) => match status.parse() {
            Ok(status @ 100..=699) => Ok(Kind::Response(status)),
            _ => Err("its status is no number from 100 to 699"),
        },
        (Some(_), Some(_), Some(VERSION)) => Ok(Kind::Request),
        _ => Err("it does not begin as a SIP message"),
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_responses() {
        let invite = "INVITE sip:app@10.0.0.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.2;branch=a\r\n\
                      Call-ID: 1-7@10.0.0.2\r\nCSeq: 1 INVITE\r\nContent-Length: 5\r\n\r\nv=0\r\nCSeq: 9 BYE";
        let ringing = "SIP/2.0 180 Ringing\r\ni:1-7@10.0.0.2\r\ncseq :\t1  INVITE\r\n\r\n";
        let message = |kind| Message {
            kind,
            call_id: "1-7@10.0.0.2".into(),
            sequence: 1,
            method: "INVITE".into(),
        };
        assert_eq!(
            Message::parse(invite.as_bytes()),
            Ok(message(Kind::Request))
        );
        assert_eq!(
            Message::parse(ringing.as_bytes()),
            Ok(message(Kind::Response(180)))
        );
    }

    #[test]
    fn a_body_may_be_anything() {
        let mut bytes = b"BYE sip:a@b SIP/2.0\r\nCall-ID: x\r\nCSeq: 2 BYE\r\n\r\n".to_vec();
        bytes.extend([0xff, 0xfe, 0]);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!((message.sequence, message.method.as_str()), (2, "BYE"));
    }

    #[test]
    fn what_is_no_message_is_a_sentence() {
        for (text, why) in [
            ("", "does not begin"),
            ("\r\n\r\n", "does not begin"),
            ("GET / HTTP/1.1\r\n\r\n", "does not begin"),
            ("SIP/2.0 abc Fine\r\n\r\n", "status"),
            ("BYE sip:a SIP/2.0\r\nCSeq: 1 BYE\r\n\r\n", "Call-ID"),
            ("BYE sip:a SIP/2.0\r\nCall-ID: 1\r\n\r\n", "CSeq"),
            (
                "BYE sip:a SIP/2.0\r\nCall-ID: 1\r\nCSeq: BYE\r\n\r\n",
                "CSeq",
            ),
            (
                "BYE sip:a SIP/2.0\r\nCall-ID: 1\r\nCSeq: x BYE\r\n\r\n",
                "number",
            ),
        ] {
            let error = Message::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        assert!(Message::parse(&[0xff; 40]).unwrap_err().contains("UTF-8"));
    }
}
