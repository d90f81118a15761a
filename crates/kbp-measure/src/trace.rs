// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A short kernel trace of the poller's CPU: who ran, which softirqs, which polls.
//!
//! It uses a tracefs instance of its own, so that nobody else's tracing is disturbed, and
//! removes it again. It is for explaining: a traced row is in no result.
//! Not here: reading the trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

/// Where instances live; tracefs has to be mounted there.
const INSTANCES: &str = "/sys/kernel/tracing/instances";
/// Buffer for the one traced CPU, KiB.
const BUFFER_KB: &str = "16384";
/// `NET_RX_SOFTIRQ` of the kernel's enumeration.
const NET_RX_FILTER: &str = "vec == 3";

/// Events with their filters. A busy poller polls a million times a second: only polls
/// that did some work are kept.
const EVENTS: [(&str, &str); 5] = [
    ("napi/napi_poll", "work > 0"),
    ("irq/softirq_raise", NET_RX_FILTER),
    ("irq/softirq_entry", NET_RX_FILTER),
    ("irq/softirq_exit", NET_RX_FILTER),
    ("sched/sched_switch", ""),
];

/// A tracefs instance. Dropping it removes it.
#[derive(Debug)]
pub struct Trace {
    dir: PathBuf,
}

impl Trace {
    /// Makes the instance with all events set up for one CPU; nothing is recorded yet.
    ///
    /// # Errors
    /// When tracefs is not mounted or an event does not exist.
    pub fn set_up(cpu: u32) -> Result<Self> {
        let dir = Path::new(INSTANCES).join(format!("kbp-measure-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| Error::file("create the trace instance", &dir, e))?;
        let trace = Self { dir };
        trace.write("tracing_on", "0")?;
        trace.write("trace_clock", "mono")?;
        trace.write("buffer_size_kb", BUFFER_KB)?;
        trace.write("tracing_cpumask", &cpu_mask(cpu))?;
        for (event, filter) in EVENTS {
            if !filter.is_empty() {
                trace.write(&format!("events/{event}/filter"), filter)?;
            }
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(trace)
    }

    /// Records for `length` and saves what was recorded to `path`.
    ///
    /// # Errors
    /// When the recording can't be switched or saved.
    pub fn record(&self, length: Duration, path: &Path) -> Result<()> {
        self.write("tracing_on", "1")?;
        std::thread::sleep(length);
        self.write("tracing_on", "0")?;
        let source = self.dir.join("trace");
        let mut from = fs::File::open(&source).map_err(|e| Error::file("open", &source, e))?;
        let mut to = fs::File::create(path).map_err(|e| Error::file("create", path, e))?;
        std::io::copy(&mut from, &mut to).map_err(|e| Error::file("write", path, e))?;
        Ok(())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value).map_err(|e| Error::file("write", &path, e))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An instance that is still busy stays until the next boot; it records nothing.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A CPU as the kernel writes masks: words of 32 bits in hex, highest first.
fn cpu_mask(cpu: u32) -> String {
    let zeros = ",00000000".repeat((cpu / 32) as usize);
    format!("{:x}{zeros}", 1u32 << (cpu % 32))
}

#[cfg(test)]
mod tests {
    use super::cpu_mask;

    #[test]
    fn masks_are_written_as_the_kernel_reads_them() {
        assert_eq!(cpu_mask(2), "4");
        assert_eq!(cpu_mask(31), "80000000");
        assert_eq!(cpu_mask(32), "1,00000000");
        assert_eq!(cpu_mask(69), "20,00000000,00000000");
    }
}
