// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of the host's CPUs has the most time to spare.
//!
//! Not here: binding anything to it ([`crate::qemu`]).

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sched::{sched_getaffinity, CpuSet};
use nix::unistd::Pid;

/// How long to look.
const LOOK: Duration = Duration::from_millis(100);

/// The idlest CPU of those that this process may use; `None` when that cannot be found out or there is only one.
pub(crate) fn idlest() -> Option<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let read = || {
        std::fs::read_to_string("/proc/stat")
            .ok()
            .map(|text| idle_ticks(&text))
    };
    let before = read()?;
    std::thread::sleep(LOOK);
    choose(&before, &read()?, |cpu| {
        cpu < CpuSet::count() && allowed.is_set(cpu).unwrap_or(false)
    })
}

fn choose(
    before: &BTreeMap<usize, u64>,
    after: &BTreeMap<usize, u64>,
    allowed: impl Fn(usize) -> bool,
) -> Option<usize> {
    let spare = |cpu: &usize| after.get(cpu).unwrap_or(&0).saturating_sub(before[cpu]);
    let candidates: Vec<usize> = before.keys().copied().filter(|cpu| allowed(*cpu)).collect();
    if candidates.len() < 2 {
        return None;
    }
    candidates.into_iter().max_by_key(spare)
}

/// The idle time of each CPU by /proc/stat, in ticks: the fourth and fifth figures (idle, waiting for a disk).
fn idle_ticks(text: &str) -> BTreeMap<usize, u64> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = words.next()?.parse().ok()?;
        let figures: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        Some((cpu, figures.get(3)? + figures.get(4)?))
    };
    text.lines()
        .filter(|text| text.starts_with("cpu") && !text.starts_with("cpu "))
        .filter_map(line)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idlest_allowed_cpu_is_chosen() {
        let before = idle_ticks(
            "cpu  9 9 9 9 9 9\ncpu0 1 0 0 100 5 0\ncpu1 1 0 0 200 0 0\ncpu2 1 0 0 50 0 0\nintr 1\n",
        );
        let after = idle_ticks("cpu0 1 0 0 101 5 0\ncpu1 1 0 0 208 1 0\ncpu2 1 0 0 90 0 0\n");
        assert_eq!(before.len(), 3);
        assert_eq!(choose(&before, &after, |_| true), Some(2));
        assert_eq!(choose(&before, &after, |cpu| cpu != 2), Some(1));
        assert_eq!(choose(&before, &after, |cpu| cpu == 2), None);
    }
}
