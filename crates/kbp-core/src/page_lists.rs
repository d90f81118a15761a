// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many pages the kernel moves at once between a CPU's lists of free pages and the rest.
//!
//! A packet's buffers come from the lists of the CPU that receives it, and go to those of the CPU that frees them. Where
//! the kernel tunes the lengths of these lists itself (since 6.7) it takes up to 32 batches at once, with the packet
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

/// The same, of the text of `/proc/zoneinfo`. A list whose length may vary is tuned; kernels that do not print between
/// which bounds it may are told by lists of one zone that differ.
fn of_zones(text: &str) -> Option<u64> {
    text.split("\nNode ")
        .filter(|zone| is_tuned(zone))
        .filter_map(|zone| values(zone, "batch:").max())
        .max()
        .map(|batch| batch * BATCHES_MAX)
}

fn is_tuned(zone: &str) -> bool {
    let least: Vec<_> = values(zone, "high_min:").collect();
    if least.is_empty() {
        return values(zone, "high:").collect::<BTreeSet<_>>().len() > 1;
    }
    least.into_iter().ne(values(zone, "high_max:"))
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

    /// A zone with a list for each length, of that batch; with bounds, if there are any.
    fn zone(batch: u64, lengths: &[u64], bounds: Option<(u64, u64)>) -> String {
        let mut text =
            "Node 0, zone   Normal\n  pages free     27316\n        high     480\n  pagesets\n"
                .to_string();
        for (cpu, high) in lengths.iter().enumerate() {
            text += &format!(
                "    cpu: {cpu}\n              count:    6\n              high:     {high}\n              batch:    \
                 {batch}\n"
            );
            if let Some((least, most)) = bounds {
                text +=
                    &format!("              high_min: {least}\n              high_max: {most}\n");
            }
            text += "  vm stats threshold: 12\n";
        }
        text
    }

    #[test]
    fn lists_whose_length_varies_are_tuned() {
        let small = zone(1, &[0, 0], None);
        assert_eq!(
            of_zones(&(small.clone() + &zone(7, &[119, 119], None))),
            None
        );
        assert_eq!(of_zones(&(small + &zone(7, &[178, 199], None))), Some(224));
        assert_eq!(of_zones(""), None);
    }

    #[test]
    fn where_the_kernel_prints_its_bounds_they_count() {
        assert_eq!(of_zones(&zone(7, &[119], Some((118, 1_228)))), Some(224));
        assert_eq!(of_zones(&zone(15, &[230, 60], Some((60, 60)))), None);
    }

    #[test]
    fn one_that_is_set_by_hand_is_not() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let vm = root.path().join("proc/sys/vm");
        std::fs::create_dir_all(&vm).unwrap();
        std::fs::write(root.path().join(ZONEINFO), zone(7, &[178, 199], None)).unwrap();
        let fraction = vm.join("percpu_pagelist_high_fraction");
        for (value, pages) in [("0\n", Some(224)), ("100000\n", None)] {
            std::fs::write(&fraction, value).unwrap();
            assert_eq!(pages_at_once(&host).unwrap(), pages);
        }
        assert!(remark(224).contains("-w vm.percpu_pagelist_high_fraction="));
    }
}
