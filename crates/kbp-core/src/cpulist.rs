// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of CPUs in the kernel's list format (`0-3,8`), and in its mask format (`ff,00000001`) for the files that
//! have no other (`rps_cpus`, `xps_cpus`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// More CPUs than any kernel supports (`NR_CPUS` is at most 8192); bounds what a range can cost.
pub(crate) const CPU_MAX: u32 = 65_535;

/// A set of CPU numbers, read and printed in the kernel's list format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(BTreeSet<u32>);

/// A text that is not a CPU list.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' is not a CPU list like 0-3,8")]
pub struct CpuListError {
    /// What was read.
    pub text: String,
}

impl CpuList {
    /// The set with one CPU.
    pub fn one(cpu: u32) -> Self {
        Self(BTreeSet::from([cpu]))
    }

    /// The set in the kernel's mask format: words of 32 CPUs in hexadecimal, the highest first. `None` for a text that
    /// is no mask.
    pub fn from_mask(text: &str) -> Option<Self> {
        let words = text.trim().split(',');
        let words: Option<Vec<u32>> = words
            .map(|word| u32::from_str_radix(word, 16).ok())
            .collect();
        let mut cpus = BTreeSet::new();
        for (place, word) in words?.iter().rev().enumerate() {
            let bits = (0..u32::BITS).filter(|bit| (word >> bit) & 1 == 1);
            cpus.extend(bits.map(|bit| place as u32 * u32::BITS + bit));
        }
        Some(Self(cpus))
    }

    /// The set in the kernel's mask format, with no more words than it needs.
    pub fn to_mask(&self) -> String {
        let highest = self.0.last().copied().unwrap_or_default();
        let mut words = vec![0u32; (highest / u32::BITS) as usize + 1];
        for cpu in self.iter() {
            words[(cpu / u32::BITS) as usize] |= 1 << (cpu % u32::BITS);
        }
        let mut text = String::new();
        for word in words.iter().rev() {
            text.push_str(&match text.is_empty() {
                true => format!("{word:x}"),
                false => format!(",{word:08x}"),
            });
        }
        text
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

fn parse_range(part: &str) -> Option<(u32, u32)> {
    let (first, last) = match part.split_once('-') {
        Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
        None => {
            let one = part.trim().parse().ok()?;
            (one, one)
        }
    };
    (first <= last && last <= CPU_MAX).then_some((first, last))
}

/// The numbers of a list like `2-3,0`, in the order in which they stand there; none twice, and at least one.
pub fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let (mut numbers, mut seen) = (Vec::new(), BTreeSet::new());
    for part in text.trim().split(',') {
        let (first, last) = parse_range(part)
            .ok_or_else(|| format!("'{text}' is not a list of numbers like 0-3,8"))?;
        for number in first..=last {
            if !seen.insert(number) {
                return Err(format!("{number} is in '{text}' twice"));
            }
            numbers.push(number);
        }
    }
    Ok(numbers)
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut cpus = BTreeSet::new();
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(Self(cpus));
        }
        for part in trimmed.split(',') {
            let (first, last) = parse_range(part).ok_or_else(|| CpuListError {
                text: trimmed.into(),
            })?;
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl TryFrom<String> for CpuList {
    type Error = CpuListError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.to_string()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut cpus = self.0.iter().copied().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&first.to_string());
            if last > first {
                text.push_str(&format!("-{last}"));
            }
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_the_kernels_format() {
        for (text, printed) in [
            ("0-3,8\n", "0-3,8"),
            ("5", "5"),
            ("", ""),
            ("3,1,2", "1-3"),
            ("0,2-3", "0,2-3"),
        ] {
            assert_eq!(
                text.parse::<CpuList>().unwrap().to_string(),
                printed,
                "{text:?}"
            );
        }
    }

    #[test]
    fn masks_are_those_of_the_kernel() {
        for (mask, list, printed) in [
            ("4\n", "2", "4"),
            ("0", "", "0"),
            ("00000002,00000000", "33", "2,00000000"),
            ("ff,00000001", "0,32-39", "ff,00000001"),
            ("00000000,0000000c", "2-3", "c"),
        ] {
            let cpus = CpuList::from_mask(mask).unwrap();
            assert_eq!(cpus.to_string(), list, "{mask:?}");
            assert_eq!(cpus.to_mask(), printed, "{mask:?}");
        }
        for text in ["", "x", "1,,2", "123456789"] {
            assert!(CpuList::from_mask(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn numbers_keep_their_order_and_stand_there_once() {
        assert_eq!(numbers("2-3,0"), Ok(vec![2, 3, 0]));
        assert_eq!(numbers("7"), Ok(vec![7]));
        for text in ["", "2,2", "1-3,2", "3-1", "a", "1,"] {
            assert!(numbers(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn refuses_what_is_no_list() {
        for text in ["a", "3-1", "1,,2", "-1", "0-4000000000", "1-"] {
            assert!(text.parse::<CpuList>().is_err(), "{text:?}");
        }
    }
}
