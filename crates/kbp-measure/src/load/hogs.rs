// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU hogs: ordinary `SCHED_OTHER` threads that take all the time they are given on
//! one CPU each.
//!
//! They work a little and then PAUSE: on the lab's virtual clock a spinner without it
//! would take its share of the instruction stream from every other CPU. With nothing but
//! PAUSE they would be no burden there but to the host, which needs about a microsecond
//! for each.
//! Not here: hogs of higher priority; those are a fault to inject, not a load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::place::Place;

/// Steps of work between two PAUSEs, a few instructions each: together well below the
/// turns to which the lab limits every virtual CPU (2.5 µs with four of them).
const STEPS: u32 = 200;

/// Running hogs. Dropping them stops them too; [`Hogs::stop`] also says what they did.
#[derive(Debug)]
pub struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Hogs {
    /// Starts one hog for each entry of `cpus`; a CPU named twice gets two.
    ///
    /// Returns when all of them are pinned and spin.
    ///
    /// # Errors
    /// When a CPU is not online or a thread can't be made; none is left running then.
    pub fn start(cpus: &[u32]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut hogs = Self {
            stop: Arc::clone(&stop),
            threads: Vec::new(),
        };
        let (pinned_tx, pinned_rx) = std::sync::mpsc::channel();
        for &cpu in cpus {
            let (stop, pinned) = (Arc::clone(&stop), pinned_tx.clone());
            let place = Place {
                cpu: Some(cpu),
                ..Place::default()
            };
            let thread = std::thread::Builder::new()
                .name(format!("kbp-hog/{cpu}"))
                .spawn(move || hog(&place, &stop, &pinned))
                .map_err(|e| Error::sys("start a hog", e))?;
            hogs.threads.push(thread);
        }
        drop(pinned_tx);
        for pinned in pinned_rx.iter().take(cpus.len()) {
            pinned?;
        }
        Ok(hogs)
    }

    /// Stops all hogs, waits for their end and returns how often they went round.
    ///
    /// # Errors
    /// When a hog panicked.
    pub fn stop(mut self) -> Result<u64> {
        self.end().ok_or(Error::Panicked("hog"))
    }

    fn end(&mut self) -> Option<u64> {
        // Pairs with the load in `hog`: nothing but the flag itself is passed.
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .map(|thread| thread.join().ok())
            .sum()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.end();
    }
}

type Pinned = std::sync::mpsc::Sender<Result<()>>;

fn hog(place: &Place, stop: &AtomicBool, pinned: &Pinned) -> u64 {
    let placed = place.apply();
    let failed = placed.is_err();
    // The starter only goes away after it has heard from every hog.
    let _ = pinned.send(placed);
    let mut rounds = 0;
    while !failed && !stop.load(Ordering::Relaxed) {
        rounds += 1;
        for step in 0..STEPS {
            std::hint::black_box(step);
        }
        std::hint::spin_loop();
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::Hogs;

    #[test]
    fn spin_where_they_were_put_and_stop() {
        let hogs = Hogs::start(&[0, 0]).expect("CPU 0 is online");
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(hogs.stop().expect("no hog panics") > 0);
    }

    #[test]
    fn refuse_a_cpu_that_is_not_there() {
        let error = Hogs::start(&[0, 1000]).expect_err("no machine of ours has 1001 CPUs");
        assert!(error.to_string().contains("CPU 1000"), "{error}");
    }
}
