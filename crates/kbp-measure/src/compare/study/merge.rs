// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of one machine's units as one file.
//!
//! Not here: making them ([`super::run`]).

use crate::compare::resume::configuration;
use crate::error::{Error, Result};
use crate::result::ResultFile;

/// Slices of time that the timeline of a merged row has. The units' own results have finer ones; those of a study, kept
/// in a repository, would be timelines for the greater part.
const SLICES_KEPT: usize = 20;

/// One file of several that were made on one machine in the same way and differ in their paths only. Of its timelines
/// the worst round trips are left, and the histograms of searches are left out.
///
/// `command` is what made them all. `None` for no files.
///
/// # Errors
/// When they differ in more than their paths.
pub fn merge(files: &[ResultFile], command: &str) -> Result<Option<ResultFile>> {
    let Some((first, others)) = files.split_first() else {
        return Ok(None);
    };
    let mut merged = first.clone();
    for other in others {
        same(first, other)?;
        merged.rows.extend(other.rows.iter().cloned());
        merged.not_run.extend(other.not_run.iter().cloned());
        merged.partial |= other.partial;
        if !merged.git.split(", ").any(|git| git == other.git) {
            merged.git = format!("{}, {}", merged.git, other.git);
        }
        let plans = merged
            .config
            .as_mut()
            .and_then(|config| config.plan.as_mut());
        let theirs = other
            .config
            .as_ref()
            .and_then(|config| config.plan.as_ref());
        if let Some((plan, theirs)) = plans.zip(theirs) {
            plan.paths.extend(theirs.paths.iter().cloned());
        }
    }
    if let Some(config) = &mut merged.config {
        config.command = command.into();
    }
    for row in &mut merged.rows {
        row.thin_timeline(SLICES_KEPT);
        // A search has found a rate; thousands of round trips at it are a page of cells for each row.
        if row.throughput.is_some() {
            row.histogram_ns.clear();
        }
    }
    Ok(Some(merged))
}

fn same(a: &ResultFile, b: &ResultFile) -> Result<()> {
    let key = |file: &ResultFile| {
        let mut config = configuration(file);
        if let Some(plan) = config.get_mut("plan").and_then(|plan| plan.as_object_mut()) {
            plan.remove("paths");
        }
        (
            file.kernel.clone(),
            file.clock.clone(),
            file.cmdline.clone(),
            config,
        )
    };
    if key(a) == key(b) {
        return Ok(());
    }
    Err(Error::Invalid(
        "two runs of one result were not made in the same way: give them different names with `result`".into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn files_that_differ_in_their_paths_are_one() {
        let mut vxlan = sample();
        vxlan.config.as_mut().unwrap().plan.as_mut().unwrap().paths = vec!["vxlan".into()];
        vxlan
            .rows
            .iter_mut()
            .for_each(|row| row.path = "vxlan".into());
        vxlan.git = "def5678".into();
        let timeline: Vec<[u64; 2]> = (0..100).map(|i| [i, (i * 37) % 100]).collect();
        vxlan.rows[0].timeline_ns = timeline.clone();
        let merged = merge(&[sample(), vxlan.clone()], "study").unwrap().unwrap();
        let kept = &merged.rows[sample().rows.len()].timeline_ns;
        let longest = |slice: &[[u64; 2]]| *slice.iter().max_by_key(|point| point[1]).unwrap();
        let slices: Vec<[u64; 2]> = timeline.chunks(5).map(longest).collect();
        assert_eq!(*kept, slices);
        assert_eq!(merged.rows.len(), 2 * sample().rows.len());
        let config = merged.config.unwrap();
        assert_eq!(config.plan.unwrap().paths, ["nic", "vxlan"]);
        assert_eq!(
            (config.command.as_str(), merged.git.as_str()),
            ("study", "abc1234, def5678")
        );
        assert!(!merged.partial);
        vxlan.config.as_mut().unwrap().period_ns += 1;
        assert!(merge(&[sample(), vxlan], "study").is_err());
        assert_eq!(merge(&[], "study").unwrap(), None);
    }
}
