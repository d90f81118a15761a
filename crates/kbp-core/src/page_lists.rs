// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many pages the kernel moves at once between a CPU's lists of free pages and the rest.
//!
//! A packet's buffers come from the lists of the CPU that receives it, and go to those of the CPU that frees them. Where
//! the kernel tunes the lengths of these lists itself (since 6.7) it moves up to 32 batches at once, with the packet
//! waiting (docs/decisions/020-page-lists.md).

use std::collections::BTreeSet;

use crate::host::{Host, HostError};

/// The setting that ends the tuning when it is not 0.
const HIGH_FRACTION: &str = "vm/percpu_pagelist_high_fraction";
const ZONEINFO: &str = "proc/zoneinfo";
/// Batches that the kernel moves at once at most, 1 << `CONFIG_PCP_BATCH_SCALE_MAX` of all kernels that we know.
const BATCHES_MAX: u64 = 32;

/// Pages that may be moved at once on this host because the kernel tunes the lists of its CPUs, each for itself; `None`
/// where it does not.
///
/// # Errors
/// When the kernel's account of its zones or the setting can't be read.
pub fn pages_at_once(host: &Host) -> Result<Option<u64>, HostError> {
    if host.sysctl(HIGH_FRACTION)? != "0" {
        return Ok(None);
    }
    Ok(of_zones(&host.read(ZONEINFO)?))
}

/// The same, of the text of `/proc/zoneinfo`: lists of one zone that differ in length are tuned.
fn of_zones(text: &str) -> Option<u64> {
    text.split("\nNode ")
        .filter(|zone| values(zone, "high:").collect::<BTreeSet<_>>().len() > 1)
        .filter_map(|zone| values(zone, "batch:").max())
        .max()
        .map(|batch| batch * BATCHES_MAX)
}

/// The numbers after a word, one of each CPU.
fn values<'a>(zone: &'a str, word: &'a str) -> impl Iterator<Item = u64> + 'a {
    zone.lines()
        .filter_map(move |line| line.trim().strip_prefix(word)?.trim().parse().ok())
}

/// What to tell the user of it, with the way to end it.
pub fn remark(pages: u64) -> String {
    format!(
        "the kernel tunes the lists of free pages of each CPU: it may move {pages} pages at once while a packet waits for \
         its buffer; to move fewer: sysctl -w {}=100000 (0 is the default)",
        HIGH_FRACTION.replace('/', ".")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zone with a list for each pair of length and batch.
    fn zone(name: &str, lists: &[(u64, u64)]) -> String {
        let mut text = format!(
            "Node 0, zone {name:>8}\n  pages free     27316\n        boost    0\n        high     480\n  pagesets\n"
        );
        for (cpu, (high, batch)) in lists.iter().enumerate() {
            text += &format!(
                "    cpu: {cpu}\n              count:    6\n              high:     {high}\n              batch:    \
                 {batch}\n              high_min: 118\n              high_max: 1228\n  vm stats threshold: 12\n"
            );
        }
        text
    }

    #[test]
    fn lists_that_differ_within_a_zone_are_tuned() {
        let dma = zone("DMA", &[(0, 1), (0, 1)]);
        let even = zone("DMA32", &[(119, 7), (119, 7)]);
        let tuned = zone("Normal", &[(178, 7), (199, 7)]);
        assert_eq!(of_zones(&(dma.clone() + &even)), None);
        assert_eq!(of_zones(&(dma + &even + &tuned)), Some(224));
        assert_eq!(of_zones(""), None);
    }

    #[test]
    fn one_that_is_set_by_hand_is_not() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let vm = root.path().join("proc/sys/vm");
        std::fs::create_dir_all(&vm).unwrap();
        std::fs::write(
            root.path().join(ZONEINFO),
            zone("Normal", &[(178, 7), (199, 7)]),
        )
        .unwrap();
        let fraction = vm.join("percpu_pagelist_high_fraction");
        for (value, pages) in [("0\n", Some(224)), ("100000\n", None)] {
            std::fs::write(&fraction, value).unwrap();
            assert_eq!(pages_at_once(&host).unwrap(), pages);
        }
        assert!(remark(224).contains("-w vm.percpu_pagelist_high_fraction="));
    }
}
