// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of CPUs in the kernel's list format (`0-3,8`).
//!
//! The mask format (`ff,00000001`) is not here; every file that we use has a `_list` sibling.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// More CPUs than any kernel supports (`NR_CPUS` is at most 8192); bounds what a range can cost.
const CPU_MAX: u32 = 65_535;

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
    fn refuses_what_is_no_list() {
        for text in ["a", "3-1", "1,,2", "-1", "0-4000000000", "1-"] {
            assert!(text.parse::<CpuList>().is_err(), "{text:?}");
        }
    }
}
