// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long NAPI instances waited from being scheduled to being polled: a counter a power of two nanoseconds.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::attr::{Attrs, DecodeError};

/// Counters that the module keeps.
const COUNTERS: usize = 32;

/// A counted wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// It was shorter than this, nanoseconds, and not shorter than half of it; `None`: longer than every limit.
    pub below_ns: Option<u64>,
    /// How many there were.
    pub count: u64,
}

/// A histogram of waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    counters: [u64; COUNTERS],
}

impl Waits {
    /// Read the counters of one attribute; `None` if it is not there.
    ///
    /// # Errors
    /// If it has another length.
    pub fn from_attrs(attrs: &Attrs, attr: u16) -> Result<Option<Self>, DecodeError> {
        let mut waits = Self::default();
        let Some(bytes) = attrs.get(attr) else {
            return Ok(None);
        };
        let (words, rest) = bytes.as_chunks();
        if words.len() != COUNTERS || !rest.is_empty() {
            return Err(DecodeError::Malformed(attr));
        }
        for (counter, word) in waits.counters.iter_mut().zip(words) {
            *counter = u64::from_ne_bytes(*word);
        }
        Ok(Some(waits))
    }

    /// What there was, the shortest first.
    pub fn iter(&self) -> impl Iterator<Item = Wait> + '_ {
        let last = COUNTERS - 1;
        let all = self.counters.iter().enumerate();
        all.map(move |(power, count)| Wait {
            below_ns: (power < last).then(|| 1 << power),
            count: *count,
        })
        .filter(|wait| wait.count > 0)
    }

    /// What was counted since an earlier reading of the same poller. A counter that went back belongs to a new one, and
    /// all of it is new.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        for (now, before) in new.counters.iter_mut().zip(earlier.counters) {
            *now = now.checked_sub(before).unwrap_or(*now);
        }
        new
    }
}

impl Serialize for Waits {
    /// What there was, the shortest first.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for wait in self.iter() {
            list.serialize_element(&wait)?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;
    use crate::attr::Attr;

    fn attrs(contents: &[u8]) -> Attrs {
        let attr = [Attr::bytes(7, contents)];
        let mut buffer = vec![0; attr.as_slice().buffer_len()];
        attr.as_slice().emit(&mut buffer);
        Attrs::parse(&buffer).unwrap()
    }

    fn waits(counters: [u64; COUNTERS]) -> Waits {
        let bytes: Vec<u8> = counters.iter().flat_map(|one| one.to_ne_bytes()).collect();
        Waits::from_attrs(&attrs(&bytes), 7).unwrap().unwrap()
    }

    #[test]
    fn counters_have_the_limits_that_the_module_gives_them() {
        let mut counters = [0; COUNTERS];
        (counters[0], counters[11], counters[31]) = (1, 2, 3);
        let found: Vec<_> = waits(counters)
            .iter()
            .map(|wait| (wait.below_ns, wait.count))
            .collect();
        assert_eq!(found, [(Some(1), 1), (Some(2048), 2), (None, 3)]);
    }

    #[test]
    fn other_lengths_are_refused_and_an_older_module_has_none() {
        for length in [0, 8, 255, 257, 264] {
            Waits::from_attrs(&attrs(&vec![0; length]), 7).unwrap_err();
        }
        assert_eq!(Waits::from_attrs(&attrs(&[0; 256]), 8), Ok(None));
    }

    #[test]
    fn what_is_new_is_the_difference_unless_the_poller_is_a_new_one() {
        let (mut before, mut now) = ([0; COUNTERS], [0; COUNTERS]);
        (before[3], now[3]) = (5, 7);
        (before[4], now[4]) = (5, 2);
        let new = waits(now).since(&waits(before));
        let found: Vec<_> = new.iter().map(|wait| wait.count).collect();
        assert_eq!(found, [2, 2]);
    }
}
