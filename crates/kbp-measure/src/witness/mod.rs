// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel itself counts while a row is measured: softirqs, interrupts, CPU time
//! of threads. The poller's own counters are read at the same moments, and kept apart.
//!
//! Not here: any judgement of the numbers.

use kbp_core::{Client, Host};

use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::result::{PollerDelta, Witness};

/// What is to be read around a row.
#[derive(Debug, Clone)]
pub struct Watch {
    /// CPU whose softirqs count.
    pub cpu: u32,
    /// Receive vectors whose interrupts count.
    pub receive_irqs: Vec<u32>,
    /// Threads that the mode brings.
    pub mode_threads: Vec<u32>,
    /// Whether that CPU has a poller of ours.
    pub has_poller: bool,
}

/// One reading. Two of them make a difference.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    at_ns: u64,
    witness: Witness,
    poller: Option<PollerDelta>,
}

/// What happened between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between {
    /// Time between them, nanoseconds.
    pub span_ns: u64,
    /// The kernel's counters.
    pub witness: Witness,
    /// The poller's counters.
    pub poller: Option<PollerDelta>,
}

impl Watch {
    /// Reads everything now.
    ///
    /// # Errors
    /// When a counter is not where it should be, or the poller is gone.
    pub fn read(&self, host: &Host) -> Result<Reading> {
        let softirqs = host.softirqs().map_err(kbp_core::Error::from)?;
        let missing = |what: &str| Error::Invalid(format!("{what} does not exist on this machine"));
        let net_rx_softirqs = softirqs
            .count("NET_RX", self.cpu)
            .ok_or_else(|| missing(&format!("NET_RX of CPU {} in /proc/softirqs", self.cpu)))?;
        let interrupts = host.interrupts().map_err(kbp_core::Error::from)?;
        let mut hard_irqs = 0;
        for &irq in &self.receive_irqs {
            hard_irqs += interrupts
                .total(irq)
                .ok_or_else(|| missing(&format!("interrupt {irq}")))?;
        }
        let mut mode_threads_ns = 0;
        for &tid in &self.mode_threads {
            mode_threads_ns += cpu_time_ns(host, tid)?;
        }
        let ksoftirqd_ns = self.ksoftirqd_ns(host)?;
        let witness = Witness {
            net_rx_softirqs,
            hard_irqs,
            ksoftirqd_ns,
            mode_threads_ns,
        };
        Ok(Reading {
            at_ns: monotonic_ns()?,
            witness,
            poller: self.read_poller()?,
        })
    }

    fn ksoftirqd_ns(&self, host: &Host) -> Result<u64> {
        let name = format!("ksoftirqd/{}", self.cpu);
        let tasks = host.processes_named(&name).map_err(kbp_core::Error::from)?;
        tasks.iter().map(|task| cpu_time_ns(host, task.tid)).sum()
    }

    fn read_poller(&self) -> Result<Option<PollerDelta>> {
        if !self.has_poller {
            return Ok(None);
        }
        let mut client = Client::connect().map_err(kbp_core::Error::from)?;
        let poller = client.poller_get(self.cpu).map_err(kbp_core::Error::from)?;
        let counter = |name: &str| {
            poller.stats.get(name).ok_or_else(|| {
                Error::Invalid(format!("the kbp module does not report the counter {name}"))
            })
        };
        Ok(Some(PollerDelta {
            busy_ns: counter("busy_ns")?,
            polls: counter("polls")?,
            packets: counter("packets")?,
            handbacks: counter("handbacks")?,
        }))
    }
}

/// Time that a thread was on a CPU, nanoseconds: the first number of its schedstat.
fn cpu_time_ns(host: &Host, tid: u32) -> Result<u64> {
    let file = format!("proc/{tid}/schedstat");
    let text = host.read(&file).map_err(kbp_core::Error::from)?;
    let first = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    first.ok_or_else(|| {
        kbp_core::Error::from(host.malformed(&file, "it does not begin with a time")).into()
    })
}

impl Reading {
    /// What happened since `earlier`. A counter that went back counts as not moved.
    pub fn since(&self, earlier: &Self) -> Between {
        let (now, then) = (&self.witness, &earlier.witness);
        let poller = self
            .poller
            .zip(earlier.poller)
            .map(|(now, then)| PollerDelta {
                busy_ns: now.busy_ns.saturating_sub(then.busy_ns),
                polls: now.polls.saturating_sub(then.polls),
                packets: now.packets.saturating_sub(then.packets),
                handbacks: now.handbacks.saturating_sub(then.handbacks),
            });
        Between {
            span_ns: self.at_ns.saturating_sub(earlier.at_ns),
            witness: Witness {
                net_rx_softirqs: now.net_rx_softirqs.saturating_sub(then.net_rx_softirqs),
                hard_irqs: now.hard_irqs.saturating_sub(then.hard_irqs),
                ksoftirqd_ns: now.ksoftirqd_ns.saturating_sub(then.ksoftirqd_ns),
                mode_threads_ns: now.mode_threads_ns.saturating_sub(then.mode_threads_ns),
            },
            poller,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTIRQS: &str = "      CPU0  CPU2\n NET_RX:  7  NRX\n  TIMER:  1  1\n";
    const INTERRUPTS: &str =
        "      CPU0  CPU2\n 26:  1  IRQS  PCI-MSI 65536-edge      eth0-rx-0\n \
                              29:  0  4  PCI-MSI 81920-edge      eth1-rx-0\n";

    /// A captured tree with ksoftirqd/2 as task 30 and one thread of the mode as task 40.
    fn tree(dir: &std::path::Path, net_rx: u64, irqs: u64, thread_ns: u64) -> Host {
        let write = |file: &str, text: &str| {
            let path = dir.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/softirqs",
            &SOFTIRQS.replace("NRX", &net_rx.to_string()),
        );
        write(
            "proc/interrupts",
            &INTERRUPTS.replace("IRQS", &irqs.to_string()),
        );
        write("proc/30/task/30/comm", "ksoftirqd/2\n");
        write("proc/30/schedstat", "500 1 2\n");
        write("proc/40/task/40/comm", "napi/eth0-8193\n");
        write("proc/40/schedstat", &format!("{thread_ns} 1 2\n"));
        Host::at(dir)
    }

    #[test]
    fn differences_cover_the_right_cpu_vectors_and_threads() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch {
            cpu: 2,
            receive_irqs: vec![26, 29],
            mode_threads: vec![40],
            has_poller: false,
        };
        let before = watch.read(&tree(dir.path(), 100, 10, 1_000)).unwrap();
        let after = watch.read(&tree(dir.path(), 160, 25, 4_000)).unwrap();
        let between = after.since(&before);
        let want = Witness {
            net_rx_softirqs: 60,
            hard_irqs: 15,
            ksoftirqd_ns: 0,
            mode_threads_ns: 3_000,
        };
        assert_eq!((between.witness, between.poller), (want, None));
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let host = tree(dir.path(), 1, 1, 1);
        let base = Watch {
            cpu: 2,
            receive_irqs: vec![26],
            mode_threads: vec![],
            has_poller: false,
        };
        let no_cpu = Watch {
            cpu: 9,
            ..base.clone()
        }
        .read(&host)
        .unwrap_err()
        .to_string();
        assert!(no_cpu.contains("NET_RX of CPU 9"), "{no_cpu}");
        let no_irq = Watch {
            receive_irqs: vec![77],
            ..base
        }
        .read(&host)
        .unwrap_err()
        .to_string();
        assert!(no_irq.contains("interrupt 77"), "{no_irq}");
    }
}
