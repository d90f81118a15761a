// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of the host's CPUs has the most time to spare, and a machine that moves there when it shares its own.
//!
//! Not here: where it begins ([`crate::qemu`]).

use std::collections::BTreeMap;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;

/// How long to look.
const LOOK: Duration = Duration::from_millis(100);
/// The same where a machine runs already, and how long until it looks again, up to twice that.
const LONG_LOOK: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_secs(1);

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
    choose(&before, &read()?, |cpu| is_in(&allowed, cpu))
}

/// Keeps a process on the idlest CPU until it is dropped.
///
/// Machines that start at the same time choose the same CPU, and one that waits for something hides that it is there.
#[derive(Debug)]
pub(crate) struct Follower {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Follows with all threads of `pid`, which is bound to one CPU and has not been waited for.
    pub(crate) fn start(pid: u32) -> Follower {
        let (stop, stopped) = channel();
        // Another pause each time, so that those that look at the same time don't go on doing so.
        let mut seed = pid;
        let mut pause = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            AGAIN + AGAIN * (seed >> 24) / 256
        };
        let pid = raw(pid);
        let thread = std::thread::spawn(move || {
            let goes_on = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            while goes_on(pause()) {
                let before = Look::at(pid);
                if !goes_on(LONG_LOOK) {
                    return;
                }
                let cpu = before.and_then(|before| {
                    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
                    let bound = sched_getaffinity(pid).ok()?;
                    let (allowed, bound) = (|cpu| is_in(&allowed, cpu), |cpu| is_in(&bound, cpu));
                    place(&before, &Look::at(pid)?, allowed, bound)
                });
                if let Some(cpu) = cpu {
                    bind(pid, cpu);
                }
            }
        });
        Follower {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn raw(pid: u32) -> Pid {
    // No process has more.
    Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX))
}

/// What is known at one time, in ticks since the start.
struct Look {
    idle: BTreeMap<usize, u64>,
    used: u64,
}

impl Look {
    fn at(pid: Pid) -> Option<Look> {
        let idle = idle_ticks(&std::fs::read_to_string("/proc/stat").ok()?);
        let used = used_ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Look { idle, used })
    }
}

/// Where the process had better be; `None` if where it is, or if that can't be found out.
fn place(
    before: &Look,
    after: &Look,
    allowed: impl Fn(usize) -> bool,
    bound: impl Fn(usize) -> bool,
) -> Option<usize> {
    let own = after.idle.keys().copied().find(|cpu| bound(*cpu))?;
    let best = choose(&before.idle, &after.idle, allowed)?;
    let spare = |cpu| spare(&before.idle, &after.idle, cpu);
    let used = after.used.saturating_sub(before.used);
    is_better(used, spare(own), spare(best)).then_some(best)
}

fn is_in(set: &CpuSet, cpu: usize) -> bool {
    cpu < CpuSet::count() && set.is_set(cpu).unwrap_or(false)
}

/// Whether a process that had `used` ticks of a CPU, of which `own` were left, could have more on one with `best` left.
fn is_better(used: u64, own: u64, best: u64) -> bool {
    let here = used + own;
    best > here + here / 4
}

/// Binds all threads that there are; one that is made meanwhile may be left behind.
fn bind(pid: Pid, cpu: usize) {
    let mut set = CpuSet::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    if set.set(cpu).is_err() {
        return;
    }
    for thread in threads.flatten() {
        // One that has ended meanwhile needs none.
        if let Some(id) = thread.file_name().to_str().and_then(|id| id.parse().ok()) {
            let _ = sched_setaffinity(Pid::from_raw(id), &set);
        }
    }
}

/// The processor time of a process by its /proc/PID/stat, in ticks: the 14th and 15th word, behind the name in brackets.
fn used_ticks(text: &str) -> Option<u64> {
    let mut words = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn spare(before: &BTreeMap<usize, u64>, after: &BTreeMap<usize, u64>, cpu: usize) -> u64 {
    let at = |ticks: &BTreeMap<usize, u64>| ticks.get(&cpu).copied().unwrap_or(0);
    at(after).saturating_sub(at(before))
}

fn choose(
    before: &BTreeMap<usize, u64>,
    after: &BTreeMap<usize, u64>,
    allowed: impl Fn(usize) -> bool,
) -> Option<usize> {
    let candidates: Vec<usize> = before.keys().copied().filter(|cpu| allowed(*cpu)).collect();
    if candidates.len() < 2 {
        return None;
    }
    candidates
        .into_iter()
        .max_by_key(|cpu| spare(before, after, *cpu))
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

    #[test]
    fn a_machine_moves_where_it_could_have_more() {
        // Two share a CPU, and another is idle, or nearly busy.
        assert!(is_better(15, 0, 30));
        assert!(!is_better(15, 0, 10));
        // It is alone on its CPU, and has all, most, or little of it to do.
        assert!(!is_better(30, 0, 30));
        assert!(!is_better(20, 10, 30));
        assert!(!is_better(3, 27, 30));
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 40 2 0 0 20 0 3 0";
        assert_eq!(used_ticks(stat), Some(42));
    }

    #[test]
    fn where_a_machine_had_better_be() {
        let at = |idle: [u64; 2], used| Look {
            idle: BTreeMap::from([(0, idle[0]), (1, idle[1])]),
            used,
        };
        let (before, shared) = (at([100, 100], 7), at([100, 130], 22));
        let all = |_| true;
        assert_eq!(place(&before, &shared, all, |cpu| cpu == 0), Some(1));
        // It is there already, may not go there, or is bound to none that is known.
        assert_eq!(place(&before, &shared, all, |cpu| cpu == 1), None);
        assert_eq!(
            place(&before, &shared, |cpu| cpu == 0, |cpu| cpu == 0),
            None
        );
        assert_eq!(place(&before, &shared, all, |cpu| cpu == 7), None);
    }

    #[test]
    fn a_process_is_bound_with_its_threads() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = raw(child.id());
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let last = (0..CpuSet::count())
            .rev()
            .find(|cpu| is_in(&allowed, *cpu))
            .unwrap();
        bind(pid, last);
        let bound = sched_getaffinity(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let cpus: Vec<usize> = (0..CpuSet::count())
            .filter(|cpu| is_in(&bound, *cpu))
            .collect();
        assert_eq!(cpus, [last]);
    }
}
