// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU hogs: ordinary `SCHED_OTHER` threads that take all the time they are given on
//! one CPU each.
//!
//! They work a little and then PAUSE: on the lab's virtual clock a spinner without it
//! would take its share of the instruction stream from every other CPU. With nothing but
//! PAUSE they would be no burden there but to the host, which needs about a microsecond
//! for each.
//! Not here: hogs of higher priority; those are a fault to inject, not a load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::worker::{Stop, Workers};
use super::{check_cpu, Count, Entry, Load, Work};
use crate::error::Result;
use crate::place::Place;

pub(super) const ENTRY: Entry = Entry {
    load: Load::Hogs,
    name: "hogs",
    about: "SCHED_OTHER threads that take all the time they are given",
    check: |config| match config.hog_cpus[..] {
        [] => Err("no CPU was named for a hog".into()),
        _ => config.hog_cpus.iter().try_for_each(|&cpu| check_cpu(cpu)),
    },
    words: |config| format!("SCHED_OTHER hogs: {}.", words(&config.hog_cpus)),
    start: |config| Ok(Box::new(Hogs::start(&config.hog_cpus)?)),
};

/// Steps of work between two PAUSEs, a few instructions each: together well below the
/// turns to which the lab limits every virtual CPU (2.5 µs with four of them).
const STEPS: u32 = 200;

/// How many hogs are where: `2 on CPU 2, 1 on CPU 3`.
pub(super) fn words(cpus: &[u32]) -> String {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    let words = cpus
        .chunk_by(|a, b| a == b)
        .map(|same| format!("{} on CPU {}", same.len(), same[0]));
    words.collect::<Vec<_>>().join(", ")
}

/// Running hogs. Dropping them stops them too; [`Hogs::stop`] also says what they did.
#[derive(Debug)]
pub struct Hogs {
    workers: Workers,
    rounds: Arc<AtomicU64>,
}

impl Hogs {
    /// Starts one hog for each entry of `cpus`; a CPU named twice gets two.
    ///
    /// Returns when all of them are pinned and spin.
    ///
    /// # Errors
    /// When a CPU is not online or a thread can't be made; none is left running then.
    pub fn start(cpus: &[u32]) -> Result<Self> {
        let mut hogs = Self {
            workers: Workers::default(),
            rounds: Arc::default(),
        };
        for &cpu in cpus {
            let place = Place {
                cpu: Some(cpu),
                ..Place::default()
            };
            let rounds = Arc::clone(&hogs.rounds);
            let work = move |(), stop: &Stop| {
                hog(&rounds, stop);
                Ok(())
            };
            let name = format!("kbp-hog/{cpu}");
            hogs.workers.spawn(&name, place, || Ok(()), work)?;
        }
        Ok(hogs)
    }

    /// How often they went round until now, all together. Each reports every 1,024 rounds.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Stops all hogs, waits for their end and returns how often they went round.
    ///
    /// # Errors
    /// When a hog panicked.
    pub fn stop(mut self) -> Result<u64> {
        self.workers.end()?;
        Ok(self.rounds())
    }
}

impl Work for Hogs {
    fn counts(&self) -> Result<Vec<Count>> {
        Ok(vec![Count::proof("rounds", self.rounds())])
    }

    fn stop(self: Box<Self>) -> Result<()> {
        Hogs::stop(*self).map(drop)
    }
}

fn hog(total: &AtomicU64, stop: &Stop) {
    let mut rounds = 0u64;
    while !stop.requested() {
        rounds += 1;
        for step in 0..STEPS {
            std::hint::black_box(step);
        }
        std::hint::spin_loop();
        if rounds.is_multiple_of(1_024) {
            total.fetch_add(1_024, Ordering::Relaxed);
        }
    }
    total.fetch_add(rounds % 1_024, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{LoadConfig, Running};

    #[test]
    fn spin_where_they_were_put_and_stop() {
        let mut config = LoadConfig::against(0, "/nonexistent".as_ref(), 1);
        config.hog_cpus = vec![0, 0];
        let hogs = Running::start(Load::Hogs, &config).expect("CPU 0 is online");
        let before = hogs.progress().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let did = hogs.require_moved_since(&before).unwrap();
        assert!(did.counts[0].total >= 1_024, "{did:?}");
        hogs.stop().unwrap();
        assert_eq!(words(&[3, 2, 2]), "2 on CPU 2, 1 on CPU 3");
    }

    #[test]
    fn refuse_a_cpu_that_is_not_there() {
        let error = Hogs::start(&[0, 1000]).expect_err("no machine of ours has 1001 CPUs");
        assert!(error.to_string().contains("CPU 1000"), "{error}");
    }
}
