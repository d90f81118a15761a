// SPDX-License-Identifier: Apache-2.0 OR MIT
//! memcached's text protocol, as far as GET and SET need it, and the content of values.
//!
//! A value follows from its key and from how often the key was set, so that an answer with
//! another key's value, or with an old one, is seen. Not here: sockets and time.

use crate::rng::SplitMix64;

/// Length of a key, bytes (paper 003, section 4).
pub const KEY_LEN: usize = 64;
/// Length of a value, bytes (paper 003, section 4).
pub const VALUE_LEN: usize = 1_024;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The value of a key that was set `generation` times.
    Get {
        /// Number of the key.
        key: u32,
        /// How often it was set before.
        generation: u32,
    },
    /// A new value of a key.
    Set {
        /// Number of the key.
        key: u32,
        /// How often it will have been set.
        generation: u32,
    },
}

/// What an answer was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What it had to be.
    Right,
    /// The key had no value.
    Missing,
    /// Another value than was stored.
    Wrong,
}

/// The name of a key.
pub fn key_name(key: u32) -> String {
    format!("{key:0KEY_LEN$}")
}

/// The value of a key in a generation.
pub fn value(key: u32, generation: u32) -> [u8; VALUE_LEN] {
    let mut rng = SplitMix64::new(u64::from(key) << 32 | u64::from(generation));
    let mut value = [0; VALUE_LEN];
    for word in value.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    value
}

impl Request {
    /// Appends the request to what is to be sent.
    pub fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Get { key, .. } => out.extend(format!("get {}\r\n", key_name(key)).bytes()),
            Self::Set { key, generation } => {
                out.extend(format!("set {} 0 0 {VALUE_LEN}\r\n", key_name(key)).bytes());
                out.extend(value(key, generation));
                out.extend(b"\r\n");
            }
        }
    }

    /// How long an answer with a value is, bytes; others are shorter.
    pub fn answer_len(self) -> usize {
        match self {
            Self::Get { key, .. } => head(key).len() + 2 + VALUE_LEN + END.len(),
            Self::Set { .. } => b"STORED\r\n".len(),
        }
    }

    /// The answer at the start of what came, with its length; `None` while it is not complete.
    ///
    /// # Errors
    /// The words of a server that says something else than the protocol foresees here.
    pub fn answer(self, came: &[u8]) -> Result<Option<(Answer, usize)>, String> {
        let Some(end) = came.windows(2).position(|pair| pair == b"\r\n") else {
            // No line of an answer is that long.
            return match came.len() {
                0..=512 => Ok(None),
                _ => Err(unexpected(&came[..80])),
            };
        };
        let line = &came[..end];
        match self {
            Self::Set { .. } if line == b"STORED" => Ok(Some((Answer::Right, end + 2))),
            Self::Get { .. } if line == b"END" => Ok(Some((Answer::Missing, end + 2))),
            Self::Get { key, generation } => {
                let head = head(key);
                let wrong_key = line.starts_with(b"VALUE ") && line != head.as_bytes();
                if !line.starts_with(b"VALUE ") || wrong_key && line.len() != head.len() {
                    return Err(unexpected(line));
                }
                let answer = body(&came[end + 2..], key, generation)?;
                Ok(answer.map(|(answer, len)| {
                    let answer = if wrong_key { Answer::Wrong } else { answer };
                    (answer, end + 2 + len)
                }))
            }
            Self::Set { .. } => Err(unexpected(line)),
        }
    }
}

/// What follows a value.
const END: &[u8] = b"\r\nEND\r\n";

/// The line before a value.
fn head(key: u32) -> String {
    format!("VALUE {} 0 {VALUE_LEN}", key_name(key))
}

fn body(came: &[u8], key: u32, generation: u32) -> Result<Option<(Answer, usize)>, String> {
    let len = VALUE_LEN + END.len();
    let Some(came) = came.get(..len) else {
        return Ok(None);
    };
    let (stored, end) = came.split_at(VALUE_LEN);
    if end != END {
        return Err(unexpected(end));
    }
    let right = stored == value(key, generation);
    let answer = if right { Answer::Right } else { Answer::Wrong };
    Ok(Some((answer, len)))
}

fn unexpected(line: &[u8]) -> String {
    format!("it answered: {}", String::from_utf8_lossy(line).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Request = Request::Get {
        key: 7,
        generation: 3,
    };

    fn answer_of(key: u32, value: &[u8]) -> Vec<u8> {
        let mut text = format!("VALUE {} 0 {VALUE_LEN}\r\n", key_name(key)).into_bytes();
        text.extend(value);
        text.extend(b"\r\nEND\r\n");
        text
    }

    #[test]
    fn an_answer_counts_when_its_last_byte_is_there() {
        let text = answer_of(7, &value(7, 3));
        for cut in 0..text.len() {
            assert_eq!(GET.answer(&text[..cut]), Ok(None), "{cut} bytes");
        }
        assert_eq!(GET.answer(&text), Ok(Some((Answer::Right, text.len()))));
        assert_eq!(GET.answer_len(), text.len());
        let mut more = text.clone();
        more.extend(b"END\r\n");
        assert_eq!(GET.answer(&more), Ok(Some((Answer::Right, text.len()))));
        assert_eq!(GET.answer(b"END\r\n"), Ok(Some((Answer::Missing, 5))));
    }

    #[test]
    fn another_value_is_seen() {
        let mut flipped = value(7, 3);
        flipped[1_023] ^= 1;
        for (key, value) in [(7, value(7, 2)), (7, flipped), (8, value(7, 3))] {
            let text = answer_of(key, &value);
            assert_eq!(GET.answer(&text), Ok(Some((Answer::Wrong, text.len()))));
        }
    }

    #[test]
    fn a_server_that_says_something_else_is_an_error() {
        let set = Request::Set {
            key: 1,
            generation: 1,
        };
        assert_eq!(set.answer(b"STORED\r\n"), Ok(Some((Answer::Right, 8))));
        assert_eq!(set.answer_len(), 8);
        let why = set.answer(b"SERVER_ERROR out of memory\r\n").unwrap_err();
        assert!(why.contains("out of memory"), "{why}");
        assert!(GET.answer(b"ERROR\r\n").is_err());
        assert!(GET.answer(&[b'x'; 600]).is_err());
        let mut text = Vec::new();
        set.write(&mut text);
        assert_eq!(
            text.len(),
            "set  0 0 1024\r\n\r\n".len() + KEY_LEN + VALUE_LEN
        );
    }
}
